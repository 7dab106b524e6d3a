//! A SPDY connection of a client: what it opens and sends, one frame after the other, and the queue
//! of what it is sent.

use std::time::Duration;

use ambit_kubeapi::spdy::{Frame, FrameReader, FrameWriter, HEAD_SIZE_BYTES, ResetCode, SpdyError};
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc;
use tokio::time::interval;

/// Frames that wait to be written. Whoever has more waits for the client.
const FRAMES_MAX: usize = 8;
/// How often the client is asked whether it is there: if it is gone, the question cannot be sent.
const ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Largest number of a question.
const PING_MAX: u32 = 0x7fff_fffe;

/// Takes frames for the client.
pub(super) type Outbox = mpsc::Sender<Vec<u8>>;

/// Holds them until they are written.
#[derive(Debug)]
pub(super) struct Outgoing(mpsc::Receiver<Vec<u8>>);

/// A client's side of a connection.
#[derive(Debug)]
pub(super) struct Session<R> {
    reader: BufReader<R>,
    frames: FrameReader,
    writer: FrameWriter,
    outbox: Outbox,
    last_stream: u32,
}

/// What a client does.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// It opens a stream, which must be accepted or refused.
    Open { stream: u32, headers: Vec<(String, String)>, is_last: bool },
    /// It sends something on a stream; perhaps its last.
    Data { stream: u32, bytes: Bytes, is_last: bool },
    /// It wants no more of a stream.
    Reset { stream: u32 },
}

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    /// It broke.
    #[error("the connection broke")]
    Broken(#[from] std::io::Error),
    /// The client breaks the protocol.
    #[error(transparent)]
    Spdy(#[from] SpdyError),
    /// A stream's number is not the next of a client.
    #[error("a client's streams have odd numbers that grow; {stream} came after {last_stream}")]
    Number { stream: u32, last_stream: u32 },
    /// Nothing can be sent any more.
    #[error("the client is gone")]
    Gone,
}

impl<R: AsyncRead + Unpin> Session<R> {
    /// Begins to read.
    pub(super) fn new(reader: R) -> (Self, Outbox, Outgoing) {
        let (outbox, outgoing) = mpsc::channel(FRAMES_MAX);
        let session = Self {
            reader: BufReader::new(reader),
            frames: FrameReader::default(),
            writer: FrameWriter::default(),
            outbox: outbox.clone(),
            last_stream: 0,
        };
        (session, outbox, Outgoing(outgoing))
    }

    /// The next thing that the client does; none at its end. Not to be dropped before it is done.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, SessionError> {
        loop {
            let Some(bytes) = self.read_frame().await? else { return Ok(None) };
            match self.frames.read(&bytes)? {
                Frame::Open { stream, headers, is_last } => {
                    let last_stream = self.last_stream;
                    if stream % 2 == 0 || stream <= last_stream {
                        return Err(SessionError::Number { stream, last_stream });
                    }
                    self.last_stream = stream;
                    return Ok(Some(Event::Open { stream, headers, is_last }));
                }
                Frame::Data { stream, is_last, payload } => {
                    let bytes = bytes.slice_ref(payload);
                    return Ok(Some(Event::Data { stream, bytes, is_last }));
                }
                Frame::Reset { stream } => return Ok(Some(Event::Reset { stream })),
                Frame::Ping { number } if number % 2 == 1 => {
                    self.send(FrameWriter::ping(number)).await?;
                }
                // Answers, and what the end follows.
                Frame::Ping { .. } | Frame::GoAway | Frame::Other => {}
            }
        }
    }

    async fn read_frame(&mut self) -> Result<Option<Bytes>, SessionError> {
        let mut head = [0; HEAD_SIZE_BYTES];
        if self.reader.read(&mut head[..1]).await? == 0 {
            return Ok(None);
        }
        self.reader.read_exact(&mut head[1..]).await?;
        let mut frame = vec![0; FrameReader::length(head)?];
        frame[..HEAD_SIZE_BYTES].copy_from_slice(&head);
        self.reader.read_exact(&mut frame[HEAD_SIZE_BYTES..]).await?;
        Ok(Some(frame.into()))
    }

    /// Answers that a stream is open.
    pub(super) async fn accept(&mut self, stream: u32) -> Result<(), SessionError> {
        let frame = self.writer.opened(stream);
        self.send(frame).await
    }

    /// Answers that a stream is not open.
    pub(super) async fn refuse(
        &mut self,
        stream: u32,
        code: ResetCode,
    ) -> Result<(), SessionError> {
        self.send(FrameWriter::reset(stream, code)).await
    }

    /// Says what ends the connection, if the client can be told.
    pub(super) async fn end(&mut self, error: &SessionError) {
        tracing::debug!(%error, "a SPDY connection is over");
        if matches!(error, SessionError::Spdy(_) | SessionError::Number { .. }) {
            let _gone = self.send(FrameWriter::go_away(self.last_stream)).await;
        }
    }

    async fn send(&mut self, frame: Vec<u8>) -> Result<(), SessionError> {
        self.outbox.send(frame).await.map_err(|_| SessionError::Gone)
    }
}

impl Outgoing {
    /// Writes until nobody has the outbox any more, or the client is gone.
    pub(super) async fn write(
        mut self,
        mut writer: impl AsyncWrite + Unpin,
    ) -> std::io::Result<()> {
        let (mut alive, mut number) = (interval(ALIVE_INTERVAL), 0);
        alive.tick().await;
        loop {
            let frame = tokio::select! {
                frame = self.0.recv() => frame,
                _ = alive.tick() => {
                    number = if number >= PING_MAX { 2 } else { number + 2 };
                    Some(FrameWriter::ping(number))
                }
            };
            let Some(frame) = frame else { return writer.shutdown().await };
            writer.write_all(&frame).await?;
            writer.flush().await?;
        }
    }
}

/// The value of a stream's header.
pub(super) fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(it, _)| it == name).map(|(_, value)| value.as_str())
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::io::DuplexStream;

    use super::*;

    /// What opens a stream: the first of a connection, or a later one. Nothing is compressed.
    pub(in super::super) fn open(stream: u32, is_first: bool, headers: &[(&str, &str)]) -> Vec<u8> {
        let number = |it: usize| u32::try_from(it).expect("short").to_be_bytes();
        let mut text = number(headers.len()).to_vec();
        for word in headers.iter().flat_map(|(name, value)| [name, value]) {
            text.extend_from_slice(&number(word.len()));
            text.extend_from_slice(word.as_bytes());
        }
        let length = u16::try_from(text.len()).expect("short");
        let start: &[u8] = if is_first { b"\x78\xbb\xe3\xc6\xa7\xc2" } else { b"" };
        let stored = [&[0][..], &length.to_le_bytes(), &(!length).to_le_bytes(), &text];
        let block = [start, &stored.concat(), b"\0\0\0\xff\xff"].concat();
        let head = [0x8003_0001, u32::try_from(10 + block.len()).expect("short"), stream, 0];
        let head: Vec<u8> = head.iter().flat_map(|it: &u32| it.to_be_bytes()).collect();
        [head, vec![0; 2], block].concat()
    }

    /// Reads a frame: its first word, its flags, and its payload.
    pub(in super::super) async fn frame(client: &mut DuplexStream) -> (u32, u8, Vec<u8>) {
        let (first, second) =
            (client.read_u32().await.expect("a frame"), client.read_u32().await.expect("a frame"));
        let mut payload = vec![0; (second & 0xff_ffff) as usize];
        client.read_exact(&mut payload).await.expect("a frame");
        (first, (second >> 24) as u8, payload)
    }

    #[tokio::test]
    async fn a_client_is_heard_and_answered() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let (reader, writer) = tokio::io::split(server);
        let (mut session, outbox, outgoing) = Session::new(reader);
        let writing = tokio::spawn(outgoing.write(writer));
        client.write_all(&open(1, true, &[("port", "80")])).await.expect("written");
        client.write_all(&FrameWriter::ping(3)).await.expect("written");
        client.write_all(&FrameWriter::data(1, b"hello", true)).await.expect("written");
        client.write_all(&FrameWriter::reset(1, ResetCode::Refused)).await.expect("written");
        client.write_all(&open(4, false, &[])).await.expect("written");
        let headers = vec![("port".to_owned(), "80".to_owned())];
        assert_eq!(header(&headers, "port"), Some("80"));
        let expected = Event::Open { stream: 1, headers, is_last: false };
        assert_eq!(session.next().await.expect("an event"), Some(expected));
        session.accept(1).await.expect("accepted");
        let expected = Event::Data { stream: 1, bytes: "hello".into(), is_last: true };
        assert_eq!(session.next().await.expect("an event"), Some(expected));
        assert_eq!(session.next().await.expect("an event"), Some(Event::Reset { stream: 1 }));
        let error = session.next().await.expect_err("4 is no client's");
        assert!(matches!(error, SessionError::Number { stream: 4, last_stream: 1 }), "{error}");
        session.end(&error).await;
        let (kind, _, payload) = frame(&mut client).await;
        assert_eq!((kind, &payload[..4]), (0x8003_0002, &[0, 0, 0, 1][..]));
        assert_eq!(frame(&mut client).await, (0x8003_0006, 0, vec![0, 0, 0, 3]));
        assert_eq!(frame(&mut client).await.0, 0x8003_0007);
        drop((session, outbox));
        writing.await.expect("it ends").expect("it was written");
        assert_eq!(client.read(&mut [0]).await.expect("an end"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_asked() {
        let (mut client, server) = tokio::io::duplex(1 << 10);
        let (reader, writer) = tokio::io::split(server);
        let (session, _outbox, outgoing) = Session::new(reader);
        let writing = tokio::spawn(outgoing.write(writer));
        assert_eq!(frame(&mut client).await, (0x8003_0006, 0, vec![0, 0, 0, 2]));
        assert_eq!(frame(&mut client).await, (0x8003_0006, 0, vec![0, 0, 0, 4]));
        drop(client);
        assert!(writing.await.expect("it ends").is_err(), "the client is gone");
        drop(session);
    }
}
