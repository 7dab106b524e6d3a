//! WebSockets: a command's channels, and the bytes of a tunnel, as messages.
//!
//! A command that does not read holds up its client, of which nothing is read then, its end
//! neither. So a client is asked now and then whether it is there: if it is gone, the question
//! cannot be written.

use std::time::Duration;

use ambit_kubeapi::streams::{Channel, ChannelMessage, channel_message};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use hyper::body::Bytes;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

use super::command::{Incoming, Outgoing};

/// Largest message of a client.
const MESSAGE_SIZE_MAX_BYTES: usize = 1 << 20;
/// What is read, and collected to be written, at once.
const BUFFER_SIZE_BYTES: usize = 32 << 10;
/// How often a client is asked whether it is there.
const ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// How long a client may take to say that it has seen the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

type Sink<S> = SplitSink<WebSocketStream<S>, Message>;

async fn open<S: AsyncRead + AsyncWrite + Unpin>(
    connection: S,
) -> (Sink<S>, SplitStream<WebSocketStream<S>>) {
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER_SIZE_BYTES)
        .write_buffer_size(BUFFER_SIZE_BYTES)
        .max_write_buffer_size(4 * BUFFER_SIZE_BYTES)
        .max_message_size(Some(MESSAGE_SIZE_MAX_BYTES))
        .max_frame_size(Some(MESSAGE_SIZE_MAX_BYTES));
    WebSocketStream::from_raw_socket(connection, Role::Server, Some(config)).await.split()
}

/// Carries a command's channels until it has ended or its client is gone.
pub(super) async fn command<S, R>(
    connection: S,
    run: impl FnOnce(mpsc::Receiver<Incoming>, mpsc::Sender<Outgoing>) -> R,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    R: Future<Output = Value>,
{
    let (mut sink, mut source) = open(connection).await;
    let (to_command, incoming) = mpsc::channel(1);
    let (outgoing, from_command) = mpsc::channel(1);
    let carried = async {
        let (running, over) = oneshot::channel::<()>();
        let run = async {
            let status = run(incoming, outgoing).await;
            drop(running);
            Ok(status)
        };
        let ((), status) = tokio::try_join!(send(&mut sink, from_command, over), run)?;
        let message = Channel::Error.message(status.to_string().as_bytes());
        sink.send(Message::binary(message)).await
    };
    let reason = tokio::select! {
        carried = carried => match carried {
            Ok(()) => (CloseCode::Normal, String::new()),
            Err(error) => return tracing::debug!(%error, "the client of a command is gone"),
        },
        wrong = receive(&mut source, to_command) => match wrong {
            Some(wrong) => (CloseCode::Protocol, wrong),
            None => return tracing::debug!("the client of a command has left it"),
        },
    };
    close(sink, source, reason).await;
}

/// Says why it is over, and waits until the client has seen it: if it is cut off with bytes that
/// were not read, it may not see the end.
async fn close<S: AsyncRead + AsyncWrite + Unpin>(
    mut sink: Sink<S>,
    mut source: SplitStream<WebSocketStream<S>>,
    (code, reason): (CloseCode, String),
) {
    let frame = CloseFrame { code, reason: Utf8Bytes::from(reason) };
    let closing = async {
        sink.send(Message::Close(Some(frame))).await?;
        while source.next().await.transpose()?.is_some() {}
        let socket = sink.reunite(source).expect("both are of one connection");
        Ok::<_, Error>(socket.into_inner().shutdown().await?)
    };
    if let Ok(Err(error)) = timeout(CLOSE_TIMEOUT, closing).await {
        tracing::debug!(%error, "a WebSocket broke at its end");
    }
}

/// Passes on what the client sends to its end; answers with what it does wrong, if it does.
async fn receive<S: AsyncRead + AsyncWrite + Unpin>(
    source: &mut SplitStream<WebSocketStream<S>>,
    to_command: mpsc::Sender<Incoming>,
) -> Option<String> {
    while let Some(message) = source.next().await {
        let message = match message {
            // Some clients send text, and mean bytes.
            Ok(Message::Binary(message)) => message,
            Ok(Message::Text(message)) => message.into(),
            Ok(_) => continue,
            Err(error) => return wrong(&error),
        };
        let incoming = match channel_message(&message) {
            Ok(ChannelMessage::Input(input)) => Incoming::Input(message.slice_ref(input)),
            Ok(ChannelMessage::InputEnd) => Incoming::InputEnd,
            Ok(ChannelMessage::Resize(size)) => Incoming::Resize(size),
            Ok(ChannelMessage::Nothing) => continue,
            Err(reason) => return Some(reason),
        };
        // A command that has ended takes nothing more.
        let _ended = to_command.send(incoming).await;
    }
    None
}

/// What a client did wrong, unless it is gone.
fn wrong(error: &Error) -> Option<String> {
    match error {
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => None,
        Error::Capacity(_) | Error::Protocol(_) | Error::Utf8(_) => Some(error.to_string()),
        _ => None,
    }
}

/// Passes on what a command says, and asks its client whether it lives, until the command is over:
/// it may have closed its outputs long before.
async fn send<S: AsyncRead + AsyncWrite + Unpin>(
    sink: &mut Sink<S>,
    mut from_command: mpsc::Receiver<Outgoing>,
    mut over: oneshot::Receiver<()>,
) -> Result<(), Error> {
    let mut alive = interval(ALIVE_INTERVAL);
    // A client that was stopped for an hour gets one.
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            output = from_command.recv() => match output {
                Some((channel, bytes)) => {
                    sink.send(Message::binary(channel.message(&bytes))).await?;
                }
                None => break,
            },
            _ = alive.tick() => sink.send(Message::Ping(Bytes::new())).await?,
        }
    }
    loop {
        tokio::select! {
            _ended = &mut over => return Ok(()),
            _ = alive.tick() => sink.send(Message::Ping(Bytes::new())).await?,
        }
    }
}

/// Carries the bytes of a tunnel in messages, until either end is over.
pub(super) async fn tunnel<S>(connection: S, inside: DuplexStream)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut sink, mut source) = open(connection).await;
    let (mut from_inside, mut to_inside) = tokio::io::split(inside);
    let receiving = async {
        while let Some(message) = source.next().await {
            let written = match message {
                Ok(Message::Binary(message)) => to_inside.write_all(&message).await,
                Ok(Message::Text(_)) => return Some("a tunnel has no text".to_owned()),
                Ok(_) => continue,
                Err(error) => return wrong(&error),
            };
            if written.is_err() {
                break;
            }
        }
        None
    };
    let sending = async {
        let mut piece = vec![0; BUFFER_SIZE_BYTES];
        // The other side of a pair in memory ends without errors.
        while let Ok(length @ 1..) = from_inside.read(&mut piece).await {
            sink.send(Message::binary(piece[..length].to_vec())).await?;
        }
        Ok::<_, Error>(())
    };
    let reason = tokio::select! {
        sent = sending => match sent {
            Ok(()) => (CloseCode::Normal, String::new()),
            Err(error) => return tracing::debug!(%error, "the client of a tunnel is gone"),
        },
        wrong = receiving => match wrong {
            Some(wrong) => (CloseCode::Protocol, wrong),
            None => return tracing::debug!("the client of a tunnel has left"),
        },
    };
    close(sink, source, reason).await;
}

#[cfg(test)]
mod tests {
    use ambit_kubeapi::streams::{TerminalSize, exited};

    use super::*;

    type Client = WebSocketStream<DuplexStream>;

    async fn client(near: DuplexStream) -> Client {
        WebSocketStream::from_raw_socket(near, Role::Client, None).await
    }

    /// All that comes until the end, but answers to pings: messages, and how it was closed.
    async fn all(client: &mut Client) -> (Vec<Vec<u8>>, Option<CloseCode>) {
        let (mut messages, mut code) = (Vec::new(), None);
        while let Some(message) = client.next().await {
            match message {
                Ok(Message::Binary(message)) => messages.push(message.to_vec()),
                Ok(Message::Close(frame)) => code = frame.map(|it| it.code),
                Ok(_) => {}
                // Its own end is not read behind a message that is too large.
                Err(error) if code.is_none() => panic!("{error}"),
                Err(_) => break,
            }
        }
        (messages, code)
    }

    /// Echoes its input up to its end, then fails with the number of other messages.
    async fn echo(
        mut incoming: mpsc::Receiver<Incoming>,
        outgoing: mpsc::Sender<Outgoing>,
    ) -> Value {
        let mut others = 0;
        while let Some(message) = incoming.recv().await {
            match message {
                Incoming::Input(input) => {
                    outgoing.send((Channel::Stdout, input)).await.expect("it is sent");
                }
                Incoming::InputEnd => break,
                Incoming::Resize(TerminalSize { rows, .. }) => {
                    others += u8::try_from(rows).expect("small")
                }
            }
        }
        exited(others)
    }

    #[tokio::test]
    async fn channels_are_carried() {
        let (near, far) = tokio::io::duplex(1 << 10);
        let asking = async {
            let mut client = client(near).await;
            let long = Channel::Stdin.message(&vec![b'x'; 100_000]);
            let resize = Channel::Resize.message(b"{\"Width\":80,\"Height\":7}\n");
            let messages = [
                Message::binary(Channel::Stdin.message(b"hello")),
                Message::text("\0text"),
                Message::binary(long.clone()),
                Message::binary(resize),
                Message::binary(vec![255, 0]),
            ];
            let (mut sink, source) = client.split();
            let sending = async {
                for message in messages {
                    sink.send(message).await.expect("it is taken");
                }
                // What comes after the end is not read by the command.
                let _late = sink.send(Message::binary(Channel::Stdin.message(b"late"))).await;
                sink
            };
            let reading = async {
                let (mut source, mut messages) = (source, Vec::new());
                while messages.len() < 4 {
                    let Some(Ok(message)) = source.next().await else { panic!("{messages:?}") };
                    if let Message::Binary(message) = message {
                        messages.push(message.to_vec());
                    }
                }
                (source, messages)
            };
            let (sink, (source, messages)) = tokio::join!(sending, reading);
            client = source.reunite(sink).expect("they are of one");
            let (more, code) = all(&mut client).await;
            assert!(more.is_empty());
            assert_eq!(code, Some(CloseCode::Normal));
            let status = exited(7).to_string();
            let expected = [
                Channel::Stdout.message(b"hello"),
                Channel::Stdout.message(b"text"),
                [vec![1], long[1..].to_vec()].concat(),
                Channel::Error.message(status.as_bytes()),
            ];
            assert!(messages == expected, "{} messages", messages.len());
        };
        tokio::join!(asking, command(far, echo));
    }

    #[tokio::test]
    async fn bytes_go_through_a_tunnel() {
        let (near, far) = tokio::io::duplex(1 << 10);
        let (mut program, inside) = tokio::io::duplex(1 << 10);
        let asking = async {
            let mut client = client(near).await;
            client.send(Message::binary(&b"hello"[..])).await.expect("it is taken");
            let answer = client.next().await.expect("a message").expect("it is whole");
            assert_eq!(answer.into_data(), &b"HELLO"[..]);
            assert_eq!(all(&mut client).await, (Vec::new(), Some(CloseCode::Normal)));
        };
        let answering = async {
            let mut heard = [0; 5];
            program.read_exact(&mut heard).await.expect("read");
            program.write_all(&heard.to_ascii_uppercase()).await.expect("written");
            drop(program);
        };
        tokio::join!(asking, answering, tunnel(far, inside));
        let (near, far) = tokio::io::duplex(1 << 10);
        let (_program, inside) = tokio::io::duplex(1 << 10);
        let asking = async {
            let mut client = client(near).await;
            client.send(Message::text("hello")).await.expect("it is taken");
            assert_eq!(all(&mut client).await, (Vec::new(), Some(CloseCode::Protocol)));
        };
        tokio::join!(asking, tunnel(far, inside));
    }

    #[tokio::test]
    async fn what_is_wrong_is_said() {
        let check = async |message: Message, expected: CloseCode| {
            let (near, far) = tokio::io::duplex(4 << 20);
            let asking = async {
                let mut client = client(near).await;
                client.send(message).await.expect("it is taken");
                let (messages, code) = all(&mut client).await;
                assert!(messages.is_empty());
                assert_eq!(code, Some(expected));
            };
            tokio::join!(asking, command(far, echo));
        };
        check(Message::binary(vec![9]), CloseCode::Protocol).await;
        check(Message::binary(Channel::Resize.message(b"{")), CloseCode::Protocol).await;
        check(Message::binary(vec![0; MESSAGE_SIZE_MAX_BYTES + 1]), CloseCode::Protocol).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_client_of_a_command_that_hangs_is_asked() {
        let (near, far) = tokio::io::duplex(1 << 10);
        // It has closed its outputs, which keeps nobody from asking.
        let hangs = |incoming: mpsc::Receiver<Incoming>, _outgoing: mpsc::Sender<Outgoing>| async {
            let _held = incoming;
            std::future::pending::<Value>().await
        };
        let asking = async {
            let mut client = client(near).await;
            for _ in 0..3 {
                let message = client.next().await.expect("a message").expect("it is whole");
                assert!(message.is_ping(), "{message}");
            }
        };
        // The command is dropped with its client.
        tokio::join!(asking, command(far, hangs));
    }
}
