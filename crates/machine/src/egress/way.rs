//! Process 1's end of the socket to the process on the host: asks, and pairs the answers.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ambit_net::seqpacket::Connection;
use tokio::sync::{Semaphore, oneshot};

use super::protocol::{
    Answer, CONTROL_DIALS_MAX, DIALS_MAX, PACKET_SIZE_MAX_BYTES, QUERIES_MAX, Question,
};

/// What comes back for a question.
type Outcome = io::Result<(Vec<u8>, Option<OwnedFd>)>;

/// The way to the host's network.
pub(super) struct Way {
    connection: Connection,
    waiting: Mutex<Waiting>,
    dials: Semaphore,
    control_dials: Semaphore,
    queries: Semaphore,
}

/// For whom a connection is opened. Neither waits for the other: a pod that opens many to hosts
/// that do not answer must not keep its proxy from control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// A pod.
    Pod,
    /// A proxy that connects to control.
    Control,
}

/// Who waits for an answer.
#[derive(Default)]
struct Waiting {
    last: u64,
    by_number: HashMap<u64, oneshot::Sender<Outcome>>,
    /// The process on the host has ended: there will be no answers.
    is_over: bool,
}

impl Way {
    /// Needs a runtime.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            connection: Connection::from_fd(socket)?,
            waiting: Mutex::default(),
            dials: Semaphore::new(DIALS_MAX),
            control_dials: Semaphore::new(CONTROL_DIALS_MAX),
            queries: Semaphore::new(QUERIES_MAX),
        })
    }

    /// Hands out the answers until the process on the host has ended.
    pub(super) async fn receive(&self) {
        let mut buffer = vec![0; PACKET_SIZE_MAX_BYTES];
        let why = loop {
            let packet = match self.connection.receive(&mut buffer).await {
                Ok(packet) => packet,
                Err(error) => break error.to_string(),
            };
            let Some(answer) = Answer::read(&buffer[..packet.length]) else {
                break "it says what is no answer".to_owned();
            };
            let outcome = match answer.errno {
                0 => Ok((answer.content, packet.fds.into_iter().next())),
                errno => Err(io::Error::from_raw_os_error(errno)),
            };
            if let Some(waits) = self.waiting().by_number.remove(&answer.number) {
                // Who has given up has no use for it.
                let _gone = waits.send(outcome);
            }
        };
        tracing::error!(why, "the way out is closed: its process on the host has ended");
        let mut waiting = self.waiting();
        waiting.is_over = true;
        waiting.by_number.clear();
    }

    /// A connection to this address outside.
    pub(super) async fn dial(&self, whose: For, to: SocketAddr) -> io::Result<TcpStream> {
        let places = match whose {
            For::Pod => &self.dials,
            For::Control => &self.control_dials,
        };
        let _held = places.acquire().await.map_err(io::Error::other)?;
        let (_, stream) = self.ask(&Question::Dial(to)).await?;
        stream.map(TcpStream::from).ok_or_else(|| io::Error::other("no connection came along"))
    }

    /// What the host's resolvers answer.
    pub(super) async fn resolve(&self, query: Vec<u8>) -> io::Result<Vec<u8>> {
        let _held = self.queries.acquire().await.map_err(io::Error::other)?;
        self.ask(&Question::Resolve(query)).await.map(|(answer, _)| answer)
    }

    async fn ask(&self, question: &Question) -> Outcome {
        let over = || io::Error::from(io::ErrorKind::NotConnected);
        let (number, answer) = {
            let (sender, receiver) = oneshot::channel();
            let mut waiting = self.waiting();
            if waiting.is_over {
                return Err(over());
            }
            waiting.last += 1;
            let number = waiting.last;
            waiting.by_number.insert(number, sender);
            (number, receiver)
        };
        if let Err(error) = self.connection.send(&question.write(number), &[]).await {
            self.waiting().by_number.remove(&number);
            return Err(io::Error::other(error));
        }
        answer.await.unwrap_or_else(|_closed| Err(over()))
    }

    /// Connections of pods that could be opened at once.
    #[cfg(test)]
    pub(super) fn free_dials(&self) -> usize {
        self.dials.available_permits()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use ambit_net::seqpacket::BlockingConnection;

    use super::*;

    #[tokio::test]
    async fn answers_find_their_questions_in_any_order() {
        let (ours, theirs) = BlockingConnection::pair().unwrap();
        let way = Arc::new(Way::new(ours.into()).unwrap());
        let receiving = tokio::spawn({
            let way = Arc::clone(&way);
            async move { way.receive().await }
        });
        let theirs = Connection::from_fd(theirs.into()).unwrap();
        let host = async {
            let mut buffer = vec![0; PACKET_SIZE_MAX_BYTES];
            let mut asked = Vec::new();
            for _ in 0..3 {
                let packet = theirs.receive(&mut buffer).await.unwrap();
                asked.push(Question::read(&buffer[..packet.length]).unwrap());
            }
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            for (number, question) in asked.into_iter().rev() {
                let (errno, content, fd) = match question {
                    Question::Resolve(query) => (0, query, None),
                    Question::Dial(to) if to.port() == 1 => (111, Vec::new(), None),
                    Question::Dial(_) => (0, Vec::new(), Some(stream.as_fd())),
                };
                let answer = Answer { number, errno, content }.write();
                theirs.send(&answer, fd.as_slice()).await.unwrap();
            }
        };
        let refused = way.dial(For::Pod, "192.0.2.1:1".parse().unwrap());
        let dialled = way.dial(For::Pod, "192.0.2.1:2".parse().unwrap());
        let (refused, dialled, resolved, ()) =
            tokio::join!(refused, dialled, way.resolve(vec![1, 2, 3]), host);
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert!(dialled.is_ok(), "{dialled:?}");
        assert_eq!(resolved.unwrap(), [1, 2, 3]);
        // Whoever waits when the process on the host ends hears of it, and who asks later.
        let (open, ()) = tokio::join!(way.resolve(vec![4]), async { drop(theirs) });
        assert!(open.is_err());
        receiving.await.unwrap();
        let late = way.dial(For::Pod, "192.0.2.1:2".parse().unwrap()).await;
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::NotConnected);
    }
}
