//! What callers ask of a machine for one of its pods, how they reach it, and which pod is meant.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

use ambit_net::seqpacket::{Connection, PacketError};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use crate::client::PodInfo;
use crate::layout::Layout;
use crate::ownership::{OwnershipError, check_state_directory};
use crate::pod::{ExecAnswer, ExecControl, PACKET_SIZE_MAX_BYTES};
use crate::registry::Phase;

/// Wait before a machine that is busy is asked again.
const CONNECT_PAUSE: Duration = Duration::from_millis(10);

/// A command to run in a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name, or that of what made it.
    pub pod: String,
    /// The kind of that, if it is meant; otherwise a pod comes before what makes pods.
    #[serde(default)]
    pub owner_kind: Option<String>,
    /// In which container; the first, if absent.
    pub container: Option<String>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// The kind of the caller's terminal (`$TERM`), if the command gets one.
    pub terminal: Option<String>,
}

/// A port of a pod, or of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardRequest {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name, or that of what made it, or of a service.
    pub name: String,
    /// The kind of that, if it is no pod.
    #[serde(default)]
    pub kind: Option<String>,
    /// The port; of a service, one of its own.
    pub port: u16,
}

/// What is asked of a machine for one of its pods.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Call {
    /// Run a command; standard input, output and error come along.
    Exec(ExecRequest),
    /// Connect the socket that comes along to a port; without one, say whether there is the pod.
    Forward(ForwardRequest),
    /// Wait for the end of the pod that this names, if it names one.
    End(ForwardRequest),
}

/// A command that was not run, or whose end is not known.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// No machine answers.
    #[error("no machine answers at {socket}; start one with `ambit up`, or name it with --state")]
    Unreachable {
        /// Where.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody else could take the command and its descriptors.
    #[error(transparent)]
    Ownership(#[from] OwnershipError),
    /// Somebody else listens.
    #[error(
        "{socket} is served by user {uid}, neither you nor root; it was sent neither command nor \
         descriptors"
    )]
    Foreign {
        /// Where.
        socket: PathBuf,
        /// Whose it is.
        uid: u32,
    },
    /// The command has too many or too long arguments.
    #[error("the command is longer than {PACKET_SIZE_MAX_BYTES} bytes")]
    TooLong,
    /// The connection broke.
    #[error("the connection to the pod broke; has it ended?")]
    Broken(#[source] PacketError),
    /// The answer makes no sense.
    #[error("the pod's answer is not as expected")]
    Answer(#[source] serde_json::Error),
    /// It was refused.
    #[error("{reason}")]
    Refused {
        /// The pod's or the machine's words.
        reason: String,
    },
    /// The caller's files cannot be copied.
    #[error("cannot copy standard input, output or error")]
    Files(#[source] io::Error),
    /// Signals of the caller cannot be watched.
    #[error("cannot watch for Ctrl-C")]
    Signals(#[source] io::Error),
}

/// A connection to a machine that is the caller's own, or root's.
pub(super) async fn connect(layout: &Layout) -> Result<Connection, ExecError> {
    check_state_directory(layout.root())?;
    let socket = layout.exec_socket();
    let unreachable = |source| ExecError::Unreachable { socket: socket.clone(), source };
    let connection = loop {
        match Connection::connect(&socket) {
            // Its queue is full.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(CONNECT_PAUSE).await,
            done => break done.map_err(unreachable)?,
        }
    };
    let peer = connection.peer_credentials().map_err(unreachable)?;
    if !peer.is_own_or_root() {
        return Err(ExecError::Foreign { socket, uid: peer.uid });
    }
    Ok(connection)
}

pub(super) async fn call(
    connection: &Connection,
    call: &Call,
    fds: &[BorrowedFd<'_>],
) -> Result<(), ExecError> {
    let text = serde_json::to_vec(call).expect("calls can be written as JSON");
    if text.len() > PACKET_SIZE_MAX_BYTES {
        return Err(ExecError::TooLong);
    }
    connection.send(&text, fds).await.map_err(ExecError::Broken)
}

/// Runs a command in a pod with these descriptors. Answers its exit, as a shell counts.
pub(super) async fn exec_with(
    layout: &Layout,
    request: &ExecRequest,
    fds: &[BorrowedFd<'_>; 3],
) -> Result<i32, ExecError> {
    let connection = connect(layout).await?;
    let watch = |kind| signal(kind).map_err(ExecError::Signals);
    let mut interrupts = watch(SignalKind::interrupt())?;
    let mut terminations = watch(SignalKind::terminate())?;
    call(&connection, &Call::Exec(request.clone()), fds).await?;
    let mut answered = std::pin::pin!(answer_of(&connection));
    loop {
        tokio::select! {
            answer = &mut answered => return answer,
            () = pass_on(&connection, &mut interrupts, SignalKind::interrupt()) => {}
            () = pass_on(&connection, &mut terminations, SignalKind::terminate()) => {}
        }
    }
}

/// Waits for a signal and sends it on.
async fn pass_on(connection: &Connection, signals: &mut Signal, kind: SignalKind) {
    if signals.recv().await.is_none() {
        return std::future::pending().await;
    }
    let control = ExecControl::Signal(kind.as_raw_value());
    let text = serde_json::to_vec(&control).expect("controls can be written as JSON");
    // If this fails, so does receiving, which is where it is reported.
    let _sent = connection.send(&text, &[]).await;
}

/// What the pod, or the machine in its place, answers.
pub(crate) async fn answer_of(connection: &Connection) -> Result<i32, ExecError> {
    let mut buffer = vec![0; PACKET_SIZE_MAX_BYTES];
    let packet = connection.receive(&mut buffer).await.map_err(ExecError::Broken)?;
    match serde_json::from_slice(&buffer[..packet.length]).map_err(ExecError::Answer)? {
        ExecAnswer::Exit(code) => Ok(code),
        ExecAnswer::Error(reason) => Err(ExecError::Refused { reason }),
    }
}

/// The pod that a request means: by its name, or of those that run of what has that name the first
/// that a user would choose.
pub(crate) fn find<'a>(
    pods: &'a [PodInfo],
    namespace: &str,
    name: &str,
    owner_kind: Option<&str>,
) -> Result<&'a PodInfo, String> {
    let inside = || pods.iter().filter(|pod| pod.namespace == namespace);
    let named = inside().find(|pod| pod.name == name && owner_kind.is_none());
    let is_owner =
        |pod: &PodInfo| pod.owner == name && owner_kind.is_none_or(|kind| pod.owner_kind == kind);
    let owned = inside().filter(|pod| is_owner(pod) && pod.phase == Phase::Running);
    let found = named.or_else(|| owned.min_by_key(|pod| pod.rank()));
    match found {
        // One that runs on a computer that joined has no number here.
        Some(pod) if pod.pid == 0 && pod.phase != Phase::Running => {
            Err(format!("{namespace}/{} does not run: {}", pod.name, pod.reason))
        }
        Some(pod) => Ok(pod),
        None => Err(match owner_kind {
            Some(kind) => format!("there is no running pod of {kind} {namespace}/{name}"),
            None => format!(
                "there is no pod {namespace}/{name}, and nothing of that name has a running pod"
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn commands_go_to_a_pod_that_stays() {
        let pod = |name: &str, terminating: bool, ready: bool| -> PodInfo {
            serde_json::from_value(json!({
                "namespace": "a", "name": name, "uid": name, "node": "n", "serviceAccount": "s",
                "ownerKind": "Deployment", "owner": "web", "phase": "Running", "ready": ready,
                "terminating": terminating, "hostNetwork": false, "captured": true, "podIps": [],
                "restarts": 0, "reason": "", "unschedulable": false, "crashLooping": false,
                "created": "", "containers": [], "pid": 7,
            }))
            .expect("a pod")
        };
        let check = |name: &str, pods: &[PodInfo], expected: Option<&str>| {
            let found = find(pods, "a", name, None).ok().map(|pod| pod.name.as_str());
            assert_eq!(found, expected, "{name}");
        };
        let all = [
            pod("leaving", true, true),
            pod("starting", false, false),
            pod("first", false, true),
            pod("second", false, true),
        ];
        check("web", &all, Some("first"));
        check("web", &all[..2], Some("starting"));
        check("web", &all[..1], Some("leaving"));
        check("leaving", &all, Some("leaving"));
        check("other", &all, None);
        let elsewhere = PodInfo { pid: 0, ..pod("far", false, true) };
        let pending = PodInfo { phase: Phase::Pending, ..elsewhere.clone() };
        check("far", &[elsewhere], Some("far"));
        check("far", &[pending], None);
    }
}
