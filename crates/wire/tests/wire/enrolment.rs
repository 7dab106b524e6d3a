//! The agent's end of pod enrolment, against scripted proxies and against the real one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ambit_model::Text;
use ambit_wire::zds::agent::{Action, Agent, ConnectionId};
use ambit_wire::zds::proxy::{Enrolment, Event, Packet};
use ambit_wire::zds::{PacketError, Pod, REPLY_DEADLINE, Request, decode_request};
use proptest::prelude::*;

const HELLO: [u8; 2] = [8, 1];
const ACK: [u8; 2] = [1 << 3 | 2, 0];
/// `Ack { error: "no" }`
const NACK: [u8; 6] = [1 << 3 | 2, 4, 1 << 3 | 2, 2, b'n', b'o'];

fn pod(uid: &str) -> Pod {
    let text = |text: &str| Text::from(text);
    Pod { uid: text(uid), name: text("p"), namespace: text("n"), service_account: text("s") }
}

/// An agent, and a clock that is moved by hand.
struct World {
    agent: Agent,
    now: Instant,
    ids: Vec<ConnectionId>,
}

impl World {
    fn new() -> Self {
        Self { agent: Agent::new(), now: Instant::now(), ids: Vec::new() }
    }

    fn connect(&mut self) -> usize {
        self.ids.push(self.agent.accepted(self.now));
        self.ids.len() - 1
    }

    fn hello(&mut self) -> (usize, Vec<String>) {
        let index = self.connect();
        let log = self.receive(index, &HELLO);
        (index, log)
    }

    fn receive(&mut self, index: usize, packet: &[u8]) -> Vec<String> {
        let actions = self.agent.received(self.ids[index], packet, false, self.now);
        self.describe(actions)
    }

    fn add(&mut self, uid: &str) -> Vec<String> {
        let actions = self.agent.add(pod(uid), true, self.now).unwrap();
        self.describe(actions)
    }

    fn remove(&mut self, uid: &str) -> Vec<String> {
        let actions = self.agent.remove(&uid.into(), self.now);
        self.describe(actions)
    }

    fn close(&mut self, index: usize) -> Vec<String> {
        let actions = self.agent.closed(self.ids[index], self.now);
        self.describe(actions)
    }

    fn pass(&mut self, time: Duration) -> Vec<String> {
        self.now += time;
        let actions = self.agent.expired(self.now);
        self.describe(actions)
    }

    fn describe(&self, actions: Vec<Action>) -> Vec<String> {
        let index = |id: &ConnectionId| self.ids.iter().position(|it| it == id).unwrap();
        let line = |action: &Action| match action {
            Action::Send { connection, packet, namespace_of } => {
                let request = decode_request(packet).unwrap();
                let descriptor = if namespace_of.is_some() { "+fd" } else { "" };
                format!("{} {}{descriptor}", index(connection), name(&request))
            }
            Action::Close { connection, reason } => {
                format!("{} close: {reason}", index(connection))
            }
            Action::Added { connection, uid, outcome } => {
                format!("{} added {uid} {outcome:?}", index(connection))
            }
            Action::Removed { uid } => format!("removed {uid}"),
            Action::Complete { connection } => format!("{} complete", index(connection)),
            Action::Refused { connection, request, reason } => {
                format!("{} refused {}: {reason}", index(connection), name(request))
            }
        };
        actions.iter().map(line).collect()
    }
}

fn name(request: &Request) -> String {
    match request {
        Request::Add(pod) => format!("add {}", pod.uid),
        Request::Keep(uid) => format!("keep {uid}"),
        Request::Del(uid) => format!("del {uid}"),
        Request::SnapshotSent => "snapshot sent".into(),
    }
}

#[test]
fn a_snapshot_is_sent_one_by_one_and_then_changes() {
    let mut it = World::new();
    assert!(it.add("a").is_empty());
    it.agent.add(pod("b"), false, it.now).unwrap();
    let (p, log) = it.hello();
    assert_eq!(log, ["0 add a+fd"]);
    assert!(it.add("c").is_empty(), "one request in flight");
    assert_eq!(it.receive(p, &ACK), ["0 added a Ok(())", "0 keep b"]);
    assert_eq!(it.receive(p, &ACK), ["0 snapshot sent"]);
    assert_eq!(it.receive(p, &ACK), ["0 complete", "0 add c+fd"]);
    assert_eq!(it.receive(p, &ACK), ["0 added c Ok(())"]);
    assert_eq!(it.remove("a"), ["0 del a"]);
    assert_eq!(it.receive(p, &ACK), ["removed a"]);
    assert_eq!(it.agent.deadline(), None);
}

#[test]
fn refusals_are_reported_and_a_pod_can_be_added_again() {
    let mut it = World::new();
    let (p, _) = it.hello();
    it.receive(p, &ACK);
    it.add("a");
    assert_eq!(it.receive(p, &NACK), ["0 added a Err(\"no\")"]);
    assert_eq!(it.add("a"), ["0 add a+fd"]);
    it.receive(p, &ACK);
    assert_eq!(it.remove("a"), ["0 del a"]);
    assert_eq!(it.receive(p, &NACK), ["0 refused del a: no", "removed a"]);
}

#[test]
fn new_pods_go_to_the_newest_proxy_and_removals_to_all() {
    let mut it = World::new();
    let (old, _) = it.hello();
    it.receive(old, &ACK);
    assert_eq!(it.add("a"), ["0 add a+fd"]);
    it.receive(old, &ACK);
    let (new, log) = it.hello();
    assert_eq!(log, ["1 add a+fd"]);
    it.receive(new, &ACK);
    it.receive(new, &ACK);
    assert_eq!(it.add("b"), ["1 add b+fd"]);
    it.receive(new, &ACK);
    assert_eq!(it.remove("a"), ["0 del a", "1 del a"]);
    assert!(it.receive(old, &ACK).is_empty());
    assert_eq!(it.receive(new, &ACK), ["removed a"]);
    // A connection that has not said hello takes nothing yet.
    it.connect();
    assert_eq!(it.add("c"), ["1 add c+fd"]);
}

#[test]
fn pods_of_a_newest_proxy_that_is_gone_go_to_the_next() {
    let mut it = World::new();
    let (old, _) = it.hello();
    it.receive(old, &ACK);
    it.add("a");
    it.receive(old, &ACK);
    let (new, _) = it.hello();
    it.receive(new, &ACK);
    it.receive(new, &ACK);
    it.add("b");
    it.remove("a");
    assert!(it.receive(old, &ACK).is_empty(), "the new one has not answered");
    assert_eq!(it.close(new), ["removed a", "0 add b+fd"]);
    assert_eq!(it.receive(old, &ACK), ["0 added b Ok(())"]);
    assert!(it.close(old).is_empty());
    assert!(!it.agent.has_proxy());
    assert_eq!(it.remove("b"), ["removed b"]);
}

#[test]
fn a_pod_removed_before_it_was_sent_is_not_sent() {
    let mut it = World::new();
    let (p, _) = it.hello();
    it.add("a");
    it.add("b");
    it.remove("b");
    assert_eq!(it.receive(p, &ACK), ["0 complete", "0 add a+fd"]);
    assert_eq!(it.receive(p, &ACK), ["0 added a Ok(())", "0 del b"]);
    assert_eq!(it.receive(p, &ACK), ["removed b"]);
}

#[test]
fn deadlines_close_silent_connections() {
    let mut it = World::new();
    it.connect();
    assert_eq!(it.agent.deadline(), Some(it.now + REPLY_DEADLINE));
    assert!(it.pass(REPLY_DEADLINE / 2).is_empty());
    let (p, log) = it.hello();
    assert_eq!(log, ["1 snapshot sent"]);
    assert_eq!(it.pass(REPLY_DEADLINE / 2), ["0 close: proxy did not answer within 5 s"]);
    assert_eq!(it.pass(REPLY_DEADLINE / 2), ["1 close: proxy did not answer within 5 s"]);
    assert!(it.receive(p, &ACK).is_empty(), "it is forgotten");
    assert_eq!(it.agent.deadline(), None);
}

#[test]
fn wrong_packets_close_the_connection() {
    let check = |packets: &[&[u8]], expected: &str| {
        let mut it = World::new();
        let p = it.connect();
        let log = packets.iter().flat_map(|packet| it.receive(p, packet)).last();
        assert_eq!(log.as_deref(), Some(expected));
    };
    let garbage = "0 close: proxy sent a packet that cannot be understood";
    check(&[&[8, 2]], garbage);
    check(&[&[0xff]], garbage);
    check(&[&HELLO, &[]], garbage);
    check(&[&HELLO, &[0xff]], garbage);
    check(&[&HELLO, &ACK, &ACK], "0 close: proxy sent a packet without having been asked");
    let mut it = World::new();
    let p = it.connect();
    let actions = it.agent.received(it.ids[p], &HELLO, true, it.now);
    assert_eq!(it.describe(actions), [garbage]);
}

#[test]
fn a_pod_whose_names_do_not_fit_is_refused_at_once() {
    let mut it = World::new();
    let long = "n".repeat(1024);
    let error = it.agent.add(pod(&long), true, it.now).unwrap_err();
    assert_eq!(error, PacketError::TooLong);
    let (_, log) = it.hello();
    assert_eq!(log, ["0 snapshot sent"]);
}

#[derive(Clone, Debug)]
enum Step {
    Add(u8),
    Remove(u8),
    /// One packet each way on each connection.
    Exchange,
    Connect,
    Disconnect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..4_u8).prop_map(Step::Add),
        (0..4_u8).prop_map(Step::Remove),
        Just(Step::Exchange),
        Just(Step::Exchange),
        Just(Step::Connect),
        Just(Step::Disconnect),
    ]
}

/// One proxy with the packets on their way to it, reconnecting to one agent.
struct Line {
    agent: Agent,
    proxy: Enrolment,
    now: Instant,
    id: Option<ConnectionId>,
    on_the_way: Vec<(Vec<u8>, bool)>,
    /// What the proxy would really be serving.
    served: BTreeSet<Text>,
    wanted: BTreeMap<Text, Pod>,
}

impl Line {
    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { connection, packet, namespace_of } => {
                    assert_eq!(Some(connection), self.id);
                    self.on_the_way.push((packet, namespace_of.is_some()));
                    assert_eq!(self.on_the_way.len(), 1, "one request in flight");
                }
                Action::Close { reason, .. } => panic!("closed: {reason}"),
                Action::Refused { reason, .. } => panic!("refused: {reason}"),
                Action::Added { .. } | Action::Removed { .. } | Action::Complete { .. } => {}
            }
        }
    }

    fn exchange(&mut self) -> bool {
        let (Some(id), Some((bytes, descriptor))) = (self.id, self.on_the_way.pop()) else {
            return false;
        };
        let packet = Packet { bytes: &bytes, truncated: false, descriptors: descriptor.into() };
        match self.proxy.receive(packet).unwrap() {
            Event::Serve(pod) => drop(self.served.insert(pod.uid)),
            Event::Stop(uid) => drop(self.served.remove(&uid)),
            Event::Complete(dropped) => self.served.retain(|uid| !dropped.contains(uid)),
            Event::Keep(_) => {}
            Event::Refuse(refusal) => panic!("{refusal}"),
        }
        let answer = self.proxy.answer(Ok(()));
        let actions = self.agent.received(id, &answer, false, self.now);
        self.act(actions);
        true
    }

    fn connect(&mut self) {
        self.disconnect();
        let id = self.agent.accepted(self.now);
        self.id = Some(id);
        let hello = self.proxy.connected();
        let actions = self.agent.received(id, &hello, false, self.now);
        self.act(actions);
    }

    fn disconnect(&mut self) {
        self.on_the_way.clear();
        self.proxy.disconnected();
        if let Some(id) = self.id.take() {
            let actions = self.agent.closed(id, self.now);
            self.act(actions);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn noise_never_panics(bytes: Vec<u8>, truncated: bool, descriptors in 0..3_usize) {
        let mut proxy = Enrolment::new();
        proxy.connected();
        let _ = proxy.receive(Packet { bytes: &bytes, truncated, descriptors });
        for first in [&HELLO[..], &[]] {
            let mut it = World::new();
            it.add("a");
            let p = it.connect();
            it.receive(p, first);
            it.receive(p, &bytes);
        }
    }

    #[test]
    fn the_proxy_ends_up_serving_what_is_enrolled(steps in prop::collection::vec(step(), 0..60)) {
        let mut line = Line {
            agent: Agent::new(),
            proxy: Enrolment::new(),
            now: Instant::now(),
            id: None,
            on_the_way: Vec::new(),
            served: BTreeSet::new(),
            wanted: BTreeMap::new(),
        };
        for step in steps {
            match step {
                Step::Add(n) => {
                    let pod = pod(&n.to_string());
                    line.wanted.insert(pod.uid.clone(), pod.clone());
                    let actions = line.agent.add(pod, true, line.now).unwrap();
                    line.act(actions);
                }
                Step::Remove(n) => {
                    let uid = Text::from(n.to_string());
                    line.wanted.remove(&uid);
                    let actions = line.agent.remove(&uid, line.now);
                    line.act(actions);
                }
                Step::Exchange => drop(line.exchange()),
                Step::Connect => line.connect(),
                Step::Disconnect => line.disconnect(),
            }
        }
        if line.id.is_none() {
            line.connect();
        }
        while line.exchange() {}
        let wanted: BTreeSet<Text> = line.wanted.keys().cloned().collect();
        prop_assert_eq!(&line.served, &wanted);
        prop_assert_eq!(line.proxy.served().cloned().collect::<BTreeSet<_>>(), wanted);
    }
}
