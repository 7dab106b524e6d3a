//! The live connections of a node: this worker's own, and those of workers that are still draining.
//!
//! Only the supervisor knows the other workers. For each of them it makes a socket pair, hands one
//! end to that worker and the other to the worker that asks, and waits for neither: a worker that
//! dies meanwhile closes its end. Everything here has a time limit, and no connection waits.

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ambit_wire::admin::{Connection, Connections};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tracing::warn;

use crate::dataplane::Command;
use crate::handover::FromWorker;
use crate::link::Link;

/// How long data-plane threads may take to list their connections: less than another worker waits,
/// so that it learns why there is no list.
const THREAD_TIMEOUT: Duration = Duration::from_secs(4);
/// How long other workers may take to list theirs.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a question may wait for the one before it.
const TURN_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the supervisor may take to pass a question on. It may also be gone.
const SUPERVISOR_TIMEOUT: Duration = Duration::from_secs(1);
/// Written in place of a list that would not be whole: an empty answer is that of a worker that has
/// ended.
const NOT_WHOLE: &[u8] = b"null";
/// Largest list of one other worker: some 100,000 connections.
const MAX_LIST_BYTES: u64 = 64 << 20;

/// What came of a question to the other workers.
#[derive(Debug)]
pub(crate) struct PassedOn {
    /// Where their lists arrive.
    pub(crate) answers: Vec<StdUnixStream>,
    /// How many were not asked.
    pub(crate) left_out: usize,
}

/// Questions on their way to the other workers.
type Asked = Mutex<HashMap<u64, oneshot::Sender<PassedOn>>>;

/// Lists live connections.
pub(crate) struct LiveConnections {
    threads: Vec<mpsc::Sender<Command>>,
    link: Link,
    asked: Asked,
    next_question: AtomicU64,
    /// One question at a time: the supervisor does not ask a worker again that owes an answer.
    turn: tokio::sync::Mutex<()>,
}

impl LiveConnections {
    /// For the worker with these data-plane threads.
    pub(crate) fn new(threads: Vec<mpsc::Sender<Command>>, link: Link) -> Self {
        let (asked, next_question) = (Asked::default(), AtomicU64::default());
        Self { threads, link, asked, next_question, turn: tokio::sync::Mutex::default() }
    }

    /// All of this node.
    pub(super) async fn of_all_workers(&self) -> Connections {
        let (own, mut all) = tokio::join!(self.own(), self.of_others());
        all.items.extend(own.connections);
        all.items.sort_by_key(|connection| std::cmp::Reverse(connection.age_ms));
        all.left_out = all.left_out.map(|others| others + usize::from(!own.is_whole));
        all
    }

    /// Writes this worker's own to another one that asks.
    pub(crate) async fn tell(&self, asker: StdUnixStream) {
        let telling = async {
            let own = self.own().await;
            let list = if own.is_whole {
                serde_json::to_vec(&own.connections)?
            } else {
                NOT_WHOLE.to_vec()
            };
            asker.set_nonblocking(true)?;
            UnixStream::from_std(asker)?.write_all(&list).await
        };
        match timeout(LIST_TIMEOUT, telling).await {
            Ok(Ok(())) => {}
            // Who asked may have given up.
            Ok(Err(error)) => warn!(%error, "cannot send the connections to another worker"),
            Err(_) => warn!("another worker does not read what it asked for"),
        }
    }

    /// The supervisor has passed a question on.
    pub(crate) fn passed_on(&self, question: u64, outcome: PassedOn) {
        let asker = self.asked.lock().expect("no holder of the lock panics").remove(&question);
        if let Some(asker) = asker {
            // Who asked may have given up.
            drop(asker.send(outcome));
        }
    }

    async fn own(&self) -> Own {
        let asking = self.threads.iter().map(|thread| {
            let asking = async {
                let (answer, connections) = oneshot::channel();
                thread.send(Command::List(answer)).await.ok()?;
                connections.await.ok()
            };
            timeout(THREAD_TIMEOUT, asking)
        });
        let all = futures::future::join_all(asking).await;
        // A thread that has ended has no connections any more, and that is an answer.
        let is_whole = all.iter().all(Result::is_ok);
        if !is_whole {
            warn!("a data-plane thread does not list its connections");
        }
        Own { connections: all.into_iter().flatten().flatten().flatten().collect(), is_whole }
    }

    /// Those of the workers that finish their connections. A worker without an answer is left out
    /// and counted.
    async fn of_others(&self) -> Connections {
        let turn = timeout(TURN_TIMEOUT, self.turn.lock()).await;
        let passed_on = match &turn {
            Ok(_) => self.pass_on().await,
            Err(_) => None,
        };
        let Some(PassedOn { answers, left_out }) = passed_on else {
            warn!("the other workers cannot be asked; only this one's connections are listed");
            return Connections::default();
        };
        let mut told = Connections { left_out: Some(left_out), ..Connections::default() };
        for list in futures::future::join_all(answers.into_iter().map(read)).await {
            match list {
                Ok(list) => told.items.extend(list),
                Err(error) => {
                    warn!(%error, "connections of a worker are left out");
                    told.left_out = told.left_out.map(|count| count + 1);
                }
            }
        }
        told
    }

    /// Has the supervisor ask the other workers; `None` if it does not.
    async fn pass_on(&self) -> Option<PassedOn> {
        let question = self.next_question.fetch_add(1, Ordering::Relaxed);
        let (asker, passed_on) = oneshot::channel();
        self.asked.lock().expect("no holder of the lock panics").insert(question, asker);
        let _entry = Entry { asked: &self.asked, question };
        let asking = async {
            self.link.say(FromWorker::AskOthers { question }).await;
            passed_on.await
        };
        timeout(SUPERVISOR_TIMEOUT, asking).await.ok()?.ok()
    }
}

/// This worker's own connections.
struct Own {
    connections: Vec<Connection>,
    /// Whether every thread has listed its own.
    is_whole: bool,
}

/// A question's entry, removed however the question ends: its client may leave at any moment.
struct Entry<'a> {
    asked: &'a Asked,
    question: u64,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.asked.lock().expect("no holder of the lock panics").remove(&self.question);
    }
}

/// Another worker's list. One that has ended has no connections any more.
async fn read(answer: StdUnixStream) -> io::Result<Vec<Connection>> {
    answer.set_nonblocking(true)?;
    let mut list = Vec::new();
    let mut answer = UnixStream::from_std(answer)?.take(MAX_LIST_BYTES);
    match timeout(LIST_TIMEOUT, answer.read_to_end(&mut list)).await {
        Ok(read) => read?,
        Err(_) => return Err(io::ErrorKind::TimedOut.into()),
    };
    if list.is_empty() { Ok(Vec::new()) } else { Ok(serde_json::from_slice(&list)?) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_question_whose_client_leaves_is_forgotten() {
        let (link, mut said) = Link::new();
        let connections = LiveConnections::new(Vec::new(), link);
        let asked = || connections.asked.lock().expect("unbroken").len();
        let while_asking = async { said.recv().await.map(|_| asked()) };
        tokio::select! {
            told = connections.of_others() => panic!("{told:?}"),
            asked = while_asking => assert_eq!(asked, Some(1)),
        }
        assert_eq!(asked(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn no_thread_and_no_supervisor_is_waited_for_without_end() {
        let (link, _unread) = Link::new();
        let full =
            async { while timeout(LIST_TIMEOUT, link.say(FromWorker::Ready)).await.is_ok() {} };
        full.await;
        let (thread, _stuck) = mpsc::channel(1);
        let connections = LiveConnections::new(vec![thread], link);
        for _ in 0..2 {
            let told = timeout(2 * LIST_TIMEOUT, connections.of_all_workers()).await;
            assert_eq!(told.expect("limited"), Connections::default());
        }
        let (asker, teller) = StdUnixStream::pair().expect("a pair of sockets");
        connections.tell(teller).await;
        assert!(read(asker).await.is_err(), "not taken for a worker that has ended");
    }
}
