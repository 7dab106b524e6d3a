//! Spans and log records on their way to collectors of OpenTelemetry: the queue, and what is
//! counted of it.
//!
//! A request costs a data-plane thread one record in a bounded queue, and never a wait: what finds
//! no room is counted and dropped. A thread of its own takes the records out (`exporter`).

pub(crate) mod records;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use ambit_model::http::telemetry::Collector;
use ambit_wire::proto::opentelemetry::{LogRecord, Span};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Records that wait for the exporting thread.
const MAX_WAITING: usize = 1 << 13;

/// What a collector is sent of one request.
#[derive(Debug)]
pub(crate) enum Record {
    Span(Span),
    Log(LogRecord),
}

impl Record {
    /// Its kind.
    pub(crate) fn signal(&self) -> Signal {
        match self {
            Self::Span(_) => Signal::Spans,
            Self::Log(_) => Signal::Logs,
        }
    }
}

/// A kind of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Signal {
    Spans,
    Logs,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Self::Spans => "spans",
            Self::Logs => "logs",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Exported {
    signal: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Dropped {
    signal: &'static str,
    reason: &'static str,
}

/// What became of records.
#[derive(Clone, Default)]
pub(crate) struct Counts {
    exported: Family<Exported, Counter>,
    dropped: Family<Dropped, Counter>,
}

impl Counts {
    fn register(&self, into: &mut Registry) {
        let help = "Spans and log records that collectors have taken";
        into.register("ambit_telemetry_exported", help, self.exported.clone());
        let help = "Spans and log records that are lost";
        into.register("ambit_telemetry_dropped", help, self.dropped.clone());
    }

    /// So many were taken.
    pub(crate) fn exported(&self, signal: Signal, number: u64) {
        self.exported.get_or_create(&Exported { signal: signal.name() }).inc_by(number);
    }

    /// So many are lost.
    pub(crate) fn dropped(&self, signal: Signal, reason: &'static str, number: u64) {
        if number > 0 {
            let labels = Dropped { signal: signal.name(), reason };
            self.dropped.get_or_create(&labels).inc_by(number);
        }
    }
}

type Waiting = Box<(Arc<Collector>, Record)>;

/// Where data-plane threads put records.
pub(crate) struct Queue {
    sender: SyncSender<Waiting>,
    counts: Counts,
}

/// What the exporting thread takes out.
pub(crate) struct Records(Receiver<Waiting>);

impl Records {
    /// The next record, if one waits.
    pub(crate) fn next(&self) -> Option<(Arc<Collector>, Record)> {
        self.0.try_recv().ok().map(|waiting| *waiting)
    }
}

impl Queue {
    /// An empty queue and its other end.
    pub(crate) fn new() -> (Self, Records) {
        let (sender, waiting) = sync_channel(MAX_WAITING);
        (Self { sender, counts: Counts::default() }, Records(waiting))
    }

    /// Where what becomes of records is counted.
    pub(crate) fn counts(&self) -> Counts {
        self.counts.clone()
    }

    /// Shows what becomes of records.
    pub(crate) fn register(&self, into: &mut Registry) {
        self.counts.register(into);
    }

    /// Puts a record in, or drops it.
    pub(crate) fn put(&self, collector: &Arc<Collector>, record: Record) {
        let signal = record.signal();
        let put = self.sender.try_send(Box::new((collector.clone(), record)));
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = put {
            self.counts.dropped(signal, "queue_full", 1);
        }
    }
}
