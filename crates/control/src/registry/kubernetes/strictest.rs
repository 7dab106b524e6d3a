//! The strictest reading of policies that cannot be read as written.
//!
//! A CRD that is newer than this program, or that has no schema, admits fields that this program
//! does not know. Ignoring such a policy would open what it closes. The readable parts hold; the
//! rest gets its strictest possible meaning: a rule of an ALLOW never matches, a rule of a DENY
//! always does, and if the action or the selection cannot be read, everything is denied; plain text
//! is refused. An earlier, readable version makes no difference, so all replicas agree. Nothing
//! here may make a policy match less of what it denies.

use std::collections::BTreeMap;

use ambit_manifest::istio::{
    Action, AuthorizationPolicySpec, JwtRule, MutualTls, MutualTlsMode, PeerAuthenticationSpec,
    RequestAuthenticationSpec, Rule,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

const STRICT: MutualTls = MutualTls { mode: MutualTlsMode::Strict };

/// A field is there and cannot be read; the problem was noted.
struct Unread;

/// A specification whose fields are taken out one by one.
struct Fields {
    left: Map<String, Value>,
    problems: Vec<String>,
}

impl Fields {
    fn of(spec: Value) -> Self {
        match spec {
            Value::Object(left) => Self { left, problems: Vec::new() },
            Value::Null => Self { left: Map::new(), problems: Vec::new() },
            _ => Self { left: Map::new(), problems: vec!["spec is no object".to_owned()] },
        }
    }

    /// A field, if it is there.
    fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, Unread> {
        let Some(value) = self.left.remove(name).filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        serde_json::from_value(value).map(Some).map_err(|error| {
            self.problems.push(format!("spec.{name}: {error}"));
            Unread
        })
    }

    /// What is wrong, with every field that nobody took.
    fn end(mut self) -> Option<String> {
        let unknown = self.left.keys().map(|name| format!("spec.{name}: unknown field"));
        self.problems.extend(unknown);
        (!self.problems.is_empty()).then(|| self.problems.join("; "))
    }
}

/// An AuthorizationPolicy's specification, and what of it could not be read.
pub(super) fn authorization_policy(spec: Value) -> (AuthorizationPolicySpec, Option<String>) {
    let mut fields = Fields::of(spec);
    let rules = fields.left.remove("rules").filter(|rules| !rules.is_null());
    let selector = fields.take("selector");
    let rest = without_rules(&mut fields);
    let is_known = fields.left.is_empty() && fields.problems.is_empty();
    let spec = match (rest, selector) {
        (Ok(rest), Ok(selector)) if is_known => {
            let rules = rules.map(|rules| read_rules(rules, &mut fields.problems));
            AuthorizationPolicySpec { selector, rules, ..rest }
        }
        // Whom it is about, or what it does, is not known.
        (_, selector) => AuthorizationPolicySpec {
            selector: selector.unwrap_or(None),
            rules: Some(vec![Rule::default()]),
            action: Action::Deny,
            ..AuthorizationPolicySpec::default()
        },
    };
    (spec, fields.end())
}

fn without_rules(fields: &mut Fields) -> Result<AuthorizationPolicySpec, Unread> {
    Ok(AuthorizationPolicySpec {
        target_ref: fields.take("targetRef")?,
        target_refs: fields.take("targetRefs")?,
        action: fields.take("action")?.unwrap_or_default(),
        provider: fields.take("provider")?,
        ..AuthorizationPolicySpec::default()
    })
}

fn read_rules(rules: Value, problems: &mut Vec<String>) -> Vec<Rule> {
    let Value::Array(rules) = rules else {
        problems.push("spec.rules is no list".to_owned());
        return vec![unreadable()];
    };
    let mut read = Vec::new();
    for (index, value) in rules.into_iter().enumerate() {
        let rule = match serde_json::from_value::<Rule>(value.clone()) {
            Ok(rule) => unknown_field(&value, &as_value(&rule)).map_or(Ok(rule), Err),
            Err(error) => Err(error.to_string()),
        };
        read.push(rule.unwrap_or_else(|problem| {
            problems.push(format!("spec.rules[{index}]: {problem}"));
            unreadable()
        }));
    }
    read
}

/// A rule whose sources are none: in an ALLOW it never matches, in a DENY it always does.
fn unreadable() -> Rule {
    Rule { from: Some(Vec::new()), ..Rule::default() }
}

fn as_value(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("what was read as JSON is JSON")
}

/// The first field of `written` that reading has lost: a condition that nobody would ask.
fn unknown_field(written: &Value, read: &Value) -> Option<String> {
    match (written, read) {
        (Value::Object(written), Value::Object(read)) => written
            .iter()
            .filter(|(_, value)| !value.is_null())
            .find_map(|(name, value)| match read.get(name) {
                Some(read) => unknown_field(value, read),
                None => Some(format!("unknown field {name}")),
            }),
        (Value::Array(written), Value::Array(read)) => {
            written.iter().zip(read).find_map(|(written, read)| unknown_field(written, read))
        }
        _ => None,
    }
}

/// A PeerAuthentication's specification, and what of it could not be read.
pub(super) fn peer_authentication(spec: Value) -> (PeerAuthenticationSpec, Option<String>) {
    let mut fields = Fields::of(spec);
    let selector = fields.take("selector");
    let mtls = fields.take("mtls");
    let ports = fields.take::<BTreeMap<String, Value>>("portLevelMtls");
    let is_known = fields.left.is_empty() && fields.problems.is_empty();
    let spec = match (selector, mtls, ports) {
        (Ok(selector), Ok(mtls), Ok(ports)) if is_known => {
            let mut port_level_mtls = BTreeMap::new();
            for (port, value) in ports.unwrap_or_default() {
                let mode = serde_json::from_value(value).unwrap_or_else(|error| {
                    fields.problems.push(format!("spec.portLevelMtls.{port}: {error}"));
                    STRICT
                });
                port_level_mtls.insert(port, mode);
            }
            PeerAuthenticationSpec { selector, mtls, port_level_mtls }
        }
        (selector, ..) => PeerAuthenticationSpec {
            selector: selector.unwrap_or(None),
            mtls: Some(STRICT),
            port_level_mtls: BTreeMap::new(),
        },
    };
    (spec, fields.end())
}

/// A RequestAuthentication's specification, and what of it could not be read: every request that it
/// may be about is refused then.
pub(super) fn request_authentication(spec: Value) -> (RequestAuthenticationSpec, Option<String>) {
    let mut fields = Fields::of(spec);
    let selector = fields.take("selector");
    let targets = (fields.take("targetRef"), fields.take("targetRefs"));
    let rules = fields.take::<Vec<Value>>("jwtRules").ok().flatten().unwrap_or_default();
    let mut jwt_rules = Vec::new();
    for (index, value) in rules.into_iter().enumerate() {
        let rule = match serde_json::from_value::<JwtRule>(value.clone()) {
            Ok(rule) => {
                unknown_field(&without_empty(value), &as_value(&rule)).map_or(Ok(rule), Err)
            }
            Err(error) => Err(error.to_string()),
        };
        match rule {
            Ok(rule) => jwt_rules.push(rule),
            Err(problem) => fields.problems.push(format!("spec.jwtRules[{index}]: {problem}")),
        }
    }
    let spec = match (selector, targets) {
        (Ok(selector), (Ok(target_ref), Ok(target_refs))) => {
            RequestAuthenticationSpec { selector, target_ref, target_refs, jwt_rules }
        }
        // Whom it is about is not known.
        _ => RequestAuthenticationSpec::default(),
    };
    (spec, fields.end())
}

/// What is written without a value means the same as what is not written.
fn without_empty(value: Value) -> Value {
    let is_empty = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !is_empty(value));
            fields.map(|(name, value)| (name, without_empty(value))).collect::<Map<_, _>>().into()
        }
        Value::Array(list) => list.into_iter().map(without_empty).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_a_request_authentication_nothing_unknown_is_ignored() {
        let rule = json!({"issuer": "https://a", "audiences": [], "forwardOriginalToken": false,
            "fromHeaders": [{"name": "x", "prefix": ""}]});
        let (spec, problem) = request_authentication(json!({"jwtRules": [rule]}));
        assert_eq!((spec.jwt_rules.len(), problem), (1, None));
        let selector = json!({"matchLabels": {"app": "web"}});
        for (spec, expected) in [
            (json!({"jwtRules": [{"issuer": "a", "mustHave": ["b"]}], "selector": selector}), 1),
            (json!({"jwtRules": "all", "selector": selector}), 1),
            (json!({"selector": 1}), 0),
            (json!({"newField": 1, "selector": selector}), 1),
        ] {
            let (read, problem) = request_authentication(spec.clone());
            assert!(problem.is_some(), "{spec}");
            assert_eq!(read.selector.iter().count(), expected, "{spec}");
        }
    }

    #[test]
    fn what_is_read_whole_is_as_written() {
        let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "action": "DENY", "rules": [
            {"from": [{"source": {"principals": ["a"], "notIpBlocks": ["10.0.0.0/8"]}}],
             "to": [{"operation": {"methods": ["GET"], "ports": ["80"]}}],
             "when": [{"key": "source.ip", "values": ["10.0.0.1"]}]}, {}]});
        let (read, problem) = authorization_policy(spec.clone());
        assert_eq!((serde_json::from_value(spec).ok(), problem), (Some(read), None));
        assert_eq!(authorization_policy(json!({})), (AuthorizationPolicySpec::default(), None));
        let spec = json!({"mtls": {"mode": "PERMISSIVE"}, "portLevelMtls": {"80": {"mode":
            "DISABLE"}}});
        let (read, problem) = peer_authentication(spec.clone());
        assert_eq!((serde_json::from_value(spec).ok(), problem), (Some(read), None));
    }

    #[test]
    fn a_policy_that_cannot_be_read_denies() {
        let check = |spec: Value, expected: Value, part: &str| {
            let (read, problem) = authorization_policy(spec.clone());
            assert_eq!(as_value(&read), expected, "{spec}");
            let problem = problem.expect("something cannot be read");
            assert!(problem.contains(part), "{problem}");
        };
        let selector = json!({"matchLabels": {"app": "web"}});
        let deny_all = json!({"action": "DENY", "rules": [{}]});
        let deny_selected = json!({"selector": selector, "action": "DENY", "rules": [{}]});
        check(json!({"selector": selector, "action": "NEWER"}), deny_selected.clone(), "NEWER");
        check(json!({"selector": selector, "newer": 1}), deny_selected, "spec.newer: unknown");
        check(json!({"selector": ["web"], "rules": [{}]}), deny_all.clone(), "spec.selector");
        check(json!({"targetRefs": "web"}), deny_all.clone(), "spec.targetRefs");
        check(json!("all"), deny_all, "no object");
        // Of an ALLOW the other rules hold; one of a DENY matches whatever comes.
        for action in ["ALLOW", "DENY"] {
            let spec = |rule: Value| {
                json!({"action": action, "selector": selector, "rules":
                    [rule, {"to": [{"operation": {"ports": ["80"]}}]}]})
            };
            let held = spec(json!({"from": []}));
            check(spec(json!({"from": "a"})), held.clone(), "spec.rules[0]");
            let newer = json!({"from": [{"source": {"namespaces": ["a"], "newer": ["b"]}}]});
            check(spec(newer), held.clone(), "unknown field newer");
            let mut no_list = held;
            no_list["rules"] = json!({"a": "b"});
            let held = json!({"action": action, "selector": selector, "rules": [{"from": []}]});
            check(no_list, held, "no list");
        }
    }

    #[test]
    fn a_peer_authentication_that_cannot_be_read_is_strict() {
        let check = |spec: Value, expected: Value, part: &str| {
            let (read, problem) = peer_authentication(spec.clone());
            assert_eq!(as_value(&read), expected, "{spec}");
            let problem = problem.expect("something cannot be read");
            assert!(problem.contains(part), "{problem}");
        };
        let selector = json!({"matchLabels": {"app": "web"}});
        let strict = json!({"mode": "STRICT"});
        check(
            json!({"selector": selector, "mtls": {"mode": "NEWER"}}),
            json!({"selector": selector, "mtls": strict}),
            "spec.mtls",
        );
        check(json!({"selector": 1}), json!({"mtls": strict}), "spec.selector");
        check(json!({"newer": 1}), json!({"mtls": strict}), "unknown field");
        check(
            json!({"mtls": {"mode": "PERMISSIVE"}, "portLevelMtls": {"80": {"mode": "NEWER"}}}),
            json!({"mtls": {"mode": "PERMISSIVE"}, "portLevelMtls": {"80": strict}}),
            "spec.portLevelMtls.80",
        );
    }
}
