//! Bounds of one request, of one client, and of the whole pod.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use ambit_http::engine::Settings;
use ambit_http::engine::overload::{Bounds, Pressure};
use ambit_http::h1::parse::Limits;
use ambit_net::sys::process;

use super::values::{ConfigError, duration};

/// What a pod without a limit of memory is taken for.
const MEMORY_BYTES: usize = 2 << 30;
/// Heads that are too small for any client, and too large for any server.
const HEAD_BYTES: RangeInclusive<usize> = 1024..=1 << 20;

/// Flags.
#[derive(Clone, Debug, clap::Args)]
pub struct LimitsArgs {
    /// Bytes of a request's or a response's head
    #[arg(long, env = "AMBIT_MAX_HEAD_BYTES", default_value = "61440", value_name = "BYTES")]
    pub max_head_bytes: usize,
    /// Fields of a head, at most 256
    #[arg(long, env = "AMBIT_MAX_FIELDS", default_value = "100", value_name = "N")]
    pub max_fields: u16,
    /// Bytes of a request's body; 0 for any number
    #[arg(long, env = "AMBIT_MAX_BODY_BYTES", default_value = "0", value_name = "BYTES")]
    pub max_body_bytes: u64,
    /// How long a request's body may take from its head; 0 for as long as something moves
    #[arg(
        long,
        env = "AMBIT_BODY_TIMEOUT",
        default_value = "0",
        value_parser = duration,
        value_name = "DURATION",
    )]
    pub body_timeout: Duration,
    /// Requests at once on one connection of HTTP/2
    #[arg(long, env = "AMBIT_MAX_STREAMS", default_value = "256", value_name = "N")]
    pub max_streams: u32,
    /// Connections of one client identity at once; 0 for any number
    #[arg(long, env = "AMBIT_MAX_CLIENT_CONNECTIONS", default_value = "0", value_name = "N")]
    pub max_client_connections: usize,
    /// Requests under way at once, of all clients; 0 for as many as the pod's memory and
    /// descriptors allow
    #[arg(long, env = "AMBIT_MAX_REQUESTS", default_value = "0", value_name = "N")]
    pub max_requests: usize,
    /// Bytes in buffers, of all clients; 0 for a quarter of the pod's memory
    #[arg(long, env = "AMBIT_MAX_BUFFERED_BYTES", default_value = "0", value_name = "BYTES")]
    pub max_buffered_bytes: usize,
    /// How long work may wait for its turn on a thread before new requests are refused; 0 for any
    /// time
    #[arg(
        long,
        env = "AMBIT_OVERLOAD_LAG",
        default_value = "500ms",
        value_parser = duration,
        value_name = "DURATION",
    )]
    pub overload_lag: Duration,
}

impl LimitsArgs {
    /// Settings with these bounds.
    pub(super) fn apply(&self, settings: Settings) -> Result<Settings, ConfigError> {
        let within = |name, value, range: RangeInclusive<usize>| {
            if range.contains(&value) {
                return Ok(());
            }
            let reason = format!("{value} is not between {} and {}", range.start(), range.end());
            Err(ConfigError { name, reason })
        };
        within("--max-head-bytes", self.max_head_bytes, HEAD_BYTES)?;
        within("--max-fields", self.max_fields.into(), 1..=256)?;
        within("--max-streams", self.max_streams as usize, 1..=1 << 20)?;
        Ok(Settings {
            limits: Limits::new(self.max_head_bytes, self.max_fields),
            max_body_bytes: Some(self.max_body_bytes).filter(|it| *it > 0),
            body_timeout: Some(self.body_timeout).filter(|it| !it.is_zero()),
            max_streams: self.max_streams,
            pressure: Arc::new(Pressure::new(self.bounds())),
            ..settings
        })
    }

    fn bounds(&self) -> Bounds {
        let memory = process::memory_limit().unwrap_or(MEMORY_BYTES);
        let derived = Bounds::derived(memory, process::open_files_limit());
        let given = |number: usize| Some(number).filter(|it| *it > 0);
        Bounds {
            requests: given(self.max_requests).or(derived.requests),
            held_bytes: given(self.max_buffered_bytes).or(derived.held_bytes),
            lag: Some(self.overload_lag).filter(|it| !it.is_zero()),
        }
    }

    /// Connections of one client identity at once.
    pub(super) fn client_connections(&self) -> Option<usize> {
        Some(self.max_client_connections).filter(|it| *it > 0)
    }
}
