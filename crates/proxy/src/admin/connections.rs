//! The live connections of a node: this worker's own, and those of the workers that still finish
//! theirs.
//!
//! Only the supervisor knows the other workers. It makes a socket pair for each of them, hands one
//! end to that worker and the other to the one that asks, and need not wait for anybody: a worker
//! that dies meanwhile closes its end. Everything here has a time limit, and no connection waits.

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tracing::warn;

use crate::connections::ConnectionInfo;
use crate::dataplane::Command;
use crate::handover::FromWorker;
use crate::link::Link;

/// How long data-plane threads and other workers may take to tell of their connections.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the supervisor may take to pass a question on. It may also be gone.
const SUPERVISOR_TIMEOUT: Duration = Duration::from_secs(1);
/// Largest list of one other worker: some 100,000 connections.
const MAX_LIST_BYTES: u64 = 64 << 20;

/// Tells of live connections.
pub(crate) struct LiveConnections {
    threads: Vec<mpsc::Sender<Command>>,
    link: Link,
    /// Questions on their way to the other workers.
    asked: Mutex<HashMap<u64, oneshot::Sender<Vec<StdUnixStream>>>>,
    next_question: AtomicU64,
}

impl LiveConnections {
    /// For the worker with these data-plane threads.
    pub(crate) fn new(threads: Vec<mpsc::Sender<Command>>, link: Link) -> Self {
        Self { threads, link, asked: Mutex::default(), next_question: AtomicU64::default() }
    }

    /// All of this node, the youngest last.
    pub(super) async fn of_all_workers(&self) -> Result<Vec<Value>, serde_json::Error> {
        let (own, others) = tokio::join!(self.own(), self.of_others());
        let own = own.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
        let mut all: Vec<Value> = own.into_iter().chain(others).collect();
        all.sort_by_key(|connection| std::cmp::Reverse(connection["ageMs"].as_u64()));
        Ok(all)
    }

    /// Writes this worker's own to another one that asks.
    pub(crate) async fn tell(&self, asker: StdUnixStream) {
        let telling = async {
            let list = serde_json::to_vec(&self.own().await)?;
            asker.set_nonblocking(true)?;
            UnixStream::from_std(asker)?.write_all(&list).await
        };
        match timeout(LIST_TIMEOUT, telling).await {
            Ok(Ok(())) => {}
            // Who asked may have given up.
            Ok(Err(error)) => warn!(%error, "cannot tell another worker of the connections"),
            Err(_) => warn!("another worker does not read what it asked for"),
        }
    }

    /// The supervisor has passed a question on; here the answers will come.
    pub(crate) fn passed_on(&self, question: u64, answers: Vec<StdUnixStream>) {
        let asker = self.asked.lock().expect("no holder of the lock panics").remove(&question);
        if let Some(asker) = asker {
            // Who asked may have given up.
            drop(asker.send(answers));
        }
    }

    async fn own(&self) -> Vec<ConnectionInfo> {
        let asking = self.threads.iter().map(|thread| async move {
            let (answer, connections) = oneshot::channel();
            thread.send(Command::List(answer)).await.ok()?;
            timeout(LIST_TIMEOUT, connections).await.ok()?.ok()
        });
        let all = futures::future::join_all(asking).await;
        all.into_iter().flatten().flatten().collect()
    }

    /// Those of the workers that finish their connections. A worker without an answer is left out,
    /// and the log says so.
    async fn of_others(&self) -> Vec<Value> {
        let question = self.next_question.fetch_add(1, Ordering::Relaxed);
        let (asker, passed_on) = oneshot::channel();
        self.asked.lock().expect("no holder of the lock panics").insert(question, asker);
        self.link.say(FromWorker::AskOthers { question }).await;
        let answers = timeout(SUPERVISOR_TIMEOUT, passed_on).await;
        self.asked.lock().expect("no holder of the lock panics").remove(&question);
        let Ok(Ok(answers)) = answers else {
            warn!("no supervisor answers; only this worker's connections are told of");
            return Vec::new();
        };
        let lists = futures::future::join_all(answers.into_iter().map(read)).await;
        let read = lists.into_iter().filter_map(|list| {
            list.inspect_err(|error| warn!(%error, "connections of a worker are left out")).ok()
        });
        read.flatten().collect()
    }
}

/// Another worker's list. One that has ended has no connections any more.
async fn read(answer: StdUnixStream) -> io::Result<Vec<Value>> {
    answer.set_nonblocking(true)?;
    let mut list = Vec::new();
    let mut answer = UnixStream::from_std(answer)?.take(MAX_LIST_BYTES);
    match timeout(LIST_TIMEOUT, answer.read_to_end(&mut list)).await {
        Ok(read) => read?,
        Err(_) => return Err(io::ErrorKind::TimedOut.into()),
    };
    if list.is_empty() { Ok(Vec::new()) } else { Ok(serde_json::from_slice(&list)?) }
}
