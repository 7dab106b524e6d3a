//! Where a head ends, line by line, and what of its lines is refused before anything is read.
//!
//! The scan goes on where it stopped, so that a client which sends byte by byte costs no more than
//! one that sends a head at once. What can be refused early is refused early: a client of HTTP/0.9,
//! of TLS or of bare line feeds would wait for an answer for ever.

use memchr::memchr;

use crate::fields::FieldLimits;
use crate::grammar;
use crate::refused::Refused;

/// How long a request line is at most, unless it is set otherwise.
const DEFAULT_LINE_BYTES: usize = 16 * 1024;

/// How long a head is at most, unless it is set otherwise: Envoy's default.
const DEFAULT_HEAD_BYTES: usize = 60 * 1024;

/// How much a head may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the request line, with its end.
    pub(crate) line_bytes: usize,
    /// Bytes of the head, with the empty line that ends it.
    pub(crate) head_bytes: usize,
    /// Fields, when they are read and later; never more than 256 are read.
    pub(crate) fields: FieldLimits,
}

impl Limits {
    /// Heads of so many bytes and fields. The request line has the default's part of it at most.
    pub fn new(head_bytes: usize, fields: u16) -> Self {
        let bytes = u32::try_from(head_bytes).unwrap_or(u32::MAX);
        let line_bytes = DEFAULT_LINE_BYTES.min(head_bytes);
        Self { line_bytes, head_bytes, fields: FieldLimits { number: fields, bytes } }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let fields = FieldLimits::default();
        Self { line_bytes: DEFAULT_LINE_BYTES, head_bytes: DEFAULT_HEAD_BYTES, fields }
    }
}

/// What begins at the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Request,
    Response,
    /// Fields without a line before them.
    Trailers,
}

/// How far the bytes of one head are looked at. A new head needs a new one.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Where the head begins: behind the empty line that may precede a request.
    origin: usize,
    /// Where the line begins that is not whole yet.
    line: usize,
    scanned: usize,
    lines: usize,
}

impl Progress {
    /// Where the head lies, once its last line is there. The bytes are those of the call before,
    /// and what came since.
    pub(super) fn advance(
        &mut self,
        bytes: &[u8],
        kind: Kind,
        limits: &Limits,
    ) -> Result<Option<std::ops::Range<usize>>, Refused> {
        if !self.begin(bytes, kind)? {
            return Ok(None);
        }
        while let Some(found) = memchr(b'\n', &bytes[self.scanned..]) {
            let end = self.scanned + found;
            let [line @ .., b'\r'] = &bytes[self.line..end] else { return Err(Refused::BareLf) };
            self.scanned = end + 1;
            self.check_size(end + 1, kind, limits)?;
            if line.is_empty() {
                return Ok(Some(self.origin..end + 1));
            }
            self.check_line(line, kind)?;
            self.line = end + 1;
            self.lines += 1;
            let fields = self.lines - usize::from(kind != Kind::Trailers);
            if fields > usize::from(limits.fields.number) {
                return Err(Refused::TooManyFields);
            }
        }
        self.scanned = bytes.len();
        self.check_size(bytes.len(), kind, limits)?;
        Ok(None)
    }

    /// Looks at the first byte; false while there is none.
    fn begin(&mut self, bytes: &[u8], kind: Kind) -> Result<bool, Refused> {
        if kind == Kind::Request && self.scanned == 0 {
            match bytes {
                [] | b"\r" => return Ok(false),
                [b'\r', b'\n', ..] => {
                    (self.origin, self.line, self.scanned) = (2, 2, 2);
                }
                _ => {}
            }
        }
        let Some(first) = bytes.get(self.origin) else { return Ok(false) };
        match (kind, first) {
            (Kind::Trailers, _) => {}
            (Kind::Request, b'\r') if self.origin > 0 => return Err(Refused::EmptyLines),
            (Kind::Request, b'\n') => return Err(Refused::BareLf),
            (Kind::Request, b'\r') => return Err(Refused::BareCr),
            (Kind::Request, byte) if !grammar::is_token_byte(*byte) => return Err(Refused::Method),
            (Kind::Response, byte) if *byte != b'H' => return Err(Refused::StatusLine),
            (Kind::Request | Kind::Response, _) => {}
        }
        Ok(true)
    }

    /// Whether the first line, and all up to `end`, are within the limits.
    fn check_size(&self, end: usize, kind: Kind, limits: &Limits) -> Result<(), Refused> {
        if self.lines == 0 && kind == Kind::Request && end - self.line > limits.line_bytes {
            return Err(Refused::TargetTooLong);
        }
        if end - self.origin > limits.head_bytes {
            return Err(Refused::HeadTooLarge);
        }
        Ok(())
    }

    fn check_line(&self, line: &[u8], kind: Kind) -> Result<(), Refused> {
        if self.lines > 0 || kind == Kind::Trailers {
            let is_continued = matches!(line.first(), Some(b' ' | b'\t'));
            return if is_continued { Err(Refused::ObsFold) } else { Ok(()) };
        }
        let (version, refused) = match kind {
            Kind::Response => (line.get(..8), Refused::StatusLine),
            Kind::Request | Kind::Trailers => {
                let (rest, version) = line.split_at(line.len().saturating_sub(8));
                (rest.ends_with(b" ").then_some(version), Refused::RequestLine)
            }
        };
        match version {
            Some(b"HTTP/1.1" | b"HTTP/1.0") => Ok(()),
            Some([b'H', b'T', b'T', b'P', b'/', major, b'.', minor])
                if major.is_ascii_digit() && minor.is_ascii_digit() =>
            {
                Err(Refused::Version)
            }
            _ => Err(refused),
        }
    }
}
