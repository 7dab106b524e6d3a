//! When a worker without a supervisor may stop: once another proxy of this node is ready.
//!
//! The next proxy replaces the admin socket with its own; the answer there says which process it
//! is. For a moment both accept, which loses nothing; a moment in which none accepts would.

use std::time::Duration;

use ambit_net::local_http;
use ambit_wire::admin::{Process, node_proxy};
use bytes::Bytes;
use http::Method;
use tokio::time::{Instant, sleep};
use tracing::info;

use crate::config::Operator;

/// How often the other proxy is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Without another proxy the worker stops after this time: nobody can send it pods any more.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits until another proxy has taken over, or none has for too long. Time counts from when this
/// is first awaited.
pub(super) async fn wait(operator: Operator) {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        sleep(POLL_INTERVAL).await;
        let Some(path) = &operator.admin_socket else { continue };
        let asked =
            local_http::request(path, Method::GET, node_proxy::PROCESS, Bytes::new(), ANSWER_LIMIT)
                .await;
        let Ok((_, body)) = asked else { continue };
        let Ok(other) = serde_json::from_slice::<Process>(&body) else { continue };
        if other.ready && other.pid != std::process::id() {
            info!(pid = other.pid, "another proxy has taken over");
            return;
        }
    }
    info!("no other proxy has come");
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;

    use ambit_wire::admin::ApiVersion;

    use super::*;
    use crate::config;

    /// Answers at `path` as the process that `info` describes.
    fn proxy(path: &PathBuf, info: Process) {
        let listener = UnixListener::bind(path).expect("listening");
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("accepted");
                let mut buffer = [0; 1024];
                let asked = stream.read(&mut buffer).await.expect("asked");
                assert!(asked > 0, "a request came");
                let body = serde_json::to_string(&info).expect("JSON");
                let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n";
                let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.expect("answered");
            }
        });
    }

    async fn is_over(pid: u32, ready: bool) -> bool {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("admin.sock");
        let flag = format!("--admin-socket={}", path.display());
        let config = config::tests::config(&[&flag], &[]).expect("valid");
        proxy(&path, Process { api_version: ApiVersion, pid, ready });
        let waited = tokio::time::timeout(5 * POLL_INTERVAL, wait(config.operator)).await;
        waited.is_ok()
    }

    #[tokio::test]
    async fn only_another_process_that_is_ready_takes_over() {
        assert!(is_over(1, true).await);
        assert!(!is_over(1, false).await);
        assert!(!is_over(std::process::id(), true).await);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_waited_for_for_ever() {
        let config = config::tests::config(&[], &[]).expect("valid");
        let start = Instant::now();
        wait(config.operator).await;
        assert!(start.elapsed() < LIMIT + 2 * POLL_INTERVAL);
    }
}
