//! Running commands in pods, and connecting to them: the caller's side, and the machine's, which
//! only finds the pod.
//!
//! Descriptors for the command and the caller's connection are passed to the pod's init, which
//! answers the caller itself. The command gets pipes in the place of its caller's files (`relay`),
//! and a terminal of its own in the place of its caller's (`typed`).

mod call;
mod forward;
mod relay;
mod typed;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ambit_net::seqpacket::{Connection, Listener};
use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use self::call::{Call, exec_with};
pub use self::call::{ExecError, ExecRequest, ForwardRequest};
pub(crate) use self::call::{answer_of, find};
pub(crate) use self::forward::ended;
pub use self::forward::{find_port, forward, pod_end};
pub use self::relay::Keys;
use self::relay::Relay;
pub(crate) use self::relay::nothing;
use super::state::Machine;
use crate::accepting::ACCEPT_PAUSE;
use crate::client::PodInfo;
use crate::layout::Layout;
use crate::node::ask_pod;
use crate::pod::{ExecAnswer, ExecMessage, PACKET_SIZE_MAX_BYTES, PodRequest, answer};

/// What a shell adds to the number of the signal that ended a command.
const SIGNALLED: i32 = 128;

/// Runs a command in a pod with this process' standard input, output and error. Answers its exit,
/// as a shell counts. Files and devices are copied by pipes, and a terminal that it is typed at by
/// one of the command's own, of the same kind.
pub async fn exec(layout: &Layout, request: &ExecRequest, keys: Keys) -> Result<i32, ExecError> {
    let (input, output, error) = (io::stdin(), io::stdout(), io::stderr());
    let files = [input.as_fd(), output.as_fd(), error.as_fd()];
    if typed::is_typed_at(files[0], files[1]) {
        return typed::exec(layout, request, files).await;
    }
    let request = &ExecRequest { terminal: None, ..request.clone() };
    let relay = Relay::new(&files, keys);
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

/// Starts to take commands for pods.
pub(super) fn listen(machine: &Arc<Machine>) -> anyhow::Result<()> {
    let path = machine.layout.exec_socket();
    let listener =
        Listener::bind(&path).with_context(|| format!("listen at {}", path.display()))?;
    let machine = Arc::clone(machine);
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok(caller) => drop(tokio::spawn(take(Arc::clone(&machine), caller))),
                Err(error) => {
                    tracing::error!(%error, "cannot take a command for a pod; waiting");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
    Ok(())
}

async fn take(machine: Arc<Machine>, caller: Connection) {
    if let Err(reason) = pass_to_pod(&machine, &caller).await {
        answer(&caller, &ExecAnswer::Error(reason)).await;
    }
}

/// Passes a call with its descriptors and the caller's connection to the init of the pod.
async fn pass_to_pod(machine: &Machine, caller: &Connection) -> Result<(), String> {
    let mut buffer = vec![0; PACKET_SIZE_MAX_BYTES];
    let packet = caller.receive(&mut buffer).await.map_err(|error| error.to_string())?;
    let call: Call = serde_json::from_slice(&buffer[..packet.length])
        .map_err(|error| format!("the request is not of its form: {error}"))?;
    let (pod, request) = match call {
        Call::Exec(request) => {
            let pods = machine.objects().pods(&machine.layout);
            let owner = request.owner_kind.as_deref();
            let pod = find(&pods, &request.namespace, &request.pod, owner)?.clone();
            (pod, PodRequest::Exec(message(request)))
        }
        Call::Forward(request) => {
            let (pod, port) = forward::resolve(machine, &request)?;
            if packet.fds.is_empty() {
                answer(caller, &ExecAnswer::Exit(0)).await;
                return Ok(());
            }
            (pod, PodRequest::Forward { port })
        }
        Call::End(request) => return forward::tell_end(machine, &request, caller).await,
    };
    pass(machine, &pod, &request, &packet.fds, caller).await
}

/// Asks a pod from within the machine; answers with the connection by which the pod answers, and
/// whose end is the end of the caller.
pub(crate) async fn ask_as_caller(
    machine: &Machine,
    pod: &PodInfo,
    request: &PodRequest,
    fds: &[OwnedFd],
) -> Result<Connection, String> {
    let (own, caller) = Connection::pair().map_err(|error| error.to_string())?;
    pass(machine, pod, request, fds, &caller).await?;
    Ok(own)
}

async fn pass(
    machine: &Machine,
    pod: &PodInfo,
    request: &PodRequest,
    fds: &[OwnedFd],
    caller: &Connection,
) -> Result<(), String> {
    if !pod.node.is_empty() && !machine.record.nodes.contains(&pod.node) {
        return Err(format!(
            "{}/{} runs on the computer that joined as {}; run the command there",
            pod.namespace, pod.name, pod.node
        ));
    }
    let socket = machine.layout.pod_socket(&pod.node, &pod.uid);
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).chain([caller.as_fd()]).collect();
    let asked = ask_pod(&socket, request, &fds).await;
    asked.map(drop).map_err(|error| format!("{}/{}: {error}", pod.namespace, pod.name))
}

fn message(request: ExecRequest) -> ExecMessage {
    let ExecRequest { container, command, terminal, .. } = request;
    ExecMessage { container, command, terminal }
}
