//! TLS of a gateway at the edge, as a Gateway says it.
//!
//! Towards clients each listener names its certificates, and the Gateway says which clients must
//! prove themselves. Towards backends the Gateway names its own certificate. This file only holds
//! what is written: it finds no Secret and reads none.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ObjectName;
use crate::validate::names::dns_subdomain;

/// The API group of ClusterTrustBundles.
pub const TRUST_BUNDLE_GROUP: &str = "certificates.k8s.io";
/// The kind of an object of a cluster that holds roots.
pub const TRUST_BUNDLE: &str = "ClusterTrustBundle";

/// TLS of one listener.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerTls {
    /// `Terminate` or `Passthrough`; `Terminate` when not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Where its certificates and their keys are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub certificate_refs: Vec<SecretRef>,
    /// Settings of other implementations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}

/// Names an object that holds a certificate and its key.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretRef {
    /// Its API group; core's when not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Its kind; `Secret` when not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its name.
    pub name: String,
    /// Its namespace; the Gateway's when not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// TLS of a Gateway as a whole.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayTls {
    /// Towards backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendTls>,
    /// Towards clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frontend: Option<FrontendTls>,
}

/// TLS towards backends.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTls {
    /// The certificate by which the gateway proves itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_certificate_ref: Option<SecretRef>,
}

/// TLS towards clients.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FrontendTls {
    /// What holds for every port that `per_port` does not name.
    #[serde(rename = "default")]
    pub of_all: TlsSettings,
    /// What holds for single ports, in place of the former.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub per_port: Vec<PortTls>,
}

/// TLS towards clients of one port.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PortTls {
    /// The port.
    pub port: i32,
    /// What holds for it.
    pub tls: TlsSettings,
}

/// What TLS asks of clients.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsSettings {
    /// How clients prove themselves; they need not when not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<ClientValidation>,
}

/// How clients prove themselves.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientValidation {
    /// Where the roots of their certificates are.
    pub ca_certificate_refs: Vec<CaCertificateRef>,
    /// `AllowValidOnly` or `AllowInsecureFallback`; `AllowValidOnly` when not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// Names an object that holds root certificates.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CaCertificateRef {
    /// Its API group; empty for core.
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its namespace; the Gateway's when not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl ListenerTls {
    /// Whether only the two ends read what is sent.
    pub fn is_passed_through(&self) -> bool {
        self.mode.as_deref() == Some("Passthrough")
    }
}

impl SecretRef {
    /// Whether what it names is a Secret, which is all that is read.
    pub fn is_secret(&self) -> bool {
        self.group.as_deref().unwrap_or_default().is_empty()
            && self.kind.as_deref().unwrap_or("Secret") == "Secret"
    }
}

impl CaCertificateRef {
    /// Whether what it names is a ConfigMap.
    pub fn is_config_map(&self) -> bool {
        self.group.is_empty() && self.kind == "ConfigMap"
    }

    /// Whether what it names is a ClusterTrustBundle, which is in no namespace.
    pub fn is_trust_bundle(&self) -> bool {
        self.group == TRUST_BUNDLE_GROUP && self.kind == TRUST_BUNDLE
    }

    /// What holds the roots, for an object of this namespace: a ConfigMap, or in no namespace a
    /// ClusterTrustBundle. Nothing else is read, and nothing whose name is none.
    pub fn holder(&self, namespace: &str) -> Option<ObjectName> {
        let is_name = |name: &str| dns_subdomain(name).is_none();
        if self.is_trust_bundle() {
            // One of a signer is called `SIGNER:NAME`.
            let is_one = self.name.split(':').all(is_name);
            return is_one.then(|| ObjectName::new("", &self.name));
        }
        let of = self.namespace.as_deref().unwrap_or(namespace);
        let is_one = self.is_config_map() && is_name(&self.name) && is_name(of);
        is_one.then(|| ObjectName::new(of, &self.name))
    }
}

impl FrontendTls {
    /// How clients of a port prove themselves.
    pub fn validation(&self, port: i32) -> Option<&ClientValidation> {
        let own = self.per_port.iter().find(|it| it.port == port).map(|it| &it.tls);
        own.unwrap_or(&self.of_all).validation.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_port_has_its_own_validation_or_that_of_all() {
        let frontend: FrontendTls = serde_json::from_value(json!({
            "default": {"validation": {"caCertificateRefs": [
                {"group": "", "kind": "ConfigMap", "name": "all"}]}},
            "perPort": [
                {"port": 8443, "tls": {}},
                {"port": 9443, "tls": {"validation": {"caCertificateRefs": [
                    {"group": "", "kind": "ConfigMap", "name": "own"}]}}},
            ],
        }))
        .expect("right");
        let check = |port: i32, expected: Option<&str>| {
            let roots = frontend.validation(port).map(|it| it.ca_certificate_refs[0].name.as_str());
            assert_eq!(roots, expected, "{port}");
        };
        check(443, Some("all"));
        check(8443, None);
        check(9443, Some("own"));
    }

    #[test]
    fn a_certificate_is_in_a_secret() {
        let check = |written: Value, expected: bool| {
            let reference: SecretRef = serde_json::from_value(written.clone()).expect("right");
            assert_eq!(reference.is_secret(), expected, "{written}");
        };
        check(json!({"name": "a"}), true);
        check(json!({"name": "a", "group": "", "kind": "Secret"}), true);
        check(json!({"name": "a", "group": "cert.example.com"}), false);
        check(json!({"name": "a", "kind": "ConfigMap"}), false);
    }
}
