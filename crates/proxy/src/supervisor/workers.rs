//! The supervisor's worker processes: starts them, talks to them, notices their end.
//!
//! A worker's socket is its standard input, so no descriptor number has to be agreed upon. A worker
//! that does not read its messages is killed: it could not serve anybody either.

use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use ambit_net::seqpacket::{BlockingConnection, Connection};
use ambit_net::sys::process::{Signal, pidfd_open, send_signal};
use futures::future::BoxFuture;
use socket2::SockRef;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{error, warn};

use crate::handover::{self, Descriptors, FromWorker, HandoverError, Message, ToWorker};

/// Messages that may wait for a worker: some thousand pods on 64 threads.
const OUTBOX: usize = 1 << 18;
/// Within this time a new worker says that it is ready.
pub(super) const START_LIMIT: Duration = Duration::from_secs(30);
/// Wait before a worker that never got ready is tried again; doubles.
const RETRY_START: Duration = Duration::from_millis(50);
/// Longest such wait.
const RETRY_LIMIT: Duration = Duration::from_secs(5);
/// Longest wait after a worker that had been ready: its pods' connections wait meanwhile.
const RETRY_LIMIT_AFTER_READY: Duration = Duration::from_millis(100);
/// The allocator reads its settings before `main`, so only from its environment.
const ALLOCATOR_SETTINGS: &str = "_RJEM_MALLOC_CONF";
/// A worker that served this long did not die of its start.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// A process that was started.
pub(super) struct Running {
    /// Its number.
    pub(super) pid: u32,
    /// How it ended, once it has.
    pub(super) exited: BoxFuture<'static, String>,
    /// Ends it.
    pub(super) kill: Box<dyn Fn() + Send>,
}

/// Starts workers. A test puts another in this place.
pub(super) trait Launcher: Send {
    /// Starts one, with its end of the socket.
    fn launch(&mut self, socket: OwnedFd) -> io::Result<Running>;
}

/// Starts this very program again as a worker, with the same flags.
pub(super) struct ThisProgram {
    program: PathBuf,
    arguments: Vec<OsString>,
    heap_profiling: bool,
}

impl ThisProgram {
    pub(super) fn new(heap_profiling: bool) -> io::Result<Self> {
        let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
        arguments.push("--worker".into());
        Ok(Self { program: std::env::current_exe()?, arguments, heap_profiling })
    }
}

impl Launcher for ThisProgram {
    fn launch(&mut self, socket: OwnedFd) -> io::Result<Running> {
        let mut command = tokio::process::Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::from(socket));
        if self.heap_profiling {
            command.env(ALLOCATOR_SETTINGS, "prof:true,prof_active:true,lg_prof_sample:19");
        }
        let mut child = command.spawn()?;
        let pid = child.id().expect("a child that was not waited for has a number");
        // A handle, because a number may be another process's by the time it is used.
        let handle = pidfd_open(pid.cast_signed())?;
        let exited = Box::pin(async move {
            match child.wait().await {
                Ok(status) => status.to_string(),
                Err(error) => format!("unknown end: {error}"),
            }
        });
        let end = move || {
            if let Err(error) = send_signal(&handle, Signal::Kill) {
                warn!(pid, %error, "cannot end the worker");
            }
        };
        Ok(Running { pid, exited, kill: Box::new(end) })
    }
}

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It takes over what the supervisor holds.
    Starting,
    /// It accepts connections.
    Serving,
    /// It finishes the connections it has.
    Draining,
}

/// Something happened to a worker.
#[derive(Debug)]
pub(super) enum Said {
    /// It spoke.
    Message(FromWorker, Descriptors),
    /// Its socket failed.
    Broken(HandoverError),
    /// It ended.
    Exited(String),
}

/// One worker process.
pub(super) struct Worker {
    /// Its process number, for logs.
    pub(super) pid: u32,
    /// Whether it starts, serves or drains.
    pub(super) phase: Phase,
    /// Since when it is.
    pub(super) since: Instant,
    outbox: mpsc::Sender<Message<ToWorker>>,
    kill: Box<dyn Fn() + Send>,
    /// The last question for its connections.
    question: Option<Question>,
}

impl Worker {
    /// Starts a worker whose words arrive at `said` under `id`.
    pub(super) fn start(
        launcher: &mut dyn Launcher,
        id: u64,
        said: &mpsc::Sender<(u64, Said)>,
    ) -> io::Result<Self> {
        let (ours, theirs) = BlockingConnection::pair()?;
        let Running { pid, exited, kill } = launcher.launch(theirs.into())?;
        let socket = Arc::new(Connection::from_fd(ours.into())?);
        let (outbox, waiting) = mpsc::channel(OUTBOX);
        tokio::spawn(write(socket.clone(), waiting));
        let reading = tokio::spawn(read(socket, id, said.clone()));
        let said = said.clone();
        tokio::spawn(async move {
            let how = exited.await;
            // What it said before its end comes first.
            drop(reading.await);
            drop(said.send((id, Said::Exited(how))).await);
        });
        Ok(Self {
            pid,
            phase: Phase::Starting,
            since: Instant::now(),
            outbox,
            kill,
            question: None,
        })
    }

    /// Puts a message into its outbox; ends it when that is full.
    pub(super) fn send(&self, message: Message<ToWorker>) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.outbox.try_send(message) {
            error!(pid = self.pid, "the worker does not read; ending it");
            self.end();
        }
    }

    /// Asks it for its connections, and returns where it will write them. `None` while it owes an
    /// answer: a worker that does not read would collect a descriptor with every question.
    pub(super) fn ask_for_connections(&mut self) -> Option<Arc<OwnedFd>> {
        if self.question.as_ref().is_some_and(Question::is_open) {
            warn!(pid = self.pid, "the worker has not listed its connections yet; not asked again");
            return None;
        }
        match Question::new() {
            Ok((question, worker_end)) => {
                let fds = vec![Arc::new(worker_end)];
                self.send(Message { header: ToWorker::TellConnections, fds });
                Some(self.question.insert(question).0.clone())
            }
            Err(error) => {
                warn!(%error, pid = self.pid, "cannot ask a worker");
                None
            }
        }
    }

    /// Goes over to the next phase.
    pub(super) fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.since = Instant::now();
    }

    /// Ends the process now.
    pub(super) fn end(&self) {
        (self.kill)();
    }
}

/// A question for a worker's connections: the end at which the list arrives. It is the asker who
/// reads it; here it only shows whether the worker has answered.
struct Question(Arc<OwnedFd>);

impl Question {
    /// A question, and the worker's end.
    fn new() -> io::Result<(Self, OwnedFd)> {
        let (answer, worker_end) = UnixStream::pair()?;
        // Nobody may wait for a list here, neither the supervisor nor the asker's control thread.
        answer.set_nonblocking(true)?;
        Ok((Self(Arc::new(answer.into())), worker_end.into()))
    }

    /// Whether the worker has neither written anything nor closed its end. An asker that has read
    /// to the end finds the question answered: the kernel knows it before the asker does.
    fn is_open(&self) -> bool {
        let peeked = SockRef::from(&self.0).peek(&mut [MaybeUninit::uninit()]);
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

async fn write(socket: Arc<Connection>, mut outbox: mpsc::Receiver<Message<ToWorker>>) {
    while let Some(message) = outbox.recv().await {
        if let Err(error) = handover::send(&socket, &message).await {
            if !error.is_gone() {
                warn!(error = format!("{:#}", anyhow::Error::new(error)), "worker");
            }
            return;
        }
    }
}

async fn read(socket: Arc<Connection>, id: u64, said: mpsc::Sender<(u64, Said)>) {
    let mut buffer = vec![0; handover::MAX_HEADER_BYTES];
    loop {
        let next = match handover::receive::<FromWorker>(&socket, &mut buffer).await {
            Ok((header, fds)) => Said::Message(header, fds),
            Err(error) if error.is_gone() => return,
            Err(error) => Said::Broken(error),
        };
        let is_last = matches!(next, Said::Broken(_));
        if said.send((id, next)).await.is_err() || is_last {
            return;
        }
    }
}

/// When the next worker may start.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    failures: u32,
}

impl Restarts {
    /// How long to wait after a worker has died: not at all the first time.
    pub(super) fn after_death(&mut self, phase: Phase, age: Duration) -> Duration {
        if phase != Phase::Starting && age >= SETTLED_AFTER {
            self.failures = 0;
        }
        let wait = match self.failures {
            0 => Duration::ZERO,
            failures => RETRY_START.saturating_mul(1 << (failures - 1).min(16)),
        };
        self.failures = self.failures.saturating_add(1);
        let limit = if phase == Phase::Starting { RETRY_LIMIT } else { RETRY_LIMIT_AFTER_READY };
        wait.min(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_restart_is_immediate_and_later_ones_wait_longer() {
        let check = |restarts: &mut Restarts, phase, age_ms, expected_ms| {
            let wait = restarts.after_death(phase, Duration::from_millis(age_ms));
            assert_eq!(wait, Duration::from_millis(expected_ms));
        };
        let mut restarts = Restarts::default();
        for expected in [0, 50, 100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            check(&mut restarts, Phase::Starting, 5, expected);
        }
        check(&mut restarts, Phase::Serving, 10, 100);
        check(&mut restarts, Phase::Serving, 2000, 0);
        check(&mut restarts, Phase::Serving, 10, 50);
        check(&mut restarts, Phase::Serving, 10, 100);
        check(&mut restarts, Phase::Serving, 10, 100);
        check(&mut restarts, Phase::Serving, 1000, 0);
    }
}
