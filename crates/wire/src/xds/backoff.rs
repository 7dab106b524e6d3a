//! When to try again. Pure: the caller does the waiting.

use std::time::Duration;

/// Wait before the first new attempt.
const START: Duration = Duration::from_millis(10);
/// Longest wait while nobody listens: asking costs next to nothing, and a control plane that is
/// started again is found at once.
const UNHEARD_LIMIT: Duration = Duration::from_secs(1);
/// As many refusals count as failures when somebody listens again.
const UNHEARD_PATIENCE: u32 = 6;
/// Longest wait after any other failure, which costs the control plane something.
const LIMIT: Duration = Duration::from_secs(15);

/// Waits between attempts to reach a control plane.
///
/// They double up to a limit. A connection that ended after it had worked counts as no failure:
/// control planes close connections at a maximum age, and their clients should be back at once.
#[derive(Debug, Default)]
pub struct Backoff {
    unheard: u32,
    failed: u32,
}

impl Backoff {
    /// Starts over, after a connection that worked.
    pub fn worked(&mut self) {
        *self = Self::default();
    }

    /// The wait after a failed attempt; `is_refused` if nothing listened. A random `chance` from 0
    /// to 1 shortens it by up to half, so clients that lost a control plane together do not all
    /// reconnect at once.
    pub fn wait(&mut self, is_refused: bool, chance: f64) -> Duration {
        if !is_refused {
            // Clients that were refused for long reconnect in large numbers, and must be patient
            // then.
            self.failed = self.failed.max(self.unheard.min(UNHEARD_PATIENCE));
        }
        let (count, limit) = match is_refused {
            true => (&mut self.unheard, UNHEARD_LIMIT),
            false => (&mut self.failed, LIMIT),
        };
        let factor = 2_u32.saturating_pow(*count);
        *count = count.saturating_add(1);
        START.saturating_mul(factor).min(limit).mul_f64(1.0 - chance.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(backoff: &mut Backoff, is_refused: bool, chance: f64) -> Vec<u128> {
        (0..13).map(|_| backoff.wait(is_refused, chance).as_millis()).collect()
    }

    #[test]
    fn waits_double_up_to_the_limit() {
        let failed = [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10_240, 15_000, 15_000];
        let unheard = [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000, 1000, 1000, 1000];
        let mut backoff = Backoff::default();
        assert_eq!(waits(&mut backoff, false, 0.0), failed);
        assert_eq!(waits(&mut backoff, true, 0.0), unheard);
        backoff.worked();
        backoff.wait(true, 0.0);
        assert_eq!(waits(&mut backoff, false, 0.0)[..2], [20, 40]);
        waits(&mut backoff, true, 0.0);
        backoff.worked();
        waits(&mut backoff, true, 0.0);
        assert_eq!(waits(&mut backoff, false, 0.0)[..3], [640, 1280, 2560]);
        backoff.worked();
        assert_eq!(backoff.wait(false, 0.0), START);
        assert_eq!(backoff.wait(true, 0.0), START);
    }

    #[test]
    fn chance_takes_up_to_half_away() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.wait(false, 1.0), Duration::from_millis(5));
        assert_eq!(waits(&mut backoff, false, 1.0)[12], 7500);
        assert_eq!(backoff.wait(false, 0.5), Duration::from_millis(11_250));
    }
}
