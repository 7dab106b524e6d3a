//! HTTP/1.1 responses, parsed piece by piece as the socket delivers them.
//!
//! It reads only what a load generator needs: the status, where the response ends, and whether the
//! connection may be used again. Bodies are counted, never kept. It must accept the same responses
//! however their bytes are split, and never count bytes that no request asked for as a response.

/// The largest head and trailer that are accepted, and the longest line of a chunked body.
const HEAD_MAX_BYTES: usize = 64 << 10;

/// A response that has been read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Response {
    /// Its status code.
    pub(super) status: u16,
    /// All of its bytes, head and framing included.
    pub(super) bytes: u64,
    /// Its body's bytes, without framing.
    pub(super) body_bytes: u64,
    /// The connection ends with it.
    pub(super) is_last: bool,
}

/// Bytes that are no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ResponseError {
    /// The first line is not a status line.
    #[error("response is not HTTP/1.1")]
    NotHttp,
    /// The head does not end.
    #[error("response head is larger than 64 KiB")]
    HeadTooLarge,
    /// The lines after a chunked body do not end.
    #[error("response trailer is larger than 64 KiB")]
    TrailerTooLarge,
    /// What follows is another protocol, which nobody here speaks.
    #[error("status 101, switching protocols")]
    Switched,
    /// Contradictory or unreadable.
    #[error("response has a wrong Content-Length")]
    Length,
    /// Not a hexadecimal size, or no line end where one belongs.
    #[error("response has a wrong chunk")]
    Chunk,
    /// Something follows the response.
    #[error("more bytes than the response")]
    Surplus,
    /// The stream ended within it.
    #[error("closed before the whole response")]
    Truncated,
}

/// The reader's position in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the head; the bytes so far are in [`Reader::partial`].
    Head,
    /// So much of the body is still to come.
    Body { left: u64 },
    /// The end of the stream is the end of the body.
    UntilClose,
    /// In a line with a chunk's size.
    ChunkSize,
    /// So much of the chunk is still to come.
    Chunk { left: u64 },
    /// Before the line end of a chunk.
    ChunkEnd,
    /// In the lines after the last chunk; so many bytes of complete lines so far.
    Trailer { bytes: usize },
}

/// Reads one response after the other.
#[derive(Debug)]
pub(super) struct Reader {
    state: State,
    /// A head or line whose end has not come yet.
    partial: Vec<u8>,
    response: Response,
    /// The request was HEAD: there is no body, whatever the head says.
    without_body: bool,
}

const EMPTY: Response = Response { status: 0, bytes: 0, body_bytes: 0, is_last: false };

impl Reader {
    /// A reader of answers to requests with this method.
    pub(super) fn new(method: &str) -> Self {
        let without_body = method == "HEAD";
        Self { state: State::Head, partial: Vec::new(), response: EMPTY, without_body }
    }

    /// Forgets a response that was read in part.
    pub(super) fn reset(&mut self) {
        self.state = State::Head;
        self.partial.clear();
        self.response = EMPTY;
    }

    /// Takes what came; the response, if this was the end of it.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<Option<Response>, ResponseError> {
        self.response.bytes += bytes.len() as u64;
        let mut rest = bytes;
        while !rest.is_empty() {
            let is_done = match self.state {
                State::Head => self.head(&mut rest)?,
                State::Body { left } => {
                    let left = self.body(&mut rest, left);
                    self.state = State::Body { left };
                    left == 0
                }
                State::UntilClose => {
                    self.body(&mut rest, u64::MAX);
                    false
                }
                State::Chunk { left } => {
                    let left = self.body(&mut rest, left);
                    self.state = if left == 0 { State::ChunkEnd } else { State::Chunk { left } };
                    false
                }
                State::ChunkSize | State::ChunkEnd | State::Trailer { .. } => {
                    self.line(&mut rest)?
                }
            };
            if is_done {
                return if rest.is_empty() {
                    Ok(Some(self.done()))
                } else {
                    Err(ResponseError::Surplus)
                };
            }
        }
        Ok(None)
    }

    /// The stream has ended; the response, if that is how it ends.
    pub(super) fn end(&mut self) -> Result<Response, ResponseError> {
        if self.state != State::UntilClose {
            return Err(ResponseError::Truncated);
        }
        self.response.is_last = true;
        Ok(self.done())
    }

    fn done(&mut self) -> Response {
        let response = self.response;
        self.reset();
        response
    }

    fn body(&mut self, rest: &mut &[u8], left: u64) -> u64 {
        let taken = left.min(rest.len() as u64);
        *rest = &rest[usize::try_from(taken).unwrap_or(rest.len())..];
        self.response.body_bytes += taken;
        left - taken
    }

    /// Takes a head, or the part of it that has come; true if the response has no body.
    fn head(&mut self, rest: &mut &[u8]) -> Result<bool, ResponseError> {
        if self.partial.is_empty()
            && let Some(end) = head_end(rest, 0)
        {
            let (head, tail) = rest.split_at(end);
            *rest = tail;
            return self.begin(head);
        }
        let (seen, before) = (self.partial.len().saturating_sub(3), self.partial.len());
        self.partial.extend_from_slice(rest);
        let Some(end) = head_end(&self.partial, seen) else {
            *rest = &[];
            let too_large = self.partial.len() > HEAD_MAX_BYTES;
            return if too_large { Err(ResponseError::HeadTooLarge) } else { Ok(false) };
        };
        *rest = &rest[end - before..];
        let mut head = std::mem::take(&mut self.partial);
        head.truncate(end);
        let is_done = self.begin(&head)?;
        head.clear();
        self.partial = head;
        Ok(is_done)
    }

    /// Reads a whole head and goes to where its body begins.
    fn begin(&mut self, head: &[u8]) -> Result<bool, ResponseError> {
        let head = Head::read(head)?;
        if head.status == 101 {
            return Err(ResponseError::Switched);
        }
        if (100..200).contains(&head.status) {
            // Not the answer yet.
            self.state = State::Head;
            return Ok(false);
        }
        self.response.status = head.status;
        self.response.is_last = head.is_last;
        let without_body = self.without_body || matches!(head.status, 204 | 304);
        self.state = match head.length {
            _ if without_body => State::Body { left: 0 },
            Length::Chunked => State::ChunkSize,
            Length::Exactly(left) => State::Body { left },
            Length::UntilClose => State::UntilClose,
        };
        Ok(self.state == State::Body { left: 0 })
    }

    /// Takes a line of a chunked body; true if it was the last.
    fn line(&mut self, rest: &mut &[u8]) -> Result<bool, ResponseError> {
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            self.partial.extend_from_slice(rest);
            *rest = &[];
            let too_long = self.partial.len() > HEAD_MAX_BYTES;
            return if too_long { Err(ResponseError::Chunk) } else { Ok(false) };
        };
        self.partial.extend_from_slice(&rest[..end]);
        *rest = &rest[end + 1..];
        let line = self.partial.strip_suffix(b"\r").ok_or(ResponseError::Chunk)?;
        let (state, is_done) = match self.state {
            State::ChunkEnd if line.is_empty() => (State::ChunkSize, false),
            State::ChunkSize => match chunk_size(line).ok_or(ResponseError::Chunk)? {
                0 => (State::Trailer { bytes: 0 }, false),
                left => (State::Chunk { left }, false),
            },
            State::Trailer { bytes } => {
                let bytes = bytes + line.len() + 2;
                if bytes > HEAD_MAX_BYTES {
                    return Err(ResponseError::TrailerTooLarge);
                }
                (State::Trailer { bytes }, line.is_empty())
            }
            _ => return Err(ResponseError::Chunk),
        };
        self.state = state;
        self.partial.clear();
        Ok(is_done)
    }
}

/// How long a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Exactly(u64),
    Chunked,
    UntilClose,
}

/// What a head says.
#[derive(Debug)]
struct Head {
    status: u16,
    length: Length,
    is_last: bool,
}

impl Head {
    fn read(head: &[u8]) -> Result<Self, ResponseError> {
        let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.trim_ascii_end());
        let first = lines.next().unwrap_or_default();
        let version = first.strip_prefix(b"HTTP/1.").ok_or(ResponseError::NotHttp)?;
        let (minor, status) = match version {
            [minor @ (b'0' | b'1'), b' ', status @ ..] => (*minor, status),
            _ => return Err(ResponseError::NotHttp),
        };
        let status = status.get(..3).and_then(number).ok_or(ResponseError::NotHttp)?;
        let status = u16::try_from(status).map_err(|_| ResponseError::NotHttp)?;
        let mut read = Self { status, length: Length::UntilClose, is_last: minor == b'0' };
        for line in lines {
            read.field(line)?;
        }
        Ok(read)
    }

    fn field(&mut self, line: &[u8]) -> Result<(), ResponseError> {
        // By the length of the name first: most fields are none of these three.
        let name = |name: &str| {
            line.get(name.len()) == Some(&b':')
                && line[..name.len()].eq_ignore_ascii_case(name.as_bytes())
        };
        if name("content-length") {
            let length = number(line[15..].trim_ascii()).ok_or(ResponseError::Length)?;
            match self.length {
                Length::Exactly(before) if before != length => return Err(ResponseError::Length),
                // RFC 9112, section 6.3: Transfer-Encoding overrides it.
                Length::Chunked => {}
                _ => self.length = Length::Exactly(length),
            }
        } else if name("transfer-encoding") {
            self.length = Length::Chunked;
        } else if name("connection") {
            for option in line[11..].split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                if option.eq_ignore_ascii_case(b"close") {
                    self.is_last = true;
                } else if option.eq_ignore_ascii_case(b"keep-alive") {
                    self.is_last = false;
                }
            }
        }
        Ok(())
    }
}

/// The end of a head, the empty line included, if it ends after `from`. A bare LF ends a line too
/// (RFC 9112, section 2.2).
fn head_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += bytes[at..].iter().position(|byte| *byte == b'\n')? + 1;
        match &bytes[at..] {
            [b'\n', ..] => return Some(at + 1),
            [b'\r', b'\n', ..] => return Some(at + 2),
            _ => {}
        }
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// The size before a chunk; what may follow it behind a semicolon means nothing here.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii();
    let text = std::str::from_utf8(digits).ok()?;
    let is_hexadecimal = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hexadecimal { u64::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads bytes that arrive in pieces of this size, and then the end of the stream.
    fn read(bytes: &[u8], pieces: &[usize]) -> Result<Response, ResponseError> {
        let mut reader = Reader::new("GET");
        let mut rest = bytes;
        let mut sizes = pieces.iter().copied().cycle();
        while !rest.is_empty() {
            let size = sizes.next().unwrap_or(rest.len()).clamp(1, rest.len());
            let (piece, tail) = rest.split_at(size);
            rest = tail;
            if let Some(response) = reader.take(piece)? {
                return if rest.is_empty() { Ok(response) } else { Err(ResponseError::Surplus) };
            }
        }
        reader.end()
    }

    const GOOD: [(&str, u16, u64, bool); 13] = [
        ("HTTP/1.1 200 OK\r\ncontent-LENGTH: 5\r\n\r\nhello", 200, 5, false),
        ("HTTP/1.1 200 OK\r\nContent-Length:0\r\nConnection: Close\r\n\r\n", 200, 0, true),
        ("HTTP/1.1 200\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab", 200, 2, false),
        ("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", 200, 1, true),
        ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na", 200, 1, false),
        ("HTTP/1.1 404 Not Found\r\n\r\nuntil the end", 404, 13, true),
        ("HTTP/1.1 204 No Content\r\n\r\n", 204, 0, false),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
            200,
            1,
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            200,
            5,
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n\
             A ;x=y\r\n0123\r\n6789\r\n1\r\n!\r\n000\r\nX-Sum: 1\r\nY: 2\r\n\r\n",
            200,
            11,
            false,
        ),
        ("HTTP/1.1 200 OK\nContent-Length: 2\n\nab", 200, 2, false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\n\r\nab", 200, 2, false),
        ("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 1\r\n\r\n!", 503, 1, false),
    ];

    const BAD: [(&str, ResponseError); 13] = [
        ("", ResponseError::Truncated),
        ("SSH-2.0-x 200\r\n\r\n", ResponseError::NotHttp),
        ("HTTP/2 200\r\n\r\n", ResponseError::NotHttp),
        ("HTTP/1.1 20\r\n\r\n", ResponseError::NotHttp),
        ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", ResponseError::Switched),
        ("HTTP/1.1 200 OK\r\nContent-Le", ResponseError::Truncated),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", ResponseError::Truncated),
        ("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", ResponseError::Length),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            ResponseError::Length,
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab", ResponseError::Surplus),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\n", ResponseError::Chunk),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", ResponseError::Chunk),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello", ResponseError::Chunk),
    ];

    #[test]
    fn responses_end_where_they_say() {
        for (text, status, body_bytes, is_last) in GOOD {
            let expected = Response { status, bytes: text.len() as u64, body_bytes, is_last };
            assert_eq!(read(text.as_bytes(), &[]), Ok(expected), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_response_is_told_apart() {
        for (text, error) in BAD {
            assert_eq!(read(text.as_bytes(), &[]), Err(error), "{text:?}");
        }
        let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(HEAD_MAX_BYTES));
        assert_eq!(read(endless.as_bytes(), &[1000]), Err(ResponseError::HeadTooLarge));
        let lines = "X: y\r\n".repeat(HEAD_MAX_BYTES / 4);
        let endless = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n{lines}");
        assert_eq!(read(endless.as_bytes(), &[1000]), Err(ResponseError::TrailerTooLarge));
    }

    #[test]
    fn an_answer_to_head_has_no_body() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        let response = Reader::new("HEAD").take(text.as_bytes()).unwrap().unwrap();
        assert_eq!((response.status, response.body_bytes), (200, 0));
    }

    proptest! {
        #[test]
        fn splitting_changes_nothing(
            index in 0..GOOD.len() + BAD.len(),
            pieces in proptest::collection::vec(1..40usize, 1..8),
        ) {
            let bad = || BAD[index - GOOD.len()].0;
            let text = GOOD.get(index).map_or_else(bad, |good| good.0);
            prop_assert_eq!(read(text.as_bytes(), &pieces), read(text.as_bytes(), &[]));
        }

        #[test]
        fn no_bytes_make_it_panic(
            bytes: Vec<u8>,
            pieces in proptest::collection::vec(1..9usize, 1..4),
        ) {
            let mut text = b"HTTP/1.1 200 OK\r\n".to_vec();
            text.extend_from_slice(&bytes);
            let _any = read(&text, &pieces);
            let _any = read(&bytes, &pieces);
        }
    }
}
