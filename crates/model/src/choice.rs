//! Which endpoint of a service takes a connection.
//!
//! Inside the best locality rank two endpoints are drawn at random by weight and the less busy one
//! is taken (power of two choices). An endpoint that refused connections lately is skipped while
//! there is another. With client affinity the client's address decides instead. Nothing here
//! allocates; a service without locality is sampled, not scanned.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use crate::identity::Identity;
use crate::plan::{Flow, Refusal};
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
    /// How many connections are open to a workload.
    fn open_connections(&self, uid: &str) -> u32;
    /// Whether a workload lately refused connections.
    fn is_set_aside(&self, uid: &str) -> bool;
    /// A random number below `bound`, which is at least 1.
    fn random_below(&mut self, bound: u64) -> u64;
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
        let none = || Refusal::NoEndpoint(service.key.clone());
        if !service.ports.is_empty() && service.port(port).is_none() {
            return Err(Refusal::NoPort(service.key.clone(), port));
        }
        let endpoints = self.endpoints(&service.key).ok_or_else(none)?;
        let question = Question { flow, service, port };
        let chosen = match service.load_balancing.client_affinity_seconds {
            Some(_) => question.by_client(endpoints, around),
            None => question.by_load(endpoints, around),
        };
        let candidate = chosen.ok_or_else(none)?;
        Ok((candidate.workload.clone(), candidate.target_port))
    }
}

struct Question<'a> {
    flow: &'a Flow<'a>,
    service: &'a Service,
    port: u16,
}

impl Question<'_> {
    fn by_load<'e>(
        &self,
        endpoints: &'e Endpoints,
        around: &mut impl Surroundings,
    ) -> Option<Candidate<'e>> {
        let draw = |around: &mut _| {
            self.sample(endpoints, around).or_else(|| self.scan(endpoints, around))
        };
        let first = draw(around)?;
        if endpoints.len() == 1 {
            return Some(first);
        }
        let second = draw(around)?;
        Some(less_busy(first, second, around))
    }

    /// Draws one endpoint without looking at all; `None` where ranks matter or luck runs out.
    fn sample<'e>(
        &self,
        endpoints: &'e Endpoints,
        around: &mut impl Surroundings,
    ) -> Option<Candidate<'e>> {
        if self.load_balancing().mode != Mode::Unspecified {
            return None;
        }
        let largest = u64::from(endpoints.largest_capacity()).max(1);
        for _ in 0..MAX_DRAWS {
            let index = around.random_below(endpoints.len() as u64);
            let index = usize::try_from(index).expect("an index below a usize length");
            let candidate = endpoints.nth(index).and_then(|w| self.candidate(w));
            let Some(candidate) = candidate else { continue };
            let accepted = largest == 1
                || around.random_below(largest) < u64::from(candidate.workload.capacity);
            if accepted && !around.is_set_aside(&candidate.workload.uid) {
                return Some(candidate);
            }
        }
        None
    }

    /// Draws one endpoint of the best rank by weight, in one pass over all of them.
    fn scan<'e>(
        &self,
        endpoints: &'e Endpoints,
        around: &mut impl Surroundings,
    ) -> Option<Candidate<'e>> {
        let mut best: Option<(Rank, Candidate<'e>)> = None;
        let mut weight_so_far = 0u64;
        for candidate in endpoints.iter().filter_map(|w| self.candidate(w)) {
            let Some(rank) = self.rank(candidate.workload, around) else { continue };
            let weight = u64::from(candidate.workload.capacity);
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

    /// The endpoint of the best rank with the highest hash of client and endpoint: the same
    /// client keeps its endpoint, and a lost endpoint moves only its own clients.
    fn by_client<'e>(
        &self,
        endpoints: &'e Endpoints,
        around: &impl Surroundings,
    ) -> Option<Candidate<'e>> {
        let candidates = endpoints.iter().filter_map(|w| self.candidate(w));
        let ranked = candidates
            .filter_map(|c| self.rank(c.workload, around).map(|rank| (rank, c)))
            .max_by_key(|(rank, c)| (*rank, affinity(self.flow.source_ip, &c.workload.uid)));
        ranked.map(|(_, candidate)| candidate)
    }

    /// The endpoint with its port, unless it is not ready or serves no such port.
    fn candidate<'e>(&self, workload: &'e Arc<Workload>) -> Option<Candidate<'e>> {
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
        let agrees = |scope: &&Scope| agree(self.flow.source, workload, **scope);
        let agreeing = routing_preference.iter().take_while(agrees).count();
        let near = match mode {
            Mode::Unspecified | Mode::Passthrough => 0,
            Mode::Failover => agreeing,
            Mode::Strict if agreeing == routing_preference.len() => agreeing,
            Mode::Strict => return None,
        };
        Some(Rank { in_use: !around.is_set_aside(&workload.uid), near })
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

fn less_busy<'e>(
    one: Candidate<'e>,
    other: Candidate<'e>,
    around: &impl Surroundings,
) -> Candidate<'e> {
    let load = |c: &Candidate<'_>| u64::from(around.open_connections(&c.workload.uid));
    let (weight_one, weight_other) = (one.workload.capacity, other.workload.capacity);
    let scaled_one = load(&one) * u64::from(weight_other);
    let scaled_other = load(&other) * u64::from(weight_one);
    if scaled_other < scaled_one { other } else { one }
}

fn agree(source: &Workload, target: &Workload, scope: Scope) -> bool {
    let (from, to) = (&source.locality, &target.locality);
    match scope {
        Scope::Region => from.region == to.region,
        Scope::Zone => from.zone == to.zone,
        Scope::Subzone => from.subzone == to.subzone,
        Scope::Node => source.node == target.node,
        Scope::Cluster => source.cluster_id == target.cluster_id,
        Scope::Network => source.network == target.network,
    }
}

fn affinity(client: IpAddr, uid: &str) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    (client, uid).hash(&mut hasher);
    hasher.finish()
}
