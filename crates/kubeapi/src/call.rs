//! From a request to what it asks for.
//!
//! A request names a discovery document, the objects of a kind, one object, or a part of one. What
//! the server does not have is refused here, so that a [`Call`] can be answered.

use std::time::Duration;

use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::form::{DiscoveryForm, Form};
use crate::query::Query;
use crate::request::{Listing, Request, Single};
use crate::resource::Resource;
use crate::review::Review;
use crate::selector::Selectors;
use crate::status::Status;
use crate::streams::{Exec, PortForward};
use crate::write::{Syntax, Write};
use crate::{discovery, openapi};

/// How long a watch stays open if the client does not say.
const WATCH_DEFAULT: Duration = Duration::from_secs(30 * 60);
/// Longest life of a watch.
const WATCH_MAX: Duration = Duration::from_secs(60 * 60);
/// The version of the API whose form answers have.
const API_VERSION: (&str, &str) = ("1", "32");

/// The kinds that a server has, and its own name.
#[derive(Clone, Debug)]
pub struct Api {
    /// The kinds.
    pub resources: Vec<Resource>,
    /// What the server is, as a version says it: `ambit-0.1.0`.
    pub server: String,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// A document that does not depend on objects.
    Document {
        /// Its media type.
        media_type: &'static str,
        /// What it says.
        body: Value,
    },
    /// Whether the server is well; it is, if it reads this.
    Health,
    /// The objects of a kind.
    List(Listing),
    /// One object.
    Get(Single),
    /// The `Scale` of one object.
    GetScale(Single),
    /// What the client asks of itself: see [`Api::review`].
    Review(Review, Syntax),
    /// A change of objects; the body says more.
    Write(Box<Write>),
    /// The changes of a kind's objects, as they come.
    Watch(Watch),
    /// What a container has written.
    Log(Log),
    /// A command in a container, whose connection carries what it reads and writes.
    Exec(Exec),
    /// Connections to ports of a pod, all over that of the request.
    PortForward(PortForward),
}

/// A watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Of what.
    pub of: Listing,
    /// Since which version; without one it begins with everything that is there.
    pub since: Option<u64>,
    /// Whether the end of that beginning is marked.
    pub marks_initial_end: bool,
    /// Whether the client is told now and then which version it has seen.
    pub bookmarks: bool,
    /// How long it stays open.
    pub timeout: Duration,
}

/// A pod's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// The pod's namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// Its container; may be left out if it has one.
    pub container: Option<String>,
    /// Only so many of the last lines.
    pub tail_lines: Option<u64>,
    /// At most so many bytes.
    pub limit_bytes: Option<u64>,
    /// Only lines since then.
    pub since: Option<Timestamp>,
    /// Each line begins with the time when it was written.
    pub timestamps: bool,
    /// Goes on as the log grows.
    pub follow: bool,
}

/// What a path names.
enum Target<'a> {
    Objects { resource: Resource, api_version: &'static str, namespace: Option<&'a str> },
    Object(Single, Option<&'a str>),
}

impl Api {
    /// Reads a request.
    ///
    /// # Errors
    /// What Kubernetes would refuse, and what this server does not have.
    pub fn call(&self, request: &Request<'_>) -> Result<Call, Status> {
        let path = request.path.trim_matches('/');
        let parts: Vec<&str> = path.split('/').collect();
        if parts.iter().any(|part| part.is_empty()) {
            return Err(Status::no_such_path());
        }
        if let Some(call) = self.document(&parts, request)? {
            return Ok(call);
        }
        if let Some(review) = Review::at(&parts).filter(|_| request.method == Method::POST) {
            return Ok(Call::Review(review, Syntax::of(request.content_type)?));
        }
        let target = match *parts.as_slice() {
            ["api", version, ref rest @ ..] => self.target("", version, rest),
            ["apis", group, version, ref rest @ ..] => self.target(group, version, rest),
            _ => None,
        };
        let query = Query::parse(request.query);
        match target.ok_or_else(Status::no_such_path)? {
            Target::Object(single, Some(part)) => of_part(single, part, request, &query),
            Target::Objects { resource, api_version, namespace }
                if request.method != Method::GET =>
            {
                let of = || {
                    let namespace = namespace.map(str::to_owned);
                    listing(resource, api_version, namespace, None, request, &query)
                };
                let kind = (resource, api_version);
                let write = Write::of_kind(of, kind, namespace, (request, &query))?;
                Ok(Call::Write(Box::new(write)))
            }
            Target::Object(single, None) if request.method != Method::GET => {
                Ok(Call::Write(Box::new(Write::of_object(single, request, &query)?)))
            }
            Target::Objects { resource, api_version, namespace } => {
                let namespace = namespace.map(str::to_owned);
                listed(resource, api_version, namespace, None, request, &query)
            }
            Target::Object(single, None) if query.flag("watch") => {
                let Single { resource, namespace, name, api_version, .. } = single;
                let namespace = Some(namespace).filter(|it| !it.is_empty());
                listed(resource, api_version, namespace, Some(&name), request, &query)
            }
            Target::Object(single, None) => {
                let form = Form::of(request.accept, query.text("includeObject"))?;
                Ok(Call::Get(Single { form, ..single }))
            }
        }
    }

    fn document(&self, parts: &[&str], request: &Request<'_>) -> Result<Option<Call>, Status> {
        let json = "application/json";
        let document = |media_type, body| Ok(Some(Call::Document { media_type, body }));
        let found = |body: Option<Value>| {
            let body = body.ok_or_else(Status::no_such_path)?;
            Ok(Some(Call::Document { media_type: json, body }))
        };
        match *parts {
            _ if request.method != Method::GET => Ok(None),
            ["healthz" | "livez" | "readyz"] => Ok(Some(Call::Health)),
            ["version"] => document(json, self.version()),
            [root @ ("api" | "apis")] => {
                let form = DiscoveryForm::of(request.accept)?;
                let media_type = match form {
                    DiscoveryForm::Single => json,
                    DiscoveryForm::Aggregated => discovery::AGGREGATED_TYPE,
                };
                document(media_type, discovery::root(&self.resources, root == "api", form))
            }
            ["api", version] => found(discovery::version(&self.resources, "", version)),
            ["apis", group] => found(discovery::group(&self.resources, group)),
            ["apis", group, version] => found(discovery::version(&self.resources, group, version)),
            ["openapi", "v3"] => document(json, openapi::root(&self.resources)),
            ["openapi", "v3", ref version @ ..] => {
                found(openapi::of_version(&self.resources, &version.join("/")))
            }
            _ => Ok(None),
        }
    }

    fn version(&self) -> Value {
        let (major, minor) = API_VERSION;
        let architecture = ambit_words::host_architecture();
        json!({
            "major": major,
            "minor": minor,
            "gitVersion": format!("v{major}.{minor}.0+{}", self.server),
            "gitCommit": "",
            "gitTreeState": "",
            "buildDate": "1970-01-01T00:00:00Z",
            "goVersion": "",
            "compiler": "",
            "platform": format!("{}/{architecture}", std::env::consts::OS),
        })
    }

    /// What the part of a path behind its group and version names.
    fn target<'a>(&self, group: &str, version: &str, rest: &[&'a str]) -> Option<Target<'a>> {
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
            rest => (None, rest),
        };
        let (plural, rest) = rest.split_first()?;
        let is_meant = |it: &&Resource| it.plural == *plural && it.group() == group;
        let resource = *self.resources.iter().find(is_meant)?;
        let versions = resource.versions().zip(resource.api_versions);
        let api_version = versions.into_iter().find(|(it, _)| *it == version)?.1;
        let is_placed = namespace.is_some() == resource.namespaced;
        match *rest {
            [] if is_placed || namespace.is_none() => {
                Some(Target::Objects { resource, api_version, namespace })
            }
            [name] | [name, _] if is_placed => {
                let (namespace, name) = (namespace.unwrap_or_default().to_owned(), name.to_owned());
                let single = Single { resource, namespace, name, api_version, form: Form::Objects };
                Some(Target::Object(single, rest.get(1).copied()))
            }
            _ => None,
        }
    }
}

/// The objects that a request names. `name` is that of the only one.
fn listing(
    resource: Resource,
    api_version: &'static str,
    namespace: Option<String>,
    name: Option<&str>,
    request: &Request<'_>,
    query: &Query<'_>,
) -> Result<Listing, Status> {
    let named = name.map(|it| format!("metadata.name={it}"));
    let fields = named.as_deref().or_else(|| query.text("fieldSelector"));
    let selectors = Selectors::parse(&resource, query.text("labelSelector"), fields)?;
    let form = Form::of(request.accept, query.text("includeObject"))?;
    Ok(Listing { resource, namespace, api_version, selectors, form })
}

fn listed(
    resource: Resource,
    api_version: &'static str,
    namespace: Option<String>,
    name: Option<&str>,
    request: &Request<'_>,
    query: &Query<'_>,
) -> Result<Call, Status> {
    let of = listing(resource, api_version, namespace, name, request, query)?;
    if query.flag("watch") {
        return Ok(Call::Watch(watch(of, query)?));
    }
    if query.text("continue").is_some() {
        // Every list is whole, so that no server has given this token.
        return Err(Status::expired("the continue parameter is too old; list without it"));
    }
    Ok(Call::List(of))
}

fn watch(of: Listing, query: &Query<'_>) -> Result<Watch, Status> {
    let marks_initial_end = query.flag("sendInitialEvents");
    let bookmarks = query.flag("allowWatchBookmarks");
    if marks_initial_end && !bookmarks {
        return Err(Status::bad_request("sendInitialEvents needs allowWatchBookmarks"));
    }
    let since = query.number("resourceVersion")?.filter(|it| *it != 0 && !marks_initial_end);
    let timeout = query.number("timeoutSeconds")?.map(Duration::from_secs);
    let timeout = timeout.filter(|it| !it.is_zero()).unwrap_or(WATCH_DEFAULT).min(WATCH_MAX);
    Ok(Watch { of, since, marks_initial_end, bookmarks, timeout })
}

/// What of one object is asked for.
fn of_part(
    single: Single,
    part: &str,
    request: &Request<'_>,
    query: &Query<'_>,
) -> Result<Call, Status> {
    let is_read = request.method == Method::GET;
    if is_read && (part == "status" || part == "scale" && single.resource.has_scale()) {
        let form = Form::of(request.accept, query.text("includeObject"))?;
        let single = Single { form, ..single };
        return Ok(if part == "scale" { Call::GetScale(single) } else { Call::Get(single) });
    }
    // GET begins a WebSocket, POST what is older.
    let opens_stream = matches!(*request.method, Method::GET | Method::POST);
    let is_stream = single.resource.is_pod() && matches!(part, "exec" | "portforward" | "attach");
    if !is_read
        && !is_stream
        && let Some(write) = Write::of_part(&single, part, request, query)?
    {
        return Ok(Call::Write(Box::new(write)));
    }
    match part {
        _ if single.resource.plural != "pods" => Err(Status::no_such_path()),
        "log" if is_read => Ok(Call::Log(log(&single, query)?)),
        "exec" if opens_stream => Ok(Call::Exec(Exec::of(&single.namespace, &single.name, query)?)),
        "portforward" if opens_stream => {
            let Single { namespace, name: pod, .. } = single;
            Ok(Call::PortForward(PortForward { namespace, pod }))
        }
        "attach" => Err(Status::attaches_nothing()),
        "ephemeralcontainers" => Err(Status::adds_no_containers()),
        "log" => Err(Status::not_allowed("a log is only read")),
        "exec" | "portforward" => Err(Status::not_allowed("streams begin with GET or POST")),
        _ => Err(Status::no_such_path()),
    }
}

fn log(single: &Single, query: &Query<'_>) -> Result<Log, Status> {
    let since = since(query)?;
    if query.flag("previous") {
        let why = "previous: a log holds all runs of its container; leave --previous out";
        return Err(Status::bad_request(why));
    }
    Ok(Log {
        namespace: single.namespace.clone(),
        pod: single.name.clone(),
        container: query.text("container").map(str::to_owned),
        tail_lines: query.number("tailLines")?,
        limit_bytes: query.number("limitBytes")?,
        since,
        timestamps: query.flag("timestamps"),
        follow: query.flag("follow"),
    })
}

/// Since when lines are wanted.
fn since(query: &Query<'_>) -> Result<Option<Timestamp>, Status> {
    let refused = |why: &str| Status::bad_request(why.to_owned());
    match (query.number("sinceSeconds")?, query.text("sinceTime")) {
        (Some(_), Some(_)) => Err(refused("at most one of sinceTime or sinceSeconds may be given")),
        (Some(0), None) => Err(refused("sinceSeconds: must be greater than 0")),
        (Some(seconds), None) => {
            let span = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
            Ok(Some(Timestamp::now().checked_sub(span).unwrap_or(Timestamp::UNIX_EPOCH)))
        }
        (None, Some(text)) => {
            let wrong = |_| refused("sinceTime: must be a time such as 2026-01-31T12:00:00Z");
            text.parse().map(Some).map_err(wrong)
        }
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::form::Beside;

    fn api() -> Api {
        let resource = |kind, plural, namespaced, api_versions| Resource {
            kind,
            plural,
            namespaced,
            api_versions,
            only_read: (kind == "Node").then_some("nodes are the server's own"),
        };
        let resources = vec![
            resource("Namespace", "namespaces", false, &["v1"]),
            resource("Node", "nodes", false, &["v1"]),
            resource("Pod", "pods", true, &["v1"]),
            resource("Deployment", "deployments", true, &["apps/v1"]),
            resource("Gateway", "gateways", true, &["g.example/v1", "g.example/v1beta1"]),
        ];
        Api { resources, server: "test".to_owned() }
    }

    fn call(method: &Method, target: &str) -> Result<Call, Status> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let content_type = match *method {
            Method::PATCH => Some("application/merge-patch+json"),
            _ => None,
        };
        api().call(&Request { method, path, query, accept: Some("application/json"), content_type })
    }

    /// What a request asks for, in short.
    fn short(call: Call) -> String {
        let listing = |it: &Listing| {
            let namespace = it.namespace.as_deref().unwrap_or("*");
            format!("{} {namespace}/{}", it.api_version, it.resource.plural)
        };
        match call {
            Call::Document { body, .. } => format!("document {}", body["kind"]),
            Call::Health => "health".to_owned(),
            Call::List(it) => format!("list {}", listing(&it)),
            Call::Get(it) => {
                let Single { resource, namespace, name, api_version, .. } = it;
                format!("get {api_version} {namespace}/{}/{name}", resource.plural)
            }
            Call::GetScale(it) => format!("scale of {}/{}", it.namespace, it.name),
            Call::Review(of, syntax) => format!("{of:?} review as {syntax:?}"),
            Call::Write(it) => format!("{:?} in {:?}", it.action, it.namespace),
            Call::Watch(it) => format!(
                "watch {} since {:?} for {} s{}{}",
                listing(&it.of),
                it.since,
                it.timeout.as_secs(),
                if it.bookmarks { " with bookmarks" } else { "" },
                if it.marks_initial_end { ", marked" } else { "" },
            ),
            Call::Log(it) => format!(
                "log {}/{} {:?} {:?} {:?} {}",
                it.namespace, it.pod, it.container, it.tail_lines, it.limit_bytes, it.follow
            ),
            Call::Exec(it) => {
                let files = [it.stdin, it.stdout, it.stderr, it.tty].map(u8::from);
                let Exec { namespace, pod, container, command, .. } = it;
                format!("exec {namespace}/{pod} {container:?} {command:?} {files:?}")
            }
            Call::PortForward(it) => format!("port-forward {}/{}", it.namespace, it.pod),
        }
    }

    #[test]
    fn paths_name_what_is_asked_for() {
        let check = |target: &str, expected: &str| {
            assert_eq!(short(call(&Method::GET, target).expect(target)), expected);
        };
        check("/api", "document \"APIVersions\"");
        check("/apis", "document \"APIGroupList\"");
        check("/apis/apps", "document \"APIGroup\"");
        check("/apis/apps/v1", "document \"APIResourceList\"");
        check("/api/v1/", "document \"APIResourceList\"");
        check("/version", "document null");
        check("/readyz", "health");
        check("/api/v1/pods", "list v1 */pods");
        check("/api/v1/namespaces", "list v1 */namespaces");
        check("/api/v1/namespaces/a", "get v1 /namespaces/a");
        check("/api/v1/namespaces/a/pods", "list v1 a/pods");
        check("/api/v1/namespaces/a/pods/web", "get v1 a/pods/web");
        check("/apis/apps/v1/namespaces/a/deployments/web", "get apps/v1 a/deployments/web");
        check("/apis/g.example/v1beta1/gateways", "list g.example/v1beta1 */gateways");
    }

    #[test]
    fn watches_have_a_start_and_an_end() {
        let check = |query: &str, expected: &str| {
            let found = call(&Method::GET, &format!("/api/v1/pods?{query}")).expect(query);
            assert_eq!(short(found), format!("watch v1 */pods {expected}"));
        };
        check("watch=true", "since None for 1800 s");
        check("watch=1&resourceVersion=0", "since None for 1800 s");
        check("watch=1&resourceVersion=7&timeoutSeconds=5", "since Some(7) for 5 s");
        check("watch=1&timeoutSeconds=99999", "since None for 3600 s");
        let initial = "watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersion=7";
        check(initial, "since None for 1800 s with bookmarks, marked");
        let one = call(&Method::GET, "/api/v1/namespaces/a/pods/web?watch=1").expect("a watch");
        assert_eq!(short(one), "watch v1 a/pods since None for 1800 s");
    }

    #[test]
    fn logs_have_their_bounds() {
        let path = "/api/v1/namespaces/a/pods/web/log";
        let query = "container=main&tailLines=5&limitBytes=9&follow=true&previous=false";
        let log = call(&Method::GET, &format!("{path}?{query}")).expect("a log");
        assert_eq!(short(log), "log a/web Some(\"main\") Some(5) Some(9) true");
        assert_eq!(
            short(call(&Method::GET, path).expect("a log")),
            "log a/web None None None false"
        );
    }

    #[test]
    fn streams_are_opened_by_either_method() {
        let path = "/api/v1/namespaces/a/pods/web";
        let check = |target: &str, expected: &str| {
            for method in [Method::GET, Method::POST] {
                let found = call(&method, &format!("{path}/{target}")).expect(target);
                assert_eq!(short(found), expected);
            }
        };
        let command = "exec?command=sh&command=-c&command=&stdin=true&stdout=true&stderr=true";
        check(command, "exec a/web None [\"sh\", \"-c\", \"\"] [1, 1, 1, 0]");
        let terminal = "exec?command=sh&container=main&stdout=true&stderr=true&tty=true";
        check(terminal, "exec a/web Some(\"main\") [\"sh\"] [0, 1, 0, 1]");
        check("portforward?ports=80", "port-forward a/web");
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let check = |method: Method, target: &str, code: u16, part: &str| {
            let status = call(&method, target).expect_err(target).to_json();
            let message = status["message"].as_str().unwrap_or_default();
            assert!(status["code"] == code && message.contains(part), "{target}: {status}");
        };
        let get = |target, code, part| check(Method::GET, target, code, part);
        get("/", 404, "could not find");
        get("/apis/none", 404, "could not find");
        get("/apis/apps/v2", 404, "could not find");
        get("/apis//v1", 404, "could not find");
        get("/api/v1/gizmos", 404, "could not find");
        get("/api/v1/deployments", 404, "could not find");
        get("/apis/g.example/v2/gateways", 404, "could not find");
        get("/api/v1/pods/web", 404, "could not find");
        get("/api/v1/namespaces/a/namespaces/b", 404, "could not find");
        get("/api/v1/namespaces/a/pods/web/scale", 404, "could not find");
        get("/api/v1/namespaces/a/pods/web/log/more", 404, "could not find");
        get("/apis/apps/v1/namespaces/a/deployments/web/log", 404, "could not find");
        get("/openapi/v2", 404, "could not find");
        get("/openapi/v3/apis/none", 404, "could not find");
        get("/api/v1/pods?continue=x", 410, "list without it");
        get("/api/v1/pods?watch=1&resourceVersion=x", 400, "is not a number");
        get("/api/v1/pods?watch=1&sendInitialEvents=1", 400, "needs allowWatchBookmarks");
        get("/api/v1/pods?labelSelector=a%20b", 400, "unable to parse requirement");
        get("/api/v1/namespaces/a/pods/web/log?sinceTime=x", 400, "must be a time such as");
        get("/api/v1/namespaces/a/pods/web/log?sinceSeconds=0", 400, "greater than 0");
        get("/api/v1/namespaces/a/pods/web/log?previous=1", 400, "leave --previous out");
        get("/api/v1/namespaces/a/pods/web/log?tailLines=-1", 400, "is not a number");
        check(Method::POST, "/api/v1/namespaces/a/pods/web/attach", 501, "kubectl logs -f");
        let debug = "/api/v1/namespaces/a/pods/web/ephemeralcontainers";
        check(Method::PATCH, debug, 501, "kubectl exec -it");
        get("/api/v1/namespaces/a/pods/web/exec?stdout=1", 400, "name a command");
        get("/api/v1/namespaces/a/pods/web/exec?command=ls&tty=1", 400, "at least one of stdin");
        check(
            Method::PUT,
            "/api/v1/namespaces/a/pods/web/exec?command=ls",
            405,
            "streams begin with GET or POST",
        );
        check(
            Method::PUT,
            "/api/v1/namespaces/a/pods/web/portforward",
            405,
            "streams begin with GET or POST",
        );
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            check(method.clone(), "/api/v1/gizmos", 404, "could not find");
            check(method, "/api/v1/pods", 405, "name the namespace");
        }
    }

    #[test]
    fn methods_and_paths_say_what_is_to_be_written() {
        let check = |method: Method, target: &str, expected: &str| {
            let said = short(call(&method, target).expect(target));
            assert!(said.starts_with(expected), "{target}: {said}");
        };
        let (pods, pod) = ("/api/v1/namespaces/a/pods", "/api/v1/namespaces/a/pods/web");
        let scale = "/apis/apps/v1/namespaces/a/deployments/web/scale";
        check(Method::POST, pods, "Create in \"a\"");
        check(Method::POST, "/api/v1/namespaces", "Create in \"\"");
        check(Method::PUT, pod, "Replace { name: \"web\" } in \"a\"");
        check(Method::PATCH, pod, "Patch { name: \"web\", kind: Merge } in \"a\"");
        check(Method::DELETE, pod, "Delete { name: \"web\" } in \"a\"");
        check(Method::DELETE, &format!("{pods}?labelSelector=a"), "DeleteAll(");
        check(Method::POST, &format!("{pod}/eviction"), "Evict { name: \"web\" } in \"a\"");
        check(Method::GET, scale, "scale of a/web");
        check(Method::PUT, scale, "Scale { name: \"web\", patch: None }");
        check(Method::PATCH, scale, "Scale { name: \"web\", patch: Some(Merge) }");
        check(Method::GET, &format!("{pod}/status"), "get v1 a/pods/web");
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        let check = |method: Method, target: &str, code: u16, part: &str| {
            let status = call(&method, target).expect_err(target).to_json();
            let message = status["message"].as_str().unwrap_or_default();
            assert!(status["code"] == code && message.contains(part), "{target}: {status}");
        };
        let pod = "/api/v1/namespaces/a/pods/web";
        check(Method::PATCH, "/api/v1/nodes/n", 405, "nodes are the server's own");
        check(Method::DELETE, "/api/v1/nodes", 405, "nodes are the server's own");
        check(Method::DELETE, "/api/v1/namespaces", 405, "name the object");
        check(Method::POST, pod, 405, "leave the name out");
        check(Method::PUT, "/api/v1/namespaces/a/pods", 405, "name the object");
        check(Method::PUT, &format!("{pod}/status"), 405, "what the server reports");
        check(Method::POST, &format!("{pod}/binding"), 405, "placed by the machine");
        check(Method::PUT, &format!("{pod}/log"), 405, "only read");
        check(Method::DELETE, &format!("{pod}?dryRun=None"), 400, "must be \"All\"");
        check(Method::PUT, &format!("{pod}?fieldValidation=No"), 400, "none of Ignore");
        let content_type = Some("application/cbor");
        let request = Request {
            method: &Method::POST,
            path: "/api/v1/namespaces/a/pods",
            query: "",
            accept: None,
            content_type,
        };
        assert_eq!(api().call(&request).expect_err("CBOR").code().as_u16(), 415);
    }

    #[test]
    fn aggregated_discovery_says_all() {
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let ask = |path| {
            let request = Request {
                method: &Method::GET,
                path,
                query: "",
                accept: Some(accept),
                content_type: None,
            };
            let Ok(Call::Document { media_type, body }) = api().call(&request) else {
                panic!("{path} is a document");
            };
            assert_eq!(media_type, accept);
            body
        };
        let old = ask("/api");
        let resources = &old["items"][0]["versions"][0]["resources"];
        assert_eq!(
            (&resources[0]["resource"], &resources[0]["scope"]),
            (&json!("namespaces"), &json!("Cluster"))
        );
        assert_eq!(resources[1]["verbs"], json!(["get", "list", "watch"]), "nodes are only read");
        let parts = resources[2]["subresources"].as_array().expect("parts");
        let names: Vec<&Value> = parts.iter().map(|it| &it["subresource"]).collect();
        assert_eq!(names, ["eviction", "exec", "log", "portforward"]);
        assert_eq!(parts[0]["responseKind"]["group"], "policy");
        assert_eq!(resources[2]["shortNames"], json!(["po"]));
        let groups = ask("/apis");
        let scale = &groups["items"][0]["versions"][0]["resources"][0]["subresources"][0];
        assert_eq!(
            (&scale["subresource"], &scale["responseKind"]["kind"]),
            (&json!("scale"), &json!("Scale"))
        );
        let names = groups["items"].as_array().expect("items").iter();
        let names: Vec<&Value> = names.map(|it| &it["metadata"]["name"]).collect();
        assert_eq!(names, ["apps", "g.example"]);
        let versions = groups["items"][1]["versions"].as_array().expect("versions").iter();
        let versions: Vec<&Value> = versions.map(|it| &it["version"]).collect();
        assert_eq!(versions, ["v1", "v1beta1"]);
    }

    #[test]
    fn tables_are_for_those_who_ask() {
        let accept = Some("application/json;as=Table;v=v1;g=meta.k8s.io");
        let request = Request {
            method: &Method::GET,
            path: "/api/v1/pods",
            query: "",
            accept,
            content_type: None,
        };
        let Ok(Call::List(listing)) = api().call(&request) else { panic!("it is a list") };
        assert_eq!(listing.form, Form::Table(Beside::Metadata));
        let accept = Some("application/yaml");
        let status = api().call(&Request { accept, ..request }).expect_err("no YAML");
        assert_eq!(status.code().as_u16(), 406);
    }
}
