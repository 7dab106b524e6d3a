//! The administration of Ambit's parts, which listens only on their pod's loopback, and a node
//! proxy's metrics.
//!
//! One port-forward and one HTTP/1.1 request each, bounded in size and time. The user's own
//! permission for `pods/portforward` protects it.

use std::time::Duration;

use ambit_wire::admin::Refusal;
use ambit_words::error_chain;
use ambit_words::exposition::METRICS_PATH;
use ambit_words::ports::PROXY_METRICS;
use bytes::{Bytes, BytesMut};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::api::{ClusterError, told};
use crate::parts::PodName;

/// The largest answer that is read: a dump of a view with 100,000 workloads fits.
const ANSWER_SIZE_MAX_BYTES: usize = 256 << 20;
/// How long a part may take to answer, from the first packet to the API server.
const PATIENCE: Duration = Duration::from_secs(15);

impl crate::Cluster {
    /// Asks a part's administration, whose answers [`ambit_wire::admin`] describes.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        pod: &PodName,
        port: u16,
        target: &str,
    ) -> Result<T, ClusterError> {
        let (status, body) = self.fetch(pod, port, target).await?;
        understand(status, &body, pod, target)
    }

    /// What a node proxy has counted, as Prometheus reads it.
    pub async fn metrics(&self, pod: &PodName) -> Result<String, ClusterError> {
        self.metrics_at(pod, PROXY_METRICS).await
    }

    /// What a part has counted that shows it at this port.
    pub(crate) async fn metrics_at(
        &self,
        pod: &PodName,
        port: u16,
    ) -> Result<String, ClusterError> {
        let (status, body) = self.fetch(pod, port, METRICS_PATH).await?;
        if !status.is_success() {
            let what = format!("{METRICS_PATH} at port {port}: {status}");
            return Err(ClusterError::Forward { pod: pod.to_string(), what });
        }
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// One answer of a port of a pod.
    async fn fetch(
        &self,
        pod: &PodName,
        port: u16,
        target: &str,
    ) -> Result<(StatusCode, Bytes), ClusterError> {
        let failed = |what: String| ClusterError::Forward { pod: pod.to_string(), what };
        let exchange = async {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
            let forwarder = pods.portforward(&pod.name, &[port]).await;
            let mut forwarder =
                forwarder.map_err(|error| told(format!("a port-forward to {pod}"), error))?;
            let stream = forwarder.take_stream(port);
            let stream = stream.ok_or_else(|| failed("no stream was opened".to_owned()))?;
            let refused = forwarder.take_error(port);
            let answer = request(stream, target).await;
            // What the kubelet says is nearer to the cause than a stream that ends early.
            let answer = match (answer, refused) {
                (Err(error), Some(refused)) => {
                    let reason = tokio::time::timeout(REASON_PATIENCE, refused).await;
                    Err(failed(reason.ok().flatten().unwrap_or(error)))
                }
                (answer, _) => answer.map_err(failed),
            };
            forwarder.abort();
            answer
        };
        let answer = tokio::time::timeout(PATIENCE, exchange).await;
        answer.map_err(|_| failed(format!("no answer within {PATIENCE:?}")))?
    }
}

/// What a part says by an answer.
fn understand<T: DeserializeOwned>(
    status: StatusCode,
    body: &[u8],
    pod: &PodName,
    target: &str,
) -> Result<T, ClusterError> {
    // What is asked may hold a token.
    let target = target.split('?').next().unwrap_or_default();
    if status.is_success() {
        return serde_json::from_slice(body).map_err(|source| ClusterError::Form {
            pod: pod.to_string(),
            target: target.to_owned(),
            source,
        });
    }
    Err(match serde_json::from_slice::<Refusal>(body) {
        Ok(refusal) => ClusterError::Part(refusal.error),
        Err(_) => {
            ClusterError::Forward { pod: pod.to_string(), what: format!("{target}: {status}") }
        }
    })
}

/// How long the reason for a broken stream may take to come after it.
const REASON_PATIENCE: Duration = Duration::from_millis(500);

/// One GET over a stream that nobody else uses.
async fn request<S>(stream: S, target: &str) -> Result<(StatusCode, Bytes), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(|error| error_chain(&error))?;
    let request = Request::builder()
        .method(Method::GET)
        .uri(target)
        .header(http::header::HOST, "localhost")
        .header(http::header::CONNECTION, "close")
        .body(Full::<Bytes>::default())
        .map_err(|error| error_chain(&error))?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|error| error_chain(&error))?;
        let status = response.status();
        let mut body = Limited::new(response.into_body(), ANSWER_SIZE_MAX_BYTES);
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(|error| error_chain(&*error))?.into_data() {
                whole.extend_from_slice(&data);
            }
        }
        Ok((status, whole.freeze()))
    };
    tokio::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        closed = connection => match closed {
            Ok(()) => answer.await,
            Err(error) => Err(error_chain(&error)),
        },
    }
}

#[cfg(test)]
mod tests {
    use ambit_wire::admin::{List, Node};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// What a part that answers like this is understood to say.
    async fn check(answer: &'static str, expected: Result<(u16, &str), &str>) {
        let (ours, mut theirs) = tokio::io::duplex(4096);
        let part = tokio::spawn(async move {
            let mut head = [0; 512];
            let read = theirs.read(&mut head).await.expect("the request is read");
            theirs.write_all(answer.as_bytes()).await.expect("the answer is written");
            String::from_utf8_lossy(&head[..read]).into_owned()
        });
        let answered = request(ours, "/status").await;
        let asked = part.await.expect("the part ends");
        assert!(asked.starts_with("GET /status HTTP/1.1\r\n"), "{asked}");
        match (&answered, expected) {
            (Ok((status, body)), Ok(expected)) => {
                assert_eq!((status.as_u16(), &body[..]), (expected.0, expected.1.as_bytes()));
            }
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            _ => panic!("{answered:?} is not {expected:?}"),
        }
    }

    #[test]
    fn an_answer_of_another_form_is_no_answer() {
        let check = |status: StatusCode, body: &str, expected: Result<usize, &str>| {
            let pod = PodName { namespace: "mesh".to_owned(), name: "istiod-1".to_owned() };
            let read = understand::<List<Node>>(status, body.as_bytes(), &pod, "/get/nodes");
            match (read, expected) {
                (Ok(list), Ok(count)) => assert_eq!(list.items.len(), count),
                (Err(error), Err(part)) => {
                    let error = error_chain(&error);
                    assert!(error.contains(part), "{error}");
                }
                (read, expected) => panic!("{read:?} is not {expected:?}"),
            }
        };
        let (ok, refused) = (StatusCode::OK, StatusCode::NOT_FOUND);
        check(ok, r#"{"apiVersion": "admin.ambit.io/v1", "items": []}"#, Ok(0));
        check(ok, r#"{"apiVersion": "admin.ambit.io/v2", "items": []}"#, Err("v2"));
        check(ok, r#"{"items": []}"#, Err("of another release"));
        check(ok, r#"{"apiVersion": "admin.ambit.io/v1"}"#, Err("items"));
        check(refused, r#"{"error": "unknown list"}"#, Err("unknown list"));
        check(refused, "no such page", Err("404"));
    }

    #[tokio::test]
    async fn a_part_is_asked_over_a_stream() {
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", Ok((200, "{}"))).await;
        check("HTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\nno", Ok((404, "no"))).await;
        check("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", Err("end of file")).await;
        check("", Err("closed")).await;
    }
}
