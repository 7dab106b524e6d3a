//! A client's connection of HTTP/1: one request after the other.

use std::rc::Rc;
use std::time::Duration;

use ambit_net::drain::Guard;
use bytes::{Bytes, BytesMut};
use tokio::time::{Instant, sleep, timeout};

use crate::engine::answer::Answer;
use crate::engine::exchange::Request;
use crate::engine::halves::{BoxStream, halves};
use crate::engine::inbox::{Body, Inbox};
use crate::engine::outbox::{Framing, Outbox};
use crate::engine::piece::{Broken, Piece, Sink, Source};
use crate::engine::position::{Arrival, Position};
use crate::engine::record::{Flags, Protocol as Spoken, Record};
use crate::engine::respond::Respond;
use crate::engine::{Engine, exchange};
use crate::fields::Fields;
use crate::h1::framing::{self, RequestFraming, ResponseBody};
use crate::h1::options::Protocol;
use crate::h1::write::{self, Client};
use crate::head::{RequestHead, ResponseHead, Version};

/// How much of a request that was answered early is read, so that its client reads the answer.
const LEFT_BYTES_MAX: usize = 256 * 1024;
/// How long that may take.
const LEFT_TIME_MAX: Duration = Duration::from_secs(2);

/// How long a connection that is to end waits for one more request.
const LAST_CALL: Duration = Duration::from_secs(3);

/// Serves requests until the connection ends. What happens once in its life is on the heap then: an
/// idle connection is small.
pub(super) async fn serve<P: Position>(
    engine: &Rc<Engine<P>>,
    arrival: Rc<Arrival>,
    stream: BoxStream,
    first: BytesMut,
    guard: &Guard,
) {
    let (read, write) = halves(stream);
    let (mut inbox, mut outbox) = (Inbox::new(read, first), Outbox::new(write));
    let settings = &engine.settings;
    let age = settings.age(|bound| engine.position.random_below(bound));
    let ends_at = age.map(|age| Instant::now() + age);
    let mut leaving = Box::pin(leaves(engine, &arrival, guard.clone()));
    let mut is_leaving = false;
    loop {
        // A connection that is closed between two requests may meet the next one on its way, so
        // the client is told with an answer. Only one that asks for nothing is closed without.
        let idle_timeout = if is_leaving { LAST_CALL } else { settings.idle_timeout };
        let begins = tokio::select! {
            biased;
            () = &mut leaving, if !is_leaving => {
                is_leaving = true;
                continue;
            }
            begins = timeout(idle_timeout, inbox.begins()) => begins,
        };
        if !matches!(begins, Ok(Ok(true))) {
            return Box::pin(finish(&mut inbox, &mut outbox)).await;
        }
        let Some((head, framing)) = head(engine, &arrival, &mut inbox, &mut outbox).await else {
            return Box::pin(finish(&mut inbox, &mut outbox)).await;
        };
        let is_ending = is_leaving || engine.is_closed();
        let is_last = is_ending || ends_at.is_some_and(|at| Instant::now() >= at);
        let client =
            Client { version: head.version(), is_persistent: framing.is_persistent && !is_last };
        let mut body = Body::of_request(framing.body, &settings.limits);
        let (mut is_persistent, mut is_aborted) = (false, false);
        let protocol = match head.version() {
            Version::Http10 => Spoken::Http10,
            Version::Http11 => Spoken::Http11,
        };
        let is_head = head.method().is_head();
        let responder = Responder {
            outbox: &mut outbox,
            client,
            is_head,
            has_begun: false,
            is_withheld: framing.expects_continue,
            is_aborted: &mut is_aborted,
            is_persistent: &mut is_persistent,
        };
        let half_close_timeout = settings.half_close_timeout;
        let arriving = Arriving { inbox: &mut inbox, body: &mut body, half_close_timeout };
        let request = Request { head, framing, protocol };
        // On the heap for as long as it lasts: an idle connection is small.
        Box::pin(exchange::exchange(engine, &arrival, request, arriving, responder)).await;
        let limit = if is_aborted { LEFT_TIME_MAX } else { settings.stream_idle_timeout };
        if !matches!(timeout(limit, outbox.flush()).await, Ok(Ok(()))) || is_aborted {
            // An end in good order would make half a response a whole one.
            return;
        }
        if !is_persistent {
            return Box::pin(finish(&mut inbox, &mut outbox)).await;
        }
        if !body.has_ended() && !Box::pin(discard(&mut body, &mut inbox)).await {
            return Box::pin(finish(&mut inbox, &mut outbox)).await;
        }
    }
}

/// Waits until the client must connect again: here nothing new is served any more.
async fn leaves<P: Position>(engine: &Engine<P>, arrival: &Arrival, mut guard: Guard) {
    tokio::select! {
        _ = guard.draining() => {}
        () = engine.position.withdrawn(arrival) => {}
    }
}

/// Reads a request's head; `None` if there is none, which was answered then.
async fn head<P: Position>(
    engine: &Rc<Engine<P>>,
    arrival: &Rc<Arrival>,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Option<(RequestHead, RequestFraming)> {
    let settings = &engine.settings;
    let reading = inbox.request(arrival.scheme, &settings.limits);
    let read = match timeout(settings.head_timeout, reading).await {
        Ok(Ok(mut head)) => framing::request(&mut head).map(|framing| (head, framing)),
        Ok(Err(Broken::Refused(refused))) => Err(refused),
        Ok(Err(_)) => return None,
        Err(_) => {
            let details = "the head did not come in time".to_owned();
            Box::pin(refuse(engine, arrival, outbox, 408, details)).await;
            return None;
        }
    };
    match read {
        Ok(read) => Some(read),
        Err(refused) => {
            let details = format!("{refused} ({})", refused.section());
            Box::pin(refuse(engine, arrival, outbox, refused.status(), details)).await;
            None
        }
    }
}

/// Answers what is no request, and closes.
async fn refuse<P: Position>(
    engine: &Rc<Engine<P>>,
    arrival: &Rc<Arrival>,
    outbox: &mut Outbox,
    status: u16,
    details: String,
) {
    let answer = Answer::new(status, Flags::Malformed, "malformed", details);
    let (head, body) = answer.message(false, engine.settings.says_why);
    let client = Client { version: Version::Http11, is_persistent: false };
    outbox.head(Framing::Plain, |out| {
        write::response(&head, ResponseBody::Sized(body.len() as u64), None, client, out);
    });
    outbox.put(&body);
    // Who sends what is no HTTP may not read either.
    let _written = timeout(LEFT_TIME_MAX, outbox.flush()).await;
    let mut record = Record::new(Spoken::Http11);
    exchange::note(&mut record, &answer);
    record.status = status;
    engine.position.record(arrival, &record);
}

/// Ends the connection in good order, and reads for a moment what still comes: one that is closed
/// with unread bytes is reset, and the client may never see the answer.
async fn finish(inbox: &mut Inbox, outbox: &mut Outbox) {
    outbox.end();
    if !matches!(timeout(LEFT_TIME_MAX, outbox.flush()).await, Ok(Ok(()))) {
        return;
    }
    let mut rest = Body::UntilClose;
    discard(&mut rest, inbox).await;
}

/// Reads what is left of a body; false if that is too much.
async fn discard(body: &mut Body, inbox: &mut Inbox) -> bool {
    let reading = async {
        let mut left = LEFT_BYTES_MAX;
        loop {
            match body.piece(inbox).await {
                Ok(Some(Piece::Data(data))) if data.len() <= left => left -= data.len(),
                Ok(Some(Piece::Trailers(_))) => {}
                Ok(None) => return true,
                Ok(Some(_)) | Err(_) => return false,
            }
        }
    };
    timeout(LEFT_TIME_MAX, reading).await.unwrap_or(false)
}

/// The request's body.
struct Arriving<'a> {
    inbox: &'a mut Inbox,
    body: &'a mut Body,
    /// How long a client that has closed its direction may wait for an answer.
    half_close_timeout: Duration,
}

impl Source for Arriving<'_> {
    async fn piece(&mut self) -> Result<Option<Piece>, Broken> {
        self.body.piece(self.inbox).await
    }

    fn become_tunnel(&mut self) {
        *self.body = Body::UntilClose;
    }

    async fn gone(&mut self) -> Broken {
        // A closed direction may be the first half of leaving, or all that the client has to say.
        if let Err(error) = self.inbox.ended().await {
            return error.into();
        }
        sleep(self.half_close_timeout).await;
        Broken::Closed
    }
}

/// Where the answer goes.
struct Responder<'a> {
    outbox: &'a mut Outbox,
    client: Client,
    is_head: bool,
    has_begun: bool,
    /// The client holds its body back until 100: without that it may never send it.
    is_withheld: bool,
    /// Whether the answer could not be finished.
    is_aborted: &'a mut bool,
    /// Whether the client may send another request; it is set when the answer is whole.
    is_persistent: &'a mut bool,
}

impl Sink for Responder<'_> {
    fn put(&mut self, data: Bytes) {
        self.outbox.put(&data);
    }

    fn finish(&mut self, trailers: Option<Fields>) {
        self.outbox.finish(trailers.as_ref());
        *self.is_persistent = self.client.is_persistent && !*self.is_aborted;
    }

    fn is_pending(&self) -> bool {
        self.outbox.is_pending()
    }

    fn is_full(&self) -> bool {
        self.outbox.is_full()
    }

    async fn flush(&mut self) -> Result<(), Broken> {
        self.outbox.flush().await
    }
}

impl Respond for Responder<'_> {
    fn inform(&mut self, head: &ResponseHead) {
        self.is_withheld &= head.status.code() != 100;
        // A client of HTTP/1.0 does not know them (RFC 9110, 15.2).
        if self.client.version == Version::Http11 {
            let (body, client) = (ResponseBody::Absent { length: None }, self.client);
            self.outbox.head(Framing::Absent, |out| {
                write::response(head, body, None, client, out);
            });
        }
    }

    fn begin(
        &mut self,
        head: &ResponseHead,
        body: ResponseBody,
        upgrade: Option<Protocol>,
    ) -> Result<(), Broken> {
        let body = match body {
            ResponseBody::Sized(_) | ResponseBody::Chunked | ResponseBody::UntilClose
                if matches!(head.status.code(), 204 | 304) =>
            {
                ResponseBody::Absent { length: None }
            }
            ResponseBody::Sized(size) if self.is_head => {
                ResponseBody::Absent { length: Some(size) }
            }
            ResponseBody::Chunked | ResponseBody::UntilClose if self.is_head => {
                ResponseBody::Absent { length: None }
            }
            body => body,
        };
        self.client.is_persistent &= !self.is_withheld;
        let client = self.client;
        let mut written = None;
        self.outbox.head(Framing::Absent, |out| {
            written = Some(write::response(head, body, upgrade, client, out));
        });
        let written = written.expect("a head was written");
        self.client.is_persistent = written.is_persistent;
        self.outbox.frame(match written.body {
            ResponseBody::Absent { .. } => Framing::Absent,
            ResponseBody::Sized(_) => Framing::Plain,
            ResponseBody::Chunked => Framing::Chunked,
            ResponseBody::UntilClose | ResponseBody::Tunnel => Framing::UntilClose,
        });
        self.has_begun = true;
        Ok(())
    }

    fn has_begun(&self) -> bool {
        self.has_begun
    }

    fn abort(&mut self) {
        *self.is_aborted = true;
        *self.is_persistent = false;
    }
}
