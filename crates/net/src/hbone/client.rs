//! The client's side of an HBONE connection.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use ambit_wire::http2::{Reason, Role};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::driver::Driver;
use super::early::{Early, FRESH};
use super::link::Link;
use super::place::{Occupied, State};
use super::{Activity, HboneError, Settings, Tunnel, keepalive};
use crate::drain::Guard;
use crate::ended::Ended;
use crate::pool::Connection;

/// The client's side of an HBONE connection. Closes when it is dropped and its last tunnel ends.
pub struct Client {
    link: Rc<Link>,
    state: Rc<State>,
    /// When the peer has answered a CONNECT, the last time.
    answered: Cell<Option<Instant>>,
}

impl Client {
    /// Opens an HBONE connection over an established TLS stream; its task runs on this thread and
    /// ends with the connection.
    pub fn start<IO>(io: IO, activity: Activity, settings: &Settings, guard: &Guard) -> Self
    where
        IO: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let link = Link::new(Role::Client, settings);
        let state = Rc::new(State { tunnels: Cell::new(0), idle_since: Cell::new(Instant::now()) });
        let mut driver = Driver::new(io, link.clone());
        let watched = link.clone();
        let mut late = guard.clone();
        guard.spawn_local(async move {
            let mut overdue = pin!(late.overdue());
            let driven = poll_fn(|cx| match driver.poll(cx) {
                // Its tunnels have ended: who waits for the drain waits no longer for the peer.
                Poll::Pending if driver.is_leaving() => overdue.as_mut().poll(cx).map(Ok),
                polled => polled,
            });
            tokio::select! {
                biased;
                ended = driven => if let Err(error) = ended {
                    tracing::debug!(%error, "HBONE connection ended");
                },
                () = keepalive::watch(&watched, activity) => {}
            }
        });
        Self { link, state, answered: Cell::new(None) }
    }

    /// Asks for a tunnel. The answer's headers come with it.
    pub async fn connect(&self, request: Request<()>) -> Result<(HeaderMap, Tunnel), HboneError> {
        self.connect_early(request, None).await
    }

    /// Asks for a tunnel, and sends along what the client has said by now, if the peer takes it.
    pub async fn connect_early(
        &self,
        request: Request<()>,
        early: Option<&Early<'_>>,
    ) -> Result<(HeaderMap, Tunnel), HboneError> {
        let place = Occupied::new(&self.state);
        let said = early.map_or(Ok(Bytes::new()), |early| self.look(early))?;
        let (head, ()) = request.into_parts();
        let authority = head.uri.authority().map_or("", |authority| authority.as_str());
        let opened = self.link.connect(authority, &head.headers).await;
        // Dropped before the answer it is reset.
        let stream = opened.map_err(HboneError::Closing)?;
        let mut tunnel = Tunnel::new(self.link.clone(), stream, Some(place));
        if let Some(early) = early {
            self.send_early(said, stream, &mut tunnel, early)?;
        }
        let answer = poll_fn(|cx| self.link.poll_answer(cx, stream)).await.map_err(broken);
        if let Some(early) = early
            && matches!(answer, Ok(_) | Err(HboneError::Closing(_)))
        {
            early.set_spent(false);
        }
        let answer = answer?;
        self.answered.set(Some(Instant::now()));
        if answer.status != StatusCode::OK {
            return Err(HboneError::Refused(answer.status));
        }
        Ok((answer.headers, tunnel))
    }

    /// What the client has said, if the peer takes it early and is surely there.
    fn look(&self, early: &Early<'_>) -> Result<Bytes, HboneError> {
        if !self.is_fresh() || !self.link.takes_early_data() {
            return Ok(Bytes::new());
        }
        early.look().map_err(HboneError::Client)
    }

    fn is_fresh(&self) -> bool {
        self.answered.get().is_some_and(|it| it.elapsed() < FRESH)
    }

    fn send_early(
        &self,
        mut said: Bytes,
        stream: u32,
        tunnel: &mut Tunnel,
        early: &Early<'_>,
    ) -> Result<(), HboneError> {
        said.truncate(self.link.early_room(stream));
        // The request may have waited for its place.
        if said.is_empty() || !self.is_fresh() {
            return Ok(());
        }
        early.set_spent(true);
        tunnel.send_ahead(said).map_err(broken)
    }

    /// How many tunnels are open or being opened.
    pub fn tunnels(&self) -> usize {
        self.state.tunnels.get()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.link.unwanted();
    }
}

/// A tunnel that the peer has not touched may be tried again elsewhere (RFC 9113 section 8.7).
fn broken(ended: Ended) -> HboneError {
    match ended {
        Ended::Untouched(_) | Ended::Reset(Reason::REFUSED_STREAM) => HboneError::Closing(ended),
        ended => HboneError::Broken(ended),
    }
}

/// Its users are the tunnels that are open or being opened.
impl Connection for Client {
    fn has_room(&self, limit: usize) -> bool {
        // A peer that takes none for now will hardly take any on another connection: who wants one
        // waits for it here, as long as for any answer. A peer that is never ready would else cost
        // a connection for each who asks.
        let limit = match self.link.max_streams() {
            0 => limit,
            most => limit.min(most),
        };
        let has_room = self.state.tunnels.get() < limit;
        has_room && !self.link.is_closing() && !self.link.is_stuck()
    }

    fn is_closing(&self) -> bool {
        self.link.is_closing()
    }

    fn idle(&self) -> Option<Duration> {
        (self.state.tunnels.get() == 0).then(|| self.state.idle_since.get().elapsed())
    }
}
