//! One connection of a link, while both ends know each other: frames in, frames out.
//!
//! The device's own queue bounds the packets that wait to be sent, and the kernel drops what does
//! not fit. Messages wait in a queue of a few, whose sender waits. It never decides what a message
//! does.

use std::time::Duration;

use ambit_net::tun::Tun;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufWriter, split};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::filter::{Filter, Way};
use super::frame::{self, Frame, FrameError, Limits, Message, PACKET_SIZE_MAX_BYTES};

/// How often an end says that it lives.
const ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// An end that was silent for so long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// Messages that wait to be sent.
pub(super) const MESSAGES_MAX: usize = 4;
/// Messages that are taken at once, and for each second that passes: a node has at most 253 pods,
/// with three files each, and says all of them at the beginning.
const BURST_MAX: u32 = 1024;
const MESSAGES_PER_SECOND: u32 = 50;
/// What is written to the connection at once.
const WRITE_SIZE_BYTES: usize = 64 << 10;
/// Packets that are put together before they are sent.
const BATCH_MAX: usize = 64;

/// Why a session has ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    /// The connection, or what came over it.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Nothing comes any more.
    #[error("the other end has been silent for {} s", SILENCE_MAX.as_secs())]
    Silent,
    /// Nothing is taken any more.
    #[error("the other end has not read for {} s", SILENCE_MAX.as_secs())]
    Unread,
    /// The device.
    #[error("cannot read from the device")]
    Device(#[source] std::io::Error),
    /// The other end does not want it any more.
    #[error("{0}")]
    Refused(String),
    /// Nothing more is sent.
    #[error("{0}")]
    Closed(&'static str),
    /// What came cannot be kept.
    #[error("cannot change {path}")]
    File {
        /// Which.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// What is sent next.
enum Next {
    /// A packet of so many bytes, and those that wait behind it.
    Packets(usize),
    Message(Message),
}

/// What a session carries.
pub(super) struct Session<'a> {
    /// The device.
    pub(super) tun: &'a Tun,
    /// Whose packets pass.
    pub(super) filter: Filter,
    /// The way that what comes in goes.
    pub(super) incoming: Way,
    /// How long what comes in may be.
    pub(super) limits: Limits,
}

/// How fast messages are taken. Who sends more waits, with its packets.
struct Pace {
    /// Until when the messages that were taken have used up their time.
    used: Instant,
}

impl Pace {
    /// How long the next message has to wait.
    fn wait(&mut self, now: Instant) -> Duration {
        let each = Duration::from_secs(1) / MESSAGES_PER_SECOND;
        self.used = self.used.max(now) + each;
        self.used.duration_since(now).saturating_sub(each * BURST_MAX)
    }
}

impl Session<'_> {
    /// Carries until something ends it. `take` is given every message that comes.
    pub(super) async fn carry(
        &self,
        stream: impl AsyncRead + AsyncWrite,
        outgoing: mpsc::Receiver<Message>,
        take: impl FnMut(Message) -> Result<(), Ended>,
    ) -> Ended {
        let (reading, writing) = split(stream);
        let received = self.receive(reading, take);
        let sent = self.send(BufWriter::with_capacity(WRITE_SIZE_BYTES, writing), outgoing);
        tokio::select! {
            ended = received => ended,
            ended = sent => ended,
        }
    }

    async fn receive(
        &self,
        stream: impl AsyncRead,
        mut take: impl FnMut(Message) -> Result<(), Ended>,
    ) -> Ended {
        let mut stream = std::pin::pin!(stream);
        let mut pace = Pace { used: Instant::now() };
        loop {
            let frame = frame::read(&mut stream, self.limits);
            match timeout(SILENCE_MAX, frame).await {
                Err(_elapsed) => return Ended::Silent,
                Ok(Err(error)) => return error.into(),
                Ok(Ok(Frame::Packet(packet))) => {
                    if self.filter.passes(&packet, self.incoming)
                        && let Err(error) = self.tun.write(&packet)
                    {
                        tracing::debug!(%error, "a packet is dropped");
                    }
                }
                Ok(Ok(Frame::Message(message))) => {
                    sleep(pace.wait(Instant::now())).await;
                    if let Err(ended) = take(message) {
                        return ended;
                    }
                }
            }
        }
    }

    async fn send(&self, stream: impl AsyncWrite, mut outgoing: mpsc::Receiver<Message>) -> Ended {
        let mut stream = std::pin::pin!(stream);
        let mut packet = [0; PACKET_SIZE_MAX_BYTES];
        // What waited while nobody could send it is of no use any more.
        while let Ok(Some(_)) = self.tun.try_read(&mut packet) {}
        let mut alive = interval(ALIVE_INTERVAL);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let next = tokio::select! {
                read = self.tun.read(&mut packet) => match read {
                    Ok(length) => Next::Packets(length),
                    Err(error) => return Ended::Device(error),
                },
                message = outgoing.recv() => match message {
                    Some(message) => Next::Message(message),
                    None => return Ended::Closed("nothing more is sent"),
                },
                _ = alive.tick() => Next::Message(Message::Alive {}),
            };
            let written = async {
                match next {
                    Next::Packets(length) => {
                        self.send_packets(&mut stream, &mut packet, length).await?;
                    }
                    Next::Message(message) => frame::write_message(&mut stream, &message).await?,
                }
                stream.flush().await
            };
            match timeout(SILENCE_MAX, written).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return FrameError::Broken(error).into(),
                Err(_elapsed) => return Ended::Unread,
            }
        }
    }

    /// Sends a packet, and those that wait behind it.
    async fn send_packets(
        &self,
        stream: &mut (impl AsyncWrite + Unpin),
        packet: &mut [u8],
        mut length: usize,
    ) -> std::io::Result<()> {
        let outgoing = match self.incoming {
            Way::Home => Way::Joined,
            Way::Joined => Way::Home,
        };
        for waiting in (0..BATCH_MAX).rev() {
            if self.filter.passes(&packet[..length], outgoing) {
                frame::write_packet(stream, &packet[..length]).await?;
            }
            if waiting == 0 {
                break;
            }
            match self.tun.try_read(packet)? {
                Some(next) => length = next,
                None => break,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_says_much_waits() {
        let start = Instant::now();
        let mut pace = Pace { used: start };
        let mut waits = |at_ms: u64, count: u32| {
            let now = start + Duration::from_millis(at_ms);
            let longest = (0..count).map(|_| pace.wait(now)).max();
            longest.expect("at least one").as_millis()
        };
        assert_eq!(waits(0, BURST_MAX), 0);
        assert_eq!(waits(0, 3), 60);
        assert_eq!(waits(1000, 47), 0, "so many in a second");
        assert_eq!(waits(1000, 1), 20);
        assert_eq!(waits(3_600_000, BURST_MAX), 0);
    }
}
