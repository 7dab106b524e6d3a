//! What a client of HTTP/2 sends beside requests and bodies, counted by the headers of its frames.
//!
//! PING, SETTINGS, PRIORITY, WINDOW_UPDATE, empty DATA and RST_STREAM cost their sender nothing and
//! make work here (CVE-2019-9511 to 9518, CVE-2023-44487). The library bounds what they hold in
//! memory, but not how often they come. Here each kind has an allowance, which honest traffic earns
//! back: a client answers what it is sent. A field section that begins and does not end is found
//! too. The payloads are not looked at, and nothing is kept of them.

use std::time::Duration;

use tokio::time::Instant;

/// The length of a frame's header (RFC 9113, 4.1).
const HEADER_BYTES: usize = 9;
/// The length of what a client sends first (RFC 9113, 3.4).
const PREFACE_BYTES: usize = 24;
/// The flag of DATA and HEADERS that says that nothing follows.
const END_STREAM: u8 = 0x1;
/// The flag of HEADERS and CONTINUATION that says that the field section is whole.
const END_HEADERS: u8 = 0x4;
/// The flag of a SETTINGS or PING that answers one.
const ACK: u8 = 0x1;

/// Frames that carry nothing: so many at once, and so many more each second.
const CONTROL: Allowance = Allowance { most: 1_000, per_second: 100 };
/// What a request, or a piece of a body in either direction, allows besides.
const CONTROL_EARNED: u32 = 4;
/// Streams that the client resets: so many at once, and so many more each second. A response that
/// ends allows one more.
const RESETS: Allowance = Allowance { most: 500, per_second: 50 };

/// Why a client's connection is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    /// Too many frames that carry nothing.
    Control,
    /// Too many streams that were reset.
    Resets,
    /// A frame or a field section did not end in time.
    SlowHead,
    /// Too much of its bodies waits while the buffers are full, and nobody reads them.
    Unread,
}

impl Excess {
    /// One word for logs and metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Control => "control_flood",
            Self::Resets => "reset_flood",
            Self::SlowHead => "slow_head",
            Self::Unread => "unread",
        }
    }
}

/// The kinds of frames that are told apart (RFC 9113, 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    Data,
    Headers,
    Reset,
    Settings,
    Ping,
    Continuation,
    /// PRIORITY, WINDOW_UPDATE, GOAWAY and what nobody knows.
    #[default]
    Other,
}

#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    kind: Kind,
    flags: u8,
    length: usize,
}

impl Frame {
    fn parse(header: [u8; HEADER_BYTES]) -> Self {
        let [high, middle, low, kind, flags, ..] = header;
        let kind = match kind {
            0 => Kind::Data,
            1 => Kind::Headers,
            3 => Kind::Reset,
            4 => Kind::Settings,
            6 => Kind::Ping,
            9 => Kind::Continuation,
            _ => Kind::Other,
        };
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        Self { kind, flags, length }
    }

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn ends_stream(self) -> bool {
        matches!(self.kind, Kind::Data | Kind::Headers) && self.has(END_STREAM)
    }
}

/// Finds frames in the bytes of one direction, however they are cut.
#[derive(Debug, Default)]
struct Frames {
    header: [u8; HEADER_BYTES],
    /// Bytes of the next header that have come.
    has: usize,
    current: Frame,
    /// Bytes of the current payload that are to come.
    left: usize,
}

impl Frames {
    /// Behind so many bytes that are no frame.
    fn behind(bytes: usize) -> Self {
        Self {
            left: bytes,
            current: Frame { kind: Kind::Data, ..Frame::default() },
            ..Self::default()
        }
    }

    /// Takes bytes up to the end of the next header or payload; answers how many, and the frame
    /// whose header has come.
    fn step(&mut self, bytes: &[u8]) -> (usize, Option<Frame>) {
        if self.left > 0 {
            let skipped = self.left.min(bytes.len());
            self.left -= skipped;
            return (skipped, None);
        }
        let taken = (HEADER_BYTES - self.has).min(bytes.len());
        self.header[self.has..self.has + taken].copy_from_slice(&bytes[..taken]);
        self.has += taken;
        if self.has < HEADER_BYTES {
            return (taken, None);
        }
        self.has = 0;
        self.current = Frame::parse(self.header);
        self.left = self.current.length;
        (taken, Some(self.current))
    }

    /// Whether no frame is half there.
    fn is_between(&self) -> bool {
        self.has == 0 && self.left == 0
    }
}

/// How much of something is allowed.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    most: u32,
    per_second: u32,
}

/// What is left of an allowance.
#[derive(Debug)]
struct Left {
    allowance: Allowance,
    left: u32,
    since: Instant,
}

impl Left {
    fn new(allowance: Allowance, now: Instant) -> Self {
        Self { allowance, left: allowance.most, since: now }
    }

    fn earn(&mut self, number: u32) {
        self.left = self.left.saturating_add(number).min(self.allowance.most);
    }

    /// Takes one; false if there is none.
    fn spend(&mut self, now: Instant) -> bool {
        let seconds = now.duration_since(self.since).as_secs_f64();
        // A cast saturates, as the count does.
        let more = (seconds * f64::from(self.allowance.per_second)) as u32;
        if more > 0 {
            self.earn(more);
            self.since = now;
        }
        let has_one = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has_one
    }
}

/// Counts one connection.
#[derive(Debug)]
pub(crate) struct Meter {
    received: Frames,
    sent: Frames,
    control: Left,
    resets: Left,
    is_in_section: bool,
    /// Since when a frame other than DATA, or a field section, is half there.
    half_since: Option<Instant>,
    excess: Option<Excess>,
}

impl Meter {
    /// Nothing has come, not even the preface.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            received: Frames::behind(PREFACE_BYTES),
            sent: Frames::default(),
            control: Left::new(CONTROL, now),
            resets: Left::new(RESETS, now),
            is_in_section: false,
            half_since: None,
            excess: None,
        }
    }

    /// Takes what the client has sent.
    pub(crate) fn received(&mut self, mut bytes: &[u8], now: Instant) {
        while !bytes.is_empty() {
            let (taken, frame) = self.received.step(bytes);
            bytes = &bytes[taken..];
            if let Some(frame) = frame {
                self.count(frame, now);
            }
            if !self.is_half() {
                self.half_since = None;
            }
        }
        if self.is_half() {
            self.half_since.get_or_insert(now);
        }
    }

    /// Whether a field section, or a frame that is not the body's, is half there.
    fn is_half(&self) -> bool {
        let is_body = self.received.has == 0 && self.received.current.kind == Kind::Data;
        self.is_in_section || !self.received.is_between() && !is_body
    }

    /// Takes what the client was sent.
    pub(crate) fn sent(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (taken, frame) = self.sent.step(bytes);
            bytes = &bytes[taken..];
            let Some(frame) = frame else { continue };
            if matches!(frame.kind, Kind::Data | Kind::Headers) {
                self.control.earn(CONTROL_EARNED);
            }
            if frame.ends_stream() {
                self.resets.earn(1);
            }
        }
    }

    fn count(&mut self, frame: Frame, now: Instant) {
        let is_answer = matches!(frame.kind, Kind::Settings | Kind::Ping) && frame.has(ACK);
        let is_allowed = match frame.kind {
            Kind::Headers | Kind::Continuation => {
                self.is_in_section = !frame.has(END_HEADERS);
                if frame.kind == Kind::Headers {
                    self.control.earn(CONTROL_EARNED);
                }
                true
            }
            Kind::Data if frame.length > 0 => {
                self.control.earn(CONTROL_EARNED);
                true
            }
            Kind::Data if frame.ends_stream() => true,
            Kind::Reset => {
                if !self.resets.spend(now) {
                    self.excess.get_or_insert(Excess::Resets);
                }
                true
            }
            // As many as were asked for here.
            Kind::Settings | Kind::Ping if is_answer => true,
            Kind::Data | Kind::Settings | Kind::Ping | Kind::Other => self.control.spend(now),
        };
        if !is_allowed {
            self.excess.get_or_insert(Excess::Control);
        }
    }

    /// What the client did too much of.
    pub(crate) fn excess(&self) -> Option<Excess> {
        self.excess
    }

    /// When a frame or a field section that has begun must be whole.
    pub(crate) fn whole_by(&self, limit: Duration) -> Option<Instant> {
        self.half_since.map(|since| since + limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const PRIORITY: u8 = 2;
    const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const WINDOW_UPDATE: u8 = 8;
    const CONTINUATION: u8 = 9;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        frame.extend(vec![b'x'; length.into()]);
        frame
    }

    fn open(now: Instant) -> Meter {
        let mut meter = Meter::new(now);
        meter.received(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", now);
        meter
    }

    /// What becomes of a client that sends the same frames again and again within a second.
    fn check(frames: &[Vec<u8>], times: usize, expected: Option<Excess>) {
        let now = Instant::now();
        let mut meter = open(now);
        let all = frames.concat();
        (0..times).for_each(|_| meter.received(&all, now));
        assert_eq!(meter.excess(), expected, "{frames:?}");
    }

    #[test]
    fn frames_that_carry_nothing_are_an_excess() {
        for kind in [PRIORITY, SETTINGS, PING, WINDOW_UPDATE, 0xfa] {
            check(&[frame(kind, 0, 8)], 1_000, None);
            check(&[frame(kind, 0, 8)], 1_001, Some(Excess::Control));
        }
        check(&[frame(DATA, 0, 0)], 1_001, Some(Excess::Control));
        check(&[frame(DATA, END_STREAM, 0)], 10_000, None);
        check(&[frame(PING, ACK, 8), frame(SETTINGS, ACK, 0)], 10_000, None);
    }

    #[test]
    fn requests_that_are_reset_are_an_excess() {
        let request = frame(HEADERS, END_HEADERS | END_STREAM, 20);
        check(&[request.clone(), frame(RST_STREAM, 0, 4)], 500, None);
        check(&[request.clone(), frame(RST_STREAM, 0, 4)], 501, Some(Excess::Resets));
        check(&[request], 10_000, None);
    }

    #[test]
    fn honest_traffic_earns_what_it_spends() {
        let now = Instant::now();
        let mut meter = open(now);
        for _ in 0..10_000 {
            meter.received(&frame(HEADERS, END_HEADERS, 20), now);
            meter.received(&frame(DATA, END_STREAM, 100), now);
            meter.sent(&[frame(HEADERS, END_HEADERS, 20), frame(DATA, END_STREAM, 100)].concat());
            // Both windows grow, a probe of the round trip, and it is the end of another one.
            for kind in [WINDOW_UPDATE, WINDOW_UPDATE, PING, RST_STREAM] {
                meter.received(&frame(kind, 0, 8), now);
            }
        }
        assert_eq!(meter.excess(), None);
    }

    #[test]
    fn time_allows_more() {
        let start = Instant::now();
        let mut meter = open(start);
        let ping = frame(PING, 0, 8);
        for second in 0..60 {
            (0..100).for_each(|_| meter.received(&ping, start + Duration::from_secs(second)));
        }
        assert_eq!(meter.excess(), None);
        let at = start + Duration::from_secs(60);
        (0..1_100).for_each(|_| meter.received(&ping, at));
        assert_eq!(meter.excess(), Some(Excess::Control));
    }

    #[test]
    fn a_field_section_must_become_whole() {
        let start = Instant::now();
        let limit = Duration::from_secs(10);
        let second = |number| start + Duration::from_secs(number);
        let whole_by = |pieces: &[&[u8]]| {
            let mut meter = open(start);
            for (number, piece) in pieces.iter().enumerate() {
                meter.received(piece, second(number as u64));
            }
            meter.whole_by(limit)
        };
        let (begun, more) = (frame(HEADERS, 0, 20), frame(CONTINUATION, 0, 20));
        let end = frame(CONTINUATION, END_HEADERS, 20);
        assert_eq!(whole_by(&[&begun, &more, &more]), Some(second(10)));
        assert_eq!(whole_by(&[&begun, &more, &end]), None);
        assert_eq!(whole_by(&[&begun[..5], &begun[5..12]]), Some(second(10)));
        let whole = frame(HEADERS, END_HEADERS, 20);
        let (first, rest) = whole.split_at(15);
        let next = [rest, first].concat();
        assert_eq!(whole_by(&[first, &next, &next]), Some(second(12)), "another one each time");
        // A body has a limit of its own.
        let body = frame(DATA, 0, 20);
        assert_eq!(whole_by(&[&body[..12]]), None);
        assert_eq!(whole_by(&[&body[..5]]), Some(second(10)));
        assert_eq!(whole_by(&[&body[..5], &body[5..12]]), None, "however its header is cut");
    }

    #[test]
    fn it_does_not_matter_how_bytes_are_cut() {
        let now = Instant::now();
        let all = [frame(HEADERS, END_HEADERS, 20), frame(PING, 0, 8)].concat().repeat(600);
        for size in [1, 2, 8, 9, 10, 64, all.len()] {
            let mut meter = open(now);
            all.chunks(size).for_each(|piece| meter.received(piece, now));
            assert_eq!((meter.excess(), meter.half_since), (None, None), "{size}");
            assert_eq!(meter.control.left, 999, "{size}");
        }
    }
}
