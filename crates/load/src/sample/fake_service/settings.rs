//! The environment variables of fake-service: as written in a manifest, and as used.

use std::time::Duration;

use http::Uri;
use serde_json::Value;

use crate::sample::duration::duration;

/// Most upstreams of one service.
const UPSTREAMS_MAX: usize = 64;

/// Variables of fake-service that ask for something that is not done here.
const WITHOUT_EFFECT: &[&str] = &[
    "ALLOWED_HEADERS",
    "ALLOWED_ORIGINS",
    "ALLOW_CREDENTIALS",
    "ALLOW_CLOUD_METADATA",
    "ERROR_CODE",
    "ERROR_DELAY",
    "ERROR_RATE",
    "ERROR_TYPE",
    "EXTERNAL_SERVICE_URLS",
    "HEALTH_CHECK_RESPONSE_CODE",
    "HTTP_SERVER_IDLE_TIMEOUT",
    "HTTP_SERVER_READHEADER_TIMEOUT",
    "HTTP_SERVER_READ_TIMEOUT",
    "HTTP_SERVER_WRITE_TIMEOUT",
    "LOAD_CPU_ALLOCATED",
    "LOAD_CPU_CLOCK_SPEED",
    "LOAD_CPU_CORES",
    "LOAD_CPU_PERCENTAGE",
    "LOAD_MEMORY_PER_REQUEST",
    "LOAD_MEMORY_VARIANCE",
    "LOG_FORMAT",
    "LOG_LEVEL",
    "LOG_OUTPUT",
    "METRICS_DATADOG_HOST",
    "RATE_LIMIT",
    "RATE_LIMIT_CODE",
    "RAND_SEED",
    "READY_CHECK_RESPONSE_DELAY",
    "READY_CHECK_RESPONSE_FAILURE_CODE",
    "READY_CHECK_RESPONSE_SUCCESS_CODE",
    "READY_CHECK_ROOT_PATH_WAIT_TILL_READY",
    "TIMING_VARIANCE",
    "TLS_CERT_LOCATION",
    "TLS_KEY_LOCATION",
    "TRACING_DATADOG_HOST",
    "TRACING_ZIPKIN",
    "UI_PATH",
    "UPSTREAM_ALLOW_INSECURE",
    "UPSTREAM_REQUEST_BODY",
    "UPSTREAM_REQUEST_SIZE",
    "UPSTREAM_REQUEST_VARIANCE",
];

/// A variable whose value cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{variable}={value:?}: {expected}")]
pub(crate) struct SettingsError {
    variable: &'static str,
    value: String,
    expected: String,
}

/// A service to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Upstream {
    /// As written: its name in answers.
    pub(super) written: String,
    /// Where it is.
    pub(super) uri: Uri,
}

/// The settings of a service. Unset ones have fake-service's defaults.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) listen_address: String,
    pub(super) name: String,
    pub(super) message: Value,
    pub(super) upstreams: Vec<Upstream>,
    /// How many upstreams are called at the same time, for each request.
    pub(super) workers: usize,
    /// The least duration of answers: 50th, 90th, 99th percentile.
    pub(super) timing: [Duration; 3],
    pub(super) request_timeout: Duration,
    pub(super) server_keep_alives: bool,
    pub(super) client_keep_alives: bool,
    /// Whether a request's own path and header are forwarded to the upstreams.
    pub(super) append_request: bool,
}

impl Settings {
    /// Reads the environment. An empty variable counts as not set.
    pub(super) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let text = |name: &str| variable(name).filter(|value| !value.is_empty());
        let duration_of =
            |name| parsed(name, text(name), duration, "write it as 1s or 250ms, at most 24h");
        let flag = |name| parsed(name, text(name), flag, "write true or false");
        let server_type = |kind: &str| (kind == "http").then_some(());
        let http_only = "this sample speaks http only; run the image itself for anything else";
        parsed("SERVER_TYPE", text("SERVER_TYPE"), server_type, http_only)?;
        let workers = |text: &str| text.parse().ok().filter(|n| (1..=UPSTREAMS_MAX).contains(n));
        let workers_expected = "write a number from 1 to 64";
        let p50 = duration_of("TIMING_50_PERCENTILE")?.unwrap_or_default();
        let p90 = duration_of("TIMING_90_PERCENTILE")?.filter(|d| !d.is_zero()).unwrap_or(p50);
        let p99 = duration_of("TIMING_99_PERCENTILE")?.filter(|d| !d.is_zero()).unwrap_or(p90);
        let timeout = duration_of("HTTP_CLIENT_REQUEST_TIMEOUT")?;
        Ok(Self {
            listen_address: text("LISTEN_ADDR").unwrap_or_else(|| "0.0.0.0:9090".to_owned()),
            name: text("NAME").unwrap_or_else(|| "Service".to_owned()),
            message: message(text("MESSAGE").unwrap_or_else(|| "Hello World".to_owned()))?,
            upstreams: upstreams(text("UPSTREAM_URIS").unwrap_or_default())?,
            workers: parsed(
                "UPSTREAM_WORKERS",
                text("UPSTREAM_WORKERS"),
                workers,
                workers_expected,
            )?
            .unwrap_or(1),
            timing: [p50, p90, p99],
            request_timeout: timeout.unwrap_or(Duration::from_secs(30)),
            server_keep_alives: flag("HTTP_SERVER_KEEP_ALIVES")?.unwrap_or(false),
            client_keep_alives: flag("HTTP_CLIENT_KEEP_ALIVES")?.unwrap_or(false),
            append_request: flag("HTTP_CLIENT_APPEND_REQUEST")?.unwrap_or(true),
        })
    }
}

fn parsed<T>(
    variable: &'static str,
    value: Option<String>,
    parse: impl Fn(&str) -> Option<T>,
    expected: &str,
) -> Result<Option<T>, SettingsError> {
    let Some(value) = value else { return Ok(None) };
    match parse(&value) {
        Some(parsed) => Ok(Some(parsed)),
        None => Err(SettingsError { variable, value, expected: expected.to_owned() }),
    }
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "true" | "TRUE" | "True" | "t" | "T" | "1" => Some(true),
        "false" | "FALSE" | "False" | "f" | "F" | "0" => Some(false),
        _ => None,
    }
}

/// A message that begins like a JSON object is one; any other is text.
fn message(text: String) -> Result<Value, SettingsError> {
    if !text.starts_with('{') {
        return Ok(Value::String(text));
    }
    serde_json::from_str(&text).map_err(|error| {
        let expected = format!("it begins like JSON but is none ({error})");
        SettingsError { variable: "MESSAGE", value: text, expected }
    })
}

fn upstreams(text: String) -> Result<Vec<Upstream>, SettingsError> {
    let error = |value: &str, expected: &str| SettingsError {
        variable: "UPSTREAM_URIS",
        value: value.to_owned(),
        expected: expected.to_owned(),
    };
    let written: Vec<&str> = text.split(',').map(str::trim).filter(|uri| !uri.is_empty()).collect();
    if written.len() > UPSTREAMS_MAX {
        return Err(error(&text, "at most 64 upstreams are called"));
    }
    let one = |written: &&str| {
        let uri: Uri = written.parse().map_err(|_| error(written, "this is not a URI"))?;
        match (uri.scheme_str(), uri.authority()) {
            (Some("http"), Some(_)) => Ok(Upstream { written: (*written).to_owned(), uri }),
            _ => Err(error(written, "write http://HOST:PORT/PATH; only http is called")),
        }
    };
    written.iter().map(one).collect()
}

/// A sentence for each variable that is set and has no effect.
pub(super) fn without_effect(variable: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let set = WITHOUT_EFFECT.iter().filter(|name| variable(name).is_some_and(|v| !v.is_empty()));
    set.map(|name| format!("{name} has no effect in this sample of fake-service")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(environment: &[(&str, &str)]) -> Result<Settings, String> {
        let variable = |name: &str| {
            let found = environment.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Settings::read(variable).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_set_is_as_in_fake_service() {
        let settings = read(&[]).unwrap();
        assert_eq!(settings.listen_address, "0.0.0.0:9090");
        assert_eq!((settings.name.as_str(), settings.workers), ("Service", 1));
        assert_eq!(settings.message, "Hello World");
        assert!(!settings.server_keep_alives && !settings.client_keep_alives);
        assert!(settings.append_request);
        assert_eq!(settings.request_timeout, Duration::from_secs(30));
        assert_eq!(settings.timing, [Duration::ZERO; 3]);
    }

    #[test]
    fn a_percentile_that_is_not_set_is_the_one_before() {
        let settings = read(&[("TIMING_50_PERCENTILE", "5ms"), ("TIMING_99_PERCENTILE", "1s")]);
        let milliseconds = settings.unwrap().timing.map(|duration| duration.as_millis());
        assert_eq!(milliseconds, [5, 5, 1000]);
    }

    #[test]
    fn wrong_values_are_named_with_a_remedy() {
        for (variable, value, part) in [
            ("SERVER_TYPE", "grpc", "http only"),
            ("UPSTREAM_WORKERS", "0", "from 1 to 64"),
            ("UPSTREAM_URIS", "http://a,grpc://b:1", "only http is called"),
            ("TIMING_90_PERCENTILE", "25h", "write it as 1s or 250ms, at most 24h"),
            ("TIMING_90_PERCENTILE", "5", "write it as 1s or 250ms, at most 24h"),
            ("HTTP_SERVER_KEEP_ALIVES", "yes", "true or false"),
            ("MESSAGE", "{oops", "begins like JSON"),
        ] {
            let error = read(&[(variable, value)]).unwrap_err();
            assert!(error.starts_with(variable) && error.contains(part), "{error}");
        }
    }
}
