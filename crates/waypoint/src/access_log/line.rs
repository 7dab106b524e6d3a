//! One line of the access log in a given format.
//!
//! What a client has chosen can end no line, no column and no value: control characters, quotes
//! and whatever a terminal would obey are escaped, and so are spaces where the format has no quotes
//! around a value. Values and lines are cut at a bound.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use ambit_http::engine::record::{Flags, Record};
use ambit_model::Text;
use ambit_model::http::access_log::{Fact, Format, Operator, Part, Shape, TimePart};
use ambit_model::printable::{is_printable, printable_json};
use time::OffsetDateTime;

use super::entry::Entry;

/// Characters of one value.
const MAX_VALUE_CHARS: usize = 4 << 10;
/// Bytes of a line after which no more values are written.
const MAX_LINE_BYTES: usize = 64 << 10;

/// A value as a format shows it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shown<'a> {
    /// A text, which anybody may have chosen.
    Text(Cow<'a, str>),
    /// A number, which stays one in JSON.
    Number(u64),
}

impl Shown<'_> {
    fn owned(text: impl Display) -> Self {
        Self::Text(text.to_string().into())
    }
}

/// Writes a line, without its end.
pub(crate) fn line(format: &Format, entry: &Entry<'_>) -> String {
    let mut line = String::with_capacity(512);
    match format.shape() {
        Shape::Text(parts) => {
            for part in parts {
                put(&mut line, part, entry, push_escaped);
            }
        }
        Shape::Json(fields) => {
            for (key, parts) in fields {
                line.push(if line.is_empty() { '{' } else { ',' });
                push_json(&mut line, key);
                line.push(':');
                push_value(&mut line, parts, entry);
            }
            line.push_str(if line.is_empty() { "{}" } else { "}" });
        }
    }
    line
}

/// The fields of a JSON format, without those of which nothing is known.
pub(crate) fn fields<'a>(
    written: &[(Text, Vec<Part>)],
    entry: &Entry<'a>,
) -> Vec<(Text, Shown<'a>)> {
    let known = written.iter().filter_map(|(key, parts)| {
        let shown = match &**parts {
            [Part::Value { operator, max_chars, .. }] => match value(operator, entry)? {
                Shown::Text(text) => Shown::owned(cut(&text, *max_chars)),
                number => number,
            },
            parts => Shown::owned(text_of(parts, entry)),
        };
        Some((key.clone(), shown))
    });
    known.collect()
}

/// A JSON value: a number or nothing if the format is one operator that says so, else a text.
fn push_value(line: &mut String, parts: &[Part], entry: &Entry<'_>) {
    if let [Part::Value { operator, max_chars, .. }] = parts {
        let shown = if line.len() < MAX_LINE_BYTES { value(operator, entry) } else { None };
        return match shown {
            None => line.push_str("null"),
            Some(Shown::Number(number)) => push(line, number),
            Some(Shown::Text(text)) => push_json(line, cut(&text, *max_chars)),
        };
    }
    push_json(line, &text_of(parts, entry));
}

/// Values and what is between them, as they are.
fn text_of(parts: &[Part], entry: &Entry<'_>) -> String {
    let mut text = String::new();
    let whole = |text: &mut String, value: &str, _| text.push_str(value);
    for part in parts {
        put(&mut text, part, entry, whole);
    }
    text
}

fn put(
    line: &mut String,
    part: &Part,
    entry: &Entry<'_>,
    push_text: impl FnOnce(&mut String, &str, bool),
) {
    match part {
        Part::Literal(text) => line.push_str(text),
        Part::Value { operator, max_chars, is_quoted } => {
            let shown = if line.len() < MAX_LINE_BYTES { value(operator, entry) } else { None };
            match shown {
                None => line.push('-'),
                Some(Shown::Number(number)) => push(line, number),
                Some(Shown::Text(text)) if text.is_empty() => line.push('-'),
                // Nobody but the format has chosen what is in it.
                Some(Shown::Text(text)) if matches!(operator, Operator::StartTime(_)) => {
                    line.push_str(&text);
                }
                Some(Shown::Text(text)) => push_text(line, cut(&text, *max_chars), *is_quoted),
            }
        }
    }
}

fn push(line: &mut String, shown: impl Display) {
    write!(line, "{shown}").expect("a string takes everything");
}

fn push_json(line: &mut String, text: &str) {
    let quoted = serde_json::to_string(text).expect("a text is valid JSON");
    line.push_str(&printable_json(&quoted));
}

fn push_escaped(line: &mut String, text: &str, is_quoted: bool) {
    for character in text.chars() {
        match character {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            it if it.is_whitespace() && !(is_quoted && it == ' ') || !is_printable(it) => {
                push(line, format_args!("\\u{{{:x}}}", u32::from(it)));
            }
            it => line.push(it),
        }
    }
}

fn cut(text: &str, max_chars: Option<usize>) -> &str {
    let most = max_chars.unwrap_or(MAX_VALUE_CHARS).min(MAX_VALUE_CHARS);
    text.char_indices().nth(most).map_or(text, |(at, _)| &text[..at])
}

/// What an operator stands for; `None` for what is not known of this request.
fn value<'a>(operator: &Operator, entry: &Entry<'a>) -> Option<Shown<'a>> {
    match operator {
        Operator::StartTime(parts) => Some(Shown::owned(time(parts, entry.started))),
        Operator::Request(first, other) => either(first, other, |name| request(name, entry)),
        Operator::Response(first, other) => either(first, other, |name| response(name, entry)),
        Operator::Fact(fact) => fact_of(*fact, entry),
    }
}

/// What is known under the first name, or under the other.
fn either<'a>(
    first: &str,
    other: &Option<Text>,
    of: impl Fn(&str) -> Option<Shown<'a>>,
) -> Option<Shown<'a>> {
    of(first).or_else(|| of(other.as_deref()?))
}

fn lossy(value: &[u8]) -> Shown<'_> {
    Shown::Text(String::from_utf8_lossy(value))
}

fn request<'a>(name: &str, entry: &Entry<'a>) -> Option<Shown<'a>> {
    let record = entry.record?;
    let head = record.head.as_ref()?;
    match name {
        ":method" => Some(Shown::Text(head.method().as_str().into())),
        ":path" => head.path().map(|path| Shown::Text(path.as_str().into())),
        ":authority" | "host" => Some(Shown::Text(head.authority().as_str().into())),
        ":scheme" => Some(Shown::Text(entry.arrival.scheme.as_str().into())),
        "x-envoy-original-path" => {
            record.original_path.as_ref().map(|path| Shown::Text((&**path).into()))
        }
        _ => entry.field(name).map(lossy),
    }
}

fn response<'a>(name: &str, entry: &Entry<'a>) -> Option<Shown<'a>> {
    let record = entry.record?;
    match name {
        ":status" => Some(Shown::Number(record.status.into())).filter(|_| record.status != 0),
        // Envoy sets it as a field, whose value is a text.
        "x-envoy-upstream-service-time" => {
            record.upstream_time.map(|it| Shown::owned(it.as_millis()))
        }
        _ => {
            let fields = record.response.as_ref()?;
            let mut named =
                fields.iter().filter(|it| it.name.eq_ignore_ascii_case(name.as_bytes()));
            named.next().map(|field| lossy(field.value))
        }
    }
}

fn fact_of<'a>(fact: Fact, entry: &Entry<'a>) -> Option<Shown<'a>> {
    let Entry { arrival, record, .. } = entry;
    let (local, remote) = (arrival.destination, arrival.client);
    let address = |it: SocketAddr| Some(Shown::owned(it));
    let text = |it: &'a str| Some(Shown::Text(it.into()));
    match fact {
        Fact::Protocol => record.and_then(|it| text(it.protocol.as_str())),
        Fact::ResponseCode => Some(Shown::Number(record.map_or(0, |it| it.status.into()))),
        Fact::ResponseFlags => text(record.map_or("-", |it| it.flags.letters())),
        Fact::ResponseCodeDetails => Some(Shown::owned(code_details((*record)?))),
        Fact::ConnectionTerminationDetails => entry.error.and_then(text),
        Fact::UpstreamTransportFailureReason => {
            let failed = record.filter(|it| it.flags == Flags::ConnectFailure);
            failed.and_then(|it| text(&it.details))
        }
        Fact::BytesReceived => Some(Shown::Number(entry.received_bytes)),
        Fact::BytesSent => Some(Shown::Number(entry.sent_bytes)),
        Fact::Duration => millis(entry.duration),
        Fact::ResponseDuration => record.and_then(|it| millis(it.upstream_time?)),
        Fact::UpstreamHost => entry.endpoint.and_then(address),
        Fact::UpstreamCluster => entry.cluster().map(Shown::owned),
        // Requests share connections, which belong to no request.
        Fact::UpstreamLocalAddress => None,
        Fact::RequestedServerName => entry.server_name.and_then(text),
        Fact::Attempts => record.map(|it| Shown::Number(it.attempts.into())),
        Fact::UpstreamPeer => entry.endpoint_identity().map(Shown::owned),
        Fact::DownstreamLocalAddress => address(local),
        Fact::DownstreamLocalIp => Some(Shown::owned(local.ip())),
        Fact::DownstreamLocalPort => Some(Shown::Number(local.port().into())),
        Fact::DownstreamRemoteAddress => address(remote),
        Fact::DownstreamRemoteIp => Some(Shown::owned(remote.ip())),
        Fact::DownstreamRemotePort => Some(Shown::Number(remote.port().into())),
        Fact::DownstreamPeer => arrival.source.identity().map(Shown::owned),
        Fact::DownstreamLocalPeer => text(&entry.names.identity),
        Fact::RouteName => entry.route_name().map(Shown::owned),
        Fact::GrpcStatus => record.and_then(|it| it.grpc_status).map(|it| Shown::Number(it.into())),
        Fact::TraceId => {
            entry.trace().map(|it| Shown::owned(format_args!("{:032x}", it.trace_id())))
        }
        Fact::Hostname => text(&entry.names.pod),
        Fact::Reason => record.and_then(|it| text(it.reason)),
        Fact::Details => record.and_then(|it| text(&it.details)),
        Fact::AllowedBy => record.and_then(|it| it.allowed_by.as_ref()).map(Shown::owned),
        Fact::Audit => record.and_then(|it| joined(&it.audits)).map(Shown::owned),
        Fact::DryRun => record.and_then(|it| joined(&it.dry_run)).map(Shown::owned),
    }
}

fn millis<'a>(duration: std::time::Duration) -> Option<Shown<'a>> {
    u64::try_from(duration.as_millis()).ok().map(Shown::Number)
}

/// Several values as one; nothing if there is none.
pub(crate) fn joined(values: &[impl Display]) -> Option<String> {
    let all: Vec<String> = values.iter().map(ToString::to_string).collect();
    Some(all.join(", ")).filter(|text| !text.is_empty())
}

/// Who made the response and why, in Envoy's words where it has one. It has no spaces, because
/// Istio's default format has no quotes around it.
pub(super) fn code_details(record: &Record) -> String {
    let word = match record.reason {
        "ok" => return "via_upstream".to_owned(),
        "denied" => "rbac_access_denied",
        "no_route" => "route_not_found",
        "no_endpoint" => "no_healthy_upstream",
        "no_subset" => "cluster_not_found",
        "timeout" => "response_timeout",
        "redirect" | "respond" => "direct_response",
        "fault" => "fault_filter_abort",
        other => other,
    };
    match record.details.is_empty() {
        true => word.to_owned(),
        false => format!("{word}{{{}}}", record.details.replace(char::is_whitespace, "_")),
    }
}

fn time(parts: &[TimePart], at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or_default();
    let date = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let mut text = String::with_capacity(24);
    for part in parts {
        match part {
            TimePart::Literal(literal) => text.push_str(literal),
            TimePart::Year => push(&mut text, format_args!("{:04}", date.year())),
            TimePart::Month => push(&mut text, format_args!("{:02}", u8::from(date.month()))),
            TimePart::Day => push(&mut text, format_args!("{:02}", date.day())),
            TimePart::Hour => push(&mut text, format_args!("{:02}", date.hour())),
            TimePart::Minute => push(&mut text, format_args!("{:02}", date.minute())),
            TimePart::Second => push(&mut text, format_args!("{:02}", date.second())),
            TimePart::Epoch => push(&mut text, since.as_secs()),
            TimePart::Fraction(digits) => {
                let all = format!("{:09}", since.subsec_nanos());
                text.push_str(&all[..usize::from(*digits).min(all.len())]);
            }
            TimePart::Offset => text.push_str("+0000"),
            TimePart::Zone => text.push_str("UTC"),
        }
    }
    text
}

#[cfg(test)]
mod tests;
