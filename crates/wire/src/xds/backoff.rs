//! When to try again. Pure: the caller counts the attempts and does the waiting.

use std::time::Duration;

/// Wait before the first new attempt.
pub const BACKOFF_START: Duration = Duration::from_millis(10);
/// Longest wait between attempts.
pub const BACKOFF_LIMIT: Duration = Duration::from_secs(15);

/// Wait after `failures` attempts in a row have failed; count from 0 again once one succeeded.
///
/// A connection that ended after it had worked counts as no failure: control planes close
/// connections at a maximum age, and their clients should be back at once.
pub fn backoff(failures: u32) -> Duration {
    let factor = 2_u32.saturating_pow(failures);
    BACKOFF_START.saturating_mul(factor).min(BACKOFF_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit() {
        let check = |failures, expected_ms| {
            assert_eq!(backoff(failures), Duration::from_millis(expected_ms), "{failures}");
        };
        check(0, 10);
        check(1, 20);
        check(5, 320);
        check(10, 10_240);
        check(11, 15_000);
        check(u32::MAX, 15_000);
    }
}
