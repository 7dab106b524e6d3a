//! What the connections of a data-plane thread share, whatever their direction.
//!
//! A connection stays on the thread that accepted it; everything here belongs to that thread alone,
//! except the [`Mesh`]. Nothing here knows what is done with a connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ambit_model::Text;
use ambit_model::identity::Identity;
use ambit_net::drain::Guard;
use ambit_net::hbone::{Client, Settings};
use ambit_net::memory::Accounts;
use ambit_net::pool::{Connection, Limits, Pool};
use ambit_net::socket::{DialOptions, normalise, original_destination, set_linger_reset};
use ambit_tls::Peer;
use http::{HeaderMap, HeaderValue};
use tokio::net::TcpStream;

use crate::accept::Entrance;
use crate::choice::Balance;
use crate::connections::Connections;
use crate::descriptors::{Crowded, Direction, Source};
use crate::dial::DialError;
use crate::mesh::Mesh;
use crate::metrics::Reporter;
use crate::own::OwnWorkload;
use crate::record::{Cause, Record, Tally};

/// Connections that may wait for an HBONE connection to one destination.
const MAX_POOL_WAITERS: usize = 4096;

/// What all connections of a thread use.
pub struct Plane {
    /// The current view of the mesh.
    pub mesh: Arc<Mesh>,
    /// Those that live.
    pub connections: Connections,
    /// HBONE connections to other proxies.
    pub pool: Pool<PoolKey, PeerConnection, DialError>,
    /// How endpoints did so far.
    pub balance: Balance,
    /// Their counters.
    pub tally: Tally,
}

/// Source and destination: two connections share an HBONE connection only if these are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolKey {
    /// The workload, and so its namespace.
    pub own: Text,
    /// Its identity.
    pub source: Identity,
    /// The address it connects from.
    pub source_ip: IpAddr,
    /// The destination must prove one of these identities.
    pub(crate) destinations: Vec<Identity>,
    /// Where the tunnel ends.
    pub hbone: SocketAddr,
}

/// Who answered at the other end of an HBONE connection.
pub(crate) type TunnelPeer = Arc<Peer>;

/// An HBONE connection, and who answered at its other end.
pub struct PeerConnection {
    pub(crate) client: Client,
    pub(crate) peer: TunnelPeer,
}

impl Connection for PeerConnection {
    fn has_room(&self, limit: usize) -> bool {
        self.client.has_room(limit)
    }

    fn is_closing(&self) -> bool {
        self.client.is_closing()
    }

    fn idle(&self) -> Option<Duration> {
        self.client.idle()
    }
}

impl Plane {
    /// Nothing is open yet; what the pool opens runs for this guard.
    pub fn new(mesh: Arc<Mesh>, guard: Guard) -> Self {
        let hbone = &mesh.settings.hbone;
        let limits = Limits {
            users_per_connection: hbone.max_streams_per_connection.into(),
            idle: hbone.idle_timeout,
            waiters: MAX_POOL_WAITERS,
        };
        Self {
            connections: Connections::new(mesh.clone()),
            pool: Pool::new(limits, guard),
            balance: Balance::new(rand::random()),
            tally: Tally::new(mesh.metrics.clone()),
            mesh,
        }
    }

    /// The address that an application shall see as its client's: the client's own, where the
    /// settings say so and families allow it. The kernel chooses the port.
    pub fn original_source(&self, client: SocketAddr, server: SocketAddr) -> Option<SocketAddr> {
        let possible = client.is_ipv4() == server.is_ipv4();
        let wanted = self.mesh.settings.original_source && possible;
        wanted.then(|| SocketAddr::new(client.ip(), 0))
    }

    /// What an accept loop of a workload needs of its shares.
    pub fn entrance(&self, own: &OwnWorkload, direction: Direction) -> Entrance {
        let share = own.shares.of(direction).clone();
        // A connection of another proxy has one descriptor until its tunnels are known.
        let count = if direction == Direction::Handshakes { 1 } else { 2 };
        let keepalive = self.mesh.settings.sockets.keepalive;
        if direction == Direction::Outbound {
            return Entrance { share, count, source_of: None, keepalive };
        }
        let mesh = self.mesh.clone();
        let source_of = move |peer: SocketAddr| {
            let (view, network) = (mesh.view.load(), &mesh.settings.network);
            Source::unproven(peer.ip(), view.workload_at(network, peer.ip()).is_some())
        };
        Entrance { share, count, source_of: Some(Box::new(source_of)), keepalive }
    }

    /// Resets a connection that there is no descriptor for.
    pub fn turn_away(
        &self,
        direction: Direction,
        stream: TcpStream,
        peer: SocketAddr,
        crowded: &Crowded,
    ) {
        let (reporter, cause) = match direction {
            Direction::Outbound => (Reporter::Source, Cause::OwnPod),
            _ => (Reporter::Destination, Cause::Stranger),
        };
        let to = original_destination(&stream).or_else(|_| stream.local_addr());
        let to = to.map_or_else(|_| SocketAddr::new(peer.ip(), 0), normalise);
        Record::new(reporter, peer, to).failed_early(&self.tally, crowded, cause);
        reset(stream);
    }

    /// Options of a socket towards a pod.
    pub fn dial_options(&self, source: Option<SocketAddr>) -> DialOptions {
        let sockets = &self.mesh.settings.sockets;
        DialOptions {
            mark: sockets.mark,
            source,
            local: None,
            keepalive: sockets.keepalive,
            user_timeout: sockets.user_timeout,
            nodelay: true,
        }
    }

    /// HTTP/2 settings of an HBONE connection, those of both directions.
    pub fn hbone_settings(&self, accounts: Accounts) -> Settings {
        let hbone = &self.mesh.settings.hbone;
        Settings {
            stream_window_bytes: hbone.stream_window_bytes,
            connection_window_bytes: hbone.connection_window_bytes,
            frame_size_bytes: hbone.frame_size_bytes,
            accounts,
        }
    }
}

/// Closes a connection so that its client sees an error.
pub fn reset(client: TcpStream) {
    if let Err(error) = set_linger_reset(&client) {
        tracing::debug!(%error, "socket could not be set to reset; it closes in order");
    }
}

/// Adds a header; one that cannot be written (a name with control characters) is left out, since
/// all of them are for telemetry.
pub fn put(headers: &mut HeaderMap, name: http::HeaderName, value: &str) {
    match HeaderValue::from_str(value) {
        Ok(value) => drop(headers.insert(name, value)),
        Err(error) => tracing::debug!(%name, %error, "header left out"),
    }
}
