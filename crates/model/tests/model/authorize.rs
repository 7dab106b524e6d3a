//! Authorisation, by tables and against a naive reference that follows Istio's text literally.

use ambit_model::authorize::{Decision, Denial, JudgedBefore, Judgement, RuleName, Source};
use ambit_model::identity::Identity;
use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::policy::{
    Action, Clause, List, Match, Policy, PolicyScope, Rule, ServiceAccountMatch, TextMatch,
};
use ambit_model::service::Service;
use ambit_model::view::{Change, View};
use ambit_model::workload::{GatewayAddress, GatewayDestination, Workload};
use proptest::prelude::*;

fn policy(name: &str, scope: PolicyScope, action: Action, rules: Vec<Rule>) -> Policy {
    let key = PolicyName::new("app", name);
    Policy { key, scope, action, rules, dry_run: false, is_of_waypoints: false }
}

fn rule(one: Match) -> Rule {
    Rule { clauses: vec![Clause { matches: vec![one] }] }
}

fn from_account(account: &str) -> Rule {
    let text = format!("cluster.local/ns/client/sa/{account}");
    rule(Match { principals: [TextMatch::Exact(text.into())].into(), ..Match::default() })
}

fn source(account: Option<&str>) -> Source {
    let identity = account.map(|sa| Identity::new("cluster.local", "client", sa));
    Source::new(identity, "10.0.0.1".parse().expect("an address"))
}

struct Case<'a> {
    name: &'a str,
    policies: Vec<Policy>,
    named: &'a [&'a str],
    account: Option<&'a str>,
    expected: Decision,
}

fn check(case: Case<'_>) {
    let mut view = View::default();
    for policy in case.policies {
        view.apply(Change::Policy(policy));
    }
    let mut workload = Workload::named("uid", "app", "server");
    workload.policies = case.named.iter().map(|name| PolicyName::new("app", *name)).collect();
    let to = "10.0.0.2:8080".parse().expect("an address");
    let judgement = view.authorize(&workload, &source(case.account), to);
    assert_eq!(judgement.decision, case.expected, "{}", case.name);
}

fn by(name: &str, rule: usize) -> RuleName {
    RuleName { policy: PolicyName::new("app", name), rule }
}

#[test]
fn the_order_is_deny_then_allow() {
    use PolicyScope::{Global, Namespace, WorkloadSelector};
    let allow = |scope| policy("allow", scope, Action::Allow, vec![from_account("good")]);
    let deny = policy("deny", Namespace, Action::Deny, vec![from_account("bad")]);
    let not_allowed =
        |n| Denial::NotAllowed { policy: PolicyName::new("app", "allow"), allow_policies: n };
    check(Case {
        name: "no policy allows",
        policies: vec![],
        named: &[],
        account: None,
        expected: Decision::Allow(None),
    });
    for scope in [Global, Namespace] {
        check(Case {
            name: "a scoped ALLOW that matches",
            policies: vec![allow(scope), deny.clone()],
            named: &[],
            account: Some("good"),
            expected: Decision::Allow(Some(by("allow", 0))),
        });
    }
    check(Case {
        name: "an ALLOW that does not match",
        policies: vec![allow(Namespace)],
        named: &[],
        account: Some("other"),
        expected: Decision::Deny(not_allowed(1)),
    });
    check(Case {
        name: "a DENY wins over an ALLOW",
        policies: vec![
            policy("allow", Namespace, Action::Allow, vec![from_account("bad")]),
            deny.clone(),
        ],
        named: &[],
        account: Some("bad"),
        expected: Decision::Deny(Denial::Denied(by("deny", 0))),
    });
    check(Case {
        name: "a selector policy holds only for who names it",
        policies: vec![allow(WorkloadSelector)],
        named: &[],
        account: None,
        expected: Decision::Allow(None),
    });
    check(Case {
        name: "a policy without rules never matches",
        policies: vec![policy("allow", Namespace, Action::Allow, vec![])],
        named: &[],
        account: Some("good"),
        expected: Decision::Deny(not_allowed(1)),
    });
    check(Case {
        name: "a rule without clauses matches everything",
        policies: vec![policy("deny", Namespace, Action::Deny, vec![Rule::default()])],
        named: &[],
        account: None,
        expected: Decision::Deny(Denial::Denied(by("deny", 0))),
    });
}

#[test]
fn a_policy_not_received_denies() {
    check(Case {
        name: "named but missing",
        policies: vec![],
        named: &["ghost"],
        account: Some("good"),
        expected: Decision::Deny(Denial::PolicyMissing(PolicyName::new("app", "ghost"))),
    });
    check(Case {
        name: "missing, though another allows",
        policies: vec![policy(
            "allow",
            PolicyScope::Namespace,
            Action::Allow,
            vec![from_account("good")],
        )],
        named: &["ghost"],
        account: Some("good"),
        expected: Decision::Deny(Denial::PolicyMissing(PolicyName::new("app", "ghost"))),
    });
}

#[test]
fn strict_denies_who_proves_nothing() {
    let strict = || {
        let one = Match { not_principals: [TextMatch::Presence].into(), ..Match::default() };
        vec![policy("strict", PolicyScope::Namespace, Action::Deny, vec![rule(one)])]
    };
    check(Case {
        name: "plain text under STRICT",
        policies: strict(),
        named: &[],
        account: None,
        expected: Decision::Deny(Denial::Denied(by("strict", 0))),
    });
    check(Case {
        name: "an identity under STRICT",
        policies: strict(),
        named: &[],
        account: Some("any"),
        expected: Decision::Allow(None),
    });
}

#[test]
fn a_dry_run_is_told_and_not_enforced() {
    let mut view = View::default();
    let mut deny = policy("deny", PolicyScope::Global, Action::Deny, vec![Rule::default()]);
    deny.dry_run = true;
    let mut allow = policy("allow", PolicyScope::Global, Action::Allow, vec![]);
    allow.dry_run = true;
    view.apply(Change::Policy(deny));
    view.apply(Change::Policy(allow));
    let workload = Workload::named("uid", "app", "server");
    let to = "10.0.0.2:8080".parse().expect("an address");
    let judgement = view.authorize(&workload, &source(None), to);
    assert_eq!(judgement.decision, Decision::Allow(None));
    assert_eq!(judgement.dry_run_denials.len(), 2);
}

#[test]
fn only_the_waypoint_reaches_who_names_one() {
    let service = ServiceName::new("app", "server.app.svc.cluster.local");
    let gateway = ServiceName::new("app", "waypoint.app.svc.cluster.local");
    let mut behind = Service::named("app", "server.app.svc.cluster.local");
    behind.waypoint = Some(GatewayAddress {
        destination: GatewayDestination::Hostname(gateway.clone()),
        hbone_mtls_port: 15008,
    });
    let mut workload = Workload::named("uid", "app", "server");
    workload.serve(service, vec![]);
    let mut view = View::default();
    view.apply(Change::Service(behind));
    view.apply(Change::Workload(workload.clone()));
    let to = "10.0.0.2:8080".parse().expect("an address");
    let decide = |view: &View, account| view.authorize(&workload, &source(account), to).decision;
    let refused = Denial::NotThroughWaypoint { waypoint: gateway.to_string() };
    assert_eq!(decide(&view, Some("waypoint")), Decision::Deny(refused.clone()));
    let mut waypoint = Workload::named("wp", "client", "waypoint-1");
    waypoint.service_account = "waypoint".into();
    waypoint.serve(gateway.clone(), vec![]);
    view.apply(Change::Workload(waypoint));
    assert_eq!(decide(&view, Some("waypoint")), Decision::Allow(None));
    assert_eq!(decide(&view, Some("other")), Decision::Deny(refused.clone()));
    assert_eq!(decide(&view, None), Decision::Deny(refused));
    // The policies alone have nothing against what came in before it was named.
    let (other, before) = (source(Some("other")), JudgedBefore::Nothing);
    let again = view.authorize_after(before, &workload, &other, to).decision;
    assert_eq!(again, Decision::Allow(None));
    let mut nobodys = Service::named("app", "server.app.svc.cluster.local");
    nobodys.waypoint = Some(GatewayAddress {
        destination: GatewayDestination::Refused(gateway.hostname),
        hbone_mtls_port: 15008,
    });
    view.apply(Change::Service(nobodys));
    let nobody = Denial::NotThroughWaypoint { waypoint: "waypoint.app.svc.cluster.local".into() };
    for account in [Some("waypoint"), Some("anybody"), None] {
        assert_eq!(decide(&view, account), Decision::Deny(nobody.clone()), "{account:?}");
    }
}

/// The reference: every sentence of the specification, one after another, nothing shared with the
/// code under test.
mod reference {
    use super::*;

    pub(super) fn allowed(policies: &[Policy], from: &Source, to: std::net::SocketAddr) -> bool {
        let matches = |p: &Policy| p.rules.iter().any(|r| rule(r, from, to));
        let denied = policies.iter().filter(|p| p.action == Action::Deny).any(matches);
        let allows: Vec<_> = policies.iter().filter(|p| p.action == Action::Allow).collect();
        !denied && (allows.is_empty() || allows.into_iter().any(matches))
    }

    /// Every policy in turn, whether or not it can match.
    pub(super) fn judgement(
        policies: &[&Policy],
        from: &Source,
        to: std::net::SocketAddr,
    ) -> Judgement {
        let hit = |policy: &Policy| {
            let rule = policy.rules.iter().position(|r| rule(r, from, to))?;
            Some(RuleName { policy: policy.key.clone(), rule })
        };
        let not_allowed = |dry_run| {
            let allows = policies.iter().filter(|p| p.action == Action::Allow);
            let allows: Vec<_> = allows.filter(|p| p.dry_run == dry_run).collect();
            let first = allows.first()?;
            let denial =
                Denial::NotAllowed { policy: first.key.clone(), allow_policies: allows.len() };
            let found = allows.iter().find_map(|p| hit(p));
            Some(found.ok_or(denial))
        };
        let mut dry_run_denials = Vec::new();
        for policy in policies.iter().filter(|p| p.action == Action::Deny) {
            match (hit(policy), policy.dry_run) {
                (Some(rule), false) => {
                    let decision = Decision::Deny(Denial::Denied(rule));
                    return Judgement { decision, dry_run_denials };
                }
                (Some(rule), true) => dry_run_denials.push(Denial::Denied(rule)),
                (None, _) => {}
            }
        }
        dry_run_denials.extend(not_allowed(true).and_then(Result::err));
        let decision = match not_allowed(false) {
            None => Decision::Allow(None),
            Some(Ok(rule)) => Decision::Allow(Some(rule)),
            Some(Err(denial)) => Decision::Deny(denial),
        };
        Judgement { decision, dry_run_denials }
    }

    fn rule(rule: &Rule, from: &Source, to: std::net::SocketAddr) -> bool {
        for clause in &rule.clauses {
            let mut any = clause.matches.is_empty();
            for one in &clause.matches {
                any = any || holds(one, from, to);
            }
            if !any {
                return false;
            }
        }
        true
    }

    fn text(wanted: &TextMatch, value: &str) -> bool {
        match wanted {
            TextMatch::Exact(t) => **t == *value,
            TextMatch::Prefix(t) => value.get(..t.len()) == Some(t),
            TextMatch::Suffix(t) => {
                value.len() >= t.len() && value.get(value.len() - t.len()..) == Some(t)
            }
            TextMatch::Presence => !value.is_empty(),
        }
    }

    fn holds(one: &Match, from: &Source, to: std::net::SocketAddr) -> bool {
        let id = from.identity();
        let namespace = id.map(|id| id.namespace.to_string()).unwrap_or_default();
        let spiffe = id.map(ToString::to_string).unwrap_or_default();
        let principal = |m: &TextMatch| {
            spiffe.strip_prefix("spiffe://").is_some_and(|principal| text(m, principal))
        };
        let account = |m: &ServiceAccountMatch| {
            id.is_some_and(|id| {
                id.namespace == m.namespace && id.service_account == m.service_account
            })
        };
        let mut results = Vec::new();
        macro_rules! both {
            ($field:ident, $not:ident, $test:expr) => {
                if !one.$field.is_empty() {
                    results.push(one.$field.iter().any($test));
                }
                if !one.$not.is_empty() {
                    results.push(!one.$not.iter().any($test));
                }
            };
        }
        both!(namespaces, not_namespaces, |m| text(m, &namespace));
        both!(principals, not_principals, principal);
        both!(service_accounts, not_service_accounts, account);
        both!(source_ips, not_source_ips, |net| net.contains(&from.ip()));
        both!(destination_ips, not_destination_ips, |net| net.contains(&to.ip()));
        both!(destination_ports, not_destination_ports, |port| *port == to.port());
        !results.is_empty() && results.into_iter().all(|result| result)
    }
}

fn any_text() -> impl Strategy<Value = TextMatch> {
    let values = ["a", "b", "cluster.local/ns/a/sa/a", "cluster.local/", "/sa/b", ""];
    let value = proptest::sample::select(values.to_vec());
    (0..4, value).prop_map(|(kind, value)| match kind {
        0 => TextMatch::Exact(value.into()),
        1 => TextMatch::Prefix(value.into()),
        2 => TextMatch::Suffix(value.into()),
        _ => TextMatch::Presence,
    })
}

fn few<T: Clone + std::fmt::Debug, L: FromIterator<T> + std::fmt::Debug>(
    one: impl Strategy<Value = T>,
) -> impl Strategy<Value = L> {
    proptest::collection::vec(one, 0..3).prop_map(|all| all.into_iter().collect())
}

fn any_match() -> impl Strategy<Value = Match> {
    let nets = ["10.0.0.0/24", "10.0.0.1/32", "::/0", "10.1.0.0/16"];
    let net =
        move || proptest::sample::select(nets.to_vec()).prop_map(|n| n.parse().expect("a network"));
    let account = || {
        let name = || proptest::sample::select(vec!["a", "b"]);
        (name(), name()).prop_map(|(namespace, service_account)| ServiceAccountMatch {
            namespace: namespace.into(),
            service_account: service_account.into(),
        })
    };
    let port = || proptest::sample::select(vec![80u16, 8080]);
    let texts = (few(any_text()), few(any_text()), few(any_text()), few(any_text()));
    let accounts = (few(account()), few(account()));
    let nets = (few(net()), few(net()), few(net()), few(net()));
    (texts, accounts, nets, (few(port()), few(port()))).prop_map(|(t, a, n, p)| Match {
        namespaces: t.0,
        not_namespaces: t.1,
        principals: t.2,
        not_principals: t.3,
        service_accounts: a.0,
        not_service_accounts: a.1,
        source_ips: n.0,
        not_source_ips: n.1,
        destination_ips: n.2,
        not_destination_ips: n.3,
        destination_ports: p.0,
        not_destination_ports: p.1,
    })
}

/// One that a connection may well match: one field, or two.
fn narrow_match() -> impl Strategy<Value = Match> {
    (any_match(), 0..5u8, 0..5u8).prop_map(|(all, one, other)| {
        let is = |field| one == field || other == field;
        let Match { namespaces, principals, service_accounts, source_ips, .. } = all;
        let destination_ports = all.destination_ports;
        Match {
            namespaces: if is(0) { namespaces } else { List::new() },
            principals: if is(1) { principals } else { List::new() },
            service_accounts: if is(2) { service_accounts } else { List::new() },
            source_ips: if is(3) { source_ips } else { List::new() },
            destination_ports: if is(4) { destination_ports } else { List::new() },
            ..Match::default()
        }
    })
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let one = prop_oneof![any_match(), narrow_match()];
    let clause = few(one).prop_map(|matches| Clause { matches });
    let rules = few(few(clause).prop_map(|clauses| Rule { clauses }));
    (any::<bool>(), 0..3, rules, 0..1000u32).prop_map(|(deny, scope, rules, name)| {
        let action = if deny { Action::Deny } else { Action::Allow };
        let scope = match scope {
            0 => PolicyScope::Global,
            1 => PolicyScope::Namespace,
            _ => PolicyScope::WorkloadSelector,
        };
        policy(&name.to_string(), scope, action, rules)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn agrees_with_the_reference(
        policies in proptest::collection::vec(any_policy(), 0..4),
        identity in proptest::option::of((0..2usize, 0..2usize)),
        port in proptest::sample::select(vec![80u16, 8080, 9]),
    ) {
        let policies: std::collections::BTreeMap<_, _> =
            policies.into_iter().map(|p| (p.key.clone(), p)).collect();
        let policies: Vec<Policy> = policies.into_values().collect();
        let names = ["a", "b"];
        let identity =
            identity.map(|(ns, sa)| Identity::new("cluster.local", names[ns], names[sa]));
        let from = Source::new(identity, "10.0.0.1".parse().expect("an address"));
        let to = std::net::SocketAddr::new("10.0.0.2".parse().expect("an address"), port);
        let mut view = View::default();
        let mut workload = Workload::named("uid", "app", "server");
        for policy in &policies {
            if policy.scope == PolicyScope::WorkloadSelector {
                workload.policies.push(policy.key.clone());
            }
            view.apply(Change::Policy(policy.clone()));
        }
        let decision = view.authorize(&workload, &from, to).decision;
        let got = matches!(decision, Decision::Allow(_));
        prop_assert_eq!(got, reference::allowed(&policies, &from, to));
    }

    /// Also after policies changed and went, on trial, of others, and judged before.
    #[test]
    fn every_policy_in_turn_says_the_same(
        changes in proptest::collection::vec(
            (any_policy(), 0..4u8, any::<[bool; 4]>()), 0..20),
        identity in proptest::option::of((0..2usize, 0..2usize)),
        judged in 0..3u8,
        named in proptest::collection::vec(0..5u8, 0..2),
        from in proptest::sample::select(
            vec!["10.0.0.1", "10.0.0.9", "fd00::1", "::ffff:10.0.0.1"]),
    ) {
        let mut view = View::default();
        let mut workload = Workload::named("uid", "app", "server");
        for (mut policy, name, [is_elsewhere, dry_run, is_of_waypoints, goes]) in changes {
            let namespace = if is_elsewhere { "elsewhere" } else { "app" };
            policy.key = PolicyName::new(namespace, name.to_string());
            (policy.dry_run, policy.is_of_waypoints) = (dry_run, is_of_waypoints);
            let key = policy.key.clone();
            view.apply(if goes { Change::RemovePolicy(key) } else { Change::Policy(policy) });
        }
        let of_selector = view.policies().filter(|p| p.scope == PolicyScope::WorkloadSelector);
        workload.policies = of_selector.map(|p| p.key.clone()).collect();
        // Those that it names may be of any scope by now, or gone.
        workload.policies.extend(named.iter().map(|it| PolicyName::new("app", it.to_string())));
        let names = ["a", "b"];
        let identity =
            identity.map(|(ns, sa)| Identity::new("cluster.local", names[ns], names[sa]));
        let from = Source::new(identity, from.parse().expect("an address"));
        let to = "10.0.0.2:80".parse().expect("an address");
        let (judged, scopes) = match judged {
            0 => (JudgedBefore::Nothing, &[][..]),
            1 => (JudgedBefore::OfMesh, &[PolicyScope::Global][..]),
            _ => (
                JudgedBefore::OfMeshAndNamespace,
                &[PolicyScope::Global, PolicyScope::Namespace][..],
            ),
        };
        let missing = view.policies_of(&workload).find_map(Result::err);
        let policies = view.policies_of(&workload).flatten().map(|it| &**it);
        let policies: Vec<_> = policies
            .filter(|it| !(it.is_of_waypoints && scopes.contains(&it.scope)))
            .collect();
        let mut expected = reference::judgement(&policies, &from, to);
        let is_denied = matches!(&expected.decision, Decision::Deny(Denial::Denied(_)));
        if let Some(name) = missing.filter(|_| !is_denied) {
            expected.decision = Decision::Deny(Denial::PolicyMissing(name.clone()));
        }
        prop_assert_eq!(view.authorize_after(judged, &workload, &from, to), expected);
    }
}
