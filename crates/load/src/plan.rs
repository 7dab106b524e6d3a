//! The validated plan of a run: its target, rate, duration and connections.

use std::fmt;
use std::time::Duration;

use ambit_words::durations::{DurationError, parse_duration, parse_duration_or_seconds};
use serde::{Deserialize, Serialize};

use super::flags::{MAX_CONNECTIONS, MAX_SECONDS};

/// The highest rate, in requests per second.
pub(super) const MAX_RATE: f64 = 1e7;
/// The most threads of one run.
pub(super) const MAX_THREADS: usize = 64;
/// The largest body that is sent, and the largest answer that is awaited of a TCP server.
pub(super) const MAX_BODY_BYTES: usize = 16 << 20;
/// What one write of a TCP stream holds unless the plan says otherwise.
pub(super) const STREAM_WRITE_BYTES: usize = 256 << 10;

/// A run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Where to.
    pub target: Target,
    /// What is sent each time.
    pub request: Request,
    /// How fast.
    pub pace: Pace,
    /// For how long, the warm-up not included.
    pub extent: Extent,
    /// Load before anything is counted.
    pub warm_up: Duration,
    /// Connections from the start.
    pub connections: usize,
    /// Connections at most, when all are busy as a request becomes due.
    pub max_connections: usize,
    /// Concurrent streams per connection of HTTP/2.
    pub streams: usize,
    /// A new connection for each request.
    pub close: bool,
    /// Threads, each with its share of connections and of the rate.
    pub threads: usize,
    /// The longest wait for one answer.
    pub timeout: Duration,
    /// Goes on, and counts failures, when the server cannot be reached at the start.
    pub keep_going: bool,
}

/// Where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// As written.
    pub url: String,
    /// How it is spoken to.
    pub protocol: Protocol,
    /// Host and port to connect to.
    pub address: String,
    /// What HTTP names as the host: as written, without a port that is the scheme's.
    pub authority: String,
    /// Path and query.
    pub path: String,
}

/// How a server is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2 without TLS, with prior knowledge.
    H2c,
    /// Messages on WebSockets, one on each connection: an echo of each is expected.
    #[serde(rename = "websocket")]
    #[value(name = "websocket")]
    WebSocket,
    /// Messages on bidirectional gRPC streams over h2c: an echo of each is expected.
    GrpcStream,
    /// Sends bytes, and expects as many back (or --response-size).
    Tcp,
    /// Sends bytes as fast as possible to a sink, which answers at the end how many arrived.
    TcpStream,
}

/// What is sent each time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// HTTP's method.
    pub method: String,
    /// Further header fields, as name and value.
    pub headers: Vec<(String, String)>,
    /// HTTP's body, or what goes over TCP.
    pub body: Vec<u8>,
    /// How much a TCP server answers.
    pub response_bytes: usize,
}

/// How fast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Open loop: so many requests per second become due, whatever the answers do.
    Rate(f64),
    /// Closed loop: each connection's next request leaves when its answer has come.
    Max,
}

/// How much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// As many as become due in this time.
    Time(Duration),
    /// So many requests.
    Count(u64),
}

/// A plan that cannot be followed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// TLS is the mesh's work.
    #[error("{url}: https is not spoken here, the mesh encrypts; write http://HOST[:PORT]/PATH")]
    Https {
        /// As written.
        url: String,
    },
    /// Neither HTTP nor TCP.
    #[error("{url:?} is no URL to load; write http://HOST[:PORT]/PATH or tcp://HOST:PORT")]
    Url {
        /// As written.
        url: String,
    },
    /// The scheme does not go with the protocol.
    #[error("{url}: {protocol} wants a URL that starts with {scheme}")]
    Scheme {
        /// As written.
        url: String,
        /// Asked for.
        protocol: Protocol,
        /// That goes with it.
        scheme: &'static str,
    },
    /// Not a rate.
    #[error("{text:?} is not a rate; write 450/s, 30/m, 450 or max, up to {MAX_RATE} per second")]
    Rate {
        /// As written.
        text: String,
    },
    /// Not a duration, or too long a one.
    #[error(transparent)]
    Duration(#[from] DurationError),
    /// Not a header field.
    #[error("{text:?} is not a header; write it as \"Name: value\"")]
    Header {
        /// As written.
        text: String,
    },
    /// Not a method, or something else behind it.
    #[error("{text:?} is not a method; write GET, POST or another word")]
    Method {
        /// As written.
        text: String,
    },
    /// A number out of its bounds.
    #[error("{what} must be between 1 and {most}, not {number}")]
    Bounds {
        /// Of what.
        what: &'static str,
        /// As written.
        number: usize,
        /// The upper bound.
        most: usize,
    },
    /// Fewer at most than at the start.
    #[error("--max-connections {most} is less than the {connections} of --connections")]
    FewerAtMost {
        /// At the start.
        connections: usize,
        /// At most.
        most: usize,
    },
    /// A thread without a connection would send nothing.
    #[error("{threads} threads need at least as many connections; raise --connections")]
    Threads {
        /// As written.
        threads: usize,
    },
    /// What cannot be combined.
    #[error("{what} has no meaning with {protocol}; leave it out")]
    Meaningless {
        /// The flag.
        what: &'static str,
        /// The protocol.
        protocol: Protocol,
    },
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http1 => "HTTP/1.1",
            Self::H2c => "h2c",
            Self::WebSocket => "WebSocket",
            Self::GrpcStream => "gRPC streams",
            Self::Tcp => "TCP",
            Self::TcpStream => "a TCP stream",
        })
    }
}

impl Pace {
    /// Of an open loop, in requests per second.
    pub(super) fn rate(self) -> Option<f64> {
        match self {
            Self::Rate(rate) => Some(rate),
            Self::Max => None,
        }
    }
}

impl Extent {
    /// For so long; zero means until somebody ends it.
    pub(super) fn until(time: Duration) -> Self {
        Self::Time(if time.is_zero() { Duration::from_secs(MAX_SECONDS) } else { time })
    }
}

impl Protocol {
    /// Whether a URL of HTTP names the server.
    pub(crate) fn is_http(self) -> bool {
        matches!(self, Self::Http1 | Self::H2c) || self.is_of_messages()
    }

    /// Whether messages go to and fro on something that lasts, a WebSocket or a stream.
    pub(crate) fn is_of_messages(self) -> bool {
        matches!(self, Self::WebSocket | Self::GrpcStream)
    }
}

impl Target {
    /// Reads a URL; the scheme says the protocol unless the caller does.
    pub fn parse(url: &str, protocol: Option<Protocol>) -> Result<Self, PlanError> {
        let wrong = || PlanError::Url { url: url.to_owned() };
        if url.starts_with("https://") {
            return Err(PlanError::Https { url: url.to_owned() });
        }
        let (scheme, rest) = match url.split_once("://") {
            Some((scheme @ ("http" | "ws" | "tcp"), rest)) => (scheme, rest),
            Some(_) => return Err(wrong()),
            None => ("http", url),
        };
        let is_http = scheme != "tcp";
        let default = match scheme {
            "http" => Protocol::Http1,
            "ws" => Protocol::WebSocket,
            _ => Protocol::Tcp,
        };
        let protocol = protocol.unwrap_or(default);
        let is_websocket = protocol == Protocol::WebSocket;
        if protocol.is_http() != is_http || scheme == "ws" && !is_websocket {
            let scheme = if protocol.is_http() { "http://" } else { "tcp://" };
            return Err(PlanError::Scheme { url: url.to_owned(), protocol, scheme });
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, path) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let tail = authority.rsplit(']').next().unwrap_or_default();
        let port = tail.rsplit_once(':').map(|(_, port)| port);
        let has_port = port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
        let host = authority.strip_suffix(port.unwrap_or_default()).unwrap_or_default();
        let host = if port.is_some() { host.trim_end_matches(':') } else { authority };
        // A path with a blank, or a name and password, would end up in the request as they are.
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let is_wrong = host.is_empty() || authority.contains('@') || port.is_some() && !has_port;
        if is_wrong || !is_plain(authority) || !is_plain(&path) || (!is_http && !has_port) {
            return Err(wrong());
        }
        let address = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        let authority = authority.strip_suffix(":80").unwrap_or(authority).to_owned();
        Ok(Self { url: url.to_owned(), protocol, address, authority, path })
    }
}

impl Plan {
    /// Checks what no single flag can know.
    pub fn check(self) -> Result<Self, PlanError> {
        let within = |what, number, most| match number {
            number if (1..=most).contains(&number) => Ok(()),
            number => Err(PlanError::Bounds { what, number, most }),
        };
        within("--connections", self.connections, MAX_CONNECTIONS)?;
        within("--max-connections", self.max_connections, MAX_CONNECTIONS)?;
        within("--streams", self.streams, 1000)?;
        within("--threads", self.threads, MAX_THREADS)?;
        within("the body's size", self.request.body.len().max(1), MAX_BODY_BYTES)?;
        within("--response-size", self.request.response_bytes.max(1), MAX_BODY_BYTES)?;
        let (connections, most) = (self.connections, self.max_connections);
        if most < connections {
            return Err(PlanError::FewerAtMost { connections, most });
        }
        if self.threads > connections {
            return Err(PlanError::Threads { threads: self.threads });
        }
        // What it holds is written as it is: a line end in it would begin another request.
        if !is_token(&self.request.method) {
            return Err(PlanError::Method { text: self.request.method });
        }
        let protocol = self.target.protocol;
        let meaningless = |what| Err(PlanError::Meaningless { what, protocol });
        match protocol {
            Protocol::Http1 | Protocol::WebSocket if self.streams > 1 => meaningless("--streams"),
            _ if protocol.is_of_messages() && self.close => meaningless("--close"),
            _ if protocol.is_of_messages() && self.request.method != "GET" => {
                meaningless("--method")
            }
            Protocol::Tcp if self.request.body.is_empty() => {
                Err(PlanError::Bounds { what: "--body-size", number: 0, most: MAX_BODY_BYTES })
            }
            Protocol::Tcp | Protocol::TcpStream if self.streams > 1 => meaningless("--streams"),
            Protocol::TcpStream | Protocol::H2c if self.close => meaningless("--close"),
            Protocol::Tcp | Protocol::TcpStream if !self.request.headers.is_empty() => {
                meaningless("--header")
            }
            _ => Ok(self),
        }
    }
}

/// Reads `450`, `450/s`, `450/1s`, `30/m`, `max`; 0 means `max`, as for Vegeta and Fortio.
pub(super) fn pace(text: &str) -> Result<Pace, PlanError> {
    let wrong = || PlanError::Rate { text: text.to_owned() };
    if text == "max" {
        return Ok(Pace::Max);
    }
    let (number, unit) = text.split_once('/').unwrap_or((text, "1s"));
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let has_number = unit.starts_with(|first: char| first.is_ascii_digit());
    let per = if has_number { unit.to_owned() } else { format!("1{unit}") };
    let per = parse_duration(&per).ok().filter(|per| !per.is_zero()).ok_or_else(wrong)?;
    match number / per.as_secs_f64() {
        0.0 => Ok(Pace::Max),
        rate if rate > 0.0 && rate <= MAX_RATE => Ok(Pace::Rate(rate)),
        _ => Err(wrong()),
    }
}

/// Reads `10s`, `1m30s`, or a number of seconds, as Fortio takes one.
pub fn duration(text: &str) -> Result<Duration, PlanError> {
    let range = Duration::ZERO..=Duration::from_secs(MAX_SECONDS);
    Ok(parse_duration_or_seconds(text, range)?)
}

/// Whether HTTP takes it as a method or as a field's name (RFC 9110, section 5.6.2).
fn is_token(text: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_good)
}

/// Reads `Name: value`.
pub(super) fn header(text: &str) -> Result<(String, String), PlanError> {
    let (name, value) = text.split_once(':').unwrap_or_default();
    let is_good =
        is_token(name) && value.bytes().all(|byte| byte == b'\t' || (b' '..0x7f).contains(&byte));
    if is_good {
        Ok((name.to_owned(), value.trim().to_owned()))
    } else {
        Err(PlanError::Header { text: text.to_owned() })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A second of 100 requests per second on one connection.
    pub(crate) fn plan(url: &str) -> Plan {
        Plan {
            target: Target::parse(url, None).unwrap(),
            request: Request {
                method: "GET".to_owned(),
                headers: Vec::new(),
                body: Vec::new(),
                response_bytes: 0,
            },
            pace: Pace::Rate(100.0),
            extent: Extent::Time(Duration::from_secs(1)),
            warm_up: Duration::ZERO,
            connections: 1,
            max_connections: 1,
            streams: 1,
            close: false,
            threads: 1,
            timeout: Duration::from_secs(10),
            keep_going: false,
        }
    }

    #[test]
    fn urls() {
        let check = |url: &str, address: &str, authority: &str, path: &str| {
            let target = Target::parse(url, None).unwrap();
            let read = (target.address.as_str(), target.authority.as_str(), target.path.as_str());
            assert_eq!(read, (address, authority, path), "{url}");
        };
        check("http://a.b", "a.b:80", "a.b", "/");
        check("a.b:8080/x", "a.b:8080", "a.b:8080", "/x");
        check("http://a:80/x?y=z#top", "a:80", "a", "/x?y=z");
        check("http://a?y=z", "a:80", "a", "/?y=z");
        check("http://[::1]/", "[::1]:80", "[::1]", "/");
        check("http://[::1]:8080/", "[::1]:8080", "[::1]:8080", "/");
        check("tcp://a:9000", "a:9000", "a:9000", "/");
        for url in [
            "",
            "http://",
            "http://:80/",
            "ftp://a/",
            "http://a:b/",
            "http://a:0/",
            "tcp://a",
            "http://u:p@a/",
            "http://a/b c",
            "http://a/\r\nX: y",
            "http://a:99999/",
        ] {
            let error = Target::parse(url, None).unwrap_err();
            assert_eq!(error, PlanError::Url { url: url.to_owned() }, "{url:?}");
        }
        let error = Target::parse("https://a/", None).unwrap_err().to_string();
        assert!(error.contains("write http://"), "{error}");
        let error = Target::parse("tcp://a:1", Some(Protocol::H2c)).unwrap_err().to_string();
        assert!(error.contains("h2c wants a URL that starts with http://"), "{error}");
    }

    #[test]
    fn rates_durations_and_headers() {
        for (text, rate) in [
            ("450", 450.0),
            ("450/s", 450.0),
            ("450/1s", 450.0),
            ("30/m", 0.5),
            ("1/2s", 0.5),
            ("0.5", 0.5),
            ("5/100ms", 50.0),
        ] {
            assert_eq!(pace(text), Ok(Pace::Rate(rate)), "{text}");
        }
        assert_eq!(pace("max"), Ok(Pace::Max));
        assert_eq!(pace("0/1s"), Ok(Pace::Max));
        for text in ["", "-1", "nan", "inf", "1e9", "x", "450/", "450/x", "450/0s", "/s"] {
            assert!(pace(text).unwrap_err().to_string().contains("write 450/s"), "{text:?}");
        }
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "-1", "x", "1e99", "999h", "nan"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
        assert_eq!(header("X-A: b c "), Ok(("X-A".to_owned(), "b c".to_owned())));
        for text in ["", "Name", ":x", "A b:c", "A:b\r\nC:d"] {
            assert!(header(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_cannot_be_combined_is_refused() {
        let check = |change: fn(&mut Plan), words: &str| {
            let mut plan = plan("http://a/");
            change(&mut plan);
            let error = plan.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        assert!(plan("http://a/").check().is_ok());
        check(|p| p.connections = 0, "--connections must be between 1 and");
        check(|p| (p.connections, p.max_connections) = (5, 4), "is less than the 5");
        check(|p| p.threads = 2, "raise --connections");
        check(|p| p.request.method = "GET\r\nX:".to_owned(), "is not a method");
        check(|p| p.request.method = String::new(), "is not a method");
        check(|p| p.streams = 2, "--streams has no meaning with HTTP/1.1");
        check(|p| p.target.protocol = Protocol::Tcp, "--body-size must be between 1");
    }
}
