//! The client's side of an HBONE connection.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use futures::future::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use h2::client::{Builder, SendRequest};
use http::{HeaderMap, Request, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::credit::{Credit, FLOOR_BYTES};
use super::piece::Piece;
use super::place::{Occupied, State};
use super::{
    Activity, HboneError, MAX_RESPONSE_HEADER_BYTES, MAX_SEND_BUFFER_BYTES, MAX_SMALL_FRAMES_BYTES,
    Settings, Tunnel, keepalive,
};
use crate::cork::cork;
use crate::drain::Guard;
use crate::pool::Connection;

/// The client's side of an HBONE connection. Closes when it is dropped and its last tunnel ends.
pub struct Client {
    requests: SendRequest<Piece>,
    state: Rc<State>,
    credit: Rc<Credit>,
}

impl Client {
    /// Opens an HBONE connection over an established TLS stream; its tasks run on this thread and
    /// end with the connection.
    pub async fn handshake<IO>(
        io: IO,
        activity: Activity,
        settings: &Settings,
        guard: &Guard,
    ) -> Result<Self, HboneError>
    where
        IO: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let (io, driver) = cork(io);
        let credit = Credit::new(settings);
        let (requests, mut connection) = Builder::new()
            .initial_window_size(credit.window())
            .initial_connection_window_size(FLOOR_BYTES)
            .max_frame_size(settings.frame_size_bytes)
            .max_header_list_size(MAX_RESPONSE_HEADER_BYTES)
            .data_frame_budget(MAX_SMALL_FRAMES_BYTES)
            .max_send_buffer_size(MAX_SEND_BUFFER_BYTES)
            .enable_push(false)
            .handshake(io)
            .await
            .map_err(HboneError::Handshake)?;
        let state = Rc::new(State {
            tunnels: Cell::new(0),
            idle_since: Cell::new(Instant::now()),
            closing: Cell::new(false),
        });
        let pings = connection.ping_pong().expect("a new connection's PINGs are not taken yet");
        let (driven, lent) = (state.clone(), credit.clone());
        driver.start();
        guard.spawn_local(async move {
            // Looked at when its time has come, and not with every frame.
            let mut watch = FuturesUnordered::from_iter([keepalive::watch(pings, activity)]);
            let connected = std::future::poll_fn(|cx| {
                lent.adjust(cx, &mut connection);
                let ended = connection.poll_unpin(cx);
                driver.push(cx);
                lent.written(driver.is_full());
                ended
            });
            tokio::select! {
                biased;
                ended = connected => if let Err(error) = ended {
                    tracing::debug!(%error, "HBONE connection ended");
                },
                Some(()) = watch.next() => {}
            }
            driven.closing.set(true);
        });
        Ok(Self { requests, state, credit })
    }

    /// Asks for a tunnel. The answer's headers come with it.
    pub async fn connect(&self, request: Request<()>) -> Result<(HeaderMap, Tunnel), HboneError> {
        let place = Occupied::new(&self.state);
        let ready = self.requests.clone().ready().await;
        let mut requests = ready.map_err(|error| self.closing(error))?;
        let (response, send) =
            requests.send_request(request, false).map_err(|error| self.closing(error))?;
        let response = response.await.map_err(|error| self.broken(error))?;
        let (head, receive) = response.into_parts();
        if head.status != StatusCode::OK {
            return Err(HboneError::Refused(head.status));
        }
        Ok((head.headers, Tunnel::new(send, receive, self.credit.clone(), Some(place))))
    }

    /// How many tunnels are open or being opened.
    pub fn tunnels(&self) -> usize {
        self.state.tunnels.get()
    }

    fn closing(&self, error: h2::Error) -> HboneError {
        self.state.closing.set(true);
        HboneError::Closing(error)
    }

    /// A tunnel that the peer has not touched may be tried again elsewhere (RFC 9113 section 8.7).
    fn broken(&self, error: h2::Error) -> HboneError {
        if error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR) {
            return self.closing(error);
        }
        if error.reason() == Some(h2::Reason::REFUSED_STREAM) {
            return HboneError::Closing(error);
        }
        if error.is_io() {
            self.state.closing.set(true);
        }
        HboneError::Broken(error)
    }
}

/// Its users are the tunnels that are open or being opened.
impl Connection for Client {
    fn has_room(&self, limit: usize) -> bool {
        let limit = limit.min(self.requests.current_max_send_streams());
        !self.state.closing.get() && self.state.tunnels.get() < limit
    }

    fn is_closing(&self) -> bool {
        self.state.closing.get()
    }

    fn idle(&self) -> Option<Duration> {
        (self.state.tunnels.get() == 0).then(|| self.state.idle_since.get().elapsed())
    }
}
