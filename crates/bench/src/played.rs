//! A cluster that a test plays: an API server that answers what the test says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ambit_cluster::{Choice, Cluster};
use ambit_words::names::DEFAULT_MESH_NAMESPACE;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// What is answered to a method, a path with its query, and an object.
type Answer = Arc<dyn Fn(&Method, &str, &Value) -> (u16, Value) + Send + Sync>;

/// Tells the kubeconfigs of one process apart.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The cluster of an API server that lives as long as the test's runtime.
pub(super) async fn playing(
    answer: impl Fn(&Method, &str, &Value) -> (u16, Value) + Send + Sync + 'static,
) -> Cluster {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(serve(listener, Arc::new(answer)));
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "played",
        "clusters": [{"name": "played", "cluster": {"server": server}}],
        "users": [{"name": "tester", "user": {}}],
        "contexts": [{"name": "played", "context": {"cluster": "played", "user": "tester"}}]
    });
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let file = format!("ambit-played-{}-{count}", std::process::id());
    let file = std::env::temp_dir().join(file);
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    let mesh_namespace = DEFAULT_MESH_NAMESPACE.to_owned();
    let choice = Choice { context: None, kubeconfig: Some(file.clone()), mesh_namespace };
    let cluster = Cluster::connect(&choice).await.unwrap();
    std::fs::remove_file(file).unwrap();
    cluster
}

async fn serve(listener: TcpListener, answer: Answer) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let answer = answer.clone();
        let service = service_fn(move |request| answered(request, answer.clone()));
        // A client that goes away is no failure.
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn answered(
    request: Request<Incoming>,
    answer: Answer,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    let object = body.collect().await?.to_bytes();
    let object = serde_json::from_slice(&object).unwrap_or_default();
    let path = head.uri.path_and_query().map_or("", |it| it.as_str());
    let (status, body) = answer(&head.method, path, &object);
    let body = Full::new(Bytes::from(body.to_string()));
    Ok(Response::builder().status(status).body(body).expect("the answer is well-formed"))
}
