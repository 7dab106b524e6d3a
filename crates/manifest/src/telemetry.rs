//! Istio's Telemetry (telemetry.istio.io): what is told of requests.
//!
//! What one object says is read alone (`read`). What several objects and the mesh configuration say
//! together is in [`effective`].

pub mod effective;
mod entries;
mod metrics;
mod providers;
mod read;
mod written;

pub(crate) use self::read::check;
pub use self::read::{Said, read};
pub use self::written::{Telemetry, TelemetrySpec, read_spec};

#[cfg(test)]
mod tests;
