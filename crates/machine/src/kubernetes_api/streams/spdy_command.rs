//! A command whose channels are streams of a SPDY connection, as older clients have them.

use std::collections::HashMap;
use std::time::Duration;

use ambit_kubeapi::spdy::{FrameWriter, ResetCode};
use ambit_kubeapi::streams::{Channel, Exec, terminal_size};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::command::{Incoming, Outgoing};
use super::spdy::{Event, Outbox, Session, SessionError, header};

/// How long a client may take to open the streams of its command.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may take to leave when it has seen the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// What a client has opened.
struct Streams<R> {
    session: Session<R>,
    channels: HashMap<u32, Channel>,
}

/// Carries a command's channels until it has ended or its client is gone.
pub(super) async fn command<S, R>(
    connection: S,
    exec: &Exec,
    run: impl FnOnce(mpsc::Receiver<Incoming>, mpsc::Sender<Outgoing>) -> R,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    R: Future<Output = Value>,
{
    let (reader, writer) = tokio::io::split(connection);
    let (session, outbox, outgoing) = Session::new(reader);
    let streams = Streams { session, channels: HashMap::new() };
    let mut writing = std::pin::pin!(outgoing.write(writer));
    let written = tokio::select! {
        written = &mut writing => written,
        () = carry(streams, outbox, exec, run) => writing.await,
    };
    if let Err(error) = written {
        tracing::debug!(%error, "the client of a command is gone");
    }
}

async fn carry<S, R>(
    mut streams: Streams<S>,
    outbox: Outbox,
    exec: &Exec,
    run: impl FnOnce(mpsc::Receiver<Incoming>, mpsc::Sender<Outgoing>) -> R,
) where
    S: AsyncRead + Unpin,
    R: Future<Output = Value>,
{
    match timeout(OPEN_TIMEOUT, streams.open(exec)).await {
        Ok(Ok(true)) => {}
        Ok(Ok(false)) | Err(_) => {
            return tracing::debug!("a client has not opened the streams of its command");
        }
        Ok(Err(error)) => return streams.session.end(&error).await,
    }
    let channels: Vec<_> = streams.channels.iter().map(|(stream, it)| (*stream, *it)).collect();
    let (to_command, incoming) = mpsc::channel(1);
    let (outgoing, from_command) = mpsc::channel(1);
    let carried = async {
        let sending = send(from_command, &channels, &outbox);
        let (status, ()) = tokio::join!(run(incoming, outgoing), sending);
        finish(&status, &channels, &outbox).await;
    };
    let mut receiving = std::pin::pin!(streams.receive(to_command));
    tokio::select! {
        // If it is cut off with bytes that were not read, it may not see the end.
        () = carried => drop(timeout(CLOSE_TIMEOUT, receiving).await),
        // What is wrong is said in there.
        () = &mut receiving => {}
    }
}

async fn send(
    mut from_command: mpsc::Receiver<Outgoing>,
    channels: &[(u32, Channel)],
    outbox: &Outbox,
) {
    while let Some((channel, bytes)) = from_command.recv().await {
        let stream = channels.iter().find(|(_, it)| *it == channel);
        if let Some((stream, _)) = stream {
            // If the client is gone, so is all of this.
            let _gone = outbox.send(FrameWriter::data(*stream, &bytes, false)).await;
        }
    }
}

/// Says how the command ended, and ends every stream.
async fn finish(status: &Value, channels: &[(u32, Channel)], outbox: &Outbox) {
    for (stream, channel) in channels {
        let said = if *channel == Channel::Error { status.to_string() } else { String::new() };
        let _gone = outbox.send(FrameWriter::data(*stream, said.as_bytes(), true)).await;
    }
}

impl<R: AsyncRead + Unpin> Streams<R> {
    /// Waits for all streams that the command needs. False if the client leaves before.
    async fn open(&mut self, exec: &Exec) -> Result<bool, SessionError> {
        let needed = [
            (Channel::Error, true),
            (Channel::Stdin, exec.stdin),
            (Channel::Stdout, exec.stdout),
            (Channel::Stderr, exec.stderr),
        ];
        let is_there = |channels: &HashMap<u32, Channel>| {
            let mut needed = needed.iter().filter(|(_, is_needed)| *is_needed);
            needed.all(|(channel, _)| channels.values().any(|it| it == channel))
        };
        while !is_there(&self.channels) {
            match self.session.next().await? {
                Some(Event::Open { stream, headers, .. }) => self.opened(stream, &headers).await?,
                Some(_) => {}
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    async fn opened(
        &mut self,
        stream: u32,
        headers: &[(String, String)],
    ) -> Result<(), SessionError> {
        let channel = header(headers, "streamtype").and_then(Channel::named);
        match channel.filter(|channel| !self.channels.values().any(|it| it == channel)) {
            Some(channel) => {
                self.channels.insert(stream, channel);
                self.session.accept(stream).await
            }
            None => self.session.refuse(stream, ResetCode::ProtocolError).await,
        }
    }

    /// Passes on what the client sends, to its end.
    async fn receive(&mut self, to_command: mpsc::Sender<Incoming>) {
        if let Err(error) = self.try_receive(to_command).await {
            self.session.end(&error).await;
        }
    }

    async fn try_receive(
        &mut self,
        to_command: mpsc::Sender<Incoming>,
    ) -> Result<(), SessionError> {
        while let Some(event) = self.session.next().await? {
            let (stream, bytes, is_last) = match event {
                // That for sizes may come after the command has begun.
                Event::Open { stream, headers, .. } => {
                    self.opened(stream, &headers).await?;
                    continue;
                }
                Event::Data { stream, bytes, is_last } => (stream, bytes, is_last),
                Event::Reset { stream } => (stream, Default::default(), true),
            };
            // A command that has ended takes nothing more.
            match self.channels.get(&stream) {
                Some(Channel::Stdin) => {
                    if !bytes.is_empty() {
                        let _ended = to_command.send(Incoming::Input(bytes)).await;
                    }
                    if is_last {
                        let _ended = to_command.send(Incoming::InputEnd).await;
                    }
                }
                Some(Channel::Resize) => match terminal_size(&bytes) {
                    Ok(Some(size)) => drop(to_command.send(Incoming::Resize(size)).await),
                    Ok(None) => {}
                    Err(error) => tracing::debug!(error, "a client sent another size"),
                },
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ambit_kubeapi::streams::exited;
    use tokio::io::AsyncWriteExt as _;

    use super::super::command::tests::exec;
    use super::super::spdy::tests::{frame, open};
    use super::*;

    /// Echoes its input to its end, and exits with the number of lines of its terminal.
    async fn echo(
        mut incoming: mpsc::Receiver<Incoming>,
        outgoing: mpsc::Sender<Outgoing>,
    ) -> Value {
        let mut rows = 0;
        while let Some(message) = incoming.recv().await {
            match message {
                Incoming::Input(input) => {
                    outgoing.send((Channel::Stdout, input)).await.expect("it is sent");
                }
                Incoming::InputEnd => break,
                Incoming::Resize(size) => rows = u8::try_from(size.rows).expect("small"),
            }
        }
        exited(rows)
    }

    #[tokio::test]
    async fn channels_are_streams() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let asking = async move {
            let named = |kind| [("streamtype", kind)];
            let frames = [
                open(1, true, &named("error")),
                open(3, false, &named("stdin")),
                open(5, false, &named("none")),
                open(7, false, &named("stdout")),
                open(9, false, &named("resize")),
                FrameWriter::data(9, b"{\"Width\":80,\"Height\":24}\n", false),
                FrameWriter::data(3, b"hello", false),
                FrameWriter::data(3, b"", true),
            ];
            client.write_all(&frames.concat()).await.expect("written");
            let mut seen = Vec::new();
            while seen.len() < 9 {
                let (first, flags, payload) = frame(&mut client).await;
                match first {
                    0x8003_0002 | 0x8003_0003 => seen.push(format!("{first:x} {}", payload[3])),
                    stream => {
                        let payload = String::from_utf8_lossy(&payload);
                        seen.push(format!("{stream} {flags} {payload}"));
                    }
                }
            }
            seen.sort();
            let status = exited(24).to_string();
            let expected = [
                &format!("1 1 {status}"),
                "3 1 ",
                "7 0 hello",
                "7 1 ",
                "80030002 1",
                "80030002 3",
                "80030002 7",
                "80030002 9",
                "80030003 5",
            ];
            assert_eq!(seen, expected);
        };
        let exec = exec(true);
        tokio::join!(asking, command(server, &exec, echo));
    }

    #[tokio::test]
    async fn a_client_that_breaks_the_protocol_is_told() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let asking = async move {
            client.write_all(&open(2, true, &[])).await.expect("written");
            let (kind, ..) = frame(&mut client).await;
            assert_eq!(kind, 0x8003_0007);
        };
        let exec = exec(true);
        tokio::join!(asking, command(server, &exec, echo));
    }
}
