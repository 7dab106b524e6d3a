//! Arbitrary services and policies of layer 7.

mod rate_limit;

use std::sync::Arc;
use std::time::Duration;

use ambit_model::Text;
use ambit_model::expression::Expression;
use ambit_model::http::authentication::{Authentication, JwtRule};
use ambit_model::http::authorizer::{Authorizer, BodyCheck, Call, Check, HttpCall};
use ambit_model::http::bytes::{BytesBackend, BytesMatch, BytesRoutes, BytesRule, ServerNameMatch};
use ambit_model::http::condition::NAMES;
use ambit_model::http::matching::{ClaimMatch, Match, NamedMatch, PathMatch, Pattern, ValueMatch};
use ambit_model::http::nearness::{Distribution, Failover, Nearness, Place};
use ambit_model::http::origination::{ClientFiles, Origination, Trust};
use ambit_model::http::policy::{
    self, ClientMatch, Condition, HostMatch, IpAttribute, OperationMatch, PathPattern,
    RequestPolicy, RequestRule, TextAttribute, Values,
};
use ambit_model::http::rule::{
    Abort, Action, Backend, Cors, Destination, Faults, Fraction, HeaderChanges, Mirror, Origin,
    PathChange, Redirect, RedirectPort, Retry, RetryOn, Rewrite, RouteKind, Rule, Session,
    SessionKeeper, Timeouts,
};
use ambit_model::http::service::{Protocol, RouteGroup, Routes, ServiceHttp, Subset, Traffic};
use ambit_model::http::traffic::{
    Balancing, Ejection, HashKey, Limits, RetryBudget, TrafficPolicy,
};
use ambit_model::http::warmup::Warmup;
use ambit_model::policy::TextMatch;
use ambit_model::service::Scope;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

mod bounds;
pub(crate) mod gateway;
mod telemetry;

use super::{account, net, policy_name, service_name, text, text_match, word};

pub(super) fn duration() -> impl Strategy<Value = Duration> {
    (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(s, ns)| Duration::new(s, ns))
}

fn pattern() -> impl Strategy<Value = Pattern> {
    "[a-z]{0,3}(\\.\\*|[0-9]\\+)?".prop_map(|it| Pattern::new(&it).unwrap())
}

fn status() -> impl Strategy<Value = u16> {
    100..1000_u16
}

pub(super) fn fraction() -> impl Strategy<Value = Fraction> {
    (any::<u32>(), 1..=u32::MAX)
        .prop_map(|(numerator, denominator)| Fraction { numerator, denominator })
}

fn value() -> impl Strategy<Value = ValueMatch> {
    prop_oneof![
        text().prop_map(ValueMatch::Exact),
        text().prop_map(ValueMatch::ExactNoCase),
        text().prop_map(ValueMatch::Prefix),
        pattern().prop_map(ValueMatch::Regex),
        Just(ValueMatch::Present),
    ]
}

fn path() -> impl Strategy<Value = PathMatch> {
    prop_oneof![
        text().prop_map(PathMatch::Exact),
        text().prop_map(PathMatch::Segments),
        text().prop_map(PathMatch::Prefix),
        pattern().prop_map(PathMatch::Regex),
        text().prop_map(PathMatch::ExactNoCase),
        text().prop_map(PathMatch::PrefixNoCase),
    ]
}

fn named() -> impl Strategy<Value = NamedMatch> {
    (text(), value(), any::<bool>()).prop_map(|(name, value, is_inverted)| NamedMatch {
        name,
        value,
        is_inverted,
    })
}

fn one_match() -> impl Strategy<Value = Match> {
    let values = (option::of(value()), option::of(value()), option::of(value()));
    let claim = (vec(text(), 1..3), value(), any::<bool>())
        .prop_map(|(keys, value, is_inverted)| ClaimMatch { keys, value, is_inverted });
    let named = (vec(named(), 0..2), vec(named(), 0..2), vec(claim, 0..2));
    (option::of(path()), values, named, option::of(word())).prop_map(
        |(path, values, (headers, parameters, claims), client_namespace)| Match {
            path,
            method: values.0,
            scheme: values.1,
            authority: values.2,
            headers,
            parameters,
            client_namespace,
            claims,
        },
    )
}

fn headers() -> impl Strategy<Value = HeaderChanges> {
    let fields = || vec((text(), text()), 0..2);
    (vec(text(), 0..2), fields(), fields()).prop_map(|(remove, set, add)| HeaderChanges {
        remove,
        set,
        add,
    })
}

fn destination() -> impl Strategy<Value = Destination> {
    prop_oneof![
        (service_name(), any::<u16>(), option::of(word()))
            .prop_map(|(name, port, subset)| Destination::Service { name, port, subset }),
        text().prop_map(Destination::Invalid),
    ]
}

fn path_change() -> impl Strategy<Value = PathChange> {
    prop_oneof![
        text().prop_map(PathChange::Full),
        text().prop_map(PathChange::Segments),
        text().prop_map(PathChange::Prefix),
        (pattern(), text())
            .prop_map(|(pattern, substitution)| PathChange::Regex { pattern, substitution }),
    ]
}

fn backend() -> impl Strategy<Value = Backend> {
    (any::<u32>(), destination(), headers(), headers()).prop_map(
        |(weight, destination, request_headers, response_headers)| Backend {
            weight,
            destination,
            request_headers,
            response_headers,
        },
    )
}

fn redirect() -> impl Strategy<Value = Redirect> {
    let port = prop_oneof![
        any::<u16>().prop_map(RedirectPort::Given),
        Just(RedirectPort::OfScheme),
        Just(RedirectPort::OfListener),
        Just(RedirectPort::OfAuthority),
    ];
    (option::of(text()), option::of(text()), port, option::of(path_change()), status()).prop_map(
        |(scheme, host, port, path, status)| Redirect { scheme, host, port, path, status },
    )
}

fn action() -> impl Strategy<Value = Action> {
    let rewrite = (option::of(text()), option::of(path_change()))
        .prop_map(|(host, path)| Rewrite { host, path });
    prop_oneof![
        (vec(backend(), 0..3), rewrite)
            .prop_map(|(backends, rewrite)| Action::Forward { backends, rewrite }),
        redirect().prop_map(Action::Redirect),
        (status(), text()).prop_map(|(status, body)| Action::Respond { status, body }),
    ]
}

fn origin() -> impl Strategy<Value = Origin> {
    use RouteKind::{GrpcRoute, HttpRoute, TcpRoute, TlsRoute, VirtualService};
    let kind = select(vec![HttpRoute, GrpcRoute, VirtualService, TlsRoute, TcpRoute]);
    (kind, word(), word(), any::<i64>(), any::<u32>(), option::of(text())).prop_map(
        |(kind, namespace, name, created_unix_s, index, rule_name)| Origin {
            kind,
            namespace,
            name,
            created_unix_s,
            index,
            rule_name,
        },
    )
}

fn cors() -> impl Strategy<Value = Cors> {
    let texts = || vec(text(), 0..2);
    let lists = (vec(value(), 0..2), texts(), texts(), texts());
    (lists, any::<[bool; 2]>(), option::of(duration())).prop_map(
        |(lists, [allow_credentials, forwards_unmatched], max_age)| Cors {
            allow_origins: lists.0,
            allow_methods: lists.1,
            allow_headers: lists.2,
            expose_headers: lists.3,
            allow_credentials,
            max_age,
            forwards_unmatched,
        },
    )
}

fn faults() -> impl Strategy<Value = Faults> {
    let abort = prop_oneof![status().prop_map(Abort::Http), any::<u32>().prop_map(Abort::Grpc)];
    (option::of((fraction(), duration())), option::of((fraction(), abort)))
        .prop_map(|(delay, abort)| Faults { delay, abort })
}

fn retry() -> impl Strategy<Value = Retry> {
    use RetryOn::{ConnectFailure, GatewayError, RefusedStream, Reset, ServerError};
    let on = prop_oneof![
        select(vec![ConnectFailure, RefusedStream, Reset, ServerError, GatewayError]),
        status().prop_map(RetryOn::Status),
        any::<u32>().prop_map(RetryOn::Grpc),
    ];
    (any::<u32>(), vec(on, 0..4), duration(), any::<bool>()).prop_map(
        |(attempts, on, backoff, is_for_all_methods)| Retry {
            attempts,
            on,
            backoff,
            is_for_all_methods,
        },
    )
}

fn session() -> impl Strategy<Value = Session> {
    let keeper = prop_oneof![
        (text(), any::<bool>())
            .prop_map(|(name, is_permanent)| SessionKeeper::Cookie { name, is_permanent }),
        text().prop_map(SessionKeeper::Header),
    ];
    (keeper, option::of(duration()), option::of(duration())).prop_map(
        |(keeper, absolute_timeout, idle_timeout)| Session {
            keeper,
            absolute_timeout,
            idle_timeout,
        },
    )
}

fn rule() -> impl Strategy<Value = Rule> {
    let mirror = (destination(), fraction())
        .prop_map(|(destination, fraction)| Mirror { destination, fraction });
    let timeout = || option::of(duration());
    let timeouts = (timeout(), timeout(), timeout())
        .prop_map(|(request, backend, response_head)| Timeouts { request, backend, response_head });
    (
        (origin(), vec(one_match(), 0..3), action(), headers(), headers()),
        (vec(mirror, 0..2), option::of(cors()), faults(), timeouts),
        (option::of(retry()), option::of(session())),
    )
        .prop_map(|(what, how, again)| Rule {
            origin: what.0,
            matches: what.1,
            action: what.2,
            request_headers: what.3,
            response_headers: what.4,
            mirrors: how.0,
            cors: how.1,
            faults: how.2,
            timeouts: how.3,
            retry: again.0,
            session: again.1,
        })
}

fn balancing() -> impl Strategy<Value = Balancing> {
    use Balancing::{Hash, LeastRequest, Random, RoundRobin};
    let cookie = (text(), option::of(text()), option::of(duration()))
        .prop_map(|(name, path, lifetime)| HashKey::Cookie { name, path, lifetime });
    prop_oneof![
        select(vec![LeastRequest, Random, RoundRobin, Hash(HashKey::SourceIp)]),
        cookie.prop_map(Hash),
        text().prop_map(|it| Hash(HashKey::Header(it))),
        text().prop_map(|it| Hash(HashKey::Parameter(it))),
    ]
}

fn traffic_policy() -> impl Strategy<Value = TrafficPolicy> {
    let number = || option::of(any::<u32>());
    let numbers = (number(), number(), number(), number(), number());
    let limits = (numbers, option::of(duration()), option::of(duration())).prop_map(
        |(numbers, connect_timeout, idle_timeout)| Limits {
            connections: numbers.0,
            pending_requests: numbers.1,
            requests: numbers.2,
            retries: numbers.3,
            requests_per_connection: numbers.4,
            connect_timeout,
            idle_timeout,
        },
    );
    let ejection = (any::<[u32; 5]>(), any::<bool>(), duration(), duration()).prop_map(
        |(numbers, splits_local_errors, interval, base_time)| Ejection {
            consecutive_5xx: numbers[0],
            consecutive_gateway_errors: numbers[1],
            splits_local_errors,
            consecutive_local_errors: numbers[2],
            interval,
            base_time,
            max_percent: numbers[3],
            min_health_percent: numbers[4],
        },
    );
    let budget =
        any::<[u32; 2]>().prop_map(|[percent, min_retries]| RetryBudget { percent, min_retries });
    let refusal = option::of(text());
    let warmup = (duration(), any::<u32>(), 0.001..1000.0).prop_map(
        |(duration, minimum_percent, aggression)| Warmup { duration, minimum_percent, aggression },
    );
    let place = (nearness(), option::of(warmup), option::of(origination()));
    (balancing(), limits, option::of(ejection), option::of(budget), refusal, place).prop_map(
        |(balancing, limits, ejection, retry_budget, refusal, place)| TrafficPolicy {
            balancing,
            limits,
            ejection,
            retry_budget,
            refusal,
            nearness: place.0,
            warmup: place.1,
            origination: place.2,
        },
    )
}

fn origination() -> impl Strategy<Value = Origination> {
    let trust = prop_oneof![
        select(vec![Trust::Public, Trust::Nobody]),
        text().prop_map(Trust::File),
        text().prop_map(Trust::Roots),
    ];
    let client = (text(), text()).prop_map(|(chain, key)| ClientFiles { chain, key });
    let names = || vec(word(), 0..2);
    (option::of(word()), names(), names(), trust, option::of(client)).prop_map(
        |(server_name, alternatives, uris, trust, client)| Origination {
            server_name,
            alternatives,
            uris,
            trust,
            client,
        },
    )
}

fn nearness() -> impl Strategy<Value = Nearness> {
    use Scope::{Cluster, Network, Node, Region, Subzone, Zone};
    let step = select(vec![Region, Zone, Subzone, Node, Cluster, Network]);
    let failover = (vec(step, 0..4), vec((word(), word()), 0..2))
        .prop_map(|(steps, regions)| Nearness::Failover(Failover { steps, regions }));
    let place = || {
        (option::of(word()), option::of(word()), option::of(word()))
            .prop_map(|(region, zone, subzone)| Place { region, zone, subzone })
    };
    let distribution = (place(), vec((place(), any::<u32>()), 0..3))
        .prop_map(|(from, to)| Distribution { from, to });
    prop_oneof![
        select(vec![Nearness::OfService, Nearness::OfServiceElsePlace, Nearness::Ignored]),
        failover,
        vec(distribution, 0..3).prop_map(Nearness::Distribute),
    ]
}

fn traffic() -> impl Strategy<Value = Traffic> {
    (traffic_policy(), btree_map(any::<u16>(), traffic_policy(), 0..2))
        .prop_map(|(all, ports)| Traffic { all, ports })
}

pub(crate) fn service() -> impl Strategy<Value = ServiceHttp> {
    use Protocol::{Detect, Http, Http2, Tcp, Tls};
    let protocol = select(vec![Detect, Http, Http2, Tcp, Tls]);
    let rules = vec(rule().prop_map(Arc::new), 0..3);
    let group = (option::of(word()), option::of(any::<u16>()), rules)
        .prop_map(|(client_namespace, port, rules)| RouteGroup { client_namespace, port, rules });
    let subset = (vec(text(), 0..3), option::of(traffic()))
        .prop_map(|(members, traffic)| Subset::new(members, traffic));
    (
        service_name(),
        btree_map(any::<u16>(), protocol, 0..3),
        (vec(group, 0..3), vec(bytes_group(), 0..3)),
        (vec(policy_name(), 0..3), btree_map(word(), authorizer().prop_map(Arc::new), 0..2)),
        authentication(),
        (rate_limit::limits(), traffic()),
        btree_map(word(), subset, 0..3),
        telemetry::telemetry(),
        (bounds::limits(), bounds::compressions(), option::of(bounds::health_check())),
    )
        .prop_map(
            |(
                service,
                protocols,
                groups,
                (policies, authorizers),
                authentication,
                (rate_limits, traffic),
                subsets,
                telemetry,
                (limits, compression, health_check),
            )| {
                ServiceHttp {
                    service,
                    protocols,
                    routes: Routes::new(groups.0),
                    bytes: BytesRoutes::new(groups.1),
                    policies,
                    authorizers,
                    authentication,
                    rate_limits,
                    traffic,
                    subsets,
                    telemetry,
                    limits,
                    compression,
                    health_check,
                }
            },
        )
}

fn authorizer() -> impl Strategy<Value = Authorizer> {
    let matches = || vec(text_match(), 0..2);
    let http = (text(), matches(), vec((text(), text()), 0..2), matches());
    let http = (http, option::of(matches()), matches()).prop_map(|(http, on_deny, on_allow)| {
        let (path_prefix, include, additional, to_upstream_on_allow) = http;
        Call::Http(HttpCall {
            path_prefix,
            include,
            additional,
            to_upstream_on_allow,
            to_downstream_on_deny: on_deny,
            to_downstream_on_allow: on_allow,
        })
    });
    let body = (any::<u32>(), any::<bool>(), any::<bool>()).prop_map(
        |(max_bytes, allow_partial, as_bytes)| BodyCheck { max_bytes, allow_partial, as_bytes },
    );
    let call = prop_oneof![Just(Call::Grpc), http];
    let rest = (duration(), any::<bool>(), status(), option::of(body));
    (destination(), call, rest).prop_map(|(destination, call, rest)| {
        let (timeout, fail_open, status_on_error, body) = rest;
        let check = Check { call, timeout, fail_open, status_on_error, body };
        Authorizer { destination, check }
    })
}

fn server_name() -> impl Strategy<Value = ServerNameMatch> {
    prop_oneof![text().prop_map(ServerNameMatch::Exact), text().prop_map(ServerNameMatch::Suffix)]
}

fn bytes_rule() -> impl Strategy<Value = BytesRule> {
    let one = (option::of(server_name()), vec(net(), 0..2), option::of(word())).prop_map(
        |(server_name, destinations, client_namespace)| BytesMatch {
            server_name,
            destinations,
            client_namespace,
        },
    );
    let backend = (any::<u32>(), destination())
        .prop_map(|(weight, destination)| BytesBackend { weight, destination });
    (origin(), vec(one, 0..3), vec(backend, 0..3))
        .prop_map(|(origin, matches, backends)| BytesRule { origin, matches, backends })
}

fn bytes_group() -> impl Strategy<Value = RouteGroup<BytesRule>> {
    (option::of(word()), option::of(any::<u16>()), vec(bytes_rule().prop_map(Arc::new), 0..3))
        .prop_map(|(client_namespace, port, rules)| RouteGroup { client_namespace, port, rules })
}

fn authentication() -> impl Strategy<Value = Authentication> {
    let places =
        (vec((word(), text()), 0..2), vec(word(), 0..2), vec(word(), 0..2), vec(word(), 0..2));
    let outputs = (option::of(word()), vec((word(), vec(word(), 1..3)), 0..2), any::<bool>());
    let rule = (word(), vec(text(), 0..2), option::of(text()), places, outputs);
    let rule = rule.prop_map(|(issuer, audiences, keys, places, outputs)| {
        let (from_headers, from_parameters, from_cookies, space_delimited) = places;
        let (payload_header, claim_headers, forwards_token) = outputs;
        JwtRule {
            issuer,
            audiences,
            keys,
            from_headers,
            from_parameters,
            from_cookies,
            payload_header,
            claim_headers,
            forwards_token,
            space_delimited,
        }
    });
    (vec(rule, 0..2), option::of(text()))
        .prop_map(|(rules, problem)| Authentication { rules, problem })
}

fn values<T: std::fmt::Debug>(
    one: impl Strategy<Value = T> + Clone,
) -> impl Strategy<Value = Values<T>> {
    (vec(one.clone(), 0..2), vec(one, 0..2))
        .prop_map(|(any_of, none_of)| Values { any_of, none_of })
}

fn texts() -> impl Strategy<Value = Values<TextMatch>> {
    values(text_match().boxed())
}

fn client() -> impl Strategy<Value = ClientMatch> {
    let blocks = || values(net().boxed());
    (texts(), texts(), values(account().boxed()), texts(), texts(), blocks(), blocks()).prop_map(
        |(principals, namespaces, service_accounts, trust_domains, request, ip, remote)| {
            ClientMatch {
                principals,
                namespaces,
                service_accounts,
                trust_domains,
                request_principals: request,
                ip_blocks: ip,
                remote_ip_blocks: remote,
            }
        },
    )
}

fn operation() -> impl Strategy<Value = OperationMatch> {
    let host =
        (text_match(), option::of(any::<u16>())).prop_map(|(host, port)| HostMatch { host, port });
    let template = select(vec!["/a/{*}", "/{**}", "/{*}/b/{**}/c/", "/", "/a//b"]);
    let path = prop_oneof![
        text_match().prop_map(PathPattern::Text),
        template.prop_map(|it| PathPattern::template(it).unwrap()),
    ];
    (values(host.boxed()), values(any::<u16>()), texts(), values(path.boxed()))
        .prop_map(|(hosts, ports, methods, paths)| OperationMatch { hosts, ports, methods, paths })
}

fn condition() -> impl Strategy<Value = Condition> {
    use TextAttribute::{
        Audience, Namespace, Presenter, Principal, RequestPrincipal, ServerName, TrustDomain,
    };
    let attributes =
        vec![Audience, Namespace, Presenter, Principal, RequestPrincipal, ServerName, TrustDomain];
    let ips = vec![IpAttribute::Source, IpAttribute::Remote, IpAttribute::Destination];
    prop_oneof![
        (text(), texts()).prop_map(|(name, values)| Condition::Header { name, values }),
        (vec(text(), 0..3), texts()).prop_map(|(keys, values)| Condition::Claim { keys, values }),
        (select(attributes), texts()).prop_map(|(it, values)| Condition::Text(it, values)),
        values(account().boxed()).prop_map(Condition::ServiceAccount),
        (select(ips), values(net().boxed())).prop_map(|(it, values)| Condition::Ip(it, values)),
        values(any::<u16>()).prop_map(Condition::DestinationPort),
    ]
}

pub(crate) fn policy() -> impl Strategy<Value = RequestPolicy> {
    use policy::Action::{Allow, Audit, Custom, Deny};
    let action = prop_oneof![
        select(vec![Allow, Deny, Audit]),
        text().prop_map(|provider: Text| Custom(provider)),
    ];
    let rule = (vec(client(), 0..2), vec(operation(), 0..2), vec(condition(), 0..3))
        .prop_map(|(from, to, when)| RequestRule { from, to, when });
    let condition = select(vec![None, Some("request.method == 'GET'")]);
    let condition = condition.prop_map(|source| {
        source.map(|it| Expression::condition(it, &NAMES).expect("an expression"))
    });
    (policy_name(), action, any::<bool>(), vec(rule, 0..3), condition).prop_map(
        |(key, action, is_dry_run, rules, condition)| RequestPolicy {
            key,
            action,
            is_dry_run,
            rules,
            condition,
        },
    )
}
