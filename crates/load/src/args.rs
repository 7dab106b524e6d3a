//! The flags of `ambit load`, and the plan made from them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::output::Output;
use super::plan::{
    self, Extent, Pace, Plan, PlanError, Protocol, Request, STREAM_WRITE_BYTES, Target,
};

/// `ambit load`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct LoadArgs {
    #[command(subcommand)]
    pub(super) serve: Option<Serve>,
    #[command(flatten)]
    pub(super) run: Option<RunArgs>,
}

/// What `ambit load` does besides a run.
#[derive(Debug, Subcommand)]
pub(super) enum Serve {
    /// Offers Fortio's REST call: POST /fortio/rest/run.
    Serve(ServeArgs),
}

/// `ambit load serve`.
#[derive(Clone, Debug, Args)]
pub(super) struct ServeArgs {
    /// The address to listen on. Everyone who can reach it can make this machine send load.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub(super) listen: SocketAddr,
    /// The directory of results that a call asks to save.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(super) data_dir: PathBuf,
}

/// A run.
#[derive(Clone, Debug, Args)]
pub(super) struct RunArgs {
    /// The target: http://HOST[:PORT]/PATH, ws://HOST[:PORT]/PATH or tcp://HOST:PORT.
    #[arg(required = true)]
    url: String,
    /// Requests per second over all connections, as 450/s: open loop, latency counts from the
    /// moment when a request was due. `max`: closed loop, as fast as answers come.
    #[arg(long, default_value = "100/s", value_parser = plan::pace, allow_hyphen_values = true)]
    rate: Pace,
    /// Connections at the start.
    #[arg(short, long, default_value_t = 10)]
    connections: usize,
    /// Most connections. Further ones are opened if all are busy when a request is due [default: as
    /// many as at the start].
    #[arg(long)]
    max_connections: Option<usize>,
    /// How long, after the warm-up; at most a day. 0 means until Ctrl-C.
    #[arg(short, long, default_value = "5s", value_parser = plan::duration)]
    duration: Duration,
    /// Number of requests, instead of a duration.
    #[arg(short = 'n', long, conflicts_with = "duration",
        value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Time of load that is not counted.
    #[arg(long, default_value = "0s", value_parser = plan::duration)]
    warm_up: Duration,
    /// The protocol [default: HTTP/1.1 to http://, messages to ws://, request and response to
    /// tcp://].
    #[arg(short, long, value_enum)]
    protocol: Option<Protocol>,
    /// HTTP/2 without TLS and with prior knowledge, as --protocol h2c.
    #[arg(long, conflicts_with = "protocol")]
    http2: bool,
    /// Concurrent streams per connection of h2c, or gRPC streams per connection.
    #[arg(long, default_value_t = 1)]
    streams: usize,
    /// A new connection for each request.
    #[arg(long)]
    close: bool,
    /// The HTTP method [default: GET, or POST if there is a body; of no meaning with messages].
    #[arg(short, long)]
    method: Option<String>,
    /// A header, as "Name: value"; may be repeated.
    #[arg(short = 'H', long = "header", value_parser = plan::header)]
    headers: Vec<(String, String)>,
    /// The body of each request.
    #[arg(long, conflicts_with = "body_size")]
    body: Option<String>,
    /// Size of the body, of each message, or of each request or write over TCP.
    #[arg(long, value_name = "BYTES")]
    body_size: Option<usize>,
    /// Size of a TCP server's answer [default: that of the request].
    #[arg(long, value_name = "BYTES")]
    response_size: Option<usize>,
    /// The longest wait for one answer.
    #[arg(long, default_value = "10s", value_parser = plan::duration)]
    timeout: Duration,
    /// Threads; they share connections and rate.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Continues if the server cannot be reached at the start, and counts failures.
    #[arg(long)]
    keep_going: bool,
    /// The format of the result.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub(super) output: Output,
    /// The file for the result, instead of standard output.
    #[arg(long, value_name = "FILE")]
    pub(super) save: Option<PathBuf>,
    /// Prints no progress.
    #[arg(short, long)]
    pub(super) quiet: bool,
}

impl LoadArgs {
    /// Whether they make a plan.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        self.run.as_ref().map_or(Ok(()), |run| run.plan().map(drop).map_err(Into::into))
    }
}

/// A byte of a body that nobody reads.
const FILLING: u8 = b'.';
/// What goes over TCP each time unless a flag says otherwise, as for Fortio's echo.
pub(super) const TCP_REQUEST_BYTES: usize = 24;

impl RunArgs {
    /// The plan that the flags make.
    pub(super) fn plan(&self) -> Result<Plan, PlanError> {
        let protocol = if self.http2 { Some(Protocol::H2c) } else { self.protocol };
        let target = Target::parse(&self.url, protocol)?;
        let default_size = match target.protocol {
            Protocol::Http1 | Protocol::H2c => 0,
            Protocol::Tcp | Protocol::WebSocket | Protocol::GrpcStream => TCP_REQUEST_BYTES,
            Protocol::TcpStream => STREAM_WRITE_BYTES,
        };
        let size = self.body_size.unwrap_or(default_size);
        if size > plan::MAX_BODY_BYTES {
            let (what, most) = ("--body-size", plan::MAX_BODY_BYTES);
            return Err(PlanError::Bounds { what, number: size, most });
        }
        let body = match &self.body {
            Some(text) => text.as_bytes().to_vec(),
            None => vec![FILLING; size],
        };
        let is_get = body.is_empty() || target.protocol.is_of_messages();
        let method = if is_get { "GET" } else { "POST" };
        let request = Request {
            method: self.method.clone().unwrap_or_else(|| method.to_owned()),
            headers: self.headers.clone(),
            response_bytes: self.response_size.unwrap_or(body.len()),
            body,
        };
        let plan = Plan {
            target,
            request,
            pace: self.rate,
            extent: match self.requests {
                Some(count) => Extent::Count(count),
                None => Extent::until(self.duration),
            },
            warm_up: self.warm_up,
            connections: self.connections,
            max_connections: self.max_connections.unwrap_or(self.connections),
            streams: self.streams,
            close: self.close,
            threads: self.threads,
            timeout: self.timeout,
            keep_going: self.keep_going,
        };
        plan.check()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Words {
        #[command(flatten)]
        args: LoadArgs,
    }

    fn plan(words: &str) -> Result<Plan, String> {
        let all = std::iter::once("load").chain(words.split(' '));
        let words = Words::try_parse_from(all).map_err(|error| error.to_string())?;
        let run = words.args.run.ok_or("no run")?;
        run.plan().map_err(|error| error.to_string())
    }

    #[test]
    fn flags_make_a_plan() {
        let plan = plan(
            "http://a/x --rate 450/s --connections 100 --max-connections 200 --duration 600s \
             --warm-up 5s --threads 2 -H X-A:b --close",
        )
        .unwrap();
        assert_eq!(plan.pace, Pace::Rate(450.0));
        assert_eq!(plan.extent, Extent::Time(Duration::from_secs(600)));
        assert_eq!((plan.connections, plan.max_connections, plan.threads), (100, 200, 2));
        assert_eq!(plan.request.headers, [("X-A".to_owned(), "b".to_owned())]);
        assert!(plan.close && plan.warm_up == Duration::from_secs(5));
    }

    #[test]
    fn a_body_makes_a_post_and_tcp_has_sizes_of_its_own() {
        assert_eq!(plan("a").unwrap().request.method, "GET");
        let post = plan("a --body-size 100 --rate max -n 5").unwrap();
        assert_eq!((post.request.method.as_str(), post.request.body.len()), ("POST", 100));
        assert_eq!((post.pace, post.extent), (Pace::Max, Extent::Count(5)));
        let tcp = plan("tcp://a:1 --body-size 5").unwrap().request;
        assert_eq!((tcp.body.len(), tcp.response_bytes), (5, 5));
        let stream = plan("tcp://a:1 --protocol tcp-stream").unwrap();
        assert_eq!(stream.request.body.len(), STREAM_WRITE_BYTES);
    }

    #[test]
    fn messages_have_a_size_and_no_method_of_their_own() {
        for words in ["ws://a/x", "a --protocol websocket --body-size 24", "ws://a:80"] {
            let plan = plan(words).unwrap();
            assert_eq!(plan.target.protocol, Protocol::WebSocket, "{words}");
            assert_eq!((plan.request.body.len(), &*plan.request.method), (24, "GET"), "{words}");
        }
        let grpc = plan("a/echo.Echo/Both --protocol grpc-stream --streams 5").unwrap();
        assert_eq!((grpc.streams, &*grpc.target.path), (5, "/echo.Echo/Both"));
        assert_eq!(plan("a --http2").unwrap().target.protocol, Protocol::H2c);
    }

    #[test]
    fn wrong_words_are_refused_with_a_remedy() {
        for (words, remedy) in [
            ("", "no URL to load; write http://"),
            ("https://a", "write http://"),
            ("a --rate fast", "write 450/s"),
            ("a --rate -5", "write 450/s"),
            ("a --duration soon", "write for example 500ms"),
            ("a --connections 0", "must be between 1 and"),
            ("a --connections x", "invalid value 'x'"),
            ("a --header X", "write it as"),
            ("a --requests 0", "0 is not in"),
            ("a --protocol quic", "possible values: http1, h2c, websocket, grpc-stream, tcp, "),
            ("a --http2 --protocol tcp", "cannot be used with"),
            ("ws://a --http2", "h2c wants a URL that starts with http://"),
            ("ws://a --streams 2", "--streams has no meaning with WebSocket"),
            ("a --protocol grpc-stream --method PUT", "--method has no meaning with gRPC streams"),
            ("wss://a", "is no URL to load"),
            ("a --body-size 99999999", "--body-size must be between 1 and"),
            ("a --frequency 5", "unexpected argument '--frequency'"),
            ("a -n 5 -d 5s", "cannot be used with"),
        ] {
            let error = plan(words).unwrap_err();
            assert!(error.contains(remedy), "{words}: {error}");
        }
    }
}
