//! The settings of a data plane, as its role sets them.
//!
//! Each role reads and validates its own configuration; this is the part that moving bytes needs,
//! the same for every proxy. Nothing here has a default and nothing is unset.

use std::net::SocketAddr;
use std::time::Duration;

use ambit_model::Text;
use ambit_net::socket::Keepalive;
use serde::Serialize;

use crate::memory::Budget;

/// What a role sets of its data plane.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The part of Ambit that this is, as metrics name it.
    pub component: &'static str,
    /// The network that this proxy is on, empty for the only one.
    pub network: Text,
    /// Options of every socket towards pods.
    pub sockets: Sockets,
    /// HBONE's HTTP/2 settings and pool.
    pub hbone: Hbone,
    /// What may wait for slow readers.
    pub memory: Budget,
    /// Data-plane threads.
    pub threads: usize,
    /// Dial the application from the client's address.
    pub original_source: bool,
    /// Whom endpoints that are names are looked up with; none means those that /etc/resolv.conf
    /// names.
    pub resolvers: Vec<SocketAddr>,
    /// Log decisions of policies at INFO instead of DEBUG.
    pub policy_info_logging: bool,
}

/// Options of every socket towards pods.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sockets {
    /// `SO_MARK`, by which the capture rules know the proxy, where there are any.
    pub mark: Option<u32>,
    /// Probes of idle connections, if any.
    #[serde(skip)]
    pub keepalive: Option<Keepalive>,
    /// How long sent data may stay unacknowledged, if bounded.
    pub user_timeout: Option<Duration>,
    /// Whether IPv6 is served.
    pub ipv6: bool,
}

/// HBONE's HTTP/2 settings and pool.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hbone {
    /// Flow-control window of one stream.
    pub stream_window_bytes: u32,
    /// Flow-control window of one connection.
    pub connection_window_bytes: u32,
    /// Largest frame.
    pub frame_size_bytes: u32,
    /// Streams on one pooled connection before another is opened.
    pub max_streams_per_connection: u16,
    /// How long an unused pooled connection is kept.
    pub idle_timeout: Duration,
}
