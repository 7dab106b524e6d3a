//! The times that a sample waits or delays, as its flags and variables have them.
//!
//! Here is only their common limit; the grammar is that of all durations.

use std::time::Duration;

use ambit_words::durations::parse_duration_within;

/// The longest such time.
const DURATION_MAX: Duration = Duration::from_secs(86_400);

/// Reads such a time. `None` if it is not a duration, or too long.
pub(super) fn duration(text: &str) -> Option<Duration> {
    parse_duration_within(text, Duration::ZERO..=DURATION_MAX).ok()
}
