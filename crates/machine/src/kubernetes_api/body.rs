//! Answers that stay open: watches, and logs that are followed.
//!
//! They are made as the client reads them: a slow one makes nothing grow, and one that stops
//! reading keeps its place. They end with the client, or when their time is over and it reads.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use ambit_kubeapi::{Change, ChangeKind, History, Log, Status, Watch};
use futures::stream::unfold;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::content;
use super::server::Server;
use crate::logs::{FOLLOW_INTERVAL, Lines, Shown};
use crate::state::Machine;

/// The body of an answer.
pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Changes are collected for so long: a watch costs the same however often objects change.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// How often a client is told which version it has seen.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// How often it is asked whether the container may still write.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Most that is read of a log at once.
const LOG_PART_SIZE_BYTES: usize = 64 << 10;

/// A watch that goes on.
struct Watching {
    server: Arc<Server>,
    watch: Watch,
    /// What has been seen.
    version: u64,
    /// Lines that are not sent yet.
    lines: VecDeque<Bytes>,
    settled: watch::Receiver<u64>,
    next_mark: Instant,
    until: Instant,
    has_failed: bool,
    /// Its place, which a look keeps to its end, also when the client has left meanwhile.
    held: Arc<OwnedSemaphorePermit>,
}

/// The events of a watch.
pub(super) async fn watch(
    server: Arc<Server>,
    watch: Watch,
    held: OwnedSemaphorePermit,
) -> Result<Body, Status> {
    let mut settled = server.settled.clone();
    settled.mark_unchanged();
    let mut watching = Watching {
        version: watch.since.unwrap_or_default(),
        lines: VecDeque::new(),
        settled,
        next_mark: Instant::now() + BOOKMARK_INTERVAL,
        until: Instant::now() + watch.timeout,
        has_failed: false,
        held: Arc::new(held),
        server,
        watch,
    };
    match watching.watch.since {
        None => watching.begin().await?,
        // One that begins too late is told so with the answer's status.
        Some(_) => watching.look().await?,
    }
    let parts = unfold(watching, |mut watching| async move {
        let line = watching.next().await?;
        Some((Ok(Frame::data(line)), watching))
    });
    Ok(StreamBody::new(parts).boxed_unsync())
}

impl Watching {
    /// Begins with everything that is there.
    async fn begin(&mut self) -> Result<(), Status> {
        let (watch, held) = (self.watch.clone(), Arc::clone(&self.held));
        let plural = watch.of.resource.plural;
        let all = move |history: &History| {
            let _held = held;
            let (now, version) = (Timestamp::now(), history.version());
            let change = |(key, object): (&ambit_kubeapi::Key, &Arc<Value>)| Change {
                version,
                namespace: key.namespace.clone(),
                kind: ChangeKind::Added,
                object: Arc::clone(object),
            };
            let all = history.objects(plural).map(change);
            let events = all.filter_map(|it| ambit_kubeapi::event(&watch, &it, now));
            let end =
                watch.marks_initial_end.then(|| ambit_kubeapi::initial_end(&watch, version, now));
            (events.chain(end).map(|it| line(&it)).collect::<VecDeque<_>>(), version)
        };
        (self.lines, self.version) = self.server.look(plural, all).await?;
        Ok(())
    }

    /// Finds out what has changed since the last look.
    async fn look(&mut self) -> Result<(), Status> {
        let (watch, since, held) = (self.watch.clone(), self.version, Arc::clone(&self.held));
        let plural = watch.of.resource.plural;
        let changes = move |history: &History| -> Result<(VecDeque<Bytes>, u64), Status> {
            let _held = held;
            let now = Timestamp::now();
            let changes = history.since(plural, since)?;
            let events = changes.filter_map(|it| ambit_kubeapi::event(&watch, it, now));
            Ok((events.map(|it| line(&it)).collect(), history.version()))
        };
        let (lines, version) = self.server.look(plural, changes).await??;
        self.lines.extend(lines);
        self.version = version;
        Ok(())
    }

    /// The next line; none when its time is over.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(line);
            }
            if self.has_failed {
                return None;
            }
            tokio::select! {
                () = sleep_until(self.until) => return None,
                changed = self.settled.changed() => {
                    changed.ok()?;
                    sleep(WATCH_INTERVAL).await;
                }
                () = sleep_until(self.next_mark), if self.watch.bookmarks => {
                    self.next_mark = Instant::now() + BOOKMARK_INTERVAL;
                    let mark = ambit_kubeapi::bookmark(&self.watch, self.version, Timestamp::now());
                    self.lines.push_back(line(&mark));
                    continue;
                }
            }
            self.settled.mark_unchanged();
            if let Err(status) = self.look().await {
                self.has_failed = true;
                let error = json!({"type": "ERROR", "object": status.to_json()});
                self.lines.push_back(line(&error));
            }
        }
    }
}

fn line(event: &Value) -> Bytes {
    format!("{event}\n").into()
}

/// A log that is being sent.
struct Sending {
    machine: Arc<Machine>,
    log: Log,
    lines: Lines,
    /// Whether more was asked for than what is there.
    follows: bool,
    limit_bytes: u64,
    next_look: Instant,
    _held: OwnedSemaphorePermit,
}

/// What a container has written.
pub(super) async fn log(
    machine: &Arc<Machine>,
    log: Log,
    held: OwnedSemaphorePermit,
) -> Result<Body, Status> {
    let of = Arc::clone(machine);
    let opening = tokio::task::spawn_blocking(move || {
        let path = content::log_of(&of, &log)?;
        let shown = Shown {
            tail: log.tail_lines.map(|it| usize::try_from(it).unwrap_or(usize::MAX)),
            since: log.since.map(Into::into),
            timestamps: log.timestamps,
        };
        let lines = Lines::open(&path, shown);
        let failed = |error| Status::internal(format!("the log cannot be read: {error}"));
        Ok((lines.map_err(failed)?, log))
    });
    let opened = opening.await.map_err(|_| Status::internal("the log cannot be read"))?;
    let (lines, log) = opened?;
    let limit_bytes = log.limit_bytes.unwrap_or(u64::MAX);
    let (machine, next_look) = (Arc::clone(machine), Instant::now());
    let follows = log.follow;
    let sending = Sending { machine, log, lines, follows, limit_bytes, next_look, _held: held };
    let parts = unfold(sending, |mut sending| async move {
        let part = sending.next().await?;
        Some((Ok(Frame::data(part)), sending))
    });
    Ok(StreamBody::new(parts).boxed_unsync())
}

impl Sending {
    /// The next part; none at the end, or if the log cannot be read any more.
    async fn next(&mut self) -> Option<Bytes> {
        let limit = usize::try_from(self.limit_bytes).unwrap_or(usize::MAX);
        let mut part = vec![0; limit.min(LOG_PART_SIZE_BYTES)];
        if part.is_empty() {
            return None;
        }
        loop {
            match self.lines.next(self.follows, &mut part) {
                Ok(next) if next.is_empty() && self.log.follow => self.wait().await,
                Ok(next) if next.is_empty() => return None,
                Ok(mut next) => {
                    next.truncate(limit);
                    self.limit_bytes -= next.len() as u64;
                    return Some(next.into());
                }
                Err(error) => {
                    tracing::warn!(%error, "a log cannot be read any more");
                    return None;
                }
            }
        }
    }

    /// Waits for more of the log, and finds out whether there can be more.
    async fn wait(&mut self) {
        sleep(FOLLOW_INTERVAL).await;
        if Instant::now() < self.next_look {
            return;
        }
        self.next_look = Instant::now() + LOOK_INTERVAL;
        let (machine, log) = (Arc::clone(&self.machine), self.log.clone());
        let looking = tokio::task::spawn_blocking(move || content::goes_on(&machine, &log));
        // What was written before the end is read once more.
        self.log.follow = looking.await.unwrap_or(false);
    }
}
