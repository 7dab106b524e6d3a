//! Discovery, from the framing of its messages to what both ends make of them. No bytes may panic,
//! and where they are cut changes nothing of what they say. A client takes all that a server sends,
//! whatever that was told, and what it keeps of noise it can start from. A client that resumes by
//! digests ends up with what is served.
#![no_main]

use std::collections::VecDeque;
use std::task::Poll;
use std::time::Instant;

use ambit_model::names::{NetworkAddress, PolicyName, ServiceName};
use ambit_model::policy::{Action, Policy, PolicyScope};
use ambit_model::service::{Service, VirtualAddress};
use ambit_model::view::View;
use ambit_model::workload::Workload;
use ambit_net::grpc::messages::{Limit, Messages, framed};
use ambit_wire::proto::ambit::snapshot::Snapshot;
use ambit_wire::proto::envoy::config::core::v3::Node;
use ambit_wire::proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, HeldVersion,
};
use ambit_wire::xds::client::{Client, Interest, Received};
use ambit_wire::xds::replies::{REPLY_PACE, Replies};
use ambit_wire::xds::resources::Resources;
use ambit_wire::xds::retained::Retained;
use ambit_wire::xds::server::Stream;
use ambit_wire::xds::{
    MAX_REQUEST_BYTES, MAX_REQUEST_FIELDS, MAX_RESPONSE_BYTES, NESTED_REQUEST_FIELDS, ResourceType,
};
use bytes::Bytes;
use futures::{FutureExt as _, stream};
use http::{HeaderMap, HeaderValue};
use http_body_util::StreamBody;
use hyper::body::Frame;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use prost::Message;
use tonic::body::Body;
use tonic::{Code, Status};

type Input<'a, 'b> = &'a mut Unstructured<'b>;

/// What [`change`] makes, by name and alias, and what it does not.
const NAMES: [&str; 8] =
    ["*", "w0", "w1", "n/1.1.1.2", "n/p3", "n/1.1.1.1", "n/2.2.2.1", "nothing"];
/// What a server reads, and what a client does, who trusts it to know how much there is.
const REQUEST: Limit =
    Limit { bytes: MAX_REQUEST_BYTES, fields: MAX_REQUEST_FIELDS, nested: NESTED_REQUEST_FIELDS };
const RESPONSE: Limit = Limit { bytes: MAX_RESPONSE_BYTES, fields: usize::MAX, nested: &[] };
/// How the call ended.
const TRAILERS: [&str; 3] = ["grpc-status", "grpc-message", "grpc-status-details-bin"];

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let mut input = Unstructured::new(rest);
    // An input that is too short has tried what it can.
    let _ = match kind % 3 {
        0 => serve(&mut input),
        1 => follow(&mut input),
        _ => resume(&mut input),
    };
});

/// The server's end, told anything while what it serves changes.
fn serve(input: Input<'_, '_>) -> Result<()> {
    let mut resources = Resources::default();
    let at_first: Vec<[u8; 2]> = input.arbitrary()?;
    at_first.into_iter().for_each(|it| change(&mut resources, it));
    let later: Vec<[u8; 2]> = input.arbitrary()?;
    let mut later = later.into_iter();
    let (mut stream, mut client) = (Stream::new(), client(Interest::Everything));
    for request in received(input, REQUEST, |input| request(input, &resources))? {
        if stream.receive(request, &resources).is_err() {
            return Ok(());
        }
        later.next().into_iter().for_each(|it| change(&mut resources, it));
        while let Some(response) = stream.next_response(&resources).expect("little has changed") {
            assert_eq!(client.receive(response).refused, []);
        }
    }
    Ok(())
}

/// The client's end, told anything.
fn follow(input: Input<'_, '_>) -> Result<()> {
    let interest = *input.choose(&[Interest::Everything, Interest::OnDemand])?;
    let (mut watching, mut view, mut kept) =
        (client(interest), View::default(), Retained::default());
    watching.connected(true);
    for name in NAMES {
        watching.demand(ResourceType::Address, name).expect("these are few");
    }
    let resources = sent_resources();
    for response in received(input, RESPONSE, |input| response(input, &resources))? {
        let Received { changes, delta, .. } = watching.receive(response);
        changes.into_iter().for_each(|it| view.apply(it));
        kept.apply(delta).expect("what was accepted can be kept");
    }
    let mut successor = client(interest);
    let mut written = Vec::new();
    kept.write(String::new(), 0, &mut written).expect("memory takes it");
    let snapshot = Snapshot::decode(&*written).expect("one message");
    successor.restore(snapshot).expect("known types");
    if interest == Interest::Everything {
        assert_eq!(successor.connected(true), watching.connected(true));
    }
    Ok(())
}

/// Both ends: a client holds what one server has told it and resumes with another, while what that
/// one serves changes, messages are under way and the connection breaks.
fn resume(input: Input<'_, '_>) -> Result<()> {
    let held: Vec<[u8; 2]> = input.arbitrary()?;
    let mut pair = Pair {
        resources: Resources::default(),
        stream: Stream::new(),
        client: client(Interest::Everything),
        replies: Replies::default(),
        under_way: VecDeque::new(),
        now: Instant::now(),
    };
    held.iter().for_each(|it| change(&mut pair.resources, *it));
    pair.connect(false, input)?;
    pair.settle(input)?;
    pair.check_equal();
    pair.resources = Resources::default();
    held.iter().rev().for_each(|it| change(&mut pair.resources, *it));
    pair.connect(true, input)?;
    while !input.is_empty() {
        match input.int_in_range(0..=4)? {
            0 => change(&mut pair.resources, input.arbitrary()?),
            1 => _ = pair.respond(input)?,
            2 => _ = pair.reply(input)?,
            3 => _ = pair.wait(),
            _ => pair.connect(input.arbitrary()?, input)?,
        }
    }
    pair.settle(input)?;
    pair.check_equal();
    Ok(())
}

/// A server and a client with a connection between them.
struct Pair {
    resources: Resources,
    stream: Stream,
    client: Client,
    /// What the client has not yet said.
    replies: Replies,
    /// What it has, on its way to the server.
    under_way: VecDeque<DeltaDiscoveryRequest>,
    now: Instant,
}

impl Pair {
    fn connect(&mut self, compares: bool, input: Input<'_, '_>) -> Result<()> {
        self.stream = Stream::new();
        self.replies = Replies::default();
        self.under_way = self.client.connected(compares).into();
        // The server has these before it says anything.
        while self.reply(input)? {}
        Ok(())
    }

    /// One message to the client, if the server has any to send.
    fn respond(&mut self, input: Input<'_, '_>) -> Result<bool> {
        let next = self.stream.next_response(&self.resources).expect("little has changed");
        let Some(response) = next else { return Ok(false) };
        let received = self.client.receive(carried(response, RESPONSE, input)?);
        assert_eq!(received.refused, []);
        self.replies.add(received.reply);
        self.under_way.extend(self.replies.take_due(self.now));
        Ok(true)
    }

    /// One message to the server, if any is under way.
    fn reply(&mut self, input: Input<'_, '_>) -> Result<bool> {
        let Some(reply) = self.under_way.pop_front() else { return Ok(false) };
        let reply = carried(reply, REQUEST, input)?;
        assert_eq!(self.stream.receive(reply, &self.resources), Ok(None));
        Ok(true)
    }

    /// Until replies that wait are due, if there are any.
    fn wait(&mut self) -> bool {
        self.now += REPLY_PACE;
        let due = self.replies.take_due(self.now);
        self.under_way.extend(due);
        !self.under_way.is_empty()
    }

    fn settle(&mut self, input: Input<'_, '_>) -> Result<()> {
        while self.reply(input)? || self.respond(input)? || self.wait() {}
        Ok(())
    }

    fn check_equal(&mut self) {
        assert!(self.client.is_complete() && self.stream.is_acknowledged());
        for request in self.client.connected(false) {
            let served = self.resources.of(request.type_url.parse().expect("a known type"));
            let held = &request.initial_resource_versions;
            for (name, version) in held.iter().filter_map(HeldVersion::texts) {
                assert_eq!(served.version(name), Some(version), "{name}");
            }
            assert_eq!(served.len(), held.len());
        }
    }
}

fn client(interest: Interest) -> Client {
    Client::new(Node::default(), ResourceType::ALL.map(|it| (it, interest)))
}

/// Puts or removes a resource. A service's name may be the alias of workloads.
fn change(resources: &mut Resources, [which, state]: [u8; 2]) {
    let host = |last: u8| format!("1.1.1.{last}");
    let is_there = state % 8 != 0;
    match which % 4 {
        0 | 1 if is_there => {
            let mut it = Workload::named(format!("w{which}"), "n", format!("w{which}"));
            it.network = "n".into();
            it.addresses = vec![[1, 1, 1, state].into()].into();
            it.serve(ServiceName::new("n", host(state)), Vec::new());
            resources.put_workload(&it)
        }
        0 | 1 => resources.remove_workload(&format!("w{which}")),
        2 if is_there => {
            let mut it = Service::named("n", host(which));
            let address = NetworkAddress::new("n", [2, 2, 2, state].into());
            it.addresses = vec![VirtualAddress { address, prefix_len: None }];
            resources.put_service(&it)
        }
        2 => resources.remove_service(&ServiceName::new("n", host(which))),
        _ => {
            let key = PolicyName::new("n", format!("p{which}"));
            let (scope, action) = (PolicyScope::Global, Action::Deny);
            let (rules, dry_run) = (Vec::new(), state % 2 == 0);
            let it = Policy { key, scope, action, rules, dry_run, is_of_waypoints: false };
            if is_there { resources.put_policy(&it) } else { resources.remove_policy(&it.key) }
        }
    };
}

/// Resources of every type, as a server sends them.
fn sent_resources() -> Vec<Bytes> {
    let mut resources = Resources::default();
    (0..8).for_each(|which| change(&mut resources, [which, 1 + which % 2]));
    let (mut stream, mut sent) = (Stream::new(), Vec::new());
    for request in client(Interest::Everything).connected(false) {
        stream.receive(request, &resources).expect("well-formed");
    }
    while let Some(response) = stream.next_response(&resources).expect("nothing has changed") {
        sent.extend(response.resources);
    }
    sent
}

fn request(input: Input<'_, '_>, resources: &Resources) -> Result<DeltaDiscoveryRequest> {
    let resource_type = *input.choose(&ResourceType::ALL)?;
    let set = resources.of(resource_type);
    let is_current: bool = input.arbitrary()?;
    let version = |name: &str| set.version(name).filter(|_| is_current).unwrap_or_default();
    let held = names(input)?;
    let held = held.iter().map(|name| HeldVersion::new(name, version(name)));
    let digests_bytes = *input.choose(&[0, 16, 17, 32, 1 << 16, 1 << 17])?;
    Ok(DeltaDiscoveryRequest {
        type_url: resource_type.url().into(),
        resource_names_subscribe: names(input)?,
        resource_names_unsubscribe: names(input)?,
        initial_resource_versions: held.collect(),
        response_nonce: input.int_in_range(0..=9)?.to_string(),
        held_digests: vec![input.arbitrary::<u8>()?; digests_bytes].into(),
        ..Default::default()
    })
}

fn response(input: Input<'_, '_>, resources: &[Bytes]) -> Result<DeltaDiscoveryResponse> {
    let count = input.int_in_range(0..=3)?;
    let chosen = (0..count).map(|_| input.choose(resources).cloned()).collect::<Result<_>>()?;
    Ok(DeltaDiscoveryResponse {
        system_version_info: (*input.choose(&["", "partial"])?).into(),
        resources: chosen,
        type_url: input.choose(&ResourceType::ALL)?.url().into(),
        nonce: String::new(),
        removed_resources: names(input)?,
        differing_groups: input.arbitrary()?,
    })
}

fn names(input: Input<'_, '_>) -> Result<Vec<String>> {
    let count = input.int_in_range(0..=3)?;
    (0..count).map(|_| Ok((*input.choose(&NAMES)?).into())).collect()
}

/// What one end reads from the rest of the input: noise, or messages that are damaged.
fn received<'b, M: Message + Default>(
    input: Input<'_, 'b>,
    limit: Limit,
    build: impl Fn(Input<'_, 'b>) -> Result<M>,
) -> Result<Vec<M>> {
    let cuts: Vec<u8> = input.arbitrary()?;
    let mut trailers = HeaderMap::new();
    for name in TRAILERS {
        if let Some(Ok(value)) = input.arbitrary::<Option<_>>()?.map(HeaderValue::from_bytes) {
            trailers.insert(name, value);
        }
    }
    let bytes = if input.arbitrary()? {
        input.bytes(input.len())?.to_vec()
    } else {
        let wounds: Vec<(u16, u8)> = input.arbitrary()?;
        let mut bytes = Vec::new();
        while !input.is_empty() {
            bytes.extend(framed(&build(input)?));
        }
        for (place, value) in wounds {
            let place = usize::from(place).checked_rem(bytes.len());
            place.into_iter().for_each(|place| bytes[place] = value);
        }
        bytes
    };
    let (messages, end) = read::<M>(body(&bytes, &cuts, &trailers), limit);
    let again = |messages: &[M]| messages.iter().flat_map(framed).collect::<Vec<_>>();
    let (whole, whole_end) = read(body(&bytes, &[], &trailers), limit);
    assert_eq!((again(&messages), end), (again(&whole), whole_end));
    let (reread, end) = read(body(&again(&messages), &cuts, &HeaderMap::new()), limit);
    assert_eq!((again(&reread), end), (again(&messages), None));
    Ok(messages)
}

/// One message from end to end.
fn carried<M: Message + Default>(message: M, limit: Limit, input: Input<'_, '_>) -> Result<M> {
    let (frame, cuts) = (framed(&message), input.arbitrary::<[u8; 2]>()?);
    let (mut messages, end) = read(body(&frame, &cuts, &HeaderMap::new()), limit);
    let message = messages.pop().expect("one was sent");
    assert_eq!((messages.len(), end, framed(&message)), (0, None, frame));
    Ok(message)
}

/// Bytes in pieces of these lengths, the rest in one, and each is waited for.
fn body(bytes: &[u8], cuts: &[u8], trailers: &HeaderMap) -> Body {
    let (mut rest, mut frames) = (Bytes::copy_from_slice(bytes), VecDeque::new());
    for cut in cuts {
        frames.push_back(Frame::data(rest.split_to(rest.len().min(usize::from(*cut)))));
    }
    frames.extend([Frame::data(rest), Frame::trailers(trailers.clone())]);
    let mut is_ready = false;
    Body::new(StreamBody::new(stream::poll_fn(move |_| {
        is_ready = !is_ready;
        if is_ready { Poll::Pending } else { Poll::Ready(frames.pop_front().map(Ok::<_, Status>)) }
    })))
}

/// All messages and how they end. Stops waiting whenever nothing is there, as both ends do when
/// something else happens, and must lose nothing by it.
fn read<M: Message + Default>(body: Body, limit: Limit) -> (Vec<M>, Option<Code>) {
    let messages = Messages::of_request(&HeaderMap::new(), body, limit);
    let (mut messages, mut read) = (messages.expect("not compressed"), Vec::new());
    loop {
        match messages.next().now_or_never() {
            None => {}
            Some(Ok(Some(message))) => read.push(message),
            Some(Ok(None)) => return (read, None),
            Some(Err(status)) => return (read, Some(status.code())),
        }
    }
}
