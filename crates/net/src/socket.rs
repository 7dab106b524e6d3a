//! Sockets for a transparent proxy: marked, redirected, bound to addresses that are not its own.
//!
//! Every socket is created in the calling thread's network namespace (see
//! [`crate::namespace::NetNs::run`]) and works anywhere afterwards. Nothing here blocks on the
//! network, and nothing here decides who may talk to whom.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::TcpStream;

use crate::sys::{process, socket_option};

/// How long the queue of connections not yet accepted may get.
pub const DEFAULT_BACKLOG: i32 = 4096;

/// The first odd port of Linux' default range of source ports: `ip_local_port_range` and
/// `ip_local_reserved_ports` are not read.
const ODD_PORTS_START: u16 = 32769;
/// How many there are.
const ODD_PORTS: u32 = 14_116;
/// Odd ports that are tried for a borrowed address before the kernel chooses.
const PORT_ATTEMPTS: u32 = 8;

/// How to open a listening or datagram socket.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Several sockets share the port, the kernel spreads new connections over them.
    pub reuse_port: bool,
    /// Accept connections to, and answer from, addresses that are not local (`IP_TRANSPARENT`;
    /// needs `NET_ADMIN`).
    pub transparent: bool,
    /// Bind also to an address that does not exist yet.
    pub freebind: bool,
    /// `SO_MARK` of the socket and all it accepts (needs `NET_ADMIN`).
    pub mark: Option<u32>,
    /// Length of the accept queue.
    pub backlog: i32,
    /// An IPv6 wildcard does not take IPv4 too. `false` gives a dual-stack socket.
    pub v6only: bool,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            reuse_port: false,
            transparent: false,
            freebind: false,
            mark: None,
            backlog: DEFAULT_BACKLOG,
            v6only: true,
        }
    }
}

/// How a connection finds out that its peer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe.
    pub time: Duration,
    /// Between probes.
    pub interval: Duration,
    /// Unanswered probes before the connection is given up.
    pub retries: u32,
}

/// Istio's values: 180 s, 180 s, 9.
pub const ISTIO_KEEPALIVE: Keepalive =
    Keepalive { time: Duration::from_secs(180), interval: Duration::from_secs(180), retries: 9 };

/// How to open a connection.
#[derive(Clone, Debug)]
pub struct DialOptions {
    /// `SO_MARK` (needs `NET_ADMIN`).
    pub mark: Option<u32>,
    /// Connect from this address even if it is not local (`IP_TRANSPARENT`; needs `NET_ADMIN`).
    /// Port 0 is any port that the owner of the address is not likely to use meanwhile.
    pub source: Option<SocketAddr>,
    /// Connect from this address, which is local.
    pub local: Option<IpAddr>,
    /// Probes of an idle connection; `None` for none.
    pub keepalive: Option<Keepalive>,
    /// Give up when sent data stays unacknowledged for so long.
    pub user_timeout: Option<Duration>,
    /// Send small writes at once.
    pub nodelay: bool,
}

impl Default for DialOptions {
    fn default() -> Self {
        Self {
            mark: None,
            source: None,
            local: None,
            keepalive: None,
            user_timeout: None,
            nodelay: true,
        }
    }
}

/// A non-blocking listener, to be handed to `tokio::net::TcpListener::from_std`.
pub fn tcp_listener(address: SocketAddr, options: &ListenOptions) -> io::Result<TcpListener> {
    let socket = bind(address, Type::STREAM, Protocol::TCP, options)?;
    socket.listen(options.backlog)?;
    Ok(socket.into())
}

/// A non-blocking datagram socket, to be handed to `tokio::net::UdpSocket::from_std`.
pub fn udp_bind(address: SocketAddr, options: &ListenOptions) -> io::Result<UdpSocket> {
    Ok(bind(address, Type::DGRAM, Protocol::UDP, options)?.into())
}

fn bind(
    address: SocketAddr,
    kind: Type,
    protocol: Protocol,
    options: &ListenOptions,
) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind.nonblocking(), Some(protocol))?;
    if address.is_ipv6() {
        socket.set_only_v6(options.v6only)?;
    }
    if protocol == Protocol::TCP {
        // A restarted listener must not wait for the old connections' TIME_WAIT.
        socket.set_reuse_address(true)?;
    }
    if options.reuse_port {
        socket.set_reuse_port(true)?;
    }
    if options.transparent {
        set_transparent(&socket, address)?;
    }
    if options.freebind {
        set_freebind(&socket, address)?;
    }
    if let Some(mark) = options.mark {
        socket.set_mark(mark)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// A connection that is being opened, or could not be: from [`tcp_dial`].
///
/// It belongs to the namespace that it was made in; dropped, it is given up.
#[derive(Debug)]
pub struct Dialing {
    socket: io::Result<Socket>,
    /// It comes from the address that it goes to, as far as is known.
    is_to_itself: bool,
}

impl Dialing {
    /// Waits until it is connected, or has failed.
    pub async fn connected(self) -> io::Result<TcpStream> {
        let stream = TcpStream::from_std(self.socket?.into())?;
        stream.writable().await?;
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        // Nobody listened there, and the socket met itself.
        let is_own = self.is_to_itself && stream.local_addr()? == stream.peer_addr()?;
        if is_own { Err(io::ErrorKind::ConnectionRefused.into()) } else { Ok(stream) }
    }
}

/// Begins to connect to `destination`, to be called inside the namespace; wait for it anywhere.
///
/// The owner of the source address connects from even ports, as long as Linux has some left. We use
/// odd ones, so no connection of the owner meets one of ours that it knows nothing about: ours
/// would block it, unanswered, once the owner no longer connects through the proxy.
pub fn tcp_dial(destination: SocketAddr, options: &DialOptions) -> io::Result<Dialing> {
    if let Some(source) = options.source.filter(|source| source.port() == 0) {
        let first = NEXT_ODD_PORT.fetch_add(1, Ordering::Relaxed);
        for attempt in 0..PORT_ATTEMPTS {
            // Far from each other: what was opened at once has ports in a row.
            let source = SocketAddr::new(source.ip(), odd_port(first, attempt));
            if source == destination {
                continue;
            }
            match tcp_dial_from(destination, Some(source), options) {
                Err(error) | Ok(Dialing { socket: Err(error), .. }) if is_port_taken(&error) => {}
                dialing => return dialing,
            }
        }
    }
    tcp_dial_from(destination, options.source, options)
}

/// One attempt, from this source. An error is one of the socket; that of the connection comes with
/// what is returned.
fn tcp_dial_from(
    destination: SocketAddr,
    source: Option<SocketAddr>,
    options: &DialOptions,
) -> io::Result<Dialing> {
    let socket = Socket::new(
        Domain::for_address(destination),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    if let Some(mark) = options.mark {
        socket.set_mark(mark)?;
    }
    if options.nodelay {
        socket.set_tcp_nodelay(true)?;
    }
    if let Some(keepalive) = options.keepalive {
        set_keepalive(&socket, keepalive)?;
    }
    if options.user_timeout.is_some() {
        socket.set_tcp_user_timeout(options.user_timeout)?;
    }
    if let Some(source) = source {
        set_transparent(&socket, source)?;
        // Several connections of one client to different servers may share a source port.
        socket.set_reuse_address(true)?;
        // The port is chosen by `connect`, which looks at both addresses: `bind` alone would look
        // through every port of the source address, longer with each connection closed lately.
        if source.port() == 0 {
            socket_option::set_bind_address_no_port(&socket)?;
        }
        socket.bind(&source.into())?;
    }
    if let Some(local) = options.local.filter(|it| it.is_ipv4() == destination.is_ipv4()) {
        // Else each connection would take a port from all programs of the host.
        socket_option::set_bind_address_no_port(&socket)?;
        socket.bind(&SocketAddr::new(local, 0).into())?;
    }
    let is_to_itself = source.is_none_or(|source| source.ip() == destination.ip());
    let socket = match socket.connect(&destination.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    };
    Ok(Dialing { socket, is_to_itself })
}

/// A TCP socket for connections to this address, without one, of the calling thread's namespace.
pub fn tcp_socket(destination: SocketAddr) -> io::Result<OwnedFd> {
    Ok(Socket::new(Domain::for_address(destination), Type::STREAM, Some(Protocol::TCP))?.into())
}

/// Begins to connect a TCP socket that may have had a connection before: it is dissolved, and every
/// descriptor of the socket sees its end. So a process can connect again and again in a namespace
/// that it cannot enter.
pub fn tcp_redial(socket: &impl AsFd, destination: SocketAddr) -> io::Result<Dialing> {
    socket_option::disconnect(socket)?;
    let socket = Socket::from(socket.as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let socket = match socket.connect(&destination.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    };
    Ok(Dialing { socket, is_to_itself: true })
}

/// The place of the odd port that was used longest ago; not where the last process began.
static NEXT_ODD_PORT: LazyLock<AtomicU32> =
    LazyLock::new(|| AtomicU32::new(RandomState::new().hash_one(()) as u32));

fn odd_port(first: u32, attempt: u32) -> u16 {
    let place = (first % ODD_PORTS + attempt * (ODD_PORTS / PORT_ATTEMPTS)) % ODD_PORTS;
    ODD_PORTS_START + 2 * place as u16
}

/// By another connection between the same addresses, or by a listener.
fn is_port_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable)
}

/// Connects within `timeout` from the calling thread's namespace.
pub(crate) async fn tcp_connect(
    destination: SocketAddr,
    options: &DialOptions,
    timeout: Duration,
) -> io::Result<TcpStream> {
    let dialing = tcp_dial(destination, options)?;
    tokio::time::timeout(timeout, dialing.connected())
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Switches on probes of an idle connection.
pub fn set_keepalive(socket: &impl AsFd, keepalive: Keepalive) -> io::Result<()> {
    let parameters = TcpKeepalive::new()
        .with_time(keepalive.time)
        .with_interval(keepalive.interval)
        .with_retries(keepalive.retries);
    SockRef::from(socket).set_tcp_keepalive(&parameters)
}

/// What of an HBONE connection the kernel may hold that is not under way: behind it goes what the
/// next tunnel has to say, on a slow link for as long as all of it takes.
const MAX_UNSENT_BYTES: u32 = 128 * 1024;

/// Bounds what the kernel holds to be sent later, for a connection of several streams.
pub fn bound_unsent(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_tcp_notsent_lowat(MAX_UNSENT_BYTES)
}

/// Marks the packets of an existing socket.
pub fn set_mark(socket: &impl AsFd, mark: u32) -> io::Result<()> {
    SockRef::from(socket).set_mark(mark)
}

/// Ends a connection when sent bytes stay unacknowledged for so long.
pub(crate) fn set_user_timeout(socket: &impl AsFd, timeout: Duration) -> io::Result<()> {
    SockRef::from(socket).set_tcp_user_timeout(Some(timeout))
}

/// Makes the next close a reset, so that the peer sees an error and not an orderly end.
pub fn set_linger_reset(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_linger(Some(Duration::ZERO))
}

/// Lets a socket have an address that is not local as its own; needs `NET_ADMIN`.
fn set_transparent(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    match address {
        SocketAddr::V4(_) => socket.set_ip_transparent_v4(true),
        SocketAddr::V6(_) => socket_option::set_transparent_v6(socket),
    }
}

/// Lets a socket bind to an address that is not there yet.
fn set_freebind(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    match address {
        SocketAddr::V4(_) => socket.set_freebind_v4(true),
        SocketAddr::V6(_) => socket_option::set_freebind_v6(socket),
    }
}

/// Where an accepted connection was going before the capture rules redirected it.
///
/// For a connection that was not redirected it is the address that it was made to.
pub fn original_destination(socket: &impl AsFd) -> io::Result<SocketAddr> {
    // A dual-stack socket serves IPv4 clients too, and only the IPv4 table knows those: ask it
    // first.
    match socket_option::original_destination_v4(socket) {
        Ok(address) => Ok(address),
        Err(_) => socket_option::original_destination_v6(socket),
    }
}

/// Turns an IPv4 address that a dual-stack socket shows as `::ffff:a.b.c.d` back into one.
pub fn normalise(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether `ip` is an address of the calling thread's namespace.
pub fn address_exists(ip: IpAddr) -> io::Result<bool> {
    let address = SocketAddr::new(ip, 0);
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    match socket.bind(&address.into()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(false),
        Err(error) => Err(error),
    }
}

/// Bounds the accept queue check in [`TcpInfo::queued`].
const TCP_LISTEN: u8 = 10;
const TCP_CLOSE: u8 = 7;

/// What the kernel knows about a TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time.
    pub round_trip: Duration,
    /// Segments sent again over the lifetime of the connection.
    pub retransmits: u32,
    /// Bytes in flight, in segments; for a listener the connections that wait to be accepted.
    pub queued: u32,
    /// Whether this is a listener.
    pub listening: bool,
    /// Whether there is no connection any more.
    pub is_closed: bool,
}

/// Reads [`TcpInfo`] of a TCP socket.
pub fn tcp_info(socket: &impl AsFd) -> io::Result<TcpInfo> {
    let info = socket_option::tcp_info(socket)?;
    Ok(TcpInfo {
        round_trip: Duration::from_micros(info.tcpi_rtt.into()),
        retransmits: info.tcpi_total_retrans,
        queued: info.tcpi_unacked,
        listening: info.tcpi_state == TCP_LISTEN,
        is_closed: info.tcpi_state == TCP_CLOSE,
    })
}

/// The process at the other end of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id at the time of the connect; 0 when it is outside of this PID namespace.
    pub pid: i32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

impl PeerCredentials {
    /// Whether it is this process' own user, or root, which could act as that user anyway. Any
    /// other user that listens at a command's path is an impostor.
    pub fn is_own_or_root(&self) -> bool {
        self.uid == 0 || self.uid == process::effective_uid()
    }
}

/// Reads [`PeerCredentials`] of a connected Unix socket.
pub fn peer_credentials(socket: &impl AsFd) -> io::Result<PeerCredentials> {
    let raw = socket_option::peer_credentials(socket)?;
    Ok(PeerCredentials { pid: raw.pid, uid: raw.uid, gid: raw.gid })
}

/// The wildcard address of the family of `ip`.
pub fn unspecified_like(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_connects_again() {
        let listen = || std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let (first, gone) = (listen(), listen());
        let address = |listener: &std::net::TcpListener| listener.local_addr().expect("bound");
        let (here, nowhere) = (address(&first), address(&gone));
        drop(gone);
        let socket = tcp_socket(here).expect("a socket");
        for (destination, is_there) in [(here, true), (nowhere, false), (here, true), (here, true)]
        {
            let dialing = tcp_redial(&socket, destination).expect("it begins");
            assert_eq!(dialing.connected().await.is_ok(), is_there);
        }
    }

    #[test]
    fn attempts_are_odd_ports_far_from_each_other() {
        for first in [0, 1, ODD_PORTS - 1, ODD_PORTS, u32::MAX] {
            let mut ports: Vec<u16> = (0..PORT_ATTEMPTS).map(|it| odd_port(first, it)).collect();
            assert!(ports.iter().all(|port| port % 2 == 1 && (32769..=60999).contains(port)));
            ports.sort_unstable();
            assert!(ports.windows(2).all(|pair| pair[1] - pair[0] > 1000), "{first}: {ports:?}");
        }
    }
}
