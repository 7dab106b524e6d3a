//! Formats of the access log's lines, with Envoy's command operators.
//!
//! A format is read once, when it is configured: an operator that is not known is an error there,
//! never a gap in the log. What an operator stands for is for the one who writes lines to say.

use std::fmt;

use thiserror::Error;

use crate::Text;

/// Istio's default text format.
pub const DEFAULT_TEXT: &str = concat!(
    "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" ",
    "%RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% ",
    "%CONNECTION_TERMINATION_DETAILS% \"%UPSTREAM_TRANSPORT_FAILURE_REASON%\" ",
    "%BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% ",
    "\"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" ",
    "\"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER_RAW% ",
    "%UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% ",
    "%REQUESTED_SERVER_NAME% %ROUTE_NAME%\n",
);

/// Istio's default JSON format: each key with the format of its value.
pub const DEFAULT_JSON: [(&str, &str); 24] = [
    ("start_time", "%START_TIME%"),
    ("method", "%REQ(:METHOD)%"),
    ("path", "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%"),
    ("protocol", "%PROTOCOL%"),
    ("response_code", "%RESPONSE_CODE%"),
    ("response_flags", "%RESPONSE_FLAGS%"),
    ("response_code_details", "%RESPONSE_CODE_DETAILS%"),
    ("connection_termination_details", "%CONNECTION_TERMINATION_DETAILS%"),
    ("upstream_transport_failure_reason", "%UPSTREAM_TRANSPORT_FAILURE_REASON%"),
    ("bytes_received", "%BYTES_RECEIVED%"),
    ("bytes_sent", "%BYTES_SENT%"),
    ("duration", "%DURATION%"),
    ("upstream_service_time", "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%"),
    ("x_forwarded_for", "%REQ(X-FORWARDED-FOR)%"),
    ("user_agent", "%REQ(USER-AGENT)%"),
    ("request_id", "%REQ(X-REQUEST-ID)%"),
    ("authority", "%REQ(:AUTHORITY)%"),
    ("upstream_host", "%UPSTREAM_HOST%"),
    ("upstream_cluster", "%UPSTREAM_CLUSTER_RAW%"),
    ("upstream_local_address", "%UPSTREAM_LOCAL_ADDRESS%"),
    ("downstream_local_address", "%DOWNSTREAM_LOCAL_ADDRESS%"),
    ("downstream_remote_address", "%DOWNSTREAM_REMOTE_ADDRESS%"),
    ("requested_server_name", "%REQUESTED_SERVER_NAME%"),
    ("route_name", "%ROUTE_NAME%"),
];

/// Bytes of a format, all keys and values together.
pub const MAX_FORMAT_BYTES: usize = 16 << 10;
/// Operators of a format.
const MAX_OPERATORS: usize = 200;

/// A format, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    written: Written,
    shape: Shape,
    reads_response: bool,
}

/// A format as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// A line of text.
    Text(Text),
    /// A JSON object: keys, and the formats of their values.
    Json(Vec<(Text, Text)>),
}

/// What a line is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A line of text.
    Text(Vec<Part>),
    /// A JSON object: keys, and what their values are made of.
    Json(Vec<(Text, Vec<Part>)>),
}

/// A part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text as it is.
    Literal(Text),
    /// What is known of the request.
    Value {
        /// What.
        operator: Operator,
        /// Characters at which it is cut.
        max_chars: Option<usize>,
        /// Whether the format has a quote before it, so that spaces in it end no column.
        is_quoted: bool,
    },
}

/// What an operator stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operator {
    /// When the request's head was read.
    StartTime(Vec<TimePart>),
    /// A field of the request, or if it has none of that name, another.
    Request(Text, Option<Text>),
    /// A field of the response, or if it has none of that name, another.
    Response(Text, Option<Text>),
    /// A fact without a parameter.
    Fact(Fact),
}

/// A part of a time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say what they are; strftime's letters are in `time`")]
pub enum TimePart {
    Literal(Text),
    Year,
    Month,
    Day,
    Hour,
    Minute,
    Second,
    /// Seconds since 1970.
    Epoch,
    /// Digits of the second's fraction, 1 to 9.
    Fraction(u8),
    /// `+0000`: times are in UTC.
    Offset,
    /// `UTC`.
    Zone,
}

macro_rules! facts {
    ($($(#[$doc:meta])* $variant:ident = $($name:literal)|+,)*) => {
        /// A fact about a request, by the operators that name it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Fact {
            $($(#[$doc])* $variant,)*
        }

        const FACTS: &[(&str, Fact)] = &[$($(($name, Fact::$variant),)+)*];
    };
}

facts! {
    /// The version that the client spoke.
    Protocol = "PROTOCOL",
    /// The status that the client saw.
    ResponseCode = "RESPONSE_CODE",
    /// Istio's letters for what went wrong.
    ResponseFlags = "RESPONSE_FLAGS",
    /// Who made the response, and why.
    ResponseCodeDetails = "RESPONSE_CODE_DETAILS",
    /// Why the connection ended, where that was no request's affair.
    ConnectionTerminationDetails = "CONNECTION_TERMINATION_DETAILS",
    /// Why no connection to the endpoint came about.
    UpstreamTransportFailureReason = "UPSTREAM_TRANSPORT_FAILURE_REASON",
    /// Bytes of the request's body.
    BytesReceived = "BYTES_RECEIVED",
    /// Bytes of the response's body.
    BytesSent = "BYTES_SENT",
    /// Milliseconds from the request's head to the end of its response.
    Duration = "DURATION",
    /// Milliseconds until the response's head.
    ResponseDuration = "RESPONSE_DURATION",
    /// The endpoint's address and port.
    UpstreamHost = "UPSTREAM_HOST" | "UPSTREAM_REMOTE_ADDRESS",
    /// The service, as Istio's waypoints name its cluster.
    UpstreamCluster = "UPSTREAM_CLUSTER" | "UPSTREAM_CLUSTER_RAW",
    /// The proxy's own socket towards the endpoint; not known, because connections are shared.
    UpstreamLocalAddress = "UPSTREAM_LOCAL_ADDRESS",
    /// Attempts that were made.
    Attempts = "UPSTREAM_REQUEST_ATTEMPT_COUNT",
    /// The identity that the endpoint must prove.
    UpstreamPeer = "UPSTREAM_PEER_URI_SAN",
    /// What the client connected to.
    DownstreamLocalAddress = "DOWNSTREAM_LOCAL_ADDRESS",
    /// Its IP address.
    DownstreamLocalIp = "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT",
    /// Its port.
    DownstreamLocalPort = "DOWNSTREAM_LOCAL_PORT",
    /// The client's address and port.
    DownstreamRemoteAddress = "DOWNSTREAM_REMOTE_ADDRESS" | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS",
    /// The client's IP address.
    DownstreamRemoteIp = "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT"
        | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT",
    /// The client's port.
    DownstreamRemotePort = "DOWNSTREAM_REMOTE_PORT" | "DOWNSTREAM_DIRECT_REMOTE_PORT",
    /// The client's proven identity.
    DownstreamPeer = "DOWNSTREAM_PEER_URI_SAN",
    /// The proxy's own identity.
    DownstreamLocalPeer = "DOWNSTREAM_LOCAL_URI_SAN",
    /// The name of the server in TLS; a waypoint reads none.
    RequestedServerName = "REQUESTED_SERVER_NAME",
    /// The rule of the route.
    RouteName = "ROUTE_NAME",
    /// The status of gRPC, as a number.
    GrpcStatus = "GRPC_STATUS" | "GRPC_STATUS_NUMBER",
    /// The trace that the request belongs to.
    TraceId = "TRACE_ID",
    /// The proxy's own host.
    Hostname = "HOSTNAME",
    /// Ambit's word for what happened, as in `x-ambit-reason`.
    Reason = "AMBIT_REASON",
    /// The sentence for it.
    Details = "AMBIT_DETAILS",
    /// The rule of the policy that let it pass.
    AllowedBy = "AMBIT_ALLOWED_BY",
    /// AUDIT policies that match.
    Audit = "AMBIT_AUDIT",
    /// What policies on trial would deny.
    DryRun = "AMBIT_DRY_RUN",
}

/// Why a format is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// It is too long.
    #[error("the format has more than {MAX_FORMAT_BYTES} bytes; make it shorter")]
    Length,
    /// It has too many operators.
    #[error("the format has more than {MAX_OPERATORS} operators; leave some out")]
    TooMany,
    /// Nothing ends an operator.
    #[error("`{0}` has no closing %; write a percent sign that is meant as %%")]
    Open(String),
    /// No operator of that name.
    #[error("operator %{0}% is not supported; docs/guide/telemetry.md lists those that are")]
    Unknown(String),
    /// What is in its brackets, or behind the colon, is wrong.
    #[error("operator %{0}%: {1}")]
    Parameter(String, &'static str),
}

impl Format {
    /// Reads a text format. A line feed is added where it has none.
    pub fn text(format: &str) -> Result<Self, FormatError> {
        if format.len() > MAX_FORMAT_BYTES {
            return Err(FormatError::Length);
        }
        let parts = parts(format.trim_end_matches(['\n', '\r']))?;
        within(&parts)?;
        let reads_response = parts.iter().any(reads_response);
        let written = Written::Text(format.into());
        Ok(Self { written, shape: Shape::Text(parts), reads_response })
    }

    /// Reads a JSON format: keys with the formats of their values.
    pub fn json<'f>(
        fields: impl IntoIterator<Item = (&'f str, &'f str)>,
    ) -> Result<Self, FormatError> {
        let (mut read, mut written, mut bytes) = (Vec::new(), Vec::new(), 0);
        for (key, format) in fields {
            bytes += key.len() + format.len();
            if bytes > MAX_FORMAT_BYTES {
                return Err(FormatError::Length);
            }
            let key = Text::from(key);
            read.push((key.clone(), parts(format)?));
            written.push((key, format.into()));
        }
        let all = || read.iter().flat_map(|(_, parts)| parts);
        within(all())?;
        let reads_response = all().any(reads_response);
        Ok(Self { written: Written::Json(written), shape: Shape::Json(read), reads_response })
    }

    /// Istio's default text.
    pub fn default_text() -> Self {
        Self::text(DEFAULT_TEXT).expect("Istio's own format is one")
    }

    /// Istio's default JSON.
    pub fn default_json() -> Self {
        Self::json(DEFAULT_JSON).expect("Istio's own format is one")
    }

    /// As it is written.
    pub fn written(&self) -> &Written {
        &self.written
    }

    /// What a line is.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Whether a field of the response is asked for that the proxy does not know anyway.
    pub fn reads_response(&self) -> bool {
        self.reads_response
    }
}

fn reads_response(part: &Part) -> bool {
    let Part::Value { operator: Operator::Response(first, other), .. } = part else {
        return false;
    };
    [Some(first), other.as_ref()].into_iter().flatten().any(|name| !is_own(name))
}

/// Whether the name is of a field by which a proxy reports, which needs no head to be known.
pub fn is_own(name: &str) -> bool {
    matches!(name, "x-envoy-upstream-service-time" | ":status")
}

fn within<'p>(parts: impl IntoIterator<Item = &'p Part>) -> Result<(), FormatError> {
    let operators = parts.into_iter().filter(|it| matches!(it, Part::Value { .. }));
    if operators.count() > MAX_OPERATORS { Err(FormatError::TooMany) } else { Ok(()) }
}

fn parts(format: &str) -> Result<Vec<Part>, FormatError> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = format;
    let mut is_quoted = false;
    while let Some(at) = rest.find('%') {
        literal.push_str(&rest[..at]);
        let quotes = rest[..at].matches('"').count();
        is_quoted ^= quotes % 2 == 1;
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix('%') {
            literal.push('%');
            rest = behind;
            continue;
        }
        let end = end_of(rest).ok_or_else(|| FormatError::Open(format!("%{rest}")))?;
        if !literal.is_empty() {
            parts.push(Part::Literal(std::mem::take(&mut literal).into()));
        }
        let (operator, max_chars) = operator(&rest[..end])?;
        parts.push(Part::Value { operator, max_chars, is_quoted });
        rest = &rest[end + 1..];
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        parts.push(Part::Literal(literal.into()));
    }
    Ok(parts)
}

/// Where the percent sign is that ends an operator; those in brackets do not.
fn end_of(text: &str) -> Option<usize> {
    let bracket = text.find('(').filter(|open| !text[..*open].contains('%'));
    let from = match bracket {
        Some(open) => open + text[open..].find(')')?,
        None => 0,
    };
    text[from..].find('%').map(|at| from + at)
}

fn operator(text: &str) -> Result<(Operator, Option<usize>), FormatError> {
    let wrong = |why| FormatError::Parameter(text.to_owned(), why);
    let (name, parameter, behind) = match text.split_once('(') {
        None => {
            let (name, behind) = text.split_once(':').map_or((text, None), |(n, b)| (n, Some(b)));
            (name, None, behind)
        }
        Some((name, rest)) => {
            let (parameter, behind) =
                rest.rsplit_once(')').ok_or_else(|| wrong("has no closing bracket"))?;
            let behind = match behind.strip_prefix(':') {
                None if behind.is_empty() => None,
                None => return Err(wrong("only :LENGTH may follow the bracket")),
                behind => behind,
            };
            (name, Some(parameter), behind)
        }
    };
    let max_chars = match behind.map(str::parse) {
        None => None,
        Some(Ok(length)) => Some(length),
        Some(Err(_)) => return Err(wrong("the length behind the colon is no number")),
    };
    let fields = |parameter: Option<&str>| {
        let names = parameter.unwrap_or_default();
        let (first, other) = names.split_once('?').map_or((names, None), |(a, b)| (a, Some(b)));
        let is_name = |it: &str| !it.is_empty() && it.bytes().all(|it| it.is_ascii_graphic());
        if !is_name(first) || other.is_some_and(|it| !is_name(it)) {
            return Err(wrong("takes one or two names of fields, as in REQ(X?Y)"));
        }
        let lower = |name: &str| Text::from(name.to_ascii_lowercase());
        Ok((lower(first), other.map(lower)))
    };
    let operator = match name {
        "START_TIME" => {
            let format = parameter.filter(|it| !it.is_empty()).unwrap_or("%Y-%m-%dT%H:%M:%S.%3fZ");
            Operator::StartTime(time(format).map_err(wrong)?)
        }
        "REQ" => fields(parameter).map(|(first, other)| Operator::Request(first, other))?,
        "RESP" => fields(parameter).map(|(first, other)| Operator::Response(first, other))?,
        name => {
            let fact = FACTS.iter().find(|(known, _)| *known == name).map(|(_, fact)| *fact);
            let fact = fact.ok_or_else(|| FormatError::Unknown(text.to_owned()))?;
            // GRPC_STATUS(NUMBER) and its kin choose a spelling; the number is always written.
            let takes_parameter = fact == Fact::GrpcStatus;
            if parameter.is_some_and(|it| !it.is_empty() && !takes_parameter) {
                return Err(wrong("takes no parameter"));
            }
            Operator::Fact(fact)
        }
    };
    Ok((operator, max_chars))
}

/// Reads a format of strftime.
fn time(format: &str) -> Result<Vec<TimePart>, &'static str> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            literal.push(letter);
            continue;
        }
        let read: &[TimePart] = match letters.next() {
            Some('%') => {
                literal.push('%');
                continue;
            }
            Some('Y') => &[TimePart::Year],
            Some('m') => &[TimePart::Month],
            Some('d') => &[TimePart::Day],
            Some('H') => &[TimePart::Hour],
            Some('M') => &[TimePart::Minute],
            Some('S') => &[TimePart::Second],
            Some('s') => &[TimePart::Epoch],
            Some('z') => &[TimePart::Offset],
            Some('Z') => &[TimePart::Zone],
            Some('f') => &[TimePart::Fraction(9)],
            Some(digit @ '1'..='9') if letters.clone().next() == Some('f') => {
                letters.next();
                let digits = digit.to_digit(10).and_then(|it| u8::try_from(it).ok());
                &[TimePart::Fraction(digits.expect("a digit"))]
            }
            Some('F') => {
                let dash = || TimePart::Literal("-".into());
                &[TimePart::Year, dash(), TimePart::Month, dash(), TimePart::Day]
            }
            Some('T') => {
                let colon = || TimePart::Literal(":".into());
                &[TimePart::Hour, colon(), TimePart::Minute, colon(), TimePart::Second]
            }
            _ => {
                return Err("only %Y %m %d %H %M %S %F %T %s %f %1f to %9f %z %Z and %% are known");
            }
        };
        if !literal.is_empty() {
            parts.push(TimePart::Literal(std::mem::take(&mut literal).into()));
        }
        parts.extend_from_slice(read);
    }
    if !literal.is_empty() {
        parts.push(TimePart::Literal(literal.into()));
    }
    Ok(parts)
}

impl fmt::Display for Fact {
    /// The operator's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = FACTS.iter().find(|(_, fact)| fact == self).map(|(name, _)| *name);
        f.write_str(name.expect("every fact is in the table"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(format: &str, expected: &str) {
        let told = match Format::text(format) {
            Ok(Format { shape: Shape::Text(parts), .. }) => {
                parts.iter().map(tell).collect::<Vec<_>>().join(" ")
            }
            Ok(_) => unreachable!("it is text"),
            Err(error) => format!("error: {error}"),
        };
        assert_eq!(told, expected, "{format}");
    }

    fn tell(part: &Part) -> String {
        let Part::Value { operator, max_chars, is_quoted } = part else {
            let Part::Literal(text) = part else { unreachable!("there are two") };
            return format!("'{text}'");
        };
        let fields = |first: &Text, other: &Option<Text>| match other {
            Some(other) => format!("{first}?{other}"),
            None => first.to_string(),
        };
        let told = match operator {
            Operator::StartTime(parts) => format!("time/{}", parts.len()),
            Operator::Request(first, other) => format!("req:{}", fields(first, other)),
            Operator::Response(first, other) => format!("resp:{}", fields(first, other)),
            Operator::Fact(fact) => fact.to_string(),
        };
        let cut = max_chars.map_or(String::new(), |it| format!("<{it}"));
        format!("{told}{cut}{}", if *is_quoted { "\"" } else { "" })
    }

    #[test]
    fn operators_are_read_with_their_parameters() {
        check("", "");
        check("plain 100%%\n", "'plain 100%'");
        check("%REQ(X-A?:PATH):10%!", "req:x-a?:path<10 '!'");
        check(
            "\"%PROTOCOL% %DURATION%\" %PROTOCOL%",
            "'\"' PROTOCOL\" ' ' DURATION\" '\" ' PROTOCOL",
        );
        check("%START_TIME%", "time/14");
        check("%START_TIME(%s.%3f)%", "time/3");
        check("%GRPC_STATUS(NUMBER)%", "GRPC_STATUS");
        check("%UPSTREAM_CLUSTER_RAW%", "UPSTREAM_CLUSTER");
        check("%RESP(grpc-message)%", "resp:grpc-message");
    }

    #[test]
    fn what_is_not_known_is_said() {
        let unknown = "is not supported; docs/guide/telemetry.md lists those that are";
        check("%BOGUS%", &format!("error: operator %BOGUS% {unknown}"));
        check(
            "%DYNAMIC_METADATA(a:b)%",
            &format!("error: operator %DYNAMIC_METADATA(a:b)% {unknown}"),
        );
        check(
            "50% off",
            "error: `% off` has no closing %; write a percent sign that is meant as %%",
        );
        check(
            "%REQ(a%",
            "error: `%REQ(a%` has no closing %; write a percent sign that is meant as %%",
        );
        check(
            "%REQ()%",
            "error: operator %REQ()%: takes one or two names of fields, as in REQ(X?Y)",
        );
        check("%REQ(a):b%", "error: operator %REQ(a):b%: the length behind the colon is no number");
        check("%PROTOCOL(a)%", "error: operator %PROTOCOL(a)%: takes no parameter");
        let time = "only %Y %m %d %H %M %S %F %T %s %f %1f to %9f %z %Z and %% are known";
        check("%START_TIME(%q)%", &format!("error: operator %START_TIME(%q)%: {time}"));
    }

    #[test]
    fn a_format_is_bounded() {
        assert_eq!(Format::text(&"a".repeat(MAX_FORMAT_BYTES + 1)), Err(FormatError::Length));
        assert_eq!(Format::text(&"%PROTOCOL%".repeat(201)), Err(FormatError::TooMany));
        let long = "a".repeat(MAX_FORMAT_BYTES);
        assert_eq!(Format::json([("key", &*long)]), Err(FormatError::Length));
    }

    #[test]
    fn istios_own_formats_are_read_and_need_no_response() {
        assert!(!Format::default_text().reads_response());
        assert!(!Format::default_json().reads_response());
        let own = Format::text("%RESP(X-App?X-Other)%").expect("a format");
        assert!(own.reads_response());
    }
}
