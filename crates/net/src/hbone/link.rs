//! What a connection's driver and its tunnels share: the state machine, what waits for the
//! transport, and what each stream has received. All of it belongs to one thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ambit_wire::http2::{Event, Fault, Limits, Reason, Request, Response, Role, Session};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};

use super::credit::Credit;
use super::waiting::Waiting;
use super::{MAX_REQUEST_HEADER_BYTES, MAX_RESPONSE_HEADER_BYTES, MAX_SERVER_STREAMS, Settings};
use crate::copy::{Batch, READ_BYTES};
use crate::ended::Ended;

/// Payload of a frame, a quarter of a read: with its head it fills four TLS records.
const FRAME_BYTES: usize = READ_BYTES / 4;

/// Requests that come and are reset within one read: nobody is in such a hurry
/// (CVE-2023-44487). What comes more slowly makes no more work than a connection for each request.
const MAX_HASTY_RESETS: usize = 100;
const RAPID_RESET: Fault =
    Fault { reason: Reason::ENHANCE_YOUR_CALM, what: "it resets its requests at once" };

/// What the state machine has said and the transport has not taken, of all that waits. Who reads
/// nothing and makes us say more is not served any more; DATA has its own bound.
const MAX_CONTROL_BYTES: usize = 512 * 1024;
const DEAF: Fault =
    Fault { reason: Reason::ENHANCE_YOUR_CALM, what: "it reads nothing of what it makes us say" };
/// What is left of the connection's window for tunnels that are there: nobody reads what is sent
/// early until its CONNECT is answered, which takes as long as the application does.
const KEPT_WINDOW_BYTES: usize = 32 * 1024;
/// Pieces that are copied when nobody waits for them.
const SMALL_BYTES: usize = 4096;
/// So much of it is written before more is read.
const DUE_CONTROL_BYTES: usize = 16 * 1024;

/// One stream, as its tunnel sees it.
#[derive(Debug)]
struct Slot {
    stream: u32,
    received: Batch,
    has_ended: bool,
    /// We have said that nothing follows.
    is_finished: bool,
    ended: Option<Ended>,
    answer: Option<Response>,
    /// Of the task that waits for bytes, or for the answer.
    reader: Option<Waker>,
    /// Of the task that waits for room, or for a failure.
    writer: Option<Waker>,
    /// It waits for a window.
    wants_window: bool,
}

struct State {
    role: Role,
    session: Session,
    waiting: Waiting,
    /// What the state machine said since `mark`, and before it: some of that may still wait.
    said: [usize; 2],
    mark: u64,
    /// By number.
    slots: Vec<Slot>,
    /// Requests of this read that were reset before anybody could take them.
    hasty: usize,
    /// Those that nobody has taken yet.
    requests: VecDeque<(u32, Request)>,
    /// Those that wait until the peer takes one more stream, by their own number.
    openers: Vec<(u64, Waker)>,
    /// How many have waited for that.
    opened: u64,
    /// Nobody will open a stream any more (client).
    is_unwanted: bool,
    /// The peer takes no new streams.
    is_left: bool,
    /// Whose turn it is when there is room for all of them.
    turn: usize,
    /// What was read widens the connection's window or says how many streams there may be.
    is_wider: bool,
    /// Answers to our PINGs, and who waits for one.
    pongs: u64,
    ponged: Option<Waker>,
    over: Option<Ended>,
}

/// The shared part of a connection.
pub(super) struct Link {
    state: RefCell<State>,
    pub(super) credit: Credit,
}

impl Link {
    pub(super) fn new(role: Role, settings: &Settings) -> Rc<Self> {
        let credit = Credit::new(settings);
        let limits = Limits {
            streams: MAX_SERVER_STREAMS,
            frame_bytes: settings.frame_size_bytes,
            field_bytes: match role {
                Role::Server => MAX_REQUEST_HEADER_BYTES,
                Role::Client => MAX_RESPONSE_HEADER_BYTES,
            },
            stream_window_bytes: credit.window(),
        };
        let state = State {
            role,
            session: Session::new(role, limits),
            waiting: Waiting::default(),
            said: [0; 2],
            mark: 0,
            slots: Vec::new(),
            hasty: 0,
            requests: VecDeque::new(),
            openers: Vec::new(),
            opened: 0,
            is_unwanted: false,
            is_left: false,
            turn: 0,
            is_wider: false,
            pongs: 0,
            ponged: None,
            over: None,
        };
        Rc::new(Self { state: RefCell::new(state), credit })
    }

    /// Opens a stream. Waits while the peer takes no more of them.
    pub(super) async fn connect(&self, authority: &str, headers: &HeaderMap) -> Result<u32, Ended> {
        let mut opener = Opener { link: self, number: None };
        poll_fn(|cx| opener.poll(cx, authority, headers)).await
    }

    /// The answer to a CONNECT.
    pub(super) fn poll_answer(
        &self,
        cx: &Context<'_>,
        stream: u32,
    ) -> Poll<Result<Response, Ended>> {
        let state = &mut *self.state.borrow_mut();
        let Some(slot) = state.slot(stream) else { return Poll::Ready(Err(Ended::Closed)) };
        match (slot.answer.take(), &slot.ended) {
            (Some(answer), _) => Poll::Ready(Ok(answer)),
            (None, Some(ended)) => Poll::Ready(Err(ended.clone())),
            (None, None) => slot.wait_to_read(cx),
        }
    }

    /// Answers a request.
    pub(super) fn respond(
        &self,
        stream: u32,
        status: StatusCode,
        headers: &HeaderMap,
        is_last: bool,
    ) -> Result<(), Ended> {
        let state = &mut *self.state.borrow_mut();
        state.sender(stream, is_last)?;
        state.session.respond(stream, status, headers, is_last);
        self.credit.wake_driver();
        Ok(())
    }

    /// Whether the peer has begun as HTTP/2 begins.
    pub(super) fn has_begun(&self) -> bool {
        self.state.borrow().session.has_begun()
    }

    /// A request that nobody has taken yet.
    pub(super) fn take_request(&self) -> Option<(u32, Request)> {
        self.state.borrow_mut().requests.pop_front()
    }

    /// Ready when bytes are there, or the stream is over.
    pub(super) fn poll_readable(&self, cx: &Context<'_>, stream: u32) -> Poll<Result<(), Ended>> {
        let state = &mut *self.state.borrow_mut();
        let Some(slot) = state.slot(stream) else { return Poll::Ready(Err(Ended::Closed)) };
        if !slot.received.is_empty() || slot.has_ended {
            return Poll::Ready(Ok(()));
        }
        match &slot.ended {
            Some(ended) => Poll::Ready(Err(ended.clone())),
            None => slot.wait_to_read(cx),
        }
    }

    /// Takes up to so many bytes. Says how many, and whether they are the last.
    pub(super) fn take(&self, stream: u32, limit: usize, into: &mut Batch) -> (usize, bool) {
        let state = &mut *self.state.borrow_mut();
        let Some(slot) = state.slot(stream) else { return (0, true) };
        let mut taken = 0;
        while taken < limit
            && (limit == usize::MAX || !into.is_full())
            && let Some(mut piece) = slot.received.pop()
        {
            if piece.len() > limit - taken {
                slot.received.put_back(piece.split_off(limit - taken));
            }
            taken += piece.len();
            into.push(piece);
        }
        (taken, slot.has_ended && slot.received.is_empty())
    }

    /// Whether the peer has said that nothing follows what is here.
    pub(super) fn has_ended(&self, stream: u32) -> bool {
        self.state.borrow_mut().slot(stream).is_none_or(|slot| slot.has_ended)
    }

    /// Bytes of a stream have gone on.
    pub(super) fn release(&self, stream: u32, bytes: usize) {
        let state = &mut *self.state.borrow_mut();
        state.session.release(stream, bytes);
        if state.session.has_output() || state.session.is_credit_due() {
            self.credit.wake_driver();
        }
    }

    /// How many bytes the stream may send now; at least one.
    pub(super) fn poll_window(&self, cx: &Context<'_>, stream: u32) -> Poll<Result<usize, Ended>> {
        let state = &mut *self.state.borrow_mut();
        let sendable = state.session.sendable(stream);
        let Some(slot) = state.slot(stream) else { return Poll::Ready(Err(Ended::Closed)) };
        if let Some(ended) = &slot.ended {
            return Poll::Ready(Err(ended.clone()));
        }
        slot.wants_window = sendable == 0;
        if sendable > 0 { Poll::Ready(Ok(sendable)) } else { slot.wait_to_write(cx) }
    }

    /// Ready when the stream is over because something failed.
    pub(super) fn poll_ended(&self, cx: &Context<'_>, stream: u32) -> Poll<Ended> {
        let state = &mut *self.state.borrow_mut();
        let Some(slot) = state.slot(stream) else { return Poll::Ready(Ended::Closed) };
        match &slot.ended {
            Some(ended) => Poll::Ready(ended.clone()),
            None => slot.wait_to_write(cx),
        }
    }

    /// Sends bytes, as many as [`Self::poll_window`] allows.
    pub(super) fn send(&self, stream: u32, mut bytes: Bytes, is_last: bool) -> Result<(), Ended> {
        let state = &mut *self.state.borrow_mut();
        state.sender(stream, is_last)?;
        state.move_output();
        let most = state.session.frame_bytes();
        // Frames of the default size fill one record each.
        let most = if most >= FRAME_BYTES { FRAME_BYTES } else { most - 9 };
        loop {
            let payload = bytes.split_to(bytes.len().min(most));
            let ends = is_last && bytes.is_empty();
            let head = state.session.data(stream, payload.len(), ends);
            state.waiting.put(&head);
            state.waiting.push(payload);
            if bytes.is_empty() {
                break;
            }
        }
        self.credit.queued(state.waiting.unsent());
        self.credit.wake_driver();
        Ok(())
    }

    /// Resets the stream.
    pub(super) fn reset(&self, stream: u32, reason: Reason) {
        let state = &mut *self.state.borrow_mut();
        state.session.reset(stream, reason);
        state.slot(stream).into_iter().for_each(|slot| slot.fail(Ended::Closed));
        self.credit.wake_driver();
    }

    /// Lets go of the stream; `held` of its bytes were taken and have not gone on.
    pub(super) fn close(&self, stream: u32, held: usize) {
        self.state.borrow_mut().close(stream, held);
        self.credit.wake_driver();
    }

    /// Asks the peer for a sign of life; says how many it has given until now.
    pub(super) fn ping(&self) -> u64 {
        let state = &mut *self.state.borrow_mut();
        state.session.ping(*b"alive?..");
        self.credit.wake_driver();
        state.pongs
    }

    /// Ready when it has given more than so many. `false`: the connection is over.
    pub(super) fn poll_pong(&self, cx: &Context<'_>, before: u64) -> Poll<bool> {
        let state = &mut *self.state.borrow_mut();
        if state.pongs != before || state.over.is_some() {
            return Poll::Ready(state.pongs != before);
        }
        state.ponged = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Asks the peer to open its next streams elsewhere.
    pub(super) fn leave(&self) {
        self.state.borrow_mut().session.leave();
        self.credit.wake_driver();
    }

    /// Nobody will open a stream any more.
    pub(super) fn unwanted(&self) {
        self.state.borrow_mut().is_unwanted = true;
        self.credit.wake_driver();
    }

    /// Whether the peer takes no new streams, or the connection is over.
    pub(super) fn is_closing(&self) -> bool {
        let state = self.state.borrow();
        state.is_left || state.over.is_some()
    }

    /// Whether the peer says that DATA may follow a CONNECT before its answer.
    pub(super) fn takes_early_data(&self) -> bool {
        self.state.borrow().session.takes_early_data()
    }

    /// How many bytes may follow a CONNECT at once, on a stream that was just opened.
    pub(super) fn early_room(&self, stream: u32) -> usize {
        let window = self.state.borrow().session.connection_window();
        self.room(stream).min(window.saturating_sub(KEPT_WINDOW_BYTES))
    }

    /// How many bytes the stream may send now, for who does not wait for more.
    pub(super) fn room(&self, stream: u32) -> usize {
        self.state.borrow().session.sendable(stream).min(self.credit.queue_left())
    }

    /// How many streams the peer takes at once.
    pub(super) fn max_streams(&self) -> usize {
        self.state.borrow().session.max_streams()
    }

    /// Brings the windows up to date.
    pub(super) fn adjust(&self, cx: &Context<'_>) {
        let session = &mut self.state.borrow_mut().session;
        self.credit.adjust(cx, session);
        session.announce();
    }

    /// Reads what has come, and gives it to those whom it is for.
    pub(super) fn read(&self, input: &mut BytesMut) -> Result<(), Fault> {
        let state = &mut *self.state.borrow_mut();
        let read = state.read(input);
        read.inspect_err(|fault| state.session.fail(*fault))
    }

    /// Writes what waits.
    pub(super) fn write<T>(
        &self,
        write: impl FnOnce(&[std::io::IoSlice<'_>]) -> (usize, T),
    ) -> Option<T> {
        let state = &mut *self.state.borrow_mut();
        state.move_output();
        let written = (!state.waiting.is_empty()).then(|| state.waiting.write(write));
        state.note_written();
        written
    }

    /// Whether so much has to be said that it goes before more is read.
    pub(super) fn is_due(&self) -> bool {
        let state = self.state.borrow();
        state.said[0] + state.session.output_bytes() > DUE_CONTROL_BYTES
    }

    /// Whether so much was asked for, and is not sent, that nothing more should be.
    pub(super) fn is_stuck(&self) -> bool {
        let state = self.state.borrow();
        let said: usize = state.said.iter().sum();
        said + state.session.output_bytes() > MAX_CONTROL_BYTES / 2
    }

    /// The transport has sent all that it was given.
    pub(super) fn flushed(&self) {
        self.state.borrow_mut().waiting.flushed();
    }

    /// The transport took what it could.
    pub(super) fn written(&self) {
        let state = self.state.borrow();
        self.credit.written(state.waiting.unsent(), state.waiting.sent());
    }

    /// The connection ends in good order: it takes no new streams.
    pub(super) fn finish(&self) {
        let state = &mut *self.state.borrow_mut();
        state.session.finish();
        state.is_left = true;
        state.wake_openers();
    }

    /// Whether there is no more use for the connection.
    pub(super) fn is_done(&self) -> bool {
        let state = self.state.borrow();
        let is_left = state.is_unwanted || state.is_left || state.session.has_left();
        is_left && state.slots.is_empty() && state.session.streams() == 0
    }

    /// Whether streams are open.
    pub(super) fn has_streams(&self) -> bool {
        !self.state.borrow().slots.is_empty()
    }

    /// The connection is over; so is every stream.
    pub(super) fn end(&self, why: Ended) {
        let state = &mut *self.state.borrow_mut();
        if state.over.is_some() {
            return;
        }
        for slot in &mut state.slots {
            slot.fail(why.clone());
        }
        state.over = Some(why);
        // Tunnels may outlive the connection by far.
        state.waiting = Waiting::default();
        self.credit.written(0, 0);
        state.wake_openers();
        state.ponged.take().into_iter().for_each(Waker::wake);
    }
}

/// Who opens a stream. Its place among those that wait goes with it.
struct Opener<'a> {
    link: &'a Link,
    number: Option<u64>,
}

impl Opener<'_> {
    fn poll(
        &mut self,
        cx: &Context<'_>,
        authority: &str,
        headers: &HeaderMap,
    ) -> Poll<Result<u32, Ended>> {
        let state = &mut *self.link.state.borrow_mut();
        if let Some(over) = &state.over {
            return Poll::Ready(Err(over.clone()));
        }
        if state.is_left {
            return Poll::Ready(Err(Ended::Untouched(Reason::NO_ERROR)));
        }
        let Some(stream) = state.session.connect(authority, headers) else {
            if state.session.is_left() {
                state.is_left = true;
                return Poll::Ready(Err(Ended::Untouched(Reason::NO_ERROR)));
            }
            self.number = Some(state.wait_to_open(self.number, cx.waker()));
            return Poll::Pending;
        };
        state.slots.push(Slot::new(stream));
        self.link.credit.wake_driver();
        Poll::Ready(Ok(stream))
    }
}

impl Drop for Opener<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.link.state.borrow_mut().openers.retain(|(it, _)| *it != number);
        }
    }
}

impl State {
    /// Has a waker called when the peer may take one more stream.
    fn wait_to_open(&mut self, number: Option<u64>, waker: &Waker) -> u64 {
        let own = self.openers.iter_mut().find(|(it, _)| Some(*it) == number);
        if let Some((number, before)) = own {
            before.clone_from(waker);
            return *number;
        }
        self.opened += 1;
        self.openers.push((self.opened, waker.clone()));
        self.opened
    }

    fn wake_openers(&mut self) {
        self.openers.drain(..).for_each(|(_, waker)| waker.wake());
    }

    fn read(&mut self, input: &mut BytesMut) -> Result<(), Fault> {
        self.hasty = 0;
        while let Some(event) = self.session.next(input)? {
            self.take_event(event);
            if self.hasty > MAX_HASTY_RESETS {
                return Err(RAPID_RESET);
            }
        }
        // Once for all that was read: a peer may send a great many updates of the one window.
        if std::mem::take(&mut self.is_wider) {
            self.widen_all();
        }
        self.move_output();
        let is_deaf = self.said.iter().sum::<usize>() > MAX_CONTROL_BYTES;
        if is_deaf { Err(DEAF) } else { Ok(()) }
    }

    fn slot(&mut self, stream: u32) -> Option<&mut Slot> {
        let place = self.slots.binary_search_by_key(&stream, |slot| slot.stream).ok()?;
        Some(&mut self.slots[place])
    }

    /// Whether the stream takes bytes of ours. `is_last`: these are the last.
    fn sender(&mut self, stream: u32, is_last: bool) -> Result<(), Ended> {
        let slot = self.slot(stream).ok_or(Ended::Closed)?;
        if let Some(ended) = &slot.ended {
            return Err(ended.clone());
        }
        slot.is_finished = is_last;
        Ok(())
    }

    fn close(&mut self, stream: u32, held: usize) {
        let Ok(place) = self.slots.binary_search_by_key(&stream, |slot| slot.stream) else {
            return;
        };
        let slot = self.slots.remove(place);
        self.session.close(stream);
        // The connection's window goes to the others.
        self.session.release(stream, held + slot.received.bytes());
        self.wake_openers();
    }

    /// What the state machine says goes behind what waits already.
    fn move_output(&mut self) {
        if self.session.has_output() {
            let output = self.session.take_output();
            self.said[0] += output.len();
            self.waiting.put(&output);
        }
    }

    /// Some of what waited was written. With all that had come before the mark, what was said
    /// before it is gone.
    fn note_written(&mut self) {
        if self.waiting.gone() >= self.mark {
            self.said = [0, self.said[0]];
            self.mark = self.waiting.came();
        }
    }

    /// All streams may have room, and there may be room for streams.
    fn widen_all(&mut self) {
        // Not always the oldest first: they could take all of it each time.
        self.turn = (self.turn + 1).checked_rem(self.slots.len()).unwrap_or(0);
        let (late, early) = self.slots.split_at_mut(self.turn);
        early.iter_mut().chain(late).for_each(Slot::widen);
        self.wake_openers();
    }

    fn take_event(&mut self, event: Event) {
        match event {
            Event::Request { stream, head, is_last } => {
                self.slots.push(Slot { has_ended: is_last, ..Slot::new(stream) });
                self.requests.push_back((stream, head));
            }
            Event::Response { stream, head, is_last } => {
                let Some(slot) = self.slot(stream) else { return };
                slot.answer = Some(head);
                slot.has_ended = is_last;
                slot.wake_reader();
            }
            Event::Data { stream, bytes, is_last } => {
                let count = bytes.len();
                let Some(slot) = self.slot(stream) else {
                    return self.session.release(stream, count);
                };
                // A small piece that nobody takes now would keep a whole read alive.
                let is_awaited = slot.received.is_empty() && slot.reader.is_some();
                let is_left_over = count < SMALL_BYTES && !is_awaited;
                let bytes = if is_left_over { Bytes::copy_from_slice(&bytes) } else { bytes };
                slot.received.push(bytes);
                slot.has_ended |= is_last;
                slot.wake_reader();
            }
            Event::Reset { stream, reason } => {
                if let Some(place) = self.requests.iter().position(|it| it.0 == stream) {
                    self.requests.remove(place);
                    self.hasty += 1;
                    return self.close(stream, 0);
                }
                self.slot(stream).into_iter().for_each(|slot| slot.fail(Ended::Reset(reason)));
            }
            Event::Window { stream: Some(stream) } => {
                self.slot(stream).into_iter().for_each(Slot::widen);
            }
            Event::Window { stream: None } => {
                self.is_wider = true;
            }
            Event::Leaving { last, reason } => {
                self.is_left = true;
                // A client's GOAWAY speaks of streams that a server would open.
                let is_own = self.role == Role::Client;
                let untouched = self.slots.iter_mut().filter(|slot| is_own && slot.stream > last);
                untouched.for_each(|slot| slot.fail(Ended::Untouched(reason)));
                self.wake_openers();
            }
            Event::Pong(_) => {
                self.pongs += 1;
                self.ponged.take().into_iter().for_each(Waker::wake);
            }
        }
    }
}

impl Slot {
    fn new(stream: u32) -> Self {
        Self {
            stream,
            received: Batch::default(),
            has_ended: false,
            is_finished: false,
            ended: None,
            answer: None,
            reader: None,
            writer: None,
            wants_window: false,
        }
    }

    fn wait_to_read<T>(&mut self, cx: &Context<'_>) -> Poll<T> {
        wait(&mut self.reader, cx)
    }

    fn wait_to_write<T>(&mut self, cx: &Context<'_>) -> Poll<T> {
        wait(&mut self.writer, cx)
    }

    fn wake_reader(&mut self) {
        self.reader.take().into_iter().for_each(Waker::wake);
    }

    fn widen(&mut self) {
        if std::mem::take(&mut self.wants_window) {
            self.writer.iter().for_each(Waker::wake_by_ref);
        }
    }

    fn fail(&mut self, why: Ended) {
        // Behind a stream that both sides have ended nothing can fail; its bytes are delivered.
        if self.has_ended && self.is_finished {
            return;
        }
        self.ended.get_or_insert(why);
        self.reader.iter().chain(&self.writer).for_each(Waker::wake_by_ref);
    }
}

fn wait<T>(place: &mut Option<Waker>, cx: &Context<'_>) -> Poll<T> {
    if !place.as_ref().is_some_and(|held| held.will_wake(cx.waker())) {
        *place = Some(cx.waker().clone());
    }
    Poll::Pending
}
