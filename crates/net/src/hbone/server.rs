//! The server's side of an HBONE connection.

use std::rc::Rc;
use std::time::Duration;

use futures::future::{FutureExt, LocalBoxFuture};
use futures::stream::{FuturesUnordered, StreamExt};
use h2::RecvStream;
use h2::server::{Builder, SendResponse};
use http::{HeaderMap, Method, Response, StatusCode, Uri, request};
use tokio::io::{AsyncRead, AsyncWrite};

use super::credit::{Credit, FLOOR_BYTES};
use super::piece::Piece;
use super::{
    Activity, HboneError, MAX_REQUEST_HEADER_BYTES, MAX_SEND_BUFFER_BYTES, MAX_SERVER_STREAMS,
    MAX_SMALL_FRAMES_BYTES, Settings, Tunnel, keepalive,
};
use crate::cork::cork;
use crate::drain::Guard;

/// How long a client may take to begin HTTP/2 after the TLS handshake.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// A request for a tunnel. Dropped unanswered it is reset.
pub struct Connect {
    head: request::Parts,
    receive: RecvStream,
    respond: SendResponse<Piece>,
    credit: Rc<Credit>,
}

impl Connect {
    /// The method, which should be CONNECT.
    pub fn method(&self) -> &Method {
        &self.head.method
    }

    /// The target; of a CONNECT the authority alone.
    pub fn uri(&self) -> &Uri {
        &self.head.uri
    }

    /// The request's headers, which are not kept: a peer may send
    /// `MAX_REQUEST_HEADER_BYTES` with each request and let many wait for their answers.
    pub fn take_headers(&mut self) -> HeaderMap {
        std::mem::take(&mut self.head.headers)
    }

    /// Answers 200: the tunnel is open.
    pub fn accept(mut self, headers: HeaderMap) -> Result<Tunnel, HboneError> {
        let mut response = Response::new(());
        *response.headers_mut() = headers;
        let send = self.respond.send_response(response, false).map_err(HboneError::Broken)?;
        Ok(Tunnel::new(send, self.receive, self.credit, None))
    }

    /// Answers that there will be no tunnel.
    pub fn refuse(mut self, status: StatusCode) -> Result<(), HboneError> {
        let mut response = Response::new(());
        *response.status_mut() = status;
        self.respond.send_response(response, true).map_err(HboneError::Broken)?;
        Ok(())
    }

    /// Waits until the client has given up.
    pub async fn abandoned(&mut self) {
        // Whatever ends the wait, nobody waits for the answer any more.
        let _reason = std::future::poll_fn(|cx| self.respond.poll_reset(cx)).await;
    }
}

/// Serves an HBONE connection over an established TLS stream until it ends. `tunnel` is called for
/// every request and must not block. When the guard drains, GOAWAY asks the client to open its next
/// tunnels elsewhere; at the deadline the connection is closed with everything left in it.
pub async fn serve<IO>(
    io: IO,
    activity: Activity,
    settings: &Settings,
    guard: &Guard,
    mut tunnel: impl FnMut(Connect),
) -> Result<(), HboneError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let (io, driver) = cork(io);
    let credit = Credit::new(settings);
    let opening = Builder::new()
        .initial_window_size(credit.window())
        .initial_connection_window_size(FLOOR_BYTES)
        .max_frame_size(settings.frame_size_bytes)
        .max_header_list_size(MAX_REQUEST_HEADER_BYTES)
        .data_frame_budget(MAX_SMALL_FRAMES_BYTES)
        .max_concurrent_streams(MAX_SERVER_STREAMS)
        .max_send_buffer_size(MAX_SEND_BUFFER_BYTES)
        .handshake(io);
    let opened = tokio::time::timeout(PREFACE_TIMEOUT, opening).await;
    let opened = opened.map_err(|_| HboneError::Silent(PREFACE_TIMEOUT))?;
    let mut connection = opened.map_err(HboneError::Handshake)?;
    let pings = connection.ping_pong().expect("a new connection's PINGs are not taken yet");
    let mut asked = guard.clone();
    // What hardly ever happens is looked at when it happens, and not with every frame.
    let mut events: FuturesUnordered<LocalBoxFuture<'_, Event>> = FuturesUnordered::new();
    events.push(keepalive::watch(pings, activity).map(|()| Event::PeerGone).boxed_local());
    events.push(Box::pin(async {
        asked.draining().await;
        Event::Draining
    }));
    driver.start();
    loop {
        let accepted = std::future::poll_fn(|cx| {
            credit.adjust(cx, &mut connection);
            let request = connection.poll_accept(cx);
            driver.push(cx);
            credit.written(driver.is_full());
            request
        });
        tokio::select! {
            biased;
            request = accepted => match request {
                None => return Ok(()),
                Some(Err(error)) => return Err(HboneError::Broken(error)),
                Some(Ok((request, respond))) => {
                    let (head, receive) = request.into_parts();
                    tunnel(Connect { head, receive, respond, credit: credit.clone() });
                }
            },
            Some(event) = events.next() => match event {
                Event::PeerGone | Event::Overdue => return Ok(()),
                Event::Draining => {
                    connection.graceful_shutdown();
                    let mut late = guard.clone();
                    events.push(Box::pin(async move {
                        late.overdue().await;
                        Event::Overdue
                    }));
                }
            },
        }
    }
}

/// What may happen to a connection beside its requests.
enum Event {
    PeerGone,
    Draining,
    Overdue,
}
