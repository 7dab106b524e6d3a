//! Waits for children, including those inherited from processes that died.
//!
//! The machine's process 1, the pod runner and a pod's init have two kinds of children: those they
//! started, whose exit they need, and orphans, which must only not stay zombies. One loop reaps
//! both; nothing else in these programs may wait for a process.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};

use ambit_net::sys::process::{self, Exit, Pid};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// Most unclaimed exits of children: a child may end before its parent code has registered its id.
const UNCLAIMED_MAX: usize = 256;

/// Hands out the ends of children. Clones share one loop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reaper {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<Pid, oneshot::Sender<Exit>>,
    unclaimed: VecDeque<(Pid, Exit)>,
}

impl Reaper {
    /// Starts the loop on the current runtime, which must outlive the children.
    pub(crate) fn start() -> io::Result<Self> {
        let reaper = Self::default();
        let mut ended = signal(SignalKind::child())?;
        let state = Arc::clone(&reaper.state);
        tokio::spawn(async move {
            loop {
                collect(&state);
                if ended.recv().await.is_none() {
                    return;
                }
            }
        });
        Ok(reaper)
    }

    /// The end of a child that was just started.
    pub(crate) fn end_of(&self, pid: Pid) -> oneshot::Receiver<Exit> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state.lock().expect("nothing panics while it holds the lock");
        let ended = state.unclaimed.iter().position(|(unclaimed, _)| *unclaimed == pid);
        match ended.and_then(|index| state.unclaimed.remove(index)) {
            // The receiver is at hand, so that sending cannot fail.
            Some((_, exit)) => drop(sender.send(exit)),
            None => drop(state.waiting.insert(pid, sender)),
        }
        receiver
    }
}

fn collect(state: &Mutex<State>) {
    let mut state = state.lock().expect("nothing panics while it holds the lock");
    loop {
        match process::wait_any() {
            Ok(Some(reaped)) => match state.waiting.remove(&reaped.pid) {
                // The waiting task may be gone.
                Some(waiting) => drop(waiting.send(reaped.exit)),
                None => {
                    state.unclaimed.push_back((reaped.pid, reaped.exit));
                    if state.unclaimed.len() > UNCLAIMED_MAX {
                        state.unclaimed.pop_front();
                    }
                }
            },
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%error, "cannot wait for children");
                return;
            }
        }
    }
}

/// An exit as a shell counts: the status, or 128 and the signal.
pub(crate) fn exit_code(exit: Exit) -> i32 {
    match exit {
        Exit::Code(code) => code,
        Exit::Signal(signal) => 128 + signal,
    }
}

/// Waits for the end of a child, which it answers with as a shell counts.
pub(crate) async fn code_of(ended: &mut oneshot::Receiver<Exit>) -> i32 {
    ended.await.map_or(-1, exit_code)
}
