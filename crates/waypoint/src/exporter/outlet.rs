//! What waits for one collector, and its way there.
//!
//! Records are sent in batches, one after the other. A batch that the collector does not take for
//! now is sent again, a few times; meanwhile records wait, as many as there is room for.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ambit_http::engine::halves::BoxStream;
use ambit_http::engine::position::{EndpointAsk, Goal, Position as _};
use ambit_model::http::rule::Destination;
use ambit_model::http::telemetry::{Collector, Place};
use ambit_wire::proto::opentelemetry as otlp;
use bytes::Bytes;
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::call::{CallError, Line};
use crate::exports::{Counts, Record, Signal};
use crate::position::Here;

/// Records of one kind that wait for a collector.
const MAX_HELD: usize = 1 << 14;
/// Records that are sent at once.
const BATCH: usize = 512;
/// How long records wait for others before they are sent.
const DELAY: Duration = Duration::from_millis(900);
/// Attempts to send a batch.
const ATTEMPTS: u32 = 4;
/// The pause before the second attempt; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a collector that nothing is sent to is remembered.
const UNUSED: Duration = Duration::from_secs(300);

/// What waits for a collector.
pub(super) struct Outlet {
    collector: Arc<Collector>,
    counts: Counts,
    spans: RefCell<Vec<otlp::Span>>,
    logs: RefCell<Vec<otlp::LogRecord>>,
    is_sending: Cell<bool>,
    used: Cell<Instant>,
    /// A batch is full, or it is to be closed.
    wake: Notify,
    /// Nothing waits.
    empty: Notify,
    is_closed: Cell<bool>,
}

/// Records of one kind.
enum Batch {
    Spans(Vec<otlp::Span>),
    Logs(Vec<otlp::LogRecord>),
}

impl Outlet {
    /// Starts to send to a collector.
    pub(super) fn open(here: &Rc<Here>, collector: Arc<Collector>, counts: &Counts) -> Rc<Self> {
        let outlet = Rc::new(Self {
            collector,
            counts: counts.clone(),
            spans: RefCell::default(),
            logs: RefCell::default(),
            is_sending: Cell::new(false),
            used: Cell::new(Instant::now()),
            wake: Notify::new(),
            empty: Notify::new(),
            is_closed: Cell::new(false),
        });
        tokio::task::spawn_local(outlet.clone().run(here.clone()));
        outlet
    }

    /// Takes a record, or drops it.
    pub(super) fn put(&self, record: Record) {
        self.used.set(Instant::now());
        let signal = record.signal();
        let held = match record {
            Record::Span(span) => hold(&self.spans, span),
            Record::Log(log) => hold(&self.logs, log),
        };
        match held {
            None => self.counts.dropped(signal, "collector_slow", 1),
            Some(held) if held >= BATCH => self.wake.notify_one(),
            Some(_) => {}
        }
    }

    /// Whether nothing was sent for a while; then it ends.
    pub(super) fn is_unused(&self) -> bool {
        let is_unused = self.used.get().elapsed() > UNUSED && self.is_empty();
        if is_unused {
            self.is_closed.set(true);
            self.wake.notify_one();
        }
        is_unused
    }

    /// Waits until everything is sent or given up.
    pub(super) async fn emptied(&self) {
        while !self.is_empty() {
            self.wake.notify_one();
            self.empty.notified().await;
        }
    }

    fn is_empty(&self) -> bool {
        self.spans.borrow().is_empty() && self.logs.borrow().is_empty() && !self.is_sending.get()
    }

    async fn run(self: Rc<Self>, here: Rc<Here>) {
        let mut way = Way { here, collector: self.collector.clone(), line: None };
        let mut is_failing = false;
        while !self.is_closed.get() {
            tokio::select! {
                () = self.wake.notified() => {}
                () = sleep(DELAY) => {}
            }
            while let Some(batch) = self.take() {
                self.is_sending.set(true);
                let sent = self.deliver(&mut way, batch).await;
                self.is_sending.set(false);
                match sent {
                    Err(error) if !is_failing => {
                        let (place, error) = (described(&self.collector.place), error.to_string());
                        tracing::warn!(place, error, "a collector takes no telemetry: it is lost");
                        is_failing = true;
                    }
                    Ok(()) if is_failing => {
                        let place = described(&self.collector.place);
                        tracing::info!(place, "the collector takes telemetry again");
                        is_failing = false;
                    }
                    _ => {}
                }
            }
            self.empty.notify_waiters();
        }
    }

    fn take(&self) -> Option<Batch> {
        if let Some(spans) = batch(&self.spans) {
            return Some(Batch::Spans(spans));
        }
        batch(&self.logs).map(Batch::Logs)
    }

    async fn deliver(&self, way: &mut Way, batch: Batch) -> Result<(), CallError> {
        let (signal, number, message) = encoded(batch, &way.here);
        let mut pause = PAUSE;
        let mut attempt = 1;
        loop {
            match way.send(signal, message.clone()).await {
                Ok(rejected) => {
                    let rejected = rejected.min(number);
                    self.counts.exported(signal, number - rejected);
                    self.counts.dropped(signal, "rejected", rejected);
                    return Ok(());
                }
                Err(error) if error.is_temporary() && attempt < ATTEMPTS => {
                    attempt += 1;
                    sleep(pause).await;
                    pause *= 2;
                }
                Err(error) => {
                    self.counts.dropped(signal, "collector_failed", number);
                    return Err(error);
                }
            }
        }
    }
}

/// Holds a record; how many are held then, or nothing if there is no room.
fn hold<T>(all: &RefCell<Vec<T>>, record: T) -> Option<usize> {
    let mut all = all.borrow_mut();
    if all.len() >= MAX_HELD {
        return None;
    }
    all.push(record);
    Some(all.len())
}

/// The oldest records.
fn batch<T>(all: &RefCell<Vec<T>>) -> Option<Vec<T>> {
    let mut all = all.borrow_mut();
    let number = all.len().min(BATCH);
    (number > 0).then(|| all.drain(..number).collect())
}

fn encoded(batch: Batch, here: &Here) -> (Signal, u64, Bytes) {
    let resource = Some(here.reports().resource.clone());
    let scope = || {
        let (name, version) = ("ambit-waypoint".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        Some(otlp::InstrumentationScope { name, version })
    };
    match batch {
        Batch::Spans(spans) => {
            let number = spans.len() as u64;
            let scope_spans = vec![otlp::ScopeSpans { scope: scope(), spans }];
            let resource_spans = vec![otlp::ResourceSpans { resource, scope_spans }];
            let message = otlp::ExportTraceRequest { resource_spans };
            (Signal::Spans, number, message.encode_to_vec().into())
        }
        Batch::Logs(log_records) => {
            let number = log_records.len() as u64;
            let scope_logs = vec![otlp::ScopeLogs { scope: scope(), log_records }];
            let resource_logs = vec![otlp::ResourceLogs { resource, scope_logs }];
            let message = otlp::ExportLogsRequest { resource_logs };
            (Signal::Logs, number, message.encode_to_vec().into())
        }
    }
}

fn described(place: &Place) -> String {
    match place {
        Place::Service(name, port) => format!("{name}:{port}"),
        Place::Host(host, port) => format!("{host}:{port}"),
    }
}

/// The way to a collector: a connection that is kept, or none for now.
struct Way {
    here: Rc<Here>,
    collector: Arc<Collector>,
    line: Option<Line>,
}

impl Way {
    /// Sends one message; the answer is how many records of it are rejected.
    async fn send(&mut self, signal: Signal, message: Bytes) -> Result<u64, CallError> {
        let limit = self.collector.timeout;
        let sent = timeout(limit, self.try_send(signal, message)).await;
        let sent = sent.unwrap_or(Err(CallError::Late(limit)));
        if sent.is_err() {
            self.line = None;
        }
        sent
    }

    async fn try_send(&mut self, signal: Signal, message: Bytes) -> Result<u64, CallError> {
        let mut line = match self.line.take().filter(Line::is_open) {
            Some(line) => line,
            None => {
                Line::open(connect(&self.here, &self.collector).await?, &self.collector).await?
            }
        };
        let rejected = line.export(&self.collector, signal, message).await?;
        self.line = Some(line);
        Ok(rejected)
    }
}

async fn connect(here: &Here, collector: &Collector) -> Result<BoxStream, CallError> {
    match &collector.place {
        Place::Service(name, port) => {
            let to = Destination::Service { name: name.clone(), port: *port, subset: None };
            let arrival = here.own_arrival(*port);
            let ask = EndpointAsk {
                arrival: &arrival,
                goal: Goal::Backend(&to),
                host: None,
                hash: None,
                pinned: None,
                tried: &[],
                is_ejected: &|_| false,
            };
            let unreachable =
                |it: ambit_http::engine::position::Unreachable| CallError::Unreachable(it.text);
            let endpoint = here.choose(&ask).map_err(unreachable)?;
            here.connect(&arrival, &endpoint).await.map_err(unreachable)
        }
        Place::Host(host, port) => {
            let connected = TcpStream::connect((&**host, *port)).await;
            let stream = connected.map_err(|error| CallError::Unreachable(error.to_string()))?;
            Ok(Box::new(stream))
        }
    }
}
