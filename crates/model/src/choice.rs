//! Which endpoint of a service takes a connection, or a request.
//!
//! Inside the best locality rank two endpoints are drawn at random by weight and the less busy one
//! is taken (power of two choices). An endpoint that refused connections lately is skipped while
//! there is another. With client affinity the client's address decides instead; for a request the
//! caller says what decides. A service without locality is sampled, not scanned; nothing allocates
//! but the choice among the tiers of a DestinationRule.

use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::Text;
use crate::address::not_for_entries;
use crate::http::nearness::{Carries, Near, Nearness, agree};
use crate::http::service::Subset;
use crate::http::warmup::WARM;
use crate::identity::Identity;
use crate::plan::{Delivery, Flow, Refusal};
use crate::service::{LoadBalancing, Mode, Scope, Service};
use crate::view::{Endpoints, View};
use crate::workload::Workload;

/// Random draws before a service is scanned instead.
const MAX_DRAWS: usize = 16;

/// What a plan needs to know beyond the view; handed in, so that a plan stays a pure function.
pub trait Surroundings {
    /// The identity of the pod that this proxy serves at an address, if it serves one there.
    fn enrolled_identity(&self, ip: IpAddr) -> Option<&Identity>;
    /// Whether the client may be joined with such a pod without a tunnel.
    fn may_join(&self) -> bool;
    /// How many connections are open to a workload; for requests, any measure of how busy it is.
    fn open_connections(&self, uid: &str) -> u32;
    /// Whether a workload lately refused connections.
    fn is_set_aside(&self, uid: &str) -> bool;
    /// A random number below `bound`, which is at least 1.
    fn random_below(&mut self, bound: u64) -> u64;
}

/// A request that needs an endpoint of a service.
#[derive(Clone, Copy)]
pub struct RequestFlow<'a> {
    /// Whose place decides what is near: as a rule the proxy's own workload.
    pub source: &'a Workload,
    /// Where the request came in. An address of this family is preferred, and a service that makes
    /// no choice is sent there.
    pub destination: SocketAddr,
    /// The service.
    pub service: &'a Arc<Service>,
    /// Its port.
    pub port: u16,
    /// The host that the client asks for, of which endpoints behind a wildcard are found.
    pub host: Option<&'a str>,
    /// The part of its endpoints that the route names.
    pub subset: Option<&'a str>,
    /// What decides among endpoints that are equally near.
    pub by: By,
    /// Whether an endpoint is passed over while there is another: it is ejected, or an earlier
    /// attempt was sent there.
    pub is_avoided: &'a dyn Fn(&str) -> bool,
    /// Which endpoints are near.
    pub nearness: &'a Nearness,
    /// Which part of its share an endpoint takes, of [`WARM`]: less as long as it is new. A hash
    /// does not ask for it, or what goes to an endpoint would change with time.
    pub warmth: &'a dyn Fn(&str) -> u32,
}

/// What decides among endpoints that are equally near.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Of two drawn at random the less busy one.
    Load,
    /// Chance alone.
    Chance,
    /// A number that grows by one with each request: each in turn.
    Turn(u64),
    /// A hash of something of the request: the same goes to the same endpoint as long as it is
    /// there, and an endpoint that is gone moves only its own requests.
    Hash(u64),
}

/// One endpoint that could take the connection.
struct Candidate<'a> {
    workload: &'a Arc<Workload>,
    target_port: u16,
}

impl View {
    /// Chooses the endpoint of a service for a flow, and the port there.
    pub(crate) fn choose(
        &self,
        flow: &Flow<'_>,
        service: &Service,
        port: u16,
        around: &mut impl Surroundings,
    ) -> Result<(Arc<Workload>, u16), Refusal> {
        let source = flow.source;
        let pool = self.pool(service, port, None)?;
        let question = Question {
            source,
            service,
            port,
            pool,
            is_avoided: &|_| false,
            warmth: &|_| WARM,
            near: Near::OfService,
            tier: None,
        };
        let chosen = match service.load_balancing.client_affinity_seconds {
            Some(_) => question.by_hash(|uid| affinity(&flow.source_ip, uid), around),
            None => question.by_load(around),
        };
        chosen.map(Candidate::taken).ok_or_else(|| Refusal::NoEndpoint(service.key.clone()))
    }

    /// Chooses the endpoint for a request, and says how it is reached. It is never reached through
    /// a waypoint: the caller is that waypoint.
    pub fn choose_for_request(
        &self,
        flow: &RequestFlow<'_>,
        around: &mut impl Surroundings,
    ) -> Result<Delivery, Refusal> {
        let RequestFlow { source, destination, service, port, is_avoided, .. } = *flow;
        let no_endpoint = || Refusal::NoEndpoint(service.key.clone());
        if service.load_balancing.mode == Mode::Passthrough {
            if not_for_entries(destination.ip()).is_some() {
                return Err(Refusal::NoWorkloadAddress(destination));
            }
            // A route may lead here from another service: its destination is not this one's.
            // Whoever asks may use it, and those of its own namespace see it whatever it is.
            let from = &service.key.namespace;
            let meant = self.service_meant(&source.network, destination.ip(), from);
            let is_meant = meant.is_some_and(|meant| meant.key == service.key);
            if !is_meant || destination.port() != port {
                return Err(no_endpoint());
            }
            return self.pass_through(source, service, destination, around);
        }
        let pool = self.pool(service, port, flow.subset)?;
        let near = flow.nearness.near(source, service.load_balancing.mode);
        let warmth: &dyn Fn(&str) -> u32 = match flow.by {
            By::Hash(_) => &|_| WARM,
            By::Load | By::Chance | By::Turn(_) => flow.warmth,
        };
        let mut question =
            Question { source, service, port, pool, is_avoided, warmth, near, tier: None };
        question.tier = question.draw_tier(flow.by, around);
        let chosen = match flow.by {
            By::Load => question.by_load(around),
            By::Chance => question.draw(around),
            By::Turn(turn) => question.by_turn(turn, around),
            By::Hash(hash) => question.by_hash(|uid| mixed(affinity(&hash, uid)), around),
        };
        let (workload, target_port) = chosen.map(Candidate::taken).ok_or_else(no_endpoint)?;
        let like = service.like(destination.ip());
        self.deliver_to(workload, target_port, service, (like, flow.host), around)
    }

    /// The endpoints among which one of a service, or of a subset, is chosen.
    fn pool(
        &self,
        service: &Service,
        port: u16,
        subset: Option<&str>,
    ) -> Result<Pool<'_>, Refusal> {
        if !service.ports.is_empty() && service.port(port).is_none() {
            return Err(Refusal::NoPort(service.key.clone(), port));
        }
        let endpoints = self.endpoints(&service.key);
        let endpoints = endpoints.ok_or_else(|| Refusal::NoEndpoint(service.key.clone()))?;
        let Some(name) = subset else { return Ok(Pool { endpoints, part: None }) };
        let part = self.http_service(&service.key).and_then(|http| http.subsets.get(name));
        let part = part.ok_or_else(|| Refusal::NoSubset(service.key.clone(), Text::from(name)))?;
        Ok(Pool { endpoints, part: Some((self, part)) })
    }
}

/// The endpoints of a service, or those that are in one of its subsets.
struct Pool<'e> {
    endpoints: &'e Endpoints,
    part: Option<(&'e View, &'e Subset)>,
}

impl<'e> Pool<'e> {
    /// How many there are at most; some members of a subset may be gone.
    fn len(&self) -> usize {
        self.part.map_or(self.endpoints.len(), |(_, subset)| subset.members().len())
    }

    fn nth(&self, index: usize) -> Option<&'e Arc<Workload>> {
        match self.part {
            None => self.endpoints.nth(index),
            Some((view, subset)) => view.workload(subset.members().get(index)?),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &'e Arc<Workload>> {
        let all = self.part.is_none().then_some(self.endpoints);
        let part = self.part.into_iter();
        let part = part.flat_map(|(view, subset)| {
            subset.members().iter().filter_map(|uid| view.workload(uid))
        });
        all.into_iter().flat_map(Endpoints::iter).chain(part)
    }
}

impl Candidate<'_> {
    fn taken(self) -> (Arc<Workload>, u16) {
        (self.workload.clone(), self.target_port)
    }
}

struct Question<'a> {
    source: &'a Workload,
    service: &'a Service,
    port: u16,
    pool: Pool<'a>,
    is_avoided: &'a dyn Fn(&str) -> bool,
    warmth: &'a dyn Fn(&str) -> u32,
    near: Near<'a>,
    /// The tier that was drawn, where there are tiers.
    tier: Option<usize>,
}

impl<'a> Question<'a> {
    /// Draws the tier of which an endpoint is chosen, where there are tiers.
    fn draw_tier(&self, by: By, around: &mut impl Surroundings) -> Option<usize> {
        let Near::Tiers(tiers) = self.near else { return None };
        let mut carries: Vec<Carries> = Vec::new();
        for candidate in self.candidates() {
            let Some(tier) = tiers.of(candidate.workload) else { continue };
            if carries.len() <= tier {
                carries.resize(tier + 1, Carries::default());
            }
            let weight = u64::from(candidate.workload.capacity);
            carries[tier].all += weight;
            if self.is_in_use(candidate.workload, around) {
                carries[tier].in_use += weight;
            }
        }
        tiers.draw(&carries, |bound| match by {
            By::Hash(hash) => mixed(hash) % bound,
            By::Load | By::Chance | By::Turn(_) => around.random_below(bound),
        })
    }

    /// The part of all draws that an endpoint gets.
    fn weight(&self, candidate: &Candidate<'_>) -> u64 {
        let Candidate { workload, .. } = candidate;
        u64::from(workload.capacity) * u64::from((self.warmth)(&workload.uid))
    }

    fn by_load(&self, around: &mut impl Surroundings) -> Option<Candidate<'a>> {
        let first = self.draw(around)?;
        if self.pool.len() == 1 {
            return Some(first);
        }
        let second = self.draw(around)?;
        let (first, second) = ((self.weight(&first), first), (self.weight(&second), second));
        Some(less_busy(first, second, around))
    }

    /// Draws one endpoint of the best rank by weight.
    fn draw(&self, around: &mut impl Surroundings) -> Option<Candidate<'a>> {
        self.sample(around).or_else(|| self.scan(around))
    }

    /// Draws one endpoint without looking at all; `None` where ranks matter or luck runs out.
    fn sample(&self, around: &mut impl Surroundings) -> Option<Candidate<'a>> {
        let is_plain = match self.near {
            Near::OfService => self.load_balancing().mode == Mode::Unspecified,
            Near::Ignored => true,
            Near::Tiers(_) => false,
        };
        if !is_plain || self.pool.len() == 0 {
            return None;
        }
        let largest = u64::from(self.pool.endpoints.largest_capacity()).max(1) * u64::from(WARM);
        for _ in 0..MAX_DRAWS {
            let index = around.random_below(self.pool.len() as u64);
            let index = usize::try_from(index).expect("an index below a usize length");
            let candidate = self.pool.nth(index).and_then(|w| self.candidate(w));
            let Some(candidate) = candidate else { continue };
            let weight = self.weight(&candidate);
            let accepted = weight == largest || around.random_below(largest) < weight;
            if accepted && self.is_in_use(candidate.workload, around) {
                return Some(candidate);
            }
        }
        None
    }

    /// Draws one endpoint of the best rank by weight, in one pass over all of them.
    fn scan(&self, around: &mut impl Surroundings) -> Option<Candidate<'a>> {
        let mut best: Option<(Rank, Candidate<'a>)> = None;
        let mut weight_so_far = 0u64;
        for candidate in self.candidates() {
            let Some(rank) = self.rank(candidate.workload, around) else { continue };
            let weight = self.weight(&candidate);
            match &best {
                Some((held, _)) if *held > rank => continue,
                Some((held, _)) if *held == rank => weight_so_far += weight,
                _ => weight_so_far = weight,
            }
            let first = best.as_ref().is_none_or(|(held, _)| *held < rank);
            if first || around.random_below(weight_so_far.max(1)) < weight {
                best = Some((rank, candidate));
            }
        }
        best.map(|(_, candidate)| candidate)
    }

    /// The endpoint of the best rank whose turn it is, by weight, in the order of uids. One that is
    /// new leaves a part of its turns to others.
    fn by_turn(&self, turn: u64, around: &mut impl Surroundings) -> Option<Candidate<'a>> {
        let candidate = self.in_turn(turn, around)?;
        let warmth = (self.warmth)(&candidate.workload.uid);
        if warmth < WARM && around.random_below(WARM.into()) >= u64::from(warmth) {
            return self.draw(around);
        }
        Some(candidate)
    }

    fn in_turn(&self, turn: u64, around: &impl Surroundings) -> Option<Candidate<'a>> {
        let ranked = || {
            let all = self.candidates();
            all.filter_map(|it| Some((self.rank(it.workload, around)?, it)))
        };
        let best = ranked().map(|(rank, _)| rank).max()?;
        let of_best = || ranked().filter(|(rank, _)| *rank == best).map(|(_, it)| it);
        let weight = |it: &Candidate<'_>| u64::from(it.workload.capacity);
        let mut left = turn % of_best().map(|it| weight(&it)).sum::<u64>().max(1);
        of_best().find(|it| {
            let is_here = left < weight(it);
            left = left.saturating_sub(weight(it));
            is_here
        })
    }

    /// The endpoint of the best rank with the highest score, which is a hash of the client, or of
    /// something of the request, and of the endpoint: the same client keeps its endpoint, and a
    /// lost endpoint moves only its own clients (rendezvous hashing).
    fn by_hash(
        &self,
        score: impl Fn(&str) -> u64,
        around: &impl Surroundings,
    ) -> Option<Candidate<'a>> {
        let ranked = self
            .candidates()
            .filter_map(|c| self.rank(c.workload, around).map(|rank| (rank, c)))
            .max_by_key(|(rank, c)| (*rank, score(&c.workload.uid)));
        ranked.map(|(_, candidate)| candidate)
    }

    fn candidates(&self) -> impl Iterator<Item = Candidate<'a>> {
        self.pool.iter().filter_map(|it| self.candidate(it))
    }

    /// The endpoint with its port, unless it is not ready or serves no such port.
    fn candidate(&self, workload: &'a Arc<Workload>) -> Option<Candidate<'a>> {
        if !workload.healthy && !self.load_balancing().allow_unhealthy || workload.capacity == 0 {
            return None;
        }
        let ports = workload.services.get(&self.service.key)?;
        let mapping = ports.iter().find(|mapping| mapping.service_port == self.port)?;
        let of_service = self.service.port(self.port).map_or(0, |port| port.target_port);
        let target_port = if mapping.target_port != 0 { mapping.target_port } else { of_service };
        (target_port != 0).then_some(Candidate { workload, target_port })
    }

    /// How well an endpoint fits the client; `None` where it is not allowed at all.
    fn rank(&self, workload: &Workload, around: &impl Surroundings) -> Option<Rank> {
        let LoadBalancing { routing_preference, mode, .. } = self.load_balancing();
        let near = match self.near {
            Near::OfService => *mode,
            Near::Ignored => Mode::Unspecified,
            Near::Tiers(tiers) if tiers.of(workload) == self.tier => Mode::Unspecified,
            Near::Tiers(_) => return None,
        };
        let agrees = |scope: &&Scope| agree(self.source, workload, **scope);
        let agreeing = routing_preference.iter().take_while(agrees).count();
        let near = match near {
            Mode::Unspecified | Mode::Passthrough => 0,
            Mode::Failover => agreeing,
            Mode::Strict if agreeing == routing_preference.len() => agreeing,
            Mode::Strict => return None,
        };
        Some(Rank { in_use: self.is_in_use(workload, around), near })
    }

    fn is_in_use(&self, workload: &Workload, around: &impl Surroundings) -> bool {
        !around.is_set_aside(&workload.uid) && !(self.is_avoided)(&workload.uid)
    }

    fn load_balancing(&self) -> &LoadBalancing {
        &self.service.load_balancing
    }
}

/// Better is greater: an endpoint in use before one set aside, then a nearer before a farther.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    in_use: bool,
    near: usize,
}

/// Of two endpoints with their weights the one that is less busy for its weight.
fn less_busy<'e>(
    (weight_one, one): (u64, Candidate<'e>),
    (weight_other, other): (u64, Candidate<'e>),
    around: &impl Surroundings,
) -> Candidate<'e> {
    let load = |c: &Candidate<'_>| u64::from(around.open_connections(&c.workload.uid));
    let scaled_one = load(&one).saturating_mul(weight_other);
    let scaled_other = load(&other).saturating_mul(weight_one);
    if scaled_other < scaled_one { other } else { one }
}

fn affinity(of: &impl Hash, uid: &str) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    (of, uid).hash(&mut hasher);
    hasher.finish()
}

/// Spreads what differs in a few bits over all of them (the finalizer of MurmurHash3): the hasher
/// alone ranks endpoints with similar names alike for most keys.
fn mixed(mut hash: u64) -> u64 {
    for factor in [0xff51_afd7_ed55_8ccd_u64, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ (hash >> 33)).wrapping_mul(factor);
    }
    hash ^ (hash >> 33)
}
