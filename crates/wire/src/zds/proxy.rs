//! The proxy's end of pod enrolment.
//!
//! One [`Enrolment`] lives as long as the proxy and survives connections: while the agent is away
//! the proxy keeps serving its pods, and after a new snapshot it drops the pods that the snapshot
//! does not name. The driver sends [`Enrolment::connected`], feeds each packet to
//! [`Enrolment::receive`], does what the event says and answers with [`Enrolment::answer`]. Nothing
//! else is ever sent: agents treat unsolicited data as a broken peer.

use std::collections::BTreeSet;

use ambit_model::Text;

use super::{PacketError, Pod, Request, decode_request, encode_answer, encode_hello};

/// One packet as it was received.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    /// The message.
    pub bytes: &'a [u8],
    /// The kernel said that message or descriptors were cut off.
    pub truncated: bool,
    /// How many descriptors came along.
    pub descriptors: usize,
}

/// What the driver has to do before it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Serve this pod in the namespace that came along. It may be served already.
    Serve(Pod),
    /// Go on serving this pod.
    Keep(Text),
    /// Stop serving this pod; it may be unknown.
    Stop(Text),
    /// The snapshot is complete: stop serving these.
    Complete(Vec<Text>),
    /// Nothing: answer with this refusal.
    Refuse(Refusal),
}

/// Why a request is answered with an error while the connection continues.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A pod is not described well enough, or the request is of a later version.
    #[error("{0}")]
    Incomplete(PacketError),
    /// The agent wants a pod kept that is not served.
    #[error("pod {0} is not served here; send it with its network namespace")]
    NotServed(Text),
}

/// Why the connection must be closed, after a last answer that says so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The packet cannot be understood.
    #[error("agent sent a packet that cannot be understood")]
    Packet(#[source] PacketError),
    /// A pod came without its namespace, or with more than that.
    #[error("a pod comes with exactly one network namespace, this one with {0}")]
    Namespaces(usize),
    /// Something else than a pod came with descriptors.
    #[error("only a pod comes with a descriptor; {0} came with this request")]
    UnexpectedDescriptors(usize),
    /// The agent lost a pod's namespace after the snapshot, which cannot be.
    #[error("a pod can be kept only within the snapshot")]
    KeepAfterSnapshot,
    /// A second snapshot ended without a new connection.
    #[error("the snapshot was complete already")]
    SecondSnapshot,
    /// The agent did not wait for an answer.
    #[error("agent sent a request before the previous one was answered")]
    Unanswered,
    /// There is no connection.
    #[error("a packet came before hello was sent")]
    NotConnected,
}

/// The pods that are served, and what the agent said about them on this connection.
#[derive(Debug, Default)]
pub struct Enrolment {
    served: BTreeSet<Text>,
    phase: Phase,
    unanswered: bool,
    was_complete: bool,
}

/// How far the agent got on this connection.
#[derive(Debug, Default)]
enum Phase {
    #[default]
    Disconnected,
    /// The pods named so far.
    Snapshot(BTreeSet<Text>),
    /// The snapshot is complete; changes follow.
    Live,
}

impl Enrolment {
    /// No pods, no connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts from the pods that a predecessor served.
    pub fn resumed(served: impl IntoIterator<Item = Text>) -> Self {
        Self { served: served.into_iter().collect(), ..Self::default() }
    }

    /// Starts a connection and returns its first packet.
    pub fn connected(&mut self) -> Vec<u8> {
        self.phase = Phase::Snapshot(BTreeSet::new());
        self.unanswered = false;
        encode_hello()
    }

    /// Ends a connection. All pods are served on.
    pub fn disconnected(&mut self) {
        self.phase = Phase::Disconnected;
        self.unanswered = false;
    }

    /// Whether a snapshot was ever complete; a proxy is not ready before.
    pub fn is_complete(&self) -> bool {
        self.was_complete
    }

    /// The pods that are served.
    pub fn served(&self) -> impl Iterator<Item = &Text> {
        self.served.iter()
    }

    /// Takes one packet. After an event comes [`Enrolment::answer`]; after an error, the error's
    /// text as the last answer and then the end of the connection.
    pub fn receive(&mut self, packet: Packet<'_>) -> Result<Event, SessionError> {
        if self.unanswered {
            return Err(SessionError::Unanswered);
        }
        self.unanswered = true;
        if packet.truncated {
            return Err(SessionError::Packet(PacketError::TooLong));
        }
        let request = match decode_request(packet.bytes) {
            Ok(request) => request,
            // This concerns one request alone; its namespace, if one came, is let go.
            Err(error @ (PacketError::Missing(_) | PacketError::Empty)) => {
                return Ok(Event::Refuse(Refusal::Incomplete(error)));
            }
            Err(error) => return Err(SessionError::Packet(error)),
        };
        match (&request, packet.descriptors) {
            (Request::Add(_), 1) => {}
            (Request::Add(_), count) => return Err(SessionError::Namespaces(count)),
            (_, 0) => {}
            (_, count) => return Err(SessionError::UnexpectedDescriptors(count)),
        }
        self.take(request)
    }

    /// What a request means depends on whether the snapshot is complete.
    fn take(&mut self, request: Request) -> Result<Event, SessionError> {
        match (request, &mut self.phase) {
            (_, Phase::Disconnected) => Err(SessionError::NotConnected),
            (Request::Add(pod), phase) => {
                if let Phase::Snapshot(named) = phase {
                    named.insert(pod.uid.clone());
                }
                self.served.insert(pod.uid.clone());
                Ok(Event::Serve(pod))
            }
            (Request::Del(uid), phase) => {
                if let Phase::Snapshot(named) = phase {
                    named.remove(&uid);
                }
                self.served.remove(&uid);
                Ok(Event::Stop(uid))
            }
            (Request::Keep(_), Phase::Live) => Err(SessionError::KeepAfterSnapshot),
            (Request::Keep(uid), Phase::Snapshot(_)) if !self.served.contains(&uid) => {
                Ok(Event::Refuse(Refusal::NotServed(uid)))
            }
            (Request::Keep(uid), Phase::Snapshot(named)) => {
                named.insert(uid.clone());
                Ok(Event::Keep(uid))
            }
            (Request::SnapshotSent, Phase::Live) => Err(SessionError::SecondSnapshot),
            (Request::SnapshotSent, Phase::Snapshot(named)) => {
                let named = std::mem::take(named);
                self.phase = Phase::Live;
                self.was_complete = true;
                let dropped = self.served.difference(&named).cloned().collect();
                self.served = named;
                Ok(Event::Complete(dropped))
            }
        }
    }

    /// The packet that answers the request received last.
    pub fn answer(&mut self, outcome: Result<(), &str>) -> Vec<u8> {
        self.unanswered = false;
        encode_answer(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::pod;
    use super::super::{decode_answer, encode_request};
    use super::*;

    fn receive(it: &mut Enrolment, request: Request) -> Result<Event, SessionError> {
        let descriptors = usize::from(matches!(request, Request::Add(_)));
        receive_with(it, request, descriptors)
    }

    fn receive_with(
        it: &mut Enrolment,
        request: Request,
        descriptors: usize,
    ) -> Result<Event, SessionError> {
        let bytes = encode_request(&request).unwrap();
        let event = it.receive(Packet { bytes: &bytes, truncated: false, descriptors });
        it.answer(Ok(()));
        event
    }

    fn text(uid: &str) -> Text {
        uid.into()
    }

    #[test]
    fn a_snapshot_drops_what_it_does_not_name() {
        let mut it = Enrolment::resumed([text("old"), text("kept"), text("again")]);
        assert_eq!(it.connected(), [8, 1]);
        assert!(!it.is_complete());
        let again = Request::Add(pod("again"));
        assert_eq!(receive(&mut it, again), Ok(Event::Serve(pod("again"))));
        let kept = Request::Keep(text("kept"));
        assert_eq!(receive(&mut it, kept), Ok(Event::Keep(text("kept"))));
        let new = Request::Add(pod("new"));
        assert_eq!(receive(&mut it, new), Ok(Event::Serve(pod("new"))));
        let complete = receive(&mut it, Request::SnapshotSent);
        assert_eq!(complete, Ok(Event::Complete(vec![text("old")])));
        assert!(it.is_complete());
        let del = Request::Del(text("new"));
        assert_eq!(receive(&mut it, del), Ok(Event::Stop(text("new"))));
        assert_eq!(it.served().collect::<Vec<_>>(), [&text("again"), &text("kept")]);
    }

    #[test]
    fn a_pod_removed_within_the_snapshot_is_gone() {
        let mut it = Enrolment::new();
        it.connected();
        receive(&mut it, Request::Add(pod("1"))).unwrap();
        receive(&mut it, Request::Del(text("1"))).unwrap();
        assert_eq!(receive(&mut it, Request::SnapshotSent), Ok(Event::Complete(Vec::new())));
        assert_eq!(it.served().count(), 0);
    }

    #[test]
    fn pods_outlive_the_connection() {
        let mut it = Enrolment::new();
        it.connected();
        receive(&mut it, Request::Add(pod("1"))).unwrap();
        receive(&mut it, Request::SnapshotSent).unwrap();
        it.disconnected();
        assert!(it.is_complete());
        assert_eq!(it.served().count(), 1);
        it.connected();
        receive(&mut it, Request::Keep(text("1"))).unwrap();
        assert_eq!(receive(&mut it, Request::SnapshotSent), Ok(Event::Complete(Vec::new())));
    }

    #[test]
    fn protocol_errors_end_the_session() {
        let check = |request: Request, descriptors, expected: SessionError| {
            let mut it = Enrolment::new();
            it.connected();
            receive(&mut it, Request::SnapshotSent).unwrap();
            assert_eq!(receive_with(&mut it, request, descriptors), Err(expected));
        };
        check(Request::Add(pod("1")), 0, SessionError::Namespaces(0));
        check(Request::Add(pod("1")), 2, SessionError::Namespaces(2));
        check(Request::Del(text("1")), 1, SessionError::UnexpectedDescriptors(1));
        check(Request::Keep(text("1")), 0, SessionError::KeepAfterSnapshot);
        check(Request::SnapshotSent, 0, SessionError::SecondSnapshot);
        check(Request::SnapshotSent, 1, SessionError::UnexpectedDescriptors(1));
        let mut it = Enrolment::new();
        let early = receive(&mut it, Request::SnapshotSent);
        assert_eq!(early, Err(SessionError::NotConnected));
        it.connected();
        let cut = Packet { bytes: &[], truncated: true, descriptors: 0 };
        assert_eq!(it.receive(cut), Err(SessionError::Packet(PacketError::TooLong)));
        assert_eq!(it.receive(cut), Err(SessionError::Unanswered));
    }

    #[test]
    fn a_bad_pod_is_refused_alone() {
        let mut it = Enrolment::new();
        it.connected();
        let bare = Packet { bytes: &[1 << 3 | 2, 0], truncated: false, descriptors: 1 };
        let missing = Refusal::Incomplete(PacketError::Missing("workload_info"));
        assert_eq!(it.receive(bare), Ok(Event::Refuse(missing.clone())));
        let answer = it.answer(Err(&missing.to_string()));
        assert_eq!(decode_answer(&answer), Ok(Err("packet lacks workload_info".into())));
        let unknown = receive(&mut it, Request::Keep(text("1")));
        assert_eq!(unknown, Ok(Event::Refuse(Refusal::NotServed(text("1")))));
        assert_eq!(receive(&mut it, Request::SnapshotSent), Ok(Event::Complete(Vec::new())));
    }
}
