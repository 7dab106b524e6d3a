//! An API server for tests: objects in memory, versions, lists in pages, watches, conflicts.
//!
//! It knows only the path of a kind. A test can make it fail: be away, forget old versions, end its
//! watches, not know a kind.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

type Answered = Response<UnsyncBoxBody<Bytes, Infallible>>;
type Watcher = mpsc::UnboundedSender<Result<Frame<Bytes>, Infallible>>;

/// The API server.
#[derive(Clone, Default)]
pub(crate) struct FakeApi(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    version: u64,
    /// Objects by collection, namespace and name.
    objects: BTreeMap<(String, String, String), Value>,
    /// Every change: version, collection, and the line that a watch sends for it.
    history: Vec<(u64, String, Value)>,
    /// Versions before this one are forgotten.
    oldest: u64,
    watchers: Vec<(Wanted, Watcher)>,
    missing: BTreeSet<String>,
    /// What discovery lists: group with version, and a resource.
    served: Option<(String, String)>,
    reviews: BTreeMap<String, Value>,
    review_time: Duration,
    /// Its public keys, if it publishes them.
    keys: Option<Value>,
    is_away: bool,
    /// Method and path of every request.
    requests: Vec<String>,
}

/// What a list or watch asks for.
struct Wanted {
    collection: String,
    /// Objects with this label are left out.
    without: Option<(String, String)>,
    /// Only objects with this key among their labels are meant; no other selector is understood.
    with: Option<String>,
}

impl Wanted {
    fn new(collection: &str, selector: Option<&str>) -> Self {
        let selector =
            selector.map(|it| it.replace("%2F", "/").replace("%21", "!").replace("%3D", "="));
        let label = |selector: &String| {
            let (key, value) = selector.split_once("!=")?;
            Some((key.to_owned(), value.to_owned()))
        };
        let without = selector.as_ref().and_then(label);
        let with = selector.filter(|_| without.is_none());
        Self { collection: collection.to_owned(), without, with }
    }

    fn holds(&self, collection: &str, object: &Value) -> bool {
        let has = |(key, value): &(String, String)| object["metadata"]["labels"][key] == **value;
        let has_key = |key: &String| !object["metadata"]["labels"][key].is_null();
        self.collection == collection
            && !self.without.as_ref().is_some_and(has)
            && self.with.as_ref().is_none_or(has_key)
    }
}

/// What a request is about.
struct Target {
    collection: String,
    namespace: String,
    name: String,
    subresource: String,
}

impl FakeApi {
    /// A client of it.
    pub(crate) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { api.serve(request).await }
        });
        Client::new(service, "default")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder of the lock panics")
    }

    /// Puts an object as `kubectl` would, at a path such as `/api/v1/namespaces/shop/pods/web`.
    pub(crate) fn put(&self, path: &str, object: Value) {
        self.state().put(&target(path), object);
    }

    /// Deletes the object at `path`.
    pub(crate) fn delete(&self, path: &str) {
        self.state().delete(&target(path));
    }

    /// The object at `path`.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.state().objects.get(&target(path).key()).cloned()
    }

    /// Ends all watches, as a restart of the API server does.
    pub(crate) fn end_watches(&self) {
        self.state().watchers.clear();
    }

    /// Forgets all old versions: watches must list again.
    pub(crate) fn compact(&self) {
        let mut state = self.state();
        state.oldest = state.version + 1;
        state.history.clear();
    }

    /// Whether it answers at all.
    pub(crate) fn be_away(&self, is_away: bool) {
        let mut state = self.state();
        state.is_away = is_away;
        if is_away {
            state.watchers.clear();
        }
    }

    /// Whether it knows the kind at `collection`, as in `security.istio.io/v1/peerauthentications`.
    pub(crate) fn know(&self, collection: &str, is_known: bool) {
        let mut state = self.state();
        if is_known {
            state.missing.remove(collection);
        } else {
            state.missing.insert(collection.to_owned());
        }
    }

    /// What discovery answers about versions, as in `security.istio.io/v1beta1` and
    /// `peerauthentications`; nothing by default.
    pub(crate) fn serve_as(&self, version: &str, resource: &str) {
        self.state().served = Some((version.to_owned(), resource.to_owned()));
    }

    /// What it answers about a token: the status of a TokenReview.
    pub(crate) fn review(&self, token: &str, status: Value) {
        self.state().reviews.insert(token.to_owned(), status);
    }

    /// How long it takes for a TokenReview.
    pub(crate) fn take_for_reviews(&self, time: Duration) {
        self.state().review_time = time;
    }

    /// Publishes the keys of its tokens, a JSON Web Key Set.
    pub(crate) fn publish_keys(&self, keys: Value) {
        self.state().keys = Some(keys);
    }

    /// How many requests began so, as in `POST /apis/authentication`.
    pub(crate) fn count(&self, start: &str) -> usize {
        self.state().requests.iter().filter(|request| request.starts_with(start)).count()
    }

    async fn serve(&self, request: Request<Body>) -> Result<Answered, std::io::Error> {
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await.map_err(std::io::Error::other)?;
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let query = |name: &str| {
            let pairs = head.uri.query().unwrap_or_default().split('&');
            pairs.filter_map(|pair| pair.split_once('=')).find(|pair| pair.0 == name).map(|it| it.1)
        };
        if head.uri.path().ends_with("/tokenreviews") {
            let time = self.state().review_time;
            tokio::time::sleep(time).await;
        }
        let mut state = self.state();
        state.requests.push(format!("{} {}", head.method, head.uri.path()));
        if state.is_away {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        if head.uri.path() == "/openid/v1/jwks" {
            let keys = state.keys.as_ref().map(|keys| answer(StatusCode::OK, keys));
            return Ok(keys.unwrap_or_else(|| failure(404, "NotFound")));
        }
        if let Some(answer) = state.discover(head.uri.path()) {
            return Ok(answer);
        }
        let target = target(head.uri.path());
        if target.collection.ends_with("/tokenreviews") {
            let token = body.pointer("/spec/token").and_then(Value::as_str).unwrap_or_default();
            let refused = json!({ "authenticated": false, "error": "unknown token" });
            let status = state.reviews.get(token).cloned().unwrap_or(refused);
            let review = json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
                "metadata": {}, "spec": { "token": token }, "status": status,
            });
            return Ok(answer(StatusCode::CREATED, &review));
        }
        if state.missing.contains(&target.collection) {
            return Ok(failure(404, "NotFound"));
        }
        if target.name.is_empty() && head.method == Method::GET {
            let wanted = Wanted::new(&target.collection, query("labelSelector"));
            if query("watch") == Some("true") {
                let from = query("resourceVersion").and_then(|it| it.parse().ok()).unwrap_or(0);
                return Ok(state.watch(wanted, from));
            }
            let selector = query("fieldSelector").map(|it| it.replace("%3D", "="));
            return Ok(state.list(
                &target,
                &wanted,
                selector.as_deref(),
                query("limit").and_then(|it| it.parse().ok()).unwrap_or(usize::MAX),
                query("continue").and_then(|it| it.parse().ok()).unwrap_or(0),
            ));
        }
        Ok(state.change(&head.method, target, body))
    }
}

impl State {
    /// Answers who asks which kinds there are.
    fn discover(&self, path: &str) -> Option<Answered> {
        let served = self.served.as_ref();
        if path == "/apis" {
            let group = |(version, _): &(String, String)| {
                let (group, number) = version.split_once('/').expect("a group and a version");
                let version = json!({"groupVersion": version, "version": number});
                json!({"name": group, "versions": [version], "preferredVersion": version})
            };
            let groups: Vec<Value> = served.map(group).into_iter().collect();
            return Some(answer(
                StatusCode::OK,
                &json!({"kind": "APIGroupList", "groups": groups}),
            ));
        }
        let (version, resource) = served.filter(|it| path == format!("/apis/{}", it.0))?;
        let resource = json!({"name": resource, "singularName": "", "namespaced": true,
            "kind": "Any", "verbs": []});
        let list = json!({"kind": "APIResourceList", "groupVersion": version,
            "resources": [resource]});
        Some(answer(StatusCode::OK, &list))
    }

    fn put(&mut self, target: &Target, mut object: Value) {
        let key = target.key();
        let before = self.objects.get(&key);
        let metadata = &mut object["metadata"];
        metadata["name"] = json!(target.name);
        if !target.namespace.is_empty() {
            metadata["namespace"] = json!(target.namespace);
        }
        let uid = before.map(|it| it["metadata"]["uid"].clone());
        let fresh = json!(format!("uid-{}", target.name));
        metadata["uid"] = uid.unwrap_or_else(|| {
            if metadata["uid"].is_null() { fresh } else { metadata["uid"].clone() }
        });
        metadata["resourceVersion"] =
            before.map_or(Value::Null, |it| it["metadata"]["resourceVersion"].clone());
        if before == Some(&object) {
            return;
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
        self.objects.insert(key, object.clone());
        self.tell(&target.collection, kind, &object);
    }

    fn delete(&mut self, target: &Target) {
        if let Some(mut object) = self.objects.remove(&target.key()) {
            self.version += 1;
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            self.tell(&target.collection, "DELETED", &object);
        }
    }

    fn tell(&mut self, collection: &str, kind: &str, object: &Value) {
        let said = json!({ "type": kind, "object": object });
        self.watchers.retain(|(wanted, watcher)| {
            !wanted.holds(collection, object) || watcher.send(line(&said)).is_ok()
        });
        self.history.push((self.version, collection.to_owned(), said));
    }

    fn watch(&mut self, wanted: Wanted, from: u64) -> Answered {
        let (watcher, lines) = mpsc::unbounded_channel();
        if from + 1 < self.oldest {
            let object = json!({ "kind": "Status", "code": 410, "reason": "Expired",
                "status": "Failure", "message": "too old resource version" });
            let _ = watcher.send(line(&json!({ "type": "ERROR", "object": object })));
        } else {
            let missed = self.history.iter().filter(|(at, _, _)| *at > from);
            for (_, _, said) in missed.filter(|(_, of, said)| wanted.holds(of, &said["object"])) {
                let _ = watcher.send(line(said));
            }
            self.watchers.push((wanted, watcher));
        }
        let body = StreamBody::new(UnboundedReceiverStream::new(lines)).boxed_unsync();
        Response::new(body)
    }

    fn list(
        &self,
        target: &Target,
        wanted: &Wanted,
        selector: Option<&str>,
        limit: usize,
        from: usize,
    ) -> Answered {
        let name = selector.and_then(|it| it.strip_prefix("metadata.name="));
        let all = self.objects.iter().filter(|((collection, namespace, own), object)| {
            wanted.holds(collection, object)
                && (target.namespace.is_empty() || *namespace == target.namespace)
                && name.is_none_or(|name| name == own)
        });
        let mut items: Vec<&Value> = all.map(|(_, object)| object).skip(from).collect();
        let rest = items.len() > limit;
        items.truncate(limit);
        let mut metadata = json!({ "resourceVersion": self.version.to_string() });
        if rest {
            metadata["continue"] = json!((from + limit).to_string());
        }
        let list = json!({ "apiVersion": "v1", "kind": "List", "metadata": metadata,
            "items": items });
        answer(StatusCode::OK, &list)
    }

    fn change(&mut self, method: &Method, mut target: Target, body: Value) -> Answered {
        if target.name.is_empty() {
            let name = body.pointer("/metadata/name").and_then(Value::as_str);
            target.name = name.unwrap_or_default().to_owned();
        }
        let known = self.objects.get(&target.key()).cloned();
        match (method, known) {
            (&Method::POST, Some(_)) => return failure(409, "AlreadyExists"),
            (&Method::POST, None) => self.put(&target, body),
            (&Method::PUT, Some(known)) => {
                let version = |of: &Value| of["metadata"]["resourceVersion"].clone();
                if !version(&body).is_null() && version(&body) != version(&known) {
                    return failure(409, "Conflict");
                }
                self.put(&target, body);
            }
            (&Method::PATCH, known) if known.is_some() || target.subresource.is_empty() => {
                let mut merged = known.unwrap_or_else(|| json!({}));
                merge(&mut merged, body);
                self.put(&target, merged);
            }
            (&Method::DELETE, Some(known)) => {
                self.delete(&target);
                return answer(StatusCode::OK, &known);
            }
            (&Method::GET, Some(_)) => {}
            _ => return failure(404, "NotFound"),
        }
        answer(StatusCode::OK, &self.objects[&target.key()])
    }
}

impl Target {
    fn key(&self) -> (String, String, String) {
        (self.collection.clone(), self.namespace.clone(), self.name.clone())
    }
}

/// Takes a path apart; a namespace is an object of the collection `v1/namespaces`.
fn target(path: &str) -> Target {
    let path = path.trim_start_matches('/');
    let path = path.strip_prefix("apis/").or(path.strip_prefix("api/")).unwrap_or(path);
    let mut parts: Vec<&str> = path.split('/').collect();
    let group = parts.drain(..if parts[0] == "v1" { 1 } else { 2 }).collect::<Vec<_>>().join("/");
    let namespace = if parts.len() >= 3 && parts[0] == "namespaces" {
        parts.drain(..2).nth(1).unwrap_or_default()
    } else {
        ""
    };
    let part = |index: usize| parts.get(index).copied().unwrap_or_default().to_owned();
    Target {
        collection: format!("{group}/{}", part(0)),
        namespace: namespace.to_owned(),
        name: part(1),
        subresource: part(2),
    }
}

/// RFC 7396, which is what server-side apply comes to for these tests.
fn merge(into: &mut Value, patch: Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    into.remove(&key);
                } else {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (into, patch) => *into = patch,
    }
}

fn line(value: &Value) -> Result<Frame<Bytes>, Infallible> {
    Ok(Frame::data(Bytes::from(format!("{value}\n"))))
}

fn answer(status: StatusCode, value: &Value) -> Answered {
    let body = Full::new(Bytes::from(value.to_string())).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

fn failure(code: u16, reason: &str) -> Answered {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": reason });
    answer(StatusCode::from_u16(code).expect("a status code"), &status)
}
