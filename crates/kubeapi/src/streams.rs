//! Requests whose connection becomes a stream: commands in pods, and connections to their ports.
//!
//! A command's input and output are channels of one connection. Over WebSocket a channel is the
//! first byte of a message; over SPDY it is a stream with a header that names it. How the command
//! ended is a `Status` on the error channel.

use serde_json::{Value, json};

use crate::query::Query;
use crate::status::Status;

/// The protocol of a command's channels that can say that the input is over.
pub const CHANNELS_V5: &str = "v5.channel.k8s.io";
/// The protocol of a command's channels whose error channel has a [`Status`].
pub const CHANNELS_V4: &str = "v4.channel.k8s.io";
/// The protocol of connections to ports.
pub const PORT_FORWARD: &str = "portforward.k8s.io";
/// The same, in SPDY frames within WebSocket messages.
pub const PORT_FORWARD_TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

/// A command to run in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    /// The pod's namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// Its container; may be left out if it has one.
    pub container: Option<String>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// The client sends its input.
    pub stdin: bool,
    /// The client wants its output.
    pub stdout: bool,
    /// The client wants its errors apart from its output.
    pub stderr: bool,
    /// It gets a terminal, which has one output.
    pub tty: bool,
}

/// Connections to ports of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortForward {
    /// The pod's namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
}

/// A channel of a command, by its number in WebSocket messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Channel {
    /// What the command reads.
    Stdin = 0,
    /// What it writes.
    Stdout = 1,
    /// What it writes as errors.
    Stderr = 2,
    /// How it ended.
    Error = 3,
    /// The size of the client's terminal, whenever it changes.
    Resize = 4,
}

/// A message of a client about its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelMessage<'a> {
    /// More input.
    Input(&'a [u8]),
    /// There is no more input.
    InputEnd,
    /// Its terminal has this size.
    Resize(TerminalSize),
    /// Nothing that matters: an empty message, or a channel that only the server writes.
    Nothing,
}

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters per line.
    pub columns: u16,
}

/// What precedes the number of a channel that the client closes.
const CLOSE: u8 = 255;

impl Exec {
    pub(crate) fn of(namespace: &str, pod: &str, query: &Query<'_>) -> Result<Self, Status> {
        let command: Vec<String> = query.all("command").map(str::to_owned).collect();
        let [stdin, stdout, stderr, tty] =
            ["stdin", "stdout", "stderr", "tty"].map(|name| query.flag(name));
        if command.is_empty() {
            return Err(Status::bad_request("command: you must name a command to run"));
        }
        if !(stdin || stdout || stderr) {
            let why = "you must specify at least one of stdin, stdout, stderr";
            return Err(Status::bad_request(why));
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            container: query.text("container").map(str::to_owned),
            command,
            stdin,
            stdout,
            stderr: stderr && !tty,
            tty,
        })
    }
}

impl Channel {
    /// The channel that a stream's header `streamType` names.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "stdin" => Some(Self::Stdin),
            "stdout" => Some(Self::Stdout),
            "stderr" => Some(Self::Stderr),
            "error" => Some(Self::Error),
            "resize" => Some(Self::Resize),
            _ => None,
        }
    }

    /// The message that carries this.
    pub fn message(self, payload: &[u8]) -> Vec<u8> {
        let mut message = Vec::with_capacity(1 + payload.len());
        message.push(self as u8);
        message.extend_from_slice(payload);
        message
    }
}

/// Reads a message of a client.
///
/// # Errors
/// What the protocol does not have; the text says what.
pub fn channel_message(message: &[u8]) -> Result<ChannelMessage<'_>, String> {
    let Some((&channel, payload)) = message.split_first() else {
        return Ok(ChannelMessage::Nothing);
    };
    match channel {
        0 => Ok(ChannelMessage::Input(payload)),
        1..=3 => Ok(ChannelMessage::Nothing),
        4 => terminal_size(payload)
            .map(|it| it.map_or(ChannelMessage::Nothing, ChannelMessage::Resize)),
        CLOSE if payload == [Channel::Stdin as u8] => Ok(ChannelMessage::InputEnd),
        CLOSE => Ok(ChannelMessage::Nothing),
        other => Err(format!("there is no channel {other}")),
    }
}

/// The last of the sizes that were sent; none in an empty text.
///
/// # Errors
/// It is no size.
pub fn terminal_size(text: &[u8]) -> Result<Option<TerminalSize>, String> {
    let mut last = None;
    for size in serde_json::Deserializer::from_slice(text).into_iter::<Value>() {
        let size = size.map_err(|error| format!("the size of a terminal is no JSON: {error}"))?;
        let field = |name: &str| size[name].as_u64().and_then(|it| u16::try_from(it).ok());
        let (Some(columns), Some(rows)) = (field("Width"), field("Height")) else {
            return Err("the size of a terminal has no Width and Height".to_owned());
        };
        last = Some(TerminalSize { rows, columns });
    }
    Ok(last)
}

/// What the error channel says of a command that has ended so, as a shell counts.
pub fn exited(code: u8) -> Value {
    if code == 0 {
        return json!({"metadata": {}, "status": "Success"});
    }
    json!({
        "metadata": {},
        "status": "Failure",
        "message": format!("command terminated with non-zero exit code: {code}"),
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_a_channel() {
        let check = |message: &[u8], expected: Result<ChannelMessage<'_>, &str>| match (
            channel_message(message),
            expected,
        ) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(found), Err(part)) => assert!(found.contains(part), "{found}"),
            (found, _) => panic!("{message:?}: {found:?}"),
        };
        check(b"", Ok(ChannelMessage::Nothing));
        check(b"\0", Ok(ChannelMessage::Input(b"")));
        check(b"\0ls\n", Ok(ChannelMessage::Input(b"ls\n")));
        check(b"\x01what the server says", Ok(ChannelMessage::Nothing));
        check(b"\xff\0", Ok(ChannelMessage::InputEnd));
        check(b"\xff\x03", Ok(ChannelMessage::Nothing));
        check(b"\x05", Err("no channel 5"));
        let size = TerminalSize { rows: 24, columns: 80 };
        check(b"\x04{\"Width\":80,\"Height\":24}\n", Ok(ChannelMessage::Resize(size)));
        check(b"\x04", Ok(ChannelMessage::Nothing));
        check(b"\x04{\"Width\":80}", Err("no Width and Height"));
        check(b"\x04{\"Width\":80,\"Height\":70000}", Err("no Width and Height"));
        check(b"\x04{\"Width", Err("no JSON"));
        assert_eq!(Channel::Stderr.message(b"oh"), b"\x02oh");
        assert_eq!(Channel::named("resize"), Some(Channel::Resize));
        assert_eq!(Channel::named("data"), None);
    }

    #[test]
    fn the_last_size_counts() {
        let text = b"{\"Width\":80,\"Height\":24}\n{\"Width\":132,\"Height\":50}\n";
        assert_eq!(terminal_size(text), Ok(Some(TerminalSize { rows: 50, columns: 132 })));
    }

    #[test]
    fn an_end_has_its_code() {
        assert_eq!(exited(0)["status"], "Success");
        let failed = exited(3);
        assert_eq!(failed["reason"], "NonZeroExitCode");
        let cause = json!({"reason": "ExitCode", "message": "3"});
        assert_eq!(failed["details"]["causes"], json!([cause]));
    }
}
