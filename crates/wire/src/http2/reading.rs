//! Reading the peer's bytes: frames as RFC 9113 section 6 has them, and what each means.
//!
//! A frame is read when it is whole, but for DATA, whose payload is passed on as it comes. What is
//! wrong is an error of the connection or of the stream, as the RFC says for each case; where it
//! leaves the choice, the stream alone suffers. A stream that our side has let go of, or has reset,
//! may still get frames that were under way: they are ignored, and their bytes are given back to
//! the connection's window.

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, StatusCode};

use super::frame::{self, HEAD_BYTES, Head, PREFACE, flag, kind, setting};
use super::head::{self, Request, Response};
use super::hpack::{Field, TABLE_BYTES};
use super::session::{
    Block, DEFAULT_FRAME_BYTES, DEFAULT_WINDOW_BYTES, Event, LAST_STREAM, LEAVING, Leaving,
    Reading, Session, find,
};
use super::windows::Outgoing;
use super::{Fault, Reason, Role};

/// Answers to the peer's frames that may wait for the transport.
const MAX_REPLY_BYTES: usize = 64 * 1024;
/// Empty frames of DATA in a row.
const MAX_EMPTY_FRAMES: u32 = 100;
/// Frames that one block of fields may come in.
const MAX_CONTINUATIONS: u32 = 64;
/// Blocks of fields that are of no use, less those that are forgiven. Some requests may come before
/// the client knows how many it may open.
const MAX_USELESS: u32 = 1000;
/// How many of them each is forgiven that is as it should be. Honest peers send fewer: one that
/// crosses our reset of its stream.
const FORGIVEN: u32 = 8;
/// Entries of one frame of SETTINGS, which has six names.
const MAX_SETTINGS: usize = 64;

/// What reading a piece came to.
#[expect(clippy::large_enum_variant, reason = "taken apart at once, and never kept")]
enum Step {
    /// It needs more bytes.
    More,
    /// It meant nothing for our side.
    Read,
    /// It meant this.
    Event(Event),
}

impl Reason {
    const fn because(self, what: &'static str) -> Fault {
        Fault { reason: self, what }
    }
}

const BROKEN: Reason = Reason::PROTOCOL_ERROR;
const SIZE: Reason = Reason::FRAME_SIZE_ERROR;
const FLOW: Reason = Reason::FLOW_CONTROL_ERROR;
const CALM: Reason = Reason::ENHANCE_YOUR_CALM;

impl Session {
    /// Takes the next event out of the peer's bytes. `None`: it needs more of them. After a fault
    /// nothing more is read.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Option<Event>, Fault> {
        loop {
            let step = match self.reading {
                Reading::Preface => self.read_preface(input)?,
                Reading::FirstHead | Reading::Head => self.read_frame(input)?,
                Reading::Data { .. } => self.read_data(input),
            };
            if self.reply_bytes > MAX_REPLY_BYTES {
                return Err(CALM.because("it reads none of the answers to its frames"));
            }
            match step {
                Step::More => return Ok(None),
                Step::Event(event) => return Ok(Some(event)),
                Step::Read => {}
            }
        }
    }

    /// What a client begins with, section 3.4. A peer of another protocol is known by its first
    /// bytes.
    fn read_preface(&mut self, input: &mut BytesMut) -> Result<Step, Fault> {
        let there = input.len().min(PREFACE.len());
        if input[..there] != PREFACE[..there] {
            return Err(BROKEN.because("it does not begin with HTTP/2"));
        }
        if there < PREFACE.len() {
            return Ok(Step::More);
        }
        input.advance(there);
        self.reading = Reading::FirstHead;
        Ok(Step::Read)
    }

    /// A frame, or the head of DATA. What may not come here is refused before its payload is waited
    /// for: another frame within a block of fields, or one that is too large.
    fn read_frame(&mut self, input: &mut BytesMut) -> Result<Step, Fault> {
        let Some(head) = input.first_chunk() else { return Ok(Step::More) };
        let head = Head::read(head);
        if matches!(self.reading, Reading::FirstHead)
            && (head.kind != kind::SETTINGS || head.has(flag::ACK))
        {
            return Err(BROKEN.because("its first frame is not SETTINGS"));
        }
        if head.bytes > self.limits.frame_bytes as usize {
            return Err(SIZE.because("a frame is larger than was allowed"));
        }
        let continued = self.block.as_ref().map(|block| block.stream);
        let continues = (head.kind == kind::CONTINUATION).then_some(head.stream);
        if continued != continues {
            return Err(BROKEN.because("a block of fields is not continued as it has to be"));
        }
        if head.kind == kind::DATA {
            return self.read_data_head(head, input);
        }
        if input.len() < HEAD_BYTES + head.bytes {
            return Ok(Step::More);
        }
        input.advance(HEAD_BYTES);
        let payload = input.split_to(head.bytes).freeze();
        self.reading = Reading::Head;
        match head.kind {
            kind::HEADERS => self.read_headers(head, payload),
            kind::CONTINUATION => self.read_continuation(head, &payload),
            kind::RST_STREAM => self.read_reset(head, &payload),
            kind::SETTINGS => self.read_settings(head, &payload),
            kind::PING => self.read_ping(head, &payload),
            kind::GOAWAY => self.read_goaway(head, &payload),
            kind::WINDOW_UPDATE => self.read_window_update(head, &payload),
            kind::PUSH_PROMISE => Err(BROKEN.because("it pushes")),
            kind::PRIORITY if head.stream == 0 => Err(BROKEN.because("PRIORITY without a stream")),
            kind::PRIORITY if head.bytes != 5 => Err(SIZE.because("PRIORITY has a wrong size")),
            // PRIORITY means nothing any more; kinds that are not known are ignored.
            _ => Ok(Step::Read),
        }
    }

    /// The head of DATA, and the padding's length; the payload is taken as it comes.
    fn read_data_head(&mut self, head: Head, input: &mut BytesMut) -> Result<Step, Fault> {
        if head.stream == 0 || self.is_idle(head.stream) {
            return Err(BROKEN.because("DATA on a stream that was never opened"));
        }
        let mut padding = 0;
        if head.has(flag::PADDED) {
            let Some(length) = input.get(HEAD_BYTES) else { return Ok(Step::More) };
            padding = usize::from(*length);
            if padding >= head.bytes {
                return Err(BROKEN.because("a frame's padding is larger than the frame"));
            }
        }
        if self.incoming.receive(head.bytes).is_none() {
            return Err(FLOW.because("it sends more than the connection's window"));
        }
        self.announce();
        input.advance(HEAD_BYTES + usize::from(head.has(flag::PADDED)));
        // Of padding nobody takes anything, so that it is given back at once.
        let beside = padding + usize::from(head.has(flag::PADDED));
        let bytes = head.bytes - beside;
        if bytes > 0 {
            self.empty_frames = 0;
        } else if !head.has(flag::END_STREAM) {
            self.empty_frames += 1;
            if self.empty_frames > MAX_EMPTY_FRAMES {
                return Err(CALM.because("it sends empty frames"));
            }
        }
        let error = match find(&mut self.streams, head.stream) {
            // Under way when our side let go of the stream.
            None => None,
            Some(it) if it.is_reset => None,
            Some(it) if it.has_ended => Some(Reason::STREAM_CLOSED),
            Some(it) if self.role == Role::Client && !it.is_answered => Some(BROKEN),
            Some(it) => match it.incoming.receive(head.bytes) {
                None => Some(FLOW),
                Some(()) => {
                    it.has_ended = head.has(flag::END_STREAM);
                    it.announce(&mut self.output);
                    let (stream, is_last) = (Some(head.stream), it.has_ended);
                    self.reading = Reading::Data { stream, bytes, padding, is_last };
                    self.release(head.stream, beside);
                    self.announce();
                    return Ok(Step::Read);
                }
            },
        };
        self.reading = Reading::Data { stream: None, bytes, padding, is_last: false };
        self.release(0, beside);
        self.announce();
        Ok(error.map_or(Step::Read, |reason| self.stream_error(head.stream, reason)))
    }

    /// The payload of DATA, as much as is there, then the padding.
    fn read_data(&mut self, input: &mut BytesMut) -> Step {
        let Reading::Data { stream, bytes, padding, is_last } = &mut self.reading else {
            return Step::Read;
        };
        if *bytes > 0 || *is_last {
            let piece = input.split_to((*bytes).min(input.len())).freeze();
            if piece.is_empty() && *bytes > 0 {
                return Step::More;
            }
            *bytes -= piece.len();
            let ends = *is_last && *bytes == 0;
            *is_last &= !ends;
            match *stream {
                Some(stream) => Step::Event(Event::Data { stream, bytes: piece, is_last: ends }),
                None => {
                    let skipped = piece.len();
                    self.release(0, skipped);
                    self.announce();
                    Step::Read
                }
            }
        } else if *padding > 0 {
            let skipped = (*padding).min(input.len());
            input.advance(skipped);
            *padding -= skipped;
            if skipped == 0 { Step::More } else { Step::Read }
        } else {
            self.reading = Reading::Head;
            Step::Read
        }
    }

    /// HEADERS, section 6.2, without padding and priority.
    fn read_headers(&mut self, head: Head, mut payload: Bytes) -> Result<Step, Fault> {
        if head.stream == 0 {
            return Err(BROKEN.because("HEADERS without a stream"));
        }
        let mut padding = 0;
        if head.has(flag::PADDED) {
            padding = usize::from(*payload.first().ok_or(SIZE.because("HEADERS is too short"))?);
            payload.advance(1);
        }
        if head.has(flag::PRIORITY) {
            if payload.len() < 5 {
                return Err(SIZE.because("HEADERS is too short"));
            }
            payload.advance(5);
        }
        if padding > payload.len() {
            return Err(BROKEN.because("a frame's padding is larger than the frame"));
        }
        payload.truncate(payload.len() - padding);
        let is_last = head.has(flag::END_STREAM);
        if head.has(flag::END_HEADERS) {
            return self.read_block(head.stream, payload, is_last);
        }
        let bytes = BytesMut::from(&payload[..]);
        self.block = Some(Block { stream: head.stream, bytes, is_last, continuations: 0 });
        self.check_block()
    }

    /// CONTINUATION, section 6.10. That it continues the right block was looked at before.
    fn read_continuation(&mut self, head: Head, payload: &[u8]) -> Result<Step, Fault> {
        let Some(block) = &mut self.block else { return Ok(Step::Read) };
        block.bytes.extend_from_slice(payload);
        block.continuations += 1;
        if !head.has(flag::END_HEADERS) {
            return self.check_block();
        }
        let Some(block) = self.block.take() else { return Ok(Step::Read) };
        self.read_block(block.stream, block.bytes.freeze(), block.is_last)
    }

    /// A block that is not whole yet has a bound in bytes, and one in frames, which may be empty.
    fn check_block(&self) -> Result<Step, Fault> {
        let is_too_large = self.block.as_ref().is_some_and(|block| {
            block.bytes.len() > self.limits.field_bytes as usize
                || block.continuations > MAX_CONTINUATIONS
        });
        if is_too_large {
            Err(CALM.because("a block of fields does not end"))
        } else {
            Ok(Step::Read)
        }
    }

    /// A whole block. It is decoded whatever becomes of its stream, for the table.
    fn read_block(&mut self, stream: u32, block: Bytes, is_last: bool) -> Result<Step, Fault> {
        let block = self.decoder.decode(block, self.limits.field_bytes as usize);
        let block = block.map_err(|_| {
            Reason::COMPRESSION_ERROR.because("a block of fields cannot be decoded")
        })?;
        if block.is_too_large {
            self.count_useless()?;
        }
        let fields = (!block.is_too_large).then_some(block.fields);
        match self.role {
            Role::Server => self.read_request(stream, fields, is_last),
            Role::Client => self.read_response(stream, fields, is_last),
        }
    }

    /// A request opens a stream (section 8.1), or ends one as trailers do.
    fn read_request(
        &mut self,
        stream: u32,
        fields: Option<Vec<Field>>,
        is_last: bool,
    ) -> Result<Step, Fault> {
        if stream.is_multiple_of(2) {
            return Err(BROKEN.because("a client's stream has an even number"));
        }
        if stream <= self.last_theirs {
            // Numbers only grow (section 5.1.1); fields behind a request are no request.
            let is_request = |fields: &Vec<Field>| fields.iter().any(|(name, _)| name == ":method");
            if fields.as_ref().is_some_and(is_request) && find(&mut self.streams, stream).is_none()
            {
                return Err(BROKEN.because("a request has a lower number than the one before"));
            }
            return self.read_trailers(stream, fields.as_deref(), is_last);
        }
        self.last_theirs = stream;
        if self.leaving == Leaving::Done {
            if fields.is_some() {
                self.count_useless()?;
            }
            return Ok(Step::Read);
        }
        // Those count that our side still has to do with: who opens and resets streams without end
        // makes no more work than who leaves them open.
        if !self.has_room() {
            if fields.is_some() {
                self.count_useless()?;
            }
            return Ok(self.stream_error(stream, Reason::REFUSED_STREAM));
        }
        let is_too_large = fields.is_none();
        let mut new = self.stream(stream);
        new.has_ended = is_last;
        self.streams.push(new);
        if let Some(head) = fields.and_then(Request::of) {
            self.useless = self.useless.saturating_sub(FORGIVEN);
            return Ok(Step::Event(Event::Request { stream, head, is_last }));
        }
        let before = self.output.len();
        if is_too_large {
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            self.respond(stream, status, &HeaderMap::new(), true);
        }
        self.reset(stream, if is_too_large { Reason::NO_ERROR } else { BROKEN });
        self.close(stream);
        self.reply_bytes += self.output.len() - before;
        if !is_too_large {
            self.count_useless()?;
        }
        Ok(Step::Read)
    }

    /// Counts a block of fields that is of no use: for a stream beyond the limit or one that is no
    /// more, a request that is none, more fields than are taken, 1xx.
    ///
    /// Who knows our limits hardly ever sends such. Each costs our side more than the peer, so that
    /// many more than are forgiven end the connection.
    fn count_useless(&mut self) -> Result<(), Fault> {
        self.useless += 1;
        let is_flood = self.useless > MAX_USELESS;
        if is_flood {
            Err(CALM.because("hardly a block of fields that it sends is of use"))
        } else {
            Ok(())
        }
    }

    /// The answer to one of our requests; 1xx before it means nothing for a tunnel.
    fn read_response(
        &mut self,
        stream: u32,
        fields: Option<Vec<Field>>,
        is_last: bool,
    ) -> Result<Step, Fault> {
        if self.is_idle(stream) {
            return Err(BROKEN.because("HEADERS on a stream that was never opened"));
        }
        let known = find(&mut self.streams, stream).filter(|it| !it.is_reset);
        let Some(it) = known.filter(|it| !it.is_answered) else {
            return self.read_trailers(stream, fields.as_deref(), is_last);
        };
        let Some(head) = fields.and_then(Response::of) else {
            return Ok(self.stream_error(stream, BROKEN));
        };
        if head.status.is_informational() {
            // 101 has no meaning here, and what has not been answered cannot have ended.
            if is_last || head.status == StatusCode::SWITCHING_PROTOCOLS {
                return Ok(self.stream_error(stream, BROKEN));
            }
            self.count_useless()?;
            return Ok(Step::Read);
        }
        it.is_answered = true;
        it.has_ended = is_last;
        self.useless = self.useless.saturating_sub(FORGIVEN);
        Ok(Step::Event(Event::Response { stream, head, is_last }))
    }

    /// Fields behind the bytes say no more than that these have ended.
    ///
    /// Those for a stream that is no more were under way when our side let go of it; they are read
    /// for the table of fields alone.
    fn read_trailers(
        &mut self,
        stream: u32,
        fields: Option<&[Field]>,
        is_last: bool,
    ) -> Result<Step, Fault> {
        let is_whole = is_last && fields.is_some_and(head::are_trailers);
        let known = find(&mut self.streams, stream).filter(|it| !it.is_reset);
        Ok(match known {
            None => {
                // One that is too large has been counted.
                if fields.is_some() {
                    self.count_useless()?;
                }
                Step::Read
            }
            Some(it) if it.has_ended => self.stream_error(stream, Reason::STREAM_CLOSED),
            Some(_) if !is_whole => self.stream_error(stream, BROKEN),
            Some(it) => {
                it.has_ended = true;
                Step::Event(Event::Data { stream, bytes: Bytes::new(), is_last: true })
            }
        })
    }

    /// RST_STREAM, section 6.4.
    fn read_reset(&mut self, head: Head, payload: &[u8]) -> Result<Step, Fault> {
        let reason = number(payload).ok_or(SIZE.because("RST_STREAM has a wrong size"))?;
        if head.stream == 0 || self.is_idle(head.stream) {
            return Err(BROKEN.because("RST_STREAM on a stream that was never opened"));
        }
        let Some(it) = find(&mut self.streams, head.stream).filter(|it| !it.is_reset) else {
            return Ok(Step::Read);
        };
        it.is_reset = true;
        it.has_ended = true;
        Ok(Step::Event(Event::Reset { stream: head.stream, reason: Reason(reason) }))
    }

    /// SETTINGS, section 6.5. Ours hold from the acknowledgement on, the peer's at once.
    fn read_settings(&mut self, head: Head, payload: &[u8]) -> Result<Step, Fault> {
        if head.stream != 0 {
            return Err(BROKEN.because("SETTINGS on a stream"));
        }
        if head.has(flag::ACK) {
            if !payload.is_empty() {
                return Err(SIZE.because("an acknowledgement of SETTINGS has a payload"));
            }
            let window = self.unacknowledged.pop_front();
            self.window = window.ok_or(BROKEN.because("it acknowledges no SETTINGS of ours"))?;
            for it in &mut self.streams {
                it.incoming.shift(self.window);
                // A smaller window may leave no room, and nothing held that would bring credit.
                it.announce(&mut self.output);
            }
            return Ok(Step::Read);
        }
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err(SIZE.because("SETTINGS has a wrong size"));
        }
        if settings.len() > MAX_SETTINGS {
            return Err(CALM.because("it sends more settings than there are"));
        }
        let mut is_wider = false;
        for [a, b, value @ ..] in settings {
            is_wider |= self.set(u16::from_be_bytes([*a, *b]), u32::from_be_bytes(*value))?;
        }
        self.reply(frame::put_settings_ack);
        Ok(if is_wider { Step::Event(Event::Window { stream: None }) } else { Step::Read })
    }

    /// Applies a setting of the peer; says whether streams may send more.
    fn set(&mut self, name: u16, value: u32) -> Result<bool, Fault> {
        match name {
            setting::ENABLE_PUSH if value > 1 || (value == 1 && self.role == Role::Client) => {
                Err(BROKEN.because("a setting has a wrong value"))
            }
            setting::HEADER_TABLE_SIZE => {
                self.says_no_table |= (value as usize) < TABLE_BYTES;
                Ok(false)
            }
            setting::MAX_CONCURRENT_STREAMS => {
                self.peer.streams = value;
                Ok(true)
            }
            setting::EARLY_DATA => {
                self.peer.takes_early_data = value == 1;
                Ok(false)
            }
            setting::INITIAL_WINDOW_SIZE => {
                // Of all streams at once: a walk over them would cost more than the frame.
                if self.most_outgoing.fits(value).is_none() {
                    let open = self.streams.iter().filter(|it| !it.is_reset && !it.is_finished);
                    let all = open.map(|it| it.outgoing);
                    self.most_outgoing = all.fold(Outgoing::default(), Outgoing::larger);
                }
                let fits = self.most_outgoing.fits(value);
                fits.ok_or(FLOW.because("a window is too large"))?;
                let is_wider = value > self.peer.window;
                self.peer.window = value;
                Ok(is_wider)
            }
            setting::MAX_FRAME_SIZE => {
                if !(DEFAULT_FRAME_BYTES..1 << 24).contains(&value) {
                    return Err(BROKEN.because("a setting has a wrong value"));
                }
                self.peer.frame_bytes = value;
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// PING, section 6.7. The answer to the one that went with GOAWAY says that no request is under
    /// way any more.
    fn read_ping(&mut self, head: Head, payload: &[u8]) -> Result<Step, Fault> {
        if head.stream != 0 {
            return Err(BROKEN.because("PING on a stream"));
        }
        let opaque = payload.try_into().map_err(|_| SIZE.because("PING has a wrong size"))?;
        if !head.has(flag::ACK) {
            self.reply(|output| frame::put_ping(opaque, true, output));
            return Ok(Step::Read);
        }
        if opaque == LEAVING && self.leaving == Leaving::Asked {
            self.leaving = Leaving::Done;
            self.announced = Some(self.last_theirs);
            frame::put_goaway(self.last_theirs, Reason::NO_ERROR, &mut self.output);
            return Ok(Step::Read);
        }
        Ok(Step::Event(Event::Pong(opaque)))
    }

    /// GOAWAY, section 6.8. What the peer has not touched may be asked for elsewhere.
    fn read_goaway(&mut self, head: Head, payload: &[u8]) -> Result<Step, Fault> {
        if head.stream != 0 {
            return Err(BROKEN.because("GOAWAY on a stream"));
        }
        let short = SIZE.because("GOAWAY has a wrong size");
        let last = payload.get(..4).and_then(number).ok_or(short)?;
        let reason = payload.get(4..8).and_then(number).ok_or(short)?;
        self.is_left = true;
        Ok(Step::Event(Event::Leaving { last: last & LAST_STREAM, reason: Reason(reason) }))
    }

    /// WINDOW_UPDATE, section 6.9.
    fn read_window_update(&mut self, head: Head, payload: &[u8]) -> Result<Step, Fault> {
        let more = number(payload).ok_or(SIZE.because("WINDOW_UPDATE has a wrong size"))?;
        let more = more & LAST_STREAM;
        if head.stream == 0 {
            if more == 0 {
                return Err(BROKEN.because("WINDOW_UPDATE of nothing"));
            }
            let added = self.outgoing.add(more, DEFAULT_WINDOW_BYTES);
            added.ok_or(FLOW.because("a window is too large"))?;
            return Ok(Step::Event(Event::Window { stream: None }));
        }
        if self.is_idle(head.stream) {
            return Err(BROKEN.because("WINDOW_UPDATE on a stream that was never opened"));
        }
        let Some(it) = find(&mut self.streams, head.stream).filter(|it| !it.is_reset) else {
            return Ok(Step::Read);
        };
        if more == 0 {
            return Ok(self.stream_error(head.stream, BROKEN));
        }
        let added = it.outgoing.add(more, self.peer.window);
        self.most_outgoing = self.most_outgoing.larger(it.outgoing);
        if added.is_none() {
            return Ok(self.stream_error(head.stream, FLOW));
        }
        Ok(Step::Event(Event::Window { stream: Some(head.stream) }))
    }

    /// An error of one stream: it is reset, and its user learns of it.
    fn stream_error(&mut self, stream: u32, reason: Reason) -> Step {
        self.reply(|output| frame::put_reset(stream, reason, output));
        let Some(it) = find(&mut self.streams, stream).filter(|it| !it.is_reset) else {
            return Step::Read;
        };
        it.is_reset = true;
        it.has_ended = true;
        Step::Event(Event::Reset { stream, reason })
    }

    /// Whether a stream of this number was never opened.
    fn is_idle(&self, stream: u32) -> bool {
        let is_own = (stream % 2 == 1) == (self.role == Role::Client);
        if is_own { stream >= self.next_own } else { stream > self.last_theirs }
    }

    /// Answers a frame of the peer.
    fn reply(&mut self, put: impl FnOnce(&mut BytesMut)) {
        let before = self.output.len();
        put(&mut self.output);
        self.reply_bytes += self.output.len() - before;
    }
}

/// The number that is the whole payload.
fn number(payload: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(payload.try_into().ok()?))
}
