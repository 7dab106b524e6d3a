//! The worker's account of file descriptors: who may have how many, and who has how many.
//!
//! The threads of a worker share one limit (`RLIMIT_NOFILE`), and so this account. Every descriptor
//! of a connection is taken here before it is opened and given back when it is closed: 1 for an
//! accepted connection, 1 for a dialled one, 1 for an HBONE connection, 1 for the application's end
//! of a tunnel. A pod has a share for each direction, so strangers who fill its inbound share never
//! stall its outbound. Each source has a part of a share, so no client keeps its neighbours out.
//! `bounds` says how much each is.
//!
//! Nothing here runs while bytes move, nothing waits, and nothing is ever taken back: existing
//! connections continue.

mod bounds;
mod told;

use std::collections::hash_map::Entry;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ambit_model::identity::Identity;
use ambit_model::names::WorkloadName;
use ambit_net::sys::process::raise_open_files_limit;
use rustc_hash::FxHashMap;

use crate::failure::{Failure, ResponseFlags};
pub use bounds::Process;
use bounds::Room;

/// The usual limit of file descriptors, where the process' own cannot be read.
const USUAL_LIMIT: u64 = 1024;
/// What a source is guaranteed of what its pod is guaranteed: an HBONE connection and three
/// tunnels.
const GUARANTEE_OF_A_SOURCE: usize = 4;
/// Tunnels without a descriptor of their own that count as one: what they take is memory.
const TUNNELS_OF_A_DESCRIPTOR: usize = 4;
/// HBONE connections without a tunnel that one source may keep with a pod. A proxy keeps a few for
/// each of its threads, until they have been idle for its `pool-unused-release-timeout`.
const MAX_IDLE_OF_A_SOURCE: usize = 128;
/// How often a share that is used up is written to the log.
const LOG_INTERVAL: Duration = Duration::from_secs(5);
/// An unknown client's IPv6 address counts with its whole network of this prefix length, because
/// the owner of one address usually has them all.
const IPV6_NETWORK_BITS: u32 = 64;
/// A site has networks of this length in common (RFC 6177), and may use any of the 65,536 in it.
const IPV6_SITE_BITS: u32 = 48;

/// For what a pod has a share of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// What the pod opened.
    Outbound,
    /// What other proxies bring: HBONE connections of proven peers, and their tunnels.
    Inbound,
    /// Connections to the port of HBONE whose peers have not proven who they are.
    Handshakes,
    /// What comes from outside the mesh.
    Plaintext,
    /// DNS queries on their way, and connections that ask.
    Dns,
}

impl Direction {
    /// All of them.
    const ALL: [Self; 5] =
        [Self::Outbound, Self::Inbound, Self::Handshakes, Self::Plaintext, Self::Dns];

    /// How many sixteenths of what a pod is guaranteed.
    fn parts(self) -> usize {
        match self {
            Self::Outbound | Self::Inbound => 5,
            Self::Handshakes | Self::Plaintext | Self::Dns => 2,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Outbound => "outbound",
            Self::Inbound => "inbound",
            Self::Handshakes => "handshakes",
            Self::Plaintext => "plaintext",
            Self::Dns => "dns",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The client that connects to a pod, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Its address, or the first of its network.
    pub address: IpAddr,
    /// Who it is, as proven.
    pub identity: Option<Identity>,
    /// The first address of its site, if it is unknown and has one.
    site: Option<Ipv6Addr>,
}

/// A client that may connect from a great many addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    /// Has proven to be this.
    Identity(Identity),
    /// Is somewhere in the IPv6 site that begins there.
    Site(Ipv6Addr),
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Identity(identity) => write!(f, "{identity}"),
            Self::Site(first) => write!(f, "{first}/{IPV6_SITE_BITS}"),
        }
    }
}

impl Source {
    /// A client that has proven nothing. The view may know its address.
    pub(crate) fn unproven(address: IpAddr, is_known: bool) -> Self {
        match address {
            IpAddr::V6(ip) if !is_known => {
                let first = |bits| {
                    let network = u128::MAX << (u128::BITS - bits);
                    Ipv6Addr::from_bits(ip.to_bits() & network)
                };
                let address = first(IPV6_NETWORK_BITS).into();
                Self { address, identity: None, site: Some(first(IPV6_SITE_BITS)) }
            }
            address => Self { address, identity: None, site: None },
        }
    }

    /// A client whose certificate was verified.
    pub fn proven(address: IpAddr, identity: Identity) -> Self {
        Self { address, identity: Some(identity), site: None }
    }

    /// Who may have many other addresses, too.
    fn party(&self) -> Option<Party> {
        let site = || self.site.map(Party::Site);
        self.identity.clone().map(Party::Identity).or_else(site)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.identity {
            Some(identity) => write!(f, "{identity} at {}", self.address),
            None => write!(f, "{}", self.address),
        }
    }
}

/// Which limit is used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UsedUp {
    /// All that there is for connections.
    All,
    /// What the pod may have in this direction.
    Share,
    /// What one identity, or the networks of one site, may have of it.
    Party(Party),
    /// What one source may have of it.
    Source(Source),
    /// How many HBONE connections without a tunnel a source may keep.
    Idle(Source),
}

/// Why there is no descriptor for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crowded {
    pod: WorkloadName,
    direction: Direction,
    what: UsedUp,
    used: usize,
    bound: usize,
}

impl std::error::Error for Crowded {}

impl fmt::Display for Crowded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, direction, what, used, bound } = self;
        match what {
            UsedUp::All => f.write_str(
                "the proxy has no descriptor left for connections; raise its limit of open files",
            )?,
            UsedUp::Share => write!(f, "the {direction} share of pod {pod} is used up")?,
            UsedUp::Party(party) => {
                let kind = match party {
                    Party::Identity(_) => "identity",
                    Party::Site(_) => "site",
                };
                write!(
                    f,
                    "{party} has used up what one {kind} may have of the {direction} share of pod \
                     {pod}"
                )?;
            }
            UsedUp::Source(source) => write!(
                f,
                "{source} has used up what one client may have of the {direction} share of pod \
                 {pod}"
            )?,
            UsedUp::Idle(source) => {
                return write!(
                    f,
                    "{source} keeps {used} HBONE connections without a tunnel with pod {pod}; it \
                     may keep {bound}"
                );
            }
        }
        write!(f, " ({used} of {bound} descriptors)")
    }
}

impl Failure for Crowded {
    fn flags(&self) -> ResponseFlags {
        ResponseFlags::Overflow
    }

    fn reason(&self) -> &'static str {
        "crowded"
    }
}

/// The descriptors of one worker.
#[derive(Debug)]
pub struct Descriptors {
    process: Process,
    pods: AtomicUsize,
    guaranteed: AtomicUsize,
    lent: AtomicUsize,
    /// By direction.
    refused: [AtomicU64; Direction::ALL.len()],
    started: Instant,
}

impl Descriptors {
    /// Those of a process in which nothing is open yet.
    pub fn new(process: Process) -> Arc<Self> {
        let (pods, guaranteed, lent, refused) = Default::default();
        Arc::new(Self { process, pods, guaranteed, lent, refused, started: Instant::now() })
    }

    /// Those of this very process.
    pub(crate) fn of_this_process(threads: usize) -> Arc<Self> {
        // The limit was raised when the process started; asking for it again changes nothing.
        let limit = raise_open_files_limit().unwrap_or(USUAL_LIMIT);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX / 2);
        Self::new(Process { limit, threads })
    }

    /// Whether the sockets of one more pod can be taken on.
    pub fn fits_another_pod(&self) -> bool {
        self.process.fits_another_pod(self.pods.load(Ordering::Relaxed), self.room().used())
    }

    /// How many connections have, and how many they may have.
    pub fn used(&self) -> (usize, usize) {
        let room = self.room();
        (room.used(), room.total)
    }

    /// Connections and tunnels that were refused, by direction.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let count = |it: Direction| self.refused[it as usize].load(Ordering::Relaxed);
        Direction::ALL.into_iter().map(move |it| (it.as_str(), count(it)))
    }

    /// Other threads change these numbers meanwhile: threads that take at the same time may each
    /// take one too many, which the reserve of the process covers.
    fn room(&self) -> Room {
        let pods = self.pods.load(Ordering::Relaxed);
        Room {
            total: self.process.for_connections(pods),
            pods,
            guaranteed: self.guaranteed.load(Ordering::Relaxed),
            lent: self.lent.load(Ordering::Relaxed),
        }
    }

    fn counter(&self, kind: Kind) -> &AtomicUsize {
        match kind {
            Kind::Guaranteed => &self.guaranteed,
            Kind::Lent => &self.lent,
        }
    }
}

/// The shares of one pod.
#[derive(Debug)]
pub struct Shares {
    of: [Arc<Share>; Direction::ALL.len()],
    descriptors: Arc<Descriptors>,
}

impl Shares {
    /// Those of a pod that is taken on.
    pub fn new(descriptors: &Arc<Descriptors>, pod: &WorkloadName) -> Self {
        descriptors.pods.fetch_add(1, Ordering::Relaxed);
        let share = |direction| {
            Arc::new(Share {
                descriptors: descriptors.clone(),
                pod: pod.clone(),
                direction,
                uses: Mutex::default(),
                refused: AtomicU64::default(),
                logged_at_ms: AtomicU64::default(),
            })
        };
        Self { of: Direction::ALL.map(share), descriptors: descriptors.clone() }
    }

    /// The one of this direction.
    pub fn of(&self, direction: Direction) -> &Arc<Share> {
        &self.of[direction as usize]
    }
}

impl Drop for Shares {
    fn drop(&mut self) {
        self.descriptors.pods.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a pod may have in one direction.
#[derive(Debug)]
pub struct Share {
    descriptors: Arc<Descriptors>,
    pod: WorkloadName,
    direction: Direction,
    uses: Mutex<Uses>,
    refused: AtomicU64,
    logged_at_ms: AtomicU64,
}

/// Out of what a descriptor was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Guaranteed,
    Lent,
}

/// How much each source has of a share. Sources that have nothing are not listed.
#[derive(Debug, Default)]
struct Uses {
    all: Count,
    parties: FxHashMap<Party, usize>,
    sources: FxHashMap<Source, OfSource>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    guaranteed: usize,
    lent: usize,
}

impl Count {
    fn all(self) -> usize {
        self.guaranteed + self.lent
    }

    fn of(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Guaranteed => &mut self.guaranteed,
            Kind::Lent => &mut self.lent,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct OfSource {
    has: Count,
    idle: usize,
}

impl Uses {
    /// Out of what so many more can be given, or what is used up, with how many it has and may.
    fn kind(
        &self,
        room: Room,
        direction: Direction,
        source: Option<&Source>,
        count: usize,
    ) -> Result<Kind, (UsedUp, usize, usize)> {
        if !room.holds(count) {
            return Err((UsedUp::All, room.used(), room.total));
        }
        let has = source.map(|source| self.sources.get(source).copied().unwrap_or_default().has);
        let guarantee = room.guarantee(direction.parts());
        let is_guaranteed = self.all.guaranteed + count <= guarantee
            && has.is_none_or(|it| it.guaranteed + count <= GUARANTEE_OF_A_SOURCE);
        if is_guaranteed {
            return Ok(Kind::Guaranteed);
        }
        let loan = room.loan();
        let rest = loan.saturating_sub(self.all.lent);
        if rest < count {
            return Err((UsedUp::Share, self.all.all(), guarantee + loan.max(self.all.lent)));
        }
        let (Some(source), Some(has)) = (source, has) else { return Ok(Kind::Lent) };
        if let Some(party) = source.party() {
            let has = self.parties.get(&party).copied().unwrap_or_default();
            let bound = bounds::of_party(rest);
            if has + count > bound {
                return Err((UsedUp::Party(party), has, bound.max(has)));
            }
        }
        if has.lent + count > bounds::of_source(rest) {
            return Err((UsedUp::Source(source.clone()), has.all(), has.all()));
        }
        Ok(Kind::Lent)
    }

    fn add(&mut self, kind: Kind, source: Option<&Source>, count: usize) {
        *self.all.of(kind) += count;
        let Some(source) = source else { return };
        if let Some(party) = source.party() {
            *self.parties.entry(party).or_default() += count;
        }
        *self.sources.entry(source.clone()).or_default().has.of(kind) += count;
    }

    fn remove(&mut self, kind: Kind, source: Option<&Source>, count: usize) {
        *self.all.of(kind) -= count;
        let Some(source) = source else { return };
        if let Some(party) = source.party()
            && let Entry::Occupied(mut has) = self.parties.entry(party)
        {
            *has.get_mut() -= count;
            if *has.get() == 0 {
                has.remove();
            }
        }
        if let Entry::Occupied(mut of_source) = self.sources.entry(source.clone()) {
            *of_source.get_mut().has.of(kind) -= count;
            if of_source.get().has.all() == 0 {
                of_source.remove();
            }
        }
    }
}

impl Share {
    /// Takes descriptors for one connection. Its source matters where the pod is connected to.
    pub fn take(
        self: &Arc<Self>,
        source: Option<Source>,
        count: usize,
    ) -> Result<Permit, Box<Crowded>> {
        let kind = self.add(source.as_ref(), count)?;
        Ok(Permit { share: self.clone(), source, kind, count })
    }

    /// Whether there is room for anybody's connection of so many descriptors.
    pub fn has_room(&self, count: usize) -> bool {
        let room = self.descriptors.room();
        let all = self.uses().all;
        let is_guaranteed = all.guaranteed + count <= room.guarantee(self.direction.parts());
        room.holds(count) && (is_guaranteed || all.lent + count <= room.loan())
    }

    /// Connections wait because there is no room: says so now and then.
    pub(crate) fn keeps_waiting(&self) {
        let room = self.descriptors.room();
        let used = self.uses().all;
        let bound = room.guarantee(self.direction.parts()) + room.loan().max(used.lent);
        let what = if room.holds(1) { UsedUp::Share } else { UsedUp::All };
        self.log(&self.crowded(what, used.all(), bound));
    }

    fn add(&self, source: Option<&Source>, count: usize) -> Result<Kind, Box<Crowded>> {
        let room = self.descriptors.room();
        let kind = {
            let mut uses = self.uses();
            let kind = uses.kind(room, self.direction, source, count);
            if let Ok(kind) = kind {
                uses.add(kind, source, count);
                self.descriptors.counter(kind).fetch_add(count, Ordering::Relaxed);
            }
            kind
        };
        kind.map_err(|(what, used, bound)| self.refuse(what, used, bound))
    }

    fn remove(&self, kind: Kind, source: Option<&Source>, count: usize) {
        self.uses().remove(kind, source, count);
        self.descriptors.counter(kind).fetch_sub(count, Ordering::Relaxed);
    }

    fn refuse(&self, what: UsedUp, used: usize, bound: usize) -> Box<Crowded> {
        self.refused.fetch_add(1, Ordering::Relaxed);
        self.descriptors.refused[self.direction as usize].fetch_add(1, Ordering::Relaxed);
        let crowded = Box::new(self.crowded(what, used, bound));
        self.log(&crowded);
        crowded
    }

    fn crowded(&self, what: UsedUp, used: usize, bound: usize) -> Crowded {
        Crowded { pod: self.pod.clone(), direction: self.direction, what, used, bound }
    }

    fn log(&self, crowded: &Crowded) {
        let now = u64::try_from(self.descriptors.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let before = self.logged_at_ms.load(Ordering::Relaxed);
        let interval = u64::try_from(LOG_INTERVAL.as_millis()).unwrap_or(u64::MAX);
        // Milliseconds begin with 1: 0 is never.
        let is_due = before == 0 || now.saturating_sub(before) >= interval;
        let exchanged = || {
            let (now, order) = (now.max(1), Ordering::Relaxed);
            self.logged_at_ms.compare_exchange(before, now, order, order).is_ok()
        };
        if is_due && exchanged() {
            let refused = self.refused.load(Ordering::Relaxed);
            tracing::warn!(
                pod = %self.pod, direction = %self.direction, refused, "share used up: {crowded}"
            );
        }
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock().expect("no holder of this lock panics")
    }
}

/// Descriptors of one connection, given back when this is dropped.
#[derive(Debug)]
pub struct Permit {
    share: Arc<Share>,
    source: Option<Source>,
    kind: Kind,
    count: usize,
}

impl Permit {
    /// Parts with so many of its descriptors, at most all of them.
    pub fn split(&mut self, count: usize) -> Self {
        let count = count.min(self.count);
        self.count -= count;
        Self { share: self.share.clone(), source: self.source.clone(), kind: self.kind, count }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.share.remove(self.kind, self.source.as_ref(), self.count);
    }
}

/// An HBONE connection of a proven peer; tunnels are counted one by one. Belongs to one thread.
#[derive(Debug)]
pub struct Carrier {
    permit: Permit,
    tunnels: std::cell::Cell<usize>,
    /// Those that have no descriptor of their own, and what they count as.
    shared: std::cell::RefCell<(usize, Vec<Permit>)>,
}

/// A tunnel in a [`Carrier`].
#[derive(Debug)]
pub struct TunnelPermit {
    carrier: Rc<Carrier>,
    /// The application's end of it, if that is a descriptor.
    socket: Option<Permit>,
}

impl Carrier {
    /// Takes one for an HBONE connection, which carries nothing yet.
    pub fn new(share: &Arc<Share>, source: Source) -> Result<Rc<Self>, Box<Crowded>> {
        let permit = share.take(Some(source), 1)?;
        let (tunnels, shared) = Default::default();
        let carrier = Self { permit, tunnels, shared };
        let idle = carrier.count_idle(|idle| *idle += 1);
        if idle > MAX_IDLE_OF_A_SOURCE {
            let source = carrier.permit.source.clone().expect("it was given one");
            return Err(share.refuse(UsedUp::Idle(source), idle - 1, MAX_IDLE_OF_A_SOURCE));
        }
        Ok(Rc::new(carrier))
    }

    /// Takes one for a tunnel in it.
    pub fn tunnel(self: &Rc<Self>) -> Result<TunnelPermit, Box<Crowded>> {
        let socket = self.permit.share.take(self.permit.source.clone(), 1)?;
        Ok(self.opened(Some(socket)))
    }

    /// Takes a tunnel whose end is in this process, so that no descriptor is opened for it.
    pub fn inner_tunnel(self: &Rc<Self>) -> Result<TunnelPermit, Box<Crowded>> {
        {
            let (count, permits) = &mut *self.shared.borrow_mut();
            if *count == permits.len() * TUNNELS_OF_A_DESCRIPTOR {
                permits.push(self.permit.share.take(self.permit.source.clone(), 1)?);
            }
            *count += 1;
        }
        Ok(self.opened(None))
    }

    fn opened(self: &Rc<Self>, socket: Option<Permit>) -> TunnelPermit {
        if self.tunnels.replace(self.tunnels.get() + 1) == 0 {
            self.count_idle(|idle| *idle -= 1);
        }
        TunnelPermit { carrier: self.clone(), socket }
    }

    fn count_idle(&self, change: impl FnOnce(&mut usize)) -> usize {
        let mut uses = self.permit.share.uses();
        let of_source = self.permit.source.as_ref().and_then(|it| uses.sources.get_mut(it));
        let of_source = of_source.expect("a source is there as long as it has a permit");
        change(&mut of_source.idle);
        of_source.idle
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        // Its tunnels hold it: there is none any more.
        self.count_idle(|idle| *idle -= 1);
    }
}

impl Drop for TunnelPermit {
    fn drop(&mut self) {
        let carrier = &self.carrier;
        if self.socket.is_none() {
            let (count, permits) = &mut *carrier.shared.borrow_mut();
            *count -= 1;
            permits.truncate(count.div_ceil(TUNNELS_OF_A_DESCRIPTOR));
        }
        carrier.tunnels.set(carrier.tunnels.get() - 1);
        if carrier.tunnels.get() == 0 {
            carrier.count_idle(|idle| *idle += 1);
        }
    }
}

#[cfg(test)]
mod tests;
