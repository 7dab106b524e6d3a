//! An API server for tests: pods and namespaces in memory, listed, watched, looked up and patched.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};

use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;

type Content = StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

/// The server; clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct FakeApi(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// By path, such as `/api/v1/namespaces/shop/pods/web`.
    objects: BTreeMap<String, Value>,
    version: u64,
    watchers: Vec<(String, mpsc::UnboundedSender<Bytes>)>,
    /// What watchers were sent: the version, the kind, and the line.
    told: Vec<(u64, String, Bytes)>,
    away: bool,
    mute: bool,
    patches: Vec<(String, Value)>,
}

impl FakeApi {
    /// A client of this server.
    pub(crate) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request| {
            let api = api.clone();
            async move { api.answer(request).await }.boxed()
        });
        Client::new(service, "default")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic")
    }

    /// Writes an object; the watchers hear of it unless they are mute.
    pub(crate) fn put(&self, mut object: Value) {
        let mut state = self.state();
        let path = path_of(&object);
        let event = if state.objects.contains_key(&path) { "MODIFIED" } else { "ADDED" };
        state.version += 1;
        object["metadata"]["resourceVersion"] = state.version.to_string().into();
        state.objects.insert(path, object.clone());
        state.tell(event, &object);
    }

    /// Deletes the object at a path.
    pub(crate) fn delete(&self, path: &str) {
        let mut state = self.state();
        let mut object = state.objects.remove(path).expect("there");
        state.version += 1;
        object["metadata"]["resourceVersion"] = state.version.to_string().into();
        state.tell("DELETED", &object);
    }

    /// While mute, watchers hear nothing; what happens meanwhile they never hear.
    pub(crate) fn mute(&self, mute: bool) {
        self.state().mute = mute;
    }

    /// While away, every request fails. Watches that are open end.
    pub(crate) fn away(&self, away: bool) {
        let mut state = self.state();
        state.away = away;
        state.watchers.clear();
    }

    /// Ends the watches in a way that makes them start over with a list.
    pub(crate) fn expire_watches(&self) {
        let error = json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1",
            "metadata": {}, "status": "Failure", "message": "too old", "reason": "Expired",
            "code": 410}});
        for (_, watcher) in std::mem::take(&mut self.state().watchers) {
            watcher.send(format!("{error}\n").into()).expect("watched");
        }
    }

    /// The object at a path.
    pub(crate) fn object(&self, path: &str) -> Option<Value> {
        self.state().objects.get(path).cloned()
    }

    /// The patches since the last call: path and body.
    pub(crate) fn patches(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut self.state().patches)
    }

    async fn answer(&self, request: Request<Body>) -> Result<Response<Content>, std::io::Error> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        let mut state = self.state();
        if state.away {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
        Ok(match parts.method {
            Method::GET if is_collection(path) && query.contains("watch=true") => {
                let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
                let since = pairs.find(|(key, _)| *key == "resourceVersion");
                state.watch(path, since.map_or(0, |(_, version)| version.parse().expect("digits")))
            }
            Method::GET if is_collection(path) => {
                let kind = kind_of(path);
                let items: Vec<_> =
                    state.objects.iter().filter(|(path, _)| kind_of(path) == kind).collect();
                let items: Vec<_> = items.into_iter().map(|(_, object)| object).collect();
                let version = state.version.to_string();
                respond(
                    200,
                    &json!({"apiVersion": "v1", "kind": "List",
                    "metadata": {"resourceVersion": version}, "items": items}),
                )
            }
            Method::GET => match state.objects.get(path) {
                Some(object) => respond(200, object),
                None => failure(404),
            },
            Method::PATCH => {
                let patch = serde_json::from_slice(&body).expect("JSON");
                drop(state);
                self.patch(path, patch)
            }
            _ => failure(405),
        })
    }

    /// A merge patch of annotations, with the uid as precondition.
    fn patch(&self, path: &str, patch: Value) -> Response<Content> {
        self.state().patches.push((path.to_owned(), patch.clone()));
        let of_pod = path.strip_suffix("/status").expect("only the status is patched");
        let Some(mut object) = self.object(of_pod) else { return failure(404) };
        if object["metadata"]["uid"] != patch["metadata"]["uid"] {
            return failure(422);
        }
        for (key, value) in patch["metadata"]["annotations"].as_object().expect("annotations") {
            if value.is_null() {
                object["metadata"]["annotations"].as_object_mut().map(|all| all.remove(key));
            } else {
                object["metadata"]["annotations"][key] = value.clone();
            }
        }
        self.put(object.clone());
        respond(200, &object)
    }
}

impl State {
    fn watch(&mut self, path: &str, since: u64) -> Response<Content> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let of_kind = self.told.iter().filter(|(_, kind, _)| kind == kind_of(path));
        for (_, _, line) in of_kind.filter(|(version, ..)| *version > since) {
            sender.send(line.clone()).expect("the receiver is here");
        }
        self.watchers.push((kind_of(path).to_owned(), sender));
        let lines =
            stream::unfold(receiver, |mut receiver: mpsc::UnboundedReceiver<Bytes>| async {
                Some((Ok(Frame::data(receiver.recv().await?)), receiver))
            });
        Response::new(StreamBody::new(lines.boxed()))
    }

    fn tell(&mut self, event: &str, object: &Value) {
        if self.mute {
            return;
        }
        let path = path_of(object);
        let line = format!("{}\n", json!({"type": event, "object": object}));
        let line = Bytes::from(line);
        self.told.push((self.version, kind_of(&path).to_owned(), line.clone()));
        self.watchers
            .retain(|(kind, watcher)| kind != kind_of(&path) || watcher.send(line.clone()).is_ok());
    }
}

fn path_of(object: &Value) -> String {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().expect("a name");
    match metadata["namespace"].as_str() {
        Some(namespace) => format!("/api/v1/namespaces/{namespace}/pods/{name}"),
        None => format!("/api/v1/namespaces/{name}"),
    }
}

fn is_collection(path: &str) -> bool {
    matches!(path, "/api/v1/pods" | "/api/v1/namespaces")
}

fn kind_of(path: &str) -> &str {
    if path.contains("/pods") { "pods" } else { "namespaces" }
}

fn failure(code: u16) -> Response<Content> {
    let reason = if code == 404 { "NotFound" } else { "" };
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": "Failure", "message": "refused by the test", "reason": reason, "code": code});
    respond(code, &status)
}

fn respond(code: u16, content: &Value) -> Response<Content> {
    let content = Bytes::from(content.to_string());
    let content = stream::once(async { Ok(Frame::data(content)) });
    let mut response = Response::new(StreamBody::new(content.boxed()));
    *response.status_mut() = StatusCode::from_u16(code).expect("a status");
    response
}
