//! What is said of a setting that is wrong, and values that several settings have.

use std::time::Duration;

use ambit_words::durations::{DurationError, parse_duration_or_seconds};

/// A problem with the settings, and its remedy.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {reason}")]
pub struct ConfigError {
    pub(super) name: &'static str,
    pub(super) reason: String,
}

/// A duration of a flag.
pub(super) fn duration(text: &str) -> Result<Duration, DurationError> {
    parse_duration_or_seconds(text, Duration::ZERO..=Duration::MAX)
}
