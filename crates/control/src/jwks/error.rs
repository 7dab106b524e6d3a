//! Why an issuer's keys were not fetched, as its users read it in the state of their objects.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ambit_words::durations::write_duration;
use ambit_words::error_chain;
use http::StatusCode;

/// Why keys were not fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("{0:?} is no URL that can be asked: write https://HOST/PATH, without a user")]
    Url(String),
    #[error("--jwks-hosts does not list {0}")]
    Host(String),
    #[error(
        "{0} is asked over TLS alone: without it only Services of the mesh may be asked, and \
         --jwks-networks"
    )]
    Plain(String),
    #[error("{host} leads to {address}, which {why}; --jwks-networks may allow it")]
    Address { host: String, address: IpAddr, why: &'static str },
    #[error("the name {host} cannot be resolved")]
    Name { host: String, source: io::Error },
    #[error("{0} has no address")]
    Nowhere(String),
    #[error("the Service {0} has no endpoint that is ready, or not this port")]
    NoEndpoint(String),
    #[error("connect to {address}")]
    Connect { address: SocketAddr, source: io::Error },
    #[error("a tunnel to {target}: {what}")]
    Tunnel { target: SocketAddr, what: String },
    #[error("TLS with {host}")]
    Tls { host: String, source: io::Error },
    #[error("ask {0}")]
    Exchange(String, #[source] hyper::Error),
    #[error("{0} redirects more than three times: write where it leads")]
    Redirects(String),
    #[error("{0} redirects to what is no URL: write where the keys are")]
    Moved(String),
    #[error("{0} redirects from TLS to plain text, which is not followed")]
    Downgrade(String),
    #[error("{url} answered {status}")]
    Status { url: String, status: StatusCode },
    #[error("read the answer of {url}, of which at most {most} bytes are read")]
    Body { url: String, most: usize, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the answer of {0} is no discovery document: a JSON object with issuer and jwks_uri")]
    Discovery(String),
    #[error("the discovery document is of the issuer {got:?}, not of {wanted:?}")]
    OtherIssuer { wanted: String, got: String },
    #[error("the answer of {url} cannot be used: {what}")]
    Keys { url: String, what: String },
    #[error("no answer within {}", write_duration(*.0))]
    Timeout(Duration),
}

impl FetchError {
    /// As status and log tell it, on one line.
    pub(super) fn told(&self) -> String {
        error_chain(self)
    }
}
