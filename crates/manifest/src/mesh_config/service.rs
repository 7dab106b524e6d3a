//! Where a provider is.

use crate::FieldPath;

/// The service of a provider: `[NAMESPACE/]HOST` and its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderService {
    /// The namespace, where the host does not say it.
    pub namespace: Option<String>,
    /// The host of a Service or ServiceEntry.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// A field, what is wrong with it, and what to do about it.
pub(super) type Wrong = (FieldPath, String, &'static str);

impl ProviderService {
    /// The service of a provider that is written with `service` and `port`.
    pub fn read(service: &str, port: u32, at: &FieldPath) -> Result<Self, Wrong> {
        let (namespace, host) = match service.split_once('/') {
            Some((namespace, host)) => (Some(namespace), host),
            None => (None, service),
        };
        if host.is_empty() || host.contains(['/', '*']) || namespace == Some("") {
            let what = format!("`{service}` is not the host of a service");
            let remedy = "write it as authz.shop.svc.cluster.local, or NAMESPACE/HOST";
            return Err((at.field("service"), what, remedy));
        }
        let Some(port) = u16::try_from(port).ok().filter(|port| *port > 0) else {
            let what = format!("{port} is not a port");
            return Err((at.field("port"), what, "write a number from 1 to 65535"));
        };
        Ok(Self { namespace: namespace.map(str::to_owned), host: host.to_owned(), port })
    }
}
