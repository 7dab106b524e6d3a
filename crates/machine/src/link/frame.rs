//! What goes over a link, as bytes: frames of one byte of kind, four of length, and a body.
//!
//! A body is an IP packet, or a message in JSON. What comes is a stranger's until it has proven
//! itself, and bounded by [`Limits`] before it is read. Reading and writing are any stream's.

use std::io;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::entry::{Entry, Place};

/// The version of this form. Both ends must have the same.
pub(super) const VERSION: u32 = 1;
/// Longest packet: more than the devices' MTU.
pub(super) const PACKET_SIZE_MAX_BYTES: usize = 2048;
/// Longest message: an object of Kubernetes has at most 1.5 MiB, and more as text in JSON.
const MESSAGE_SIZE_MAX_BYTES: usize = 4 << 20;
/// Longest message of a joined machine: reports are short.
const REPORT_MESSAGE_SIZE_MAX_BYTES: usize = 128 << 10;
/// Longest message of one who has not proven itself.
const GREETING_SIZE_MAX_BYTES: usize = 8 << 10;

const PACKET: u8 = 1;
const MESSAGE: u8 = 2;
const HEADER_BYTES: usize = 5;

/// A frame.
#[derive(Debug, PartialEq)]
pub(super) enum Frame {
    /// An IP packet.
    Packet(Vec<u8>),
    /// A message.
    Message(Message),
}

/// What one end says to the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) enum Message {
    /// The joined machine: who it is.
    Hello(Hello),
    /// Home: it is known as the node of this name.
    Welcome {
        /// The node.
        node: String,
    },
    /// Home: it is not taken.
    Refused {
        /// Why.
        reason: String,
    },
    /// A file of the registry, new or different.
    Put(Entry),
    /// A file of the registry is gone.
    Remove(Place),
    /// All that there is was sent; what was not is gone.
    Whole {},
    /// Nothing is new, and the sender lives.
    Alive {},
}

/// How a joined machine proves itself.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Hello {
    /// The version of the form that it speaks.
    pub(super) version: u32,
    /// The secret of the token that it was started with.
    pub(super) secret: String,
    /// Its own, which home knows after the first time.
    pub(super) key: String,
}

/// Secrets are shown to nobody.
impl std::fmt::Debug for Hello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hello").field("version", &self.version).finish_non_exhaustive()
    }
}

/// Why a frame cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    /// The stream.
    #[error("the connection broke")]
    Broken(#[from] io::Error),
    /// A kind that there is not.
    #[error("a frame is of kind {0}, which this version does not know")]
    Kind(u8),
    /// It says that it is longer than any.
    #[error("a frame has {length} bytes, more than {limit}")]
    TooLong {
        /// As it says.
        length: usize,
        /// At most.
        limit: usize,
    },
    /// No message.
    #[error("a message is not of its form")]
    Form(#[from] serde_json::Error),
}

/// How long frames may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    packet: usize,
    message: usize,
}

impl Limits {
    /// Of one who has not proven itself: a short message.
    pub(super) const GREETING: Self = Self { packet: 0, message: GREETING_SIZE_MAX_BYTES };
    /// Of home, which sends objects.
    pub(super) const SESSION: Self =
        Self { packet: PACKET_SIZE_MAX_BYTES, message: MESSAGE_SIZE_MAX_BYTES };
    /// Of a joined machine that has proven itself.
    pub(super) const REPORTS: Self =
        Self { packet: PACKET_SIZE_MAX_BYTES, message: REPORT_MESSAGE_SIZE_MAX_BYTES };
}

impl Message {
    /// Whether the other end reads it: an object can be longer than any message.
    pub(super) fn fits(&self, limits: Limits) -> bool {
        serde_json::to_vec(self).is_ok_and(|body| body.len() <= limits.message)
    }
}

/// Reads one frame. Not cancel safe: who gives up closes the stream.
pub(super) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    limits: Limits,
) -> Result<Frame, FrameError> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).await?;
    let [kind, length @ ..] = header;
    let length = u32::from_be_bytes(length) as usize;
    let limit = match kind {
        PACKET => limits.packet,
        MESSAGE => limits.message,
        other => return Err(FrameError::Kind(other)),
    };
    if length > limit {
        return Err(FrameError::TooLong { length, limit });
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(match kind {
        PACKET => Frame::Packet(body),
        _ => Frame::Message(serde_json::from_slice(&body)?),
    })
}

/// Writes a packet; flushing is the caller's.
pub(super) async fn write_packet(
    stream: &mut (impl AsyncWrite + Unpin),
    packet: &[u8],
) -> io::Result<()> {
    write(stream, PACKET, packet).await
}

/// Writes a message; flushing is the caller's. One that is too long for the other end is an error.
pub(super) async fn write_message(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &Message,
) -> io::Result<()> {
    let body = serde_json::to_vec(message).expect("a message can be written as JSON");
    if body.len() > MESSAGE_SIZE_MAX_BYTES {
        return Err(io::Error::other("a message is longer than the other end reads"));
    }
    write(stream, MESSAGE, &body).await
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), kind: u8, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len()).expect("bodies are bounded");
    stream.write_u8(kind).await?;
    stream.write_u32(length).await?;
    stream.write_all(body).await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn written(frame: &Frame) -> Vec<u8> {
        let mut bytes = Vec::new();
        match frame {
            Frame::Packet(packet) => write_packet(&mut bytes, packet).await.expect("written"),
            Frame::Message(message) => write_message(&mut bytes, message).await.expect("written"),
        }
        bytes
    }

    #[tokio::test]
    async fn frames_are_read_as_they_were_written() {
        let hello = Hello { version: VERSION, secret: "s".to_owned(), key: "k".to_owned() };
        let place = Place::Status { namespace: "shop".to_owned(), name: "web".to_owned() };
        for frame in [
            Frame::Packet(vec![0x45; 1500]),
            Frame::Message(Message::Hello(hello)),
            Frame::Message(Message::Put(Entry { place: place.clone(), content: "{}".to_owned() })),
            Frame::Message(Message::Remove(place)),
            Frame::Message(Message::Whole {}),
        ] {
            let bytes = written(&frame).await;
            let read_back = read(&mut bytes.as_slice(), Limits::SESSION).await.expect("read");
            assert_eq!(read_back, frame);
            for length in 0..bytes.len() {
                let cut = read(&mut &bytes[..length], Limits::SESSION).await;
                assert!(matches!(cut, Err(FrameError::Broken(_))), "{length} bytes: {cut:?}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_no_frame_is_refused() {
        async fn check(bytes: &[u8], limits: Limits, part: &str) {
            let error = read(&mut &*bytes, limits).await.expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
        let (greeting, session) = (Limits::GREETING, Limits::SESSION);
        check(&[0, 0, 0, 0, 0], session, "of kind 0").await;
        check(&[9, 0, 0, 0, 0], session, "of kind 9").await;
        // Refused by its length alone, before memory is taken for it.
        check(&[2, 0xff, 0xff, 0xff, 0xff], session, "4294967295 bytes, more than 4194304").await;
        check(&[2, 0, 0, 0x20, 1], greeting, "8193 bytes, more than 8192").await;
        check(&[1, 0, 0, 8, 1], session, "2049 bytes, more than 2048").await;
        check(&[1, 0, 0, 0, 1, 0], greeting, "1 bytes, more than 0").await;
        let message = |text: &str| [&[2, 0, 0, 0, text.len() as u8], text.as_bytes()].concat();
        for text in ["", "{", "[]", r#""alive""#, r#"{"stop":{}}"#, r#"{"alive":{"x":1}}"#, "\u{0}"]
        {
            check(&message(text), session, "not of its form").await;
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let hello = Hello { version: 1, secret: "one".to_owned(), key: "two".to_owned() };
        assert_eq!(format!("{hello:?}"), "Hello { version: 1, .. }");
    }
}
