//! Changes that are asked for: what a request to write means, and the object that it makes.
//!
//! Whether such an object may be there is not decided here: this file puts a body and the object
//! that is there together, as Kubernetes does, and refuses what does not fit the path.

use ambit_words::media_types::KUBERNETES_PROTOBUF;
use http::Method;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::apply::{self, Conflict, Writer, drop_own_metadata};
use crate::autoscalers;
use crate::defaults;
use crate::deletion::Deletion;
use crate::depth::{OBJECT_DEPTH_MAX, is_deeper};
use crate::form::Form;
use crate::patch::{self, PatchKind};
use crate::query::{self, Query};
use crate::request::{Listing, Request, Single, text};
use crate::resource::Resource;
use crate::scale;
use crate::status::{Cause, Status};

/// Longest `generateName` that is taken; what is longer is cut, as in Kubernetes.
const GENERATED_BASE_LEN_MAX: usize = 58;
/// Characters that are added to it.
pub const GENERATED_LEN: usize = 5;
/// Letters and digits of generated names: no vowels, and nothing that looks like another.
const GENERATED_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Longest name of who writes, and the name of who does not say it.
const MANAGER_LEN_MAX: usize = 128;
const UNKNOWN_MANAGER: &str = "unnamed";
/// What a client is told whose object has changed meanwhile.
const MODIFIED: &str = "the object has been modified; please apply your changes to the latest \
                        version and try again";

/// A change that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The kind of what changes.
    pub resource: Resource,
    /// Its namespace; empty for a kind without.
    pub namespace: String,
    /// What is to happen.
    pub action: Action,
    /// Whether it is only looked what would happen.
    pub is_dry_run: bool,
    /// What becomes of fields that the kind does not have.
    pub unknown_fields: UnknownFields,
    /// How the body is written.
    pub syntax: Syntax,
    /// Who writes, by its own words.
    pub(crate) manager: String,
    /// Whether who applies takes fields of others.
    pub(crate) is_forced: bool,
    pub(crate) api_version: &'static str,
    pub(crate) form: Form,
}

/// What is to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A new object is made.
    Create,
    /// An object becomes what the body says.
    Replace {
        /// Its name.
        name: String,
    },
    /// An object is changed.
    Patch {
        /// Its name.
        name: String,
        /// How the body says what changes.
        kind: PatchKind,
    },
    /// The number of an object's replicas is set, or changed by a patch of its `Scale`.
    Scale {
        /// Its name.
        name: String,
        /// How the body says what changes; `None` means that it is the whole `Scale`.
        patch: Option<PatchKind>,
    },
    /// An object is deleted.
    Delete {
        /// Its name.
        name: String,
    },
    /// A pod is deleted by who asks for its eviction.
    Evict {
        /// Its name.
        name: String,
    },
    /// All of these objects are deleted.
    DeleteAll(Box<Listing>),
}

/// What becomes of fields that a kind does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownFields {
    /// They are left out.
    Ignored,
    /// They are left out, and the client is warned.
    Warned,
    /// They are errors.
    Refused,
}

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// As JSON.
    Json,
    /// As YAML.
    Yaml,
    /// As Kubernetes' protobuf.
    Protobuf,
}

impl Write {
    /// Reads what is to happen to the objects of a kind.
    pub(crate) fn of_kind(
        listing: impl FnOnce() -> Result<Listing, Status>,
        (resource, api_version): (Resource, &'static str),
        namespace: Option<&str>,
        (request, query): (&Request<'_>, &Query<'_>),
    ) -> Result<Self, Status> {
        if resource.namespaced && namespace.is_none() {
            return Err(Status::not_allowed("name the namespace in the path"));
        }
        let action = match *request.method {
            Method::POST => Action::Create,
            // All of them at once are never meant.
            Method::DELETE if !resource.takes_deletion_of_all() => {
                return Err(Status::not_allowed("name the object in the path"));
            }
            Method::DELETE => Action::DeleteAll(Box::new(listing()?)),
            _ => return Err(Status::not_allowed("name the object in the path")),
        };
        let namespace = namespace.unwrap_or_default().to_owned();
        Self::new((resource, api_version), namespace, action, (request, query))
    }

    /// Reads what is to happen to one object.
    pub(crate) fn of_object(
        single: Single,
        request: &Request<'_>,
        query: &Query<'_>,
    ) -> Result<Self, Status> {
        let Single { resource, namespace, name, api_version, .. } = single;
        let action = match *request.method {
            Method::PUT => Action::Replace { name },
            Method::PATCH => {
                let kind = PatchKind::of(request.content_type, Some((api_version, resource.kind)))?;
                Action::Patch { name, kind }
            }
            Method::DELETE => Action::Delete { name },
            _ => return Err(Status::not_allowed("leave the name out of the path")),
        };
        Self::new((resource, api_version), namespace, action, (request, query))
    }

    /// Reads what is to happen to a part of an object, if the object has the part.
    pub(crate) fn of_part(
        single: &Single,
        part: &str,
        request: &Request<'_>,
        query: &Query<'_>,
    ) -> Result<Option<Self>, Status> {
        let Single { resource, namespace, name, api_version, .. } = single.clone();
        let action = match (part, request.method) {
            ("scale", &Method::PUT) if resource.has_scale() => Action::Scale { name, patch: None },
            ("scale", &Method::PATCH) if resource.has_scale() => {
                let patch = Some(PatchKind::of(request.content_type, None)?);
                Action::Scale { name, patch }
            }
            ("eviction", &Method::POST) if resource.is_pod() => Action::Evict { name },
            ("eviction" | "binding", _) if resource.is_pod() => {
                return Err(Status::not_allowed("pods are placed by the machine"));
            }
            ("scale", _) if resource.has_scale() => {
                return Err(Status::not_allowed("use GET, PUT or PATCH"));
            }
            ("status", _) => {
                return Err(Status::not_allowed("the status is what the server reports"));
            }
            _ => return Ok(None),
        };
        Self::new((resource, api_version), namespace, action, (request, query)).map(Some)
    }

    fn new(
        (resource, api_version): (Resource, &'static str),
        namespace: String,
        action: Action,
        (request, query): (&Request<'_>, &Query<'_>),
    ) -> Result<Self, Status> {
        if let Some(why) = resource.only_read {
            return Err(Status::not_allowed(why));
        }
        let is_apply = matches!(action, Action::Patch { kind: PatchKind::Apply, .. });
        let manager = query.text("fieldManager");
        if manager.is_some_and(|it| it.len() > MANAGER_LEN_MAX) {
            let message = format!("fieldManager: it has more than {MANAGER_LEN_MAX} characters");
            return Err(Status::bad_request(message));
        }
        if is_apply && manager.is_none() {
            return Err(Status::bad_request("fieldManager: it is required for apply patch"));
        }
        if !is_apply && query.text("force").is_some() {
            return Err(Status::bad_request("force: it may not be specified for non-apply patch"));
        }
        let syntax = match action {
            Action::Patch { kind: PatchKind::Apply, .. } => Syntax::Yaml,
            Action::Patch { .. } | Action::Scale { patch: Some(_), .. } => Syntax::Json,
            _ => Syntax::of(request.content_type)?,
        };
        Ok(Self {
            resource,
            namespace,
            action,
            is_dry_run: query::is_dry_run(query.all("dryRun"))?,
            unknown_fields: UnknownFields::of(query.text("fieldValidation"))?,
            syntax,
            manager: manager.unwrap_or(UNKNOWN_MANAGER).to_owned(),
            is_forced: query.flag("force"),
            api_version,
            form: Form::of(request.accept, query.text("includeObject"))?,
        })
    }

    /// The object as it is answered with.
    pub fn single(&self, name: &str) -> Single {
        Single {
            resource: self.resource,
            namespace: self.namespace.clone(),
            name: name.to_owned(),
            api_version: self.api_version,
            form: self.form,
        }
    }

    /// The object that a body makes. `random` is for a name that the client leaves to the server.
    ///
    /// # Errors
    /// The body does not fit the path.
    pub fn created(
        &self,
        body: Value,
        random: [u8; GENERATED_LEN],
        now: Timestamp,
    ) -> Result<Value, Status> {
        let mut object = self.fitting(body)?;
        if text(&object, "/metadata/resourceVersion").is_some_and(|it| !it.is_empty()) {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(Status::bad_request(message));
        }
        let base = text(&object, "/metadata/generateName").filter(|it| !it.is_empty());
        let is_named = text(&object, "/metadata/name").is_some_and(|it| !it.is_empty());
        if let Some(base) = base.filter(|_| !is_named) {
            let base: String = base.chars().take(GENERATED_BASE_LEN_MAX).collect();
            object["metadata"]["name"] = json!(base + &generated(random));
        }
        if text(&object, "/metadata/name").is_none_or(str::is_empty) {
            let message = "name or generateName is required".to_owned();
            let cause = Cause { field: "metadata.name".to_owned(), message };
            return Err(Status::invalid(&self.resource, "", &[cause]));
        }
        drop_own_metadata(&mut object);
        autoscalers::renew(&mut object, None);
        apply::note_update(None, &mut object, self.writer(now));
        Ok(object)
    }

    fn writer(&self, now: Timestamp) -> Writer<'_> {
        Writer { manager: &self.manager, now }
    }

    /// What an object becomes of which a client says all that it wants; `None` is not there yet.
    ///
    /// # Errors
    /// The body does not fit the path, or others have fields that would change.
    pub fn applied(
        &self,
        name: &str,
        current: Option<&Value>,
        body: Value,
        now: Timestamp,
    ) -> Result<Value, Status> {
        let wanted = self.fitting(body)?;
        if wanted.pointer("/metadata/managedFields").is_some_and(|it| *it != json!([])) {
            return Err(Status::bad_request("metadata.managedFields must be nil"));
        }
        self.check_identity(name, current.unwrap_or(&Value::Null), &wanted)?;
        let shown = current.map(|it| self.in_version(it));
        let object = apply::apply(shown.as_ref(), &wanted, self.writer(now), self.is_forced);
        let mut object = object.map_err(|conflicts| {
            Status::apply_conflict(&conflicts.iter().map(Conflict::cause).collect::<Vec<_>>())
        })?;
        let owners = object["metadata"]["managedFields"].take();
        drop_own_metadata(&mut object);
        object["metadata"]["name"] = json!(name);
        object["metadata"]["managedFields"] = owners;
        let mut object = self.fitting(object)?;
        autoscalers::renew(&mut object, current);
        Ok(object)
    }

    /// What an object becomes that a body replaces.
    ///
    /// # Errors
    /// The body does not fit the path, or is of another object than the one that is there.
    pub fn replaced(
        &self,
        name: &str,
        current: &Value,
        body: Value,
        now: Timestamp,
    ) -> Result<Value, Status> {
        let object = self.fitting(body)?;
        self.changed(name, current, object, now)
    }

    /// What a patch makes of an object.
    ///
    /// # Errors
    /// The patch does not fit the object, or makes another one of it.
    pub fn patched(
        &self,
        (name, kind): (&str, PatchKind),
        current: &Value,
        body: Value,
        now: Timestamp,
    ) -> Result<Value, Status> {
        // The client has seen the defaults, and may test or move them.
        let mut shown = self.in_version(current);
        defaults::fill(&self.resource, &mut shown);
        let object = patch::apply(kind, shown, body)?;
        let object = self.fitting(object)?;
        self.changed(name, current, object, now)
    }

    /// An object that is there, in the version that the path names.
    fn in_version(&self, current: &Value) -> Value {
        let mut object = current.clone();
        object["kind"] = json!(self.resource.kind);
        object["apiVersion"] = json!(self.api_version);
        autoscalers::age(&mut object);
        object
    }

    /// The replicas that a body asks for.
    ///
    /// # Errors
    /// The body is no `Scale` of the object that is there.
    pub fn scaled(
        &self,
        (name, patch): (&str, Option<PatchKind>),
        current: &Value,
        body: Value,
    ) -> Result<u32, Status> {
        let wanted = match patch {
            Some(kind) => patch::apply(kind, scale::of(current), body)?,
            None => body,
        };
        self.check_identity(name, current, &wanted)?;
        scale::replicas(&self.resource, name, &wanted)
    }

    /// What a deletion depends on.
    ///
    /// # Errors
    /// The body is of another form, or asks for what the server does not do.
    pub fn deletion(&self, body: Option<Value>, query: &str) -> Result<Deletion, Status> {
        let body = match (&self.action, body) {
            (Action::Evict { .. }, Some(mut body)) => match body.get_mut("deleteOptions") {
                Some(Value::Null) | None => None,
                Some(options) => Some(options.take()),
            },
            (_, body) => body,
        };
        let mut deletion = Deletion::read(body, &Query::parse(query))?;
        let is_conditional = deletion.uid.is_some() || deletion.version.is_some();
        if is_conditional && matches!(self.action, Action::DeleteAll(_)) {
            let message = "preconditions: they are of one object; name it in the path";
            return Err(Status::bad_request(message));
        }
        deletion.is_dry_run |= self.is_dry_run;
        Ok(deletion)
    }

    /// An object of the kind and place that the path names.
    fn fitting(&self, mut object: Value) -> Result<Value, Status> {
        let Value::Object(fields) = &mut object else {
            return Err(Status::bad_request("the body of the request is no object"));
        };
        if is_deeper(fields, OBJECT_DEPTH_MAX) {
            let levels = OBJECT_DEPTH_MAX;
            let message = format!("the object is nested more than {levels} levels deep");
            return Err(Status::bad_request(message));
        }
        for (field, expected) in [("apiVersion", self.api_version), ("kind", self.resource.kind)] {
            let given = fields.entry(field).or_insert_with(|| json!(expected));
            if given != expected {
                let message = format!(
                    "the {field} in the data ({}) does not match the expected {field} ({expected})",
                    given.as_str().unwrap_or_default()
                );
                return Err(Status::bad_request(message));
            }
        }
        let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
        if metadata.is_null() {
            *metadata = Value::Object(Map::new());
        }
        let Value::Object(metadata) = metadata else {
            return Err(Status::bad_request("metadata is no map"));
        };
        match metadata.get("namespace").and_then(Value::as_str).unwrap_or_default() {
            given if given == self.namespace => {}
            "" => drop(metadata.insert("namespace".to_owned(), json!(self.namespace))),
            _ => {
                let message = "the namespace of the provided object does not match the namespace \
                               sent on the request";
                return Err(Status::bad_request(message));
            }
        }
        Ok(object)
    }

    fn changed(
        &self,
        name: &str,
        current: &Value,
        mut object: Value,
        now: Timestamp,
    ) -> Result<Value, Status> {
        self.check_identity(name, current, &object)?;
        object["metadata"]["name"] = json!(name);
        drop_own_metadata(&mut object);
        autoscalers::renew(&mut object, Some(current));
        defaults::forget(&self.resource, &mut object, current);
        apply::note_update(Some(current), &mut object, self.writer(now));
        Ok(object)
    }

    /// Whether what is to be written is of the object that is there, as the client has read it.
    fn check_identity(&self, name: &str, current: &Value, wanted: &Value) -> Result<(), Status> {
        match text(wanted, "/metadata/name").filter(|it| !it.is_empty()) {
            Some(other) if other != name => {
                let message = format!(
                    "the name of the object ({other}) does not match the name on the URL ({name})"
                );
                return Err(Status::bad_request(message));
            }
            _ => {}
        }
        let said = |field| text(wanted, field).filter(|it| !it.is_empty());
        self.check(name, current, said("/metadata/uid"), said("/metadata/resourceVersion"))
    }

    fn check(
        &self,
        name: &str,
        current: &Value,
        uid: Option<&str>,
        version: Option<&str>,
    ) -> Result<(), Status> {
        let there = text(current, "/metadata/uid");
        if let Some(uid) = uid.filter(|it| Some(*it) != there) {
            let there = there.unwrap_or_default();
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {there}"
            );
            return Err(Status::conflict(&self.resource, name, &why));
        }
        if version.is_some_and(|it| Some(it) != text(current, "/metadata/resourceVersion")) {
            return Err(Status::conflict(&self.resource, name, MODIFIED));
        }
        Ok(())
    }

    /// Whether an object is the one that is to be deleted.
    ///
    /// # Errors
    /// It is another one of that name, or has changed.
    pub fn check_deletion(
        &self,
        name: &str,
        current: &Value,
        deletion: &Deletion,
    ) -> Result<(), Status> {
        self.check(name, current, deletion.uid.as_deref(), deletion.version.as_deref())
    }
}

impl UnknownFields {
    fn of(word: Option<&str>) -> Result<Self, Status> {
        match word {
            Some("Ignore") => Ok(Self::Ignored),
            None | Some("Warn") => Ok(Self::Warned),
            Some("Strict") => Ok(Self::Refused),
            Some(other) => Err(Status::bad_request(format!(
                "fieldValidation: {other:?} is none of Ignore, Warn and Strict"
            ))),
        }
    }
}

impl Syntax {
    /// By the header Content-Type.
    pub(crate) fn of(content_type: Option<&str>) -> Result<Self, Status> {
        let name = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
        match name {
            "" | "application/json" | "*/*" => Ok(Self::Json),
            "application/yaml" => Ok(Self::Yaml),
            KUBERNETES_PROTOBUF => Ok(Self::Protobuf),
            other => Err(Status::unsupported_media_type(&format!(
                "{other:?} is not read, write application/json or application/yaml"
            ))),
        }
    }
}

fn generated(random: [u8; GENERATED_LEN]) -> String {
    let letter =
        |byte: u8| char::from(GENERATED_LETTERS[usize::from(byte) % GENERATED_LETTERS.len()]);
    random.map(letter).iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Api, Call};

    fn api() -> Api {
        let resource = |kind, plural, api_version| Resource {
            kind,
            plural,
            namespaced: true,
            api_versions: api_version,
            only_read: None,
        };
        let resources = vec![
            resource("Pod", "pods", &["v1"]),
            resource("Deployment", "deployments", &["apps/v1"]),
            resource("Gizmo", "gizmos", &["autoscaling/v1", "autoscaling/v2"]),
        ];
        Api { resources, server: "test".to_owned() }
    }

    fn write(method: &Method, path: &str) -> Write {
        let content_type = match *method {
            Method::PATCH => Some(patch::STRATEGIC_TYPE),
            _ => None,
        };
        let request = Request { method, path, query: "", accept: None, content_type };
        match api().call(&request).expect(path) {
            Call::Write(write) => *write,
            other => panic!("{path} is no write but {other:?}"),
        }
    }

    fn now() -> Timestamp {
        "2026-01-31T12:00:00Z".parse().expect("a time")
    }

    /// The object without what says whose its fields are.
    fn without_owners(object: Result<Value, Status>) -> Result<Value, Status> {
        object.map(|mut object| {
            let metadata = object["metadata"].as_object_mut().expect("a map");
            metadata.remove("managedFields");
            object
        })
    }

    fn message(status: &Status) -> String {
        status.to_json()["message"].as_str().unwrap_or_default().to_owned()
    }

    fn check(found: Result<Value, Status>, expected: Result<Value, (u16, &str)>) {
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(status), Err((code, part))) => {
                assert_eq!(status.code().as_u16(), code, "{status:?}");
                assert!(message(&status).contains(part), "{}", message(&status));
            }
            (found, expected) => panic!("{found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn a_body_fits_its_path() {
        let post = write(&Method::POST, "/api/v1/namespaces/a/pods");
        let made = |body: Value| without_owners(post.created(body, [0, 1, 2, 3, 4], now()));
        let named = |name: &str| {
            let metadata = json!({"name": name, "namespace": "a"});
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
        };
        check(made(json!({"metadata": {"name": "web", "uid": "u"}})), Ok(named("web")));
        let generated = made(json!({"metadata": {"generateName": "web-"}}));
        assert_eq!(generated.map(|it| it["metadata"]["name"].clone()), Ok(json!("web-bcdfg")));
        check(made(json!({})), Err((422, "name or generateName is required")));
        check(made(json!([])), Err((400, "is no object")));
        check(made(json!({"kind": "Job"})), Err((400, "the kind in the data (Job)")));
        let other = json!({"metadata": {"name": "web", "namespace": "b"}});
        check(made(other), Err((400, "the namespace of the provided object")));
        let versioned = json!({"metadata": {"name": "web", "resourceVersion": "3"}});
        check(made(versioned), Err((400, "resourceVersion should not be set")));
    }

    fn deployment() -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "a", "uid": "u", "resourceVersion": "7"},
            "spec": {"template": {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}}})
    }

    #[test]
    fn who_has_read_another_version_is_refused() {
        let put = write(&Method::PUT, "/apis/apps/v1/namespaces/a/deployments/web");
        let with = |metadata: Value| {
            let body = json!({ "metadata": metadata, "spec": {} });
            without_owners(put.replaced("web", &deployment(), body, now()))
        };
        let expected = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "a"}, "spec": {}});
        check(with(json!({"resourceVersion": "7", "uid": "u"})), Ok(expected.clone()));
        check(with(json!({"name": "web"})), Ok(expected));
        check(with(json!({"resourceVersion": "6"})), Err((409, "has been modified")));
        check(with(json!({"uid": "v"})), Err((409, "UID in precondition: v")));
        check(with(json!({"name": "b"})), Err((400, "does not match the name on the URL")));
    }

    #[test]
    fn a_patch_changes_what_is_there() {
        let of = write(&Method::PATCH, "/apis/apps/v1/namespaces/a/deployments/web");
        let patched =
            |kind, patch| without_owners(of.patched(("web", kind), &deployment(), patch, now()));
        let image = json!({"spec": {"template": {"spec":
            {"containers": [{"name": "b", "image": "i"}]}}}});
        let containers = json!([{"name": "a"}, {"name": "b", "image": "i"}]);
        let found = patched(PatchKind::Strategic, image).expect("it fits");
        assert_eq!(found["spec"]["template"]["spec"]["containers"], containers);
        assert_eq!(found["metadata"], json!({"name": "web", "namespace": "a"}));
        let old = json!({"metadata": {"resourceVersion": "6"}});
        check(patched(PatchKind::Merge, old), Err((409, "has been modified")));
        let other = json!([{"op": "replace", "path": "/kind", "value": "Pod"}]);
        check(patched(PatchKind::Json, other), Err((400, "the kind in the data (Pod)")));
        let nothing = json!([{"op": "add", "path": "", "value": 1}]);
        check(patched(PatchKind::Json, nothing), Err((400, "is no object")));
    }

    #[test]
    fn who_applies_says_who_it_is() {
        let path = "/apis/apps/v1/namespaces/a/deployments/web";
        let of = |query: &str| {
            let (method, content_type) = (&Method::PATCH, Some(patch::APPLY_TYPE));
            let request = Request { method, path, query, accept: None, content_type };
            api().call(&request).map(|call| match call {
                Call::Write(write) => *write,
                other => panic!("it is no write but {other:?}"),
            })
        };
        let refused = of("").expect_err("who?");
        assert!(message(&refused).contains("fieldManager"), "{refused:?}");
        let long = format!("fieldManager={}", "x".repeat(200));
        assert_eq!(of(&long).expect_err("too long").code().as_u16(), 400);
        let helm = of("fieldManager=helm").expect("helm");
        assert_eq!(helm.syntax, Syntax::Yaml);
        let body = |replicas: u32| json!({"spec": {"replicas": replicas}});
        let made = helm.applied("web", None, body(1), now()).expect("it is new");
        assert_eq!(made["metadata"]["name"], "web");
        let other = of("fieldManager=other").expect("other");
        let refused = other.applied("web", Some(&made), body(2), now()).expect_err("helm's");
        let expected = "Apply failed with 1 conflict: conflict with \"helm\": .spec.replicas";
        assert_eq!((refused.code().as_u16(), &*message(&refused)), (409, expected));
        let forced = of("fieldManager=other&force=true").expect("other");
        let taken = forced.applied("web", Some(&made), body(2), now()).expect("it is forced");
        assert_eq!(taken["spec"]["replicas"], 2);
        let with = json!({"metadata": {"managedFields": [{}]}});
        let refused = helm.applied("web", None, with, now()).expect_err("not the client's");
        assert!(message(&refused).contains("must be nil"), "{refused:?}");
        let stray = "force=true";
        let request =
            Request { method: &Method::PUT, path, query: stray, accept: None, content_type: None };
        assert_eq!(api().call(&request).expect_err("no apply").code().as_u16(), 400);
    }

    #[test]
    fn what_is_applied_may_be_of_a_later_version() {
        let path = "/apis/autoscaling/v2/namespaces/a/gizmos/web";
        let (method, content_type) = (&Method::PATCH, Some(patch::APPLY_TYPE));
        let query = "fieldManager=helm";
        let call = api().call(&Request { method, path, query, accept: None, content_type });
        let Ok(Call::Write(write)) = call else { panic!("it is no write but {call:?}") };
        let body = |count: u32| json!({"apiVersion": "autoscaling/v2", "spec": {"count": count}});
        let mut there = write.applied("web", None, body(1), now()).expect("it is new");
        there["apiVersion"] = json!("autoscaling/v1");
        let again = write.applied("web", Some(&there), body(2), now()).expect("it is there");
        assert_eq!(
            (&again["apiVersion"], &again["spec"]["count"]),
            (&body(2)["apiVersion"], &json!(2))
        );
    }

    #[test]
    fn a_scale_is_put_or_patched() {
        let of = write(&Method::PUT, "/apis/apps/v1/namespaces/a/deployments/web/scale");
        let scaled = |patch, body| of.scaled(("web", patch), &deployment(), body);
        let merge = Some(PatchKind::Merge);
        assert_eq!(scaled(merge, json!({"spec": {"replicas": 4}})), Ok(4));
        let mut whole = scale::of(&deployment());
        whole["spec"]["replicas"] = json!(2);
        assert_eq!(scaled(None, whole.clone()), Ok(2));
        whole["metadata"]["resourceVersion"] = json!("6");
        assert_eq!(scaled(None, whole).map_err(|it| it.code().as_u16()), Err(409));
    }

    #[test]
    fn a_deletion_says_of_what_and_how() {
        let of = write(&Method::DELETE, "/api/v1/namespaces/a/pods/web");
        let current = json!({"metadata": {"uid": "u", "resourceVersion": "7"}});
        let check = |body: Option<Value>, query: &str, expected: Result<bool, (u16, &str)>| {
            let found = of.deletion(body, query).and_then(|it| {
                of.check_deletion("web", &current, &it)?;
                Ok(it.is_dry_run)
            });
            let found = found.map_err(|it| (it.code().as_u16(), message(&it)));
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(*found, expected),
                (Err((code, said)), Err((expected, part))) => {
                    assert!(*code == expected && said.contains(part), "{said}");
                }
                _ => panic!("{found:?}"),
            }
        };
        check(None, "", Ok(false));
        check(None, "gracePeriodSeconds=0&propagationPolicy=Foreground", Ok(false));
        check(None, "gracePeriodSeconds=x", Err((400, "is not a number")));
        check(None, "propagationPolicy=Orphan", Err((400, "use Background")));
        check(None, "orphanDependents=true", Err((400, "use Background")));
        check(Some(json!({"propagationPolicy": "Background"})), "", Ok(false));
        check(Some(json!({"propagationPolicy": "Some"})), "", Err((400, "none of Background")));
        check(Some(json!({"dryRun": ["All"]})), "", Ok(true));
        check(Some(json!({"dryRun": ["Some"]})), "", Err((400, "must be \"All\"")));
        check(Some(json!({"kind": "Pod"})), "", Err((400, "no DeleteOptions")));
        let only = |what: Value| Some(json!({ "preconditions": what }));
        check(only(json!({"uid": "u", "resourceVersion": "7"})), "", Ok(false));
        check(only(json!({"uid": "v"})), "", Err((409, "UID in precondition: v")));
        check(only(json!({"resourceVersion": "6"})), "", Err((409, "has been modified")));
        let evict = write(&Method::POST, "/api/v1/namespaces/a/pods/web/eviction");
        let body = json!({"kind": "Eviction", "deleteOptions": {"dryRun": ["All"]}});
        assert_eq!(evict.deletion(Some(body), "").map(|it| it.is_dry_run), Ok(true));
    }

    #[test]
    fn a_deletion_of_many_depends_on_nothing() {
        let of = write(&Method::DELETE, "/api/v1/namespaces/a/pods");
        for what in [json!({"uid": "u"}), json!({"resourceVersion": "7"})] {
            let refused = of.deletion(Some(json!({ "preconditions": what })), "");
            let refused = refused.expect_err("of which of them?");
            assert_eq!(refused.code().as_u16(), 400);
            assert!(message(&refused).contains("preconditions"), "{refused:?}");
        }
        assert!(of.deletion(Some(json!({"preconditions": {}})), "").is_ok());
    }

    #[test]
    fn what_is_nested_too_deep_is_refused() {
        let nested = |levels: usize| (1..levels).fold(json!({}), |it, _| json!({ "x": it }));
        let post = write(&Method::POST, "/api/v1/namespaces/a/pods");
        let made = |levels: usize| {
            let mut body = nested(levels);
            body["metadata"] = json!({"name": "web"});
            post.created(body, [0; 5], now()).map(drop)
        };
        assert_eq!(made(OBJECT_DEPTH_MAX), Ok(()));
        let refused = made(OBJECT_DEPTH_MAX + 1).expect_err("too deep");
        assert_eq!(refused.code().as_u16(), 400);
        assert!(message(&refused).contains("more than 50 levels deep"), "{refused:?}");
        let of = write(&Method::PATCH, "/apis/apps/v1/namespaces/a/deployments/web");
        let mut there = deployment();
        there["spec"] = nested(OBJECT_DEPTH_MAX - 1);
        let deeper = json!([{"op": "move", "from": "/spec", "path": "/y"},
            {"op": "add", "path": "/spec", "value": {}},
            {"op": "move", "from": "/y", "path": "/spec/y"}]);
        let refused = of.patched(("web", PatchKind::Json), &there, deeper, now());
        assert!(message(&refused.expect_err("too deep")).contains("levels deep"));
    }
}
