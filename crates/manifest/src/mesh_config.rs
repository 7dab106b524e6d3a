//! Istio's mesh configuration: the key `mesh` of the ConfigMap `istio` in the root namespace.
//!
//! Only what Ambit uses is read. A field that it does not use is a remark and no error, because
//! Istio's own installation writes many. A provider that is wrong is kept as
//! [`Provider::Unusable`]: whatever names it must not be taken for something that names nobody.

mod authorizers;
mod service;
mod telemetry;

use std::collections::BTreeMap;

use ambit_words::names::{DEFAULT_MESH_NAMESPACE, MESH_CONFIG_MAP};
use k8s_openapi::api::core::v1::ConfigMap;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub use self::authorizers::ExtAuthz;
pub use self::service::ProviderService;
use self::service::Wrong;
use self::telemetry::WrittenLog;
pub use self::telemetry::{DefaultProviders, Export, MeshLog, TelemetryProvider};
use crate::remarks::{Remark, Remarks, report};
use crate::spelling::nearest;
use crate::type_errors::TypeError;
use crate::{FieldPath, ObjectIssues, ObjectName, document};

/// The key of the ConfigMap that holds it.
const KEY: &str = "mesh";
/// The fields that are read.
const FIELDS: [&str; 6] = [
    "extensionProviders",
    "defaultProviders",
    "accessLogFile",
    "accessLogFormat",
    "accessLogEncoding",
    "outboundTrafficPolicy",
];
/// The mode in which only what is declared may be reached.
const REGISTRY_ONLY: &str = "REGISTRY_ONLY";
/// The mode in which everything may be, which is Istio's default.
const ALLOW_ANY: &str = "ALLOW_ANY";
/// Fields of Istio's configuration that Ambit has elsewhere, and where.
const ELSEWHERE: [(&str, &str); 5] = [
    ("trustDomain", "it is the flag --trust-domain of control"),
    ("rootNamespace", "it is the flag --root-namespace of control"),
    ("defaultConfig", "node proxies read PROXY_CONFIG"),
    ("pathNormalization", "it is the variable AMBIT_PATH_NORMALIZATION of waypoints"),
    ("enableTracing", "name a provider in defaultProviders.tracing or in a Telemetry"),
];

/// The mesh configuration, as far as it is used.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MeshConfig {
    /// Services that policies and telemetry name (`extensionProviders`), by name.
    pub providers: BTreeMap<String, Provider>,
    /// The providers of telemetry that hold where no resource says otherwise.
    pub default_providers: DefaultProviders,
    /// The access log of the whole mesh.
    pub access_log: MeshLog,
    /// Pods may reach only what is declared (`outboundTrafficPolicy.mode: REGISTRY_ONLY`).
    pub registry_only: bool,
    /// Why nothing of it can be read, if so. Every provider is missing then.
    pub unreadable: Option<String>,
}

/// A service that policies or telemetry name.
#[derive(Debug, Clone, PartialEq)]
pub enum Provider {
    /// An authorization service (`envoyExtAuthzGrpc`, `envoyExtAuthzHttp`).
    ExtAuthz(ExtAuthz),
    /// One of telemetry: it authorizes nothing.
    Telemetry(TelemetryProvider),
    /// One that is wrong, or of a kind that Ambit does not know: why.
    Unusable(String),
}

/// Whether a ConfigMap is the mesh configuration of a mesh with this root namespace.
pub fn is_mesh_config(name: &ObjectName, root_namespace: &str) -> bool {
    *name.namespace == *root_namespace && &*name.name == MESH_CONFIG_MAP
}

/// Reports what of a ConfigMap is wrong or has no effect, if it is the mesh configuration.
pub(crate) fn check(map: &ConfigMap, issues: &mut ObjectIssues) {
    if is_mesh_config(&ObjectName::of(&map.metadata), DEFAULT_MESH_NAMESPACE) {
        report(&read(map).1, issues);
    }
}

/// Reads the mesh configuration of its ConfigMap, and says what of it is wrong or has no effect.
pub fn read(map: &ConfigMap) -> (MeshConfig, Vec<Remark>) {
    let text = map.data.as_ref().and_then(|data| data.get(KEY));
    let mut reader = Reader::default();
    if let Some(text) = text {
        reader.text(text);
    }
    reader.config.access_log = reader.log.read(&root(), &mut reader.remarks);
    (reader.config, reader.remarks.0)
}

#[derive(Default)]
struct Reader {
    remarks: Remarks,
    config: MeshConfig,
    log: WrittenLog,
}

/// The path of the configuration's own root.
fn root() -> FieldPath {
    FieldPath::at("data").field(KEY)
}

impl Reader {
    fn text(&mut self, text: &str) {
        let problem = match document::parse(text) {
            Ok(mut documents) => match (documents.pop(), documents.is_empty()) {
                (Some(document), true) => match document.value {
                    Value::Object(fields) => return self.fields(fields),
                    Value::Null => return,
                    _ => "it is no map".to_owned(),
                },
                (None, _) => return,
                _ => "it has several documents".to_owned(),
            },
            Err(error) => format!("line {} is not YAML: {}", error.line, error.what),
        };
        let what = format!("{problem}: nothing of it is used, and its providers are missing");
        self.remarks.wrong(&root(), what, "write one map of YAML, as Istio's MeshConfig");
        // Who asked for a fence does not lose it by a mistake elsewhere in the text.
        self.config.registry_only = text.contains(REGISTRY_ONLY);
        self.config.unreadable = Some(problem);
    }

    fn fields(&mut self, fields: Map<String, Value>) {
        for (name, value) in fields {
            let at = root().field(&name);
            match name.as_str() {
                _ if value.is_null() => {}
                "extensionProviders" => self.providers(value, &at),
                "defaultProviders" => {
                    self.config.default_providers = self.value(value, &at).unwrap_or_default();
                }
                "accessLogFile" => self.log.file = self.value(value, &at).unwrap_or_default(),
                "accessLogFormat" => self.log.format = self.value(value, &at).unwrap_or_default(),
                "accessLogEncoding" => {
                    self.log.encoding = self.value(value, &at).unwrap_or_default();
                }
                "outboundTrafficPolicy" => self.outbound(&value, &at),
                // Where providers are named, Istio asks for nothing more either.
                "enableTracing" if value == Value::Bool(false) => {}
                other => {
                    let elsewhere = ELSEWHERE.iter().find(|(name, _)| *name == other);
                    let remedy = match (elsewhere, nearest(other, FIELDS.into_iter())) {
                        (Some((_, remedy)), _) => (*remedy).to_owned(),
                        (None, Some(meant)) => format!("write {meant}, if that is meant"),
                        (None, None) => "remove it, or ignore this".to_owned(),
                    };
                    self.remarks.unhonoured(true, &at, "it has no effect", remedy);
                }
            }
        }
    }

    /// What pods may reach. What cannot be understood is read as the stricter mode.
    fn outbound(&mut self, value: &Value, at: &FieldPath) {
        let at = at.field("mode");
        let mode = match value {
            Value::Object(fields) => fields.get("mode"),
            other => Some(other),
        };
        match mode {
            Some(Value::Null) => {}
            None => {
                self.config.registry_only = true;
                let what = format!("it is missing: it is read as {REGISTRY_ONLY}");
                let remedy = format!("write `mode: {REGISTRY_ONLY}` or `mode: {ALLOW_ANY}`");
                self.remarks.wrong(&at, what, remedy);
            }
            Some(mode) if value.is_object() && *mode == ALLOW_ANY => {}
            Some(mode) if value.is_object() && *mode == REGISTRY_ONLY => {
                self.config.registry_only = true;
            }
            Some(mode) => {
                self.config.registry_only = true;
                let what = format!("{mode} is no mode: it is read as {REGISTRY_ONLY}");
                let remedy = format!("write `mode: {REGISTRY_ONLY}` or `mode: {ALLOW_ANY}`");
                self.remarks.wrong(&at, what, remedy);
            }
        }
    }

    /// A value of the expected form, or a remark.
    fn value<T: DeserializeOwned>(&mut self, value: Value, at: &FieldPath) -> Option<T> {
        match serde_json::from_value(value) {
            Ok(value) => Some(value),
            Err(error) => {
                let TypeError { what, remedy } = TypeError::new(&error.to_string());
                self.remarks.wrong(at, what, remedy);
                None
            }
        }
    }

    fn providers(&mut self, value: Value, at: &FieldPath) {
        let Some(list) = self.value::<Vec<Value>>(value, at) else { return };
        for (index, written) in list.into_iter().enumerate() {
            let at = at.index(index);
            let Value::Object(mut fields) = written else {
                self.remarks.wrong(&at, "it is no map", "write `name` and one kind of provider");
                continue;
            };
            let name = fields.remove("name");
            let Some(name) = name.and_then(|it| Some(it.as_str()?.to_owned())) else {
                self.remarks.wrong(&at.field("name"), "it is missing", "name the provider");
                continue;
            };
            let provider = match self.provider(fields, &at) {
                Ok(provider) => provider,
                Err((at, what, remedy)) => {
                    let text = format!("{}: {what}", at.as_str());
                    self.remarks.wrong(&at, what, remedy);
                    Provider::Unusable(text)
                }
            };
            let is_new = self.config.providers.insert(name.clone(), provider).is_none();
            if !is_new {
                let what = "several providers have this name: it can be used by nobody";
                self.remarks.wrong(&at.field("name"), what, "give each its own name");
                let what = format!("{}: {what}", at.field("name").as_str());
                self.config.providers.insert(name, Provider::Unusable(what));
            }
        }
    }

    fn provider(&mut self, fields: Map<String, Value>, at: &FieldPath) -> Result<Provider, Wrong> {
        let mut kinds = fields.into_iter().filter(|(_, value)| !value.is_null());
        let (Some((kind, value)), None) = (kinds.next(), kinds.next()) else {
            let what = "a provider has exactly one kind".to_owned();
            return Err((at.clone(), what, "write for example envoyExtAuthzGrpc"));
        };
        let at = at.field(&kind);
        if let Some(read) = telemetry::provider(&kind, &value, &at, &mut self.remarks) {
            return read.map(Provider::Telemetry);
        }
        match kind.as_str() {
            "envoyExtAuthzGrpc" => {
                authorizers::grpc(value, &at, &mut self.remarks).map(Provider::ExtAuthz)
            }
            "envoyExtAuthzHttp" => {
                authorizers::http(value, &at, &mut self.remarks).map(Provider::ExtAuthz)
            }
            "zipkin" => {
                let what = "waypoints send spans in OpenTelemetry's protocol alone";
                let remedy = "use `opentelemetry`, which Jaeger and the OpenTelemetry Collector \
                              take; the latter sends to Zipkin";
                self.remarks.unhonoured(true, &at, what, remedy);
                Ok(Provider::Unusable(what.to_owned()))
            }
            _ => {
                let what = "providers of this kind are not known: nothing can use it";
                self.remarks.unhonoured(true, &at, what, "remove it, or use another kind");
                Ok(Provider::Unusable(format!("providers of the kind {kind} are not known")))
            }
        }
    }
}

#[cfg(test)]
mod tests;
