//! The agent's end of pod enrolment, for all connected proxies.
//!
//! During an upgrade two proxies are connected: new pods go only to the newest, removals to all.
//! The driver reports what happens ([`Agent::accepted`], [`Agent::received`], [`Agent::closed`],
//! [`Agent::expired`]) and does the [`Action`]s that are returned, in order. `now` is always passed
//! in; [`Agent::deadline`] says when to call [`Agent::expired`]. An agent never sends a second
//! request before the first is answered, and never forgets a pod because a proxy went away.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use ambit_model::Text;

use super::{
    PacketError, Pod, REPLY_DEADLINE, Request, decode_answer, decode_hello, encode_request,
};

/// Most requests that wait for one proxy.
pub(crate) const MAX_QUEUED: usize = 16_384;

/// One proxy's connection. Later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(u64);

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this packet.
    Send {
        /// Where to.
        connection: ConnectionId,
        /// The message.
        packet: Vec<u8>,
        /// The pod whose namespace goes along as a descriptor.
        namespace_of: Option<Text>,
    },
    /// Close this connection. The agent has forgotten it already.
    Close {
        /// Which one.
        connection: ConnectionId,
        /// Why.
        reason: CloseReason,
    },
    /// A proxy answered whether it serves this pod.
    Added {
        /// Which proxy.
        connection: ConnectionId,
        /// The pod.
        uid: Text,
        /// Done, or why not. A pod that was refused is sent again when it is added again.
        outcome: Result<(), String>,
    },
    /// Every connected proxy has answered the removal of this pod, or is gone.
    Removed {
        /// The pod.
        uid: Text,
    },
    /// A proxy has the whole snapshot.
    Complete {
        /// Which proxy.
        connection: ConnectionId,
    },
    /// A proxy refused something other than a new pod; it is only reported.
    Refused {
        /// Which proxy.
        connection: ConnectionId,
        /// What it refused.
        request: Request,
        /// What it said.
        reason: String,
    },
}

/// Why an agent gives a connection up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The proxy did not say hello, or not answer, in time.
    #[error("proxy did not answer within {} s", REPLY_DEADLINE.as_secs())]
    Deadline,
    /// The proxy's packet cannot be understood.
    #[error("proxy sent a packet that cannot be understood")]
    Packet(#[source] PacketError),
    /// The proxy sent something without being asked.
    #[error("proxy sent a packet without having been asked")]
    Unsolicited,
    /// Too many requests wait for the proxy.
    #[error("more than {MAX_QUEUED} requests wait for the proxy")]
    QueueFull,
}

/// All enrolled pods and all connected proxies.
#[derive(Debug, Default)]
pub struct Agent {
    pods: BTreeMap<Text, Enrolled>,
    connections: BTreeMap<ConnectionId, Connection>,
    last_connection: u64,
}

/// A pod to serve, and whether it can be handed over.
#[derive(Debug)]
struct Enrolled {
    pod: Pod,
    /// The agent holds its namespace; without it the pod can only be kept, not added.
    has_namespace: bool,
}

#[derive(Debug)]
struct Connection {
    state: State,
    /// The next requests, in this order.
    queue: VecDeque<Request>,
    /// The pods that it was sent, or is about to be.
    given: BTreeSet<Text>,
}

#[derive(Debug)]
enum State {
    /// Until when hello has to come.
    Greeting(Instant),
    /// Nothing is under way: whatever comes now was not asked for.
    Idle,
    /// What was asked, and until when the answer has to come.
    Asked(Request, Instant),
}

impl Agent {
    /// No pods, no proxies.
    pub fn new() -> Self {
        Self::default()
    }

    /// When [`Agent::expired`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.connections.values().filter_map(Connection::deadline).min()
    }

    /// Whether a proxy is connected that takes new pods.
    pub fn has_proxy(&self) -> bool {
        self.newest().is_some()
    }

    /// A proxy has connected.
    pub fn accepted(&mut self, now: Instant) -> ConnectionId {
        self.last_connection += 1;
        let id = ConnectionId(self.last_connection);
        let state = State::Greeting(now + REPLY_DEADLINE);
        let connection = Connection { state, queue: VecDeque::new(), given: BTreeSet::new() };
        self.connections.insert(id, connection);
        id
    }

    /// Enrols a pod, or sends it again. An error means that it can never be sent. Without a
    /// namespace it is only kept, by proxies that serve it already.
    pub fn add(
        &mut self,
        pod: Pod,
        has_namespace: bool,
        now: Instant,
    ) -> Result<Vec<Action>, PacketError> {
        encode_request(&Request::Add(pod.clone()))?;
        self.pods.insert(pod.uid.clone(), Enrolled { pod: pod.clone(), has_namespace });
        let mut actions = Vec::new();
        if has_namespace && let Some(newest) = self.newest() {
            self.enqueue(newest, Request::Add(pod), now, &mut actions);
        }
        Ok(actions)
    }

    /// Un-enrols a pod.
    pub fn remove(&mut self, uid: &Text, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        self.pods.remove(uid);
        for id in self.greeted() {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.queue.retain(|queued| queued.uid() != Some(uid));
                connection.given.remove(uid);
            }
            self.enqueue(id, Request::Del(uid.clone()), now, &mut actions);
        }
        self.report_removed(uid, &mut actions);
        actions
    }

    /// A proxy has sent a packet.
    pub fn received(
        &mut self,
        id: ConnectionId,
        packet: &[u8],
        truncated: bool,
        now: Instant,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        let Some(connection) = self.connections.get_mut(&id) else { return actions };
        let taken = match std::mem::replace(&mut connection.state, State::Idle) {
            _ if truncated => Err(CloseReason::Packet(PacketError::TooLong)),
            State::Greeting(_) => decode_hello(packet).map(|()| None).map_err(CloseReason::Packet),
            State::Idle => Err(CloseReason::Unsolicited),
            State::Asked(request, _) => match decode_answer(packet) {
                Ok(outcome) => Ok(Some((request, outcome))),
                Err(error) => Err(CloseReason::Packet(error)),
            },
        };
        match taken {
            Ok(None) => self.send_snapshot(id, now, &mut actions),
            Ok(Some((request, outcome))) => self.answered(id, request, outcome, now, &mut actions),
            Err(reason) => self.close(id, reason, now, &mut actions),
        }
        actions
    }

    /// A connection has ended. Pods that only it served go to the newest that is left.
    pub fn closed(&mut self, id: ConnectionId, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        self.forget(id, now, &mut actions);
        actions
    }

    /// Gives up the connections whose deadline has passed.
    pub fn expired(&mut self, now: Instant) -> Vec<Action> {
        let late = |connection: &Connection| connection.deadline().is_some_and(|at| at <= now);
        let late = self.connections.iter().filter(|(_, it)| late(it)).map(|(id, _)| *id);
        let mut actions = Vec::new();
        for id in late.collect::<Vec<_>>() {
            self.close(id, CloseReason::Deadline, now, &mut actions);
        }
        actions
    }

    /// The connections that have said hello, oldest first.
    fn greeted(&self) -> Vec<ConnectionId> {
        let greeted = |it: &Connection| !matches!(it.state, State::Greeting(_));
        self.connections.iter().filter(|(_, it)| greeted(it)).map(|(id, _)| *id).collect()
    }

    /// The one that takes new pods.
    fn newest(&self) -> Option<ConnectionId> {
        self.greeted().last().copied()
    }

    /// All pods, then the word that these were all.
    fn send_snapshot(&mut self, id: ConnectionId, now: Instant, actions: &mut Vec<Action>) {
        let requests: Vec<_> = self.pods.values().map(Enrolled::request).collect();
        for request in requests.into_iter().chain([Request::SnapshotSent]) {
            self.enqueue(id, request, now, actions);
        }
    }

    fn answered(
        &mut self,
        id: ConnectionId,
        request: Request,
        outcome: Result<(), String>,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        match (&request, outcome) {
            (Request::Add(pod), outcome) => {
                if outcome.is_err()
                    && let Some(connection) = self.connections.get_mut(&id)
                {
                    connection.given.remove(&pod.uid);
                }
                actions.push(Action::Added { connection: id, uid: pod.uid.clone(), outcome });
            }
            (Request::SnapshotSent, Ok(())) => actions.push(Action::Complete { connection: id }),
            (Request::Keep(_) | Request::Del(_), Ok(())) => {}
            (_, Err(reason)) => {
                let request = request.clone();
                actions.push(Action::Refused { connection: id, request, reason });
            }
        }
        if let Request::Del(uid) = &request {
            self.report_removed(uid, actions);
        }
        self.send_next(id, now, actions);
    }

    /// Queues a request, unless the same one waits already.
    fn enqueue(
        &mut self,
        id: ConnectionId,
        request: Request,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.queue.contains(&request) {
            return;
        }
        if connection.queue.len() >= MAX_QUEUED {
            self.close(id, CloseReason::QueueFull, now, actions);
            return;
        }
        if let Request::Add(pod) = &request {
            connection.given.insert(pod.uid.clone());
        }
        connection.queue.push_back(request);
        self.send_next(id, now, actions);
    }

    /// Sends the next request if none is unanswered.
    fn send_next(&mut self, id: ConnectionId, now: Instant, actions: &mut Vec<Action>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if !matches!(connection.state, State::Idle) {
            return;
        }
        let Some(request) = connection.queue.pop_front() else { return };
        let packet = encode_request(&request).expect("pods are checked when they are added");
        let namespace_of = match &request {
            Request::Add(pod) => Some(pod.uid.clone()),
            Request::Keep(_) | Request::Del(_) | Request::SnapshotSent => None,
        };
        connection.state = State::Asked(request, now + REPLY_DEADLINE);
        actions.push(Action::Send { connection: id, packet, namespace_of });
    }

    fn close(
        &mut self,
        id: ConnectionId,
        reason: CloseReason,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        actions.push(Action::Close { connection: id, reason });
        self.forget(id, now, actions);
    }

    /// Pods that the lost proxy alone was given go to the newest that is left.
    fn forget(&mut self, id: ConnectionId, now: Instant, actions: &mut Vec<Action>) {
        let Some(ended) = self.connections.remove(&id) else { return };
        for uid in ended.removals() {
            self.report_removed(uid, actions);
        }
        let Some(newest) = self.newest().filter(|newest| *newest < id) else { return };
        let given = &self.connections[&newest].given;
        let missing =
            self.pods.values().filter(|it| it.has_namespace && !given.contains(&it.pod.uid));
        for request in missing.map(Enrolled::request).collect::<Vec<_>>() {
            self.enqueue(newest, request, now, actions);
        }
    }

    /// Reports a removal once no proxy has it before it.
    fn report_removed(&self, uid: &Text, actions: &mut Vec<Action>) {
        let pending = |it: &Connection| it.removals().any(|removed| removed == uid);
        if !self.pods.contains_key(uid) && !self.connections.values().any(pending) {
            actions.push(Action::Removed { uid: uid.clone() });
        }
    }
}

impl Enrolled {
    /// The pod's entry in a snapshot.
    fn request(&self) -> Request {
        if self.has_namespace {
            Request::Add(self.pod.clone())
        } else {
            Request::Keep(self.pod.uid.clone())
        }
    }
}

impl Connection {
    fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Greeting(at) | State::Asked(_, at) => Some(at),
            State::Idle => None,
        }
    }

    /// The removals that it has before it.
    fn removals(&self) -> impl Iterator<Item = &Text> {
        let asked = match &self.state {
            State::Asked(request, _) => Some(request),
            State::Greeting(_) | State::Idle => None,
        };
        let removal = |request: &'_ Request| matches!(request, Request::Del(_));
        asked.into_iter().chain(&self.queue).filter(move |it| removal(it)).filter_map(Request::uid)
    }
}

impl Request {
    /// The pod that it is about.
    pub(crate) fn uid(&self) -> Option<&Text> {
        match self {
            Self::Add(pod) => Some(&pod.uid),
            Self::Keep(uid) | Self::Del(uid) => Some(uid),
            Self::SnapshotSent => None,
        }
    }
}
