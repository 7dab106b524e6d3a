//! Log lines in Istio's forms, at levels that change at run time.
//!
//! A thread writes the lines in batches, so a slow reader of the log never delays traffic: when too
//! many lines wait, further ones are dropped and the gap is logged. Nothing secret is ever
//! formatted here, because nothing secret has a `Display`.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, Registry};

use ambit_log::LineFormat;
pub use ambit_log::LogFormat;

/// Lines that may wait to be written.
const MAX_WAITING_LINES: usize = 1 << 14;
/// Lines that come within this time are written at once: each batch wakes this thread, and what
/// reads the log.
const BATCH_INTERVAL: Duration = Duration::from_millis(10);
/// Bytes after which a batch is written.
const MAX_BATCH_BYTES: usize = 1 << 18;
/// Longest level filter that is accepted.
const MAX_FILTER_BYTES: usize = 4096;

/// Why a level filter is refused.
#[derive(Debug, thiserror::Error)]
pub enum LevelError {
    /// It is too long.
    #[error("the filter has {0} bytes; at most {MAX_FILTER_BYTES} are accepted")]
    Length(usize),
    /// It is no filter.
    #[error(
        "a filter is a level (off, error, warn, info, debug, trace), or levels by target such as \
         info,access=off"
    )]
    Parse(#[source] tracing_subscriber::filter::ParseError),
    /// A word alone is neither a level nor a target with one.
    #[error(
        "{0:?} is no level; use off, error, warn, info, debug or trace, or levels by target such \
         as info,access=off"
    )]
    Level(String),
    /// The subscriber is gone.
    #[error("set the level")]
    Reload(#[source] reload::Error),
}

/// The levels in force. Clones share them.
#[derive(Clone)]
pub struct Levels {
    handle: Handle<EnvFilter, Registry>,
    initial: String,
    lines: SyncSender<Line>,
}

/// A message to the writing thread.
enum Line {
    Text(Vec<u8>),
    /// Write everything before this, then acknowledge.
    Flush(SyncSender<()>),
}

impl Levels {
    /// Starts to log. To be called once, before any other thread is started.
    pub fn start(filter: &str, format: LogFormat) -> anyhow::Result<Self> {
        let (layer, handle) = reload::Layer::new(parse(filter)?);
        let (lines, waiting) = sync_channel(MAX_WAITING_LINES);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = LineWriter { lines: lines.clone(), dropped: dropped.clone() };
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_lines(&waiting, &dropped))?;
        let lines_layer = tracing_subscriber::fmt::layer()
            .event_format(LineFormat(format))
            .with_ansi(false)
            .with_writer(writer)
            .with_filter(layer);
        tracing_subscriber::registry().with(lines_layer).try_init()?;
        Ok(Self { handle, initial: filter.to_owned(), lines })
    }

    /// Levels that no subscriber uses, only to show them; they live as long as the process.
    pub fn detached(filter: &str) -> Self {
        let (layer, handle) = reload::Layer::new(parse(filter).expect("a filter"));
        std::mem::forget(layer);
        let (lines, _nobody) = sync_channel(1);
        Self { handle, initial: filter.to_owned(), lines }
    }

    /// The filter in force.
    pub fn current(&self) -> String {
        self.handle.with_current(ToString::to_string).unwrap_or_default()
    }

    /// Puts another filter in force.
    pub fn set(&self, filter: &str) -> Result<(), LevelError> {
        // The parser takes a misspelt level for a target: it would log everything of that target,
        // and nothing else. At the start `RUST_LOG`'s own rules apply.
        let is_word = |clause: &&str| !clause.contains(['=', ':', '[', ']', '{', '}']);
        let mut words = filter.split(',').map(str::trim).filter(is_word);
        let is_level = |word: &str| !word.is_empty() && word.parse::<LevelFilter>().is_ok();
        if let Some(word) = words.find(|word| !is_level(word)) {
            return Err(LevelError::Level(word.to_owned()));
        }
        self.handle.reload(parse(filter)?).map_err(LevelError::Reload)
    }

    /// Puts the filter of the start in force again.
    pub fn reset(&self) -> Result<(), LevelError> {
        self.handle.reload(parse(&self.initial)?).map_err(LevelError::Reload)
    }

    /// Waits until everything logged so far is written.
    pub fn flush(&self) {
        let (written, wait) = sync_channel(1);
        if self.lines.send(Line::Flush(written)).is_ok() {
            // The writer is gone only when the process is.
            let _gone = wait.recv();
        }
    }
}

fn parse(filter: &str) -> Result<EnvFilter, LevelError> {
    if filter.len() > MAX_FILTER_BYTES {
        return Err(LevelError::Length(filter.len()));
    }
    // Istio separates target and level by a colon, where the target is a single word.
    let clauses = filter.split(',').map(|clause| match clause.split_once(':') {
        Some((target, level)) if !level.starts_with(':') && !clause.contains('=') => {
            format!("{target}={level}")
        }
        _ => clause.to_owned(),
    });
    let filter = clauses.collect::<Vec<_>>().join(",");
    EnvFilter::builder().parse(filter).map_err(LevelError::Parse)
}

/// Hands lines to the writing thread.
struct LineWriter {
    lines: SyncSender<Line>,
    dropped: Arc<AtomicU64>,
}

impl<'a> MakeWriter<'a> for LineWriter {
    type Writer = OneLine<'a>;

    fn make_writer(&'a self) -> OneLine<'a> {
        OneLine(self)
    }
}

/// One line. The formatter writes it whole.
struct OneLine<'a>(&'a LineWriter);

impl Write for OneLine<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self.0.lines.try_send(Line::Text(bytes.to_owned())) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(_)) => {
                self.0.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn write_lines(waiting: &Receiver<Line>, dropped: &AtomicU64) {
    let mut out = std::io::stdout();
    let mut batch = Vec::new();
    let mut is_behind = false;
    while let Ok(first) = waiting.recv() {
        let mut next = Some(first);
        let mut written = None;
        if !is_behind {
            // While this thread sleeps, threads that log need not wake it.
            std::thread::sleep(BATCH_INTERVAL);
        }
        is_behind = false;
        loop {
            match next {
                Some(Line::Text(line)) => batch.extend_from_slice(&line),
                Some(Line::Flush(done)) => {
                    written = Some(done);
                    break;
                }
                None => break,
            }
            if batch.len() >= MAX_BATCH_BYTES {
                is_behind = true;
                break;
            }
            next = waiting.try_recv().ok();
        }
        let gap = dropped.swap(0, Ordering::Relaxed);
        if gap > 0 {
            batch.extend_from_slice(format!("{gap} log lines dropped: too many\n").as_bytes());
        }
        // A log that cannot be written cannot be complained about either.
        drop(out.write_all(&batch).and_then(|()| out.flush()));
        batch.clear();
        if let Some(done) = written {
            let _gone = done.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_parsed_in_both_forms_or_refused() {
        let check = |filter: &str, expected: Option<&str>| {
            let got = parse(filter).ok().map(|it| it.to_string());
            assert_eq!(got.as_deref(), expected, "{filter}");
        };
        check("info", Some("info"));
        check("access:off", Some("access=off"));
        check("access=debug", Some("access=debug"));
        check("a::b=debug", Some("a::b=debug"));
        check("=,=", None);
        check(&"a".repeat(5000), None);
    }
}
