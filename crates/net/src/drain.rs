//! Ending in good order: the owner of tasks holds a [`Drain`], every task holds a [`Guard`].
//!
//! A guard signals its task to finish its work by a deadline and start nothing new; the owner
//! learns when the last task has ended. Nothing here ends a task by force: a task that knows its
//! deadline ends itself, and gives the reason in its own record.

use std::future::Future;

use futures::FutureExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Whether a group of tasks may start new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Draining { until: Option<Instant> },
}

/// The owner's side: asks a group of tasks to finish and waits for them.
#[derive(Debug)]
pub struct Drain {
    phase: watch::Sender<Phase>,
}

/// A task's side. As long as one is held, the owner waits.
#[derive(Clone, Debug)]
pub struct Guard {
    phase: watch::Receiver<Phase>,
}

impl Default for Drain {
    fn default() -> Self {
        Self::new()
    }
}

impl Drain {
    /// A group without tasks.
    pub fn new() -> Self {
        Self { phase: watch::Sender::new(Phase::Running) }
    }

    /// A guard for one more task.
    pub fn guard(&self) -> Guard {
        Guard { phase: self.phase.subscribe() }
    }

    /// Asks all tasks to finish, by `until` if it is given. Asked again, an earlier time counts.
    pub fn start(&self, until: Option<Instant>) {
        self.phase.send_if_modified(|phase| {
            let sooner = match (&*phase, until) {
                (Phase::Running, _) | (Phase::Draining { until: None }, Some(_)) => true,
                (Phase::Draining { until: Some(before) }, Some(until)) => until < *before,
                (Phase::Draining { .. }, None) => false,
            };
            if sooner {
                *phase = Phase::Draining { until };
            }
            sooner
        });
    }

    /// Waits until no task holds a guard.
    pub async fn finished(&self) {
        self.phase.closed().await;
    }
}

impl Guard {
    /// Waits until the task is asked to finish; returns the deadline, if there is one.
    pub async fn draining(&mut self) -> Option<Instant> {
        let asked = self.phase.wait_for(|phase| *phase != Phase::Running).await;
        match asked.as_deref() {
            Ok(Phase::Draining { until }) => *until,
            // The owner is gone without asking: there is nobody to finish for.
            Ok(Phase::Running) | Err(_) => Some(Instant::now()),
        }
    }

    /// Waits until the time is up by which the task was to finish, even if it is moved.
    pub async fn overdue(&mut self) {
        loop {
            let until = self.draining().await;
            let time_is_up = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = time_is_up => return,
                changed = self.phase.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Whether the task was asked to finish.
    pub fn is_draining(&self) -> bool {
        *self.phase.borrow() != Phase::Running
    }

    /// Starts a task on this thread that the owner waits for.
    pub fn spawn_local<F>(&self, task: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + 'static,
    {
        tokio::task::spawn_local(self.held_by(task))
    }

    /// Starts a task on any thread that the owner waits for.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        tokio::task::spawn(self.held_by(task))
    }

    /// The task, which holds this to its end. An `async` block would have room for it twice: where
    /// it is captured, and where it is awaited.
    fn held_by<F: Future<Output = ()>>(&self, task: F) -> impl Future<Output = ()> + use<F> {
        let guard = self.clone();
        task.map(move |()| drop(guard))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_owner_waits_for_every_task() {
        let drain = Drain::new();
        let mut guard = drain.guard();
        let start = Instant::now();
        let task = drain.guard().spawn(async move {
            let until = guard.draining().await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            assert_eq!(until, Some(start + Duration::from_secs(10)));
        });
        drain.start(None);
        drain.start(Some(start + Duration::from_secs(10)));
        drain.start(Some(start + Duration::from_secs(20)));
        drain.finished().await;
        assert_eq!(start.elapsed(), Duration::from_secs(3));
        task.await.expect("the task ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_can_be_moved_closer() {
        let drain = Drain::new();
        let mut guard = drain.guard();
        let start = Instant::now();
        drain.start(Some(start + Duration::from_secs(60)));
        assert!(guard.is_draining());
        let waiting = tokio::spawn(async move { guard.overdue().await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        drain.start(Some(start + Duration::from_secs(2)));
        drain.finished().await;
        assert_eq!(start.elapsed(), Duration::from_secs(2));
        waiting.await.expect("the task ended");
    }
}
