//! WebSockets: a message to the server and its echo back, again and again on the same socket.
//!
//! A socket that the other side ends is opened again for the next message, and counted as cut. A
//! server may send pings and whatever the library answers by itself; any other message is no echo.

use std::rc::Rc;

use bytes::Bytes;
use futures::{FutureExt, SinkExt, StreamExt};
use http::{HeaderName, HeaderValue, header};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::plan::{MAX_BODY_BYTES, Plan};
use super::transport::{Answer, Failure, Sockets, Transport};

/// Read at once from a socket; a thousand of them fit into a few megabytes.
const READ_BUFFER_BYTES: usize = 4 << 10;

/// One socket after the other.
#[derive(Debug)]
pub(super) struct WebSocket {
    sockets: Rc<Sockets>,
    request: Rc<http::Request<()>>,
    message: Bytes,
    open: Option<WebSocketStream<TcpStream>>,
}

/// The bounds of both ends.
pub(super) fn config(message_max_bytes: usize) -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(0)
        .max_write_buffer_size(2 * message_max_bytes)
        .max_message_size(Some(message_max_bytes))
        .max_frame_size(Some(message_max_bytes))
}

/// The request that asks for a socket. `None` if it cannot be said.
pub(super) fn request(plan: &Plan) -> Option<http::Request<()>> {
    let target = &plan.target;
    let url = format!("ws://{}{}", target.authority, target.path);
    let mut request = url.into_client_request().ok()?;
    let agent = HeaderValue::from_static(super::http1::USER_AGENT);
    request.headers_mut().insert(header::USER_AGENT, agent);
    for (name, value) in &plan.request.headers {
        let name: HeaderName = name.parse().ok()?;
        request.headers_mut().append(name, HeaderValue::from_str(value).ok()?);
    }
    Some(request)
}

/// How a socket ended, by what was read of it.
fn ended(read: Option<Result<Message, Error>>) -> Failure {
    match read {
        Some(Ok(Message::Close(frame))) => {
            let frame = frame.map(|frame| format!("{} {}", u16::from(frame.code), frame.reason));
            Failure::Closed(frame.unwrap_or_default())
        }
        Some(Ok(_)) => Failure::NoEcho,
        Some(Err(error)) => Failure::Cut(error.to_string()),
        None => Failure::Cut("end of the connection".to_owned()),
    }
}

impl WebSocket {
    pub(super) fn new(
        sockets: Rc<Sockets>,
        request: Rc<http::Request<()>>,
        message: Bytes,
    ) -> Self {
        Self { sockets, request, message, open: None }
    }

    /// The socket, if the other side has not ended it.
    fn kept(&mut self) -> Option<WebSocketStream<TcpStream>> {
        let mut open = self.open.take()?;
        loop {
            match open.next().now_or_never() {
                None => return Some(open),
                Some(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => {}
                Some(_) => {
                    self.sockets.streams_cut.update(|count| count + 1);
                    return None;
                }
            }
        }
    }

    async fn begin(&self) -> Result<WebSocketStream<TcpStream>, Failure> {
        let stream = self.sockets.connect().await?;
        let request = http::Request::clone(&self.request);
        let opening = client_async_with_config(request, stream, Some(config(MAX_BODY_BYTES)));
        let (socket, _response) =
            opening.await.map_err(|error| Failure::NoWebSocket(error.to_string()))?;
        self.sockets.streams_opened.update(|count| count + 1);
        Ok(socket)
    }
}

async fn echo(socket: &mut WebSocketStream<TcpStream>, message: &Bytes) -> Result<(), Failure> {
    let sending = socket.send(Message::Binary(message.clone()));
    sending.await.map_err(|error| Failure::Cut(error.to_string()))?;
    loop {
        match socket.next().await {
            Some(Ok(Message::Binary(echo))) if echo == *message => return Ok(()),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            other => return Err(ended(other)),
        }
    }
}

impl Transport for WebSocket {
    async fn open(&mut self) -> Result<(), Failure> {
        self.open = Some(self.begin().await?);
        Ok(())
    }

    async fn exchange(&mut self) -> Result<Answer, Failure> {
        let socket = match self.kept() {
            Some(socket) => socket,
            None => self.begin().await?,
        };
        // It is there to be counted if the exchange ends early.
        let socket = self.open.insert(socket);
        echo(socket, &self.message).await?;
        let bytes = self.message.len() as u64;
        Ok(Answer {
            status: None,
            bytes_in: bytes,
            body_bytes_in: bytes,
            bytes_out: bytes,
            reads: 0,
        })
    }

    fn abandon(&mut self) {
        if self.open.take().is_some() {
            self.sockets.streams_cut.update(|count| count + 1);
        }
    }

    async fn finish(&mut self) -> Result<(), Failure> {
        let Some(mut socket) = self.kept() else { return Ok(()) };
        socket.close(None).await.map_err(|error| Failure::Cut(error.to_string()))?;
        loop {
            match socket.next().await {
                // The server has answered; what follows is the end of the connection.
                Some(Ok(Message::Close(_))) | None => return Ok(()),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                other => return Err(ended(other)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::task::LocalSet;

    use crate::engine::{Run, Stop};
    use crate::plan::{Extent, Protocol, Target, tests::plan};
    use crate::report::Report;
    use crate::sample::tests::start;

    /// Sends messages to the echo sample for a second; it is asked to end after `end`, if ever.
    async fn check(protocol: Protocol, end: Option<Duration>, see: impl FnOnce(Report)) {
        let running = async {
            let (address, drain) = start(&["echo"], &[]);
            let mut plan = plan(&format!("http://{address}/a.B/C"));
            plan.target = Target::parse(&plan.target.url, Some(protocol)).unwrap();
            plan.request.body = vec![b'.'; 70_000];
            (plan.connections, plan.max_connections) = (4, 4);
            plan.streams = if protocol == Protocol::GrpcStream { 2 } else { 1 };
            plan.extent = Extent::Time(Duration::from_secs(1));
            plan.timeout = Duration::from_secs(2);
            let mut run = Run::start(plan.check().unwrap(), Stop::default(), false).await.unwrap();
            let ending = async {
                if let Some(end) = end {
                    tokio::time::sleep(end).await;
                    drain.start(None);
                }
            };
            let (report, ()) = tokio::join!(run.finish(), ending);
            see(report.unwrap());
        };
        LocalSet::new().run_until(running).await;
    }

    #[tokio::test]
    async fn messages_go_to_and_fro_on_what_is_open() {
        for (protocol, streams) in [(Protocol::WebSocket, 4), (Protocol::GrpcStream, 8)] {
            check(protocol, None, |report| {
                assert_eq!((report.requests, report.failed), (100, 0), "{report:?}");
                assert_eq!((report.streams_opened, report.streams_cut), (streams, 0));
                assert_eq!((report.connections_opened, report.connections_lost_idle), (4, 0));
                assert_eq!(report.status_codes, [].into());
                assert!(report.latency.p50_us > 0.0);
            })
            .await;
        }
    }

    #[tokio::test]
    async fn what_the_server_ends_is_counted() {
        let end = Some(Duration::from_millis(300));
        check(Protocol::WebSocket, end, |report| {
            assert_eq!((report.streams_opened, report.streams_cut), (4, 4), "{report:?}");
            let refused = report.errors["connect: connection refused"];
            assert!(refused > 0 && report.failed >= refused, "{report:?}");
        })
        .await;
        // A stream goes on until its client ends it; the connection takes no further one.
        check(Protocol::GrpcStream, end, |report| {
            assert_eq!((report.requests, report.failed, report.streams_cut), (100, 0, 0));
        })
        .await;
    }

    #[tokio::test]
    async fn what_is_no_echo_of_messages_fails() {
        for protocol in [Protocol::WebSocket, Protocol::GrpcStream] {
            let running = async {
                let (address, _drain) = start(&["timed"], &[]);
                let mut plan = plan(&format!("http://{address}/"));
                plan.target = Target::parse(&plan.target.url, Some(protocol)).unwrap();
                (plan.keep_going, plan.extent) = (true, Extent::Count(3));
                let run = Run::start(plan, Stop::default(), false).await;
                run.unwrap().finish().await.unwrap()
            };
            let report = LocalSet::new().run_until(running).await;
            assert_eq!((report.failed, report.streams_cut), (3, 0), "{report:?}");
        }
    }
}
