//! One stream, one way: how fast bytes go to a sink, and that all of them arrived.
//!
//! Neither end looks at the bytes, so that what is measured is the way between them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const CHUNK_BYTES: usize = 256 << 10;
/// The longest a write, or the answer in the end, may take.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// What to send.
#[derive(Clone, Debug, clap::Args)]
pub struct StreamArgs {
    /// A sink, as host:port.
    pub address: String,
    /// How long.
    #[arg(long, default_value = "5", value_parser = super::seconds)]
    pub seconds: Duration,
}

/// What arrived.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct StreamResult {
    pub bytes: u64,
    /// Until the sink had everything.
    pub seconds: f64,
    pub gigabits_per_second: f64,
}

/// Sends for the given time, half-closes, and waits for the sink to say how much it got.
pub(super) async fn run(args: &StreamArgs) -> Result<StreamResult> {
    let address = super::resolve(&args.address).await?;
    let connecting = timeout(STALL_TIMEOUT, TcpStream::connect(address)).await;
    let stream = connecting.context("connecting stalled")?.context("connect to the sink")?;
    let (mut from, mut to) = stream.into_split();
    let chunk = vec![0x5a; CHUNK_BYTES];
    let start = Instant::now();
    let mut sent: u64 = 0;
    while start.elapsed() < args.seconds {
        let write = tokio::select! {
            biased;
            write = timeout(STALL_TIMEOUT, to.write(&chunk)) => write,
            _ = from.readable() => bail!("the server answers too early; it is no sink"),
        };
        sent += write.context("sending stalled")?.context("send")? as u64;
    }
    to.shutdown().await.context("close the sending half")?;
    let mut answer = [0; 8];
    let read = timeout(STALL_TIMEOUT, from.read_exact(&mut answer)).await;
    read.context("the sink's answer stalled")?.context("read the sink's answer")?;
    let seconds = start.elapsed().as_secs_f64();
    let arrived = u64::from_be_bytes(answer);
    if arrived != sent {
        bail!("{sent} bytes were sent and {arrived} arrived; is the server a sink?");
    }
    let gigabits_per_second = sent as f64 * 8e-9 / seconds.max(f64::EPSILON);
    Ok(StreamResult { bytes: sent, seconds, gigabits_per_second })
}

#[cfg(test)]
mod tests {
    use tokio::task::LocalSet;

    use super::*;
    use crate::sample::tests::start;

    async fn check(sample: &[&str], see: impl FnOnce(Result<StreamResult>)) {
        let running = async {
            let (address, _drain) = start(sample, &[]);
            let seconds = Duration::from_millis(50);
            see(run(&StreamArgs { address: address.to_string(), seconds }).await);
        };
        LocalSet::new().run_until(running).await;
    }

    #[tokio::test]
    async fn what_a_sink_counts_is_what_was_sent() {
        check(&["sink"], |result| {
            let result = result.unwrap();
            assert!(result.bytes > 0 && result.gigabits_per_second > 0.0 && result.seconds > 0.04);
        })
        .await;
    }

    #[tokio::test]
    async fn a_server_that_is_no_sink_is_told_apart() {
        check(&["banner"], |result| assert!(result.is_err())).await;
    }
}
