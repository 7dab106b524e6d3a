//! Manifests: the YAML and JSON that users write, read strictly.
//!
//! [`load`] turns files, directories and streams into typed objects, or into a list of all
//! problems, each with file, line, field and remedy: if anything is wrong it returns nothing to
//! apply. [`Manifests::check`] then checks how the objects refer to one another and to existing
//! objects. Nothing here may drop an object silently: a kind that Ambit does not read is named in a
//! warning.

mod autoscaling;
pub mod backend_tls;
pub mod canary;
pub(crate) mod check;
mod decode;
pub mod destination_rule;
mod document;
mod finding;
pub mod gateway;
pub mod honoured;
pub mod istio;
mod matching;
pub mod mesh_config;
mod name;
mod object;
pub mod policy;
mod quantity;
pub mod remarks;
pub mod routes;
pub mod routing;
pub mod selector;
pub mod slice;
mod source;
mod spelling;
pub mod telemetry;
pub mod traffic;
pub mod traffic_policy;
mod type_errors;
mod unread;
mod validate;
pub mod virtual_service;
pub mod waypoint;
mod workloads;
mod written;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use self::document::Document;
use self::finding::{Issue, Issues, Path};
use self::source::Content;
use self::unread::{LeftOut, Unread};

pub use ambit_kustomize::is_kustomization;

pub use self::check::BUILT_IN_NAMESPACES;
pub use self::finding::{Errors, Finding, Location};
pub use self::finding::{Issues as ObjectIssues, Path as FieldPath};
pub use self::name::ObjectName;
pub use self::object::{Kind, Object, ObjectKey, Typed};
pub use self::quantity::quantity;
pub use self::spelling::{meant_label, nearest};
pub use self::unread::Unenforced;
pub use self::validate::names;
pub use self::workloads::{Workload, WorkloadKind, Workloads, load_workloads};
pub use self::written::{UnknownFields, one_value, written};

/// Where manifests are read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A file, or a directory whose `*.yaml`, `*.yml` and `*.json` are read in order of their
    /// names. A directory that has a kustomization is built.
    Path(PathBuf),
    /// A directory that must have a kustomization.
    Kustomization(PathBuf),
    /// Standard input, `-` on the command line.
    Stdin,
    /// Text that is already in memory, with the name that messages give it.
    Text {
        /// What messages call it.
        name: String,
        /// The manifests.
        text: String,
    },
}

/// All objects of an input, each valid on its own.
#[derive(Debug, Default)]
pub struct Manifests {
    /// The objects in the order of the input.
    pub objects: Vec<Object>,
    /// What the user should know before applying them.
    pub warnings: Vec<Finding>,
}

/// The objects that an input names, to delete them.
#[derive(Debug, Default)]
pub struct Names {
    /// The objects in the order of the input, each once.
    pub keys: Vec<ObjectKey>,
    /// What the user should know before deleting them.
    pub warnings: Vec<Finding>,
}

/// Reads `inputs`, all or nothing.
pub fn load(inputs: &[Input]) -> Result<Manifests, Errors> {
    load_as(inputs, Unenforced::Refused)
}

/// Reads `inputs`, all or nothing; `unenforced` says what happens to kinds that would enforce
/// something elsewhere.
pub fn load_as(inputs: &[Input], unenforced: Unenforced) -> Result<Manifests, Errors> {
    load_in(inputs, None, unenforced)
}

/// The same; objects that name no namespace are of `namespace`, and none may name another.
pub fn load_in(
    inputs: &[Input],
    namespace: Option<&str>,
    unenforced: Unenforced,
) -> Result<Manifests, Errors> {
    let namespace = namespace.map(str::to_owned);
    let mut loader = Loader { namespace, unenforced, ..Loader::default() };
    loader.inputs(inputs, Loader::document);
    loader.finish(|loader| Manifests { objects: loader.objects, warnings: loader.warnings })
}

/// Reads which objects `inputs` name, all or nothing. As for kubectl, apiVersion, kind, name and
/// namespace are enough, and the rest is ignored. `namespace` is as for [`load_in`].
pub fn load_names(inputs: &[Input], namespace: Option<&str>) -> Result<Names, Errors> {
    let (namespace, unenforced) = (namespace.map(str::to_owned), Unenforced::LeftOut);
    let mut loader = Loader { namespace, unenforced, ..Loader::default() };
    loader.inputs(inputs, Loader::name);
    loader.finish(|loader| Names { keys: loader.names, warnings: loader.warnings })
}

/// Decodes an object that was stored by Ambit or a Kubernetes API server: unknown fields are newer
/// than this program and not the user's mistake.
pub fn stored(kind: Kind, json: &[u8]) -> Result<Typed, serde_json::Error> {
    fn typed<T: serde::de::DeserializeOwned>(json: &[u8]) -> Result<Arc<T>, serde_json::Error> {
        serde_json::from_slice(json).map(Arc::new)
    }
    Ok(match kind {
        Kind::Namespace => Typed::Namespace(typed(json)?),
        Kind::Node => Typed::Node(typed(json)?),
        Kind::ServiceAccount => Typed::ServiceAccount(typed(json)?),
        Kind::ConfigMap => Typed::ConfigMap(typed(json)?),
        Kind::Secret => Typed::Secret(typed(json)?),
        Kind::Service => Typed::Service(typed(json)?),
        Kind::Pod => Typed::Pod(typed(json)?),
        Kind::Deployment => Typed::Deployment(typed(json)?),
        Kind::StatefulSet => Typed::StatefulSet(typed(json)?),
        Kind::DaemonSet => Typed::DaemonSet(typed(json)?),
        Kind::Job => Typed::Job(typed(json)?),
        Kind::CronJob => Typed::CronJob(typed(json)?),
        Kind::PersistentVolumeClaim => Typed::PersistentVolumeClaim(typed(json)?),
        Kind::PodDisruptionBudget => Typed::PodDisruptionBudget(typed(json)?),
        Kind::HorizontalPodAutoscaler => Typed::HorizontalPodAutoscaler(typed(json)?),
        Kind::EndpointSlice => Typed::EndpointSlice(typed(json)?),
        Kind::ReferenceGrant => Typed::ReferenceGrant(typed(json)?),
        Kind::HttpRoute => Typed::HttpRoute(typed(json)?),
        Kind::GrpcRoute => Typed::GrpcRoute(typed(json)?),
        Kind::TlsRoute => Typed::TlsRoute(typed(json)?),
        Kind::TcpRoute => Typed::TcpRoute(typed(json)?),
        Kind::UdpRoute => Typed::UdpRoute(typed(json)?),
        Kind::DestinationRule => Typed::DestinationRule(typed(json)?),
        Kind::VirtualService => Typed::VirtualService(typed(json)?),
        Kind::BackendTlsPolicy => Typed::BackendTlsPolicy(typed(json)?),
        Kind::TrafficPolicy => Typed::TrafficPolicy(typed(json)?),
        Kind::Telemetry => Typed::Telemetry(typed(json)?),
        Kind::AuthorizationPolicy => Typed::AuthorizationPolicy(typed(json)?),
        Kind::PeerAuthentication => Typed::PeerAuthentication(typed(json)?),
        Kind::RequestAuthentication => Typed::RequestAuthentication(typed(json)?),
        Kind::ServiceEntry => Typed::ServiceEntry(typed(json)?),
        Kind::WorkloadEntry => Typed::WorkloadEntry(typed(json)?),
        Kind::GatewayClass => Typed::GatewayClass(typed(json)?),
        Kind::Gateway => Typed::Gateway(typed(json)?),
        Kind::ListenerSet => Typed::ListenerSet(typed(json)?),
    })
}

/// The JSON to store of what a manifest names, which was judged before: completed, without nulls
/// and `status`.
///
/// # Errors
/// It is not of the shape of its kind.
pub fn whole(kind: Kind, mut named: Value) -> Result<Value, serde_json::Error> {
    autoscaling::complete(kind, &mut named);
    if let Some(fields) = named.as_object_mut() {
        fields.remove("status");
    }
    let typed = stored(kind, named.to_string().as_bytes())?;
    Ok(decode::canonical(&merge_string_data(typed)))
}

#[derive(Default)]
struct Loader {
    objects: Vec<Object>,
    names: Vec<ObjectKey>,
    workloads: Workloads,
    places: HashMap<ObjectKey, Location>,
    warnings: Vec<Finding>,
    errors: Vec<Finding>,
    left_out: LeftOut,
    unenforced: Unenforced,
    /// That of objects that name none; `default` without it.
    namespace: Option<String>,
}

impl Loader {
    fn inputs(&mut self, inputs: &[Input], read: fn(&mut Self, &str, Document)) {
        for input in inputs {
            match source::read(input) {
                Ok(of_input) => {
                    self.warnings.extend(of_input.warnings);
                    for source in of_input.sources {
                        self.source(&source.name, source.content, read);
                    }
                }
                Err(finding) => self.errors.push(*finding),
            }
        }
    }

    fn source(&mut self, file: &str, content: Content, read: fn(&mut Self, &str, Document)) {
        match content {
            Content::Text(text) => self.text(file, &text, read),
            Content::Built(value) => read(self, file, Document::without_lines(value)),
        }
    }

    fn text(&mut self, file: &str, text: &str, read: fn(&mut Self, &str, Document)) {
        match document::parse(text) {
            Ok(documents) => {
                for document in documents.into_iter().flat_map(Document::flatten) {
                    read(self, file, document);
                }
            }
            Err(error) => self.errors.push(Finding {
                location: Location { file: file.to_owned(), line: error.line },
                object: String::new(),
                field: String::new(),
                what: format!("not YAML: {}", error.what),
                remedy: "correct the syntax at this place".to_owned(),
            }),
        }
    }

    fn document(&mut self, file: &str, mut document: Document) {
        let mut issues = Issues::default();
        let kind = self.kind(file, &document, &mut issues);
        self.place(kind, &mut document.value, &mut issues);
        let object = kind.and_then(|kind| read_object(kind, &document, &mut issues));
        self.report(file, &document, issues);
        let Some(Contents { typed, json, named }) = object else { return };
        let key = typed.key();
        let location = Location { file: file.to_owned(), line: document.lines.line("") };
        if let Some(first) = self.places.insert(key.clone(), location.clone()) {
            self.errors.push(twice(location.clone(), key.to_string(), &first));
        }
        let lines = document.lines;
        self.objects.push(Object { key, typed, json, named, location, lines });
    }

    fn name(&mut self, file: &str, mut document: Document) {
        let mut issues = Issues::default();
        let mut kind = self.kind(file, &document, &mut issues);
        self.place(kind, &mut document.value, &mut issues);
        if kind == Some(Kind::Node) {
            let remedy = "apply it without labels and taints to take these back";
            issues.warn(&Path::at("kind"), "nodes are the machine's own and stay", remedy);
            kind = None;
        }
        let key = kind.and_then(|kind| read_key(kind, &document.value, &mut issues));
        self.report(file, &document, issues);
        self.names.extend(key.filter(|key| !self.names.contains(key)));
    }

    /// Gives an object the namespace that was asked for. As for kubectl, none may name another.
    fn place(&self, kind: Option<Kind>, value: &mut Value, issues: &mut Issues) {
        let Some(wanted) = &self.namespace else { return };
        let metadata = value.get_mut("metadata").and_then(Value::as_object_mut);
        let Some(metadata) = metadata.filter(|_| kind.is_some_and(Kind::is_namespaced)) else {
            return;
        };
        match metadata.get("namespace") {
            None | Some(Value::Null) => {
                metadata.insert("namespace".to_owned(), Value::from(wanted.as_str()));
            }
            Some(Value::String(named)) if named != wanted => issues.error(
                &Path::at("metadata").field("namespace"),
                format!("the object is of namespace `{named}`, and -n says `{wanted}`"),
                format!("leave -n out, write -n {named}, or remove metadata.namespace"),
            ),
            // It is right, or is no text, which is said elsewhere.
            Some(_) => {}
        }
    }

    /// Writes down what was found in a document, in the order of its lines.
    fn report(&mut self, file: &str, document: &Document, issues: Issues) {
        let name = subject(&document.value);
        let located = |issues: Vec<Issue>| {
            let at = |issue: Issue| finding(file, document, &name, issue);
            let mut findings: Vec<Finding> = issues.into_iter().map(at).collect();
            findings.sort_by_key(|finding| finding.location.line);
            findings
        };
        self.errors.extend(located(issues.errors));
        self.warnings.extend(located(issues.warnings));
    }

    /// The kind of a document, or what is wrong with it; counts it where it is left out.
    fn kind(&mut self, file: &str, document: &Document, issues: &mut Issues) -> Option<Kind> {
        match read_kind(&document.value, issues)? {
            Read::Kind(kind) => Some(kind),
            Read::Other { api_version, name } => {
                let unread = unread::unread(api_version, name);
                if refuse(&unread, api_version, name, self.unenforced, issues) {
                    return None;
                }
                let line = document.lines.line("kind");
                let place = || Location { file: file.to_owned(), line };
                self.left_out.count(format!("{name} ({api_version})"), place);
                None
            }
        }
    }

    fn finish<T>(mut self, result: impl FnOnce(Self) -> T) -> Result<T, Errors> {
        self.warnings.extend(std::mem::take(&mut self.left_out).warning());
        if self.errors.is_empty() { Ok(result(self)) } else { Err(Errors(self.errors)) }
    }
}

/// An object that was read before. One that has no line was built; directories of kustomizations
/// are often variants of one another.
fn twice(location: Location, object: String, first: &Location) -> Finding {
    let remedy = match location.line {
        0 => "remove or rename one of the two, or name one kustomization alone, with -k",
        _ => "remove one of the two, or rename it",
    };
    let what = format!("the same object is at {first}");
    Finding { location, object, field: String::new(), what, remedy: remedy.to_owned() }
}

/// `Kind namespace/name`, as far as they are known.
fn subject(value: &Value) -> String {
    let text = |pointer| value.pointer(pointer).and_then(Value::as_str);
    let kind = text("/kind").unwrap_or("object");
    match (text("/metadata/namespace"), text("/metadata/name")) {
        (Some(namespace), Some(name)) => format!("{kind} {namespace}/{name}"),
        (None, Some(name)) => format!("{kind} {name}"),
        _ => kind.to_owned(),
    }
}

fn finding(file: &str, document: &Document, object: &str, issue: Issue) -> Finding {
    Finding {
        location: Location {
            file: file.to_owned(),
            line: document.lines.line(issue.path.as_str()),
        },
        object: object.to_owned(),
        field: issue.path.as_str().to_owned(),
        what: issue.what,
        remedy: issue.remedy,
    }
}

/// An object that was read.
struct Contents {
    typed: Typed,
    json: Value,
    named: Value,
}

fn read_object(kind: Kind, document: &Document, issues: &mut Issues) -> Option<Contents> {
    let mut value = decode::joined(kind, &document.value).unwrap_or_else(|| document.value.clone());
    autoscaling::renew(kind, &mut value);
    let root = value.as_object_mut().expect("an object, since it has a kind");
    root.insert("apiVersion".to_owned(), Value::from(kind.api_versions()[0]));
    root.remove("status");
    if let Some(Value::Object(metadata)) = root.get_mut("metadata")
        && kind.is_namespaced()
    {
        metadata.entry("namespace").or_insert_with(|| Value::from("default"));
    }
    let mut named = value.clone();
    autoscaling::complete(kind, &mut value);
    let typed = decode::decode(kind, &value, issues)?;
    validate::validate(&typed, issues);
    let typed = merge_string_data(typed);
    let json = decode::canonical(&typed);
    name_string_data(&mut named, &json);
    Some(Contents { typed, json, named })
}

/// What a document names, whatever else it says.
fn read_key(kind: Kind, value: &Value, issues: &mut Issues) -> Option<ObjectKey> {
    let text = |field: &str| match value.get("metadata").and_then(|metadata| metadata.get(field)) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(Path::at("metadata").field(field)),
    };
    let (name, namespace) = match (text("name"), text("namespace")) {
        (Ok(name), Ok(namespace)) => (name, namespace),
        (Err(at), _) | (_, Err(at)) => {
            issues.error(&at, "the value is no text", "put the value in quotes");
            return None;
        }
    };
    let metadata = ObjectMeta { name, namespace, ..ObjectMeta::default() };
    let before = issues.errors.len();
    validate::metadata(kind, &metadata, issues);
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    let key = ObjectKey::new(kind, namespace, metadata.name.as_deref()?);
    (issues.errors.len() == before).then_some(key)
}

/// What a document says it is.
enum Read<'a> {
    Kind(Kind),
    Other { api_version: &'a str, name: &'a str },
}

fn read_kind<'a>(value: &'a Value, issues: &mut Issues) -> Option<Read<'a>> {
    let text = |field| value.get(field).and_then(Value::as_str);
    let (Some(api_version), Some(name)) = (text("apiVersion"), text("kind")) else {
        let missing = if text("apiVersion").is_none() { "apiVersion" } else { "kind" };
        let what = "not a Kubernetes object: the field is missing or no text";
        issues.error(&Path::at(missing), what, "start the document with `apiVersion:` and `kind:`");
        return None;
    };
    if (api_version, name) == ("v1", "List") {
        issues.error(&Path::at("items"), "a List needs `items`, a list", "write them there");
        return None;
    }
    match Kind::from_api(api_version, name) {
        None => Some(Read::Other { api_version, name }),
        Some(kind) if !kind.api_versions().contains(&api_version) => {
            let remedy = format!("use {}", kind.api_versions().join(" or "));
            let what = format!("{name} has no version `{api_version}`");
            issues.error(&Path::at("apiVersion"), what, remedy);
            None
        }
        Some(kind) => Some(Read::Kind(kind)),
    }
}

/// Whether an object of an unread kind keeps the rest from being applied; says why.
fn refuse(
    unread: &Unread,
    api_version: &str,
    name: &str,
    unenforced: Unenforced,
    issues: &mut Issues,
) -> bool {
    let at = Path::at("kind");
    match unread {
        Unread::Known => false,
        Unread::Enforcing if unenforced == Unenforced::LeftOut => false,
        Unread::Enforcing => {
            let what = format!("{name} is not enforced by Ambit");
            let remedy = "remove it, or apply the rest without it: --allow-ignored";
            issues.error(&at, what, remedy);
            true
        }
        Unread::Misspelt { nearest } => {
            let what = format!("{api_version} has no kind `{name}`");
            let remedy = match nearest {
                Some(nearest) => format!("write {nearest}, if that is meant"),
                None => "correct its spelling, or remove it".to_owned(),
            };
            issues.error(&at, what, remedy);
            true
        }
    }
}

/// The API server moves stringData to data when a Secret is written; so do we, so that readers know
/// one place.
fn merge_string_data(typed: Typed) -> Typed {
    let Typed::Secret(secret) = typed else { return typed };
    let mut secret = Arc::unwrap_or_clone(secret);
    for (key, value) in secret.string_data.take().unwrap_or_default() {
        let value = k8s_openapi::ByteString(value.into_bytes());
        secret.data.get_or_insert_default().insert(key, value);
    }
    Typed::Secret(Arc::new(secret))
}

/// Names below `data` what a Secret has below `stringData`.
fn name_string_data(named: &mut Value, json: &Value) {
    let is_secret = named.get("kind").is_some_and(|kind| kind == Kind::Secret.name());
    let fields = named.as_object_mut().filter(|_| is_secret);
    let Some((fields, Value::Object(plain))) =
        fields.and_then(|fields| fields.remove("stringData").map(|plain| (fields, plain)))
    else {
        return;
    };
    let data = fields.entry("data").or_insert(Value::Null);
    for key in plain.into_iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| key) {
        if !data.is_object() {
            *data = Value::Object(serde_json::Map::new());
        }
        data[&key] = json["data"][&key].clone();
    }
}

#[cfg(test)]
mod tests;
