//! Runs a plan: threads with a runtime each, their workers, one start for all, one report.
//!
//! A connection never leaves its thread. While they run, threads share only a snapshot each second,
//! for the progress line.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Barrier, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use ambit_net::sys::clock::{ProcessUsage, Timer, thread_cpu_time};
use bytes::Bytes;
use futures::stream::{self, FuturesUnordered, StreamExt, TryStreamExt};
use hdrhistogram::Histogram;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout};

use super::grpc_stream::{self, GrpcStream};
use super::h2c::{self, H2c};
use super::http1::{self, Http1};
use super::plan::{Plan, Protocol};
use super::report::Report;
use super::tally::Tally;
use super::tcp::{Tcp, TcpStreamOut};
use super::transport::{Failure, Sockets, Transport};
use super::turns::{Alarm, Share, Turns};
use super::websocket::{self, WebSocket};
use super::worker::{Work, work};

/// How often a thread shows what it has counted so far.
pub(super) const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(1);

/// So many connections of a thread are opened at the same time.
const OPENING_MAX: usize = 64;

/// A run that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The host's name has no address.
    #[error("{host} cannot be resolved; check the name, or write an address")]
    Resolve {
        /// As written.
        host: String,
        /// What the resolver says.
        source: io::Error,
    },
    /// The name resolves to nothing.
    #[error("{host} resolves to nothing; check the name, or write an address")]
    NoAddress {
        /// As written.
        host: String,
    },
    /// Nothing to load.
    #[error("{url} ({address}) cannot be reached: {reason}; is the server up and the port right?")]
    Unreachable {
        /// As written.
        url: String,
        /// Its address.
        address: SocketAddr,
        /// What happened.
        reason: String,
    },
    /// HTTP/2 and WebSockets have stricter rules for what a request carries.
    #[error("{0} cannot carry this method, URL or header; leave out what is special about it")]
    Request(Protocol),
    /// The system gives no thread, runtime or timer.
    #[error("cannot start the load's threads")]
    Start(#[source] io::Error),
    /// A bug, which must not look like a result.
    #[error("a thread of the load ended without a result")]
    Lost,
}

/// A run that is under way.
#[derive(Debug)]
pub struct Run {
    plan: Plan,
    started_at: jiff::Timestamp,
    stop: Stop,
    watch: Watch,
    threads: Vec<oneshot::Receiver<Result<Tally, LoadError>>>,
    start: Arc<OnceLock<Instant>>,
    used_before: Arc<OnceLock<ProcessUsage>>,
}

/// Ends a run before its time; what it has measured is reported.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<bool>);

/// Sees how a run is doing.
#[derive(Clone, Debug)]
pub(super) struct Watch(Arc<Vec<Mutex<Option<Snapshot>>>>);

/// What a thread has counted so far.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) latency: Histogram<u64>,
    pub(super) requests: u64,
    pub(super) failed: u64,
}

impl Default for Stop {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Stop {
    /// Ends it now, or as soon as it begins.
    pub fn now(&self) {
        self.0.send_replace(true);
    }
}

impl Watch {
    /// What all threads have counted up to their last second; nothing before the first.
    pub(super) fn snapshot(&self) -> Option<Snapshot> {
        let mut sum: Option<Snapshot> = None;
        for snapshot in self.0.iter() {
            let snapshot = snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
            match &mut sum {
                None => sum = Some(snapshot),
                Some(sum) => {
                    sum.latency.add(&snapshot.latency).ok()?;
                    sum.requests += snapshot.requests;
                    sum.failed += snapshot.failed;
                }
            }
        }
        sum
    }
}

/// What every thread is given.
struct Part {
    plan: Plan,
    address: SocketAddr,
    share: Share,
    stop: watch::Receiver<bool>,
    snapshots: Arc<Vec<Mutex<Option<Snapshot>>>>,
    /// All threads begin together, when each has its connections or has failed.
    ready: Arc<Barrier>,
    start: Arc<OnceLock<Instant>>,
    /// What the process had used when the warm-up ended.
    used_before: Arc<OnceLock<ProcessUsage>>,
}

impl Run {
    /// Resolves the target and starts the threads; `stop` ends it before its time.
    pub async fn start(plan: Plan, stop: Stop, watched: bool) -> Result<Self, LoadError> {
        let address = resolve(&plan.target.address).await?;
        let count = if watched { plan.threads } else { 0 };
        let snapshots: Arc<Vec<_>> = Arc::new((0..count).map(|_| Mutex::new(None)).collect());
        let (ready, start) = (Arc::new(Barrier::new(plan.threads)), Arc::new(OnceLock::new()));
        let used_before = Arc::new(OnceLock::new());
        let mut threads = Vec::new();
        for index in 0..plan.threads {
            let part = Part {
                plan: plan.clone(),
                address,
                share: Share { index: index as u64, of: plan.threads as u64 },
                stop: stop.0.subscribe(),
                snapshots: Arc::clone(&snapshots),
                ready: Arc::clone(&ready),
                start: Arc::clone(&start),
                used_before: Arc::clone(&used_before),
            };
            let (result, receiver) = oneshot::channel();
            let thread = std::thread::Builder::new().name(format!("load-{index}"));
            // Who started it may have gone, which ends it too.
            thread.spawn(move || result.send(part.run()).is_ok()).map_err(LoadError::Start)?;
            threads.push(receiver);
        }
        let started_at = jiff::Timestamp::now();
        let watch = Watch(snapshots);
        Ok(Self { plan, started_at, stop, watch, threads, start, used_before })
    }

    /// Sees how it is doing, if it was started to be watched.
    pub(super) fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Waits for its end.
    pub async fn finish(&mut self) -> Result<Report, LoadError> {
        let mut sum = Tally::new();
        let mut ending: FuturesUnordered<_> = self.threads.iter_mut().collect();
        while let Some(thread) = ending.next().await {
            let tally = thread.map_err(|_| LoadError::Lost).and_then(|tally| tally);
            // If one failed, the others need not continue.
            sum.add(&tally.inspect_err(|_| self.stop.now())?);
        }
        let start = *self.start.get().ok_or(LoadError::Lost)?;
        let used = self.used_before.get().map(used_since).unwrap_or_default();
        let (end, interrupted) = (Instant::now(), *self.stop.0.borrow());
        Ok(Report::new(&self.plan, self.started_at, start, end, interrupted, &sum, &used))
    }
}

impl Drop for Run {
    /// Load that nobody waits for must not continue.
    fn drop(&mut self) {
        self.stop.now();
    }
}

/// What the process has used since then.
fn used_since(before: &ProcessUsage) -> ProcessUsage {
    let now = ProcessUsage::now().unwrap_or_default();
    ProcessUsage {
        user: now.user.saturating_sub(before.user),
        system: now.system.saturating_sub(before.system),
        voluntary_switches: now.voluntary_switches.saturating_sub(before.voluntary_switches),
        involuntary_switches: now.involuntary_switches.saturating_sub(before.involuntary_switches),
    }
}

/// Resolves `host:port` once, preferring the first answer, as most clients do.
async fn resolve(host: &str) -> Result<SocketAddr, LoadError> {
    let answers = tokio::net::lookup_host(host).await;
    let mut answers =
        answers.map_err(|source| LoadError::Resolve { host: host.to_owned(), source })?;
    answers.next().ok_or_else(|| LoadError::NoAddress { host: host.to_owned() })
}

/// Real time.
struct Kernel(Timer);

impl Alarm for Kernel {
    async fn until(&mut self, moment: Instant) {
        // It fails only if the descriptor is gone, which is ours; then being early is the lesser
        // evil.
        let _set = self.0.sleep_until(moment.into_std()).await;
    }
}

impl Part {
    fn run(self) -> Result<Tally, LoadError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => {
                let mut stop = self.stop.clone();
                LocalSet::new().block_on(&runtime, async {
                    match self.plan.target.protocol {
                        Protocol::Http1 => self.http1(&mut stop).await,
                        Protocol::H2c | Protocol::GrpcStream => self.h2c(&mut stop).await,
                        Protocol::WebSocket => self.websocket(&mut stop).await,
                        Protocol::Tcp | Protocol::TcpStream => self.tcp(&mut stop).await,
                    }
                })
            }
            Err(error) => {
                self.ready.wait();
                Err(LoadError::Start(error))
            }
        }
    }

    async fn http1(&self, stop: &mut watch::Receiver<bool>) -> Result<Tally, LoadError> {
        let sockets = Rc::new(Sockets::new(self.address));
        let request: Rc<[u8]> = http1::request_bytes(&self.plan).into();
        let make = |_| Http1::new(&self.plan, sockets.clone(), request.clone());
        self.drive(&sockets, make, stop).await
    }

    async fn h2c(&self, stop: &mut watch::Receiver<bool>) -> Result<Tally, LoadError> {
        let sockets = Rc::new(Sockets::new(self.address));
        let Some(request) = h2c::request(&self.plan) else {
            self.ready.wait();
            return Err(LoadError::Request(self.plan.target.protocol));
        };
        let (request, body) = (Rc::new(request), Bytes::from(self.plan.request.body.clone()));
        let connections: RefCell<Vec<Rc<h2c::Shared>>> = RefCell::default();
        let connection_of = |worker: usize| {
            let mut connections = connections.borrow_mut();
            let connection = worker / self.plan.streams;
            while connections.len() <= connection {
                connections.push(Rc::new(h2c::Shared::new(sockets.clone())));
            }
            connections[connection].clone()
        };
        if self.plan.target.protocol == Protocol::GrpcStream {
            let message = grpc_stream::message(&body);
            let make = |worker| {
                GrpcStream::new(&sockets, connection_of(worker), request.clone(), message.clone())
            };
            return self.drive(&sockets, make, stop).await;
        }
        let make = |worker| H2c::new(connection_of(worker), request.clone(), body.clone());
        self.drive(&sockets, make, stop).await
    }

    async fn websocket(&self, stop: &mut watch::Receiver<bool>) -> Result<Tally, LoadError> {
        let sockets = Rc::new(Sockets::new(self.address));
        let Some(request) = websocket::request(&self.plan) else {
            self.ready.wait();
            return Err(LoadError::Request(self.plan.target.protocol));
        };
        let (request, message) = (Rc::new(request), Bytes::from(self.plan.request.body.clone()));
        let make = |_| WebSocket::new(sockets.clone(), request.clone(), message.clone());
        self.drive(&sockets, make, stop).await
    }

    async fn tcp(&self, stop: &mut watch::Receiver<bool>) -> Result<Tally, LoadError> {
        let sockets = Rc::new(Sockets::new(self.address));
        let bytes: Rc<[u8]> = self.plan.request.body.as_slice().into();
        if self.plan.target.protocol == Protocol::TcpStream {
            let make = |_| TcpStreamOut::new(sockets.clone(), bytes.clone());
            return self.drive(&sockets, make, stop).await;
        }
        let make = |_| Tcp::new(&self.plan, sockets.clone(), bytes.clone());
        self.drive(&sockets, make, stop).await
    }

    /// Opens connections, waits for the other threads, works, and counts.
    async fn drive<T: Transport + 'static>(
        &self,
        sockets: &Rc<Sockets>,
        make: impl Fn(usize) -> T,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<Tally, LoadError> {
        let workers = |connections: usize| {
            let connections = self.share.count(connections as u64) as usize;
            connections * self.plan.streams
        };
        let first = (0..workers(self.plan.connections)).map(&make).collect();
        let opened = tokio::select! {
            opened = self.open(first) => opened.map(Some),
            _ = stop.wait_for(|stop| *stop) => Ok(None),
        };
        self.ready.wait();
        let opened = opened?;
        let alarm = Kernel(Timer::new().map_err(LoadError::Start)?);
        let start = *self.start.get_or_init(Instant::now);
        let Some(transports) = opened else {
            let mut tally = Tally::new();
            tally.opened = sockets.opened.get();
            return Ok(tally);
        };
        let shared = Rc::new(Work {
            turns: Turns::new(&self.plan, self.share, start, alarm),
            tally: RefCell::new(Tally::new()),
            start,
            pace: self.plan.pace,
            timeout: self.plan.timeout,
        });
        let mut working = JoinSet::new();
        for transport in transports {
            let shared = shared.clone();
            working.spawn_local(async move { work(&shared, transport).await });
        }
        let most = workers(self.plan.max_connections);
        let cpu_before = Cell::new(None);
        tokio::select! {
            () = Self::grow(&shared, &mut working, make, most) => {}
            () = self.show(&shared) => {}
            () = self.note_usage(start, &cpu_before) => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
        working.abort_all();
        let mut tally = Self::end(&shared, sockets, *stop.borrow());
        let cpu = cpu_before.get().zip(thread_cpu_time().ok());
        tally.cpu = cpu.map(|(before, now)| now.saturating_sub(before)).unwrap_or_default();
        Ok(tally)
    }

    /// Opens the first connections, some at a time; the first failure ends it.
    async fn open<T: Transport>(&self, transports: Vec<T>) -> Result<Vec<T>, LoadError> {
        let opening = transports.into_iter().enumerate();
        let opening = opening.map(|(index, transport)| self.open_one(index, transport));
        stream::iter(opening).buffer_unordered(OPENING_MAX).try_collect().await
    }

    /// Opens a worker's connection, unless it shares that of a worker before it. With one per
    /// request, the first proves that there is somebody.
    async fn open_one<T: Transport>(&self, index: usize, mut transport: T) -> Result<T, LoadError> {
        let is_wanted =
            if self.plan.close { index == 0 } else { index.is_multiple_of(self.plan.streams) };
        if is_wanted {
            let opening = timeout(self.plan.timeout, transport.open()).await;
            let opened = opening.unwrap_or(Err(Failure::Timeout));
            if let (Err(failure), false) = (&opened, self.plan.keep_going) {
                return Err(LoadError::Unreachable {
                    url: self.plan.target.url.clone(),
                    address: self.address,
                    reason: failure.to_string(),
                });
            }
        }
        Ok(transport)
    }

    /// Waits for the end of all workers; adds one whenever all are busy, up to the bound.
    async fn grow<T: Transport + 'static>(
        shared: &Rc<Work<Kernel>>,
        working: &mut JoinSet<()>,
        make: impl Fn(usize) -> T,
        most: usize,
    ) {
        let mut count = working.len();
        loop {
            tokio::select! {
                ended = working.join_next() => if ended.is_none() { return },
                () = shared.turns.all_busy(), if count < most => {
                    let (shared, transport) = (shared.clone(), make(count));
                    working.spawn_local(async move { work(&shared, transport).await });
                    count += 1;
                }
            }
        }
    }

    /// Notes what was used before anything counts; what follows is the measurement's own.
    async fn note_usage(&self, start: Instant, cpu: &Cell<Option<Duration>>) {
        if !self.plan.warm_up.is_zero() {
            sleep_until(start + self.plan.warm_up).await;
        }
        cpu.set(thread_cpu_time().ok());
        self.used_before.get_or_init(|| ProcessUsage::now().unwrap_or_default());
        std::future::pending().await
    }

    /// Shows once a second what was counted, if somebody watches.
    async fn show(&self, shared: &Work<Kernel>) {
        let index = usize::try_from(self.share.index).unwrap_or(usize::MAX);
        let Some(snapshot) = self.snapshots.get(index) else {
            return std::future::pending().await;
        };
        let mut tick = interval_at(Instant::now() + SNAPSHOT_INTERVAL, SNAPSHOT_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tick.tick().await;
            let tally = shared.tally.borrow();
            let now = Snapshot {
                latency: tally.latency.clone(),
                requests: tally.requests,
                failed: tally.failed,
            };
            snapshot.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        }
    }

    /// Adds what only the end shows.
    fn end(shared: &Work<Kernel>, sockets: &Sockets, stopped: bool) -> Tally {
        let (now, turns) = (Instant::now(), &shared.turns);
        let mut tally = shared.tally.borrow_mut();
        if stopped {
            tally.abandoned = turns.taken().saturating_sub(tally.seen);
        } else {
            turns.unsent().for_each(|due| tally.count_unsent(due, now, shared.start));
        }
        (tally.opened, tally.lost_idle) = (sockets.opened.get(), sockets.lost_idle.get());
        (tally.streams_opened, tally.streams_cut) =
            (sockets.streams_opened.get(), sockets.streams_cut.get());
        tally.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Extent, Pace, Target, tests::plan};
    use crate::sample::tests::start;

    /// Runs a plan against a sample, which has this thread while the load has one of its own.
    async fn check(
        sample: &[&str],
        path: &str,
        change: impl FnOnce(&mut Plan),
        see: impl FnOnce(Report),
    ) {
        let running = async {
            let (address, _drain) = start(sample, &[]);
            let mut plan = plan(&format!("http://{address}{path}"));
            change(&mut plan);
            see(run(plan).await.unwrap());
        };
        LocalSet::new().run_until(running).await;
    }

    async fn run(plan: Plan) -> Result<Report, LoadError> {
        Run::start(plan.check().unwrap(), Stop::default(), false).await?.finish().await
    }

    /// Speaks TCP instead.
    fn over_tcp(plan: &mut Plan, protocol: Protocol, bytes: usize) {
        let url = plan.target.url.replace("http://", "tcp://");
        plan.target = Target::parse(url.trim_end_matches('/'), Some(protocol)).unwrap();
        plan.request.body = vec![b'.'; bytes];
        plan.request.response_bytes = bytes;
    }

    #[tokio::test]
    async fn every_request_of_the_rate_is_sent_and_answered() {
        let change = |plan: &mut Plan| {
            (plan.connections, plan.max_connections, plan.threads) = (4, 4, 2);
            plan.pace = Pace::Rate(200.0);
        };
        check(&["echo"], "/?size=2000", change, |report| {
            assert_eq!((report.requests, report.failed), (200, 0));
            assert_eq!(report.status_codes, [(200, 200)].into());
            assert_eq!((report.connections_opened, report.body_bytes_in), (4, 400_000));
            assert!(report.latency.p50_us > 0.0 && report.latency.p50_us <= report.latency.p99_us);
            assert!((report.attack_seconds - 0.995).abs() < 1e-6);
        })
        .await;
    }

    #[tokio::test]
    async fn a_connection_per_request() {
        let change = |plan: &mut Plan| {
            (plan.close, plan.extent) = (true, Extent::Count(20));
            (plan.connections, plan.max_connections) = (2, 2);
        };
        check(&["timed"], "/", change, |report| {
            assert_eq!((report.requests, report.failed), (20, 0));
            assert_eq!(report.connections_opened, 20);
        })
        .await;
    }

    #[tokio::test]
    async fn connections_are_added_while_all_are_busy() {
        let change = |plan: &mut Plan| plan.max_connections = 20;
        check(&["timed", "--delay", "100ms"], "/", change, |report| {
            assert_eq!((report.requests, report.failed), (100, 0));
            assert!((10..=20).contains(&report.connections_opened), "{report:?}");
            assert!(report.latency.p99_us < 500_000.0, "{}", report.latency.p99_us);
        })
        .await;
    }

    #[tokio::test]
    async fn what_was_used_before_the_warm_up_ended_is_not_counted() {
        // Other tests of this process use the processor too, but none for long before this run.
        let spent = used_since(&ProcessUsage::default());
        while used_since(&spent).user < Duration::from_millis(300) {
            std::hint::spin_loop();
        }
        let change = |plan: &mut Plan| {
            plan.extent = Extent::Count(5);
            plan.warm_up = Duration::from_millis(50);
        };
        check(&["timed"], "/", change, |report| {
            let all = used_since(&ProcessUsage::default());
            let generator = &report.generator;
            assert!(generator.cpu_seconds > 0.0 && generator.user_seconds >= 0.0, "{generator:?}");
            let before = all.user.as_secs_f64() - generator.user_seconds;
            assert!(before >= 0.3, "{before} s before {generator:?}");
        })
        .await;
    }

    #[tokio::test]
    async fn two_writes_take_two_reads() {
        // Slow enough that the client's kernel acknowledges the first write when it is read, and
        // after the first answers of a connection, which it acknowledges at once.
        let change = |plan: &mut Plan| {
            plan.pace = Pace::Rate(20.0);
            plan.warm_up = Duration::from_millis(900);
        };
        check(&["details", "--two-writes"], "/details/0", change, |report| {
            assert_eq!(report.failed, 0);
            assert!(report.reads_per_response > 1.2, "{}", report.reads_per_response);
        })
        .await;
        check(&["details"], "/details/0", change, |report| {
            assert_eq!((report.failed, report.reads_per_response), (0, 1.0));
            assert_eq!((report.bytes_in, report.body_bytes_in), (20 * 358, 20 * 178));
        })
        .await;
    }

    #[tokio::test]
    async fn tcp_request_and_response_and_one_way() {
        let echo = |plan: &mut Plan| over_tcp(plan, Protocol::Tcp, 100_000);
        check(&["tcp-echo"], "", echo, |report| {
            assert_eq!((report.requests, report.failed), (100, 0));
            assert_eq!((report.bytes_in, report.bytes_out), (10_000_000, 10_000_000));
        })
        .await;
        let stream = |plan: &mut Plan| {
            over_tcp(plan, Protocol::TcpStream, 100_000);
            (plan.pace, plan.extent) = (Pace::Max, Extent::Count(50));
        };
        check(&["sink"], "", stream, |report| {
            assert_eq!((report.failed, report.bytes_out), (0, 5_000_000));
            assert!(report.gigabits_per_second_out > 0.0);
        })
        .await;
        check(&["banner"], "", stream, |report| assert!(report.failed > 0)).await;
    }

    #[tokio::test]
    async fn h2c_streams_share_a_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let serving = async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let mut body = respond.send_response(http::Response::new(()), false).unwrap();
                body.send_data(Bytes::from_static(b"hello"), true).unwrap();
            }
        };
        let mut plan = plan(&url);
        plan.target.protocol = Protocol::H2c;
        (plan.streams, plan.extent) = (8, Extent::Count(100));
        let load = run(Plan { pace: Pace::Max, ..plan });
        let (report, ()) = tokio::join!(load, serving);
        let report = report.unwrap();
        assert_eq!((report.requests, report.failed, report.connections_opened), (100, 0, 1));
        assert_eq!(report.body_bytes_in, 500);
    }

    #[tokio::test]
    async fn failures_are_counted_with_their_reason() {
        check(
            &["details"],
            "/unknown",
            |_| {},
            |report| {
                assert_eq!((report.requests, report.failed), (100, 100));
                assert_eq!(report.errors["status 404"], 100);
                assert_eq!(report.failed_at_ms.len(), 100);
                assert_eq!(report.latency.count, 100);
            },
        )
        .await;
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut plan = plan(&format!("http://{gone}/"));
        let error = run(plan.clone()).await.unwrap_err().to_string();
        assert!(error.contains("connection refused; is the server up"), "{error}");
        plan.keep_going = true;
        let report = run(plan).await.unwrap();
        assert_eq!((report.requests, report.failed), (100, 100));
        assert_eq!(report.errors["connect: connection refused"], 100);
    }

    #[tokio::test]
    async fn a_server_that_ends_between_requests_is_noticed() {
        let running = async {
            let (address, drain) = start(&["timed"], &[]);
            let plan = plan(&format!("http://{address}/"));
            let ending = async {
                tokio::time::sleep(Duration::from_millis(500)).await;
                drain.start(None);
            };
            let (report, ()) = tokio::join!(run(plan), ending);
            let report = report.unwrap();
            assert_eq!(report.requests, 100);
            assert!((25..=75).contains(&report.failed), "{:?}", report.errors);
        };
        LocalSet::new().run_until(running).await;
    }

    /// A listener that accepts nobody and whose queue is full, with those who wait in it.
    fn full() -> (socket2::Socket, Vec<std::net::TcpStream>, SocketAddr) {
        let kind = socket2::Type::STREAM;
        let listener = socket2::Socket::new(socket2::Domain::IPV4, kind, None).unwrap();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(1).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let brief = Duration::from_millis(100);
        let connect = || std::net::TcpStream::connect_timeout(&address, brief).ok();
        let waiting = std::iter::from_fn(connect).collect();
        (listener, waiting, address)
    }

    #[tokio::test]
    async fn connections_are_opened_together() {
        let (_listener, _waiting, address) = full();
        let mut plan = plan(&format!("http://{address}/"));
        (plan.connections, plan.max_connections) = (40, 40);
        (plan.timeout, plan.extent) = (Duration::from_millis(200), Extent::Count(1));
        plan.keep_going = true;
        let began = Instant::now();
        let report = run(plan).await.unwrap();
        assert_eq!((report.requests, report.errors["timeout"]), (1, 1));
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn who_is_connecting_can_be_stopped() {
        let (_listener, _waiting, address) = full();
        let plan = Plan { threads: 2, connections: 2, ..plan(&format!("http://{address}/")) };
        let plan = Plan { max_connections: 2, timeout: Duration::from_secs(60), ..plan };
        let stop = Stop::default();
        let mut run = Run::start(plan, stop.clone(), false).await.unwrap();
        let ending = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            stop.now();
        };
        let both = async { tokio::join!(run.finish(), ending).0 };
        let report = timeout(Duration::from_secs(10), both).await.unwrap().unwrap();
        assert!(report.interrupted && !report.generator.saturated, "{report:?}");
        assert_eq!((report.requests, report.connections_opened), (0, 0));
    }

    #[tokio::test]
    async fn what_is_ended_before_its_time_is_kept_and_marked() {
        let running = async {
            let (address, _drain) = start(&["timed", "--delay", "10s"], &[]);
            let plan = Plan { keep_going: true, ..plan(&format!("http://{address}/")) };
            let stop = Stop::default();
            let mut run = Run::start(plan, stop.clone(), false).await.unwrap();
            let ending = async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                stop.now();
            };
            let (report, ()) = tokio::join!(run.finish(), ending);
            let report = report.unwrap();
            assert!(report.interrupted && report.seconds < 0.9, "{report:?}");
            assert_eq!((report.requests, report.failed, report.abandoned), (0, 0, 1));
        };
        LocalSet::new().run_until(running).await;
    }
}
