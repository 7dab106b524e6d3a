//! A bound on log lines that others cause.
//!
//! Whoever reaches a port can fail there as often as it likes. What one failure has to say is said
//! a few times a second; the rest is counted, and the count is logged with the next line that comes
//! after that second. Nothing here may hide that something was left out.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time in which so many lines may be written.
const SECOND: Duration = Duration::from_secs(1);
/// Lines each second about those who have proven nothing.
const STRANGERS_PER_SECOND: u32 = 20;

/// What those may cause who have proven nothing, of the whole process, as its log is one.
pub static STRANGERS: Throttle =
    Throttle::new("of connections that proved nothing", STRANGERS_PER_SECOND);

/// Lets so many lines of a kind through each second, and counts the others.
#[derive(Debug)]
pub struct Throttle {
    what: &'static str,
    per_second: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the second began; never, before the first line.
    began: Option<Instant>,
    /// Lines that were let through since.
    passed: u32,
    /// Lines that were not.
    left_out: u64,
}

impl Throttle {
    /// One for lines about `what`.
    pub const fn new(what: &'static str, per_second: u32) -> Self {
        let state = State { began: None, passed: 0, left_out: 0 };
        Self { what, per_second, state: Mutex::new(state) }
    }

    /// Whether a line may be written now. Before the first of a second, those are counted in a line
    /// of their own that were left out before.
    pub fn admits(&self, now: Instant) -> bool {
        let Some(left_out) = self.pass(now) else { return false };
        if left_out > 0 {
            tracing::warn!(left_out, "lines {} are left out", self.what);
        }
        true
    }

    /// How many lines were left out before this one, if it may be written.
    fn pass(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = state.began.is_none_or(|began| now.duration_since(began) >= SECOND);
        if is_over {
            (state.began, state.passed) = (Some(now), 0);
        }
        if state.passed >= self.per_second {
            state.left_out += 1;
            return None;
        }
        state.passed += 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_lines_a_second_pass_and_the_others_are_counted() {
        let throttle = Throttle::new("of a test", 3);
        let start = Instant::now();
        let passed = |at_ms: u64, count: usize| {
            let now = start + Duration::from_millis(at_ms);
            (0..count).filter_map(|_| throttle.pass(now)).collect::<Vec<u64>>()
        };
        assert_eq!(passed(0, 2), [0, 0]);
        assert_eq!(passed(999, 1000), [0], "one more in the same second");
        assert_eq!(passed(1000, 2), [999, 0], "the count comes once");
        assert_eq!(passed(1500, 2), [0]);
        assert_eq!(passed(60_000, 1), [1], "however late it is");
        assert_eq!(passed(120_000, 1), [0]);
    }
}
