//! Istio's settings that are not single variables: `PROXY_CONFIG`, prefixes such as `XDS_HEADER_`,
//! node metadata, and the variables that are refused.
//!
//! An unsupported variable that would change security or behaviour stops the start: a mesh that
//! silently behaves differently is worse than one that does not start.

use std::collections::BTreeMap;
use std::path::Path;

use ambit_dataplane::views::NodeMetadata;
use serde::Deserialize;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};

use super::ConfigError;

/// Variables of this prefix become headers of discovery.
pub(super) const XDS_HEADER_PREFIX: &str = "XDS_HEADER_";
/// Variables of this prefix become headers of certificate requests.
pub(super) const CA_HEADER_PREFIX: &str = "CA_HEADER_";
const METADATA_PREFIX: &str = "ISTIO_META_";
const METADATA_JSON_PREFIX: &str = "ISTIO_METAJSON_";
/// Where Istio mounts the mesh configuration, if it does.
const MESH_CONFIG: &str = "./etc/istio/config/mesh";
/// What ztunnel says where it knows no address of its own.
const UNKNOWN_ADDRESS: &str = "1.1.1.1";

/// Variables that are refused unless they have one of the values that change nothing.
const UNSUPPORTED: [(&str, &[&str], &str); 12] = [
    ("ENABLE_PROXY", &["true"], "a node proxy that does not proxy has no use; unset it"),
    ("PROXY_MODE", &["shared"], "only the shared mode exists; unset it, one proxy per node"),
    ("PROXY_WORKLOAD_INFO", &[""], "it belongs to the dedicated mode; unset it"),
    ("INPOD_PORT_REUSE", &["true"], "listeners always share their ports, for hand-over; unset it"),
    ("FAKE_CA", &["false"], "certificates are always real; point CA_ADDRESS at `ambit control`"),
    ("TLS12_ENABLED", &["false"], "the mesh speaks TLS 1.3 only; unset it and upgrade the peer"),
    ("COMPLIANCE_POLICY", &[""], "suites and groups are fixed (TLS 1.3, AES-GCM); unset it"),
    ("UNSTABLE_ENABLE_SOCKS5", &["false"], "there is no SOCKS5 listener; unset it"),
    ("LOCAL_XDS", &[""], "workloads come from a control plane; run `ambit control` on files"),
    ("LOCAL_XDS_PATH", &[""], "workloads come from a control plane; run `ambit control` on files"),
    ("PREFERED_SERVICE_NAMESPACE", &[""], "a service's own namespace is preferred; unset it"),
    ("ISTIO_META_DNS_PROXY_ADDR", &DNS_PROXY_ADDRESSES, "DNS is served on localhost:15053"),
];
const DNS_PROXY_ADDRESSES: [&str; 3] = ["localhost:15053", "127.0.0.1:15053", "[::1]:15053"];

/// The process's environment variables that have no flag.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    variables: BTreeMap<String, String>,
    memory_limit: Option<usize>,
}

impl Environment {
    /// That of this process. Variables that are not Unicode are none of ours.
    pub(crate) fn of_process() -> Self {
        let variables = std::env::vars_os();
        let texts = variables.filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let memory_limit = ambit_net::sys::process::memory_limit();
        Self { variables: texts.collect(), memory_limit }
    }

    /// With this memory limit of the container.
    #[cfg(test)]
    pub(super) fn limited_to(self, bytes: usize) -> Self {
        Self { memory_limit: Some(bytes), ..self }
    }

    /// The container's memory limit, if it has one.
    pub(super) fn memory_limit(&self) -> Option<usize> {
        self.memory_limit
    }

    /// A variable that is set.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    pub(super) fn refuse_unsupported(&self) -> Result<(), ConfigError> {
        for (name, accepted, remedy) in UNSUPPORTED {
            let value = self.variable(name).unwrap_or_default();
            if !value.is_empty() && !accepted.contains(&value) {
                return Err(ConfigError::Unsupported { name, value: value.to_owned(), remedy });
            }
        }
        Ok(())
    }

    fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let strip = move |(name, value): (&'a String, &'a String)| {
            name.strip_prefix(prefix).map(|rest| (rest, value.as_str()))
        };
        self.variables.iter().filter_map(strip)
    }

    /// Headers named by variables of this prefix.
    pub(super) fn headers(
        &self,
        prefix: &str,
    ) -> Result<Vec<(AsciiMetadataKey, AsciiMetadataValue)>, ConfigError> {
        let header = |(name, value): (&str, &str)| {
            let wrong = |what: &str| {
                let reason = format!("{what} is not allowed in an HTTP header");
                ConfigError::invalid(format!("{prefix}{name}"), reason)
            };
            let key = name.to_ascii_lowercase().parse().map_err(|_| wrong("the name"))?;
            Ok((key, value.parse().map_err(|_| wrong("the value"))?))
        };
        self.with_prefix(prefix).map(header).collect()
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Self { variables: variables.into_iter().collect(), memory_limit: None }
    }
}

/// The part of Istio's proxy configuration that concerns a node proxy. Its other fields are those
/// of Envoy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ProxyConfig {
    pub(super) discovery_address: Option<String>,
    pub(super) proxy_admin_port: Option<u16>,
    pub(super) stats_port: Option<u16>,
    pub(super) concurrency: Option<u16>,
    pub(super) proxy_metadata: BTreeMap<String, String>,
}

/// The same inside a mesh configuration.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MeshConfig {
    default_config: Option<ProxyConfig>,
}

impl ProxyConfig {
    /// From the mounted mesh configuration, `PROXY_CONFIG` and `ISTIO_META_*`; later ones win.
    pub(super) fn read(environment: &Environment) -> Result<Self, ConfigError> {
        let mut merged = Self::of_file(Path::new(MESH_CONFIG))?;
        if let Some(text) = environment.variable("PROXY_CONFIG")
            && !text.trim().is_empty()
        {
            merged.overlay(Self::of_text("PROXY_CONFIG", text)?);
        }
        let metadata = std::mem::take(&mut merged.proxy_metadata).into_iter();
        merged.proxy_metadata = metadata
            .map(|(name, value)| match name.strip_prefix(METADATA_PREFIX) {
                Some(rest) => (rest.to_owned(), value),
                None => (name, value),
            })
            .collect();
        let of_environment = environment.with_prefix(METADATA_PREFIX);
        let of_environment = of_environment.map(|(name, value)| (name.into(), value.into()));
        merged.proxy_metadata.extend(of_environment);
        Ok(merged)
    }

    fn of_file(path: &Path) -> Result<Self, ConfigError> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::of_text(MESH_CONFIG, &text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(ConfigError::MeshConfigFile { path: path.to_owned(), source }),
        }
    }

    /// Either form: the fields themselves, or below `defaultConfig`.
    fn of_text(name: &str, text: &str) -> Result<Self, ConfigError> {
        let wrong =
            |source| ConfigError::ProxyConfig { name: name.to_owned(), source: Box::new(source) };
        let mesh: MeshConfig = serde_saphyr::from_str(text).map_err(wrong)?;
        match mesh.default_config {
            Some(inner) => Ok(inner),
            None => serde_saphyr::from_str(text).map_err(wrong),
        }
    }

    fn overlay(&mut self, later: Self) {
        self.discovery_address = later.discovery_address.or(self.discovery_address.take());
        self.proxy_admin_port = later.proxy_admin_port.or(self.proxy_admin_port);
        self.stats_port = later.stats_port.or(self.stats_port);
        self.concurrency = later.concurrency.or(self.concurrency);
        self.proxy_metadata.extend(later.proxy_metadata);
    }

    /// Whether DNS is served; clients still have to be captured.
    pub(super) fn dns_capture(&self) -> bool {
        let value = self.proxy_metadata.get("DNS_CAPTURE");
        value.is_none_or(|value| value.eq_ignore_ascii_case("true"))
    }

    pub(super) fn refuse_unsupported(&self) -> Result<(), ConfigError> {
        let address = self.proxy_metadata.get("DNS_PROXY_ADDR").map_or("", String::as_str);
        if address.is_empty() || DNS_PROXY_ADDRESSES.contains(&address) {
            return Ok(());
        }
        let remedy = "DNS is served on localhost:15053";
        Err(ConfigError::Unsupported { name: "DNS_PROXY_ADDR", value: address.to_owned(), remedy })
    }
}

/// This proxy's metadata for the control plane.
pub(super) fn node_metadata(
    node_name: &str,
    proxy_config: &ProxyConfig,
    environment: &Environment,
) -> Result<NodeMetadata, ConfigError> {
    let text = |name: &str| environment.variable(name).unwrap_or_default();
    let (pod, namespace) = (text("POD_NAME"), text("POD_NAMESPACE"));
    let ip = environment.variable("INSTANCE_IP").unwrap_or(UNKNOWN_ADDRESS);
    let named =
        [("NAME", pod), ("NAMESPACE", namespace), ("INSTANCE_IPS", ip), ("NODE_NAME", node_name)];
    let named = named.map(|(name, value)| (name.to_owned(), value.into()));
    let mut fields: BTreeMap<String, serde_json::Value> = named.into_iter().collect();
    let further = proxy_config.proxy_metadata.iter();
    fields.extend(further.map(|(name, value)| (name.clone(), value.as_str().into())));
    for (name, value) in environment.with_prefix(METADATA_JSON_PREFIX) {
        let value = serde_json::from_str(value).map_err(|error| {
            let reason = format!("the value is no JSON: {error}");
            ConfigError::invalid(format!("{METADATA_JSON_PREFIX}{name}"), reason)
        })?;
        fields.insert(name.to_owned(), value);
    }
    let id = format!("ztunnel~{ip}~{pod}.{namespace}~{namespace}.svc.cluster.local");
    Ok(NodeMetadata { id, fields })
}
