//! The server's side of an HBONE connection.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use ambit_wire::http2::{self, Role};
use futures::future::{FutureExt, LocalBoxFuture};
use futures::stream::{FuturesUnordered, StreamExt};
use http::{HeaderMap, Method, StatusCode, Uri};
use tokio::io::{AsyncRead, AsyncWrite};

use super::driver::Driver;
use super::link::Link;
use super::{Activity, HboneError, Settings, Tunnel, keepalive};
use crate::drain::Guard;
use crate::ended::Ended;

/// How long a client may take to begin HTTP/2 after the TLS handshake.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// A request for a tunnel. Dropped unanswered it is reset.
pub struct Connect {
    head: http2::Request,
    link: Rc<Link>,
    stream: u32,
    tunnel: Tunnel,
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
    pub fn accept(self, headers: HeaderMap) -> Result<Tunnel, HboneError> {
        let answered = self.link.respond(self.stream, StatusCode::OK, &headers, false);
        answered.map_err(HboneError::Broken)?;
        Ok(self.tunnel)
    }

    /// Answers that there will be no tunnel.
    pub fn refuse(self, status: StatusCode) -> Result<(), HboneError> {
        let answered = self.link.respond(self.stream, status, &HeaderMap::new(), true);
        answered.map_err(HboneError::Broken)
    }

    /// Waits until the client has given up.
    pub async fn abandoned(&mut self) {
        // Whatever ends the wait, nobody waits for the answer any more.
        let _ended = poll_fn(|cx| self.link.poll_ended(cx, self.stream)).await;
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
    let link = Link::new(Role::Server, settings);
    let mut driver = Driver::new(io, link.clone());
    let mut has_begun = false;
    let mut asked = guard.clone();
    // What hardly ever happens is looked at when it happens, and not with every frame.
    let mut events: FuturesUnordered<LocalBoxFuture<'_, Event>> = FuturesUnordered::new();
    events.push(tokio::time::sleep(PREFACE_TIMEOUT).map(|()| Event::Late).boxed_local());
    events.push(keepalive::watch(&link, activity).map(|()| Event::PeerGone).boxed_local());
    events.push(Box::pin(async {
        asked.draining().await;
        Event::Draining
    }));
    loop {
        let served = poll_fn(|cx| {
            let ended = driver.poll(cx);
            has_begun = has_begun || link.has_begun();
            match link.take_request() {
                Some(request) => Poll::Ready(Ok(Some(request))),
                None => ended.map_ok(|()| None),
            }
        });
        tokio::select! {
            biased;
            served = served => match served {
                Ok(None) if !has_begun => return Err(HboneError::Handshake(Ended::Closed)),
                Ok(None) => return Ok(()),
                Err(ended) if !has_begun => return Err(HboneError::Handshake(ended)),
                Err(ended) => return Err(HboneError::Broken(ended)),
                Ok(Some((stream, head))) => {
                    let link = link.clone();
                    let it = Tunnel::new(link.clone(), stream, None);
                    tunnel(Connect { head, link, stream, tunnel: it });
                }
            },
            Some(event) = events.next() => match event {
                Event::Late if has_begun => {}
                Event::Late => return Err(HboneError::Silent(PREFACE_TIMEOUT)),
                Event::PeerGone | Event::Overdue => return Ok(()),
                Event::Draining => {
                    link.leave();
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
    /// The client has had time enough to begin.
    Late,
    PeerGone,
    Draining,
    Overdue,
}
