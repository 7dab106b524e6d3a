//! Bulk transfer through an echo server: the echoed bytes must have the hash of the sent bytes.
//!
//! The stream is half-closed when everything is sent, so the run also proves that the end of one
//! direction arrives without cutting the other.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CHUNK_BYTES: usize = 256 << 10;
/// The longest that a direction may stall.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// What to transfer.
#[derive(Clone, Debug, clap::Args)]
pub struct BulkArgs {
    /// An echo server, as host:port.
    pub address: String,
    /// How many bytes each way.
    #[arg(long, default_value_t = 64 << 20)]
    pub bytes: u64,
}

/// What was transferred.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct BulkResult {
    pub bytes_each_way: u64,
    pub seconds: f64,
    pub gigabits_per_second_each_way: f64,
    pub sent_sha256: String,
    pub received_sha256: String,
    pub matching: bool,
}

/// Sends, half-closes, reads to the end, compares.
pub(super) async fn run(args: &BulkArgs) -> Result<BulkResult> {
    let address = super::flags::resolve(&args.address).await?;
    let connecting = tokio::time::timeout(STALL_TIMEOUT, TcpStream::connect(address)).await;
    let stream = connecting.context("connecting stalled")?.context("connect to the echo server")?;
    let (mut from, mut to) = stream.into_split();
    let start = Instant::now();
    let bytes = args.bytes;
    let sending = async move {
        let mut hash = Sha256::new();
        let mut chunk = vec![0u8; CHUNK_BYTES];
        let mut state = 0x2545_f491_4f6c_dd1du64;
        let mut left = bytes;
        while left > 0 {
            fill(&mut chunk, &mut state);
            let size = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK_BYTES);
            hash.update(&chunk[..size]);
            let write = to.write_all(&chunk[..size]);
            tokio::time::timeout(STALL_TIMEOUT, write)
                .await
                .context("sending stalled")?
                .context("send")?;
            left -= size as u64;
        }
        to.shutdown().await.context("close the sending half")?;
        Ok::<_, anyhow::Error>((hash, to))
    };
    let receiving = async move {
        let mut hash = Sha256::new();
        let mut chunk = vec![0u8; CHUNK_BYTES];
        let mut total = 0;
        loop {
            let read = from.read(&mut chunk);
            let count =
                tokio::time::timeout(STALL_TIMEOUT, read).await.context("receiving stalled")?;
            match count.context("receive")? {
                0 => return Ok::<_, anyhow::Error>((hash, total)),
                count => {
                    hash.update(&chunk[..count]);
                    total += count as u64;
                }
            }
        }
    };
    let ((sent, _half), (received, total)) = tokio::try_join!(sending, receiving)?;
    let seconds = start.elapsed().as_secs_f64();
    let (sent, received) = (hex(sent), hex(received));
    Ok(BulkResult {
        bytes_each_way: total,
        seconds,
        gigabits_per_second_each_way: total as f64 * 8e-9 / seconds.max(f64::EPSILON),
        matching: sent == received && total == bytes,
        sent_sha256: sent,
        received_sha256: received,
    })
}

/// A cheap stream of bytes that no compression or repetition could fake.
fn fill(chunk: &mut [u8], state: &mut u64) {
    for word in chunk.chunks_exact_mut(8) {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use tokio::task::LocalSet;

    use super::*;
    use crate::sample::tests::start;

    /// Transfers through a sample.
    async fn check(sample: &[&str], bytes: u64, see: impl FnOnce(Result<BulkResult>)) {
        let running = async {
            let (address, _drain) = start(sample, &[]);
            see(run(&BulkArgs { address: address.to_string(), bytes }).await);
        };
        LocalSet::new().run_until(running).await;
    }

    #[tokio::test]
    async fn what_comes_back_is_what_was_sent() {
        check(&["tcp-echo"], 3_000_001, |result| {
            let result = result.unwrap();
            assert_eq!(result.bytes_each_way, 3_000_001);
            assert!(result.matching && result.sent_sha256 == result.received_sha256);
            assert!(result.gigabits_per_second_each_way > 0.0);
        })
        .await;
    }

    #[tokio::test]
    async fn what_comes_back_with_more_does_not_match() {
        check(&["banner"], 1000, |result| {
            let result = result.unwrap();
            assert!(!result.matching && result.bytes_each_way > 1000);
        })
        .await;
    }
}
