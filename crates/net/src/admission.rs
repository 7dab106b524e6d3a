//! Who may be connected to a port that strangers reach.
//!
//! A connection is *silent* until its client has proven itself, as the port defines it: by a whole
//! request head, or by a call with a valid token. Silent connections are bounded in total and for
//! each source, and proven ones for each owner. At a bound nobody is refused: the oldest connection
//! of the source that has most is closed. So a flood loses its own connections, and a client that
//! connects meanwhile has time to prove itself. Sources that have proven themselves before are
//! closed last.
//!
//! The accept loop never waits for a client. It waits at most for connections that must close and
//! are still being closed, which bounds the descriptors. Other code serves the connection; it reads
//! an error from [`super::accept::Admitted`] when the connection must close.

mod crowd;

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, Sleep};

pub use crowd::Bound;
use crowd::Crowd;

/// Most connections that must close and are still open. Each needs one turn of its task, and
/// nothing from its client.
const LEAVING_MAX: usize = 64;
/// Sources that have proven themselves and are remembered: more than a large mesh has nodes.
const KNOWN_MAX: usize = 16_384;
/// How often a log line says that connections have to go.
const TELL_INTERVAL: Duration = Duration::from_secs(10);

/// Where a connection comes from, as far as clients can be distinguished.
///
/// An IPv6 client has as many addresses as its network prefix, /64, gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// This machine, over a Unix socket.
    Local,
    /// An IPv4 address, also where a dual-stack socket shows it as IPv6.
    V4(Ipv4Addr),
    /// The first 64 bits of an IPv6 address.
    V6(u64),
}

impl From<IpAddr> for Source {
    fn from(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip),
            IpAddr::V6(ip) => Self::V6((ip.to_bits() >> 64) as u64),
        }
    }
}

/// Whose a proven connection is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// Nobody gave a name: its source's.
    Source(Source),
    /// A client that proved to have this name. Its source is remembered as a good one.
    Named(Arc<str>),
    /// A client of this group, of which anybody may have made many. All groups have a share of
    /// their own, so they close no other's connection; their sources are not remembered.
    Guest(Arc<str>),
}

/// How many connections a port has, and how long they may stay silent.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Those that have proven nothing, by source.
    pub silent: Bound,
    /// Those that have, by owner.
    pub proven: Bound,
    /// Those that have and are guests', by group, beside the others.
    pub guests: Bound,
    /// How long after it was accepted a connection may prove nothing.
    pub proof_within: Duration,
}

impl Bounds {
    /// The most descriptors that connections take at any time.
    pub fn descriptors(&self) -> usize {
        self.silent.total + self.proven.total + self.guests.total + LEAVING_MAX + 1
    }
}

/// The connections of one port.
#[derive(Debug)]
pub struct Admission {
    /// What the port is for, for the log.
    port: &'static str,
    bounds: Bounds,
    state: Mutex<State>,
    left: Notify,
}

#[derive(Debug)]
struct State {
    next: u64,
    silent: Crowd<Source>,
    proven: Crowd<Owner>,
    guests: Crowd<Owner>,
    open: HashMap<u64, Open>,
    /// Told to go, and still open.
    leaving: usize,
    known: Known,
    /// Closed since the last log line, and when that was.
    sent_away: u64,
    told: Option<Instant>,
}

/// A connection that may stay.
#[derive(Debug)]
struct Open {
    owner: Option<Owner>,
    /// By when it has to prove itself.
    deadline: Instant,
    /// Dropped when it must go.
    _stay: oneshot::Sender<()>,
}

/// The sources of good clients, the longest known first to be forgotten.
#[derive(Debug, Default)]
struct Known {
    sources: HashSet<Source>,
    order: VecDeque<Source>,
}

impl Known {
    fn add(&mut self, source: Source) {
        if self.sources.insert(source) {
            self.order.push_back(source);
        }
        if self.order.len() > KNOWN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.sources.remove(&oldest);
        }
    }
}

/// Why a connection must go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Leave {
    /// It made room for another one.
    #[error("too many connections of this client")]
    Crowded,
    /// It proved nothing in its time.
    #[error("the client did not prove itself in time")]
    Silent,
}

/// The right of one connection to be there; given back when dropped.
#[derive(Debug)]
pub struct Place {
    proof: Proof,
    stay: oneshot::Receiver<()>,
    /// Until it is proven.
    silence: Option<Pin<Box<Sleep>>>,
    /// Once it must go.
    leave: Option<Leave>,
}

/// With this a connection is declared proven.
#[derive(Clone, Debug)]
pub struct Proof {
    admission: Arc<Admission>,
    number: u64,
    source: Source,
}

impl Admission {
    /// A port without connections.
    pub fn new(port: &'static str, bounds: Bounds) -> Arc<Self> {
        let state = State {
            next: 0,
            silent: Crowd::new(bounds.silent),
            proven: Crowd::new(bounds.proven),
            guests: Crowd::new(bounds.guests),
            open: HashMap::new(),
            leaving: 0,
            known: Known::default(),
            sent_away: 0,
            told: None,
        };
        Arc::new(Self { port, bounds, state: Mutex::new(state), left: Notify::new() })
    }

    /// Gives a connection from `source` its place; another one may have to go for it.
    pub async fn admit(self: &Arc<Self>, source: Source) -> Place {
        while self.state().leaving >= LEAVING_MAX {
            self.left.notified().await;
        }
        let (sender, stay) = oneshot::channel();
        let deadline = Instant::now() + self.bounds.proof_within;
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        let open = Open { owner: None, deadline, _stay: sender };
        state.open.insert(number, open);
        let is_known = state.known.sources.contains(&source);
        let gone = state.silent.add(&source, number, is_known);
        if let Some((source, number)) = gone {
            state.send_away(number);
            self.tell(&mut state, &source);
        }
        drop(state);
        let proof = Proof { admission: self.clone(), number, source };
        let silence = Some(Box::pin(tokio::time::sleep_until(deadline)));
        Place { proof, stay, silence, leave: None }
    }

    /// Silent and proven connections at this moment.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.silent.count(), state.proven.count() + state.guests.count())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of the lock panics")
    }

    /// Logs at intervals whose connections are closed.
    fn tell(&self, state: &mut State, whose: &dyn std::fmt::Debug) {
        state.sent_away += 1;
        if state.told.is_some_and(|told| told.elapsed() < TELL_INTERVAL) {
            return;
        }
        state.told = Some(Instant::now());
        let closed = std::mem::take(&mut state.sent_away);
        tracing::warn!(port = self.port, closed, mostly_of = ?whose, "too many connections");
    }
}

impl State {
    /// Among whose connections one of this owner counts.
    fn crowd_of(&mut self, owner: &Owner) -> &mut Crowd<Owner> {
        match owner {
            Owner::Source(_) | Owner::Named(_) => &mut self.proven,
            Owner::Guest(_) => &mut self.guests,
        }
    }

    fn send_away(&mut self, number: u64) {
        if self.open.remove(&number).is_some() {
            self.leaving += 1;
        }
    }
}

impl Proof {
    /// Where the connection comes from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// The connection has proven itself, and belongs to `owner` from now on.
    pub fn prove(&self, owner: Owner) {
        let admission = &self.admission;
        let mut state = admission.state();
        let Some(open) = state.open.get_mut(&self.number) else { return };
        if open.owner.is_some() {
            return;
        }
        open.owner = Some(owner.clone());
        state.silent.remove(&self.source, self.number);
        if let Owner::Named(_) = &owner {
            state.known.add(self.source);
        }
        let gone = state.crowd_of(&owner).add(&owner, self.number, false);
        if let Some((owner, number)) = gone {
            state.send_away(number);
            admission.tell(&mut state, &owner);
        }
    }

    /// Whether it has proven itself.
    pub fn is_proven(&self) -> bool {
        let state = self.admission.state();
        state.open.get(&self.number).is_some_and(|open| open.owner.is_some())
    }

    /// Gives the connection so long from now on to prove itself.
    pub fn prove_within(&self, time: Duration) {
        if let Some(open) = self.admission.state().open.get_mut(&self.number) {
            open.deadline = Instant::now() + time;
        }
    }

    /// Gives the connection so long at most from now on. It takes notice with its next byte in or
    /// out.
    pub fn prove_sooner(&self, time: Duration) {
        if let Some(open) = self.admission.state().open.get_mut(&self.number) {
            open.deadline = open.deadline.min(Instant::now() + time);
        }
    }

    /// The connection must go at once, whatever it has proven.
    pub fn end(&self) {
        let mut state = self.admission.state();
        let Some(open) = state.open.get(&self.number) else { return };
        match open.owner.clone() {
            Some(owner) => state.crowd_of(&owner).remove(&owner, self.number),
            None => state.silent.remove(&self.source, self.number),
        }
        state.send_away(self.number);
    }

    /// By when the connection has to prove itself; nothing once it has.
    fn deadline(&self) -> Option<Instant> {
        let state = self.admission.state();
        state.open.get(&self.number).filter(|open| open.owner.is_none()).map(|open| open.deadline)
    }
}

impl Place {
    /// What declares the connection proven.
    pub fn proof(&self) -> &Proof {
        &self.proof
    }

    /// Whether it was found out that the connection must go.
    pub(crate) fn has_left(&self) -> bool {
        self.leave.is_some()
    }

    /// Ready when the connection must go. The task is woken for it.
    pub fn poll_leave(&mut self, cx: &mut Context<'_>) -> Poll<Leave> {
        if let Some(leave) = self.leave {
            return Poll::Ready(leave);
        }
        let leave = std::task::ready!(self.poll_reason(cx));
        self.leave = Some(leave);
        Poll::Ready(leave)
    }

    fn poll_reason(&mut self, cx: &mut Context<'_>) -> Poll<Leave> {
        if Pin::new(&mut self.stay).poll(cx).is_ready() {
            return Poll::Ready(Leave::Crowded);
        }
        let Some(silence) = &mut self.silence else { return Poll::Pending };
        let Some(deadline) = self.proof.deadline() else {
            self.silence = None;
            return Poll::Pending;
        };
        // It may have been moved, either way.
        if silence.deadline() != deadline {
            silence.as_mut().reset(deadline);
        }
        silence.as_mut().poll(cx).map(|()| Leave::Silent)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Proof { admission, number, source } = &self.proof;
        let mut state = admission.state();
        match state.open.remove(number) {
            Some(Open { owner: None, .. }) => state.silent.remove(source, *number),
            Some(Open { owner: Some(owner), .. }) => {
                state.crowd_of(&owner).remove(&owner, *number);
            }
            None => {
                state.leaving -= 1;
                admission.left.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const WAIT: Duration = Duration::from_secs(10);

    fn admission(total: usize, each: usize) -> Arc<Admission> {
        let bound = Bound { total, each };
        Admission::new(
            "test",
            Bounds { silent: bound, proven: bound, guests: bound, proof_within: WAIT },
        )
    }

    fn source(last: u8) -> Source {
        IpAddr::from([10, 0, 0, last]).into()
    }

    fn named(name: &str) -> Owner {
        Owner::Named(name.into())
    }

    /// Whether it must go now, and why.
    async fn leaves(place: &mut Place) -> Option<Leave> {
        poll_fn(|cx| {
            Poll::Ready(match place.poll_leave(cx) {
                Poll::Ready(leave) => Some(leave),
                Poll::Pending => None,
            })
        })
        .await
    }

    #[test]
    fn clients_are_told_apart_by_address_and_prefix() {
        let of = |text: &str| Source::from(text.parse::<IpAddr>().expect("an address"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_eq!(of("fd00:1:2:3::1"), of("fd00:1:2:3:ffff::2"));
        assert_ne!(of("fd00:1:2:3::1"), of("fd00:1:2:4::1"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_costs_its_own_connections() {
        let admission = admission(8, 4);
        let mut other = admission.admit(source(2)).await;
        let mut flood = Vec::new();
        for _ in 0..LEAVING_MAX {
            flood.push(admission.admit(source(1)).await);
        }
        assert_eq!(leaves(&mut other).await, None);
        assert_eq!(admission.counts(), (5, 0));
        let last = flood.last_mut().expect("there are some");
        assert_eq!(leaves(last).await, None, "the newest stays, so that it can prove itself");
        assert_eq!(leaves(&mut flood[0]).await, Some(Leave::Crowded));
        drop((flood, other));
        assert_eq!(admission.counts(), (0, 0));
        assert_eq!(admission.state().leaving, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_accepts_waits_for_those_that_go_and_for_nobody_else() {
        let admission = admission(1, 1);
        let mut gone = Vec::new();
        for _ in 0..=LEAVING_MAX {
            gone.push(admission.admit(source(1)).await);
        }
        let next = tokio::time::timeout(WAIT, admission.admit(source(1))).await;
        assert!(next.is_err(), "all of these still have their descriptors");
        drop(gone.swap_remove(0));
        admission.admit(source(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn silence_has_an_end_and_a_proof_lifts_it() {
        let admission = admission(8, 8);
        let mut silent = admission.admit(source(1)).await;
        let mut longer = admission.admit(source(1)).await;
        let mut proven = admission.admit(source(1)).await;
        longer.proof().prove_within(2 * WAIT);
        proven.proof().prove(named("node-1"));
        tokio::time::advance(WAIT).await;
        assert_eq!(leaves(&mut silent).await, Some(Leave::Silent));
        assert_eq!(leaves(&mut longer).await, None);
        assert!(proven.proof().is_proven() && !longer.proof().is_proven());
        tokio::time::advance(WAIT).await;
        assert_eq!(leaves(&mut longer).await, Some(Leave::Silent));
        tokio::time::advance(100 * WAIT).await;
        assert_eq!(leaves(&mut proven).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_must_go_goes_proven_or_not() {
        let admission = admission(8, 8);
        let mut silent = admission.admit(source(1)).await;
        let mut proven = admission.admit(source(1)).await;
        proven.proof().prove(named("node-1"));
        for place in [&mut silent, &mut proven] {
            place.proof().end();
            place.proof().end();
            assert_eq!(leaves(place).await, Some(Leave::Crowded));
        }
        assert_eq!(admission.counts(), (0, 0));
        drop((silent, proven));
        assert_eq!(admission.state().leaving, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_silence_can_be_moved_closer() {
        let admission = admission(8, 8);
        let mut place = admission.admit(source(1)).await;
        place.proof().prove_sooner(WAIT / 2);
        place.proof().prove_sooner(WAIT);
        assert_eq!(leaves(&mut place).await, None);
        let ended = tokio::time::timeout(WAIT, poll_fn(|cx| place.poll_leave(cx)));
        let started = Instant::now();
        assert_eq!(ended.await, Ok(Leave::Silent));
        assert_eq!(started.elapsed(), WAIT / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_has_so_many_connections_and_the_newest_stay() {
        let admission = admission(8, 2);
        let mut places = Vec::new();
        for last in 0..4 {
            let place = admission.admit(source(last)).await;
            place.proof().prove(named(if last == 0 { "node-1" } else { "node-2" }));
            places.push(place);
        }
        let mut left = Vec::new();
        for place in &mut places {
            left.push(leaves(place).await.is_some());
        }
        assert_eq!(left, [false, true, false, false]);
        assert_eq!(admission.counts(), (0, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn guests_close_connections_of_guests_alone() {
        let admission = admission(4, 4);
        let prove = async |last: u8, owner: Owner| {
            let place = admission.admit(source(last)).await;
            place.proof().prove(owner);
            place
        };
        let guest = |group: &str| Owner::Guest(group.into());
        let mut stay = Vec::new();
        for last in 0..4 {
            stay.push(prove(last, named(&format!("node-{last}"))).await);
        }
        stay.push(prove(4, guest("small")).await);
        let mut flood = Vec::new();
        for last in 5..60 {
            flood.push(prove(last, guest("large")).await);
        }
        for place in &mut stay {
            assert_eq!(leaves(place).await, None);
        }
        assert_eq!(admission.counts(), (0, 8));
        assert_eq!(leaves(&mut flood[0]).await, Some(Leave::Crowded));
        assert!(!admission.state().known.sources.contains(&source(4)), "no better than others");
        flood[54].proof().end();
        drop((stay, flood));
        assert_eq!(admission.counts(), (0, 0));
        assert_eq!(admission.state().leaving, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_was_good_before_goes_last() {
        let admission = admission(2, 2);
        let good = admission.admit(source(1)).await;
        good.proof().prove(named("node-1"));
        drop(good);
        let mut again = admission.admit(source(1)).await;
        let mut strangers = Vec::new();
        for last in 2..10 {
            strangers.push(admission.admit(source(last)).await);
        }
        assert_eq!(leaves(&mut again).await, None);
        assert_eq!(leaves(&mut strangers[6]).await, Some(Leave::Crowded));
        assert_eq!(leaves(&mut strangers[7]).await, None);
    }
}
