//! The node agent, seen from the supervisor: which pods to serve (ZDS).
//!
//! Connects again whenever the agent goes away; the pods are served on meanwhile. Never sends
//! anything but the hello and one answer to each request, and answers each within its deadline.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ambit_net::namespace::NetNs;
use ambit_net::seqpacket::{Connection, PacketError};
use ambit_net::sys::process::effective_uid;
use ambit_wire::zds::MAX_PACKET_BYTES;
use ambit_wire::zds::proxy::{Enrolment, Event, Packet, SessionError};
use ambit_words::error_chain;
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, info, warn};

/// How often an agent is looked for that is not there, and the first wait before one is tried again
/// that ended the connection. Agents of Istio's capture pods first and name them then: until a
/// proxy is connected their connections are refused.
const RECONNECT_START: Duration = Duration::from_millis(50);
/// Longest wait for one that ends connections; it accepts five a second.
const RECONNECT_LIMIT: Duration = Duration::from_secs(1);
/// Within this time each request is answered, whether or not a worker holds the pod yet: its
/// listeners exist and queue. The agent gives up after 5 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);

/// One request of the agent, to be answered.
pub(super) struct Asked {
    /// What is asked.
    pub(super) event: Event,
    /// The pod's namespace, with [`Event::Serve`].
    pub(super) netns: Option<NetNs>,
    /// Takes the outcome.
    pub(super) answer: oneshot::Sender<Result<(), String>>,
}

/// Why a connection to the agent ended.
#[derive(Debug, thiserror::Error)]
enum AgentError {
    #[error("connect to the node agent at {path}; is it running?")]
    Connect {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("ask who the node agent is")]
    Credentials(#[source] std::io::Error),
    #[error("the node agent's socket belongs to user {0}, who may not name pods here")]
    Stranger(u32),
    #[error("socket of the node agent")]
    Socket(#[source] PacketError),
    #[error("the node agent broke the protocol")]
    Session(#[source] SessionError),
    #[error("the supervisor is ending")]
    Ending,
}

/// Follows the agent's words for as long as somebody listens.
pub(super) async fn follow(path: PathBuf, asked: mpsc::Sender<Asked>) {
    let mut enrolment = Enrolment::new();
    let (mut wait, mut is_away) = (RECONNECT_START, false);
    loop {
        let ended = tokio::select! {
            ended = session(&path, &mut enrolment, &asked, &mut wait) => ended,
            // The connection closes at once, so that new pods go to another proxy.
            () = asked.closed() => AgentError::Ending,
        };
        enrolment.disconnected();
        let was_away = std::mem::replace(&mut is_away, matches!(ended, AgentError::Connect { .. }));
        match ended {
            AgentError::Ending => return,
            AgentError::Socket(PacketError::Closed) => info!("the node agent closed its socket"),
            error if is_away && was_away => debug!(error = %error_chain(&error), "node agent"),
            error => {
                let error = error_chain(&error);
                warn!(error, "no connection to the node agent; pods stay served")
            }
        }
        if is_away {
            wait = RECONNECT_START;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RECONNECT_LIMIT);
    }
}

async fn session(
    path: &Path,
    enrolment: &mut Enrolment,
    asked: &mpsc::Sender<Asked>,
    wait: &mut Duration,
) -> AgentError {
    match converse(path, enrolment, asked, wait).await {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

async fn converse(
    path: &Path,
    enrolment: &mut Enrolment,
    asked: &mpsc::Sender<Asked>,
    wait: &mut Duration,
) -> Result<std::convert::Infallible, AgentError> {
    let socket = Connection::connect(path)
        .map_err(|source| AgentError::Connect { path: path.to_owned(), source })?;
    let agent = socket.peer_credentials().map_err(AgentError::Credentials)?;
    if agent.uid != 0 && agent.uid != effective_uid() {
        return Err(AgentError::Stranger(agent.uid));
    }
    socket.send(&enrolment.connected(), &[]).await.map_err(AgentError::Socket)?;
    info!(path = %path.display(), "connected to the node agent");
    let mut buffer = [0; MAX_PACKET_BYTES];
    loop {
        let (length, truncated, fds) = match socket.receive(&mut buffer).await {
            Ok(packet) => (packet.length, false, packet.fds),
            Err(PacketError::Truncated { .. }) => (0, true, Vec::new()),
            Err(error) => return Err(AgentError::Socket(error)),
        };
        *wait = RECONNECT_START;
        let packet = Packet { bytes: &buffer[..length], truncated, descriptors: fds.len() };
        let outcome = match enrolment.receive(packet) {
            Ok(Event::Refuse(refusal)) => Err(refusal.to_string()),
            Ok(event) => ask(asked, event, fds.into_iter().next()).await?,
            Err(error) => {
                let last = enrolment.answer(Err(&error_chain(&error)));
                socket.send(&last, &[]).await.map_err(AgentError::Socket)?;
                return Err(AgentError::Session(error));
            }
        };
        if let Err(reason) = &outcome {
            warn!(%reason, "refused a request of the node agent");
        }
        let answer = enrolment.answer(outcome.as_ref().copied().map_err(String::as_str));
        socket.send(&answer, &[]).await.map_err(AgentError::Socket)?;
    }
}

/// Hands a request to the supervisor and waits for the outcome, but not for ever.
async fn ask(
    asked: &mpsc::Sender<Asked>,
    event: Event,
    fd: Option<std::os::fd::OwnedFd>,
) -> Result<Result<(), String>, AgentError> {
    let netns = match fd.map(NetNs::from_fd).transpose() {
        Ok(netns) => netns,
        Err(error) => return Ok(Err(format!("the descriptor that came along: {error}"))),
    };
    let (answer, outcome) = oneshot::channel();
    let request = Asked { event, netns, answer };
    asked.send(request).await.map_err(|_| AgentError::Ending)?;
    match tokio::time::timeout(ANSWER_WITHIN, outcome).await {
        Ok(Ok(outcome)) => Ok(outcome),
        Ok(Err(_)) => Err(AgentError::Ending),
        Err(_) => {
            warn!("no worker holds the pod yet; its connections wait in its listeners' queues");
            Ok(Ok(()))
        }
    }
}

#[cfg(test)]
mod tests {
    use ambit_net::seqpacket::Listener;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_comes_late_is_found_at_once() {
        let directory = std::env::temp_dir().join(format!("ambit-agent-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join("agent.sock");
        let (asked, _requests) = mpsc::channel(1);
        let following = tokio::spawn(follow(path.clone(), asked));
        tokio::time::sleep(Duration::from_secs(60)).await;
        let agent = Listener::bind(&path).expect("a socket");
        let appeared = Instant::now();
        agent.accept().await.expect("a proxy");
        assert!(appeared.elapsed() <= RECONNECT_START, "{:?}", appeared.elapsed());
        following.abort();
        std::fs::remove_dir_all(&directory).expect("ours to remove");
    }
}
