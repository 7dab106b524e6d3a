//! Settings of the proxy: as written ([`Args`]: flags and Istio's environment variables) and as
//! used ([`Config`]: validated, nothing unset).
//!
//! This is the only module of the crate that reads the environment. It never opens a socket, and
//! what it refuses it refuses with the name of the setting and the remedy.

use std::time::Duration;

use ambit_model::Text;
use ambit_net::socket::Keepalive;

/// What the user wrote.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Name of the node whose pods this proxy serves
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
}

/// The settings as used.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Who and where this proxy is.
    pub(crate) node: Node,
    /// Options of every socket towards pods.
    pub(crate) sockets: Sockets,
    /// HBONE's HTTP/2 settings and pool.
    pub(crate) hbone: Hbone,
    /// What happens between two pods of this very node.
    pub(crate) same_node: SameNode,
    /// Answer CONNECT with the destination's baggage.
    pub(crate) response_baggage: bool,
    /// Log decisions of policies at INFO instead of DEBUG.
    pub(crate) policy_info_logging: bool,
    /// Deliver application tunnels to localhost instead of the pod's address.
    pub(crate) localhost_app_tunnel: bool,
    /// Dial the application from the client's address.
    pub(crate) original_source: bool,
    /// How long connections may go on after SIGTERM or after their pod is gone.
    pub(crate) drain_deadline: Duration,
}

/// Who and where this proxy is.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The node's name.
    pub(crate) name: Text,
    /// The cluster it belongs to.
    pub(crate) cluster_id: Text,
    /// The domain of the cluster's DNS.
    pub(crate) cluster_domain: Text,
    /// The network it is on, empty for the only one.
    pub(crate) network: Text,
    /// The trust domain of its pods' identities.
    pub(crate) trust_domain: Text,
}

/// Options of every socket towards pods.
#[derive(Clone, Debug)]
pub(crate) struct Sockets {
    /// `SO_MARK`, by which the capture rules know the proxy.
    pub(crate) mark: u32,
    /// Probes of idle connections, if any.
    pub(crate) keepalive: Option<Keepalive>,
    /// How long sent data may stay unacknowledged, if bounded.
    pub(crate) user_timeout: Option<Duration>,
    /// Whether IPv6 is served.
    pub(crate) ipv6: bool,
}

/// HBONE's HTTP/2 settings and pool.
#[derive(Clone, Debug)]
pub(crate) struct Hbone {
    /// Flow-control window of one stream.
    pub(crate) stream_window_bytes: u32,
    /// Flow-control window of one connection.
    pub(crate) connection_window_bytes: u32,
    /// Largest frame.
    pub(crate) frame_size_bytes: u32,
    /// Streams on one pooled connection before another is opened.
    pub(crate) max_streams_per_connection: u16,
    /// How long an unused pooled connection is kept.
    pub(crate) idle_timeout: Duration,
}

/// What happens between two pods of this very node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SameNode {
    /// Sockets are joined, after the destination's policies were asked.
    Join,
    /// As between nodes: HBONE and mutual TLS.
    Encrypt,
}
