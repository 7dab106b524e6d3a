//! Running commands in pods: the caller's side, and the machine's, which only finds the pod.
//!
//! The caller's descriptors, or pipes in the place of its files (`relay`), and its connection are
//! passed to the pod's init, which answers the caller itself. A caller in a terminal sends Ctrl-C
//! as a signal, because the command is in its own session.

mod relay;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use ambit_net::seqpacket::{Connection, Listener, PacketError};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::relay::Relay;
use super::client::PodInfo;
use super::state::Machine;
use crate::layout::Layout;
use crate::node::ask_pod;
use crate::ownership::{OwnershipError, check_state_directory};
use crate::pod::{
    ExecAnswer, ExecControl, ExecMessage, PACKET_SIZE_MAX_BYTES, PodRequest, WindowSize, answer,
};
use crate::registry::Phase;

/// What a shell adds to the number of the signal that ended a command.
const SIGNALLED: i32 = 128;

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
    /// The caller's terminal, if it has one.
    pub terminal: Option<Terminal>,
}

/// A caller's terminal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    /// Its kind, `$TERM`.
    pub kind: String,
    /// Its lines.
    pub rows: u16,
    /// Its characters per line.
    pub columns: u16,
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

/// Runs a command in a pod with this process' standard input, output and error. Answers its exit,
/// as a shell counts. Files and devices are copied by pipes.
pub async fn exec(layout: &Layout, request: &ExecRequest) -> Result<i32, ExecError> {
    let (input, output, error) = (io::stdin(), io::stdout(), io::stderr());
    let relay = Relay::new(&[input.as_fd(), output.as_fd(), error.as_fd()]);
    let relay = relay.map_err(ExecError::Files)?;
    let code = exec_with(layout, request, &relay.fds()).await;
    let watch = |kind| signal(kind).map_err(ExecError::Signals);
    let mut interrupts = watch(SignalKind::interrupt())?;
    let mut terminations = watch(SignalKind::terminate())?;
    // A file may take nothing for long.
    tokio::select! {
        finished = relay.finish() => code.and_then(|code| {
            finished.map_err(ExecError::Files)?;
            Ok(code)
        }),
        _signal = interrupts.recv() => Ok(SIGNALLED + SignalKind::interrupt().as_raw_value()),
        _signal = terminations.recv() => Ok(SIGNALLED + SignalKind::terminate().as_raw_value()),
    }
}

/// [`exec`] with other descriptors than this process' own.
pub(crate) async fn exec_with(
    layout: &Layout,
    request: &ExecRequest,
    fds: &[std::os::fd::BorrowedFd<'_>; 3],
) -> Result<i32, ExecError> {
    check_state_directory(layout.root())?;
    let socket = layout.exec_socket();
    let unreachable = |source| ExecError::Unreachable { socket: socket.clone(), source };
    let connection = Connection::connect(&socket).map_err(unreachable)?;
    let peer = connection.peer_credentials().map_err(unreachable)?;
    if !peer.is_own_or_root() {
        return Err(ExecError::Foreign { socket, uid: peer.uid });
    }
    let text = serde_json::to_vec(request).expect("requests can be written as JSON");
    if text.len() > PACKET_SIZE_MAX_BYTES {
        return Err(ExecError::TooLong);
    }
    let watch = |kind| signal(kind).map_err(ExecError::Signals);
    let mut interrupts = watch(SignalKind::interrupt())?;
    let mut terminations = watch(SignalKind::terminate())?;
    connection.send(&text, fds).await.map_err(ExecError::Broken)?;
    let mut buffer = vec![0; PACKET_SIZE_MAX_BYTES];
    loop {
        let packet = tokio::select! {
            packet = connection.receive(&mut buffer) => packet.map_err(ExecError::Broken)?,
            () = pass_on(&connection, &mut interrupts, SignalKind::interrupt()) => continue,
            () = pass_on(&connection, &mut terminations, SignalKind::terminate()) => continue,
        };
        let answer = serde_json::from_slice(&buffer[..packet.length]).map_err(ExecError::Answer)?;
        return match answer {
            ExecAnswer::Exit(code) => Ok(code),
            ExecAnswer::Error(reason) => Err(ExecError::Refused { reason }),
        };
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

/// Starts to take commands for pods.
pub(super) fn listen(machine: &Arc<Machine>) -> anyhow::Result<()> {
    let path = machine.layout.exec_socket();
    let listener =
        Listener::bind(&path).with_context(|| format!("listen at {}", path.display()))?;
    let machine = Arc::clone(machine);
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok(caller) => drop(tokio::spawn(forward(Arc::clone(&machine), caller))),
                Err(error) => {
                    tracing::error!(%error, "no more commands for pods are taken");
                    return;
                }
            }
        }
    });
    Ok(())
}

async fn forward(machine: Arc<Machine>, caller: Connection) {
    if let Err(reason) = try_forward(&machine, &caller).await {
        answer(&caller, &ExecAnswer::Error(reason)).await;
    }
}

async fn try_forward(machine: &Machine, caller: &Connection) -> Result<(), String> {
    let mut buffer = vec![0; PACKET_SIZE_MAX_BYTES];
    let packet = caller.receive(&mut buffer).await.map_err(|error| error.to_string())?;
    let request: ExecRequest = serde_json::from_slice(&buffer[..packet.length])
        .map_err(|error| format!("the request is not of its form: {error}"))?;
    let pods = machine.objects().pods(&machine.layout);
    let pod = find(&pods, &request)?;
    let socket = machine.layout.pod_socket(&pod.node, &pod.uid);
    let message = ExecMessage {
        container: request.container,
        command: request.command,
        window: request
            .terminal
            .as_ref()
            .map(|terminal| WindowSize { rows: terminal.rows, columns: terminal.columns }),
        terminal: request.terminal.map(|terminal| terminal.kind),
    };
    let own = caller.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    let fds: Vec<OwnedFd> = packet.fds.into_iter().chain([own]).collect();
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    debug_assert!(fds.iter().all(|fd| fd.as_raw_fd() >= 0), "descriptors are open");
    ask_pod(&socket, &PodRequest::Exec(message), &fds)
        .await
        .map(drop)
        .map_err(|error| format!("{}/{}: {error}", pod.namespace, pod.name))
}

/// The pod that a request means: by its name, or of those that run of what has that name the first
/// that a user would choose.
fn find<'a>(pods: &'a [PodInfo], request: &ExecRequest) -> Result<&'a PodInfo, String> {
    let ExecRequest { namespace, pod: name, owner_kind, .. } = request;
    let inside = || pods.iter().filter(|pod| pod.namespace == *namespace);
    let named = inside().find(|pod| pod.name == *name && owner_kind.is_none());
    let is_owner = |pod: &PodInfo| {
        pod.owner == *name && owner_kind.as_ref().is_none_or(|kind| pod.owner_kind == *kind)
    };
    let owned = inside().filter(|pod| is_owner(pod) && pod.phase == Phase::Running);
    let found = named.or_else(|| owned.min_by_key(|pod| pod.rank()));
    match found {
        Some(pod) if pod.pid == 0 => {
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
            let request = ExecRequest {
                namespace: "a".to_owned(),
                pod: name.to_owned(),
                ..ExecRequest::default()
            };
            let found = find(pods, &request).ok().map(|pod| pod.name.as_str());
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
    }
}
