//! When a worker without a supervisor may stop: once another proxy of this node is ready.
//!
//! The next proxy puts its own socket in the place of the admin socket; who answers there says
//! which process it is. Both accept for a moment, which loses nothing; none accepting would.

use std::time::Duration;

use ambit_net::local_http;
use bytes::Bytes;
use http::Method;
use tokio::time::{Instant, sleep};
use tracing::info;

use crate::admin::ProcessInfo;
use crate::config::Operator;

/// How often the other proxy is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Without another proxy the worker stops after this time: nobody can tell it of pods any more.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits until another proxy has taken over, or none has for too long. Time counts from when this
/// is first awaited.
pub(super) async fn wait(operator: Operator) {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        sleep(POLL_INTERVAL).await;
        let Some(path) = &operator.admin_socket else { continue };
        let asked =
            local_http::request(path, Method::GET, "/process", Bytes::new(), ANSWER_LIMIT).await;
        let Ok((_, body)) = asked else { continue };
        let Ok(other) = serde_json::from_slice::<ProcessInfo>(&body) else { continue };
        if other.ready && other.pid != std::process::id() {
            info!(pid = other.pid, "another proxy has taken over");
            return;
        }
    }
    info!("no other proxy has come");
}
