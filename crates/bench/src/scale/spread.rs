//! Many durations summarised in a few figures.

use std::time::Duration;

use serde::Serialize;

/// Durations in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct Spread {
    count: usize,
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

impl Spread {
    /// Of these; all zero of none.
    pub(super) fn of(mut all: Vec<Duration>) -> Self {
        all.sort_unstable();
        let at = |share: f64| {
            let rank = (share * all.len() as f64).ceil() as usize;
            let found = all.get(rank.saturating_sub(1)).copied().unwrap_or_default();
            (found.as_secs_f64() * 1e5).round() / 1e2
        };
        let [p50_ms, p90_ms, p99_ms, max_ms] = [0.5, 0.9, 0.99, 1.0].map(at);
        Self { count: all.len(), p50_ms, p90_ms, p99_ms, max_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_the_nearest() {
        let check = |count: u64, expected: [f64; 4]| {
            let it = Spread::of((1..=count).rev().map(Duration::from_millis).collect());
            assert_eq!([it.p50_ms, it.p90_ms, it.p99_ms, it.max_ms], expected, "{count}");
        };
        check(0, [0.0; 4]);
        check(1, [1.0; 4]);
        check(100, [50.0, 90.0, 99.0, 100.0]);
        check(1000, [500.0, 900.0, 990.0, 1000.0]);
    }
}
