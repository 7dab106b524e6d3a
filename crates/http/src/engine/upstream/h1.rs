//! One connection of HTTP/1.1 to an endpoint: one request after the other.

use std::time::Duration;

use bytes::BytesMut;
use tokio::time::timeout;

use crate::engine::halves::{BoxStream, halves};
use crate::engine::inbox::{Body, Inbox};
use crate::engine::loads::UnderWay;
use crate::engine::outbox::{Framing, Outbox};
use crate::engine::piece::{Broken, Piece};
use crate::engine::upstream::heard::Heard;
use crate::h1::framing::{self, Asked, RequestBody, RequestFraming};
use crate::h1::parse::{Limits, Progress};
use crate::h1::write;
use crate::head::RequestHead;

/// How long a server that is told that nothing follows may take to close its side.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection.
pub(crate) struct Connection {
    inbox: Inbox,
    outbox: Outbox,
    answer: Answer,
    limits: Limits,
    /// It has carried a whole exchange before: the server may close it at any time.
    pub(crate) is_used: bool,
    /// Requests that it has carried.
    pub(crate) carried: u32,
    /// Its place among the service's connections; that of a probe has none.
    pub(crate) place: Option<UnderWay>,
}

/// How far the answer is read.
struct Answer {
    asked: Asked,
    progress: Progress,
    body: Body,
    /// The server keeps the connection, as far as it has said.
    is_persistent: bool,
    has_head: bool,
    has_begun: bool,
}

impl Connection {
    pub(crate) fn new(stream: BoxStream, limits: Limits, place: Option<UnderWay>) -> Self {
        let (read, write) = halves(stream);
        let answer = Answer {
            asked: Asked::Other,
            progress: Progress::default(),
            body: Body::Ended,
            is_persistent: true,
            has_head: false,
            has_begun: false,
        };
        let (inbox, outbox) = (Inbox::new(read, BytesMut::new()), Outbox::new(write));
        Self { inbox, outbox, answer, limits, is_used: false, carried: 0, place }
    }

    /// Whether the server has neither closed it nor said anything unasked.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.inbox.is_quiet()
    }

    /// Puts a request's head in.
    pub(crate) fn send(&mut self, head: &RequestHead, framing: &RequestFraming) {
        let body = match framing.body {
            _ if framing.upgrade.is_some() => Framing::UntilClose,
            RequestBody::Absent => Framing::Absent,
            RequestBody::Sized(_) => Framing::Plain,
            RequestBody::Chunked => Framing::Chunked,
        };
        self.carried += 1;
        self.answer = Answer {
            asked: Asked::of(head, framing),
            progress: Progress::default(),
            body: Body::Ended,
            is_persistent: true,
            has_head: false,
            has_begun: false,
        };
        self.outbox.head(body, |out| {
            write::request(head, framing.body, framing.upgrade, false, out);
        });
    }

    /// Both sides of the exchange.
    pub(crate) fn sides(&mut self) -> (&mut Outbox, Reading<'_>) {
        let Self { inbox, outbox, answer, limits, .. } = self;
        (outbox, Reading { inbox, answer, limits })
    }

    /// Whether any byte of an answer has come.
    pub(crate) fn has_answered(&self) -> bool {
        self.answer.has_begun || self.inbox.has_begun()
    }

    /// Whether the whole answer was read, and nothing is to be sent.
    pub(crate) fn is_answered(&self) -> bool {
        self.answer.has_head && self.answer.body.has_ended() && !self.outbox.is_pending()
    }

    /// Whether the server takes another request, as far as it has said.
    pub(crate) fn is_persistent(&self) -> bool {
        self.answer.is_persistent
    }

    /// Closes it in good order: the server is told that nothing follows, and closes its side. What
    /// is dropped instead looks to who carries it as if it broke.
    pub(crate) async fn leave(mut self) {
        self.outbox.end();
        let leaving = async {
            self.outbox.flush().await?;
            self.inbox.ended().await.map_err(Broken::Io)
        };
        // It is closed either way.
        drop(timeout(LEAVE_TIMEOUT, leaving).await);
    }
}

/// The side that reads.
pub(crate) struct Reading<'a> {
    inbox: &'a mut Inbox,
    answer: &'a mut Answer,
    limits: &'a Limits,
}

impl Reading<'_> {
    pub(crate) async fn head(&mut self) -> Result<Heard, Broken> {
        let Self { inbox, answer, limits } = self;
        let mut head = inbox.response(limits, &mut answer.progress).await?;
        answer.has_begun = true;
        let framing = framing::response(&mut head, answer.asked)?;
        if head.status.is_informational() && head.status.code() != 101 {
            return Ok(Heard::Informational(head));
        }
        answer.has_head = true;
        answer.is_persistent = framing.is_persistent;
        answer.body = Body::of_response(framing.body, limits);
        Ok(Heard::Final(head, framing))
    }

    pub(crate) async fn piece(&mut self) -> Result<Option<Piece>, Broken> {
        self.answer.body.piece(self.inbox).await
    }
}
