//! Policies that read requests, by tables.

use std::sync::Arc;

use ambit_model::Text;
use ambit_model::authorize::{Decision, Denial, RuleName, Source};
use ambit_model::expression::{Expression, Lookup, Value};
use ambit_model::http::authorize::{
    Asked, Custom, RequestDecision, RequestJudgement, Token, authorize,
};
use ambit_model::http::condition::NAMES;
use ambit_model::http::head::{Claims, Client, NamedValues, RequestHead};
use ambit_model::http::policy::{
    Action, ClientMatch, Condition, HostMatch, IpAttribute, OperationMatch, PathPattern,
    RequestPolicy, RequestRule, TextAttribute, Values,
};
use ambit_model::identity::Identity;
use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::policy::{ServiceAccountMatch, TextMatch};

/// `iss/sub`, audiences `a` and `b`, `groups: [admin, dev]` and `org: {unit: it}`.
struct Verified;

impl Token for Verified {
    fn principal(&self) -> Option<&str> {
        Some("iss/sub")
    }

    fn any_audience(&self, holds: &mut dyn FnMut(&str) -> bool) -> bool {
        ["a", "b"].into_iter().any(holds)
    }

    fn presenter(&self) -> Option<&str> {
        None
    }

    fn claims(&self) -> &dyn Lookup {
        self
    }
}

impl Claims for Verified {
    fn any_claim(&self, keys: &[Text], holds: &mut dyn FnMut(&str) -> bool) -> bool {
        match keys.iter().map(|key| &**key).collect::<Vec<&str>>()[..] {
            ["groups"] => ["admin", "dev"].into_iter().any(holds),
            ["org", "unit"] => holds("it"),
            _ => false,
        }
    }
}

impl Lookup for Verified {
    fn get(&self, name: &str) -> Option<Value<'_>> {
        let list = ["admin", "dev"].map(Value::text).to_vec();
        (name == "groups").then(|| Value::List(list.into()))
    }
}

fn exact(text: &str) -> TextMatch {
    TextMatch::Exact(text.into())
}

fn any_of<T>(values: impl IntoIterator<Item = T>) -> Values<T> {
    Values { any_of: values.into_iter().collect(), none_of: Vec::new() }
}

fn none_of<T>(values: impl IntoIterator<Item = T>) -> Values<T> {
    Values { any_of: Vec::new(), none_of: values.into_iter().collect() }
}

fn from(from: ClientMatch) -> RequestRule {
    RequestRule { from: vec![from], ..RequestRule::default() }
}

fn to(to: OperationMatch) -> RequestRule {
    RequestRule { to: vec![to], ..RequestRule::default() }
}

fn when(condition: Condition) -> RequestRule {
    RequestRule { when: vec![condition], ..RequestRule::default() }
}

fn policy(name: &str, action: Action, rules: Vec<RequestRule>) -> Arc<RequestPolicy> {
    let key = PolicyName::new("app", name);
    Arc::new(RequestPolicy { key, action, is_dry_run: false, rules, condition: None })
}

fn on_trial(policy: &Arc<RequestPolicy>) -> Arc<RequestPolicy> {
    Arc::new(RequestPolicy { is_dry_run: true, ..(**policy).clone() })
}

fn by(name: &str, rule: usize) -> RuleName {
    RuleName { policy: PolicyName::new("app", name), rule }
}

/// Asks for `GET http://web.app:8080/admin/x` from `client/good` at 10.0.0.1, behind 192.0.2.1, at
/// 10.96.0.1:8080; `x-env` has these lines.
fn judge(policies: &[Arc<RequestPolicy>], is_known: bool, lines: &[&str]) -> RequestJudgement {
    judge_received(policies.iter().map(Ok), is_known, lines)
}

/// As [`judge`], of policies that may not have been received.
fn judge_received<'a>(
    policies: impl IntoIterator<Item = Result<&'a Arc<RequestPolicy>, &'a PolicyName>>,
    is_known: bool,
    lines: &[&str],
) -> RequestJudgement {
    let lines = lines.iter().map(|line| ("x-env".to_owned(), (*line).to_owned()));
    let size = ("content-length".to_owned(), "1024".to_owned());
    let fields: Vec<(String, String)> = lines.chain([size]).collect();
    let head = RequestHead {
        method: "GET",
        scheme: "http",
        host: "web.app",
        port: Some(8080),
        path: "/admin/x",
        query: "",
        fields: &NamedValues(&fields),
        client: Client::default(),
    };
    let identity = is_known.then(|| Identity::new("cluster.local", "client", "good"));
    let source = Source::new(identity, "10.0.0.1".parse().expect("an address"));
    let service = ServiceName::new("app", "web.app.svc.cluster.local");
    let asked = Asked {
        head: &head,
        source: &source,
        remote_ip: "192.0.2.1".parse().expect("an address"),
        destination: "10.96.0.1:8080".parse().expect("an address"),
        service: Some(&service),
        server_name: None,
        token: is_known.then_some(&Verified as &dyn Token),
    };
    authorize(policies, &asked)
}

/// Whether a rule matches the request of a client that proved who it is, and of one that did not.
fn check(rule: RequestRule, known: bool, stranger: bool) {
    for (is_known, expected) in [(true, known), (false, stranger)] {
        let policies = [policy("deny", Action::Deny, vec![rule.clone()])];
        let decision = judge(&policies, is_known, &["test"]).decision;
        let is_denied = matches!(decision, RequestDecision::Denied(_));
        assert_eq!(is_denied, expected, "{rule:?}, known: {is_known}");
    }
}

#[test]
fn who_asks() {
    let principal = || exact("cluster.local/ns/client/sa/good");
    check(
        from(ClientMatch { principals: any_of([principal()]), ..Default::default() }),
        true,
        false,
    );
    // Who proves nothing is none of those who are left out.
    check(
        from(ClientMatch { principals: none_of([principal()]), ..Default::default() }),
        false,
        true,
    );
    let present = || any_of([TextMatch::Presence]);
    check(from(ClientMatch { principals: present(), ..Default::default() }), true, false);
    check(from(ClientMatch { request_principals: present(), ..Default::default() }), true, false);
    let namespace = any_of([TextMatch::Prefix("cl".into())]);
    check(from(ClientMatch { namespaces: namespace, ..Default::default() }), true, false);
    let account = |account: &str| ServiceAccountMatch {
        namespace: "client".into(),
        service_account: account.into(),
    };
    let accounts = any_of([account("other"), account("good")]);
    check(from(ClientMatch { service_accounts: accounts, ..Default::default() }), true, false);
    let domains = any_of([exact("elsewhere")]);
    check(from(ClientMatch { trust_domains: domains, ..Default::default() }), false, false);
    let block = |text: &str| any_of([text.parse().expect("an address")]);
    check(from(ClientMatch { ip_blocks: block("10.0.0.0/24"), ..Default::default() }), true, true);
    let remote = block("192.0.2.0/24");
    check(from(ClientMatch { remote_ip_blocks: remote, ..Default::default() }), true, true);
    let both = ClientMatch {
        principals: any_of([principal()]),
        ip_blocks: block("192.0.2.0/24"),
        ..Default::default()
    };
    check(from(both), false, false);
    check(from(ClientMatch::default()), false, false);
}

#[test]
fn what_is_asked() {
    let host = |host: &str, port| {
        let hosts = any_of([HostMatch { host: exact(host), port }]);
        to(OperationMatch { hosts, ..Default::default() })
    };
    check(host("web.app", None), true, true);
    check(host("web.app", Some(8080)), true, true);
    check(host("web.app", Some(80)), false, false);
    check(host("web", None), false, false);
    let paths = |values| to(OperationMatch { paths: values, ..Default::default() });
    let template = |text| PathPattern::template(text).unwrap();
    check(paths(any_of([template("/admin/{*}")])), true, true);
    check(paths(none_of([template("/admin/{**}")])), false, false);
    check(paths(any_of([PathPattern::Text(exact("/admin"))])), false, false);
    let of = |methods: Values<TextMatch>, ports: Values<u16>| {
        to(OperationMatch { methods, ports, ..Default::default() })
    };
    check(of(any_of([exact("GET"), exact("PUT")]), any_of([8080])), true, true);
    check(of(any_of([exact("GET")]), none_of([8080])), false, false);
    check(of(none_of([exact("get")]), Values::default()), true, true);
    check(to(OperationMatch::default()), false, false);
}

#[test]
fn what_else_must_hold() {
    let header = |name: &str, values| when(Condition::Header { name: name.into(), values });
    check(header("x-env", any_of([exact("test")])), true, true);
    check(header("x-env", none_of([exact("test")])), false, false);
    check(header("x-other", none_of([exact("test")])), true, true);
    check(header("x-other", any_of([TextMatch::Presence])), false, false);
    let claim = |keys: &[&str], value: &str| {
        let keys = keys.iter().map(|key| Text::from(*key)).collect();
        when(Condition::Claim { keys, values: any_of([exact(value)]) })
    };
    check(claim(&["groups"], "dev"), true, false);
    check(claim(&["groups"], "ops"), false, false);
    check(claim(&["org", "unit"], "it"), true, false);
    check(claim(&["org"], "it"), false, false);
    let text = |attribute, value| when(Condition::Text(attribute, any_of([exact(value)])));
    check(text(TextAttribute::Audience, "b"), true, false);
    check(text(TextAttribute::Presenter, "b"), false, false);
    check(text(TextAttribute::ServerName, "web"), false, false);
    check(text(TextAttribute::TrustDomain, "cluster.local"), true, false);
    let ip = |attribute, block: &str| {
        when(Condition::Ip(attribute, any_of([block.parse().expect("an address")])))
    };
    check(ip(IpAttribute::Destination, "10.96.0.0/16"), true, true);
    check(ip(IpAttribute::Source, "10.96.0.0/16"), false, false);
    check(when(Condition::DestinationPort(any_of([80, 8080]))), true, true);
    let and = RequestRule {
        when: vec![
            Condition::DestinationPort(any_of([8080])),
            Condition::Text(TextAttribute::Principal, any_of([TextMatch::Presence])),
        ],
        ..Default::default()
    };
    check(and, true, false);
    check(RequestRule::default(), true, true);
}

#[test]
fn no_line_of_a_field_hides_behind_another() {
    let [a, b] = [|| exact("a"), || exact("b")];
    // By action: whether the policy matches the lines.
    let check = |values: Values<TextMatch>, lines: &[&str], allow: bool, others: bool| {
        let rule = when(Condition::Header { name: "x-env".into(), values });
        let actions = [Action::Allow, Action::Deny, Action::Audit, Action::Custom("authz".into())];
        for action in actions {
            let policies = [policy("one", action.clone(), vec![rule.clone()])];
            let judgement = judge(&policies, true, lines);
            let (is_match, expected) = match action {
                Action::Allow => (matches!(judgement.decision, RequestDecision::Allowed(_)), allow),
                Action::Deny => (matches!(judgement.decision, RequestDecision::Denied(_)), others),
                Action::Audit => (!judgement.audits.is_empty(), others),
                Action::Custom(_) => {
                    (matches!(judgement.decision, RequestDecision::Ask { .. }), others)
                }
            };
            assert_eq!(is_match, expected, "{policies:?} {lines:?}");
        }
    };
    check(any_of([a()]), &["a"], true, true);
    check(any_of([a()]), &["b", "a"], false, true);
    check(any_of([a()]), &["a", "b"], false, true);
    check(any_of([a()]), &["a", "a"], true, true);
    check(any_of([a()]), &["a,b"], false, false);
    check(any_of([exact("a,b")]), &["a", "b"], false, true);
    check(any_of([a()]), &[], false, false);
    check(any_of([TextMatch::Presence]), &["", "a"], false, true);
    check(none_of([a()]), &["a"], false, false);
    check(none_of([a()]), &["b", "a"], false, true);
    check(none_of([a()]), &["b", "c"], true, true);
    check(none_of([exact("a,b")]), &["a", "b"], false, true);
    check(none_of([a()]), &[], true, true);
    let both = || Values { any_of: vec![a()], none_of: vec![b()] };
    check(both(), &["a", "b"], false, true);
    check(both(), &["a"], true, true);
}

fn decide(policies: &[Arc<RequestPolicy>], expected: RequestDecision) {
    assert_eq!(judge(policies, true, &[]).decision, expected, "{policies:?}");
}

#[test]
fn the_order_is_deny_then_allow() {
    let yes = RequestRule::default;
    let no = || when(Condition::DestinationPort(any_of([1])));
    let allow = policy("allow", Action::Allow, vec![no(), yes()]);
    let other = policy("other", Action::Allow, vec![no()]);
    let nobody = policy("nobody", Action::Allow, vec![]);
    let deny = policy("deny", Action::Deny, vec![yes()]);
    let denied = || RequestDecision::Denied(Denial::Denied(by("deny", 0)));
    let not_allowed = |name, allow_policies| {
        let policy = PolicyName::new("app", name);
        RequestDecision::Denied(Denial::NotAllowed { policy, allow_policies })
    };
    decide(&[], RequestDecision::Allowed(None));
    decide(std::slice::from_ref(&allow), RequestDecision::Allowed(Some(by("allow", 1))));
    decide(&[other.clone(), allow.clone()], RequestDecision::Allowed(Some(by("allow", 1))));
    decide(&[other.clone(), nobody.clone()], not_allowed("other", 2));
    decide(&[allow.clone(), deny.clone()], denied());
    decide(&[on_trial(&deny), on_trial(&nobody)], RequestDecision::Allowed(None));
    let policies = [on_trial(&deny), on_trial(&nobody), policy("log", Action::Audit, vec![yes()])];
    let judgement = judge(&policies, true, &[]);
    assert_eq!(judgement.audits, [by("log", 0)]);
    let named = PolicyName::new("app", "nobody");
    let trial = Denial::NotAllowed { policy: named, allow_policies: 1 };
    assert_eq!(judgement.dry_run_denials, [Denial::Denied(by("deny", 0)), trial]);
}

#[test]
fn providers_are_asked_for_what_their_policies_match() {
    let custom = |name: &str, rules| policy(name, Action::Custom("authz".into()), rules);
    let yes = || vec![RequestRule::default()];
    let no = || vec![when(Condition::DestinationPort(any_of([1])))];
    let of = |name: &str| Custom { provider: "authz".into(), rule: by(name, 0) };
    let ask = |then| RequestDecision::Ask { providers: vec![of("one"), of("four")], then };
    let mut policies = vec![
        custom("one", yes()),
        custom("two", no()),
        custom("three", vec![]),
        custom("four", yes()),
    ];
    decide(&policies, ask(Decision::Allow(None)));
    policies.push(policy("allow", Action::Allow, yes()));
    decide(&policies, ask(Decision::Allow(Some(by("allow", 0)))));
    policies.push(policy("deny", Action::Deny, yes()));
    decide(&policies, ask(Decision::Deny(Denial::Denied(by("deny", 0)))));
    decide(&policies[1..3], RequestDecision::Allowed(None));
    // On trial they are asked, and nobody waits.
    let trial = judge(&[on_trial(&policies[0])], true, &[]);
    assert_eq!(trial.decision, RequestDecision::Allowed(None));
    assert_eq!(trial.dry_run_providers, [of("one")]);
}

#[test]
fn a_policy_that_was_not_received_denies() {
    let yes = || vec![RequestRule::default()];
    let name = PolicyName::new("app", "missing");
    let missing = || RequestDecision::Denied(Denial::PolicyMissing(name.clone()));
    let denied = RequestDecision::Denied(Denial::Denied(by("deny", 0)));
    let check = |policies: &[Arc<RequestPolicy>], expected| {
        let with_missing = [Err(&name)].into_iter().chain(policies.iter().map(Ok));
        assert_eq!(judge_received(with_missing, true, &[]).decision, expected, "{policies:?}");
    };
    check(&[], missing());
    check(&[policy("allow", Action::Allow, yes())], missing());
    check(&[policy("nobody", Action::Allow, vec![])], missing());
    check(&[policy("ask", Action::Custom("authz".into()), yes())], missing());
    check(&[policy("deny", Action::Deny, yes())], denied);
}

/// A condition beside a rule that matches every request: what an ALLOW and a DENY with it decide
/// about a client that is known and one that is not. A request passes alone where it is sure.
#[test]
fn a_condition_is_asked_beside_the_rules_and_never_opens() {
    for (source, allows, denies) in [
        ("request.method == 'GET' && request.path == '/admin/x'", [true, true], [true, true]),
        ("request.url_path.matches('^/public/')", [false, false], [false, false]),
        ("request.host == 'web.app' && request.query == ''", [true, true], [true, true]),
        ("request.headers['x-env'] == 'test'", [true, true], [true, true]),
        ("request.size + 1 == 1025 && request.size < 2000", [true, true], [true, true]),
        // An error allows nothing and denies everything.
        ("request.headers['x-none'] == 'test'", [false, false], [true, true]),
        ("source.namespace == 'client'", [true, false], [true, true]),
        ("source.namespace != 'client'", [false, false], [false, true]),
        ("has(source.principal)", [true, false], [true, false]),
        ("source.principal == 'cluster.local/ns/client/sa/good'", [true, false], [true, true]),
        ("source.service_account == 'good'", [true, false], [true, true]),
        ("source.ip == '10.0.0.1' && destination.ip == '10.96.0.1'", [true, true], [true, true]),
        ("destination.port == 8080", [true, true], [true, true]),
        ("destination.service.startsWith('web.')", [true, true], [true, true]),
        ("'admin' in auth.claims.groups", [true, false], [true, true]),
        ("'a' in auth.audiences && auth.principal == 'iss/sub'", [true, false], [true, true]),
        ("has(auth.claims) && has(auth.claims.groups)", [true, false], [true, false]),
        ("request.method", [false, false], [true, true]),
    ] {
        let condition = Expression::condition(source, &NAMES).expect(source);
        for (action, expected) in [(Action::Allow, allows), (Action::Deny, denies)] {
            let policy = policy("p", action.clone(), vec![RequestRule::default()]);
            let policy = RequestPolicy { condition: Some(condition.clone()), ..(*policy).clone() };
            let policies = [Arc::new(policy)];
            let matches = [true, false].map(|is_known| {
                let decision = judge(&policies, is_known, &["test"]).decision;
                matches!(decision, RequestDecision::Denied(_)) == (action == Action::Deny)
            });
            assert_eq!(matches, expected, "{action:?} {source}");
        }
    }
    // Beside no rule there is nothing to add to.
    let condition = Expression::condition("true", &NAMES).ok();
    let policy = policy("p", Action::Deny, vec![]);
    let policies = [Arc::new(RequestPolicy { condition, ..(*policy).clone() })];
    assert_eq!(judge(&policies, true, &[]).decision, RequestDecision::Allowed(None));
}

#[test]
fn a_field_with_several_lines_is_not_compared_in_a_condition() {
    let condition = Expression::condition("request.headers['x-env'] == 'prod'", &NAMES).ok();
    for (lines, denies) in
        [(&["prod"][..], true), (&["test"][..], false), (&["test", "test"][..], true)]
    {
        let deny = policy("p", Action::Deny, vec![RequestRule::default()]);
        let deny = RequestPolicy { condition: condition.clone(), ..(*deny).clone() };
        let decision = judge(&[Arc::new(deny)], true, lines).decision;
        assert_eq!(matches!(decision, RequestDecision::Denied(_)), denies, "{lines:?}");
    }
}
