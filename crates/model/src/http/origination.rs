//! TLS that a proxy speaks with endpoints for clients that do not: a BackendTLSPolicy, or a
//! DestinationRule's `tls`, as used.

use crate::Text;

/// How TLS is spoken with endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origination {
    /// The name that is sent, and that the endpoint must prove; `None` is the service's host.
    pub server_name: Option<Text>,
    /// Hosts of which the endpoint must prove one instead, or one of `uris`.
    pub alternatives: Vec<Text>,
    /// URIs of which the endpoint must prove one instead, or one of `alternatives`.
    pub uris: Vec<Text>,
    /// Who vouches for the endpoint.
    pub trust: Trust,
    /// What proves the proxy, as files of its own.
    pub client: Option<ClientFiles>,
}

/// Who vouches for an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Trust {
    /// The roots of the public web.
    #[default]
    Public,
    /// The roots in this file of the proxy's.
    File(Text),
    /// These roots, as PEM.
    Roots(Text),
    /// Nobody: the endpoint need not prove anything.
    Nobody,
}

/// A certificate and its key, as files of the proxy's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientFiles {
    /// The certificate, and what is between it and a root.
    pub chain: Text,
    /// The private key.
    pub key: Text,
}
