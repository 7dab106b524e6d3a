//! A bound on log lines that others cause.
//!
//! Anybody who reaches a port can fail there as often as they like. A few failures a second are
//! logged. The others are counted: the first of a second is announced at once, and the count is
//! logged before the next line. So the log never hides that lines are missing.
//!
//! Each group of peers has a bound of its own: strangers must not use up the lines about those
//! who proved who they are, such as the holder of a stolen token.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time in which so many lines may be written.
const SECOND: Duration = Duration::from_secs(1);
/// Lines each second for one group.
const PER_SECOND: u32 = 20;

/// About peers that proved nothing. One for the whole process, like its log.
pub static STRANGERS: Throttle = Throttle::new("about peers that proved nothing", PER_SECOND);
/// About refusals that say something of a peer that proved who it is, or of this process itself.
pub static KNOWN: Throttle = Throttle::new("about peers that proved who they are", PER_SECOND);
/// About connections of this node's own pods.
pub static PODS: Throttle = Throttle::new("about connections of this node's pods", PER_SECOND);

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

    /// Whether a line may be written now. Says so in a line of its own when lines begin to be left
    /// out, and how many were, before the next one.
    pub fn admits(&self, now: Instant) -> bool {
        match self.pass(now) {
            Pass::Now { left_out: 0 } => true,
            Pass::Now { left_out } => {
                tracing::warn!(left_out, "lines {} were left out", self.what);
                true
            }
            Pass::FirstLeftOut => {
                tracing::warn!("further lines {} are left out in this second", self.what);
                false
            }
            Pass::LeftOut => false,
        }
    }

    fn pass(&self, now: Instant) -> Pass {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = state.began.is_none_or(|began| now.duration_since(began) >= SECOND);
        if is_over {
            (state.began, state.passed) = (Some(now), 0);
        }
        if state.passed < self.per_second {
            state.passed += 1;
            return Pass::Now { left_out: std::mem::take(&mut state.left_out) };
        }
        state.left_out += 1;
        if state.left_out == 1 { Pass::FirstLeftOut } else { Pass::LeftOut }
    }
}

/// What becomes of a line.
#[derive(Debug, PartialEq, Eq)]
enum Pass {
    /// It is written; so many were left out before it.
    Now {
        /// How many.
        left_out: u64,
    },
    /// It is the first one that is left out since the last line.
    FirstLeftOut,
    /// It is left out as well.
    LeftOut,
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
            let passes = (0..count).map(|_| throttle.pass(now));
            passes.filter(|pass| *pass != Pass::LeftOut).collect::<Vec<Pass>>()
        };
        let now = |left_out| Pass::Now { left_out };
        assert_eq!(passed(0, 2), [now(0), now(0)]);
        assert_eq!(passed(999, 1000), [now(0), Pass::FirstLeftOut], "one more in that second");
        assert_eq!(passed(1000, 2), [now(999), now(0)], "the count comes once");
        assert_eq!(passed(1500, 3), [now(0), Pass::FirstLeftOut]);
        assert_eq!(passed(60_000, 1), [now(2)], "however late it is");
        assert_eq!(passed(120_000, 1), [now(0)]);
    }
}
