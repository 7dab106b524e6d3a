//! What a user carries from a Kubernetes cluster to a computer outside: whose workload it is, where
//! control is, what proves control, and what proves the computer.
//!
//! One line of base64url, like the token of a machine. The secret in it is a token of Kubernetes
//! for the WorkloadEntry's service account: the API server signs it, says when it ends, and takes
//! it back when the account is deleted. It is shown by the command that makes it and by nothing
//! else.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ambit_manifest::names::dns_subdomain;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use zeroize::{ZeroizeOnDrop, Zeroizing};

use super::token::JoinTokenError;

/// The version of the form.
const VERSION: u32 = 1;
/// Longest text that is read as a token.
const SIZE_MAX_BYTES: usize = 64 << 10;

/// Longest name of a WorkloadEntry or a service account. Kubernetes takes 253, but files of the
/// machine are called after them: the log of the container `command` also after the namespace, of
/// at most 63, and a file's name has at most 255.
const NAME_LEN_MAX: usize = 160;

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

impl Workload {
    /// What is wrong with it, as in `the token ...`; nothing if a computer can join by it. Its
    /// parts become names of files, headers, flags and lines of configuration.
    pub fn wrong(&self) -> Option<&'static str> {
        let is_name = |name: &String| dns_subdomain(name).is_none();
        let is_host = |host: &str| dns_subdomain(&host.to_ascii_lowercase()).is_none();
        let is_text = |text: &String| !text.contains(char::is_control);
        let names = [&self.entry, &self.service_account];
        if !is_name(&self.namespace) || !names.into_iter().all(is_name) {
            Some("names no WorkloadEntry")
        } else if names.iter().any(|name| name.len() > NAME_LEN_MAX) {
            Some(
                "names a WorkloadEntry or a service account of more than 160 characters, and \
                 files of the other computer are called after them: use one with a shorter name",
            )
        } else if !is_way(&self.control, is_host) {
            Some("has no HOST:PORT of control")
        } else if !is_host(&self.control_name) {
            Some("has no DNS name of control")
        } else if !is_host(&self.cluster_domain) || !is_host(&self.trust_domain) {
            Some("has no DNS name as the domain of the cluster or as its trust domain")
        } else if !is_text(&self.cluster_id) || !is_text(&self.network) {
            Some("has control characters in the name of the cluster or of its network")
        } else {
            None
        }
    }
}

/// Whether it is a host and a port, as URLs write them.
fn is_way(text: &str, is_host: impl Fn(&str) -> bool) -> bool {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return address.port() != 0;
    }
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port != 0);
    text.rsplit_once(':').is_some_and(|(host, port)| is_host(host) && is_port(port))
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
        match token.cluster.wrong() {
            Some(what) => Err(wrong(what)),
            None => Ok(token),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;

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
        let long = format!("\"{}\"", "a".repeat(NAME_LEN_MAX + 1));
        check(&whole.replace("\"db\"", &long), "of more than 160 characters");
        for (field, value, part) in [
            ("control", "192.0.2.1", "HOST:PORT"),
            ("control", "192.0.2.1:0", "HOST:PORT"),
            ("control", "mesh.example.com:15012\\nx: y", "HOST:PORT"),
            ("control", "mesh_example\\n:15012", "HOST:PORT"),
            ("controlName", "istiod\\n.svc", "DNS name of control"),
            ("controlName", "", "DNS name of control"),
            ("clusterDomain", "cluster.local\\nnameserver 192.0.2.9", "domain of the cluster"),
            ("trustDomain", "cluster local", "trust domain"),
            ("clusterId", "a\\nb", "control characters"),
            ("network", "a\\u0000", "control characters"),
        ] {
            let key = format!("\"{field}\":\"");
            let (before, after) = whole.split_once(&key).expect(field);
            let (_, after) = after.split_once('"').expect(field);
            check(&format!("{before}{key}{value}\"{after}"), part);
        }
        assert!(!ClusterToken::is_meant("a token") && !ClusterToken::is_meant(""));
    }
    #[test]
    fn every_way_to_control_that_is_written_is_taken() {
        let mut token = ClusterToken::sample();
        for control in ["192.0.2.1:15012", "[2001:db8::1]:443", "Mesh.example.com:30012"] {
            token.cluster.control = control.to_owned();
            assert_eq!(token.cluster.wrong(), None, "{control}");
        }
    }

    #[test]
    fn files_of_the_longest_names_can_be_made() {
        let mut cluster = ClusterToken::sample().cluster.clone();
        cluster.namespace = "n".repeat(63);
        cluster.entry = "e".repeat(NAME_LEN_MAX);
        cluster.service_account = "s".repeat(NAME_LEN_MAX);
        assert_eq!(cluster.wrong(), None);
        let layout = Layout::new("/state");
        let Workload { namespace, entry, service_account, .. } = &cluster;
        for path in [
            layout.pod_log(namespace, entry, "command"),
            layout.pod_status(namespace, entry),
            layout.object("serviceaccounts", Some(namespace), service_account),
        ] {
            let name = path.file_name().expect("a file").len();
            // What is written beside it first, and the older half of a log.
            assert!(name + ".12345.new".len() <= 255, "{}", path.display());
        }
    }
}
