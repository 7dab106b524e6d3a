//! Profiles of the processor's time and of the heap, in pprof's form.
//!
//! One at a time: sampling costs, and two samplers would measure one another.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::StatusCode;
use pprof::ProfilerGuardBuilder;
use pprof::protos::Message as _;

use super::{Answer, answer, parameter, text};

/// Longest profile.
const MAX_SECONDS: u64 = 300;
/// Highest rate of samples; the kernel's timers lose them beyond.
const MAX_FREQUENCY: i32 = 1000;
const DEFAULT_SECONDS: u64 = 10;
const DEFAULT_FREQUENCY: i32 = 100;
const PROFILE: &str = "application/octet-stream";

static UNDER_WAY: AtomicBool = AtomicBool::new(false);

/// Holds the right to take a profile.
struct Turn;

impl Turn {
    fn take() -> Option<Self> {
        let taken = UNDER_WAY.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire);
        taken.is_ok().then_some(Self)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        UNDER_WAY.store(false, Ordering::Release);
    }
}

fn busy() -> Answer {
    text(StatusCode::CONFLICT, "another profile is under way\n")
}

/// A number of the query that is in range, or the default.
fn number<T>(query: &str, name: &str, default: T, range: (T, T)) -> Option<T>
where
    T: std::str::FromStr + PartialOrd,
{
    match parameter(query, name) {
        None => Some(default),
        Some(text) => text.parse().ok().filter(|it| *it >= range.0 && *it <= range.1),
    }
}

/// Where the processor's time goes.
pub(super) async fn processor(query: &str) -> Answer {
    let seconds = number(query, "seconds", DEFAULT_SECONDS, (1, MAX_SECONDS));
    let frequency = number(query, "frequency", DEFAULT_FREQUENCY, (1, MAX_FREQUENCY));
    let (Some(seconds), Some(frequency)) = (seconds, frequency) else {
        let reason = format!("seconds is 1 to {MAX_SECONDS}, frequency 1 to {MAX_FREQUENCY}\n");
        return text(StatusCode::BAD_REQUEST, reason);
    };
    let Some(_turn) = Turn::take() else { return busy() };
    match sample(seconds, frequency).await {
        Ok(profile) => answer(StatusCode::OK, PROFILE, profile.into()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")),
    }
}

async fn sample(seconds: u64, frequency: i32) -> anyhow::Result<Vec<u8>> {
    let guard = ProfilerGuardBuilder::default()
        .frequency(frequency)
        .blocklist(&["libc", "libgcc", "pthread", "vdso"])
        .build()?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    Ok(guard.report().build()?.pprof()?.encode_to_vec())
}

/// What the heap holds and who asked for it.
pub(super) async fn heap() -> Answer {
    let Some(_turn) = Turn::take() else { return busy() };
    let Some(control) = jemalloc_pprof::PROF_CTL.as_ref() else {
        let reason = "heap profiles are off; start the proxy with --heap-profiling true\n";
        return text(StatusCode::NOT_IMPLEMENTED, reason);
    };
    match control.lock().await.dump_pprof() {
        Ok(profile) => answer(StatusCode::OK, PROFILE, profile.into()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")),
    }
}
