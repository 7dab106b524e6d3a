//! What the values of flags may be, and where an address leads.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};

/// The longest a run may take.
pub(crate) const MAX_SECONDS: u64 = 86_400;
/// The most connections of one run.
pub(crate) const MAX_CONNECTIONS: usize = 20_000;

/// Resolves `host:port` once, preferring the first answer, as most clients do.
pub(crate) async fn resolve(authority: &str) -> Result<SocketAddr> {
    let answers = tokio::net::lookup_host(authority).await;
    let mut answers = answers.with_context(|| format!("resolve {authority}"))?;
    match answers.next() {
        Some(address) => Ok(address),
        None => bail!("{authority} resolves to nothing"),
    }
}

pub(crate) fn connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=MAX_CONNECTIONS).contains(&count) => Ok(count),
        _ => Err(format!("{text:?} is not between 1 and {MAX_CONNECTIONS} connections")),
    }
}
