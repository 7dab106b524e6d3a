//! A kind of object, as the API names it.

use ambit_words::kinds::SHORT_NAMES;

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
    /// Why clients cannot write its objects, if so, and what to do instead.
    pub only_read: Option<&'static str>,
}

/// Kinds that `get all` means, by plural.
const ALL: [&str; 7] =
    ["cronjobs", "daemonsets", "deployments", "jobs", "pods", "services", "statefulsets"];
/// Kinds that can be scaled, by plural.
const SCALED: [&str; 2] = ["deployments", "statefulsets"];
/// The sets that the kinds of other groups belong to, by what their group ends with.
const SETS: [(&str, &str); 2] =
    [("istio.io", "istio-io"), ("gateway.networking.k8s.io", "gateway-api")];

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

    /// What users type instead of the plural.
    pub(crate) fn short_names(&self) -> Vec<&'static str> {
        let own = SHORT_NAMES.iter().filter(|(_, plural)| *plural == self.plural);
        own.map(|(short, _)| *short).collect()
    }

    /// Whether its objects have replicas, so that they can be scaled.
    pub(crate) fn has_scale(&self) -> bool {
        self.group() == "apps" && SCALED.contains(&self.plural)
    }

    /// Whether all its objects can be deleted at once: as in Kubernetes, namespaces cannot.
    pub(crate) fn takes_deletion_of_all(&self) -> bool {
        self.plural != "namespaces"
    }

    /// Whether clients make its objects and delete them: nodes are the server's own.
    pub(crate) fn comes_and_goes(&self) -> bool {
        self.plural != "nodes"
    }

    /// Whether its objects are pods.
    pub(crate) fn is_pod(&self) -> bool {
        self.plural == "pods" && self.group().is_empty()
    }

    /// The sets that the kind belongs to.
    pub(crate) fn categories(&self) -> Vec<&'static str> {
        let of_group = SETS.iter().filter(|(end, _)| self.group().ends_with(end));
        let all = ALL.contains(&self.plural).then_some("all");
        all.into_iter().chain(of_group.map(|(_, set)| *set)).collect()
    }
}

/// Group and version of an `apiVersion`.
fn split(api_version: &'static str) -> (&'static str, &'static str) {
    api_version.rsplit_once('/').unwrap_or(("", api_version))
}
