//! BackendTLSPolicy of the Gateway API: how TLS is spoken with the endpoints of a Service.
//!
//! It is attached to Services of its own namespace, to all ports of one or to a single one. A
//! policy that is wrong counts as well: it must lead neither to plain text nor to a server that is
//! verified less. Nothing here knows which Services and ConfigMaps exist.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ambit_model::Text;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::gateway::CaCertificateRef;
use crate::istio::IstioObject;
use crate::remarks::{Remark, Remarks};
use crate::traffic_policy::TargetRef;
use crate::validate::{edge, names};
use crate::{FieldPath, ObjectIssues, ObjectName, remarks, routes};

/// gateway.networking.k8s.io BackendTLSPolicy.
pub type BackendTlsPolicy = IstioObject<BackendTlsPolicySpec>;

/// Most targets.
const TARGETS_MAX: usize = 16;
/// Most references to roots.
const ROOTS_MAX: usize = 8;
/// Most names of which an endpoint must prove one.
const NAMES_MAX: usize = 5;
/// The word for the roots of the public web.
const SYSTEM: &str = "System";

/// How TLS is spoken with the endpoints of some Services.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsPolicySpec {
    /// The Services, each with the name of a port or without.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) target_refs: Vec<TargetRef>,
    /// What an endpoint must prove.
    pub(crate) validation: Validation,
    /// Settings of other implementations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) options: BTreeMap<String, String>,
}

/// What an endpoint must prove.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Validation {
    /// Where roots are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) ca_certificate_refs: Vec<RootsRef>,
    /// A set of roots that is known by its name: `System`.
    #[serde(rename = "wellKnownCACertificates", skip_serializing_if = "Option::is_none")]
    pub(crate) well_known_ca_certificates: Option<String>,
    /// The name that is sent, and that is to be proven unless others are.
    pub(crate) hostname: String,
    /// Names of which one is to be proven.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) subject_alt_names: Vec<SubjectAltName>,
}

/// Names an object of the policy's namespace that holds roots.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RootsRef {
    /// Its API group; empty for core.
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// A name in a certificate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SubjectAltName {
    /// `Hostname` or `URI`.
    #[serde(rename = "type")]
    pub(crate) name_type: String,
    /// The host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hostname: Option<String>,
    /// The URI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uri: Option<String>,
}

/// A Service that a policy is attached to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its index in `targetRefs`.
    pub(crate) index: usize,
    /// The Service.
    pub service: ObjectName,
    /// The name of the port that is meant; `None` for all.
    pub port: Option<Text>,
}

/// Who vouches for endpoints.
#[derive(Debug, Clone, PartialEq)]
pub enum Roots {
    /// The roots of the public web.
    Public,
    /// Those in these objects of the policy's namespace.
    In(Vec<CaCertificateRef>),
}

/// What a policy means.
#[derive(Debug, Clone, PartialEq)]
pub struct Meaning {
    /// What it is attached to, as far as that can be read.
    pub targets: Vec<Target>,
    /// Who vouches for endpoints.
    pub roots: Roots,
    /// The name that is sent to them.
    pub hostname: Text,
    /// Hosts of which they must prove one instead.
    pub hosts: Vec<Text>,
    /// URIs of which they must prove one instead.
    pub uris: Vec<Text>,
    /// What of it is wrong.
    pub remarks: Vec<Remark>,
}

impl From<&RootsRef> for CaCertificateRef {
    fn from(it: &RootsRef) -> Self {
        let (group, kind) = (it.group.clone(), it.kind.clone());
        Self { group, kind, name: it.name.clone(), namespace: None }
    }
}

impl Meaning {
    /// What is wrong with it, as one sentence.
    pub fn wrong(&self) -> Option<String> {
        let wrong = self.remarks.iter().filter(|it| it.is_wrong);
        let wrong: Vec<String> =
            wrong.map(|it| format!("{}: {}", it.at.as_str(), it.what)).collect();
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }
}

/// Reads the specification of a BackendTLSPolicy of a cluster, whose definition may be newer than
/// this program; also returns what of it cannot be read. Its targets are known then too, if they
/// can be read, so that it is known to whom nothing may be sent without it.
pub fn read_spec(spec: Value) -> (BackendTlsPolicySpec, Option<String>) {
    let targets = spec.get("targetRefs").cloned().map(serde_json::from_value);
    let targets = || targets.and_then(Result::ok).unwrap_or_default();
    routes::read(spec).unwrap_or_else(|problem| {
        let spec = BackendTlsPolicySpec { target_refs: targets(), ..Default::default() };
        (spec, Some(problem))
    })
}

/// What a policy means.
pub fn read(policy: &BackendTlsPolicy) -> Meaning {
    let at = FieldPath::at("spec");
    let mut remarks = Remarks::default();
    if let Some(why) = &policy.unreadable {
        remarks.wrong(&at, format!("it cannot be read: {why}"), "use what this version knows");
    }
    let namespace = policy.metadata.namespace.as_deref().unwrap_or("default");
    let spec = &policy.spec;
    let targets = targets(&spec.target_refs, namespace, &at.field("targetRefs"), &mut remarks);
    let (validation, at_validation) = (&spec.validation, at.field("validation"));
    let roots = roots(validation, &at_validation, &mut remarks);
    let at_hostname = at_validation.field("hostname");
    host(&validation.hostname, &at_hostname, &mut remarks);
    let at_names = at_validation.field("subjectAltNames");
    let (hosts, uris) = alternatives(&validation.subject_alt_names, &at_names, &mut remarks);
    let has_options = !spec.options.is_empty();
    remarks.unhonoured(has_options, &at.field("options"), "they have no effect", "remove them");
    let hostname = validation.hostname.as_str().into();
    Meaning { targets, roots, hostname, hosts, uris, remarks: remarks.0 }
}

/// Checks a policy by itself, whatever it is attached to.
pub(crate) fn check(policy: &BackendTlsPolicy, issues: &mut ObjectIssues) {
    let meaning = read(policy);
    remarks::report(&meaning.remarks, issues);
    let at = FieldPath::at("spec").field("validation").field("caCertificateRefs");
    let Roots::In(named) = &meaning.roots else { return };
    for (index, it) in named.iter().enumerate() {
        let at = at.index(index);
        edge::authority(it, &at, issues);
        names::require(issues, &at.field("name"), names::dns_subdomain, &it.name);
    }
}

fn targets(
    written: &[TargetRef],
    namespace: &str,
    at: &FieldPath,
    remarks: &mut Remarks,
) -> Vec<Target> {
    if written.is_empty() || written.len() > TARGETS_MAX {
        let what = format!("1 to {TARGETS_MAX} targets are allowed, here are {}", written.len());
        remarks.wrong(at, what, "name the Services, or make several policies");
    }
    let mut targets: Vec<Target> = Vec::new();
    for (index, target) in written.iter().enumerate().take(TARGETS_MAX) {
        let at = at.index(index);
        if !matches!((&*target.group, &*target.kind), ("" | "core", "Service")) {
            let what =
                format!("it cannot be attached to `{}` of group `{}`", target.kind, target.group);
            remarks.wrong(&at, what, "name a Service of the core group, which is empty");
            continue;
        }
        if let Some(what) = names::dns_subdomain(&target.name) {
            remarks.wrong(&at.field("name"), what, "write the name of the Service");
            continue;
        }
        let port = target.section_name.as_deref().filter(|it| !it.is_empty()).map(Text::from);
        let service = ObjectName::new(namespace, &target.name);
        let is_same = |it: &Target| {
            it.service == service && (it.port == port || it.port.is_none() || port.is_none())
        };
        if targets.iter().any(is_same) {
            let what = "the same Service is there twice, and not for two different ports";
            remarks.wrong(&at, what, "remove one of the two, or give each a sectionName");
            continue;
        }
        targets.push(Target { index, service, port });
    }
    targets
}

fn roots(written: &Validation, at: &FieldPath, remarks: &mut Remarks) -> Roots {
    let named = &written.ca_certificate_refs;
    let known = written.well_known_ca_certificates.as_deref().filter(|it| !it.is_empty());
    let at_known = at.field("wellKnownCACertificates");
    if named.len() > ROOTS_MAX {
        let what = format!("{ROOTS_MAX} references are allowed, here are {}", named.len());
        remarks.wrong(&at.field("caCertificateRefs"), what, "put roots into one ConfigMap");
    }
    match known {
        Some(_) if !named.is_empty() => {
            let what = "it excludes `caCertificateRefs`";
            remarks.wrong(&at_known, what, "remove one of the two");
        }
        Some(SYSTEM) => return Roots::Public,
        Some(other) => {
            let what = format!("no roots are known by the name `{other}`");
            remarks.wrong(&at_known, what, "use System, or name a ConfigMap with roots");
        }
        None if named.is_empty() => {
            let what = "it names no roots, so no endpoint can prove anything";
            let remedy = "add `caCertificateRefs`, or `wellKnownCACertificates: System`";
            remarks.wrong(at, what, remedy);
        }
        None => {}
    }
    Roots::In(named.iter().map(CaCertificateRef::from).collect())
}

/// A host without a wildcard.
fn host(written: &str, at: &FieldPath, remarks: &mut Remarks) {
    let remedy = "write it as in example.com";
    if written.parse::<IpAddr>().is_ok() {
        remarks.wrong(at, format!("`{written}` is an address, no host"), remedy);
    } else if let Some(what) = names::dns_subdomain(written) {
        remarks.wrong(at, what, remedy);
    }
}

fn alternatives(
    written: &[SubjectAltName],
    at: &FieldPath,
    remarks: &mut Remarks,
) -> (Vec<Text>, Vec<Text>) {
    if written.len() > NAMES_MAX {
        let what = format!("{NAMES_MAX} names are allowed, here are {}", written.len());
        remarks.wrong(at, what, "remove some");
    }
    let (mut hosts, mut uris) = (Vec::new(), Vec::new());
    for (index, it) in written.iter().enumerate() {
        let at = at.index(index);
        let of = |value: &Option<String>| value.clone().filter(|it| !it.is_empty());
        match (it.name_type.as_str(), of(&it.hostname), of(&it.uri)) {
            ("Hostname", Some(name), None) => {
                host(&name, &at.field("hostname"), remarks);
                hosts.push(name.into());
            }
            ("URI", None, Some(uri)) => {
                if !is_absolute(&uri) {
                    let what = format!("`{uri}` is no absolute URI");
                    remarks.wrong(&at.field("uri"), what, "write it with its scheme");
                }
                uris.push(uri.into());
            }
            ("Hostname", ..) => {
                remarks.wrong(&at, "a name of type Hostname has a `hostname` alone", "write it so");
            }
            ("URI", ..) => {
                remarks.wrong(&at, "a name of type URI has a `uri` alone", "write it so");
            }
            (other, ..) => {
                let what = format!("`{other}` is no type of names");
                remarks.wrong(&at.field("type"), what, "use Hostname or URI");
            }
        }
    }
    (hosts, uris)
}

/// Whether a URI has a scheme, and something after it (RFC 3986, section 3).
fn is_absolute(uri: &str) -> bool {
    let Some((scheme, rest)) = uri.split_once(':') else { return false };
    let is_of_scheme = |it: u8| it.is_ascii_alphanumeric() || b"+-.".contains(&it);
    scheme.starts_with(|it: char| it.is_ascii_alphabetic())
        && scheme.bytes().all(is_of_scheme)
        && !rest.is_empty()
        && rest.bytes().all(|it| it.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn meaning(spec: &Value) -> Meaning {
        let object = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
            "metadata": {"namespace": "shop", "name": "tls"}, "spec": spec,
        });
        read(&serde_json::from_value(object).expect("a policy"))
    }

    /// A policy that is right, with some fields of its specification and its validation replaced.
    fn with(spec: &Value, validation: &Value) -> Meaning {
        let roots = json!([{"group": "", "kind": "ConfigMap", "name": "ca"}]);
        let mut all = json!({
            "targetRefs": [{"group": "", "kind": "Service", "name": "web"}],
            "validation": {"caCertificateRefs": roots, "hostname": "web.example.com"},
        });
        for (key, value) in spec.as_object().expect("fields") {
            all[key] = value.clone();
        }
        for (key, value) in validation.as_object().expect("fields") {
            all["validation"][key] = value.clone();
        }
        meaning(&all)
    }

    #[test]
    fn what_is_wrong_is_told() {
        let service = |name: &str, port: Value| {
            let kind = "Service";
            json!({"group": "", "kind": kind, "name": name, "sectionName": port})
        };
        let targets = |all: Value| json!({"targetRefs": all});
        let none = json!({});
        let name = |it: Value| json!({"subjectAltNames": [it]});
        for (spec, validation, expected) in [
            (none.clone(), none.clone(), ""),
            (
                targets(json!([service("web", "a".into()), service("web", "b".into())])),
                none.clone(),
                "",
            ),
            (targets(json!([])), none.clone(), "spec.targetRefs"),
            (
                targets(json!([service("web", "a".into()), service("web", Value::Null)])),
                none.clone(),
                "spec.targetRefs[1]",
            ),
            (
                targets(json!([service("web", "a".into()), service("web", "a".into())])),
                none.clone(),
                "spec.targetRefs[1]",
            ),
            (
                targets(json!([{"group": "", "kind": "Pod", "name": "web"}])),
                none.clone(),
                "spec.targetRefs[0]",
            ),
            (none.clone(), json!({"hostname": ""}), "spec.validation.hostname"),
            (none.clone(), json!({"hostname": "*.example.com"}), "spec.validation.hostname"),
            (none.clone(), json!({"hostname": "10.0.0.1"}), "spec.validation.hostname"),
            (none.clone(), json!({"caCertificateRefs": []}), "spec.validation"),
            (
                none.clone(),
                json!({"wellKnownCACertificates": "System"}),
                "spec.validation.wellKnownCACertificates",
            ),
            (
                none.clone(),
                json!({"caCertificateRefs": [], "wellKnownCACertificates": "example.com/a"}),
                "spec.validation.wellKnownCACertificates",
            ),
            (none.clone(), name(json!({"type": "Hostname", "hostname": "a.example"})), ""),
            (none.clone(), name(json!({"type": "URI", "uri": "spiffe://a/b"})), ""),
            (
                none.clone(),
                name(json!({"type": "Hostname", "hostname": "*.example"})),
                "spec.validation.subjectAltNames[0].hostname",
            ),
            (
                none.clone(),
                name(json!({"type": "URI", "uri": "a.example"})),
                "spec.validation.subjectAltNames[0].uri",
            ),
            (
                none.clone(),
                name(json!({"type": "URI", "hostname": "a.example"})),
                "spec.validation.subjectAltNames[0]",
            ),
            (
                none.clone(),
                name(json!({"type": "Email", "uri": "mailto:a"})),
                "spec.validation.subjectAltNames[0].type",
            ),
        ] {
            let wrong = with(&spec, &validation).wrong().unwrap_or_default();
            let at = wrong.split(": ").next().unwrap_or_default();
            assert_eq!(at, expected, "{spec} {validation}: {wrong}");
        }
    }

    #[test]
    fn a_policy_says_whom_to_trust_and_what_is_proven() {
        let found = with(
            &json!({"options": {"example.com/a": "b"}}),
            &json!({"subjectAltNames": [
                {"type": "Hostname", "hostname": "a.example"},
                {"type": "URI", "uri": "spiffe://a/b"},
            ]}),
        );
        let target = Target { index: 0, service: ObjectName::new("shop", "web"), port: None };
        assert_eq!(found.targets, [target]);
        assert_eq!(&*found.hostname, "web.example.com");
        assert_eq!((&*found.hosts[0], &*found.uris[0]), ("a.example", "spiffe://a/b"));
        let Roots::In(named) = &found.roots else { panic!("{:?}", found.roots) };
        assert!(named[0].is_config_map() && named[0].name == "ca");
        // Options have no effect, and nothing is wrong with them.
        assert_eq!((found.wrong(), found.remarks.len()), (None, 1));
        let public = json!({"caCertificateRefs": [], "wellKnownCACertificates": "System"});
        assert_eq!(with(&json!({}), &public).roots, Roots::Public);
    }

    #[test]
    fn what_a_newer_definition_says_is_not_passed_over() {
        let targets = json!([{"group": "", "kind": "Service", "name": "web"}]);
        let check = |spec: Value, is_known: bool| {
            let (read, problem) = read_spec(spec);
            assert_eq!((read.target_refs.len(), problem.is_none()), (1, is_known), "{problem:?}");
        };
        check(json!({"targetRefs": targets, "validation": {"hostname": "a"}}), true);
        check(json!({"targetRefs": targets, "validation": {"newer": "a"}}), false);
        check(json!({"targetRefs": targets, "validation": "a"}), false);
    }
}
