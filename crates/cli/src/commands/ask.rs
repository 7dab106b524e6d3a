//! One request to the administration of control or of a node's proxy, on this machine.
//!
//! [`ambit_wire::admin`] defines the answers. Every request has a timeout: the error names the part
//! that is stopped or hangs, and the remedy.

use std::path::Path;
use std::time::Duration;

use ambit_net::local_http::{self, LocalHttpError};
use ambit_wire::admin::Refusal;
use ambit_words::exposition::METRICS_PATH;
use anyhow::{Context, Result, anyhow, bail};
use http::{Method, StatusCode};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};

/// How long a role may take to answer. A proxy asks its earlier workers, for 9 s at most.
const PATIENCE: Duration = Duration::from_secs(10);
/// A wait that is shorter is not worth a word.
const TELL_AFTER: Duration = Duration::from_secs(2);

/// Whom to ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Role<'a> {
    /// Its name for `ambit logs`: `control`, or `proxy/NODE`.
    pub(super) name: &'a str,
    /// Its socket.
    pub(super) socket: &'a Path,
}

/// Sends a GET request for a path.
pub(super) async fn get<T: DeserializeOwned>(role: Role<'_>, target: &str) -> Result<T> {
    request(role, Method::GET, target, PATIENCE).await
}

/// What a role has counted, as Prometheus reads it.
pub(super) async fn metrics(role: Role<'_>) -> Result<String> {
    let body = bytes::Bytes::new();
    let answer = local_http::request(role.socket, Method::GET, METRICS_PATH, body, PATIENCE).await;
    let (status, body) = answer.map_err(|error| silent(role, error))?;
    text_of(role.name, status, &body)
}

/// What a program has counted that is at the other end of a stream.
pub(super) async fn metrics_over<S>(name: &str, stream: S) -> Result<String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let answer = local_http::ask_over(stream, METRICS_PATH, PATIENCE).await;
    let (status, body) = answer.with_context(|| format!("ask {name}"))?;
    text_of(name, status, &body)
}

fn text_of(name: &str, status: StatusCode, body: &[u8]) -> Result<String> {
    if !status.is_success() {
        bail!("{name} answers {METRICS_PATH} with {status}");
    }
    Ok(String::from_utf8_lossy(body).into_owned())
}

/// One request without a body.
pub(super) async fn request<T: DeserializeOwned>(
    role: Role<'_>,
    method: Method,
    target: &str,
    patience: Duration,
) -> Result<T> {
    let answer = local_http::request(role.socket, method, target, bytes::Bytes::new(), patience);
    tokio::pin!(answer);
    let answer = tokio::select! {
        answer = &mut answer => answer,
        () = tokio::time::sleep(TELL_AFTER) => {
            let seconds = patience.as_secs();
            eprintln!("waiting: {} has not answered yet, for {seconds} s at most", role.name);
            answer.await
        }
    };
    let (status, body) = answer.map_err(|error| silent(role, error))?;
    understand(role, target, status, &body)
}

fn silent(role: Role<'_>, error: LocalHttpError) -> anyhow::Error {
    let name = role.name;
    match error {
        LocalHttpError::Timeout(_, patience) => anyhow!(
            "{name} has not answered within {} s: it is stopped or hangs; see `ambit logs {name}`, \
             and `ambit status` for its process",
            patience.as_secs()
        ),
        LocalHttpError::Connect { .. } => anyhow::Error::new(error)
            .context(format!("{name} does not run; see `ambit status` and `ambit logs {name}`")),
        _ => anyhow::Error::new(error).context(format!("ask {name}")),
    }
}

fn understand<T: DeserializeOwned>(
    role: Role<'_>,
    target: &str,
    status: StatusCode,
    body: &[u8],
) -> Result<T> {
    let name = role.name;
    // What is asked may hold a token.
    let target = target.split('?').next().unwrap_or_default();
    if status.is_success() {
        return serde_json::from_slice(body).with_context(|| {
            format!(
                "{name} answers {target} in another form than this command reads; is it of \
                 another release, or another program? Use the command of its release"
            )
        });
    }
    Err(match serde_json::from_slice::<Refusal>(body) {
        Ok(refusal) => anyhow!(refusal.error),
        Err(_) => {
            let text = String::from_utf8_lossy(body);
            let line = text.lines().next().unwrap_or_default();
            anyhow!("{name} answers {target} with {status}: {line}")
        }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use ambit_wire::admin::{List, Node};

    use super::*;

    /// A socket at which nobody answers, as that of a process that is stopped.
    struct Stopped {
        path: PathBuf,
        _listener: UnixListener,
    }

    impl Stopped {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ambit-{name}-{}", std::process::id()));
            let listener = UnixListener::bind(&path).expect("listening");
            Self { path, _listener: listener }
        }
    }

    impl Drop for Stopped {
        fn drop(&mut self) {
            std::fs::remove_file(&self.path).expect("removed");
        }
    }

    #[tokio::test]
    async fn who_is_stopped_is_waited_for_in_bounds_and_named() {
        let stopped = Stopped::new("stopped");
        let role = Role { name: "proxy/node-1", socket: &stopped.path };
        let patience = Duration::from_millis(100);
        let asked = request::<List<Node>>(role, Method::GET, "/get/nodes", patience);
        let asked = tokio::time::timeout(Duration::from_secs(5), asked).await;
        let error = format!("{:#}", asked.expect("bounded").expect_err("no answer"));
        assert!(error.starts_with("proxy/node-1 has not answered"), "{error}");
        assert!(error.contains("`ambit logs proxy/node-1`"), "{error}");
    }

    #[tokio::test]
    async fn who_does_not_run_is_named() {
        let role = Role { name: "control", socket: Path::new("/nowhere/control.sock") };
        let error = get::<List<Node>>(role, "/get/nodes").await.expect_err("nobody is there");
        let error = format!("{error:#}");
        assert!(error.starts_with("control does not run; see `ambit status`"), "{error}");
    }

    #[test]
    fn an_answer_of_another_form_is_no_answer() {
        let check = |status: StatusCode, body: &str, expected: Result<usize, &str>| {
            let role = Role { name: "control", socket: Path::new("/unused") };
            let read = understand::<List<Node>>(role, "/get/nodes", status, body.as_bytes());
            match (read, expected) {
                (Ok(list), Ok(count)) => assert_eq!(list.items.len(), count),
                (Err(error), Err(part)) => {
                    let error = format!("{error:#}");
                    assert!(error.contains(part), "{error}");
                }
                (read, expected) => panic!("{read:?} is not {expected:?}"),
            }
        };
        let (ok, refused) = (StatusCode::OK, StatusCode::NOT_FOUND);
        check(ok, r#"{"apiVersion": "admin.ambit.io/v1", "items": []}"#, Ok(0));
        check(ok, r#"{"apiVersion": "admin.ambit.io/v2", "items": []}"#, Err("v2"));
        check(ok, r#"{"apiVersion": "admin.ambit.io/v1"}"#, Err("another release"));
        check(ok, "[]", Err("another release"));
        check(refused, r#"{"error": "unknown list"}"#, Err("unknown list"));
        check(refused, "no such page; see /\n", Err("404 Not Found: no such page"));
    }
}
