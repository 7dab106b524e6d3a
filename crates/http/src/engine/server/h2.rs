//! A client's connection of HTTP/2: requests at once, each a task of its own.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use ambit_net::cork::{Cork, Driver, cork};
use ambit_net::drain::Guard;
use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Builder, Connection, SendResponse};
use tokio::time::{Instant, sleep_until, timeout};

use super::meter::Excess;
use super::metered::{Metered, Watch};
use crate::engine::answer::Answer;
use crate::engine::exchange::Request;
use crate::engine::piece::{Broken, Sink};
use crate::engine::position::{Arrival, Position};
use crate::engine::prefixed::Prefixed;
use crate::engine::record::{Flags, Protocol as Spoken, Record};
use crate::engine::respond::Respond;
use crate::engine::unread::OfConnection;
use crate::engine::upstream::h2::{Incoming, SEND_BUFFER_BYTES, Sending};
use crate::engine::{Engine, Settings, exchange, heads};
use crate::fields::{Fields, known::Known};
use crate::grammar;
use crate::h1::framing::{RequestBody, RequestFraming, ResponseBody};
use crate::h1::options::Protocol;
use crate::head::ResponseHead;

/// A client's connection.
type Served = Connection<Cork<Metered>, Bytes>;
/// A request, and where its response goes.
type Accepted = (http::Request<RecvStream>, SendResponse<Bytes>);

/// How much a request may send before it is read.
const WINDOW_BYTES: u32 = 256 * 1024;
/// The same for all of a connection.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;

/// How long a client may take to hear that the connection ends.
const GOAWAY_TIMEOUT: Duration = Duration::from_secs(5);
/// How often an ending connection is looked at from then on.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Serves requests until the connection ends.
pub(super) async fn serve<P: Position>(
    engine: &Rc<Engine<P>>,
    arrival: Rc<Arrival>,
    stream: Prefixed,
    guard: &Guard,
) {
    let settings = &engine.settings;
    let unread = engine.unread.connection();
    let (stream, watch) = Metered::new(stream, unread.clone());
    let Some((mut connection, driver)) = open(settings, stream).await else { return };
    let mut excess = pin!(excess(&watch, &unread, settings.head_timeout));
    let age = settings.age(|bound| engine.position.random_below(bound));
    let mut ends_at = age.map(|age| Instant::now() + age);
    let mut idle_at = Instant::now() + settings.idle_timeout;
    let mut ending = Ending::default();
    let mut withdrawn = Box::pin(engine.position.withdrawn(&arrival));
    let mut is_withdrawn = false;
    let (mut draining, mut overdue) = (guard.clone(), guard.clone());
    let mut is_draining = false;
    // Each request that is under way holds it too.
    let open = Rc::new(());
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = accept(&mut connection, &driver) => accepted,
            _ = draining.draining(), if !is_draining => {
                is_draining = true;
                ending.begin(&mut connection);
                continue;
            }
            () = &mut withdrawn, if !is_withdrawn => {
                is_withdrawn = true;
                ending.begin(&mut connection);
                continue;
            }
            () = overdue.overdue(), if is_draining => return,
            excess = &mut excess => return cut(engine, &arrival, connection, &driver, excess).await,
            () = sleep_until(ends_at.unwrap_or(idle_at)), if ends_at.is_some() => {
                ends_at = None;
                ending.begin(&mut connection);
                continue;
            }
            () = ending.look() => {
                if ending.has_ended(Rc::strong_count(&open) == 1) {
                    return;
                }
                continue;
            }
            () = sleep_until(idle_at) => {
                idle_at = Instant::now() + settings.idle_timeout;
                if Rc::strong_count(&open) == 1 {
                    ending.begin(&mut connection);
                }
                continue;
            }
        };
        let Some((request, mut respond)) = taken(accepted) else { return };
        idle_at = Instant::now() + settings.idle_timeout;
        if engine.is_closed() {
            ending.begin(&mut connection);
        }
        // A reset frees its place among the streams at once, but not what was begun for it.
        if Rc::strong_count(&open) > settings.max_streams as usize || ending.is_overdue {
            respond.send_reset(h2::Reason::REFUSED_STREAM);
            continue;
        }
        start(guard, engine, &arrival, (&open, &unread), (request, respond));
    }
}

/// Waits until a client does too much.
async fn excess(watch: &Watch, unread: &OfConnection, head_timeout: Duration) -> Excess {
    tokio::select! {
        excess = watch.excess(head_timeout) => excess,
        () = unread.stuck() => Excess::Unread,
    }
}

/// Ends the connection of a client that does too much.
async fn cut<P: Position>(
    engine: &Rc<Engine<P>>,
    arrival: &Arrival,
    mut connection: Served,
    driver: &Driver<Metered>,
    excess: Excess,
) {
    engine.position.cut(arrival, excess.as_str());
    connection.abrupt_shutdown(h2::Reason::ENHANCE_YOUR_CALM);
    let telling = async { while let Some(Ok(_)) = accept(&mut connection, driver).await {} };
    // It may not even read that.
    drop(timeout(GOAWAY_TIMEOUT, telling).await);
}

/// Begins HTTP/2 with a client.
async fn open(settings: &Settings, stream: Metered) -> Option<(Served, Driver<Metered>)> {
    let (stream, driver) = cork(stream);
    let opening = Builder::new()
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(settings.max_streams)
        .max_header_list_size(settings.limits.fields.bytes)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .handshake::<_, Bytes>(stream);
    match timeout(settings.head_timeout, opening).await {
        Ok(Ok(connection)) => {
            driver.start();
            Some((connection, driver))
        }
        Ok(Err(error)) => {
            tracing::debug!(%error, "a client does not speak HTTP/2");
            None
        }
        Err(_) => None,
    }
}

/// Starts a request, which holds `open` until it has ended.
fn start<P: Position>(
    guard: &Guard,
    engine: &Rc<Engine<P>>,
    arrival: &Rc<Arrival>,
    (open, unread): (&Rc<()>, &OfConnection),
    (request, respond): Accepted,
) {
    let (engine, arrival, open) = (engine.clone(), arrival.clone(), open.clone());
    let unread = unread.clone();
    guard.spawn_local(async move {
        let _held_to_the_end = open;
        one(&engine, &arrival, &unread, request, respond).await;
    });
}

/// A request, or the end of the connection.
fn taken(accepted: Option<Result<Accepted, h2::Error>>) -> Option<Accepted> {
    let accepted = accepted?;
    accepted.inspect_err(|error| tracing::debug!(%error, "a client's HTTP/2 broke")).ok()
}

/// The next request. What was written meanwhile is sent.
async fn accept(
    connection: &mut Served,
    driver: &Driver<Metered>,
) -> Option<Result<Accepted, h2::Error>> {
    poll_fn(|cx| {
        let accepted = connection.poll_accept(cx);
        driver.push(cx);
        accepted
    })
    .await
}

/// The end of a connection. A client is told, and answers a PING when it has heard (h2 waits for
/// that); one that does not answer gets no more requests, and is left when it has none.
#[derive(Default)]
struct Ending {
    /// When to look again.
    look_at: Option<Instant>,
    /// The client had time to hear of it.
    is_overdue: bool,
    was_empty: bool,
}

impl Ending {
    fn begin(&mut self, connection: &mut Served) {
        connection.graceful_shutdown();
        self.look_at.get_or_insert_with(|| Instant::now() + GOAWAY_TIMEOUT);
    }

    async fn look(&self) {
        match self.look_at {
            Some(at) => sleep_until(at).await,
            None => pending().await,
        }
    }

    /// Whether it is to be left. Between two looks the last answer is written.
    fn has_ended(&mut self, is_empty: bool) -> bool {
        let has_ended = is_empty && self.was_empty;
        self.was_empty = is_empty;
        self.is_overdue = true;
        self.look_at = Some(Instant::now() + LOOK_INTERVAL);
        has_ended
    }
}

/// Serves one request.
async fn one<P: Position>(
    engine: &Rc<Engine<P>>,
    arrival: &Rc<Arrival>,
    unread: &OfConnection,
    request: http::Request<RecvStream>,
    respond: SendResponse<Bytes>,
) {
    let limits = engine.settings.limits.fields;
    let (parts, stream) = request.into_parts();
    let is_head = parts.method == http::Method::HEAD;
    let body = unread.begin(Incoming::new(stream, limits));
    let mut respond = Responder { respond, sending: None, is_head };
    let head = match heads::request(parts, limits) {
        Ok(head) => head,
        Err(refused) => {
            let details = format!("{refused} ({})", refused.section());
            let answer = Answer::new(refused.status(), Flags::Malformed, "malformed", details);
            let mut record = Record::new(Spoken::Http2);
            let settings = &engine.settings;
            exchange::give(&mut respond, &answer, false, settings, &mut record, None).await;
            return engine.position.record(arrival, &record);
        }
    };
    let length = head.fields.first(Known::ContentLength);
    let length = length.and_then(|it| std::str::from_utf8(it).ok()?.parse().ok());
    let framing = RequestFraming {
        body: match length {
            _ if body.is_absent() => RequestBody::Absent,
            Some(length) => RequestBody::Sized(length),
            None => RequestBody::Chunked,
        },
        is_persistent: true,
        expects_continue: expects_continue(&head.fields),
        upgrade: None,
    };
    let request = Request { head, framing, protocol: Spoken::Http2 };
    // On the heap, where it is not moved again: a task is moved as it is spawned.
    Box::pin(exchange::exchange(engine, arrival, request, body, respond)).await;
}

fn expects_continue(fields: &Fields) -> bool {
    let mut expectations = fields.all(Known::Expect).flat_map(grammar::members);
    expectations.any(|it| it.eq_ignore_ascii_case(b"100-continue"))
}

struct Responder {
    respond: SendResponse<Bytes>,
    sending: Option<Sending>,
    is_head: bool,
}

impl Sink for Responder {
    fn put(&mut self, data: Bytes) {
        if let Some(sending) = self.sending.as_mut().filter(|_| !self.is_head) {
            sending.put(data);
        }
    }

    fn finish(&mut self, trailers: Option<Fields>) {
        if let Some(sending) = self.sending.as_mut().filter(|it| !it.has_ended()) {
            sending.finish(trailers);
        }
    }

    fn is_pending(&self) -> bool {
        self.sending.as_ref().is_some_and(Sending::is_pending)
    }

    fn is_full(&self) -> bool {
        self.sending.as_ref().is_some_and(Sending::is_full)
    }

    async fn flush(&mut self) -> Result<(), Broken> {
        match &mut self.sending {
            Some(sending) => sending.flush().await,
            None => Ok(()),
        }
    }

    async fn gone(&mut self) {
        // Whatever ends the wait, nobody waits for the answer any more.
        let _reason = match &mut self.sending {
            Some(sending) => sending.reset_by_peer().await,
            None => poll_fn(|cx| self.respond.poll_reset(cx)).await,
        };
    }
}

impl Respond for Responder {
    fn inform(&mut self, head: &ResponseHead) {
        if let Err(error) = self.respond.send_informational(heads::to_response(head)) {
            tracing::debug!(%error, "a 1xx answer is left out");
        }
    }

    fn begin(
        &mut self,
        head: &ResponseHead,
        body: ResponseBody,
        _: Option<Protocol>,
    ) -> Result<(), Broken> {
        // Behind an empty body trailers may come.
        let is_end = self.is_head || matches!(body, ResponseBody::Absent { .. });
        let mut response = heads::to_response(head);
        if let ResponseBody::Sized(length) | ResponseBody::Absent { length: Some(length) } = body {
            response.headers_mut().insert(http::header::CONTENT_LENGTH, length.into());
        }
        let stream = self.respond.send_response(response, is_end)?;
        self.sending = Some(if is_end { Sending::ended(stream) } else { Sending::new(stream) });
        Ok(())
    }

    fn has_begun(&self) -> bool {
        self.sending.is_some()
    }

    fn abort(&mut self) {
        match &mut self.sending {
            Some(sending) => sending.reset(h2::Reason::INTERNAL_ERROR),
            None => self.respond.send_reset(h2::Reason::INTERNAL_ERROR),
        }
    }
}
