//! What a waypoint tells of requests where neither a Telemetry nor the mesh configuration says it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ambit_model::Text;
use ambit_model::http::access_log::Format;
use ambit_model::http::rule::Fraction;
use ambit_model::http::telemetry::{AccessLog, Collector, DEFAULT_TAG_BYTES, Place, Spans, Way};
use ambit_wire::access_log::json_format;
use http::Uri;

use super::values::{ConfigError, duration};
use crate::reports::{Defaults, OwnLog};

/// Parts of names of variables whose values may be secrets; no tag shows them.
const SECRETS: [&str; 6] = ["TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL", "HEADERS"];

/// Flags about logs and traces.
#[derive(Clone, Debug, clap::Args)]
pub struct TelemetryArgs {
    /// Form of the access log: Ambit's own, or Envoy's as text or JSON
    #[arg(long, env = "AMBIT_ACCESS_LOG", value_enum, default_value = "ambit")]
    pub access_log: LogForm,
    /// Format of the text, or of the JSON object {"key": "format"} [default: Istio's]
    #[arg(long, env = "AMBIT_ACCESS_LOG_FORMAT", value_name = "FORMAT")]
    pub access_log_format: Option<String>,
    /// Collector of OpenTelemetry that gets spans, http://HOST:PORT
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URI")]
    pub otlp_endpoint: Option<String>,
    /// How the collector is spoken to
    #[arg(long, env = "OTEL_EXPORTER_OTLP_PROTOCOL", value_enum, default_value = "grpc")]
    pub otlp_protocol: OtlpProtocol,
    /// Headers for the collector, NAME=VALUE,NAME=VALUE
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_HEADERS",
        hide_env_values = true,
        default_value = "",
        value_name = "HEADERS"
    )]
    pub otlp_headers: String,
    /// How long an export may take
    #[arg(
        long,
        env = "AMBIT_OTLP_TIMEOUT",
        default_value = "10s",
        value_parser = duration,
        value_name = "DURATION",
    )]
    pub otlp_timeout: Duration,
    /// Send the access log to the collector as well
    #[arg(long, env = "AMBIT_OTLP_LOGS")]
    pub otlp_logs: bool,
    /// Percentage of new traces that are recorded; traces that have begun elsewhere keep what was
    /// decided there
    #[arg(long, env = "AMBIT_TRACE_SAMPLING", default_value = "1", value_name = "PERCENT")]
    pub trace_sampling: f64,
}

/// A form of the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogForm {
    /// Ambit's own, with both identities, the policy and the reason.
    Ambit,
    /// Envoy's text.
    Text,
    /// Envoy's JSON.
    Json,
    /// No access log.
    Off,
}

/// A form of OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OtlpProtocol {
    /// gRPC.
    Grpc,
    /// Protobuf in HTTP/1.1.
    #[value(name = "http/protobuf")]
    Http,
}

impl TelemetryArgs {
    pub(super) fn defaults(&self) -> Result<Defaults, ConfigError> {
        let error = |name, reason: String| ConfigError { name, reason };
        let format = "--access-log-format";
        let log = match (self.access_log, self.access_log_format.as_deref()) {
            (LogForm::Off, None) => OwnLog::Off,
            (LogForm::Ambit, None) => OwnLog::Own,
            (LogForm::Off | LogForm::Ambit, Some(_)) => {
                let reason = "is for --access-log text or json".to_owned();
                return Err(error(format, reason));
            }
            (LogForm::Text, None) => OwnLog::Lines(Arc::new(Format::default_text())),
            (LogForm::Json, None) => OwnLog::Lines(Arc::new(Format::default_json())),
            (LogForm::Text, Some(text)) => {
                let read = Format::text(text).map_err(|it| error(format, it.to_string()))?;
                OwnLog::Lines(Arc::new(read))
            }
            (LogForm::Json, Some(text)) => {
                let read = json_format(text).map_err(|it| error(format, it.to_string()))?;
                OwnLog::Lines(Arc::new(read))
            }
        };
        let collector = self.collector()?;
        if self.otlp_logs && collector.is_none() {
            let reason = "needs --otlp-endpoint".to_owned();
            return Err(error("--otlp-logs", reason));
        }
        let exported = collector.clone().filter(|_| self.otlp_logs);
        let exported = exported.map(|collector| AccessLog::Collector {
            collector,
            body: Arc::new(Format::default_text()),
            attributes: Arc::new(Format::default_json()),
        });
        let percent = self.trace_sampling;
        let sampling = Fraction::percent(percent).ok_or_else(|| {
            error("--trace-sampling", format!("{percent} is no percentage; use 0 to 100"))
        })?;
        let spans = collector.map(|collector| {
            let (is_passed_on, tags) = (true, Vec::new());
            let max_tag_bytes = DEFAULT_TAG_BYTES;
            Arc::new(Spans { collector, sampling, is_passed_on, tags, max_tag_bytes })
        });
        Ok(Defaults { log, exported, spans })
    }

    fn collector(&self) -> Result<Option<Arc<Collector>>, ConfigError> {
        let name = "--otlp-endpoint";
        let Some(endpoint) = self.otlp_endpoint.as_deref().filter(|it| !it.is_empty()) else {
            return Ok(None);
        };
        let wrong = |reason: String| ConfigError { name, reason };
        let uri: Uri = endpoint.parse().map_err(|_| wrong(format!("{endpoint:?} is no URI")))?;
        if uri.scheme_str() != Some("http") {
            let reason = "must begin with http://; a collector that wants TLS is reached as a \
                          service of the mesh, with a Telemetry";
            return Err(wrong(reason.to_owned()));
        }
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let port = match (uri.port_u16(), self.otlp_protocol) {
            (Some(port), _) => port,
            (None, OtlpProtocol::Grpc) => 4317,
            (None, OtlpProtocol::Http) => 4318,
        };
        let headers = headers(&self.otlp_headers)?;
        let way = match self.otlp_protocol {
            OtlpProtocol::Grpc => Way::Grpc(headers),
            OtlpProtocol::Http => {
                // As OpenTelemetry's SDKs do: the endpoint is what the path goes behind.
                let path = format!("{}{}", uri.path().trim_end_matches('/'), Way::TRACES);
                Way::Http { path: path.into(), headers }
            }
        };
        let place = Place::Host(host.into(), port);
        Ok(Some(Arc::new(Collector { place, way, timeout: self.otlp_timeout })))
    }
}

fn headers(text: &str) -> Result<Vec<(Text, Text)>, ConfigError> {
    let pairs = text.split(',').map(str::trim).filter(|it| !it.is_empty());
    let read = pairs.map(|pair| {
        let split = pair.split_once('=').filter(|(name, _)| !name.trim().is_empty());
        // A value may be a secret: the error does not show it.
        let reason = || "must be NAME=VALUE, several with commas between".to_owned();
        let wrong = || ConfigError { name: "--otlp-headers", reason: reason() };
        let (name, value) = split.ok_or_else(wrong)?;
        Ok((name.trim().to_ascii_lowercase().into(), value.trim().into()))
    });
    read.collect()
}

/// The variables that tags may show.
pub(super) fn variables() -> BTreeMap<String, String> {
    let all = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    all.filter(|(name, _)| !SECRETS.iter().any(|part| name.contains(part))).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: TelemetryArgs,
    }

    fn read(flags: &[&str]) -> Result<Defaults, String> {
        let command =
            Command::try_parse_from(std::iter::once("ambit").chain(flags.iter().copied()));
        let command = command.map_err(|error| error.to_string())?;
        command.args.defaults().map_err(|error| error.to_string())
    }

    #[test]
    fn without_flags_the_log_is_ambits_and_nothing_is_exported() {
        let defaults = read(&[]).expect("defaults");
        assert!(matches!(defaults.log, OwnLog::Own));
        assert!(defaults.exported.is_none() && defaults.spans.is_none());
    }

    #[test]
    fn an_endpoint_gets_spans_and_the_log_if_asked() {
        let defaults = read(&["--otlp-endpoint", "http://collector"]).expect("defaults");
        let spans = defaults.spans.expect("spans");
        assert_eq!(spans.collector.place, Place::Host("collector".into(), 4317));
        assert_eq!(spans.sampling, Fraction { numerator: 10_000, denominator: 1_000_000 });
        assert!(defaults.exported.is_none());
        let flags = ["--otlp-endpoint", "http://[::1]:9/a/", "--otlp-protocol", "http/protobuf"];
        let more = ["--otlp-logs", "--trace-sampling", "0.01", "--otlp-headers", "A=b, c=d=e"];
        let defaults = read(&[&flags[..], &more[..]].concat()).expect("defaults");
        let spans = defaults.spans.expect("spans");
        assert_eq!(spans.collector.place, Place::Host("::1".into(), 9));
        let headers = vec![("a".into(), "b".into()), ("c".into(), "d=e".into())];
        assert_eq!(spans.collector.way, Way::Http { path: "/a/v1/traces".into(), headers });
        assert_eq!(spans.sampling.numerator, 100);
        assert!(defaults.exported.is_some());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_flag() {
        let check = |flags: &[&str], expected: &str| {
            let error = read(flags).err().unwrap_or_default();
            assert!(error.contains(expected), "{flags:?}: {error}");
        };
        check(
            &["--access-log-format", "x"],
            "--access-log-format: is for --access-log text or json",
        );
        let unknown = ["--access-log", "text", "--access-log-format", "%X%"];
        check(&unknown, "--access-log-format: operator %X% is not supported");
        check(&["--access-log", "json", "--access-log-format", "x"], "a JSON format is an object");
        check(&["--otlp-endpoint", "https://a"], "--otlp-endpoint: must begin with http://");
        check(&["--otlp-logs"], "--otlp-logs: needs --otlp-endpoint");
        check(&["--trace-sampling", "101"], "--trace-sampling: 101 is no percentage");
        check(&["--otlp-headers", "a", "--otlp-endpoint", "http://a"], "--otlp-headers: must be");
    }
}
