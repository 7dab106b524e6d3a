//! Which requests a limit counts, and what tells their senders apart.

use super::bucket::Unit;
use super::*;
use crate::authorize::Source;
use crate::expression::{Lookup, Value};
use crate::http::authorize::{Asked, Token};
use crate::http::head::{self, Client, NamedValues, RequestHead};
use crate::http::matching::ValueMatch;
use crate::identity::Identity;

struct Claims(&'static [(&'static str, &'static str)]);

impl Token for Claims {
    fn principal(&self) -> Option<&str> {
        Some("i/s")
    }

    fn any_audience(&self, _: &mut dyn FnMut(&str) -> bool) -> bool {
        false
    }

    fn presenter(&self) -> Option<&str> {
        None
    }

    fn claims(&self) -> &dyn Lookup {
        self
    }
}

impl head::Claims for Claims {
    fn any_claim(&self, keys: &[Text], holds: &mut dyn FnMut(&str) -> bool) -> bool {
        self.0.iter().any(|(name, value)| *name == keys.join(".") && holds(value))
    }
}

impl Lookup for Claims {
    fn get(&self, name: &str) -> Option<Value<'_>> {
        let found = self.0.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| Value::text(*value))
    }
}

fn limit(conditions: Vec<Condition>, distinct: Vec<Attribute>) -> RateLimit {
    RateLimit {
        name: "one".into(),
        conditions,
        distinct,
        counter: Counter::Local(Quota { requests: 1, unit: Unit::Second, burst: 1 }),
        request_cost: Cost::Number(1),
        response_cost: None,
        is_shared: false,
        is_shadow: false,
    }
}

/// Whether a request of `shop/cart` counts, and what tells it apart.
fn counted(limit: &RateLimit) -> Option<String> {
    with(&[("x-user", "ann")], |asked| limit.counts(asked)).map(|values| values.join("|"))
}

/// A request of `shop/cart` with these fields.
fn with<T>(fields: &[(&str, &str)], ask: impl FnOnce(&Asked<'_>) -> T) -> T {
    let owned = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let fields: Vec<(String, String)> = owned.collect();
    let fields = NamedValues(&fields);
    let head = RequestHead {
        method: "GET",
        scheme: "http",
        host: "web",
        port: None,
        path: "/api/a",
        query: "",
        fields: &fields,
        client: Client::default(),
    };
    let ip = "10.0.0.9".parse().unwrap();
    let source = Source::new(Some(Identity::new("t", "shop", "cart")), ip);
    let token = Claims(&[("sub", "u1"), ("org.name", "x"), ("org.name", "y")]);
    ask(&Asked {
        head: &head,
        source: &source,
        remote_ip: ip,
        destination: "10.96.0.1:80".parse().unwrap(),
        service: None,
        server_name: None,
        token: Some(&token),
    })
}

/// An application may read any line.
#[test]
fn nobody_becomes_another_sender_by_one_more_line() {
    let distinct = vec![Attribute::Header("x-user".into())];
    let limits = vec![limit(Vec::new(), distinct)];
    let mut policy = RateLimitPolicy {
        name: PolicyName::new("app", "limits"),
        limits,
        says_what_is_left: true,
        problem: None,
    };
    for (lines, expected) in [
        (&["ann"][..], Ok("ann")),
        (&["ann", "ann"], Ok("ann")),
        (&["ann,"], Ok("ann")),
        (&[" , ann ,,"], Ok("ann")),
        (&["ann,", "ann"], Ok("ann")),
        (&[""], Ok("")),
        (&[","], Ok("")),
        (&["ann,bob"], Ok("ann,bob")),
        (&["ann", ""], Err("x-user")),
        (&["", "ann"], Err("x-user")),
        (&["ann", "bob"], Err("x-user")),
        (&["ann", "ann", "bob"], Err("x-user")),
    ] {
        let fields: Vec<(&str, &str)> = lines.iter().map(|line| ("x-user", *line)).collect();
        let found = with(&fields, |asked| match policy.unclear(asked) {
            Some((index, field)) => Err((index, field.to_string())),
            None => Ok(policy.limits[0].counts(asked).map(|values| values.join("|"))),
        });
        let expected = expected.map(|it| Some(it.to_owned())).map_err(|it| (0, it.to_owned()));
        assert_eq!(found, expected, "{lines:?}");
    }
    let two = [("x-user", "ann"), ("x-user", "bob")];
    // What does not count, or refuses nothing, is not in the way.
    policy.limits[0].conditions = vec![Condition::Method(vec!["POST".into()])];
    assert!(!with(&two, |asked| policy.unclear(asked).is_some()));
    policy.limits[0].conditions = Vec::new();
    assert!(with(&two, |asked| policy.unclear(asked).is_some()));
    policy.limits[0].is_shadow = true;
    assert!(!with(&two, |asked| policy.unclear(asked).is_some()));
}

#[test]
fn one_line_is_enough_for_a_condition() {
    let header = |is_inverted| {
        let value = ValueMatch::Exact("ann".into());
        let header = NamedMatch { name: "x-user".into(), value, is_inverted };
        limit(vec![Condition::Header(header)], Vec::new())
    };
    for (lines, counts, counts_inverted) in [
        (&[][..], false, true),
        (&["ann"], true, false),
        (&["bob"], false, true),
        (&["ann", "bob"], true, true),
        (&["bob", "ann"], true, true),
        (&["ann", ""], true, true),
        (&["ann", "ann"], true, false),
        (&["ann,"], true, true),
    ] {
        let fields: Vec<(&str, &str)> = lines.iter().map(|line| ("x-user", *line)).collect();
        let found =
            [false, true].map(|it| with(&fields, |asked| header(it).counts(asked).is_some()));
        assert_eq!(found, [counts, counts_inverted], "{lines:?}");
    }
}

#[test]
fn a_request_counts_where_all_conditions_hold() {
    let header = |value: &str, is_inverted| {
        let value = ValueMatch::Exact(value.into());
        Condition::Header(NamedMatch { name: "x-user".into(), value, is_inverted })
    };
    let exact = |text: &str| TextMatch::Exact(text.into());
    let claim =
        |name: &str, value| Condition::Claim { keys: vec![name.into()], value: exact(value) };
    for (condition, expected) in [
        (header("ann", false), true),
        (header("bob", false), false),
        (header("bob", true), true),
        (Condition::Path(PathMatch::Segments("/api".into())), true),
        (Condition::Path(PathMatch::Exact("/api".into())), false),
        (Condition::Method(vec!["POST".into(), "GET".into()]), true),
        (Condition::Method(vec!["POST".into()]), false),
        (Condition::Principal(exact("t/ns/shop/sa/cart")), true),
        (Condition::Principal(TextMatch::Prefix("t/ns/bank/".into())), false),
        (Condition::Namespace(exact("shop")), true),
        (Condition::Namespace(exact("bank")), false),
        (Condition::Source("10.0.0.0/8".parse().unwrap()), true),
        (Condition::Source("10.1.0.0/16".parse().unwrap()), false),
        (claim("sub", "u1"), true),
        (claim("sub", "u2"), false),
        (claim("none", "u1"), false),
    ] {
        let limit = limit(vec![condition.clone()], Vec::new());
        assert_eq!(counted(&limit).is_some(), expected, "{condition:?}");
    }
    let both = vec![header("ann", false), Condition::Namespace(exact("bank"))];
    assert_eq!(counted(&limit(both, Vec::new())), None);
    assert_eq!(counted(&limit(Vec::new(), Vec::new())).as_deref(), Some(""));
}

#[test]
fn senders_are_told_apart_by_their_values() {
    use Attribute::{Claim, Header, Namespace, Principal, Source};
    for (distinct, key, expected) in [
        (Header("x-user".into()), "x-user", Some("ann")),
        (Header("x-other".into()), "x-other", None),
        (Principal, "principal", Some("t/ns/shop/sa/cart")),
        (Namespace, "namespace", Some("shop")),
        (Source, "remote_address", Some("10.0.0.9")),
        (Claim(vec!["sub".into()]), "sub", Some("u1")),
        (Claim(vec!["org".into(), "name".into()]), "org.name", Some("x")),
        (Claim(vec!["none".into()]), "none", None),
    ] {
        assert_eq!(distinct.key(), key);
        assert_eq!(counted(&limit(Vec::new(), vec![distinct])).as_deref(), expected, "{key}");
    }
    let two = limit(Vec::new(), vec![Namespace, Header("x-user".into())]);
    assert_eq!(counted(&two).as_deref(), Some("shop|ann"));
}

#[test]
fn the_most_specific_limits_are_those_of_the_rule() {
    let policy = |name: &str| {
        Arc::new(RateLimitPolicy {
            name: PolicyName::new("app", name),
            limits: Vec::new(),
            says_what_is_left: true,
            problem: None,
        })
    };
    let of_route = |kind, namespace: &str, name: &str, rule: Option<&str>| RouteRateLimits {
        kind,
        namespace: namespace.into(),
        name: name.into(),
        rule_name: rule.map(Text::from),
        policy: policy(&format!("{name}-{}", rule.unwrap_or("all"))),
    };
    use RouteKind::{GrpcRoute, HttpRoute};
    let limits = RateLimits {
        service: Some(policy("service")),
        routes: vec![
            of_route(HttpRoute, "app", "a", None),
            of_route(HttpRoute, "app", "a", Some("slow")),
            of_route(HttpRoute, "app", "b", Some("slow")),
            of_route(HttpRoute, "cli", "a", None),
            of_route(HttpRoute, "cli", "a", Some("slow")),
        ],
    };
    let service = ServiceName::new("app", "web");
    let found = |kind, (namespace, name): (&str, &str), rule: Option<&str>| {
        let origin = Origin {
            kind,
            namespace: namespace.into(),
            name: name.into(),
            created_unix_s: 0,
            index: 0,
            rule_name: rule.map(Text::from),
        };
        limits.of(Some(&origin), &service).expect("one of the service").name.name.to_string()
    };
    for (kind, name, rule, expected) in [
        (HttpRoute, ("app", "a"), Some("slow"), "a-slow"),
        (HttpRoute, ("app", "a"), Some("fast"), "a-all"),
        (HttpRoute, ("app", "a"), None, "a-all"),
        (HttpRoute, ("app", "b"), None, "service"),
        (HttpRoute, ("app", "b"), Some("slow"), "b-slow"),
        (GrpcRoute, ("app", "a"), None, "service"),
        // A consumer's route does not lift what holds for the service.
        (HttpRoute, ("cli", "a"), None, "service"),
        (HttpRoute, ("cli", "a"), Some("slow"), "service"),
    ] {
        assert_eq!(found(kind, name, rule), expected, "{kind:?} {name:?} {rule:?}");
    }
    assert_eq!(&*limits.of(None, &service).unwrap().name.name, "service");
    assert!(RateLimits::default().of(None, &service).is_none());
}

#[test]
fn a_cost_is_a_number_within_its_bound() {
    let cost = Cost::Header { name: "x-cost".into(), max: 10 };
    let of = |value: Option<&str>| cost.of(1, |_| value.map(|it| it.as_bytes().to_vec()));
    for (value, expected) in [
        (None, 1),
        (Some("3"), 3),
        (Some(" 4 "), 4),
        (Some("0"), 0),
        (Some("11"), 10),
        (Some("-1"), 10),
        (Some("1.5"), 10),
        (Some("many"), 10),
        (Some(""), 10),
    ] {
        assert_eq!(of(value), expected, "{value:?}");
    }
    assert_eq!(Cost::Number(7).of(1, |_| None), 7);
}
