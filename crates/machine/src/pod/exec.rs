//! Commands that users run inside pods.
//!
//! The caller's descriptors come over the socket, so no byte of input or output passes through the
//! machine. The caller's connection comes too: the exit code goes straight back, and if the
//! caller dies, its command is ended.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use ambit_net::seqpacket::Connection;
use ambit_net::sys::process::Signal;
use serde::{Deserialize, Serialize};

use super::container::{Process, Started, Streams};
use super::{ContainerPlan, PACKET_SIZE_MAX_BYTES};
use crate::reaper::{Reaper, exit_code};

/// A command to run in a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExecMessage {
    /// In which container, init containers included; the first of the others, if absent.
    pub(crate) container: Option<String>,
    /// Program and arguments.
    pub(crate) command: Vec<String>,
    /// The kind of its terminal, if its standard input is one: one that was made for it, and that
    /// controls it.
    pub(crate) terminal: Option<String>,
}

/// A message from the pod to the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ExecAnswer {
    /// The command ended, as a shell counts.
    Exit(i32),
    /// The command could not be started, or asked for in vain.
    Error(String),
}

/// A message from the caller to the pod while its command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ExecControl {
    /// A signal for the command.
    Signal(i32),
}

/// Sends an answer; a caller that is gone needs none.
pub(crate) async fn answer(caller: &Connection, answer: &ExecAnswer) {
    let text = serde_json::to_vec(answer).expect("answers can be written as JSON");
    if let Err(error) = caller.send(&text, &[]).await {
        tracing::debug!(%error, "the caller of an exec is gone");
    }
}

/// The connection of a caller, by which it is answered.
pub(super) fn caller_of(fd: OwnedFd) -> Option<Connection> {
    let caller = Connection::from_fd(fd);
    caller.inspect_err(|error| tracing::warn!(%error, "a caller that cannot be answered")).ok()
}

/// Runs a command in one of these containers, and answers its caller.
pub(super) async fn serve(
    message: ExecMessage,
    fds: Vec<OwnedFd>,
    containers: &[&ContainerPlan],
    reaper: &Reaper,
    start: impl FnOnce(
        &ContainerPlan,
        &[String],
        &BTreeMap<String, String>,
        Streams,
    ) -> io::Result<Started>,
) {
    let Ok([input, output, error, caller]) = <[OwnedFd; 4]>::try_from(fds) else {
        tracing::warn!("an exec without its four descriptors");
        return;
    };
    let Some(caller) = caller_of(caller) else { return };
    let wanted = message.container.as_deref();
    let found = containers.iter().find(|plan| wanted.is_none_or(|name| plan.name == name));
    let Some(&plan) = found else {
        let names: Vec<&str> = containers.iter().map(|plan| plan.name.as_str()).collect();
        let text = format!(
            "no container {:?}; the pod has {}",
            wanted.unwrap_or_default(),
            names.join(", ")
        );
        return answer(&caller, &ExecAnswer::Error(text)).await;
    };
    let owns_terminal = message.terminal.is_some();
    let streams = Streams { input: Some(input), output, error, owns_terminal };
    match start(plan, &message.command, &terminal(&message), streams) {
        Ok(started) => {
            // Whoever started it says why it failed, on its standard error.
            let exit = attend(&started.process, &caller, reaper).await;
            answer(&caller, &ExecAnswer::Exit(exit)).await;
        }
        Err(error) => {
            let text = format!("cannot start a process in container {:?}: {error}", plan.name);
            answer(&caller, &ExecAnswer::Error(text)).await;
        }
    }
}

fn terminal(message: &ExecMessage) -> BTreeMap<String, String> {
    // None for its size, which changes.
    let kind = message.terminal.iter().map(|kind| ("TERM".to_owned(), kind.clone()));
    kind.collect()
}

/// Waits for the command while passing on what its caller sends.
async fn attend(process: &Process, caller: &Connection, reaper: &Reaper) -> i32 {
    let mut ended = reaper.end_of(process.pid);
    let mut buffer = vec![0; PACKET_SIZE_MAX_BYTES];
    loop {
        let packet = tokio::select! {
            exit = &mut ended => return exit.map_or(-1, exit_code),
            packet = caller.receive(&mut buffer) => packet,
        };
        let Ok(packet) = packet else {
            // The caller died, and nobody is left to see what the command says.
            process.signal(Signal::Hangup);
            process.signal(Signal::Term);
            return ended.await.map_or(-1, exit_code);
        };
        match serde_json::from_slice(&buffer[..packet.length]) {
            Ok(ExecControl::Signal(number)) => process.signal(Signal::Number(number)),
            Err(error) => {
                tracing::warn!(%error, "an exec's caller sent something else than a control")
            }
        }
    }
}
