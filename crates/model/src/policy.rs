//! Layer-4 authorization policies (istio.security.Authorization).
//!
//! The structure is the wire's: a policy is an OR of rules, a rule an AND of clauses, a clause an
//! OR of matches, a match an AND of its non-empty fields, a field an OR of its values.

use ipnet::IpNet;

use thin_vec::ThinVec;

use crate::Text;
use crate::names::PolicyName;

/// A list that is nearly always empty, and then takes a word: a mesh may have 100,000 matches.
pub type List<T> = ThinVec<T>;

/// One policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Namespace and name.
    pub key: PolicyName,
    /// Which workloads it holds for.
    pub scope: PolicyScope,
    /// What a match means.
    pub action: Action,
    /// Alternatives. A policy without rules never matches.
    pub rules: Vec<Rule>,
    /// Evaluated, logged and counted, never enforced.
    pub dry_run: bool,
    /// Waypoints judge it for all that they front: what comes from one is not judged by it again.
    /// It means nothing for a policy that workloads name.
    pub is_of_waypoints: bool,
}

/// Which workloads a policy holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyScope {
    /// All of the mesh.
    Global,
    /// All of its namespace.
    Namespace,
    /// Those that name it.
    WorkloadSelector,
}

/// What a match means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A match allows; a workload with any ALLOW policy refuses what none of them matches.
    Allow,
    /// A match denies, whatever is allowed.
    Deny,
}

/// All clauses must hold. A rule without clauses matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// What must hold.
    pub clauses: Vec<Clause>,
}

/// One match must hold. A clause without matches holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clause {
    /// Alternatives.
    pub matches: Vec<Match>,
}

/// All non-empty fields must hold. A match with no field holds for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are those of istio.security.Match")]
pub struct Match {
    pub namespaces: List<TextMatch>,
    pub not_namespaces: List<TextMatch>,
    pub principals: List<TextMatch>,
    pub not_principals: List<TextMatch>,
    pub service_accounts: List<ServiceAccountMatch>,
    pub not_service_accounts: List<ServiceAccountMatch>,
    pub source_ips: List<IpNet>,
    pub not_source_ips: List<IpNet>,
    pub destination_ips: List<IpNet>,
    pub not_destination_ips: List<IpNet>,
    pub destination_ports: List<u16>,
    pub not_destination_ports: List<u16>,
}

/// How a text is compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TextMatch {
    /// It is this.
    Exact(Text),
    /// It starts with this.
    Prefix(Text),
    /// It ends with this.
    Suffix(Text),
    /// There is one.
    Presence,
}

/// A service account of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "fields are those of istio.security.ServiceAccountMatch")]
pub struct ServiceAccountMatch {
    pub namespace: Text,
    pub service_account: Text,
}

impl TextMatch {
    /// Whether `value` satisfies this. An empty text is absent.
    pub fn matches(&self, value: &str) -> bool {
        match self {
            Self::Exact(text) => value == &**text,
            Self::Prefix(text) => value.starts_with(&**text),
            Self::Suffix(text) => value.ends_with(&**text),
            Self::Presence => !value.is_empty(),
        }
    }
}
