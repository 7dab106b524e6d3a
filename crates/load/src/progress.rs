//! The line on a terminal that shows the progress of a run.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::engine::{SNAPSHOT_INTERVAL, Snapshot, Watch};
use super::output::text::{duration_us, rate};

/// Whether anybody would see it.
pub(super) fn is_watched(quiet: bool) -> bool {
    !quiet && std::io::stderr().is_terminal()
}

/// Writes the line once a second, for as long as this is polled.
pub(super) async fn show(run: &Watch) {
    let mut tick = interval(SNAPSHOT_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    tick.tick().await;
    let start = Instant::now();
    let mut before: Option<Snapshot> = None;
    loop {
        tick.tick().await;
        let Some(now) = run.snapshot() else { continue };
        let line = line(start.elapsed(), before.as_ref(), &now);
        // Who closed the terminal needs no progress.
        let _closed = write!(std::io::stderr(), "\r\x1b[K{line}");
        before = Some(now);
    }
}

/// Clears the line, so that only the result remains.
pub(super) fn clear() {
    let _closed = write!(std::io::stderr(), "\r\x1b[K");
}

/// What happened since the second before.
fn line(elapsed: Duration, before: Option<&Snapshot>, now: &Snapshot) -> String {
    let mut latency = now.latency.clone();
    let (mut requests, mut failed) = (now.requests, now.failed);
    if let Some(before) = before {
        (requests, failed) = (requests - before.requests, failed - before.failed);
        if latency.subtract(&before.latency).is_err() {
            latency = now.latency.clone();
        }
    }
    let at = |quantile| duration_us(latency.value_at_quantile(quantile) as f64 / 1e3);
    format!(
        "{:>4} s  {}/s  p50 {}  p99 {}  errors {failed} ({} in all)",
        elapsed.as_secs(),
        rate(requests as f64 / SNAPSHOT_INTERVAL.as_secs_f64()),
        at(0.5),
        at(0.99),
        now.failed
    )
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;

    use super::*;

    #[test]
    fn the_line_tells_of_the_last_second() {
        let snapshot = |values: &[u64], failed| {
            let mut latency = Histogram::new(3).unwrap();
            values.iter().for_each(|value| latency.record(*value).unwrap());
            Snapshot { latency, requests: values.len() as u64, failed }
        };
        let before = snapshot(&[1_000_000, 1_000_000], 1);
        let now = snapshot(&[1_000_000, 1_000_000, 2_000_000, 2_000_000, 90_000_000], 3);
        let line = line(Duration::from_secs(2), Some(&before), &now);
        assert_eq!(line, "   2 s  3/s  p50 2.00 ms  p99 90.0 ms  errors 2 (3 in all)");
    }
}
