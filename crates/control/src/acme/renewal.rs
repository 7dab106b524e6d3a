//! When a certificate is renewed, and when a directory is asked again that gave none.

use std::time::{Duration, SystemTime};

/// The first pause after a failure; each further one is twice as long.
pub(crate) const PAUSE_MIN: Duration = Duration::from_secs(60);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(6 * 60 * 60);
/// The shortest pause where the directory says that it was asked too often.
const LIMITED_MIN: Duration = Duration::from_secs(60 * 60);

/// When a certificate is renewed: a third of its time is left then.
pub fn due(not_before: SystemTime, not_after: SystemTime) -> SystemTime {
    let lifetime = not_after.duration_since(not_before).unwrap_or_default();
    not_before + lifetime * 2 / 3
}

/// How long nothing is tried after so many failures in a row. `draw` is any number: it spreads
/// those that failed at the same time, over a quarter more.
pub fn pause(failures: u32, is_rate_limited: bool, draw: u64) -> Duration {
    let doubled = PAUSE_MIN.saturating_mul(1 << failures.saturating_sub(1).min(16));
    let least = if is_rate_limited { LIMITED_MIN } else { PAUSE_MIN };
    let pause = doubled.clamp(least, PAUSE_MAX);
    let spread = u32::try_from(draw % 256).expect("less than 256");
    pause + pause * spread / 1024
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn a_third_of_the_time_is_left() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let check = |from, to, expected| assert_eq!(due(at(from), at(to)), at(expected));
        check(0, 90, 60);
        check(1000, 1300, 1200);
        check(100, 100, 100);
        check(200, 100, 200);
    }

    #[test]
    fn pauses_double_up_to_hours_and_are_never_short() {
        let check = |failures, is_limited, expected: u64| {
            let least = pause(failures, is_limited, 0);
            assert_eq!(least, Duration::from_secs(expected), "{failures} {is_limited}");
            let most = pause(failures, is_limited, 255);
            assert!(most > least && most < least * 5 / 4, "{most:?}");
        };
        check(0, false, 60);
        check(1, false, 60);
        check(2, false, 120);
        check(5, false, 960);
        check(9, false, 15_360);
        check(10, false, 21_600);
        check(u32::MAX, false, 21_600);
        check(1, true, 3600);
        check(8, true, 7680);
    }
}
