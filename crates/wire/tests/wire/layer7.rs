//! Services and policies of layer 7: nothing is lost, nothing panics, wrong fields are named, and
//! what is not understood whole is not taken at all.

use std::collections::BTreeSet;

use ambit_model::http::certificate::Certificate;
use ambit_model::http::gateway::{Gateway, GatewayRoute, Place};
use ambit_model::http::policy::RequestPolicy;
use ambit_model::http::service::ServiceHttp;
use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::view::{Change, View};
use ambit_wire::convert::ConvertError;
use ambit_wire::proto::Any;
use ambit_wire::proto::ambit::http as proto;
use ambit_wire::proto::envoy::config::core::v3::Node;
use ambit_wire::proto::envoy::service::discovery::v3::{DeltaDiscoveryResponse, Resource};
use ambit_wire::xds::ResourceType::{
    Address, Authorization, Certificate as Secrets, Gateway as Gateways, HttpService,
    RequestPolicy as Policy,
};
use ambit_wire::xds::client::{Client, Interest};
use ambit_wire::xds::resources::Resources;
use ambit_wire::xds::server::Stream;
use proptest::prelude::*;
use prost::Message;

use crate::strategies::http as strategies;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn services_survive(service in strategies::service()) {
        let bytes = proto::Service::from(&service).encode_to_vec();
        let back = ServiceHttp::try_from(proto::Service::decode(&*bytes).unwrap());
        prop_assert_eq!(back, Ok(service));
    }

    #[test]
    fn policies_survive(policy in strategies::policy()) {
        let bytes = proto::RequestPolicy::from(&policy).encode_to_vec();
        let back = RequestPolicy::try_from(proto::RequestPolicy::decode(&*bytes).unwrap());
        prop_assert_eq!(back, Ok(policy));
    }

    #[test]
    fn gateways_survive(gateway in strategies::gateway::gateway()) {
        let bytes = proto::Gateway::from(&gateway).encode_to_vec();
        let back = Gateway::try_from(proto::Gateway::decode(&*bytes).unwrap());
        prop_assert_eq!(back, Ok(gateway));
    }

    #[test]
    fn routes_of_gateways_survive(route in strategies::gateway::route()) {
        let bytes = proto::GatewayRoute::from(&route).encode_to_vec();
        let back = GatewayRoute::try_from(proto::GatewayRoute::decode(&*bytes).unwrap());
        prop_assert_eq!(back, Ok(route));
    }

    #[test]
    fn certificates_survive(certificate in strategies::gateway::certificate()) {
        let bytes = proto::Certificate::from(&certificate).encode_to_vec();
        let back = Certificate::try_from(proto::Certificate::decode(&*bytes).unwrap());
        prop_assert_eq!(back, Ok(certificate));
    }

    #[test]
    fn nothing_panics(bytes: Vec<u8>) {
        let _ = proto::Gateway::decode(&*bytes).map(Gateway::try_from);
        let _ = proto::Certificate::decode(&*bytes).map(Certificate::try_from);
        let _ = proto::Service::decode(&*bytes).map(ServiceHttp::try_from);
        let _ = proto::RequestPolicy::decode(&*bytes).map(RequestPolicy::try_from);
    }

    #[test]
    fn damage_never_panics(
        service in strategies::service(),
        policy in strategies::policy(),
        at: prop::sample::Index,
        bit in 0..8_u8,
    ) {
        let mut bytes = proto::Service::from(&service).encode_to_vec();
        let index = at.index(bytes.len());
        bytes[index] ^= 1 << bit;
        let _ = proto::Service::decode(&*bytes).map(ServiceHttp::try_from);
        let mut bytes = proto::RequestPolicy::from(&policy).encode_to_vec();
        let index = at.index(bytes.len());
        bytes[index] ^= 1 << bit;
        let _ = proto::RequestPolicy::decode(&*bytes).map(RequestPolicy::try_from);
    }
}

/// A service with one rule that answers 200.
fn service_message() -> proto::Service {
    let origin = proto::Origin { kind: proto::RouteKind::HttpRoute.into(), ..Default::default() };
    let respond = proto::Respond { status: 200, body: String::new() };
    let rule = proto::Rule {
        origin: Some(origin),
        action: Some(proto::rule::Action::Respond(respond)),
        ..Default::default()
    };
    let named = ServiceHttp::named(ServiceName::new("app", "web.app"));
    proto::Service {
        route_groups: vec![proto::RouteGroup { rules: vec![rule], ..Default::default() }],
        ..proto::Service::from(&named)
    }
}

fn service_is_wrong(change: fn(&mut proto::Service), expected: &str) {
    let mut message = service_message();
    change(&mut message);
    let error = ServiceHttp::try_from(message).unwrap_err();
    assert_eq!(error.to_string(), format!("field {expected}"));
}

#[test]
fn wrong_fields_of_services_are_named() {
    let check = service_is_wrong;
    fn port(number: u32, protocol: i32) -> proto::Port {
        proto::Port { number, protocol }
    }
    check(|it| it.hostname.clear(), "hostname: is missing");
    check(|it| it.traffic = None, "traffic: is missing");
    check(|it| it.ports = vec![port(80, 0)], "ports[0].protocol: says nothing");
    check(|it| it.ports = vec![port(80, 9)], "ports[0].protocol: enum value 9 is unknown");
    check(|it| it.ports = vec![port(80, 2); 2], "ports: \"80\" comes twice");
    check(|it| it.ports = vec![port(1 << 16, 2)], "ports[0].number: 65536 is not a port");
    check(|it| it.policies = vec![proto::PolicyName::default()], "policies[0].name: is missing");
    check(|it| it.subsets = vec![proto::Subset::default(); 2], "subsets: \"\" comes twice");
}

#[test]
fn wrong_fields_of_rules_are_named() {
    use proto::destination::Kind::Service as ToService;
    use proto::rule::Action::{Forward, Redirect};
    let check = |change: fn(&mut proto::Rule), expected: &str| {
        let mut message = service_message();
        change(&mut message.route_groups[0].rules[0]);
        let error = ServiceHttp::try_from(message).unwrap_err();
        assert_eq!(error.to_string(), format!("field route_groups[0].rules[0].{expected}"));
    };
    fn path(kind: Option<proto::path_match::Kind>) -> Vec<proto::Match> {
        vec![proto::Match { path: Some(proto::PathMatch { kind }), ..Default::default() }]
    }
    check(|it| it.action = None, "action: is missing");
    check(|it| it.origin.as_mut().unwrap().kind = 7, "origin.kind: enum value 7 is unknown");
    check(
        |it| it.matches = path(Some(proto::path_match::Kind::Regex("(".into()))),
        "matches[0].path.regex: the regular expression \"(\" cannot be used: unclosed group",
    );
    check(|it| it.matches = path(None), "matches[0].path.kind: is missing");
    check(|it| it.action = Some(Redirect(proto::Redirect::default())), "redirect.port: is missing");
    check(
        |it| {
            let to = proto::ServicePort { port: 1 << 20, ..Default::default() };
            let destination = Some(proto::Destination { kind: Some(ToService(to)) });
            let backend = proto::Backend { destination, ..Default::default() };
            let forward = proto::Forward { backends: vec![backend], ..Default::default() };
            it.action = Some(Forward(forward));
        },
        "forward.backends[0].destination.service.port: 1048576 is not a port",
    );
    check(
        |it| it.request_timeout = Some(proto::Duration { seconds: 1, nanos: 1_000_000_000 }),
        "request_timeout.nanos: 1000000000 nanoseconds are a second or more",
    );
    check(
        |it| {
            let fraction = Some(proto::Fraction::default());
            it.delay = Some(proto::Delay { fraction, ..Default::default() });
        },
        "delay.fraction.denominator: is 0, and nothing can be divided by it",
    );
    check(
        |it| {
            let on = proto::RetryOn { kind: Some(proto::retry_on::Kind::Status(99)) };
            it.retry = Some(proto::Retry { on: vec![on], ..Default::default() });
        },
        "retry.on[0].status: 99 is not an HTTP status",
    );
}

#[test]
fn wrong_fields_of_policies_are_named() {
    use proto::condition::Kind;
    let check = |rule: proto::RequestRule, expected: &str| {
        let action = Some(proto::request_policy::Action::Allow(proto::Empty {}));
        let rules = vec![rule];
        let message =
            proto::RequestPolicy { name: "p".into(), action, rules, ..Default::default() };
        let error = RequestPolicy::try_from(message).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    let when = |kind: Kind| {
        let when = vec![proto::Condition { kind: Some(kind) }];
        proto::RequestRule { when, ..Default::default() }
    };
    let text = proto::TextCondition { attribute: 8, values: Some(Default::default()) };
    check(when(Kind::Text(text)), "field rules[0].when[0].text.attribute: enum value 8 is unknown");
    let block = proto::Block { address: vec![1, 2, 3, 4].into(), length: 33 };
    let values = Some(proto::BlockValues { any_of: vec![block], ..Default::default() });
    let attribute = proto::IpAttribute::Remote.into();
    check(
        when(Kind::Ip(proto::IpCondition { attribute, values })),
        "field rules[0].when[0].ip.values.any_of[0].length: prefix length 33 exceeds the address's \
         32 bits",
    );
    let ports = proto::PortValues { none_of: vec![80, 1 << 16], ..Default::default() };
    check(
        when(Kind::DestinationPort(ports)),
        "field rules[0].when[0].destination_port.none_of: 65536 is not a port",
    );
    let template = proto::path_pattern::Kind::Template("/{**}/{*}".into());
    let paths = proto::PathValues {
        any_of: vec![proto::PathPattern { kind: Some(template) }],
        ..Default::default()
    };
    let operation = proto::OperationMatch {
        hosts: Some(Default::default()),
        ports: Some(Default::default()),
        methods: Some(Default::default()),
        paths: Some(paths),
    };
    check(
        proto::RequestRule { to: vec![operation], ..Default::default() },
        "field rules[0].to[0].paths.any_of[0].template: `{*}` or `{**}` follows `{**}`: only text \
         may follow it",
    );
    let no_action = proto::RequestPolicy { name: "p".into(), ..Default::default() };
    let error: ConvertError = RequestPolicy::try_from(no_action).unwrap_err();
    assert_eq!(error.to_string(), "field action: is missing");
}

/// A waypoint, and a control plane to which it is connected.
struct Pair {
    resources: Resources,
    stream: Stream,
    client: Client,
    view: View,
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

impl Pair {
    fn new() -> Self {
        let types = [
            (Authorization, Interest::Everything),
            (Address, Interest::Everything),
            (HttpService, Interest::OnDemand),
            (Policy, Interest::OnDemand),
        ];
        let client = Client::new(Node::default(), types);
        let (resources, stream, view) = Default::default();
        Self { resources, stream, client, view }
    }

    fn connect(&mut self) {
        self.stream = Stream::new();
        for request in self.client.connected(false) {
            assert_eq!(self.stream.receive(request, &self.resources), Ok(None));
        }
        self.settle();
    }

    fn want(&mut self, services: &[&str], policies: &[&str]) {
        for (resource_type, names) in [(Policy, policies), (HttpService, services)] {
            let wanted = self.client.want(resource_type, &set(names)).unwrap();
            wanted.changes.into_iter().for_each(|it| self.view.apply(it));
            if let Some(request) = wanted.request {
                assert_eq!(self.stream.receive(request, &self.resources), Ok(None));
            }
        }
        self.settle();
    }

    fn settle(&mut self) {
        while let Some(response) = self.stream.next_response(&self.resources).unwrap() {
            let received = self.client.receive(response);
            assert_eq!(received.refused, []);
            received.changes.into_iter().for_each(|it| self.view.apply(it));
            assert_eq!(self.stream.receive(received.reply, &self.resources), Ok(None));
        }
    }

    /// Which of the services and policies the view has.
    fn known(&self) -> String {
        let services = ["a", "b"].map(|name| ServiceName::new("app", name));
        let services = services.iter().filter_map(|it| self.view.http_service(it));
        let mut all = ServiceHttp::named(ServiceName::new("", "all"));
        all.policies = ["p", "q"].map(|name| PolicyName::new("app", name)).into();
        let policies = self.view.request_policies_of(&all).filter_map(Result::ok);
        let names: Vec<String> = services
            .map(|it| it.service.hostname.to_string())
            .chain(policies.map(|it| it.key.name.to_string()))
            .collect();
        names.join(" ")
    }
}

fn policy(name: &str, is_dry_run: bool) -> RequestPolicy {
    let action = ambit_model::http::policy::Action::Deny;
    let key = PolicyName::new("app", name);
    RequestPolicy { key, action, is_dry_run, rules: Vec::new(), condition: None }
}

#[test]
fn a_waypoint_gets_what_it_asks_for_and_nothing_else() {
    let mut pair = Pair::new();
    for name in ["a", "b"] {
        pair.resources.put_http_service(&ServiceHttp::named(ServiceName::new("app", name)));
    }
    for name in ["p", "q"] {
        pair.resources.put_request_policy(&policy(name, false));
    }
    pair.connect();
    assert_eq!(pair.known(), "");
    pair.want(&["app/a"], &["app/p", "app/none"]);
    assert_eq!(pair.known(), "a p");
    assert!(pair.client.is_answered(HttpService) && pair.client.is_answered(Policy));
    // What changes is sent, and only of what was asked for.
    pair.resources.put_request_policy(&policy("p", true));
    pair.resources.put_request_policy(&policy("q", true));
    pair.settle();
    assert_eq!(pair.known(), "a p");
    pair.want(&["app/b"], &["app/p", "app/q"]);
    assert_eq!(pair.known(), "b p q");
    // Another connection goes on with the same names.
    pair.resources.remove_request_policy(&PolicyName::new("app", "p"));
    pair.resources.put_http_service(&ServiceHttp::named(ServiceName::new("app", "a")));
    pair.connect();
    assert_eq!(pair.known(), "b q");
    pair.resources.remove_http_service(&ServiceName::new("app", "b"));
    pair.settle();
    assert_eq!(pair.known(), "q");
    pair.want(&[], &[]);
    assert_eq!(pair.known(), "");
}

#[test]
fn what_is_not_understood_whole_takes_its_previous_version_with_it() {
    let body = |policy: &RequestPolicy| proto::RequestPolicy::from(policy).encode_to_vec();
    // A field that this version does not know: number 99, the value 1.
    let newer = [body(&policy("p", false)), vec![0x98, 0x06, 1]].concat();
    let mut client = Client::new(Node::default(), [(Policy, Interest::OnDemand)]);
    let mut view = View::default();
    let mut take = |client: &mut Client, body: Vec<u8>| {
        let resource = Some(Any { type_url: Policy.url().into(), value: body.into() });
        let resource = Resource { name: "app/p".into(), resource, ..Default::default() };
        let received = client.receive(DeltaDiscoveryResponse {
            type_url: Policy.url().into(),
            resources: vec![resource.encode_to_vec().into()],
            ..Default::default()
        });
        received.changes.into_iter().for_each(|it| view.apply(it));
        let mut all = ServiceHttp::named(ServiceName::new("", "all"));
        all.policies = vec![PolicyName::new("app", "p")];
        let is_known = view.request_policies_of(&all).all(|it| it.is_ok());
        (is_known, received.refused.first().map(|it| it.reason.to_string()))
    };
    // It may come when nobody asks for it any more.
    assert_eq!(take(&mut client, body(&policy("p", false))), (false, None));
    client.want(Policy, &set(&["app/p"])).unwrap();
    assert_eq!(take(&mut client, body(&policy("p", false))), (true, None));
    let refused = "field message: is not as this version encodes it; a proxy must not be older \
                   than its control plane";
    assert_eq!(take(&mut client, newer), (false, Some(refused.to_owned())));
    assert_eq!(take(&mut client, body(&policy("p", false))), (true, None));
    let refused = "field name: content belongs to \"app/q\", the resource is named \"app/p\"";
    assert_eq!(take(&mut client, body(&policy("q", false))), (false, Some(refused.to_owned())));
}

#[test]
fn keys_are_neither_displayed_nor_kept() {
    const NAME: &str = "edge/ingress/shop/tls";
    const KEY: &str = "-----BEGIN PRIVATE KEY-----";
    let of = |key: &str| Certificate {
        key: NAME.parse().unwrap(),
        chain_pem: "chain".into(),
        key_pem: key.to_owned().into(),
    };
    let mut resources = Resources::default();
    assert!(resources.put_certificate(&of(KEY)));
    assert!(!resources.put_certificate(&of(KEY)));
    let bytes = format!("{:?}", KEY.as_bytes());
    let is_told =
        |text: String| text.contains(KEY) || text.contains(bytes.trim_matches(['[', ']']));
    assert!(!is_told(format!("{resources:?}")));
    let message = proto::Certificate::from(&of(KEY));
    assert!(!is_told(format!("{message:?}")));
    // A gateway gets it by name, and nothing of it is for a successor or a disk.
    let mut client = Client::new(Node::default(), [(Secrets, Interest::OnDemand)]);
    client.want(Secrets, &set(&[NAME])).unwrap();
    let mut stream = Stream::new();
    for request in client.connected(false) {
        stream.receive(request, &resources).unwrap();
    }
    let mut view = View::default();
    let mut take = |stream: &mut Stream, resources: &Resources| {
        let response = stream.next_response(resources).unwrap().expect("one is due");
        let received = client.receive(response);
        assert!(received.delta.resources.is_empty() && received.delta.removed.is_empty());
        assert!(!is_told(format!("{received:?}")));
        received.changes.into_iter().for_each(|it| view.apply(it));
        assert_eq!(stream.receive(received.reply, resources), Ok(None));
        assert!(!is_told(format!("{view:?}")));
        view.certificate(&ServiceName::new("edge", "ingress"), "shop/tls").cloned()
    };
    assert_eq!(take(&mut stream, &resources).as_deref(), Some(&of(KEY)));
    resources.put_certificate(&of("rotated"));
    assert_eq!(take(&mut stream, &resources).as_deref(), Some(&of("rotated")));
    resources.remove_certificate(&NAME.parse().unwrap());
    assert_eq!(take(&mut stream, &resources), None);
    // What is not whole is refused, and what is wrong is named.
    for (secret, chain, key, expected) in [
        ("", "c", "k", "field secret: is missing"),
        ("a/b", "", "k", "field chain_pem: is missing"),
        ("a/b", "c", "", "field key_pem: is missing"),
        ("b", "c", "k", "field secret: \"edge/ingress/b\" is not of the form namespace/name"),
    ] {
        let gateway = "edge/ingress".into();
        let (secret, chain_pem, key_pem) = (secret.into(), chain.into(), key.into());
        let message = proto::Certificate { gateway, secret, chain_pem, key_pem };
        let error = Certificate::try_from(message).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

fn of_gateway(change: &Change) -> String {
    match change {
        Change::Gateway(it) => format!("+{}", it.service),
        Change::GatewayRoute(it) => format!("+{}", it.name.route),
        Change::RemoveGateway(name) => format!("-{name}"),
        Change::RemoveGatewayRoute(name) => format!("-{}", name.route),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_gateway_is_sent_each_of_its_routes_alone() {
    let own: ServiceName = "edge/ingress".parse().unwrap();
    let route = |gateway: &str, name: &str, listener: &str| GatewayRoute {
        name: format!("{gateway}/HTTPRoute/app/{name}").parse().unwrap(),
        places: vec![Place { listener: listener.into(), hosts: vec![None] }],
        rules: Vec::new(),
        connections: Vec::new(),
    };
    let mut resources = Resources::default();
    resources.put_gateway_route(&route("edge/ingress", "a", "web"));
    resources.put_gateway(&Gateway::new(own.clone(), []));
    resources.put_gateway_route(&route("edge/ingress", "b", "web"));
    resources.put_gateway_route(&route("edge/other", "c", "web"));
    let mut client = Client::new(Node::default(), [(Gateways, Interest::OnDemand)]);
    client.want(Gateways, &set(&["edge/ingress"])).unwrap();
    let mut view = View::default();
    let open = |client: &mut Client, resources: &Resources| {
        let mut stream = Stream::new();
        for request in client.connected(false) {
            stream.receive(request, resources).unwrap();
        }
        stream
    };
    let mut stream = open(&mut client, &resources);
    let mut check = |client: &mut Client, stream: &mut Stream, resources: &Resources, expected| {
        let response = stream.next_response(resources).unwrap();
        let mut told: Vec<String> = Vec::new();
        if let Some(response) = response {
            let received = client.receive(response);
            assert_eq!(received.refused, []);
            for change in received.changes {
                told.push(of_gateway(&change));
                view.apply(change);
            }
            stream.receive(received.reply, resources).unwrap();
        }
        told.sort();
        assert_eq!(told.join(" "), expected);
        view.gateway_routes(&own).count()
    };
    let all = "+HTTPRoute/app/a +HTTPRoute/app/b +edge/ingress";
    assert_eq!(check(&mut client, &mut stream, &resources, all), 2);
    resources.put_gateway_route(&route("edge/ingress", "b", "tls"));
    resources.put_gateway_route(&route("edge/other", "c", "tls"));
    check(&mut client, &mut stream, &resources, "+HTTPRoute/app/b");
    resources.put_gateway_route(&route("edge/ingress", "d", "web"));
    check(&mut client, &mut stream, &resources, "+HTTPRoute/app/d");
    resources.remove_gateway_route(&"edge/ingress/HTTPRoute/app/a".parse().unwrap());
    assert_eq!(check(&mut client, &mut stream, &resources, "-HTTPRoute/app/a"), 2);
    check(&mut client, &mut stream, &resources, "");
    // What changed while it was away, and nothing else.
    resources.remove_gateway_route(&"edge/ingress/HTTPRoute/app/b".parse().unwrap());
    resources.put_gateway_route(&route("edge/ingress", "d", "tls"));
    resources.put_gateway_route(&route("edge/ingress", "e", "web"));
    let mut stream = open(&mut client, &resources);
    let news = "+HTTPRoute/app/d +HTTPRoute/app/e -HTTPRoute/app/b";
    assert_eq!(check(&mut client, &mut stream, &resources, news), 2);
    resources.put_gateway_route(&route("edge/ingress", "f", "web"));
    check(&mut client, &mut stream, &resources, "+HTTPRoute/app/f");
    // Without its gateway no route is wanted.
    let wanted = client.want(Gateways, &BTreeSet::new()).unwrap();
    let gone = wanted.changes.len();
    assert_eq!(gone, 4, "{:?}", wanted.changes);
    stream.receive(wanted.request.unwrap(), &resources).unwrap();
    for name in ["d", "f"] {
        resources.put_gateway_route(&route("edge/ingress", name, "other"));
    }
    assert_eq!(stream.next_response(&resources), Ok(None));
}

#[test]
fn a_gateway_with_a_route_that_cannot_be_read_serves_nothing() {
    const ROUTE: &str = "edge/ingress/HTTPRoute/app/a";
    let own: ServiceName = "edge/ingress".parse().unwrap();
    let mut client = Client::new(Node::default(), [(Gateways, Interest::OnDemand)]);
    client.want(Gateways, &set(&["edge/ingress"])).unwrap();
    let mut view = View::default();
    let mut take = |name: &str, body: Vec<u8>, removed: &[&str]| {
        let any = Any { type_url: Gateways.url().to_owned(), value: body.into() };
        let resource =
            Resource { name: name.to_owned(), resource: Some(any), ..Resource::default() };
        let response = DeltaDiscoveryResponse {
            type_url: Gateways.url().to_owned(),
            resources: Vec::from_iter((!name.is_empty()).then(|| resource.encode_to_vec().into())),
            removed_resources: removed.iter().map(|it| (*it).to_owned()).collect(),
            ..DeltaDiscoveryResponse::default()
        };
        let received = client.receive(response);
        received.changes.into_iter().for_each(|change| view.apply(change));
        (received.refused.len(), view.gateway(&own).is_some())
    };
    let gateway = proto::GatewayResource::from(&Gateway::new(own.clone(), [])).encode_to_vec();
    assert_eq!(take("edge/ingress", gateway, &[]), (0, true));
    let route = GatewayRoute {
        name: ROUTE.parse().unwrap(),
        places: Vec::new(),
        rules: Vec::new(),
        connections: Vec::new(),
    };
    let good = proto::GatewayResource::from(&route).encode_to_vec();
    // A field that only a newer control plane knows.
    let newer = [good.clone(), vec![0xf8, 0x07, 1]].concat();
    assert_eq!(take(ROUTE, good.clone(), &[]), (0, true));
    assert_eq!(take(ROUTE, newer.clone(), &[]), (1, false));
    assert_eq!(take(ROUTE, good, &[]), (0, true));
    assert_eq!(take(ROUTE, newer, &[]), (1, false));
    assert_eq!(take("", Vec::new(), &[ROUTE]), (0, true));
}
