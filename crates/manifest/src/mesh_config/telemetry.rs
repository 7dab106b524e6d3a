//! Providers of telemetry, and the access log of the whole mesh.
//!
//! A provider that is wrong can be used by nobody. What of one has no effect is a remark.

use std::sync::Arc;
use std::time::Duration;

use ambit_model::Text;
use ambit_model::http::access_log::Format;
use ambit_model::http::telemetry::{DEFAULT_EXPORT_TIMEOUT, DEFAULT_TAG_BYTES, Way};
use ambit_words::durations::parse_duration;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::service::{Number, ProviderService, Wrong};
use crate::FieldPath;
use crate::matching::is_token;
use crate::remarks::Remarks;
use crate::type_errors::TypeError;

/// The only file that a log can be written to.
const STDOUT: &str = "/dev/stdout";

/// A provider of telemetry.
#[derive(Debug, Clone, PartialEq)]
pub enum TelemetryProvider {
    /// Traces by OTLP (`opentelemetry`).
    Spans {
        /// Who gets them.
        export: Export,
        /// Bytes of a tag's value.
        max_tag_bytes: usize,
    },
    /// Access logs by OTLP (`envoyOtelAls`).
    Logs {
        /// Who gets them.
        export: Export,
        /// The record's body.
        body: Arc<Format>,
        /// The record's attributes.
        attributes: Arc<Format>,
    },
    /// Access logs on the proxy's output (`envoyFileAccessLog`).
    Lines(Arc<Format>),
    /// Metrics that are scraped (`prometheus`).
    Prometheus,
}

impl TelemetryProvider {
    /// The service that it sends to, if it sends.
    pub fn export(&self) -> Option<&Export> {
        match self {
            Self::Spans { export, .. } | Self::Logs { export, .. } => Some(export),
            Self::Lines(_) | Self::Prometheus => None,
        }
    }
}

/// A service that speaks OTLP, and how it is spoken to.
#[derive(Debug, Clone, PartialEq)]
pub struct Export {
    /// Where it is.
    pub service: ProviderService,
    /// How it is spoken to.
    pub way: Way,
    /// How long an export may take.
    pub timeout: Duration,
}

/// Names of providers that hold where no Telemetry names one (`defaultProviders`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DefaultProviders {
    /// For traces.
    pub tracing: Vec<String>,
    /// For access logs.
    pub access_logging: Vec<String>,
}

/// The access log of the whole mesh, of `accessLogFile`, `accessLogFormat` and `accessLogEncoding`.
#[derive(Debug, Clone, PartialEq)]
pub struct MeshLog {
    /// Whether it is written where no Telemetry and no default provider says otherwise.
    pub is_on: bool,
    /// Its format, which Istio's provider `envoy` has as well.
    pub format: Arc<Format>,
}

impl Default for MeshLog {
    fn default() -> Self {
        Self { is_on: false, format: Arc::new(Format::default_text()) }
    }
}

/// The three fields of the access log, as they are written.
#[derive(Debug, Default)]
pub(super) struct WrittenLog {
    pub(super) file: String,
    pub(super) format: String,
    pub(super) encoding: String,
}

impl WrittenLog {
    /// What they say together.
    pub(super) fn read(&self, root: &FieldPath, remarks: &mut Remarks) -> MeshLog {
        let is_on = self.file == STDOUT;
        remarks.unhonoured(
            !is_on && !self.file.is_empty(),
            &root.field("accessLogFile"),
            format!("a waypoint logs to {STDOUT} alone: it logs as it is set"),
            format!("write {STDOUT}"),
        );
        let at = root.field("accessLogFormat");
        let read = match (&*self.encoding, self.format.trim()) {
            ("" | "TEXT", "") => Ok(Format::default_text()),
            ("JSON", "") => Ok(Format::default_json()),
            ("" | "TEXT", text) => Format::text(text).map_err(|it| (at, it.to_string())),
            ("JSON", text) => json_text(text).map_err(|what| (at, what)),
            (other, _) => {
                let what = format!("`{other}` is no encoding of an access log");
                Err((root.field("accessLogEncoding"), what))
            }
        };
        match read {
            Ok(format) => MeshLog { is_on, format: Arc::new(format) },
            Err((at, what)) => {
                let what = format!("{what}: Istio's default format is used");
                remarks.wrong(&at, what, "correct it; docs/guide/telemetry.md");
                MeshLog { is_on, ..MeshLog::default() }
            }
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OpenTelemetry {
    service: String,
    port: Number,
    max_tag_length: Option<Number>,
    http: Option<HttpExport>,
    grpc: Option<GrpcExport>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct HttpExport {
    path: String,
    timeout: Option<String>,
    headers: Vec<HeaderValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GrpcExport {
    timeout: Option<String>,
    initial_metadata: Vec<HeaderValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct HeaderValue {
    name: String,
    value: Option<String>,
    env_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OtelLog {
    service: String,
    port: Number,
    log_format: LogFormat,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FileLog {
    path: String,
    log_format: LogFormat,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LogFormat {
    text: Option<String>,
    labels: Option<Map<String, Value>>,
}

/// Reads a provider of a kind of telemetry; `None` if it is another kind.
pub(super) fn provider(
    kind: &str,
    value: &Value,
    at: &FieldPath,
    remarks: &mut Remarks,
) -> Option<Result<TelemetryProvider, Wrong>> {
    Some(match kind {
        "opentelemetry" => spans(value, at, remarks),
        "envoyOtelAls" => otel_log(value, at, remarks),
        "envoyFileAccessLog" => file_log(value, at, remarks),
        // Waypoints and node proxies are scraped, whether it is written or not.
        "prometheus" => Ok(TelemetryProvider::Prometheus),
        _ => return None,
    })
}

/// Reads the fields that are used, and remarks on the others.
fn read<T: DeserializeOwned>(
    value: &Value,
    at: &FieldPath,
    remarks: &mut Remarks,
) -> Result<T, Wrong> {
    let mut others = Vec::new();
    let read = serde_ignored::deserialize(value, |path| others.push(path.to_string()));
    for other in others {
        remarks.unhonoured(true, &at.field(&other), "it has no effect", "remove it");
    }
    read.map_err(|error| {
        let TypeError { what, remedy } = TypeError::new(&error.to_string());
        (at.clone(), what, remedy)
    })
}

fn spans(value: &Value, at: &FieldPath, remarks: &mut Remarks) -> Result<TelemetryProvider, Wrong> {
    let it: OpenTelemetry = read(value, at, remarks)?;
    let service = ProviderService::read(&it.service, it.port, at)?;
    let (way, limit, at_limit) = match (it.http, it.grpc) {
        (Some(_), Some(_)) => {
            let what = "it is sent over HTTP or over gRPC".to_owned();
            return Err((at.clone(), what, "write `http` or `grpc`"));
        }
        (Some(http), None) => {
            let at = at.field("http");
            let path = if http.path.is_empty() { Way::TRACES } else { &http.path };
            if !path.starts_with('/') || !path.bytes().all(|it| it.is_ascii_graphic()) {
                let what = format!("`{path}` is no path");
                return Err((at.field("path"), what, "write for example /v1/traces"));
            }
            let headers = headers(&http.headers, &at.field("headers"))?;
            (Way::Http { path: path.into(), headers }, http.timeout, at)
        }
        (None, Some(grpc)) => {
            let at = at.field("grpc");
            let metadata = headers(&grpc.initial_metadata, &at.field("initialMetadata"))?;
            (Way::Grpc(metadata), grpc.timeout, at)
        }
        (None, None) => (Way::Grpc(Vec::new()), None, at.clone()),
    };
    let timeout = timeout(limit.as_deref(), &at_limit)?;
    let max = it.max_tag_length.and_then(|Number(it)| usize::try_from(it).ok());
    let max_tag_bytes = max.filter(|it| *it > 0).unwrap_or(DEFAULT_TAG_BYTES);
    Ok(TelemetryProvider::Spans { export: Export { service, way, timeout }, max_tag_bytes })
}

fn otel_log(
    value: &Value,
    at: &FieldPath,
    remarks: &mut Remarks,
) -> Result<TelemetryProvider, Wrong> {
    let it: OtelLog = read(value, at, remarks)?;
    let service = ProviderService::read(&it.service, it.port, at)?;
    let at = at.field("logFormat");
    let LogFormat { text, labels } = it.log_format;
    let body = text.map_or_else(|| Ok(Format::default_text()), |it| text_format(&it, &at))?;
    let attributes = labels.map_or_else(|| Ok(Format::default_json()), |it| labelled(&it, &at))?;
    let (body, attributes) = (Arc::new(body), Arc::new(attributes));
    let (way, timeout) = (Way::Grpc(Vec::new()), DEFAULT_EXPORT_TIMEOUT);
    Ok(TelemetryProvider::Logs { export: Export { service, way, timeout }, body, attributes })
}

fn file_log(
    value: &Value,
    at: &FieldPath,
    remarks: &mut Remarks,
) -> Result<TelemetryProvider, Wrong> {
    let it: FileLog = read(value, at, remarks)?;
    if it.path != STDOUT {
        let what = format!("a waypoint logs to {STDOUT}, not to `{}`", it.path);
        return Err((at.field("path"), what, "write /dev/stdout"));
    }
    let at = at.field("logFormat");
    let format = match (it.log_format.text, it.log_format.labels) {
        (None, None) => Format::default_text(),
        (Some(text), None) => text_format(&text, &at)?,
        (None, Some(labels)) => labelled(&labels, &at)?,
        (Some(_), Some(_)) => {
            let what = "a format is text or an object".to_owned();
            return Err((at, what, "write `text` or `labels`"));
        }
    };
    Ok(TelemetryProvider::Lines(Arc::new(format)))
}

fn text_format(text: &str, at: &FieldPath) -> Result<Format, Wrong> {
    let wrong = |what: String| (at.field("text"), what, "use operators of docs/guide/telemetry.md");
    Format::text(text).map_err(|error| wrong(error.to_string()))
}

fn labelled(labels: &Map<String, Value>, at: &FieldPath) -> Result<Format, Wrong> {
    let wrong = |what| (at.field("labels"), what, "use operators of docs/guide/telemetry.md");
    json(labels).map_err(wrong)
}

fn json_text(text: &str) -> Result<Format, String> {
    let read = serde_json::from_str(text);
    json(&read.map_err(|error| format!("it is no JSON object: {error}"))?)
}

fn json(fields: &Map<String, Value>) -> Result<Format, String> {
    let texts = fields.iter().map(|(key, value)| {
        let text = value.as_str().ok_or_else(|| format!("the value of `{key}` must be a text"))?;
        Ok((&**key, text))
    });
    let texts = texts.collect::<Result<Vec<_>, String>>()?;
    Format::json(texts).map_err(|error| error.to_string())
}

fn timeout(written: Option<&str>, at: &FieldPath) -> Result<Duration, Wrong> {
    let Some(written) = written else { return Ok(DEFAULT_EXPORT_TIMEOUT) };
    let parsed = parse_duration(written).ok().filter(|it| !it.is_zero());
    parsed.ok_or_else(|| {
        let what = format!("`{written}` is not a time that an export may take");
        (at.field("timeout"), what, "write for example 500ms or 5s")
    })
}

/// Fields of each export. A value may be a secret: no error shows it.
fn headers(written: &[HeaderValue], at: &FieldPath) -> Result<Vec<(Text, Text)>, Wrong> {
    let one = |(index, it): (usize, &HeaderValue)| {
        let at = at.index(index);
        if !is_token(&it.name) {
            let what = format!("`{}` is not the name of a field", it.name);
            return Err((at.field("name"), what, "write for example x-api-key"));
        }
        let value = match (&it.value, &it.env_name) {
            (Some(value), None) => value,
            (None, Some(_)) => {
                let what = "variables of the waypoint are not read".to_owned();
                return Err((at.field("envName"), what, "write its `value`"));
            }
            _ => {
                let what = "a field has one value".to_owned();
                return Err((at, what, "write `value`"));
            }
        };
        if !value.bytes().all(|it| it == b'\t' || (b' '..=b'~').contains(&it)) {
            let what = "it is not the value of a field".to_owned();
            return Err((at.field("value"), what, "use visible characters of ASCII"));
        }
        Ok((Text::from(it.name.to_ascii_lowercase()), Text::from(&**value)))
    };
    written.iter().enumerate().map(one).collect()
}
