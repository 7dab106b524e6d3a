//! The access log: one line for each request, and for each connection that is no HTTP.
//!
//! A line has Ambit's own form, which [`own`] writes like every other line of the log, or the form
//! that a format asks for (`line`). Which of them is for the caller to say.

mod attributes;
mod entry;
#[cfg(test)]
pub(crate) mod fixture;
mod line;

use ambit_http::engine::record::Record;
use ambit_model::http::access_log::Format;
use ambit_model::http::rule::Origin;

pub(crate) use entry::{Entry, Names, Passage};
pub(crate) use line::{Shown, fields, line};

/// Whether lines are logged at all, by the levels that are set.
fn is_on() -> bool {
    tracing::enabled!(target: "access", tracing::Level::INFO)
}

/// Writes a line of a format.
pub(crate) fn formatted(format: &Format, entry: &Entry<'_>) {
    if is_on() {
        let line = line(format, entry);
        tracing::event!(target: "access", tracing::Level::INFO, whole_line = &*line);
    }
}

/// Writes the line in Ambit's own form.
pub(crate) fn own(entry: &Entry<'_>) {
    match entry.record {
        Some(record) => request(entry, record),
        None => connection(entry),
    }
}

fn request(entry: &Entry<'_>, record: &Record) {
    let Entry { arrival, service, .. } = entry;
    let head = record.head.as_ref();
    let field = |name: &'static str| {
        let value = head.and_then(|head| head.values(name).next());
        value.map(String::from_utf8_lossy)
    };
    let (user_agent, request_id) = (field("user-agent"), field("x-request-id"));
    tracing::event!(
        target: "access",
        tracing::Level::INFO,
        method = head.map(|head| head.method().as_str()),
        path = head.and_then(|head| head.path()).map(ambit_http::Path::as_str),
        protocol = record.protocol.as_str(),
        response_code = record.status,
        response_flags = record.flags.letters(),
        reason = record.reason,
        details = Some(&*record.details).filter(|text| !text.is_empty()),
        bytes_received = record.received_bytes,
        bytes_sent = record.sent_bytes,
        duration = %format_args!("{}ms", entry.duration.as_millis()),
        upstream_service_time = record.upstream_time.map(|it| it.as_millis()),
        attempts = record.attempts,
        authority = head.map(|head| head.authority().as_str()),
        user_agent = user_agent.as_deref(),
        request_id = request_id.as_deref(),
        trace_id = entry.trace().map(|it| format!("{:032x}", it.trace_id())),
        src.addr = %arrival.client,
        src.workload = arrival.workload.as_ref().map(|it| &*it.name),
        src.identity = arrival.source.identity().map(tracing::field::display),
        dst.addr = %arrival.destination,
        dst.service = service.map(|it| &*it.key.hostname),
        upstream_host = entry.endpoint.map(tracing::field::display),
        route_name = record.route.as_ref().map(|it| tracing::field::display(written(it))),
        allowed_by = record.allowed_by.as_ref().map(tracing::field::display),
        ext_authz = checks(record),
        audit = line::joined(&record.audits),
        dry_run = trial(record),
        rate_limits = limits(record),
        "request complete"
    );
}

/// What authorization services have answered, as `PROVIDER=OUTCOME`.
fn checks(record: &Record) -> Option<String> {
    let said = record.checks.iter().map(|it| format!("{}={}", it.provider, it.outcome.as_str()));
    let said: Vec<String> = said.collect();
    (!said.is_empty()).then(|| said.join(","))
}

/// What policies on trial would have done.
fn trial(record: &Record) -> Option<String> {
    let said: Vec<String> = record.dry_run.iter().map(|it| format!("would be {it}")).collect();
    (!said.is_empty()).then(|| said.join("; "))
}

/// The limits that were reached or not counted, as `NAMESPACE/POLICY LIMIT=OUTCOME`.
fn limits(record: &Record) -> Option<String> {
    let said = record.limits.iter();
    let said = said.map(|it| format!("{} {}={}", it.policy, it.limit, it.outcome.as_str()));
    let said: Vec<String> = said.collect();
    (!said.is_empty()).then(|| said.join(","))
}

fn connection(entry: &Entry<'_>) {
    let Entry { arrival, .. } = entry;
    tracing::event!(
        target: "access",
        tracing::Level::INFO,
        bytes_received = entry.received_bytes,
        bytes_sent = entry.sent_bytes,
        duration = %format_args!("{}ms", entry.duration.as_millis()),
        src.addr = %arrival.client,
        src.workload = arrival.workload.as_ref().map(|it| &*it.name),
        src.identity = arrival.source.identity().map(tracing::field::display),
        dst.addr = %arrival.destination,
        upstream_host = entry.endpoint.map(tracing::field::display),
        requested_server_name = entry.server_name,
        route_name = entry.route.map(|it| tracing::field::display(written(it))),
        error = entry.error,
        "connection complete"
    );
}

/// The name of a rule in Ambit's own form.
fn written(origin: &Origin) -> String {
    format!("{}/{} rule {}", origin.namespace, origin.name, origin.index)
}
