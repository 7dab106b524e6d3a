//! The sockets that the supervisor opens and keeps: in the pods' namespaces, and for operators.
//!
//! A socket belongs to the namespace in which it was created, whichever process holds its
//! descriptor. The supervisor never accepts on any of them, but it keeps them open: so no
//! connection is refused because a worker died.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ambit_net::namespace::{NetNs, set_sysctl};
use ambit_net::outside::Outside;
use ambit_net::procnet;
use ambit_net::socket::{DEFAULT_BACKLOG, ListenOptions, tcp_listener, udp_bind};
use ambit_words::ports;
use tracing::{debug, warn};

use crate::config::{Config, Operator};
use crate::handover::{DnsSocket, ListenerKind, Message, OperatorSocket, PodInfo, ToWorker};

/// Why a socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum SocketError {
    /// The pod's namespace cannot be entered.
    #[error("enter the pod's network namespace; the proxy needs the capability SYS_ADMIN")]
    Enter(#[source] io::Error),
    /// A listener in a pod.
    #[error("listen on {address} in the pod (SO_MARK and IP_TRANSPARENT need NET_ADMIN)")]
    InPod {
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The host does not give its listener.
    #[error("take over the socket that listens for other proxies")]
    Outside(#[source] io::Error),
    /// An operator's listener.
    #[error("listen on {address} for {flag}; choose another address with that flag")]
    Operator {
        /// Where.
        address: String,
        /// Which flag says so.
        flag: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// How sockets in pods are opened.
#[derive(Clone, Debug)]
pub(super) struct PodSocketOptions {
    /// One set of listeners for each.
    pub(super) threads: usize,
    /// `SO_MARK`.
    pub(super) mark: Option<u32>,
    /// Whether IPv6 is served.
    pub(super) ipv6: bool,
    /// Whether DNS is served.
    pub(super) dns: bool,
    /// Who has the listener for other proxies, where that is not in the pod.
    pub(super) outside: Option<Outside>,
}

impl PodSocketOptions {
    pub(super) fn of(config: &Config) -> Self {
        let Config { worker_threads, sockets, dns, .. } = config;
        let (mark, ipv6, dns) = (sockets.mark, sockets.ipv6, dns.enabled);
        let outside = config.outside.as_ref().map(|it| it.control.clone());
        Self { threads: *worker_threads, mark, ipv6, dns, outside }
    }
}

/// All sockets of one pod.
#[derive(Debug)]
pub(super) struct PodSockets {
    netns: Arc<OwnedFd>,
    inode: u64,
    /// The listeners that are in the namespace.
    kinds: Vec<ListenerKind>,
    dns: Vec<(DnsSocket, Arc<OwnedFd>)>,
    threads: Vec<Vec<(ListenerKind, Arc<OwnedFd>)>>,
}

impl PodSockets {
    /// Opens all of them inside the namespace; none is left open when one fails.
    pub(super) fn open(netns: NetNs, options: &PodSocketOptions) -> Result<Self, SocketError> {
        let (inbound, kinds) = match &options.outside {
            None => (None, ListenerKind::ALL.to_vec()),
            Some(outside) => {
                let inbound = outside.listener().map_err(SocketError::Outside)?;
                let others =
                    ListenerKind::ALL.into_iter().filter(|it| *it != ListenerKind::Inbound);
                (Some(Arc::new(OwnedFd::from(inbound))), others.collect())
            }
        };
        let opened = netns.run(|| open_inside(options, &kinds)).map_err(SocketError::Enter)?;
        let (mut threads, dns) = opened?;
        if let Some(inbound) = inbound {
            // One queue for all of them.
            threads.iter_mut().for_each(|it| it.push((ListenerKind::Inbound, inbound.clone())));
        }
        let inode = netns.inode();
        Ok(Self { netns: Arc::new(netns.into()), inode, kinds, dns, threads })
    }

    /// Whether these are sockets of that namespace.
    pub(super) fn are_in(&self, netns: &NetNs) -> bool {
        self.inode == netns.inode()
    }

    /// Whether another proxy listens there too, on all ports; it gets new connections once these
    /// are closed. If that is unknown now, the answer is no.
    pub(super) fn have_successor(&self) -> bool {
        let others = || -> io::Result<bool> {
            let inode = |fd: &Arc<OwnedFd>| Ok(File::from(fd.try_clone()?).metadata()?.ino());
            let own = self.threads.iter().flatten().map(|(_, fd)| inode(fd));
            let own = own.collect::<io::Result<BTreeSet<u64>>>()?;
            let netns = NetNs::from_fd(self.netns.try_clone()?)?;
            // It opens them one after the other.
            for kind in &self.kinds {
                let listening = netns.run(|| procnet::listeners(kind.port()))??;
                if listening.iter().all(|inode| own.contains(inode)) {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        others().unwrap_or_else(|error| {
            warn!(%error, "cannot look for another proxy's listeners in a pod");
            false
        })
    }

    /// The messages to a worker about the pod.
    pub(super) fn messages(&self, pod: &PodInfo) -> Vec<Message<ToWorker>> {
        let (dns, dns_fds): (Vec<_>, Vec<_>) = self.dns.iter().cloned().unzip();
        let header = ToWorker::Pod { pod: pod.clone(), dns, threads: self.threads.len() };
        let fds = std::iter::once(self.netns.clone()).chain(dns_fds).collect();
        let mut messages = vec![Message { header, fds }];
        for (thread, listeners) in self.threads.iter().enumerate() {
            let (kinds, fds) = listeners.iter().cloned().unzip();
            let header = ToWorker::Listeners { uid: pod.uid.clone(), thread, kinds };
            messages.push(Message { header, fds });
        }
        messages
    }
}

type Opened = (Vec<Vec<(ListenerKind, Arc<OwnedFd>)>>, Vec<(DnsSocket, Arc<OwnedFd>)>);

fn open_inside(options: &PodSocketOptions, kinds: &[ListenerKind]) -> Result<Opened, SocketError> {
    // Without it, closing one of several listeners of a port resets what waits in its queue. Where
    // it cannot be set, hand-over may lose what comes in the moment of the close, nothing else.
    if let Err(error) = set_sysctl("net.ipv4.tcp_migrate_req", "1") {
        debug!(%error, "net.ipv4.tcp_migrate_req cannot be set in the pod");
    }
    let listen = ListenOptions {
        reuse_port: true,
        transparent: true,
        freebind: false,
        mark: options.mark,
        backlog: DEFAULT_BACKLOG,
        v6only: false,
    };
    // First: who listens on the other ports is taken for a successor on all of them.
    let dns = if options.dns { open_dns(options, &listen)? } else { Vec::new() };
    let mut threads = Vec::with_capacity(options.threads);
    for _ in 0..options.threads {
        let open = |kind: ListenerKind| {
            let (address, listener) = wildcard(kind.port(), options.ipv6, &listen);
            let source = |source| SocketError::InPod { address, source };
            Ok((kind, Arc::new(OwnedFd::from(listener.map_err(source)?))))
        };
        threads.push(kinds.iter().copied().map(open).collect::<Result<_, _>>()?);
    }
    Ok((threads, dns))
}

/// A dual-stack listener, or an IPv4 one where there is no IPv6.
fn wildcard(
    port: u16,
    ipv6: bool,
    options: &ListenOptions,
) -> (SocketAddr, io::Result<TcpListener>) {
    if ipv6 {
        let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
        match tcp_listener(address, options) {
            Err(error) if lacks_family(&error) => {}
            done => return (address, done),
        }
    }
    let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
    (address, tcp_listener(address, options))
}

/// Whether a bind failed because the namespace has no such address family.
fn lacks_family(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.kind() == io::ErrorKind::Unsupported
        || error.to_string().contains("Address family not supported")
}

fn open_dns(
    options: &PodSocketOptions,
    listen: &ListenOptions,
) -> Result<Vec<(DnsSocket, Arc<OwnedFd>)>, SocketError> {
    let listen = ListenOptions { transparent: false, v6only: true, ..listen.clone() };
    let families: &[IpAddr] = &[Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let mut sockets = Vec::new();
    for ip in families {
        if ip.is_ipv6() && !options.ipv6 {
            continue;
        }
        let address = SocketAddr::new(*ip, ports::DNS_CAPTURE);
        let udp = udp_bind(address, &listen).map(OwnedFd::from);
        let tcp = tcp_listener(address, &listen).map(OwnedFd::from);
        for (kind, opened) in [(DnsSocket::Udp, udp), (DnsSocket::Tcp, tcp)] {
            match opened {
                Ok(fd) => sockets.push((kind, Arc::new(fd))),
                Err(error) if ip.is_ipv6() && lacks_family(&error) => {}
                Err(source) => return Err(SocketError::InPod { address, source }),
            }
        }
    }
    Ok(sockets)
}

/// The sockets for an operator, in the supervisor's own namespace.
#[derive(Debug)]
pub(super) struct OperatorSockets {
    sockets: Vec<(OperatorSocket, Arc<OwnedFd>)>,
    #[expect(dead_code, reason = "held for the removal of the socket when it is dropped")]
    unix: Option<UnixPath>,
}

/// A Unix socket's place in the file system, and which file that is.
#[derive(Debug)]
struct UnixPath {
    path: PathBuf,
    inode: u64,
}

impl Drop for UnixPath {
    /// Removes the socket, unless another proxy has put its own in this place.
    fn drop(&mut self) {
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| found.ino() == self.inode)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            debug!(%error, path = %self.path.display(), "the admin socket is left behind");
        }
    }
}

impl OperatorSockets {
    /// Opens all of them.
    pub(super) fn open(operator: &Operator) -> Result<Self, SocketError> {
        let tcp = [
            (OperatorSocket::Admin, operator.admin, "--admin-address"),
            (OperatorSocket::Metrics, operator.metrics, "--metrics-address"),
            (OperatorSocket::Readiness, operator.readiness, "--readiness-address"),
        ];
        // Shared, so that a second proxy may take over from this one.
        let listen = ListenOptions { reuse_port: true, v6only: false, ..Default::default() };
        let mut sockets = Vec::new();
        for (kind, address, flag) in tcp {
            let ipv6 = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
            let opened = match ipv6 {
                true => wildcard(address.port(), true, &listen).1,
                false => tcp_listener(address, &listen),
            };
            let failed =
                |source| SocketError::Operator { address: address.to_string(), flag, source };
            sockets.push((kind, Arc::new(opened.map_err(failed)?.into())));
        }
        let mut unix = None;
        if let Some(path) = &operator.admin_socket {
            let (listener, at) = unix_listener(path).map_err(|source| {
                let address = path.display().to_string();
                SocketError::Operator { address, flag: "--admin-socket", source }
            })?;
            sockets.push((OperatorSocket::AdminUnix, Arc::new(listener.into())));
            unix = Some(at);
        }
        Ok(Self { sockets, unix })
    }

    /// The message to a worker about them.
    pub(super) fn message(&self) -> Message<ToWorker> {
        let (sockets, fds) = self.sockets.iter().cloned().unzip();
        Message { header: ToWorker::Operator { sockets }, fds }
    }
}

/// Listens at `path` for the current user alone, in place of a socket that was left there.
fn unix_listener(path: &Path) -> io::Result<(UnixListener, UnixPath)> {
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        std::fs::remove_file(path)?;
    }
    // Bound beside and moved into place: at no time does anybody connect to it with a wider mode.
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    drop(std::fs::remove_file(&temporary));
    let listener = UnixListener::bind(&temporary)?;
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o600))?;
    let inode = std::fs::symlink_metadata(&temporary)?.ino();
    std::fs::rename(&temporary, path)?;
    listener.set_nonblocking(true)?;
    Ok((listener, UnixPath { path: path.to_owned(), inode }))
}
