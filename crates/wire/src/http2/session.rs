//! The state machine of a connection: its state, and what our side does. `reading.rs` has what the
//! peer does.
//!
//! | a stream | is in the table | takes bytes from the peer | may send |
//! |---|---|---|---|
//! | open | yes | yes | within both windows |
//! | that the peer has ended | yes | no: an error of the stream | within both windows |
//! | that we have finished | yes | yes | no |
//! | that either side has reset | yes | dropped | no |
//! | that our side has let go of | no | dropped | no |
//!
//! A stream stays in the table until [`Session::close`]. What our side still has to do with counts,
//! however often the peer has reset it: the table has room for twice the peer's limit. Dropped
//! bytes are given back to the connection's window at once.
//!
//! Two windows hold a sender, that of its stream and that of the connection. Bytes count as held
//! from [`Event::Data`] to [`Session::release`]; then the peer gets credit for them, in steps of
//! half a window.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};

use super::frame::{self, HEAD_BYTES, Head, PREFACE, flag, kind, setting};
use super::head::{self, Request, Response};
use super::hpack::{self, Decoder};
use super::windows::{Incoming, Outgoing};
use super::{Fault, Limits, Reason, Role};

/// Windows and frames before SETTINGS say otherwise (RFC 9113 section 6.5.2).
pub(super) const DEFAULT_WINDOW_BYTES: u32 = 65_535;
pub(super) const DEFAULT_FRAME_BYTES: u32 = 16_384;
/// The highest number of a stream.
pub(super) const LAST_STREAM: u32 = (1 << 31) - 1;
/// SETTINGS that the peer has not acknowledged.
const MAX_UNACKNOWLEDGED: usize = 1;
/// The PING behind a GOAWAY: with its answer all requests are here that were under way.
pub(super) const LEAVING: [u8; 8] = *b"leaving.";

/// What the peer's bytes mean.
#[derive(Debug)]
pub enum Event {
    /// A new stream (server).
    Request {
        /// Its number.
        stream: u32,
        /// What is asked.
        head: Request,
        /// Nothing follows it.
        is_last: bool,
    },
    /// The answer to a request (client).
    Response {
        /// Of this stream.
        stream: u32,
        /// What is answered.
        head: Response,
        /// Nothing follows it.
        is_last: bool,
    },
    /// Bytes, maybe none.
    Data {
        /// Of this stream.
        stream: u32,
        /// They count as held until [`Session::release`].
        bytes: Bytes,
        /// Nothing follows them.
        is_last: bool,
    },
    /// The stream is over, in both directions; by the peer, or for what it did.
    Reset {
        /// This stream.
        stream: u32,
        /// Why.
        reason: Reason,
    },
    /// More may be sent than before: on this stream, or on all of them.
    Window {
        /// `None`: all.
        stream: Option<u32>,
    },
    /// The peer takes no new streams, and has not touched those above `last`.
    Leaving {
        /// The last stream that it has seen to.
        last: u32,
        /// Why.
        reason: Reason,
    },
    /// The answer to [`Session::ping`].
    Pong([u8; 8]),
}

/// What the next bytes are.
#[derive(Debug)]
pub(super) enum Reading {
    Preface,
    /// The peer's first frame has to be SETTINGS.
    FirstHead,
    Head,
    /// The payload of DATA; `None`: nobody takes it.
    Data {
        stream: Option<u32>,
        bytes: usize,
        padding: usize,
        is_last: bool,
    },
}

/// A block of fields that is not whole yet.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) bytes: BytesMut,
    pub(super) is_last: bool,
    /// Frames that it came in, beside the first.
    pub(super) continuations: u32,
}

#[derive(Debug)]
pub(super) struct Stream {
    /// Odd: the client has opened it.
    pub(super) number: u32,
    /// What the peer may send.
    pub(super) incoming: Incoming,
    /// What we may send, beside [`Peer::window`].
    pub(super) outgoing: Outgoing,
    /// The peer has answered (client).
    pub(super) is_answered: bool,
    /// The peer says nothing more.
    pub(super) has_ended: bool,
    /// We say nothing more.
    pub(super) is_finished: bool,
    /// One side has reset it.
    pub(super) is_reset: bool,
}

/// What the peer's SETTINGS say.
#[derive(Debug)]
pub(super) struct Peer {
    /// The window that its streams begin with.
    pub(super) window: u32,
    /// Payload of a frame.
    pub(super) frame_bytes: u32,
    /// Streams that it takes at once.
    pub(super) streams: u32,
    /// It says that DATA may follow a CONNECT at once.
    pub(super) takes_early_data: bool,
}

/// Whether we take new streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    No,
    /// GOAWAY was sent; what is under way is still taken.
    Asked,
    /// No stream is taken any more.
    Done,
}

/// One connection.
#[derive(Debug)]
pub struct Session {
    /// Which end this is.
    pub(super) role: Role,
    /// What the peer may do.
    pub(super) limits: Limits,
    /// The table of the peer's fields.
    pub(super) decoder: Decoder,
    /// What the next bytes are.
    pub(super) reading: Reading,
    /// Nothing but its CONTINUATION may come while there is one.
    pub(super) block: Option<Block>,
    /// By number. Those that our side has not let go of.
    pub(super) streams: Vec<Stream>,
    /// The highest number that the peer has used.
    pub(super) last_theirs: u32,
    /// The number of the next stream that we open.
    pub(super) next_own: u32,
    /// What we may do.
    pub(super) peer: Peer,
    /// The window of streams, as the peer has acknowledged it.
    pub(super) window: u32,
    /// Windows that it has not acknowledged yet.
    pub(super) unacknowledged: VecDeque<u32>,
    /// What the peer may send.
    pub(super) incoming: Incoming,
    /// What we may send, beside the size that no SETTINGS change.
    pub(super) outgoing: Outgoing,
    /// No stream may be sent more on than this makes of a window.
    pub(super) most_outgoing: Outgoing,
    /// Whether we take new streams.
    pub(super) leaving: Leaving,
    /// The last stream of theirs that GOAWAY has named.
    pub(super) announced: Option<u32>,
    /// The peer takes no new streams.
    pub(super) is_left: bool,
    /// The peer's table is smaller than usual, and the next block has to say that we use none.
    pub(super) says_no_table: bool,
    /// Empty frames of DATA in a row.
    pub(super) empty_frames: u32,
    /// Blocks of fields that were of no use and are not forgiven.
    pub(super) useless: u32,
    /// What has to be sent.
    pub(super) output: BytesMut,
    /// The part of it that answers the peer's frames.
    pub(super) reply_bytes: usize,
}

impl Session {
    /// A new connection; its first words wait in the output.
    pub fn new(role: Role, limits: Limits) -> Self {
        let mut output = BytesMut::new();
        let mut settings = vec![
            (setting::INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
            (setting::MAX_FRAME_SIZE, limits.frame_bytes),
            (setting::MAX_HEADER_LIST_SIZE, limits.field_bytes),
        ];
        match role {
            Role::Client => {
                output.extend_from_slice(PREFACE);
                settings.push((setting::ENABLE_PUSH, 0));
            }
            Role::Server => {
                settings.push((setting::MAX_CONCURRENT_STREAMS, limits.streams));
                settings.push((setting::EARLY_DATA, 1));
            }
        }
        frame::put_settings(&settings, &mut output);
        Self {
            role,
            limits,
            decoder: Decoder::new(),
            reading: if role == Role::Server { Reading::Preface } else { Reading::FirstHead },
            block: None,
            streams: Vec::new(),
            last_theirs: 0,
            next_own: 1,
            peer: Peer {
                window: DEFAULT_WINDOW_BYTES,
                frame_bytes: DEFAULT_FRAME_BYTES,
                streams: u32::MAX,
                takes_early_data: false,
            },
            window: DEFAULT_WINDOW_BYTES,
            unacknowledged: VecDeque::from([limits.stream_window_bytes]),
            incoming: Incoming::new(DEFAULT_WINDOW_BYTES),
            outgoing: Outgoing::default(),
            most_outgoing: Outgoing::default(),
            leaving: Leaving::No,
            announced: None,
            is_left: false,
            says_no_table: false,
            empty_frames: 0,
            useless: 0,
            output,
            reply_bytes: 0,
        }
    }

    /// What has to be sent, in order, before any frame whose head is made later.
    pub fn take_output(&mut self) -> BytesMut {
        self.reply_bytes = 0;
        self.output.split()
    }

    /// How much has to be sent.
    pub fn output_bytes(&self) -> usize {
        self.output.len()
    }

    /// Whether something has to be sent.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Opens a stream with a CONNECT (client). `None` if the peer takes no more of them now.
    pub fn connect(&mut self, authority: &str, headers: &HeaderMap) -> Option<u32> {
        let has_room = (self.streams.len() as u64) < u64::from(self.peer.streams);
        // With the last number the connection has done all that it can.
        self.is_left |= self.next_own > LAST_STREAM;
        if self.is_left || !has_room {
            return None;
        }
        let number = self.next_own;
        self.next_own += 2;
        let mut block = self.begin_block();
        head::encode_connect(authority, headers, &mut block);
        let most = self.peer.frame_bytes as usize;
        frame::put_block(number, &block, false, most, &mut self.output);
        self.streams.push(self.stream(number));
        Some(number)
    }

    /// Answers a request (server).
    pub fn respond(&mut self, stream: u32, status: StatusCode, headers: &HeaderMap, is_last: bool) {
        let open = find(&mut self.streams, stream).filter(|it| !it.is_reset && !it.is_finished);
        let Some(it) = open else { return };
        it.is_finished = is_last;
        let mut block = self.begin_block();
        head::encode_response(status, headers, &mut block);
        let most = self.peer.frame_bytes as usize;
        frame::put_block(stream, &block, is_last, most, &mut self.output);
    }

    /// How many bytes the stream may send now.
    pub fn sendable(&self, stream: u32) -> usize {
        let it = self.find(stream).filter(|it| !it.is_reset && !it.is_finished);
        it.map_or(0, |it| it.outgoing.open(self.peer.window).min(self.connection_window()))
    }

    /// How much of the window of all streams is left.
    pub fn connection_window(&self) -> usize {
        self.outgoing.open(DEFAULT_WINDOW_BYTES)
    }

    /// The most that one frame may carry.
    pub fn frame_bytes(&self) -> usize {
        self.peer.frame_bytes as usize
    }

    /// The head of a frame of DATA. At most [`Self::sendable`] and [`Self::frame_bytes`].
    pub fn data(&mut self, stream: u32, bytes: usize, is_last: bool) -> [u8; HEAD_BYTES] {
        self.outgoing.send(bytes);
        if let Some(it) = find(&mut self.streams, stream) {
            it.outgoing.send(bytes);
            it.is_finished = is_last;
        }
        let flags = if is_last { flag::END_STREAM } else { 0 };
        Head { bytes, kind: kind::DATA, flags, stream }.bytes()
    }

    /// Bytes of a stream have gone on: the peer may send as many again. On the connection it hears
    /// so at the next [`Self::announce`].
    pub fn release(&mut self, stream: u32, bytes: usize) {
        self.incoming.release(bytes);
        let Some(it) = find(&mut self.streams, stream) else { return };
        it.incoming.release(bytes);
        it.announce(&mut self.output);
    }

    /// Sets what all streams together may send. The peer hears of more at the next
    /// [`Self::announce`].
    pub fn set_window(&mut self, bytes: u32) {
        self.incoming.resize(bytes);
    }

    /// Whether the peer has to hear of credit for the connection.
    pub fn is_credit_due(&self) -> bool {
        self.incoming.is_due()
    }

    /// Says what credit is due for the connection. Behind [`Self::set_window`]: credit that was
    /// given cannot be taken back.
    pub fn announce(&mut self) {
        if let Some(credit) = self.incoming.announce() {
            frame::put_window_update(0, credit, &mut self.output);
        }
    }

    /// Sets what each stream may send. `false` while the last change is not acknowledged.
    pub fn set_stream_window(&mut self, bytes: u32) -> bool {
        if self.unacknowledged.len() >= MAX_UNACKNOWLEDGED {
            return false;
        }
        self.unacknowledged.push_back(bytes);
        frame::put_settings(&[(setting::INITIAL_WINDOW_SIZE, bytes)], &mut self.output);
        true
    }

    /// Resets a stream.
    pub fn reset(&mut self, stream: u32, reason: Reason) {
        let Some(it) = find(&mut self.streams, stream) else { return };
        let is_over = it.has_ended && it.is_finished;
        if !it.is_reset && !is_over {
            it.is_reset = true;
            frame::put_reset(stream, reason, &mut self.output);
        }
    }

    /// Lets go of a stream. One that has not ended is reset.
    pub fn close(&mut self, stream: u32) {
        let Ok(place) = self.streams.binary_search_by_key(&stream, |it| it.number) else { return };
        // Behind a whole answer the client has no need to say more (RFC 9113 section 8.1).
        let is_answered = self.role == Role::Server && self.streams[place].is_finished;
        self.reset(stream, if is_answered { Reason::NO_ERROR } else { Reason::CANCEL });
        self.streams.remove(place);
    }

    /// Asks the peer for an answer.
    pub fn ping(&mut self, opaque: [u8; 8]) {
        frame::put_ping(opaque, false, &mut self.output);
    }

    /// Asks the peer to open its next streams elsewhere (server).
    pub fn leave(&mut self) {
        if self.leaving == Leaving::No {
            self.leaving = Leaving::Asked;
            frame::put_goaway(LAST_STREAM, Reason::NO_ERROR, &mut self.output);
            frame::put_ping(LEAVING, false, &mut self.output);
        }
    }

    /// Whether the peer was asked to leave and has nothing open any more.
    pub fn has_left(&self) -> bool {
        self.leaving == Leaving::Done && self.streams.is_empty()
    }

    /// Ends the connection for what the peer did.
    pub fn fail(&mut self, fault: Fault) {
        let last = self.announced.unwrap_or(self.last_theirs);
        frame::put_goaway(last, fault.reason, &mut self.output);
    }

    /// Says that the connection ends in good order, because nobody needs it any more.
    pub fn finish(&mut self) {
        if self.leaving == Leaving::No {
            self.leaving = Leaving::Done;
            self.announced = Some(self.last_theirs);
            frame::put_goaway(self.last_theirs, Reason::NO_ERROR, &mut self.output);
        }
    }

    /// Whether the peer takes no new streams on this connection.
    pub fn is_left(&self) -> bool {
        self.is_left
    }

    /// Whether the peer has begun as HTTP/2 begins, with its SETTINGS.
    pub fn has_begun(&self) -> bool {
        !matches!(self.reading, Reading::Preface | Reading::FirstHead)
    }

    /// Whether one more stream of the peer has room. It may open one as soon as another has ended,
    /// when our side has still to do with that; so these have a bound of their own.
    pub(super) fn has_room(&self) -> bool {
        let most = self.limits.streams as usize;
        let is_over = |it: &&Stream| it.is_reset || (it.has_ended && it.is_finished);
        let over = self.streams.iter().filter(is_over).count();
        self.streams.len() < 2 * most && self.streams.len() - over < most
    }

    /// How many streams our side has not let go of.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Whether the peer says that DATA may follow a CONNECT before its answer.
    pub fn takes_early_data(&self) -> bool {
        self.peer.takes_early_data
    }

    /// How many streams the peer takes.
    pub fn max_streams(&self) -> usize {
        self.peer.streams as usize
    }

    /// The next own stream has this number.
    #[cfg(test)]
    pub(super) fn next_is(&mut self, number: u32) {
        self.next_own = number;
    }

    /// An empty block, or one that begins as the peer expects it to.
    fn begin_block(&mut self) -> BytesMut {
        let mut block = BytesMut::with_capacity(256);
        if std::mem::take(&mut self.says_no_table) {
            hpack::encode_no_table(&mut block);
        }
        block
    }

    /// A new stream.
    pub(super) fn stream(&self, number: u32) -> Stream {
        Stream {
            number,
            incoming: Incoming::new(self.window),
            outgoing: Outgoing::default(),
            is_answered: false,
            has_ended: false,
            is_finished: false,
            is_reset: false,
        }
    }

    fn find(&self, number: u32) -> Option<&Stream> {
        let place = self.streams.binary_search_by_key(&number, |it| it.number).ok()?;
        Some(&self.streams[place])
    }
}

impl Stream {
    /// Says what credit is due.
    pub(super) fn announce(&mut self, output: &mut BytesMut) {
        if self.has_ended || self.is_reset {
            return;
        }
        if let Some(credit) = self.incoming.announce() {
            frame::put_window_update(self.number, credit, output);
        }
    }
}

/// The stream of this number.
pub(super) fn find(streams: &mut [Stream], number: u32) -> Option<&mut Stream> {
    let place = streams.binary_search_by_key(&number, |it| it.number).ok()?;
    Some(&mut streams[place])
}
