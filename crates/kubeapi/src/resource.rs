//! A kind of object, as the API names it.

/// A kind of object that a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The kind's name, as in `kind: Service`.
    pub kind: &'static str,
    /// The kind's name in paths, as in `services`.
    pub plural: &'static str,
    /// Whether its objects lie in namespaces.
    pub namespaced: bool,
    /// The `apiVersion` values that are served, the preferred first. All are of one group.
    pub api_versions: &'static [&'static str],
}

/// What users type instead of a plural, and the sets that a kind belongs to, as Kubernetes, Istio
/// and the Gateway API define them.
const WORDS: [(&str, &[&str], &[&str]); 25] = [
    ("configmaps", &["cm"], &[]),
    ("endpoints", &["ep"], &[]),
    ("events", &["ev"], &[]),
    ("namespaces", &["ns"], &[]),
    ("nodes", &["no"], &[]),
    ("pods", &["po"], &["all"]),
    ("serviceaccounts", &["sa"], &[]),
    ("services", &["svc"], &["all"]),
    ("deployments", &["deploy"], &["all"]),
    ("statefulsets", &["sts"], &["all"]),
    ("daemonsets", &["ds"], &["all"]),
    ("jobs", &[], &["all"]),
    ("authorizationpolicies", &["ap"], ISTIO),
    ("peerauthentications", &["pa"], ISTIO),
    ("requestauthentications", &["ra"], ISTIO),
    ("destinationrules", &["dr"], ISTIO),
    ("virtualservices", &["vs"], ISTIO),
    ("serviceentries", &["se"], ISTIO),
    ("workloadentries", &["we"], ISTIO),
    ("telemetries", &["telemetry"], ISTIO),
    ("gateways", &["gtw"], GATEWAY_API),
    ("gatewayclasses", &["gc"], GATEWAY_API),
    ("referencegrants", &["refgrant"], GATEWAY_API),
    ("listenersets", &["lset"], GATEWAY_API),
    ("backendtlspolicies", &["btlspolicy"], GATEWAY_API),
];
const ISTIO: &[&str] = &["istio-io"];
const GATEWAY_API: &[&str] = &["gateway-api"];

impl Resource {
    /// Its group; empty for the oldest one.
    pub fn group(&self) -> &'static str {
        self.api_versions.first().map_or("", |it| split(it).0)
    }

    /// Its versions, without the group.
    pub(crate) fn versions(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.api_versions.iter().map(|it| split(it).1)
    }

    /// As errors name it: `pods`, `deployments.apps`.
    pub(crate) fn qualified(&self) -> String {
        match self.group() {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }

    pub(crate) fn short_names(&self) -> &'static [&'static str] {
        self.words().0
    }

    pub(crate) fn categories(&self) -> &'static [&'static str] {
        self.words().1
    }

    fn words(&self) -> (&'static [&'static str], &'static [&'static str]) {
        let found = WORDS.iter().find(|(plural, ..)| *plural == self.plural);
        found.map_or((&[], &[]), |(_, short, categories)| (short, categories))
    }
}

/// Group and version of an `apiVersion`.
fn split(api_version: &'static str) -> (&'static str, &'static str) {
    api_version.rsplit_once('/').unwrap_or(("", api_version))
}
