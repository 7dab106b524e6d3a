//! Commands in pods, run to their end as `kubectl exec` runs them.

use std::pin::pin;
use std::time::Duration;

use ambit_words::error_chain;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Api;
use kube::api::AttachParams;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::api::{ClusterError, told};
use crate::parts::PodName;

/// The most that a command may print: a report of the load generator has a hundredth.
const OUTPUT_SIZE_MAX_BYTES: u64 = 64 << 20;
/// As much of what a command prints is held while it is not read yet.
const BUFFER_SIZE_BYTES: usize = 64 << 10;

impl crate::Cluster {
    /// Runs a command in a container of a pod to its end, and says what it printed. The container
    /// is named, because the first one of a pod may be one that an admission webhook has put there.
    /// The API has no way to end it: when nobody waits for it any more, it goes on in its pod.
    pub async fn exec(
        &self,
        pod: &PodName,
        container: &str,
        command: &[String],
        limit: Duration,
    ) -> Result<String, ClusterError> {
        let failed = |what: String| ClusterError::Command {
            pod: pod.to_string(),
            command: command.join(" "),
            what,
        };
        let run = async {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
            let wanted = AttachParams {
                container: Some(container.to_owned()),
                max_stdout_buf_size: Some(BUFFER_SIZE_BYTES),
                max_stderr_buf_size: Some(BUFFER_SIZE_BYTES),
                ..AttachParams::default()
            };
            let process = pods.exec(&pod.name, command.to_vec(), &wanted).await;
            let mut process =
                process.map_err(|error| told(format!("a command in {pod}"), error))?;
            let (out, err) = (process.stdout(), process.stderr());
            let status = process.take_status();
            let status = async { status?.await };
            match ended(out, err, status).await.map_err(&failed)? {
                Some((status, out, err)) => outcome(&status, out, &err).map_err(&failed),
                // What reads from the connection has ended, and knows why.
                None => Err(failed(match process.join().await {
                    Err(error) => error_chain(&error),
                    Ok(()) => "the connection ended before it did".to_owned(),
                })),
            }
        };
        let outcome = tokio::time::timeout(limit, run).await;
        outcome.map_err(|_| failed(format!("it has not ended within {limit:?}")))?
    }
}

/// How a command ended and what it printed; nothing if the connection broke before it ended.
async fn ended(
    out: Option<impl AsyncRead + Unpin>,
    err: Option<impl AsyncRead + Unpin>,
    status: impl Future<Output = Option<Status>>,
) -> Result<Option<(Status, String, String)>, String> {
    // Both at once: who prints much to one of them would else wait for ever.
    let mut printed = pin!(async { tokio::try_join!(whole(out), whole(err)) });
    let mut status = pin!(status);
    // Streams that are not told to end stay open when the connection breaks: only that there will
    // be no status says so.
    let (status, (out, err)) = tokio::select! {
        status = &mut status => match status {
            Some(status) => (status, printed.await?),
            None => return Ok(None),
        },
        printed = &mut printed => {
            let printed = printed?;
            match status.await {
                Some(status) => (status, printed),
                None => return Ok(None),
            }
        }
    };
    Ok(Some((status, out, err)))
}

/// What a command printed, or why that does not count.
fn outcome(status: &Status, out: String, err: &str) -> Result<String, String> {
    if status.status.as_deref() == Some("Success") {
        return Ok(out);
    }
    let last = err.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let message = status.message.as_deref().unwrap_or("it failed");
    Err(if last.is_empty() { message.to_owned() } else { format!("{last} ({message})") })
}

/// All that comes of a stream, which has a limit.
async fn whole(stream: Option<impl AsyncRead + Unpin>) -> Result<String, String> {
    let Some(stream) = stream else { return Ok(String::new()) };
    let mut bytes = Vec::new();
    let mut stream = stream.take(OUTPUT_SIZE_MAX_BYTES + 1);
    stream.read_to_end(&mut bytes).await.map_err(|error| error_chain(&error))?;
    if bytes.len() as u64 > OUTPUT_SIZE_MAX_BYTES {
        return Err(format!("it prints more than {} MiB", OUTPUT_SIZE_MAX_BYTES >> 20));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[test]
    fn a_command_that_fails_is_quoted() {
        let check =
            |status: &str, message: Option<&str>, err: &str, expected: Result<&str, &str>| {
                let status = Status {
                    status: Some(status.to_owned()),
                    message: message.map(str::to_owned),
                    ..Status::default()
                };
                let found = outcome(&status, "out".to_owned(), err);
                assert_eq!(found.as_deref().map_err(String::as_str), expected);
            };
        check("Success", None, "a warning\n", Ok("out"));
        check("Failure", Some("exit status 1"), "one\ntwo\n\n", Err("two (exit status 1)"));
        check("Failure", Some("exit status 1"), "", Err("exit status 1"));
        check("Failure", None, "", Err("it failed"));
    }

    #[tokio::test]
    async fn a_connection_that_breaks_is_no_wait() {
        let success = || Status { status: Some("Success".to_owned()), ..Status::default() };
        // As when the connection breaks: nobody ends what is read.
        let (out, mut open) = tokio::io::duplex(64);
        open.write_all(b"half").await.unwrap();
        let ended_by = |status| ended(Some(out), None::<&[u8]>, async move { status });
        assert_eq!(ended_by(None).await, Ok(None));
        drop(open);
        let ended_by = |status| ended(Some(&b"out"[..]), Some(&b"err"[..]), async move { status });
        let whole = Some((success(), "out".to_owned(), "err".to_owned()));
        assert_eq!(ended_by(Some(success())).await, Ok(whole));
        assert_eq!(ended_by(None).await, Ok(None));
        let endless = Some(tokio::io::repeat(b'x'));
        let ended = ended(endless, None::<&[u8]>, std::future::pending()).await;
        assert!(ended.is_err_and(|it| it.contains("more than 64 MiB")));
    }

    #[tokio::test]
    async fn what_is_printed_is_read_to_its_end() {
        assert_eq!(whole(Some(&b"{}"[..])).await.as_deref(), Ok("{}"));
        assert_eq!(whole(None::<&[u8]>).await.as_deref(), Ok(""));
        let endless = tokio::io::repeat(b'x');
        assert!(whole(Some(endless)).await.is_err_and(|it| it.contains("more than 64 MiB")));
    }
}
