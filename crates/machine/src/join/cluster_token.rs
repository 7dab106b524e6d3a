//! What a user carries from a Kubernetes cluster to a computer outside: whose workload it is, where
//! control is, what proves control, and what proves the computer.
//!
//! One line of base64url, like the token of a machine. The secret in it is a token of Kubernetes
//! for the WorkloadEntry's service account: the API server signs it, says when it ends, and takes
//! it back when the account is deleted. It is shown by the command that makes it and by nothing
//! else.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use zeroize::{ZeroizeOnDrop, Zeroizing};

use super::token::JoinTokenError;

/// The version of the form.
const VERSION: u32 = 1;
/// Longest text that is read as a token.
const SIZE_MAX_BYTES: usize = 64 << 10;

/// A token by which a computer becomes a workload of a cluster's mesh.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ZeroizeOnDrop)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterToken {
    version: u32,
    /// Which WorkloadEntry, and what the mesh is called.
    #[zeroize(skip)]
    pub cluster: Workload,
    /// The token of Kubernetes.
    secret: String,
}

/// What the computer needs to know of its WorkloadEntry and of the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Workload {
    /// Control's host and port, as this computer reaches it.
    pub control: String,
    /// The mesh's root certificate, in PEM.
    pub root: String,
    /// The name in control's certificate.
    pub control_name: String,
    /// The WorkloadEntry's namespace.
    pub namespace: String,
    /// The WorkloadEntry's name.
    pub entry: String,
    /// Its service account.
    pub service_account: String,
    /// Its address, which this computer has.
    pub address: IpAddr,
    /// Its network; empty for the mesh's default one.
    pub network: String,
    /// The mesh's trust domain.
    pub trust_domain: String,
    /// The domain of the cluster's DNS.
    pub cluster_domain: String,
    /// The cluster's name in the mesh.
    pub cluster_id: String,
}

/// What a machine remembers of the workload that it carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CarriedWorkload {
    /// Control's host and port.
    pub control: String,
    /// The WorkloadEntry's namespace.
    pub namespace: String,
    /// The WorkloadEntry's name.
    pub entry: String,
    /// Its service account.
    pub service_account: String,
    /// Its address.
    pub address: IpAddr,
    /// The domain of the cluster's DNS.
    pub cluster_domain: String,
}

impl From<&Workload> for CarriedWorkload {
    fn from(workload: &Workload) -> Self {
        Self {
            control: workload.control.clone(),
            namespace: workload.namespace.clone(),
            entry: workload.entry.clone(),
            service_account: workload.service_account.clone(),
            address: workload.address,
            cluster_domain: workload.cluster_domain.clone(),
        }
    }
}

impl ClusterToken {
    /// A token for `cluster` that `secret` of Kubernetes proves.
    pub fn new(cluster: Workload, secret: String) -> Self {
        Self { version: VERSION, cluster, secret }
    }

    /// The line for the user. It holds the secret.
    pub fn to_line(&self) -> Zeroizing<String> {
        let json = Zeroizing::new(serde_json::to_vec(self).expect("a token is JSON"));
        Zeroizing::new(URL_SAFE_NO_PAD.encode(&*json))
    }

    /// The token of Kubernetes.
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// One for tests.
    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        let text = |text: &str| text.to_owned();
        let cluster = Workload {
            control: text("192.0.2.1:15012"),
            root: text("root"),
            control_name: text("istiod.istio-system.svc"),
            namespace: text("shop"),
            entry: text("db"),
            service_account: text("db"),
            address: "192.0.2.7".parse().expect("an address"),
            network: String::new(),
            trust_domain: text("cluster.local"),
            cluster_domain: text("cluster.local"),
            cluster_id: text("Kubernetes"),
        };
        Self::new(cluster, text("secret"))
    }

    /// Whether a line is meant as such a token, and not as one of a machine.
    pub fn is_meant(line: &str) -> bool {
        decoded(line).is_some_and(|value| value.get("cluster").is_some())
    }
}

fn decoded(line: &str) -> Option<serde_json::Value> {
    let line = line.trim();
    let bytes = (line.len() <= SIZE_MAX_BYTES).then(|| URL_SAFE_NO_PAD.decode(line).ok())??;
    serde_json::from_slice(&bytes).ok()
}

impl fmt::Debug for ClusterToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterToken").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl FromStr for ClusterToken {
    type Err = JoinTokenError;

    fn from_str(line: &str) -> Result<Self, JoinTokenError> {
        let wrong = JoinTokenError::new;
        let value = decoded(line).ok_or_else(|| wrong("is cut off or changed"))?;
        if value["version"].as_u64() != Some(u64::from(VERSION)) {
            return Err(wrong("is of another version of ambit"));
        }
        let token: Self =
            serde_json::from_value(value).map_err(|_| wrong("lacks something or has too much"))?;
        let Workload { namespace, entry, service_account, .. } = &token.cluster;
        // They become parts of paths and of headers.
        let is_name = |name: &String| {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
            (1..=253).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_part)
        };
        if ![namespace, entry, service_account].into_iter().all(is_name) {
            return Err(wrong("names no WorkloadEntry"));
        }
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_line_and_shows_no_secret() {
        let line = ClusterToken::sample().to_line();
        assert!(line.bytes().all(|it| it.is_ascii_alphanumeric() || b"-_".contains(&it)));
        assert!(ClusterToken::is_meant(&line));
        assert_eq!(
            format!(" {}\n", *line).parse::<ClusterToken>().expect("it is one"),
            ClusterToken::sample()
        );
        let shown = format!("{:?}", ClusterToken::sample());
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let check = |text: &str, part: &str| {
            let line = URL_SAFE_NO_PAD.encode(text);
            let error = line.parse::<ClusterToken>().expect_err(text).to_string();
            assert!(error.contains(part) && error.contains("ambit token create"), "{error}");
        };
        let whole = serde_json::to_string(&ClusterToken::sample()).expect("JSON");
        check(&whole[..40], "is cut off");
        check(&whole.replace("\"version\":1", "\"version\":2"), "of another version");
        check(&whole.replace("\"root\"", "\"other\""), "lacks something");
        check(&whole.replace("\"db\"", "\"../db\""), "names no WorkloadEntry");
        check(&whole.replace("\"db\"", "\"\""), "names no WorkloadEntry");
        assert!(!ClusterToken::is_meant("a token") && !ClusterToken::is_meant(""));
    }
}
