//! What lasts, for the echo sample: WebSockets and gRPC streams, each of whose messages comes back.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ambit_net::drain::Guard;
use futures::{SinkExt, StreamExt};
use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, UPGRADE};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::server::create_response_with_body;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use crate::websocket::config;

/// The body of an answer: made here, or the request's own.
pub(crate) type Answered = Either<Full<Bytes>, Returned>;

/// A request's body that goes back as it comes.
#[derive(Debug)]
pub(crate) struct Returned {
    body: Incoming,
    /// What follows it.
    trailers: Option<HeaderMap>,
}

impl From<Incoming> for Returned {
    fn from(body: Incoming) -> Self {
        Self { body, trailers: None }
    }
}

impl Body for Returned {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        loop {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
            // Clients count frames that carry nothing, and this one ends no stream here.
            if let Some(Ok(frame)) = &frame
                && frame.data_ref().is_some_and(Bytes::is_empty)
            {
                continue;
            }
            return Poll::Ready(
                frame.or_else(|| self.trailers.take().map(Frame::trailers).map(Ok)),
            );
        }
    }

    fn is_end_stream(&self) -> bool {
        self.trailers.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whether a request is one of gRPC.
pub(super) fn is_grpc(request: &Request<Incoming>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Answers a gRPC request with its own messages; it ends well when the client ends it.
pub(super) fn grpc(request: Request<Incoming>) -> Response<Answered> {
    let status = HeaderValue::from_static("0");
    let trailers = HeaderMap::from_iter([("grpc-status".parse().expect("a name"), status)]);
    let body = Returned { body: request.into_body(), trailers: Some(trailers) };
    let mut response = Response::new(Either::Right(body));
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Whether a request asks for a WebSocket.
pub(super) fn is_websocket(request: &Request<Incoming>) -> bool {
    let upgrade = request.headers().get(UPGRADE);
    upgrade.is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Answers a request for a WebSocket, and serves it in a task of its own.
pub(super) fn websocket(
    mut request: Request<Incoming>,
    message_max_bytes: usize,
    guard: &Guard,
) -> Response<Answered> {
    let upgrading = hyper::upgrade::on(&mut request);
    let answer = create_response_with_body(&request, || Either::Left(Full::default()));
    let answer = answer.unwrap_or_else(|error| {
        let mut response = Response::new(Either::Left(Full::from(format!("{error}\n"))));
        *response.status_mut() = StatusCode::BAD_REQUEST;
        response
    });
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let draining = guard.clone();
        guard.spawn_local(async move {
            // It fails if the client is gone.
            let Ok(upgraded) = upgrading.await else { return };
            let config = Some(config(message_max_bytes));
            let stream = TokioIo::new(upgraded);
            let socket = WebSocketStream::from_raw_socket(stream, Role::Server, config).await;
            echo(socket, draining).await;
        });
    }
    answer
}

/// Sends messages back until either side ends it.
async fn echo(mut socket: WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>, mut guard: Guard) {
    loop {
        let message = tokio::select! {
            message = socket.next() => message,
            _ = guard.draining() => {
                let reason = Utf8Bytes::from_static("the server ends");
                let frame = CloseFrame { code: CloseCode::Away, reason };
                // The client may be gone.
                let _closed = socket.close(Some(frame)).await;
                return;
            }
        };
        match message {
            Some(Ok(message @ (Message::Binary(_) | Message::Text(_)))) => {
                if socket.send(message).await.is_err() {
                    return;
                }
            }
            // Pings and closes are answered by the library as the socket is read on.
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return,
        }
    }
}
