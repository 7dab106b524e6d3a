//! Requests to the API server as JSON: reading single objects and whole lists, patching a field,
//! creating and deleting an object.
//!
//! Lists are read in pages, and every request has a timeout. A list that is too long is an error,
//! because half of it would make a broken cluster look healthy.

use std::time::Duration;

use ambit_words::durations::write_duration;
use http::header::ACCEPT;
use http::{Method, Request};
use kube::client::UpgradeConnectionError;
use serde_json::Value;

/// Objects of one page.
const PAGE_LENGTH: usize = 500;
/// Most pages of a list: 200,000 objects.
const PAGES_MAX: usize = 400;
/// How long one answer may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Why a cluster cannot be asked, or does not answer.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The kubeconfig cannot be used.
    #[error("read the kubeconfig; name one with --kubeconfig or the variable KUBECONFIG")]
    Kubeconfig(#[source] Box<kube::config::KubeconfigError>),
    /// No context is chosen.
    #[error("the kubeconfig has no current context; choose one with --context, of: {known}")]
    NoContext {
        /// Those there are.
        known: String,
    },
    /// The context does not exist.
    #[error("the kubeconfig has no context `{name}`; there are: {known}")]
    UnknownContext {
        /// The one that was asked for.
        name: String,
        /// Those there are.
        known: String,
    },
    /// The credentials of the context cannot be used.
    #[error("prepare to connect to the cluster of context {0}; see the kubeconfig's user")]
    Client(String, #[source] Box<kube::Error>),
    /// There is nothing of that name.
    #[error("the cluster has no {0}")]
    Absent(String),
    /// The user may not ask.
    #[error("the cluster refuses {what}: {message}; ask for a role that allows it")]
    Refused {
        /// What was asked.
        what: String,
        /// What the API server said.
        message: String,
    },
    /// The API server will not do it as it was asked: nothing has changed.
    #[error("the cluster does not take {what}: {message}")]
    Rejected {
        /// What was asked.
        what: String,
        /// What the API server said.
        message: String,
    },
    /// The API server answered with an error.
    #[error("the cluster does not answer {what}: {message}")]
    Answer {
        /// What was asked.
        what: String,
        /// What the API server said.
        message: String,
    },
    /// The API server cannot be reached.
    #[error("ask the cluster for {0}; is its API server reachable from here?")]
    Unreachable(String, #[source] Box<kube::Error>),
    /// No answer came in time.
    #[error("the cluster has not answered {0} within {patience}", patience = write_duration(*.1))]
    Timeout(String, Duration),
    /// A list is longer than is read.
    #[error("{0} has more than {max} objects, more than are read", max = PAGE_LENGTH * PAGES_MAX)]
    TooLong(String),
    /// The question could not be formed.
    #[error("form the question for {0}")]
    Question(String, #[source] http::Error),
    /// No part of Ambit's is there to ask.
    #[error("namespace {namespace} has no {what}; {remedy}")]
    NoPart {
        /// The mesh's namespace.
        namespace: String,
        /// What is missing.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// A part could not be asked through its pod.
    #[error("ask {pod} by port-forward: {what}")]
    Forward {
        /// Which pod.
        pod: String,
        /// What went wrong.
        what: String,
    },
    /// A part answers in a form that is not read.
    #[error(
        "{pod} answers {target} in another form than this command reads; is it of another release? \
         Use the command of its release"
    )]
    Form {
        /// Which pod.
        pod: String,
        /// What was asked.
        target: String,
        /// What is not as expected.
        source: serde_json::Error,
    },
    /// A part refused the question.
    #[error("{0}")]
    Part(String),
    /// A command in a pod did not do its work.
    #[error("run `{command}` in {pod}: {what}")]
    Command {
        /// Which pod.
        pod: String,
        /// Its words.
        command: String,
        /// What went wrong.
        what: String,
    },
    /// There is something of that name already.
    #[error("the cluster has {0} already")]
    Exists(String),
    /// The namespace exists and belongs to someone else.
    #[error("the cluster has a namespace {name} already, {whose}")]
    Taken {
        /// Its name.
        name: String,
        /// Whose it is, and what to do.
        whose: String,
    },
    /// A namespace that was deleted is there still.
    #[error(
        "namespace {0} was deleted and is not gone within {1:?}; see what it holds with `kubectl \
         get namespace {0} -o yaml`"
    )]
    Stays(String, Duration),
}

impl ClusterError {
    /// Whether the request may have been carried out, or may be later: no answer denies it.
    pub(crate) fn leaves_open(&self) -> bool {
        matches!(self, Self::Answer { .. } | Self::Unreachable(..) | Self::Timeout(..))
    }
}

/// How a list is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Whole objects.
    Whole,
    /// Their metadata alone.
    Metadata,
}

impl Form {
    fn accept(self) -> &'static str {
        match self {
            Self::Whole => "application/json",
            Self::Metadata => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        }
    }
}

impl crate::Cluster {
    /// One object.
    pub(crate) async fn read(&self, path: &str) -> Result<Value, ClusterError> {
        self.exchange(Method::GET, path, Form::Whole, Vec::new()).await
    }

    /// Hands an object in, for the kinds that only answer: nothing is stored.
    pub(crate) async fn review(&self, path: &str, object: &Value) -> Result<Value, ClusterError> {
        self.post(path, object).await
    }

    /// Makes an object in the list of its kind.
    pub(crate) async fn create(&self, path: &str, object: &Value) -> Result<(), ClusterError> {
        self.post(path, object).await.map(|_| ())
    }

    async fn post(&self, path: &str, object: &Value) -> Result<Value, ClusterError> {
        let body = object.to_string().into_bytes();
        self.exchange(Method::POST, path, Form::Whole, body).await
    }

    /// Deletes an object, if it is still the same one: another of its name has another UID.
    pub(crate) async fn delete(&self, path: &str, uid: &str) -> Result<(), ClusterError> {
        let options = serde_json::json!({ "preconditions": { "uid": uid } });
        let body = options.to_string().into_bytes();
        self.exchange(Method::DELETE, path, Form::Whole, body).await.map(|_| ())
    }

    /// Changes fields of an object.
    pub(crate) async fn patch(&self, path: &str, fields: &Value) -> Result<(), ClusterError> {
        let body = fields.to_string().into_bytes();
        self.exchange(Method::PATCH, path, Form::Whole, body).await.map(|_| ())
    }

    /// A whole list. Each object goes through `trim` as it arrives, so that unneeded fields are
    /// never held for all of them.
    pub(crate) async fn list(
        &self,
        path: &str,
        form: Form,
        trim: impl Fn(&mut Value),
    ) -> Result<Vec<Value>, ClusterError> {
        let mut all = Vec::new();
        let mut next = String::new();
        for _ in 0..PAGES_MAX {
            let page = page_path(path, &next);
            let mut answer = self.exchange(Method::GET, &page, form, Vec::new()).await?;
            if let Value::Array(items) = answer["items"].take() {
                all.extend(items.into_iter().map(|mut item| {
                    trim(&mut item);
                    item
                }));
            }
            next = crate::json::text(&answer, "/metadata/continue").to_owned();
            if next.is_empty() {
                return Ok(all);
            }
        }
        Err(ClusterError::TooLong(path.to_owned()))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        form: Form,
        body: Vec<u8>,
    ) -> Result<Value, ClusterError> {
        let what = path.split('?').next().unwrap_or_default().to_owned();
        let content = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(ACCEPT, form.accept())
            .header(http::header::CONTENT_TYPE, content)
            .body(body)
            .map_err(|source| ClusterError::Question(what.clone(), source))?;
        match tokio::time::timeout(PATIENCE, self.client.request(request)).await {
            Ok(answer) => answer.map_err(|error| told(what, error)),
            Err(_) => Err(ClusterError::Timeout(what, PATIENCE)),
        }
    }
}

/// The API server's error in our words.
pub(crate) fn told(what: String, error: kube::Error) -> ClusterError {
    match error {
        kube::Error::Api(status) if status.reason == "AlreadyExists" => ClusterError::Exists(what),
        kube::Error::Api(status) => answered(what, status.code, status.message),
        // The server's message is lost for a connection that becomes a WebSocket.
        kube::Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(status)) => {
            answered(what, status.as_u16(), status.to_string())
        }
        other => ClusterError::Unreachable(what, Box::new(other)),
    }
}

/// What an HTTP status says.
fn answered(what: String, code: u16, message: String) -> ClusterError {
    match code {
        404 => ClusterError::Absent(what),
        401 | 403 => ClusterError::Refused { what, message },
        400..=499 => ClusterError::Rejected { what, message },
        _ => ClusterError::Answer { what, message },
    }
}

fn page_path(path: &str, next: &str) -> String {
    let join = if path.contains('?') { '&' } else { '?' };
    let mut page = format!("{path}{join}limit={PAGE_LENGTH}");
    if !next.is_empty() {
        page.push_str("&continue=");
        page.push_str(&escape(next));
    }
    page
}

/// Escapes a text for a query.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

/// A cluster whose API server answers what a test says, by method and path with query.
#[cfg(test)]
pub(crate) fn playing(
    answer: impl Fn(&Method, &str) -> (u16, Value) + Send + 'static,
) -> crate::Cluster {
    use kube::client::Body;

    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path_and_query().expect("a path is asked for").as_str();
        let (status, body) = answer(request.method(), path);
        let body = Body::from(body.to_string().into_bytes());
        let response = http::Response::builder().status(status).body(body);
        async move { Ok::<_, std::io::Error>(response.expect("the answer is well-formed")) }
    });
    crate::Cluster::played(kube::Client::new(service, "default"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn lists_are_read_to_their_end_and_errors_told_apart() {
        fn answer(_: &Method, path: &str) -> (u16, Value) {
            let status = |code: u16, message: &str| {
                let status = json!({"kind": "Status", "code": code, "message": message});
                (code, status)
            };
            match path {
                "/list?limit=500" => {
                    (200, json!({"items": [1, 2], "metadata": {"continue": "a b"}}))
                }
                "/list?limit=500&continue=a%20b" => (200, json!({"items": [3], "metadata": {}})),
                "/forbidden?limit=500" => status(403, "you may not"),
                "/broken?limit=500" => status(500, "no storage"),
                "/busy?limit=500" => status(429, "later"),
                "/endless?limit=500" | "/endless?limit=500&continue=x" => {
                    (200, json!({"items": [], "metadata": {"continue": "x"}}))
                }
                _ => status(404, "not found"),
            }
        }
        let cluster = playing(answer);
        let list = |path: &'static str| cluster.list(path, Form::Whole, |_| {});
        assert_eq!(list("/list").await.unwrap(), [json!(1), json!(2), json!(3)]);
        let told = async |path| list(path).await.expect_err("it is an error").to_string();
        assert!(told("/forbidden").await.contains("refuses /forbidden: you may not"));
        assert!(told("/broken").await.contains("does not answer /broken: no storage"));
        assert!(told("/busy").await.contains("does not take /busy: later"));
        assert!(told("/none").await.contains("has no /none"));
        assert!(told("/endless").await.contains("more than 200000 objects"));
    }

    #[test]
    fn pages_follow_one_another() {
        let check = |path: &str, next: &str, expected: &str| {
            assert_eq!(page_path(path, next), expected);
        };
        check("/api/v1/pods", "", "/api/v1/pods?limit=500");
        check("/api/v1/pods?labelSelector=a", "", "/api/v1/pods?labelSelector=a&limit=500");
        check("/api/v1/pods", "a+b=", "/api/v1/pods?limit=500&continue=a%2Bb%3D");
    }
}
