//! Both ends of delta discovery against each other, and each against a scripted peer.

mod resumption;

use std::collections::BTreeMap;

use ambit_model::names::{NetworkAddress, PolicyName, ServiceName};
use ambit_model::policy::{Action, Policy, PolicyScope};
use ambit_model::service::{Service, VirtualAddress};
use ambit_model::view::{Change, View};
use ambit_model::workload::Workload;
use ambit_wire::proto::Any;
use ambit_wire::proto::ambit::snapshot::Snapshot;
use ambit_wire::proto::envoy::config::core::v3::Node;
use ambit_wire::proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, HeldVersion, Resource,
};
use ambit_wire::xds::ResourceType::{self, Address, Authorization};
use ambit_wire::xds::client::{Client, Demand, Interest, Received};
use ambit_wire::xds::resources::{MAX_TOMBSTONES, Resources};
use ambit_wire::xds::retained::Retained;
use ambit_wire::xds::server::{MAX_UNACKNOWLEDGED, Stream, StreamError};
use proptest::prelude::*;
use prost::Message;

/// A control plane and a proxy with a connection between them.
struct Pair {
    resources: Resources,
    stream: Stream,
    client: Client,
    view: View,
    kept: Retained,
    /// The client says by digests what it holds.
    compares: bool,
    /// Names of resources and removals, by response.
    log: Vec<String>,
    answered: Vec<String>,
}

impl Pair {
    fn new(interest: Interest) -> Self {
        let watched = [(Address, interest), (Authorization, Interest::Everything)];
        let client = Client::new(Node::default(), watched);
        Self {
            resources: Resources::default(),
            stream: Stream::new(),
            client,
            view: View::default(),
            kept: Retained::default(),
            compares: false,
            log: Vec::new(),
            answered: Vec::new(),
        }
    }

    /// A new stream, as after any loss of connection.
    fn connect(&mut self) {
        self.stream = Stream::new();
        for request in self.client.connected(self.compares) {
            assert_eq!(self.stream.receive(request, &self.resources), Ok(None));
        }
        self.settle();
    }

    /// Delivers until neither side has anything to say.
    fn settle(&mut self) {
        while let Some(response) = self.stream.next_response(&self.resources).unwrap() {
            self.deliver(response);
        }
    }

    fn deliver(&mut self, response: DeltaDiscoveryResponse) {
        self.log.push(describe(&response));
        let received = self.client.receive(response);
        assert_eq!(received.refused, []);
        let reply = self.apply(received);
        assert_eq!(self.stream.receive(reply, &self.resources), Ok(None));
    }

    fn apply(&mut self, received: Received) -> DeltaDiscoveryRequest {
        received.changes.into_iter().for_each(|change| self.view.apply(change));
        self.answered.extend(received.answered);
        self.kept.apply(received.delta).unwrap();
        received.reply
    }

    fn demand(&mut self, name: &str) -> &'static str {
        match self.client.demand(Address, name).unwrap() {
            Demand::Known => "known",
            Demand::Pending => "pending",
            Demand::Send(request) => {
                assert_eq!(self.stream.receive(*request, &self.resources), Ok(None));
                self.settle();
                "sent"
            }
        }
    }

    fn take_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    /// The view holds exactly what is served, so does the snapshot, and a stream resumes with it.
    fn check_equal(&mut self) {
        let served = |view: &View| {
            let workloads = view.workloads().map(|it| (it.uid.to_string(), format!("{it:?}")));
            let services = view.services().map(|it| (it.key.to_string(), format!("{it:?}")));
            let policies = view.policies().map(|it| (format!("p {}", it.key), format!("{it:?}")));
            workloads.chain(services).chain(policies).collect::<BTreeMap<_, _>>()
        };
        let mut fresh = Pair::new(Interest::Everything);
        fresh.resources = self.resources.clone();
        fresh.connect();
        assert_eq!(served(&self.view), served(&fresh.view));
        assert_eq!(snapshot(&self.kept), snapshot(&fresh.kept));
        let resumed = self.client.connected(false);
        let resumed = resumed.iter().map(|it| it.initial_resource_versions.len());
        assert_eq!(resumed.sum::<usize>(), self.kept.len(), "a stream resumes with all of it");
    }
}

/// What is written for the next one, in the order of names.
fn snapshot(kept: &Retained) -> Snapshot {
    let mut written = Vec::new();
    kept.write("CRL".into(), 7, &mut written).unwrap();
    let mut it = Snapshot::decode(&*written).unwrap();
    it.resources.sort_by_cached_key(|it| (it.type_url.clone(), it.name.clone()));
    it
}

/// `a b -c`: two resources and a removal, sorted.
fn describe(response: &DeltaDiscoveryResponse) -> String {
    let names = response.resources.iter().map(|it| decoded(it).name);
    let mut names: Vec<_> = names.collect();
    names.sort();
    names.extend(response.removed_resources.iter().map(|name| format!("-{name}")));
    names.join(" ")
}

fn decoded(resource: &bytes::Bytes) -> Resource {
    Resource::decode(resource.clone()).unwrap()
}

fn workload(uid: &str, ip: [u8; 4]) -> Workload {
    let mut workload = Workload::named(uid, "n", uid);
    workload.addresses = vec![ip.into()].into();
    workload
}

fn endpoint(uid: &str, service: &str) -> Workload {
    let mut endpoint = Workload::named(uid, "n", uid);
    endpoint.serve(ServiceName::new("n", service), Vec::new());
    endpoint
}

fn service(host: &str, ip: [u8; 4]) -> Service {
    let mut service = Service::named("n", host);
    let address = NetworkAddress::new("", ip.into());
    service.addresses = vec![VirtualAddress { address, prefix_len: None }];
    service
}

fn policy(name: &str) -> Policy {
    let (scope, action) = (PolicyScope::Global, Action::Deny);
    let key = PolicyName::new("n", name);
    let rules = Vec::new();
    Policy { key, scope, action, rules, dry_run: false, is_of_waypoints: false }
}

#[test]
fn a_first_stream_brings_everything_and_policies_first() {
    let mut pair = Pair::new(Interest::Everything);
    pair.resources.put_workload(&workload("w", [1, 1, 1, 1]));
    pair.resources.put_service(&service("s", [2, 2, 2, 2]));
    pair.resources.put_policy(&policy("p"));
    assert!(!pair.client.is_complete());
    pair.connect();
    assert_eq!(pair.take_log(), ["n/p", "n/s w"]);
    assert!(pair.client.is_complete());
    pair.check_equal();
}

#[test]
fn an_empty_mesh_is_answered_too() {
    let mut pair = Pair::new(Interest::Everything);
    pair.connect();
    assert_eq!(pair.take_log(), ["", ""]);
    assert!(pair.client.is_complete());
}

#[test]
fn a_change_is_sent_alone_and_once() {
    let mut pair = Pair::new(Interest::Everything);
    for uid in ["a", "b", "c"] {
        pair.resources.put_workload(&workload(uid, [1, 1, 1, 1]));
    }
    pair.connect();
    pair.take_log();
    assert!(pair.resources.put_workload(&workload("b", [2, 2, 2, 2])));
    assert!(!pair.resources.put_workload(&workload("c", [1, 1, 1, 1])), "nothing has changed");
    assert!(pair.resources.remove_workload("a"));
    pair.settle();
    assert_eq!(pair.take_log(), ["b -a"]);
    pair.settle();
    assert!(pair.take_log().is_empty());
    pair.check_equal();
}

#[test]
fn a_resource_that_came_and_went_between_two_looks_is_removed() {
    let mut pair = Pair::new(Interest::Everything);
    pair.resources.put_workload(&workload("a", [1, 1, 1, 1]));
    pair.connect();
    pair.take_log();
    pair.resources.remove_workload("a");
    pair.resources.put_workload(&workload("a", [2, 2, 2, 2]));
    pair.resources.put_workload(&workload("b", [3, 3, 3, 3]));
    pair.resources.remove_workload("b");
    pair.settle();
    assert_eq!(pair.take_log(), ["a -b"]);
    pair.check_equal();
}

#[test]
fn a_client_restarted_from_its_snapshot_resumes_too() {
    let mut pair = Pair::new(Interest::Everything);
    pair.resources.put_workload(&workload("a", [1, 1, 1, 1]));
    pair.resources.put_policy(&policy("p"));
    pair.connect();
    let mut successor = Pair::new(Interest::Everything);
    successor.resources = pair.resources.clone();
    successor.kept = pair.kept.clone();
    let changes = successor.client.restore(snapshot(&pair.kept)).unwrap();
    changes.into_iter().for_each(|change| successor.view.apply(change));
    successor.check_equal();
    successor.connect();
    assert_eq!(successor.take_log(), ["", ""]);
    successor.check_equal();
}

#[test]
fn an_address_that_moves_belongs_to_its_new_owner() {
    let mut pair = Pair::new(Interest::Everything);
    pair.resources.put_workload(&workload("old", [1, 1, 1, 1]));
    pair.connect();
    pair.resources.remove_workload("old");
    pair.resources.put_workload(&workload("new", [1, 1, 1, 1]));
    pair.settle();
    let owner = pair.view.workload_at(&"".into(), [1, 1, 1, 1].into()).unwrap();
    assert_eq!(&*owner.uid, "new");
}

#[test]
fn on_demand_brings_what_is_asked_for() {
    let mut pair = Pair::new(Interest::OnDemand);
    pair.resources.put_workload(&workload("a", [1, 1, 1, 1]));
    pair.resources.put_workload(&workload("b", [1, 1, 1, 2]));
    pair.connect();
    assert_eq!(pair.take_log(), ["", ""]);
    assert_eq!(pair.demand("a"), "sent");
    assert_eq!(pair.demand("/1.1.1.2"), "sent");
    assert_eq!(pair.demand("/9.9.9.9"), "sent");
    assert_eq!(pair.take_log(), ["a", "b", "-/9.9.9.9"]);
    assert_eq!(pair.answered, ["a", "/1.1.1.2", "/9.9.9.9"]);
    assert_eq!(pair.demand("a"), "known");
    assert_eq!(pair.demand("/9.9.9.9"), "known");
    // From now on these are followed, and nothing else is.
    pair.resources.put_workload(&workload("c", [1, 1, 1, 3]));
    pair.resources.put_workload(&workload("d", [9, 9, 9, 9]));
    pair.resources.put_workload(&workload("a", [1, 1, 1, 4]));
    pair.resources.remove_workload("b");
    pair.settle();
    assert_eq!(pair.take_log(), ["a d -b"]);
}

#[test]
fn a_demand_survives_the_connection() {
    let mut pair = Pair::new(Interest::OnDemand);
    pair.resources.put_workload(&workload("a", [1, 1, 1, 1]));
    pair.resources.put_workload(&workload("b", [1, 1, 1, 2]));
    pair.connect();
    pair.demand("a");
    let Ok(Demand::Send(_)) = pair.client.demand(Address, "/1.1.1.2") else { panic!("not sent") };
    assert_eq!(pair.demand("/1.1.1.2"), "pending");
    pair.take_log();
    // The second demand was lost with the connection; `a` is known by its version.
    pair.connect();
    assert_eq!(pair.take_log(), ["", "b"]);
    assert_eq!(pair.demand("/1.1.1.2"), "known");
    // What an alias led to is known by its version too.
    pair.connect();
    assert_eq!(pair.take_log(), ["", ""]);
    pair.resources.remove_workload("a");
    pair.connect();
    assert_eq!(pair.take_log(), ["", "-a"]);
}

#[test]
fn a_service_brings_its_workloads() {
    let mut pair = Pair::new(Interest::OnDemand);
    pair.resources.put_service(&service("s", [2, 2, 2, 2]));
    pair.resources.put_workload(&endpoint("a", "s"));
    pair.resources.put_workload(&endpoint("x", "other"));
    pair.connect();
    pair.take_log();
    pair.demand("/2.2.2.2");
    assert_eq!(pair.take_log(), ["a n/s"]);
    pair.resources.put_workload(&endpoint("b", "s"));
    pair.settle();
    assert_eq!(pair.take_log(), ["b"]);
    // A workload that leaves the service is held by the client and so kept fresh.
    pair.resources.put_workload(&endpoint("b", "other"));
    pair.resources.remove_workload("a");
    pair.settle();
    assert_eq!(pair.take_log(), ["b -a"]);
}

#[test]
fn a_service_that_appears_later_brings_the_workloads_before_it() {
    let mut pair = Pair::new(Interest::OnDemand);
    pair.resources.put_workload(&endpoint("a", "s"));
    pair.connect();
    pair.demand("n/s");
    pair.take_log();
    pair.resources.put_service(&service("s", [2, 2, 2, 2]));
    pair.settle();
    assert_eq!(pair.take_log(), ["a n/s"]);
}

fn request(
    resource_type: ResourceType,
    subscribe: &[&str],
    unsubscribe: &[&str],
) -> DeltaDiscoveryRequest {
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    DeltaDiscoveryRequest {
        type_url: resource_type.url().into(),
        resource_names_subscribe: names(subscribe),
        resource_names_unsubscribe: names(unsubscribe),
        ..Default::default()
    }
}

/// A scripted client: sends one request and says what the server answers.
fn ask(stream: &mut Stream, resources: &Resources, request: DeltaDiscoveryRequest) -> Vec<String> {
    stream.receive(request, resources).unwrap();
    let mut log = Vec::new();
    while let Some(response) = stream.next_response(resources).unwrap() {
        log.push(describe(&response));
        let mut ack = self::request(response.type_url.parse().unwrap(), &[], &[]);
        ack.response_nonce = response.nonce;
        stream.receive(ack, resources).unwrap();
    }
    log
}

#[test]
fn unsubscribed_names_are_no_longer_followed() {
    let mut resources = Resources::default();
    resources.put_service(&service("s", [2, 2, 2, 2]));
    resources.put_workload(&endpoint("a", "s"));
    resources.put_workload(&workload("b", [1, 1, 1, 1]));
    let mut stream = Stream::new();
    let subscribe = request(Address, &["n/s", "/2.2.2.2", "b"], &[]);
    assert_eq!(ask(&mut stream, &resources, subscribe), ["a b n/s"]);
    // The alias still leads to the service, and the service to its workload.
    assert!(ask(&mut stream, &resources, request(Address, &[], &["n/s", "b"])).is_empty());
    resources.put_workload(&workload("b", [1, 1, 1, 2]));
    resources.remove_workload("a");
    let nothing = || request(Address, &[], &[]);
    assert_eq!(ask(&mut stream, &resources, nothing()), ["-a"]);
    assert!(ask(&mut stream, &resources, request(Address, &[], &["/2.2.2.2"])).is_empty());
    resources.put_workload(&endpoint("c", "s"));
    resources.remove_service(&ServiceName::new("n", "s"));
    assert!(ask(&mut stream, &resources, nothing()).is_empty());
    // Each subscription is answered, though the client may hold the resource.
    assert_eq!(ask(&mut stream, &resources, request(Address, &["b"], &[])), ["b"]);
    assert_eq!(ask(&mut stream, &resources, request(Address, &["b"], &[])), ["b"]);
}

#[test]
fn everything_can_be_subscribed_and_unsubscribed_later() {
    let mut resources = Resources::default();
    resources.put_workload(&workload("a", [1, 1, 1, 1]));
    resources.put_workload(&workload("b", [1, 1, 1, 2]));
    let mut stream = Stream::new();
    assert_eq!(ask(&mut stream, &resources, request(Address, &["a"], &[])), ["a"]);
    assert_eq!(ask(&mut stream, &resources, request(Address, &["*"], &[])), ["a b"]);
    ask(&mut stream, &resources, request(Address, &[], &["*"]));
    resources.put_workload(&workload("a", [2, 2, 2, 1]));
    resources.put_workload(&workload("b", [2, 2, 2, 2]));
    assert_eq!(ask(&mut stream, &resources, request(Address, &[], &[])), ["a"]);
}

#[test]
fn workloads_are_served_alone_too() {
    let mut resources = Resources::default();
    let it = workload("w", [1, 1, 1, 1]);
    resources.put_workload(&it);
    resources.put_service(&service("s", [2, 2, 2, 2]));
    let mut stream = Stream::new();
    let all = request(ResourceType::Workload, &[], &[]);
    stream.receive(all, &resources).unwrap();
    let response = stream.next_response(&resources).unwrap().unwrap();
    assert_eq!(describe(&response), "w");
    let mut client = Client::new(Node::default(), [(ResourceType::Workload, Interest::Everything)]);
    let resource = decoded(&response.resources[0]);
    assert_eq!(Some(&*resource.version), resources.of(Address).version("w"));
    let received = client.receive(response);
    assert_eq!(received.changes, [Change::Workload(it)]);
    stream.receive(received.reply, &resources).unwrap();
    resources.remove_service(&ServiceName::new("n", "s"));
    assert_eq!(stream.next_response(&resources), Ok(None), "services are not told of at all");
    resources.remove_workload("w");
    assert_eq!(describe(&stream.next_response(&resources).unwrap().unwrap()), "-w");
}

#[test]
fn a_refusal_is_recorded_and_not_repeated_before_a_change() {
    let mut resources = Resources::default();
    resources.put_workload(&workload("a", [1, 1, 1, 1]));
    let mut stream = Stream::new();
    stream.receive(request(Address, &[], &[]), &resources).unwrap();
    let response = stream.next_response(&resources).unwrap().unwrap();
    let mut nack = request(Address, &[], &[]);
    nack.response_nonce = response.nonce.clone();
    nack.error_detail = Some(Default::default());
    nack.error_detail.as_mut().unwrap().message = "a: no".into();
    let rejection = stream.receive(nack, &resources).unwrap().unwrap();
    assert_eq!((rejection.nonce, &*rejection.reason), (response.nonce, "a: no"));
    assert_eq!(stream.next_response(&resources), Ok(None));
    assert_eq!(stream.progress()[0].rejection.as_ref().unwrap().reason, "a: no");
    resources.put_workload(&workload("a", [2, 2, 2, 2]));
    assert_eq!(ask(&mut stream, &resources, request(Address, &[], &[])), ["a"]);
    let progress = &stream.progress()[0];
    assert_eq!((&progress.rejection, progress.acknowledged_sequence), (&None, 2));
}

#[test]
fn a_client_that_does_not_answer_is_not_sent_more_than_the_bound() {
    let mut resources = Resources::default();
    let mut stream = Stream::new();
    stream.receive(request(Address, &[], &[]), &resources).unwrap();
    let mut nonces = Vec::new();
    for last in 0..10 {
        resources.put_workload(&workload("a", [1, 1, 1, last]));
        nonces.extend(stream.next_response(&resources).unwrap().map(|it| it.nonce));
    }
    assert_eq!(nonces.len(), MAX_UNACKNOWLEDGED);
    // Answers to earlier responses are implied by one to a later one; unknown ones say nothing.
    let mut ack = request(Address, &[], &[]);
    ack.response_nonce = "99".into();
    stream.receive(ack.clone(), &resources).unwrap();
    assert_eq!(stream.next_response(&resources), Ok(None));
    ack.response_nonce = nonces.pop().unwrap();
    assert_eq!(ask(&mut stream, &resources, ack), ["a"]);
}

#[test]
fn a_large_answer_comes_in_pieces_and_is_complete_with_the_last() {
    let mut pair = Pair::new(Interest::Everything);
    for index in 0..3 {
        let mut it = workload(&format!("w{index}"), [1, 1, 1, index]);
        it.node = "n".repeat(40 * 1024 * 1024).into();
        pair.resources.put_workload(&it);
    }
    pair.connect_without_delivery();
    let policies = pair.stream.next_response(&pair.resources).unwrap().unwrap();
    pair.deliver(policies);
    let first = pair.stream.next_response(&pair.resources).unwrap().unwrap();
    pair.deliver(first);
    assert!(!pair.client.is_complete());
    // A change meanwhile comes after what is still owed.
    pair.resources.put_workload(&workload("w0", [9, 9, 9, 9]));
    pair.settle();
    assert!(pair.client.is_complete());
    assert_eq!(pair.take_log(), ["", "w0 w1", "w0 w2"]);
    pair.check_equal();
}

impl Pair {
    fn connect_without_delivery(&mut self) {
        self.stream = Stream::new();
        for request in self.client.connected(self.compares) {
            self.stream.receive(request, &self.resources).unwrap();
        }
    }
}

#[test]
fn a_stream_that_missed_too_much_starts_anew() {
    let mut pair = Pair::new(Interest::Everything);
    pair.resources.put_workload(&workload("a", [1, 1, 1, 1]));
    pair.connect();
    pair.resources.remove_workload("a");
    for index in 0..=MAX_TOMBSTONES {
        let uid = format!("w{index}");
        pair.resources.put_workload(&workload(&uid, [1, 1, 1, 1]));
        pair.resources.remove_workload(&uid);
    }
    let error = pair.stream.next_response(&pair.resources).unwrap_err();
    assert_eq!(error, StreamError::TooFarBehind(Address));
    pair.connect();
    pair.check_equal();
}

#[test]
fn types_that_are_not_served_are_named() {
    let wrong = DeltaDiscoveryRequest { type_url: "x".into(), ..Default::default() };
    let error = Stream::new().receive(wrong, &Resources::default()).unwrap_err();
    let expected =
        "resource type \"x\" is not served; subscribe to Address, Workload or Authorization";
    assert_eq!(error.to_string(), expected);
}

/// A response as a control plane would send it, for the client alone.
fn response(resources: Vec<Resource>, removed: &[&str]) -> DeltaDiscoveryResponse {
    DeltaDiscoveryResponse {
        resources: resources.iter().map(|it| it.encode_to_vec().into()).collect(),
        type_url: Address.url().into(),
        nonce: "7".into(),
        removed_resources: removed.iter().map(ToString::to_string).collect(),
        ..Default::default()
    }
}

fn resource(name: &str, version: &str, body: Vec<u8>) -> Resource {
    let resource = Some(Any { type_url: Address.url().into(), value: body.into() });
    Resource { name: name.into(), version: version.into(), resource, ..Default::default() }
}

fn body(workload: &Workload) -> Vec<u8> {
    use ambit_wire::proto::istio::workload as proto;
    proto::Address::from(workload).encode_to_vec()
}

#[test]
fn good_resources_are_taken_and_bad_ones_named() {
    let mut client = Client::new(Node::default(), [(Address, Interest::Everything)]);
    let (good, old) = (workload("good", [1, 1, 1, 1]), workload("bad", [1, 1, 1, 2]));
    client.receive(response(vec![resource("bad", "1", body(&old))], &[]));
    let mut untyped = resource("untyped", "2", body(&good));
    untyped.resource.as_mut().unwrap().type_url = "t".into();
    let resources = vec![
        resource("good", "2", body(&good)),
        resource("bad", "2", vec![0xff]),
        resource("misnamed", "2", body(&good)),
        Resource { name: "empty".into(), ..Default::default() },
        untyped,
    ];
    let received = client.receive(response(resources, &[]));
    assert_eq!(received.changes, [Change::Workload(good)]);
    let error = received.reply.error_detail.unwrap();
    let expected = "misnamed: field name: content belongs to \"good\", the resource is named \
        \"misnamed\"; empty: field resource: is missing; untyped: field resource: type \"t\" is \
        not the type of the response";
    assert!(error.message.starts_with("bad: field message: cannot be decoded: "), "{error:?}");
    assert!(error.message.ends_with(expected), "{error:?}");
    assert_eq!(received.reply.response_nonce, "7");
    // The refused update leaves the version before it, so that it is sent again.
    let mut held = client.connected(false)[0].initial_resource_versions.clone();
    held.sort_by(|one, other| one.name.cmp(&other.name));
    assert_eq!(held, [HeldVersion::new("bad", "1"), HeldVersion::new("good", "2")]);
}

#[test]
fn a_refusal_is_bounded() {
    let mut client = Client::new(Node::default(), [(Address, Interest::Everything)]);
    let resources = (0..1000).map(|i| resource(&format!("w{i}"), "1", vec![0xff])).collect();
    let received = client.receive(response(resources, &[]));
    let message = received.reply.error_detail.unwrap().message;
    assert!(message.len() < 5000 && message.ends_with(" more"), "{message}");
    assert_eq!(received.refused.len(), 1000);
}

#[test]
fn a_policy_read_strictly_is_in_force_and_reported() {
    use ambit_wire::proto::istio::security;
    let mut client = Client::new(Node::default(), [(Authorization, Interest::Everything)]);
    let policy = security::Authorization {
        name: "p".into(),
        namespace: "n".into(),
        action: 9,
        ..Default::default()
    };
    let any = Any { type_url: Authorization.url().into(), value: policy.encode_to_vec().into() };
    let mut response = response(Vec::new(), &[]);
    response.type_url = Authorization.url().into();
    let resource = Resource { name: "n/p".into(), resource: Some(any), ..Default::default() };
    response.resources.push(resource.encode_to_vec().into());
    let received = client.receive(response);
    assert_eq!(received.changes.len(), 1);
    let message = received.reply.error_detail.unwrap().message;
    let expected = "n/p: in force with the strictest reading of action: enum value 9 is unknown";
    assert_eq!(message, expected);
}

#[test]
fn a_response_that_was_not_asked_for_is_refused() {
    let mut client = Client::new(Node::default(), [(Authorization, Interest::Everything)]);
    let received = client.receive(response(Vec::new(), &["w"]));
    assert!(received.changes.is_empty());
    assert!(received.reply.error_detail.is_some());
}

#[derive(Clone, Debug)]
enum Step {
    Workload(u8, u8),
    RemoveWorkload(u8),
    Service(u8, u8),
    RemoveService(u8),
    Policy(u8, bool),
    RemovePolicy(u8),
    Settle,
    /// Delivers one response alone.
    Deliver,
    /// By digests or names.
    Reconnect(bool),
    /// Another replica takes over: the same resources in another order.
    Failover,
}

fn step() -> impl Strategy<Value = Step> {
    let id = || 0..5_u8;
    prop_oneof![
        (id(), any::<u8>()).prop_map(|(a, b)| Step::Workload(a, b)),
        id().prop_map(Step::RemoveWorkload),
        (id(), any::<u8>()).prop_map(|(a, b)| Step::Service(a, b)),
        id().prop_map(Step::RemoveService),
        (id(), any::<bool>()).prop_map(|(a, b)| Step::Policy(a, b)),
        id().prop_map(Step::RemovePolicy),
        Just(Step::Settle),
        Just(Step::Deliver),
        any::<bool>().prop_map(Step::Reconnect),
        Just(Step::Failover),
    ]
}

/// What is served, besides the journal of how it came about.
#[derive(Default)]
struct World {
    workloads: BTreeMap<u8, Workload>,
    services: BTreeMap<u8, Service>,
    policies: BTreeMap<u8, Policy>,
}

impl World {
    fn step(&mut self, pair: &mut Pair, step: Step) {
        match step {
            Step::Workload(id, state) => {
                let mut it = endpoint(&format!("w{id}"), &format!("s{}", state % 3));
                it.addresses = vec![[1, 1, 1, state % 4].into()].into();
                pair.resources.put_workload(&it);
                self.workloads.insert(id, it);
            }
            Step::RemoveWorkload(id) => {
                pair.resources.remove_workload(&format!("w{id}"));
                self.workloads.remove(&id);
            }
            Step::Service(id, state) => {
                let it = service(&format!("s{id}"), [2, 2, 2, state % 4]);
                pair.resources.put_service(&it);
                self.services.insert(id, it);
            }
            Step::RemoveService(id) => {
                pair.resources.remove_service(&ServiceName::new("n", format!("s{id}")));
                self.services.remove(&id);
            }
            Step::Policy(id, dry_run) => {
                let it = Policy { dry_run, ..policy(&format!("p{id}")) };
                pair.resources.put_policy(&it);
                self.policies.insert(id, it);
            }
            Step::RemovePolicy(id) => {
                pair.resources.remove_policy(&PolicyName::new("n", format!("p{id}")));
                self.policies.remove(&id);
            }
            Step::Settle => pair.settle(),
            Step::Deliver => {
                if let Some(response) = pair.stream.next_response(&pair.resources).unwrap() {
                    pair.deliver(response);
                }
            }
            Step::Reconnect(compares) => {
                pair.compares = compares;
                pair.connect_without_delivery();
            }
            Step::Failover => {
                pair.resources = Resources::default();
                for it in self.policies.values() {
                    pair.resources.put_policy(it);
                }
                for it in self.services.values().rev() {
                    pair.resources.put_service(it);
                }
                for it in self.workloads.values().rev() {
                    pair.resources.put_workload(it);
                }
                pair.connect_without_delivery();
            }
        }
    }

    /// What the names lead to: the resources themselves, those at an address, and the workloads of
    /// services among them.
    fn led_to(&self, names: &[String]) -> Vec<String> {
        let led = |it: &Workload| {
            let addresses = it.addresses.iter().map(|ip| format!("/{ip}"));
            names.contains(&it.uid.to_string()) || addresses.into_iter().any(|a| names.contains(&a))
        };
        let service_led = |it: &Service| {
            let addresses = it.addresses.iter().map(|it| it.address.to_string());
            names.contains(&it.key.to_string()) || addresses.into_iter().any(|a| names.contains(&a))
        };
        let services: Vec<_> = self.services.values().filter(|it| service_led(it)).collect();
        let member = |it: &Workload| services.iter().any(|s| it.services.contains_key(&s.key));
        let workloads = self.workloads.values().filter(|it| led(it) || member(it));
        let workloads = workloads.map(|it| it.uid.to_string());
        workloads.chain(services.iter().map(|it| it.key.to_string())).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_client_ends_up_with_what_is_served(steps in prop::collection::vec(step(), 0..60)) {
        let mut pair = Pair::new(Interest::Everything);
        let mut world = World::default();
        pair.connect_without_delivery();
        steps.into_iter().for_each(|step| world.step(&mut pair, step));
        pair.settle();
        pair.check_equal();
    }

    #[test]
    fn noise_never_panics(bytes: Vec<u8>, names in prop::collection::vec("[*a/]{0,3}", 0..4)) {
        let interests = ResourceType::ALL.map(|it| (it, Interest::OnDemand));
        let mut client = Client::new(Node::default(), interests);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for resource_type in ResourceType::ALL {
            let mut resource = resource("a", "1", bytes.clone());
            resource.resource.as_mut().unwrap().type_url = resource_type.url().into();
            let mut it = response(vec![resource], &names);
            it.type_url = resource_type.url().into();
            it.resources.push(bytes.clone().into());
            client.receive(it);
            let mut stream = Stream::new();
            stream.receive(request(resource_type, &names, &names), &Resources::default()).unwrap();
            stream.receive(request(resource_type, &names, &names), &Resources::default()).unwrap();
            prop_assert!(stream.next_response(&Resources::default()).is_ok());
        }
        if let Ok(it) = DeltaDiscoveryResponse::decode(&*bytes) {
            client.receive(it);
        }
        if let Ok(it) = DeltaDiscoveryRequest::decode(&*bytes) {
            let _ = Stream::new().receive(it, &Resources::default());
        }
        if let Ok(it) = Message::decode(&*bytes) {
            let _ = client.restore(it);
        }
    }

    /// On demand, the client holds at least what its names lead to, and nothing that is stale.
    #[test]
    fn on_demand_nothing_asked_for_is_missing_or_stale(
        steps in prop::collection::vec((step(), prop::option::of(0..8_u8)), 0..60),
    ) {
        let mut pair = Pair::new(Interest::OnDemand);
        let (mut world, mut names) = (World::default(), Vec::new());
        pair.connect_without_delivery();
        for (step, demand) in steps {
            world.step(&mut pair, step);
            if let Some(which) = demand {
                let name = match which {
                    0 | 1 => format!("w{which}"),
                    2 | 3 => format!("n/s{which}"),
                    4 | 5 => format!("/1.1.1.{}", which - 4),
                    _ => format!("/2.2.2.{}", which - 6),
                };
                pair.demand(&name);
                names.push(name);
            }
        }
        pair.settle();
        for uid in world.led_to(&names) {
            let held = pair.view.workload(&uid).is_some()
                || uid.parse().is_ok_and(|name| pair.view.service(&name).is_some());
            prop_assert!(held, "{uid} is missing");
        }
        for held in pair.view.workloads() {
            let served = world.workloads.values().find(|it| it.uid == held.uid);
            prop_assert_eq!(served, Some(&**held));
        }
        for held in pair.view.services() {
            let served = world.services.values().find(|it| it.key == held.key);
            prop_assert_eq!(served, Some(&**held));
        }
    }
}
