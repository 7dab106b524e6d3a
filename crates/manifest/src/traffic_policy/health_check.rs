//! `healthCheck`: how waypoints check the endpoints of a Service.
//!
//! The names are those of Envoy Gateway's `healthCheck.active`, where that has them.

use std::ops::RangeInclusive;
use std::time::Duration;

use ambit_model::Text;
use ambit_model::http::health::{HealthCheck as Check, Probe};
use serde::{Deserialize, Serialize};

use crate::FieldPath;
use crate::remarks::Remarks;

/// The interval where nothing is said: Envoy Gateway's default.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(3);
/// No shorter one: a check of many endpoints must not be an attack on them.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The time of a check where nothing is said: Envoy Gateway's default.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);
/// No longer one.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// Checks that must fail where nothing is said: Envoy Gateway's default.
const DEFAULT_UNHEALTHY: u32 = 3;
/// Checks that must pass where nothing is said: Envoy Gateway's default.
const DEFAULT_HEALTHY: u32 = 1;
/// The part of an interval that is added at random where nothing is said.
const DEFAULT_JITTER_PERCENT: u32 = 10;
/// Most ranges of statuses.
const STATUSES_MAX: usize = 16;

/// As it is written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct HealthCheck {
    #[serde(rename = "type")]
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<Http>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grpc: Option<Grpc>,
    /// The Service's port.
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interval: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter_percent: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unhealthy_threshold: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    healthy_threshold: Option<i64>,
    /// While fewer percent pass, all get requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    panic_threshold: Option<i64>,
}

/// A GET.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Http {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    expected_statuses: Vec<Status>,
}

/// A status, or a range of them as `200-299`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Status {
    One(i64),
    Range(String),
}

/// grpc.health.v1.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Grpc {
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<String>,
}

/// What it means. What is wrong takes all of it with it: endpoints that are meant to be checked
/// must not be taken for well.
pub(super) fn read(
    written: &HealthCheck,
    unreadable: Option<&str>,
    spec: &FieldPath,
    remarks: &mut Remarks,
) -> Check {
    let (at, mut own) = (spec.field("healthCheck"), Remarks::default());
    let probe = probe(written, &at, &mut own);
    let number = |number: Option<i64>, range: RangeInclusive<u32>, field, own: &mut Remarks| {
        let number = number?;
        let converted = u32::try_from(number).ok().filter(|it| range.contains(it));
        if converted.is_none() {
            let what = format!("{number} is out of range");
            own.wrong(&at.field(field), what, format!("use {} to {}", range.start(), range.end()));
        }
        converted
    };
    let time = |text: &Option<String>, field, least, most, own: &mut Remarks| {
        let time = own.duration(text.as_deref(), &at.field(field))?;
        if time < least || time > most {
            let what = "the time is out of range";
            own.wrong(&at.field(field), what, format!("use {least:?} to {most:?}"));
        }
        Some(time)
    };
    let day = Duration::from_secs(24 * 3600);
    let interval = time(&written.interval, "interval", INTERVAL_MIN, day, &mut own);
    let least = Duration::from_millis(1);
    let timeout = time(&written.timeout, "timeout", least, TIMEOUT_MAX, &mut own);
    let port = number(written.port, 1..=65_535, "port", &mut own);
    let jitter = number(written.jitter_percent, 0..=100, "jitterPercent", &mut own);
    let unhealthy = number(written.unhealthy_threshold, 1..=1_000, "unhealthyThreshold", &mut own);
    let healthy = number(written.healthy_threshold, 1..=1_000, "healthyThreshold", &mut own);
    let panic = number(written.panic_threshold, 0..=100, "panicThreshold", &mut own);
    let problem = unreadable.map(|why| format!("it cannot be read: {why}"));
    let said = own.0.first().map(|it| format!("{}: {}", it.at.as_str(), it.what));
    let problem = problem.or(said).map(Text::from);
    remarks.0.extend(own.0);
    Check {
        probe: probe.unwrap_or(Probe::Tcp),
        port: port.and_then(|it| u16::try_from(it).ok()),
        interval: interval.unwrap_or(DEFAULT_INTERVAL),
        jitter_percent: jitter.unwrap_or(DEFAULT_JITTER_PERCENT),
        timeout: timeout.unwrap_or(DEFAULT_TIMEOUT),
        unhealthy_threshold: unhealthy.unwrap_or(DEFAULT_UNHEALTHY),
        healthy_threshold: healthy.unwrap_or(DEFAULT_HEALTHY),
        panic_percent: panic.unwrap_or(0),
        problem,
    }
}

fn probe(written: &HealthCheck, at: &FieldPath, remarks: &mut Remarks) -> Option<Probe> {
    match (&*written.kind, &written.http, &written.grpc) {
        ("TCP", None, None) => Some(Probe::Tcp),
        ("GRPC", None, grpc) => {
            let service = grpc.as_ref().and_then(|it| it.service.as_deref()).unwrap_or_default();
            Some(Probe::Grpc { service: service.into() })
        }
        ("HTTP", Some(http), None) => {
            let at = at.field("http");
            if !http.path.starts_with('/') || http.path.contains([' ', '#']) {
                let what = format!("`{}` is no path", http.path);
                remarks.wrong(&at.field("path"), what, "write for example /healthz");
            }
            let all = &http.expected_statuses;
            if all.len() > STATUSES_MAX {
                let what = format!("at most {STATUSES_MAX} statuses are allowed");
                remarks.wrong(&at.field("expectedStatuses"), what, "write ranges: 200-299");
            }
            let at = at.field("expectedStatuses");
            let statuses = all.iter().enumerate().filter_map(|(index, status)| {
                let range = status.range();
                if range.is_none() {
                    let what = "it is no status, and no range of them";
                    remarks.wrong(&at.index(index), what, "write for example 204, or 200-299");
                }
                range
            });
            let statuses = statuses.collect();
            let host = http.hostname.as_deref().map(Text::from);
            Some(Probe::Http { path: http.path.as_str().into(), host, statuses })
        }
        (kind, ..) => {
            let what = format!("a check of type `{kind}` cannot be read with what is beside it");
            let remedy = "use HTTP with `http`, GRPC with or without `grpc`, or TCP";
            remarks.wrong(&at.field("type"), what, remedy);
            None
        }
    }
}

impl Status {
    fn range(&self) -> Option<(u16, u16)> {
        let status = |number: i64| u16::try_from(number).ok().filter(|it| (100..600).contains(it));
        match self {
            Self::One(one) => status(*one).map(|it| (it, it)),
            Self::Range(text) => {
                let (from, to) = text.split_once('-').unwrap_or((text, text));
                let of = |text: &str| status(text.trim().parse().ok()?);
                let (from, to) = (of(from)?, of(to)?);
                (from <= to).then_some((from, to))
            }
        }
    }
}
