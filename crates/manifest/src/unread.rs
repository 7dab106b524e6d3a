//! Kinds that Ambit does not read: which of them are left out, and which are errors.
//!
//! A typo in `kind` must not drop a policy in silence, and a kind that would enforce something
//! elsewhere is not left out unless the user asks for it. All others are left out and counted.

use std::collections::BTreeMap;

use super::finding::{Finding, Location};
use super::object::Kind;
use super::spelling::distance;

/// What to do with objects that would enforce something in Kubernetes or Istio, and are not read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unenforced {
    /// Nothing is applied.
    #[default]
    Refused,
    /// They are left out, and the user is warned.
    LeftOut,
}

/// What an unread kind is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It is there in its API, and is left out.
    Known,
    /// It would enforce something.
    Enforcing,
    /// Its API has no such kind; this one may have been meant.
    Misspelt { nearest: Option<String> },
}

/// Kinds that Ambit does not read, in groups from which it reads others. The core group has no
/// name.
const KNOWN: [(&str, &[&str]); 10] = [
    (
        "",
        &[
            "Binding",
            "ComponentStatus",
            "Endpoints",
            "Event",
            "LimitRange",
            "PersistentVolume",
            "PodTemplate",
            "ReplicationController",
            "ResourceQuota",
        ],
    ),
    ("apps", &["ControllerRevision", "ReplicaSet"]),
    ("batch", &[]),
    ("discovery.k8s.io", &[]),
    ("gateway.networking.k8s.io", &[]),
    ("autoscaling", &["Scale"]),
    ("policy", &["Eviction", "PodSecurityPolicy"]),
    ("networking.istio.io", &["EnvoyFilter", "Gateway", "ProxyConfig", "Sidecar", "WorkloadGroup"]),
    ("security.istio.io", &[]),
    ("ambit.io", &[]),
];
/// Kinds that enforce something where they are read.
const ENFORCING: [(&str, &str); 1] = [("networking.k8s.io", "NetworkPolicy")];
/// How many letters of a group may be wrong for it to be taken for a slip.
const GROUP_SLIPS_MAX: usize = 2;

/// Says what an object of an unread kind is.
pub(crate) fn unread(api_version: &str, name: &str) -> Unread {
    let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
    if ENFORCING.contains(&(group, name)) {
        return Unread::Enforcing;
    }
    let Some((_, known)) = KNOWN.iter().find(|(known, _)| *known == group) else {
        return of_foreign_group(group, name);
    };
    if known.contains(&name) {
        return Unread::Known;
    }
    let read = Kind::all().filter(|kind| group_of(*kind) == group).map(Kind::name);
    let enforcing = ENFORCING.iter().filter(|(of, _)| *of == group).map(|(_, kind)| *kind);
    let candidates = read.chain(enforcing).chain(known.iter().copied());
    let near = candidates.map(|kind| (distance(kind, name), kind)).min();
    let near = near.filter(|(distance, kind)| *distance <= kind.len() / 2);
    Unread::Misspelt { nearest: near.map(|(_, kind)| kind.to_owned()) }
}

/// A group of others, unless a kind of ours, or one that would enforce something, is meant by it.
fn of_foreign_group(group: &str, name: &str) -> Unread {
    let ours = Kind::all().map(|kind| (group_of(kind), kind.name()));
    let meant = ours.chain(ENFORCING).find(|(own, kind)| match *own == group {
        true => is_slip_of(kind, name),
        false => is_group_meant(own, group) && (*kind == name || is_slip_of(kind, name)),
    });
    match meant {
        Some((own, kind)) => Unread::Misspelt { nearest: Some(format!("{kind} of {own}")) },
        None => Unread::Known,
    }
}

/// Whether a group was written for another one: with a slip, or without its first word.
fn is_group_meant(own: &str, group: &str) -> bool {
    let is_slip = !own.is_empty() && distance(own, group) <= GROUP_SLIPS_MAX;
    is_slip || own.split_once('.').is_some_and(|(_, rest)| rest == group)
}

/// Whether at most one letter in four is wrong.
fn is_slip_of(kind: &str, name: &str) -> bool {
    (1..=kind.len() / 4).contains(&distance(kind, name))
}

fn group_of(kind: Kind) -> &'static str {
    kind.api_versions()[0].rsplit_once('/').map_or("", |(group, _)| group)
}

/// What was left out of one input.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    kinds: BTreeMap<String, usize>,
    first: Option<Location>,
}

impl LeftOut {
    /// Counts an object.
    pub(crate) fn count(&mut self, kind: String, place: impl FnOnce() -> Location) {
        *self.kinds.entry(kind).or_default() += 1;
        self.first.get_or_insert_with(place);
    }

    /// One warning for all of them.
    pub(crate) fn warning(self) -> Option<Finding> {
        let location = self.first?;
        let count: usize = self.kinds.values().sum();
        let (objects, kinds) = match count {
            1 => ("object is", "its kind"),
            _ => ("objects are", "their kinds"),
        };
        let counted = |(kind, count): (&String, &usize)| match count {
            1 => kind.clone(),
            count => format!("{count} {kind}"),
        };
        let names: Vec<String> = self.kinds.iter().map(counted).collect();
        Some(Finding {
            location,
            object: String::new(),
            field: String::new(),
            what: format!(
                "{count} {objects} left out, Ambit does not read {kinds}: {}",
                names.join(", ")
            ),
            remedy: "nothing of that is in force".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_told_from_kinds_of_others() {
        let misspelt = |nearest: &str| Unread::Misspelt { nearest: Some(nearest.to_owned()) };
        for (api_version, kind, expected) in [
            ("security.istio.io/v1", "AuthorisationPolicy", misspelt("AuthorizationPolicy")),
            ("security.istio.io/v1", "authorizationpolicy", misspelt("AuthorizationPolicy")),
            ("security.istio.io/v1", "PeerAuthentification", misspelt("PeerAuthentication")),
            ("security.istio.io/v1", "X", Unread::Misspelt { nearest: None }),
            ("v1", "Sevice", misspelt("Service")),
            ("v1", "PersistentVolume", Unread::Known),
            ("apps/v1", "Deploymnet", misspelt("Deployment")),
            ("apps/v1", "ReplicaSet", Unread::Known),
            ("networking.istio.io/v1", "EnvoyFilter", Unread::Known),
            ("networking.k8s.io/v1", "NetworkPolicy", Unread::Enforcing),
            ("networking.k8s.io/v1", "Ingress", Unread::Known),
            (
                "networking.k8s.io/v1",
                "NetworkPolcy",
                misspelt("NetworkPolicy of networking.k8s.io"),
            ),
            (
                "security.istoi.io/v1",
                "AuthorizationPolicy",
                misspelt("AuthorizationPolicy of security.istio.io"),
            ),
            (
                "security.istoi.io/v1",
                "AuthorisationPolicy",
                misspelt("AuthorizationPolicy of security.istio.io"),
            ),
            (
                "istio.io/v1",
                "RequestAuthentication",
                misspelt("RequestAuthentication of security.istio.io"),
            ),
            ("policy.linkerd.io/v1alpha1", "AuthorizationPolicy", Unread::Known),
            ("serving.knative.dev/v1", "Service", Unread::Known),
        ] {
            assert_eq!(unread(api_version, kind), expected, "{api_version} {kind}");
        }
    }
}
