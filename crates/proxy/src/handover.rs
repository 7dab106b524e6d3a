//! What supervisor and worker say to each other.
//!
//! Each message is one packet: a small JSON header and the descriptors that belong to it. Whatever
//! is large or secret (views, certificates with their keys) rides in a sealed file in memory, so
//! that a packet is always small and a secret is never in a socket's buffer. A header with other
//! descriptors than it announces is an error, and the descriptors are closed.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use ambit_net::memfd::Sealed;
use ambit_net::namespace::NetNs;
use ambit_net::seqpacket::{Connection, Packet, PacketError};
use ambit_words::ports;
use serde::{Deserialize, Serialize};

/// Largest header. Names are at most 253 bytes long, reasons are cut.
pub(crate) const MAX_HEADER_BYTES: usize = 16 << 10;
/// Longest reason that is sent.
pub(crate) const MAX_REASON_BYTES: usize = 512;

/// From the supervisor to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub(crate) enum ToWorker {
    /// The last view and revocation list; one sealed file.
    View,
    /// A certificate with its key; one sealed file.
    Certificate,
    /// Sockets for what an operator asks; one descriptor for each.
    Operator {
        /// Which, in the order of the descriptors.
        sockets: Vec<OperatorSocket>,
    },
    /// A pod; its network namespace, then one descriptor for each DNS socket.
    Pod {
        /// Who it is.
        pod: PodInfo,
        /// Which DNS sockets follow.
        dns: Vec<DnsSocket>,
        /// How many [`ToWorker::Listeners`] follow.
        threads: usize,
    },
    /// One thread's listeners of a pod; one descriptor for each.
    Listeners {
        /// Whose.
        uid: String,
        /// For which data-plane thread, from 0.
        thread: usize,
        /// Which, in the order of the descriptors.
        kinds: Vec<ListenerKind>,
    },
    /// A pod is gone.
    RemovePod {
        /// Which.
        uid: String,
    },
    /// All that the supervisor holds has been sent: serve.
    Start,
    /// The agent has named all pods; until then the proxy is not ready.
    Enrolled,
    /// Accept nothing more; live until the last connection ends, or for so long.
    StopAccepting {
        /// How long connections may go on; absent for as long as they want.
        deadline_ms: Option<u64>,
    },
    /// Another worker wants to know of the live connections; one socket to write the list to.
    TellConnections,
    /// The question of [`FromWorker::AskOthers`] was passed on; one socket for each worker's list.
    OthersAsked {
        /// Which question.
        question: u64,
        /// How many workers will answer.
        workers: usize,
        /// How many were not asked, because they owe an answer already or cannot be reached.
        left_out: usize,
    },
}

/// From a worker to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub(crate) enum FromWorker {
    /// Everything sent before [`ToWorker::Start`] is held.
    Ready,
    /// This pod is served and its certificate asked for.
    PodHeld {
        /// Which.
        uid: String,
    },
    /// This pod cannot be served.
    PodRefused {
        /// Which.
        uid: String,
        /// Why.
        reason: String,
    },
    /// What changed in the view; one sealed file with a `Delta`. An empty one confirms it.
    View {
        /// Whether all of the view has been received, so that a new worker may start from it.
        complete: bool,
    },
    /// The revocation list now in force; one sealed file, PEM.
    Revocations,
    /// A certificate with its key; one sealed file.
    Certificate {
        /// Whose.
        identity: String,
    },
    /// Nobody uses this identity any more.
    Forget {
        /// Which.
        identity: String,
    },
    /// An operator wants to know of the connections that other workers finish.
    AskOthers {
        /// Comes back in [`ToWorker::OthersAsked`].
        question: u64,
    },
    /// An operator wants a new worker.
    Replace,
    /// An operator wants the proxy to end.
    Quit,
}

/// A pod as the agent names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodInfo {
    /// Kubernetes uid.
    pub(crate) uid: String,
    /// Namespace.
    pub(crate) namespace: String,
    /// Name.
    pub(crate) name: String,
    /// Service account.
    pub(crate) service_account: String,
}

/// What a listener in a pod is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ListenerKind {
    /// Captured outbound connections, port 15001.
    Outbound,
    /// Captured plain-text inbound connections, port 15006.
    Plaintext,
    /// HBONE, port 15008.
    Inbound,
}

impl ListenerKind {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Outbound, Self::Plaintext, Self::Inbound];

    /// The port it listens on.
    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Outbound => ports::OUTBOUND,
            Self::Plaintext => ports::INBOUND,
            Self::Inbound => ports::HBONE,
        }
    }
}

/// What a DNS socket in a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum DnsSocket {
    /// Datagrams.
    Udp,
    /// Connections.
    Tcp,
}

/// What an operator's socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum OperatorSocket {
    /// Admin API over TCP.
    Admin,
    /// Admin API over a Unix socket.
    AdminUnix,
    /// Metrics.
    Metrics,
    /// Readiness.
    Readiness,
}

/// A header with its descriptors. Cheap to clone: descriptors are shared.
#[derive(Clone, Debug)]
pub(crate) struct Message<H> {
    /// What is said.
    pub(crate) header: H,
    /// What belongs to it.
    pub(crate) fds: Vec<Arc<OwnedFd>>,
}

impl<H> Message<H> {
    /// A message without descriptors.
    pub(crate) fn bare(header: H) -> Self {
        Self { header, fds: Vec::new() }
    }

    /// A message with one sealed file.
    pub(crate) fn with_file(header: H, file: Sealed) -> Self {
        Self { header, fds: vec![Arc::new(file.into())] }
    }
}

/// Why supervisor and worker do not understand each other.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandoverError {
    /// The socket failed, or the other end is gone.
    #[error("socket between supervisor and worker")]
    Socket(#[source] PacketError),
    /// The header is not one.
    #[error("header between supervisor and worker; do both run the same version?")]
    Header(#[source] serde_json::Error),
    /// The descriptors are not those announced.
    #[error("message {message} came with {got} descriptors instead of {expected}")]
    Descriptors {
        /// Which message.
        message: String,
        /// How many it announces.
        expected: usize,
        /// How many came.
        got: usize,
    },
    /// A descriptor is not of the kind announced.
    #[error("descriptor of message {message}")]
    Kind {
        /// Which message.
        message: &'static str,
        /// What is wrong with it.
        #[source]
        source: std::io::Error,
    },
}

impl HandoverError {
    /// Whether the other end is simply gone.
    pub(crate) fn is_gone(&self) -> bool {
        match self {
            Self::Socket(PacketError::Closed) => true,
            Self::Socket(PacketError::Receive(error) | PacketError::Send(error)) => {
                error.kind() == std::io::ErrorKind::ConnectionReset
            }
            _ => false,
        }
    }
}

/// How many descriptors a header announces.
pub(crate) trait Header: Serialize + for<'de> Deserialize<'de> + std::fmt::Debug {
    /// That number.
    fn descriptors(&self) -> usize;
}

impl Header for ToWorker {
    fn descriptors(&self) -> usize {
        match self {
            Self::View | Self::Certificate | Self::TellConnections => 1,
            Self::OthersAsked { workers, .. } => *workers,
            Self::Operator { sockets } => sockets.len(),
            Self::Pod { dns, .. } => 1 + dns.len(),
            Self::Listeners { kinds, .. } => kinds.len(),
            Self::RemovePod { .. } | Self::Start | Self::Enrolled | Self::StopAccepting { .. } => 0,
        }
    }
}

impl Header for FromWorker {
    fn descriptors(&self) -> usize {
        match self {
            Self::View { .. } | Self::Revocations | Self::Certificate { .. } => 1,
            Self::Ready
            | Self::PodHeld { .. }
            | Self::PodRefused { .. }
            | Self::Forget { .. }
            | Self::AskOthers { .. }
            | Self::Replace
            | Self::Quit => 0,
        }
    }
}

/// Sends one message.
pub(crate) async fn send<H: Header>(
    socket: &Connection,
    message: &Message<H>,
) -> Result<(), HandoverError> {
    let header = serde_json::to_vec(&message.header).map_err(HandoverError::Header)?;
    let fds: Vec<BorrowedFd<'_>> = message.fds.iter().map(|fd| fd.as_fd()).collect();
    socket.send(&header, &fds).await.map_err(HandoverError::Socket)
}

/// Receives one message; `buffer` holds [`MAX_HEADER_BYTES`].
pub(crate) async fn receive<H: Header>(
    socket: &Connection,
    buffer: &mut [u8],
) -> Result<(H, Descriptors), HandoverError> {
    let packet = socket.receive(buffer).await.map_err(HandoverError::Socket)?;
    decode(buffer, packet)
}

fn decode<H: Header>(buffer: &[u8], packet: Packet) -> Result<(H, Descriptors), HandoverError> {
    let Packet { length, fds } = packet;
    let header: H = serde_json::from_slice(&buffer[..length]).map_err(HandoverError::Header)?;
    let expected = header.descriptors();
    if fds.len() != expected {
        let message = format!("{header:?}");
        return Err(HandoverError::Descriptors { message, expected, got: fds.len() });
    }
    Ok((header, Descriptors(fds.into())))
}

/// The descriptors of one message, in order. Those not taken are closed.
#[derive(Debug)]
pub(crate) struct Descriptors(VecDeque<OwnedFd>);

impl Descriptors {
    /// The next one.
    pub(crate) fn next(&mut self) -> OwnedFd {
        self.0.pop_front().expect("decode counted the descriptors")
    }

    /// The next one as a sealed file.
    pub(crate) fn sealed(&mut self, message: &'static str) -> Result<Sealed, HandoverError> {
        Sealed::from_fd(self.next()).map_err(|source| HandoverError::Kind { message, source })
    }

    /// The next one as a network namespace.
    pub(crate) fn netns(&mut self, message: &'static str) -> Result<NetNs, HandoverError> {
        NetNs::from_fd(self.next()).map_err(|source| HandoverError::Kind { message, source })
    }

    /// The next one as a TCP listener.
    pub(crate) fn tcp_listener(&mut self) -> TcpListener {
        self.next().into()
    }

    /// The next one as a connected Unix socket.
    pub(crate) fn unix_stream(&mut self) -> UnixStream {
        self.next().into()
    }

    /// The next one as a Unix listener.
    pub(crate) fn unix_listener(&mut self) -> UnixListener {
        self.next().into()
    }
}

/// Cuts a reason so that it fits a header.
pub(crate) fn cut_reason(mut reason: String) -> String {
    if reason.len() > MAX_REASON_BYTES {
        let mut end = MAX_REASON_BYTES;
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        reason.truncate(end);
    }
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> PodInfo {
        PodInfo {
            uid: "0b6e".into(),
            namespace: "shop".into(),
            name: "cart-1".into(),
            service_account: "cart".into(),
        }
    }

    async fn check<H: Header + PartialEq>(header: H) {
        let (one, other) = Connection::pair().expect("a pair of sockets");
        let file = || Arc::new(OwnedFd::from(Sealed::create("x", b"content").expect("a file")));
        let fds = (0..header.descriptors()).map(|_| file()).collect();
        let message = Message { header, fds };
        send(&one, &message).await.expect("sent");
        let mut buffer = vec![0; MAX_HEADER_BYTES];
        let (got, mut fds) = receive::<H>(&other, &mut buffer).await.expect("received");
        assert_eq!(got, message.header);
        for _ in 0..got.descriptors() {
            let content = fds.sealed("test").expect("sealed").read().expect("readable");
            assert_eq!(&*content, b"content");
        }
    }

    #[tokio::test]
    async fn messages_arrive_with_their_descriptors() {
        check(ToWorker::View).await;
        check(ToWorker::Pod { pod: pod(), dns: vec![DnsSocket::Udp, DnsSocket::Tcp], threads: 2 })
            .await;
        let kinds = ListenerKind::ALL.to_vec();
        check(ToWorker::Listeners { uid: "0b6e".into(), thread: 1, kinds }).await;
        check(ToWorker::StopAccepting { deadline_ms: Some(30_000) }).await;
        check(FromWorker::Certificate { identity: "spiffe://a/ns/b/sa/c".into() }).await;
        check(FromWorker::PodRefused { uid: "0b6e".into(), reason: "no".into() }).await;
        check(FromWorker::Ready).await;
        check(ToWorker::TellConnections).await;
        check(ToWorker::OthersAsked { question: 7, workers: 3, left_out: 1 }).await;
        check(FromWorker::AskOthers { question: 7 }).await;
    }

    #[tokio::test]
    async fn wrong_descriptors_are_an_error() {
        let (one, other) = Connection::pair().expect("a pair of sockets");
        send(&one, &Message::bare(ToWorker::View)).await.expect("sent");
        let mut buffer = vec![0; MAX_HEADER_BYTES];
        let got = receive::<ToWorker>(&other, &mut buffer).await;
        let error = got.expect_err("no descriptor came");
        assert!(matches!(error, HandoverError::Descriptors { expected: 1, got: 0, .. }), "{error}");
    }

    #[tokio::test]
    async fn an_unsealed_file_is_refused() {
        let (one, other) = Connection::pair().expect("a pair of sockets");
        let open = std::fs::File::open("/proc/self/exe").expect("a file");
        let message = Message { header: ToWorker::View, fds: vec![Arc::new(open.into())] };
        send(&one, &message).await.expect("sent");
        let mut buffer = vec![0; MAX_HEADER_BYTES];
        let (_, mut fds) = receive::<ToWorker>(&other, &mut buffer).await.expect("received");
        assert!(matches!(fds.sealed("view"), Err(HandoverError::Kind { .. })));
    }

    #[tokio::test]
    async fn a_closed_socket_is_told_apart_from_a_broken_one() {
        let (one, other) = Connection::pair().expect("a pair of sockets");
        drop(one);
        let mut buffer = vec![0; MAX_HEADER_BYTES];
        let error = receive::<FromWorker>(&other, &mut buffer).await.expect_err("closed");
        assert!(error.is_gone(), "{error}");
    }

    #[test]
    fn a_reason_is_cut_at_a_character() {
        let reason = "ä".repeat(MAX_REASON_BYTES);
        assert_eq!(cut_reason(reason).len(), MAX_REASON_BYTES);
        assert_eq!(cut_reason("short".into()), "short");
    }
}
