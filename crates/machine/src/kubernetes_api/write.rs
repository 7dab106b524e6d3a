//! Writes of the Kubernetes API, carried out as the machine's own commands are.
//!
//! An object is judged as `ambit apply` judges it, and stored, deleted and scaled by what carries
//! out the commands. Here is only what Kubernetes adds: what must still be so, and how the answer
//! reads. Nobody is asked to wait for the controllers: they have followed when the answer is made.

use std::sync::{Arc, Mutex, MutexGuard};

use ambit_kubeapi::{
    Action, Cause, Deletion, GENERATED_LEN, History, PatchKind, Status, Syntax, UnknownFields,
    Write,
};
use ambit_manifest::{Finding, Manifests, Typed};
use http::StatusCode;
use hyper::body::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::content;
use super::refusals;
use super::server::Server;
use crate::command::{Apply, Diff, Expected};
use crate::controller::budgets;
use crate::image::ImageMap;
use crate::import::{ImageArguments, ImageSources};
use crate::judgement::judge;
use crate::layout::Layout;
use crate::objects::{ApplyError, Changes, Kind, ObjectRef, Sent, random_bytes};
use crate::registry::timestamp;
use crate::state::{Machine, Objects};

/// How often a write is tried again because somebody else was faster.
const ATTEMPTS_MAX: usize = 5;
/// What a client is told that relies on finalizers.
const FINALIZERS: &str =
    "metadata.finalizers has no effect on a machine: an object that is deleted waits for nobody";
/// What messages call the object of a request.
const INPUT: &str = "request";

/// The answer to a write.
pub(super) struct Written {
    pub(super) code: StatusCode,
    pub(super) body: Value,
    /// What the client should know.
    pub(super) warnings: Vec<String>,
}

/// Carries out a write, with the query and the body of its request. The work keeps the place of the
/// request, also when the client has left meanwhile.
pub(super) async fn carry_out(
    server: &Arc<Server>,
    (write, query, body): (Write, String, Bytes),
    held: OwnedSemaphorePermit,
) -> Result<Written, Status> {
    let change = move |machine: &Arc<Machine>, history: &mut History| {
        let _held = held;
        let body = parse(write.syntax, &body)?;
        let Machine { layout, objects, changed, .. } = &**machine;
        let kept = Kept { layout, objects, changed };
        Writer { kept, history, write: &write }.carry_out(body, &query)
    };
    server.with_history(change).await?
}

pub(super) fn parse(syntax: Syntax, body: &[u8]) -> Result<Option<Value>, Status> {
    if body.is_empty() {
        return Ok(None);
    }
    let wrong = |what: String| Status::bad_request(format!("the body of the request: {what}"));
    let parsed = match syntax {
        Syntax::Json => serde_json::from_slice(body).map_err(|error| error.to_string()),
        Syntax::Yaml => std::str::from_utf8(body)
            .map_err(|_| "it is not UTF-8".to_owned())
            .and_then(ambit_manifest::one_value),
        Syntax::Protobuf => ambit_kubeapi::protobuf(body).map_err(|error| error.to_string()),
    };
    parsed.map(Some).map_err(wrong)
}

/// What a machine keeps, and who waits for its changes.
#[derive(Clone, Copy)]
struct Kept<'a> {
    layout: &'a Layout,
    objects: &'a Mutex<Objects>,
    changed: &'a Notify,
}

impl<'a> Kept<'a> {
    fn objects(self) -> MutexGuard<'a, Objects> {
        self.objects.lock().expect("nothing panics while it holds the lock")
    }
}

/// One write, with all that it needs.
struct Writer<'a> {
    kept: Kept<'a>,
    history: &'a mut History,
    write: &'a Write,
}

impl Writer<'_> {
    fn carry_out(mut self, body: Option<Value>, query: &str) -> Result<Written, Status> {
        let needed = |body: Option<Value>| {
            body.ok_or_else(|| Status::bad_request("the request has no body; send the object"))
        };
        let write = self.write;
        match &write.action {
            Action::Create => {
                let random = random_bytes::<GENERATED_LEN>();
                let object = write.created(needed(body)?, random, Timestamp::now())?;
                self.create(object)
            }
            Action::Replace { name } => {
                let body = needed(body)?;
                self.put(name, |current| {
                    let current = current.ok_or_else(|| absent(write, name))?;
                    write.replaced(name, current, body.clone(), Timestamp::now())
                })
            }
            Action::Patch { name, kind: PatchKind::Apply } => {
                let body = needed(body)?;
                self.put(name, |current| {
                    write.applied(name, current, body.clone(), Timestamp::now())
                })
            }
            Action::Patch { name, kind } => {
                let body = needed(body)?;
                self.put(name, |current| {
                    let current = current.ok_or_else(|| absent(write, name))?;
                    write.patched((name, *kind), current, body.clone(), Timestamp::now())
                })
            }
            Action::Scale { name, patch } => self.scale(name, *patch, needed(body)?),
            Action::Delete { name } | Action::Evict { name } => {
                let deletion = write.deletion(body, query)?;
                self.delete(name, &deletion)
            }
            Action::DeleteAll(_) => {
                let deletion = write.deletion(body, query)?;
                self.delete_all(&deletion)
            }
        }
    }

    fn plural(&self) -> &'static str {
        self.write.resource.plural
    }

    fn named(&self, name: &str) -> ObjectRef {
        let kind = Kind::from_plural(self.plural()).expect("other kinds are only read");
        ObjectRef::new(kind, Some(&self.write.namespace), name)
    }

    /// Takes over how the objects of the kind are now.
    fn look(&mut self, objects: &Objects) {
        let now = content::copied(self.kept.layout, objects, self.plural());
        self.history.look(self.plural(), content::finished(self.plural(), now));
    }

    fn current(&self, name: &str) -> Option<&Value> {
        let found = self.history.object(self.plural(), &self.write.namespace, name);
        found.map(|object| &**object)
    }

    fn create(&mut self, object: Value) -> Result<Written, Status> {
        let write = self.write;
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        self.put(&name, |current| match current {
            Some(_) => Err(Status::already_exists(&write.resource, &name)),
            None => Ok(object.clone()),
        })
    }

    /// Stores what is made of the object that is there.
    fn put(
        &mut self,
        name: &str,
        make: impl Fn(Option<&Value>) -> Result<Value, Status>,
    ) -> Result<Written, Status> {
        let named = self.named(name);
        let kept = self.kept;
        for _ in 0..ATTEMPTS_MAX {
            let (version, existing, images) = {
                let objects = kept.objects();
                self.look(&objects);
                let there = objects.store.object(&named);
                let version = there.map(|it| text(it, "/metadata/resourceVersion").to_owned());
                (version, copies(&objects), objects.admission.images.clone())
            };
            let current = self.current(name);
            if current.is_some() && version.is_none() {
                return Err(Status::not_allowed(content::MADE));
            }
            let code = if current.is_some() { StatusCode::OK } else { StatusCode::CREATED };
            let object = make(current)?;
            let (manifests, mut warnings) = self.judged(name, object, typed(existing)?, images)?;
            let object: Vec<Value> = manifests.objects.into_iter().map(|it| it.json).collect();
            let expected = vec![Expected { object: named.clone(), version }];
            let stored = match self.write.is_dry_run {
                true => self.would_store(name, object, expected),
                false => self.store(name, object, expected),
            };
            match stored {
                Ok((object, more)) => {
                    warnings.extend(more);
                    let single = self.write.single(name);
                    let body = ambit_kubeapi::object(&single, &object, Timestamp::now());
                    return Ok(Written { code, body, warnings });
                }
                Err(ApplyError::Conflict { .. }) => {}
                Err(error) => return Err(refusals::of(&self.write.resource, name, error)),
            }
        }
        let why = "others change it again and again; try again";
        Err(Status::conflict(&self.write.resource, name, why))
    }

    /// Reads and judges an object; also what the client should know of it.
    fn judged(
        &self,
        name: &str,
        object: Value,
        existing: Vec<Typed>,
        commands: ImageMap,
    ) -> Result<(Manifests, Vec<String>), Status> {
        let resource = &self.write.resource;
        let unknown = match self.write.unknown_fields {
            UnknownFields::Ignored => ambit_manifest::UnknownFields::Ignored,
            UnknownFields::Warned => ambit_manifest::UnknownFields::Warned,
            UnknownFields::Refused => ambit_manifest::UnknownFields::Refused,
        };
        let refused = |errors: Vec<Finding>| {
            let causes: Vec<Cause> = errors.iter().map(refusals::cause).collect();
            Status::invalid(resource, name, &causes)
        };
        let manifests = ambit_manifest::written(INPUT, object, unknown)
            .map_err(|ambit_manifest::Errors(errors)| refused(errors))?;
        let images = ImageArguments { commands, sources: ImageSources::default() };
        let (surprises, errors) = judge(&manifests, &existing, &images);
        if let Some(namespace) = missing_namespace(&self.write.namespace, &existing) {
            return Err(refusals::no_namespace(namespace));
        }
        if !errors.is_empty() {
            return Err(refused(errors));
        }
        let found = manifests.warnings.iter().chain(&surprises);
        let mut warnings: Vec<String> = found.map(refusals::words).collect();
        let mut objects = manifests.objects.iter();
        if objects.any(|it| it.typed.metadata().finalizers.iter().flatten().next().is_some()) {
            warnings.push(FINALIZERS.to_owned());
        }
        Ok((manifests, warnings))
    }

    /// Stores an object. Gives what is there then, and what the client should know.
    fn store(
        &mut self,
        name: &str,
        objects: Vec<Value>,
        expected: Vec<Expected>,
    ) -> Result<(Value, Vec<String>), ApplyError> {
        let (sent, images) = (Sent::Objects, ImageMap::default());
        let command = Apply { objects, sent, images, dry_run: false, expected };
        let (changes, after) =
            self.change(name, |layout, all, now| all.apply(layout, command, now))?;
        Ok((after.unwrap_or_default(), changes.warnings))
    }

    /// What would be there then.
    fn would_store(
        &mut self,
        name: &str,
        objects: Vec<Value>,
        expected: Vec<Expected>,
    ) -> Result<(Value, Vec<String>), ApplyError> {
        let kept = self.kept;
        let mut all = kept.objects();
        let (now, images) = (timestamp(), ImageMap::default());
        let sent = Sent::Objects;
        let diff = Diff { objects: objects.clone(), sent, images: images.clone() };
        let command = Apply { objects, sent, images, dry_run: true, expected };
        let changes = all.apply(kept.layout, command, &now)?;
        let after = all.differences(diff, &now)?.differences.pop().map(|it| it.after);
        drop(all);
        let current = self.current(name).cloned();
        let mut object = match after {
            Some(after) => content::shown(self.plural(), after),
            None => current.clone().unwrap_or_default(),
        };
        match current.and_then(|it| it.pointer("/metadata/resourceVersion").cloned()) {
            Some(version) => object["metadata"]["resourceVersion"] = version,
            None => {
                let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
                metadata.map(|it| it.remove("resourceVersion"));
            }
        }
        Ok((object, changes.warnings))
    }

    /// Changes objects as a command does, and looks at what is there then.
    fn change(
        &mut self,
        name: &str,
        change: impl FnOnce(&Layout, &mut Objects, &str) -> Result<Changes, ApplyError>,
    ) -> Result<(Changes, Option<Value>), ApplyError> {
        let kept = self.kept;
        let mut objects = kept.objects();
        let changes = objects.change(|all, now| change(kept.layout, all, now))?;
        self.look(&objects);
        drop(objects);
        kept.changed.notify_one();
        Ok((changes, self.current(name).cloned()))
    }

    fn scale(
        &mut self,
        name: &str,
        patch: Option<PatchKind>,
        body: Value,
    ) -> Result<Written, Status> {
        let write = self.write;
        let named = self.named(name);
        let refused = |error| refusals::of(&write.resource, name, error);
        let kept = self.kept;
        let mut objects = kept.objects();
        self.look(&objects);
        let current = self.current(name).ok_or_else(|| absent(write, name))?;
        let replicas = write.scaled((name, patch), current, body)?;
        let (after, warnings) = if write.is_dry_run {
            let mut after = current.clone();
            objects.store.scaled(&named, replicas).map_err(refused)?;
            after["spec"]["replicas"] = json!(replicas);
            (after, Vec::new())
        } else {
            let scale = |all: &mut Objects, now: &str| all.store.scale(&named, replicas, now);
            let changes = objects.change(scale).map_err(refused)?;
            self.look(&objects);
            kept.changed.notify_one();
            (self.current(name).cloned().unwrap_or_default(), changes.warnings)
        };
        Ok(Written { code: StatusCode::OK, body: ambit_kubeapi::scale(&after), warnings })
    }

    fn delete(&mut self, name: &str, deletion: &Deletion) -> Result<Written, Status> {
        let write = self.write;
        let named = self.named(name);
        let refused = |error| refusals::of(&write.resource, name, error);
        let kept = self.kept;
        let mut objects = kept.objects();
        self.look(&objects);
        let current = self.current(name).cloned().ok_or_else(|| absent(write, name))?;
        write.check_deletion(name, &current, deletion)?;
        if objects.store.object(&named).is_none() {
            return Err(Status::not_allowed(content::MADE));
        }
        let is_eviction = matches!(write.action, Action::Evict { .. });
        if is_eviction {
            check_budget(&objects, &named)?;
        }
        let uid = text(&current, "/metadata/uid");
        let mut left = None;
        if deletion.is_dry_run {
            objects.store.would_delete(&[named], false, &timestamp()).map_err(refused)?;
        } else {
            let delete = |all: &mut Objects, now: &str| all.store.delete(&[named], false, now);
            objects.change(delete).map_err(refused)?;
            self.look(&objects);
            kept.changed.notify_one();
            left = self.current(name).filter(|it| text(it, "/metadata/uid") == uid).cloned();
        }
        let code = if is_eviction { StatusCode::CREATED } else { StatusCode::OK };
        let body = match left.filter(|_| !is_eviction) {
            Some(left) => ambit_kubeapi::object(&write.single(name), &left, Timestamp::now()),
            None => ambit_kubeapi::deleted(&write.resource, name, uid),
        };
        Ok(Written { code, body, warnings: deletion_warnings(write, deletion) })
    }

    fn delete_all(&mut self, deletion: &Deletion) -> Result<Written, Status> {
        let write = self.write;
        let Action::DeleteAll(listing) = &write.action else { return Err(nothing_to_do()) };
        let kept = self.kept;
        let mut objects = kept.objects();
        self.look(&objects);
        let meant = self.history.objects(self.plural());
        let meant = meant.filter(|(key, object)| listing.holds(&key.namespace, object));
        let meant: Vec<ObjectRef> = meant.map(|(key, _)| self.named(&key.name)).collect();
        let is_stored = |it: &ObjectRef| objects.store.object(it).is_some();
        let (stored, made): (Vec<_>, Vec<_>) = meant.into_iter().partition(is_stored);
        let mut warnings = deletion_warnings(write, deletion);
        if !made.is_empty() {
            warnings.push(format!("{} {} stay: {}", made.len(), self.plural(), content::MADE));
        }
        let deleted = match deletion.is_dry_run {
            true => objects.store.would_delete(&stored, true, &timestamp()),
            false => objects.change(|all, now| all.store.delete(&stored, true, now)),
        };
        deleted.map_err(|error| refusals::of(&write.resource, "", error))?;
        self.look(&objects);
        drop(objects);
        kept.changed.notify_one();
        let body = ambit_kubeapi::deleted(&write.resource, "", "");
        Ok(Written { code: StatusCode::OK, body, warnings })
    }
}

/// Whether a pod's budget lets it go.
fn check_budget(objects: &Objects, pod: &ObjectRef) -> Result<(), Status> {
    match budgets::refusal(pod, &objects.store, &objects.reported) {
        None => Ok(()),
        Some(budgets::Refusal::Broken { budget, needed, healthy }) => {
            Err(Status::disruption(&format!(
                "The disruption budget {budget} needs {needed} healthy pods and has {healthy} \
                 currently"
            )))
        }
        Some(budgets::Refusal::Unknown { budget, why }) => Err(Status::disruption(&format!(
            "The disruption budget {budget} does not allow evicting pods currently because it \
             failed sync: {why}"
        ))),
        Some(budgets::Refusal::Several) => Err(Status::internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does \
             not support.",
        )),
    }
}

fn nothing_to_do() -> Status {
    Status::internal("the request means something else")
}

fn absent(write: &Write, name: &str) -> Status {
    Status::not_found(&write.resource, name)
}

/// What a deletion asks for that a machine does not do.
fn deletion_warnings(write: &Write, deletion: &Deletion) -> Vec<String> {
    let is_grace = deletion.grace_period_seconds.is_some() && write.resource.plural == "pods";
    let grace = "gracePeriodSeconds has no effect on a machine: a pod has the time that its \
                 spec.terminationGracePeriodSeconds says";
    let foreground = "propagationPolicy: Foreground is as Background on a machine: an object goes \
                      at once, and waits for nothing that it owns";
    let all = [(is_grace, grace), (deletion.is_foreground, foreground)];
    all.into_iter().filter(|(is_said, _)| *is_said).map(|(_, it)| it.to_owned()).collect()
}

/// The namespace of an object, if it is not there.
fn missing_namespace<'a>(namespace: &'a str, existing: &[Typed]) -> Option<&'a str> {
    let is_it = |it: &Typed| {
        it.kind() == Kind::Namespace && it.metadata().name.as_deref() == Some(namespace)
    };
    (!namespace.is_empty() && !existing.iter().any(is_it)).then_some(namespace)
}

/// What an object can refer to, as it is stored.
fn copies(objects: &Objects) -> Vec<(Kind, Value)> {
    let mut copies = Vec::new();
    for kind in Kind::all() {
        for (_, value) in objects.store.of_plural(kind.plural()) {
            let value = match kind {
                Kind::Pod => with_addresses(objects, value),
                _ => value.clone(),
            };
            copies.push((kind, value));
        }
    }
    copies
}

fn typed(copies: Vec<(Kind, Value)>) -> Result<Vec<Typed>, Status> {
    let typed = |(kind, value): (Kind, Value)| {
        let failed = |_| Status::internal(format!("a stored {kind} cannot be read"));
        ambit_manifest::stored(kind, value.to_string().as_bytes()).map_err(failed)
    };
    copies.into_iter().map(typed).collect()
}

/// A pod with its addresses where Kubernetes has them; the machine keeps them apart.
fn with_addresses(objects: &Objects, pod: &Value) -> Value {
    let [namespace, name, uid] =
        ["/metadata/namespace", "/metadata/name", "/metadata/uid"].map(|it| text(pod, it));
    let status = objects.reported.status(namespace, name, uid);
    let ips = status.into_iter().flat_map(|it| &it.pod_ips).map(|ip| json!({ "ip": ip }));
    let ips: Vec<Value> = ips.collect();
    let mut pod = pod.clone();
    pod["status"]["podIPs"] = json!(ips);
    pod
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use ambit_kubeapi::{Api, Call, Request};
    use http::Method;
    use tokio::sync::watch;

    use super::*;
    use crate::events::Events;
    use crate::node_labels::NodeLabels;
    use crate::objects::{Admission, Limited, Store};
    use crate::registry::Mirror;

    const PODS: &str = "/api/v1/namespaces/a/pods";
    const MAPS: &str = "/api/v1/namespaces/a/configmaps";

    /// A machine without nodes.
    struct Place {
        _root: tempfile::TempDir,
        layout: Layout,
        objects: Mutex<Objects>,
        changed: Notify,
        history: History,
    }

    impl Place {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let layout = Layout::new(root.path());
            let store = Store::create(layout.clone()).unwrap();
            let admission = Admission {
                images: ImageMap::default(),
                rootless: false,
                node_labels: NodeLabels::default(),
                limited: Limited::default(),
            };
            let reported = Mirror::new(&layout);
            let (events, settled) = (Events::default(), watch::Sender::default());
            let objects = Objects { store, reported, admission, mesh: None, events, settled };
            let (changed, history) = (Notify::new(), History::default());
            let objects = Mutex::new(objects);
            let mut place = Self { _root: root, layout, objects, changed, history };
            let namespace = json!({"metadata": {"name": "a"}});
            place.send(Method::POST, "/api/v1/namespaces", &namespace).unwrap();
            place
        }

        fn send(&mut self, method: Method, target: &str, body: &Value) -> Result<Written, Status> {
            self.send_as("application/merge-patch+json", (method, target), body)
        }

        /// A patch is of this type.
        fn send_as(
            &mut self,
            patch: &str,
            (method, target): (Method, &str),
            body: &Value,
        ) -> Result<Written, Status> {
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let resources = Kind::all().map(refusals::resource).collect();
            let api = Api { resources, server: String::new() };
            let patch = (method == Method::PATCH).then_some(patch);
            let request =
                Request { method: &method, path, query, accept: None, content_type: patch };
            let Call::Write(write) = api.call(&request)? else { panic!("{target} is a write") };
            let Self { layout, objects, changed, history, .. } = self;
            let kept = Kept { layout, objects, changed };
            let body = Some(body.clone()).filter(|it| !it.is_null());
            Writer { kept, history, write: &write }.carry_out(body, query)
        }

        fn check(&mut self, method: Method, target: &str, body: Value, expected: u16) -> Value {
            match self.send(method, target, &body) {
                Ok(written) => {
                    assert_eq!(written.code.as_u16(), expected, "{target}: {}", written.body);
                    written.body
                }
                Err(status) => {
                    assert_eq!(status.code().as_u16(), expected, "{target}: {status:?}");
                    status.to_json()
                }
            }
        }

        fn kept(&self, kind: Kind, name: &str) -> Option<Value> {
            let objects = self.objects.lock().unwrap();
            objects.store.object(&ObjectRef::new(kind, Some("a"), name)).cloned()
        }
    }

    fn map(text: &str) -> Value {
        json!({"metadata": {"name": "m"}, "data": {"k": text}})
    }

    #[test]
    fn an_object_is_written_as_the_commands_write_it() {
        let mut place = Place::new();
        let one = format!("{MAPS}/m");
        let made = place.check(Method::POST, MAPS, map("1"), 201);
        assert_eq!(place.kept(Kind::ConfigMap, "m").unwrap()["data"]["k"], "1");
        place.check(Method::POST, MAPS, map("1"), 409);
        let put = place.check(Method::PUT, &one, map("2"), 200);
        let versions = [&made, &put].map(|it| it["metadata"]["resourceVersion"].clone());
        assert_ne!(versions[0], versions[1]);
        let same = place.check(Method::PUT, &one, map("2"), 200);
        assert_eq!(same["metadata"]["resourceVersion"], versions[1], "nothing has changed");
        let late = json!({"metadata": {"resourceVersion": versions[0]}, "data": {}});
        place.check(Method::PATCH, &one, late, 409);
        place.check(Method::PATCH, &one, json!({"data": {"k": "3"}}), 200);
        assert_eq!(place.kept(Kind::ConfigMap, "m").unwrap()["data"]["k"], "3");
        place.check(Method::PUT, &format!("{MAPS}/other"), map("1"), 404);
        place.check(Method::PATCH, &format!("{MAPS}/other"), json!({}), 404);
        place.check(Method::POST, "/api/v1/namespaces/b/configmaps", map("1"), 404);
        let gone = place.check(Method::DELETE, &one, Value::Null, 200);
        assert_eq!(gone["details"]["uid"], made["metadata"]["uid"]);
        place.check(Method::DELETE, &one, Value::Null, 404);
    }

    #[test]
    fn a_dry_run_shows_what_would_be() {
        let mut place = Place::new();
        let shown = place.check(Method::POST, &format!("{MAPS}?dryRun=All"), map("1"), 201);
        assert_eq!(
            (&shown["data"]["k"], &shown["metadata"]["namespace"]),
            (&json!("1"), &json!("a"))
        );
        assert!(place.kept(Kind::ConfigMap, "m").is_none());
        let made = place.check(Method::POST, MAPS, map("1"), 201);
        let one = format!("{MAPS}/m?dryRun=All");
        let shown = place.check(Method::PATCH, &one, json!({"data": {"k": "2"}}), 200);
        assert_eq!(shown["data"]["k"], "2");
        assert_eq!(shown["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
        let same = place.check(Method::PATCH, &one, json!({}), 200);
        assert_eq!(same["metadata"]["uid"], made["metadata"]["uid"]);
        place.check(Method::DELETE, &one, Value::Null, 200);
        assert_eq!(place.kept(Kind::ConfigMap, "m").unwrap()["data"]["k"], "1");
    }

    #[test]
    fn what_is_only_doubtful_is_a_warning() {
        let mut place = Place::new();
        let pod = |more: Value| {
            let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [
                {"name": "m", "image": "i", "command": ["sleep", "1"]}]}});
            pod["spec"][more["field"].as_str().unwrap_or("x")] = more["value"].clone();
            pod
        };
        let misspelt = pod(json!({"field": "hostNetwerk", "value": true}));
        let strict = format!("{PODS}?fieldValidation=Strict");
        let refused = place.check(Method::POST, &strict, misspelt.clone(), 422);
        assert_eq!(refused["details"]["causes"][0]["field"], "spec.hostNetwerk");
        let Ok(written) = place.send(Method::POST, PODS, &misspelt) else { panic!("it is taken") };
        let has = |part: &str| written.warnings.iter().any(|it| it.contains(part));
        assert!(has("spec.hostNetwerk: the field does not exist"), "{:?}", written.warnings);
        let finalized = json!({"metadata": {"name": "f", "finalizers": ["a.example/b"]}});
        let Ok(map) = place.send(Method::POST, MAPS, &finalized) else { panic!("it is taken") };
        assert_eq!(map.warnings, [FINALIZERS]);
        let body = json!({"gracePeriodSeconds": 0});
        let Ok(written) = place.send(Method::DELETE, &format!("{PODS}/p"), &body) else {
            panic!("it goes");
        };
        assert!(written.warnings[0].contains("gracePeriodSeconds has no effect"));
        let body = json!({"propagationPolicy": "Foreground"});
        let Ok(written) = place.send(Method::DELETE, &format!("{MAPS}/f"), &body) else {
            panic!("it goes");
        };
        assert!(written.warnings[0].contains("Foreground is as Background"), "it is said");
    }

    #[test]
    fn many_are_deleted_at_once() {
        let mut place = Place::new();
        for (name, app) in [("one", "x"), ("two", "x"), ("three", "y")] {
            let map = json!({"metadata": {"name": name, "labels": {"app": app}}});
            place.check(Method::POST, MAPS, map, 201);
        }
        let of_x = format!("{MAPS}?labelSelector=app%3Dx");
        let dry = json!({"dryRun": ["All"]});
        place.check(Method::DELETE, &of_x, dry, 200);
        assert!(place.kept(Kind::ConfigMap, "one").is_some());
        place.check(Method::DELETE, &of_x, Value::Null, 200);
        let left = ["one", "two", "three"].map(|it| place.kept(Kind::ConfigMap, it).is_some());
        assert_eq!(left, [false, false, true]);
    }

    #[test]
    fn an_autoscaler_is_patched_as_clients_patch_built_in_kinds() {
        let mut place = Place::new();
        let all = "/apis/autoscaling/v2/namespaces/a/horizontalpodautoscalers";
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
        let spec = json!({"scaleTargetRef": target, "maxReplicas": 5});
        let made = json!({"metadata": {"name": "web"}, "spec": spec});
        let made = place.check(Method::POST, all, made, 201);
        let cpu = &made["spec"]["metrics"][0]["resource"];
        assert_eq!(
            (&cpu["name"], &cpu["target"]["averageUtilization"]),
            (&json!("cpu"), &json!(80))
        );
        let one = format!("{all}/web");
        let body = json!({"spec": {"minReplicas": 2, "maxReplicas": 7}});
        let strategic = "application/strategic-merge-patch+json";
        let written = place.send_as(strategic, (Method::PATCH, &one), &body).unwrap();
        let spec = &written.body["spec"];
        assert_eq!((&spec["minReplicas"], &spec["maxReplicas"]), (&json!(2), &json!(7)));
        assert_eq!(spec["scaleTargetRef"], target);
        let many = place.check(Method::PATCH, &one, json!({"spec": {"maxReplicas": 10_001}}), 422);
        assert_eq!(many["details"]["causes"][0]["field"], "spec.maxReplicas");
    }

    #[test]
    fn an_autoscaler_is_written_in_its_older_version() {
        let mut place = Place::new();
        let all = "/apis/autoscaling/v1/namespaces/a/horizontalpodautoscalers";
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
        let percent = |of: &Value| of["spec"]["targetCPUUtilizationPercentage"].clone();
        let kept = |place: &Place| {
            let kept = place.kept(Kind::HorizontalPodAutoscaler, "web").unwrap();
            let target = &kept["spec"]["metrics"][0]["resource"]["target"];
            assert_eq!(kept["apiVersion"], "autoscaling/v2", "{kept}");
            (target["averageUtilization"].clone(), kept["spec"]["behavior"].clone())
        };
        let spec = json!({"scaleTargetRef": target, "maxReplicas": 5,
            "targetCPUUtilizationPercentage": 40});
        let made = json!({"metadata": {"name": "web"}, "spec": spec});
        let made = place.check(Method::POST, all, made, 201);
        assert_eq!((&made["apiVersion"], percent(&made)), (&json!("autoscaling/v1"), json!(40)));
        assert_eq!(kept(&place), (json!(40), Value::Null));
        let one = format!("{all}/web");
        let behavior = json!({"scaleUp": {"stabilizationWindowSeconds": 9}});
        let body = json!({"spec": {"behavior": behavior}});
        place.check(Method::PATCH, &one.replace("v1", "v2"), body, 200);
        let body = json!({"spec": {"targetCPUUtilizationPercentage": 60}});
        let strategic = "application/strategic-merge-patch+json";
        let written = place.send_as(strategic, (Method::PATCH, &one), &body).unwrap();
        assert_eq!(
            (percent(&written.body), &written.body["spec"]["behavior"]),
            (json!(60), &Value::Null)
        );
        assert_eq!(kept(&place), (json!(60), behavior.clone()));
        let read = written.body;
        let same = place.check(Method::PUT, &one, read.clone(), 200);
        assert_eq!(same["metadata"]["resourceVersion"], read["metadata"]["resourceVersion"]);
        let apply = format!("{one}?fieldManager=helm&force=true");
        let body = json!({"spec": {"scaleTargetRef": target, "maxReplicas": 5,
            "targetCPUUtilizationPercentage": 70}});
        let applied = "application/apply-patch+yaml";
        let written = place.send_as(applied, (Method::PATCH, &apply), &body).unwrap();
        assert_eq!((percent(&written.body), kept(&place)), (json!(70), (json!(70), behavior)));
        let wrong = json!({"spec": {"targetCPUUtilizationPercentage": "x"}});
        place.check(Method::PATCH, &one, wrong, 422);
        place.check(Method::DELETE, &one, Value::Null, 200);
    }

    #[test]
    fn a_deployment_is_scaled_by_its_scale() {
        let mut place = Place::new();
        let deployments = "/apis/apps/v1/namespaces/a/deployments";
        let web = json!({"metadata": {"name": "web"}, "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [
                {"name": "m", "image": "i", "command": ["sleep", "1"]}]}}}});
        place.check(Method::POST, deployments, web, 201);
        let scale = format!("{deployments}/web/scale");
        let to = |count: i64| json!({"spec": {"replicas": count}});
        let replicas = |place: &Place| {
            place.kept(Kind::Deployment, "web").unwrap()["spec"]["replicas"].clone()
        };
        place.check(Method::PATCH, &format!("{scale}?dryRun=All"), to(3), 200);
        assert_eq!(replicas(&place), 1);
        let scaled = place.check(Method::PATCH, &scale, to(3), 200);
        assert_eq!((&scaled["spec"]["replicas"], replicas(&place)), (&json!(3), json!(3)));
        place.check(Method::PATCH, &scale, to(-1), 422);
        let many = place.check(Method::PATCH, &scale, to(20_000), 422);
        assert_eq!(many["details"]["causes"][0]["field"], "spec.replicas");
        place.check(Method::PATCH, &format!("{deployments}/none/scale"), to(1), 404);
    }
}
