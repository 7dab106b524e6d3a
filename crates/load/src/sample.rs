//! `ambit sample`: the applications of the experiments and of the examples.
//!
//! Each is small, single-threaded and cheap, so that a run measures the mesh and not the
//! application. They know nothing of the mesh, and must never do anything that an ordinary
//! application would not do.

mod banner;
mod bookinfo;
mod client;
mod duration;
pub(crate) mod echo;
mod fake_service;
mod hello;
mod httpbin;
mod line_echo;
mod raw_echo;
pub(crate) mod server;
mod sink;
pub(crate) mod streams;
mod timed;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use ambit_net::drain::{Drain, Guard};
use ambit_net::sys::process::raise_open_files_limit;
use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;
use tokio::time::{Instant, timeout};

use bookinfo::details::{self, Writing};
use bookinfo::productpage::{Closing, Productpage};
use bookinfo::ratings;
use bookinfo::reviews::{Reviews, Version};
use fake_service::FakeService;
use hello::Hello;
use httpbin::{Httpbin, Original};

/// How long requests that are under way get to finish after SIGTERM.
const DRAIN_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Parser)]
#[command(name = "ambit sample", about = "Runs an application of the experiments")]
struct Words {
    #[command(subcommand)]
    sample: Sample,
}

/// The applications.
#[derive(Debug, Subcommand)]
pub(crate) enum Sample {
    /// A service that calls others, set up by the environment variables of
    /// nicholasjackson/fake-service.
    FakeService {
        /// The address to listen on, instead of LISTEN_ADDR.
        #[arg(long, value_name = "ADDR")]
        listen: Option<String>,
    },
    /// HTTP: sends `?size=N` bytes, `?delay=10ms` late, with `?status=401`; without a size the
    /// request's own body, or the request as JSON. Messages of WebSockets and gRPC streams come
    /// back.
    ///
    /// A size is at most 8388608 bytes, a delay at most 60s. Other parts of the query come back in
    /// the JSON. Connections are kept until the client ends them.
    Echo(Listen),
    /// TCP: sends back what it reads; at the end of the input it finishes and closes.
    ///
    /// Each direction ends by itself, so that a client may close its half and read the rest.
    TcpEcho(Listen),
    /// TCP: sends each line back with a prefix, as tcp-echo-server of Istio's samples.
    TcpEchoServer {
        /// The ports to listen on, separated by commas.
        #[arg(value_name = "PORT,...", value_delimiter = ',', required = true)]
        ports: Vec<u16>,
        /// What is sent before each line.
        #[arg(value_name = "PREFIX", required = true)]
        prefix: String,
    },
    /// HTTP: `GET /hello` as helloworld of Istio's samples; SERVICE_VERSION and HOSTNAME are said.
    Helloworld {
        /// The address to listen on.
        #[arg(long, value_name = "ADDR", default_value = "[::]:5000")]
        listen: String,
        /// The version, unless SERVICE_VERSION says it.
        #[arg(long, default_value = "v1")]
        version: String,
    },
    /// HTTP: answers with what it was asked, as httpbin does; `GET /` lists the paths.
    ///
    /// A body is at most 1048576 bytes, and told as JSON up to 65536; a delay is at most 10 s;
    /// `/bytes/N` sends at most 102400. Each request is a line of the log.
    Httpbin {
        /// The address to listen on, instead of HOST and PORT, whose default is 8080.
        #[arg(long, value_name = "ADDR")]
        listen: Option<String>,
        /// The program whose JSON is written.
        #[arg(long = "as", value_enum, default_value = "mccutchen")]
        original: Original,
    },
    /// TCP: speaks first, then sends back what it reads.
    Banner {
        #[command(flatten)]
        listen: Listen,
        /// What it says at once.
        #[arg(long, default_value = "220 banner.example ready")]
        line: String,
    },
    /// HTTP: `GET /details/0` as the application bookinfo answers it.
    Details {
        #[command(flatten)]
        listen: Listen,
        #[command(flatten)]
        writing: Writing,
    },
    /// HTTP: `GET /productpage`, the front of bookinfo, which calls details and reviews.
    Productpage {
        #[command(flatten)]
        listen: Listen,
        #[command(flatten)]
        closing: Closing,
    },
    /// HTTP: `GET /reviews/0` of bookinfo, which calls ratings from v2 on.
    Reviews {
        #[command(flatten)]
        listen: Listen,
        /// Which version: without ratings, with black stars, with red stars.
        #[arg(long, value_enum, default_value = "v1")]
        version: Version,
    },
    /// HTTP: `GET /ratings/0` of bookinfo; SERVICE_VERSION=v-faulty fails every other time.
    Ratings(Listen),
    /// TCP: reads everything; at the end of the input it answers how many bytes it read.
    ///
    /// The number is eight bytes long, big end first.
    Sink(Listen),
    /// HTTP: answers at once, or after known delays, or stalls; to measure load generators with.
    ///
    /// It costs less than `echo`, and its delays are kept to the microsecond.
    Timed {
        #[command(flatten)]
        listen: Listen,
        #[command(flatten)]
        timing: timed::Timing,
    },
    /// Does nothing, until SIGTERM.
    Sleep,
}

/// The address to listen on.
#[derive(Clone, Debug, Args)]
pub(crate) struct Listen {
    /// The address to listen on.
    #[arg(long = "listen", value_name = "ADDR", default_value = "[::]:8080")]
    address: String,
}

/// A sample that has its listener, if it needs one.
#[derive(Debug)]
pub(crate) enum Ready {
    /// [`Sample::FakeService`].
    FakeService(TcpListener, Box<FakeService>),
    /// [`Sample::Echo`].
    Echo(TcpListener),
    /// [`Sample::TcpEcho`].
    TcpEcho(TcpListener),
    /// [`Sample::TcpEchoServer`] with its prefix; it has at least one listener.
    TcpEchoServer(Vec<TcpListener>, String),
    /// [`Sample::Helloworld`] and what it says.
    Helloworld(TcpListener, Hello),
    /// [`Sample::Httpbin`] and how it writes.
    Httpbin(TcpListener, Httpbin),
    /// [`Sample::Banner`] with its line.
    Banner(TcpListener, String),
    /// [`Sample::Details`] and how it writes.
    Details(TcpListener, Writing),
    /// [`Sample::Productpage`].
    Productpage(TcpListener, Box<Productpage>),
    /// [`Sample::Reviews`].
    Reviews(TcpListener, Box<Reviews>),
    /// [`Sample::Ratings`] and how well it works.
    Ratings(TcpListener, ratings::Health),
    /// [`Sample::Sink`].
    Sink(TcpListener),
    /// [`Sample::Timed`] and how it answers.
    Timed(TcpListener, timed::Timing),
    /// [`Sample::Sleep`].
    Sleep,
}

/// Runs the sample that the words ask for, until SIGTERM.
pub(crate) fn run(words: &[OsString]) -> anyhow::Result<ExitCode> {
    let words = match crate::terminal::arguments::<Words>("ambit sample", words)? {
        Ok(words) => words,
        Err(code) => return Ok(code),
    };
    raise_open_files_limit().context("raise the limit of open files")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        let ready = words.sample.bind(|name| std::env::var(name).ok())?;
        if let Some(listener) = ready.listener() {
            eprintln!("listening on {}", listener.local_addr().context("read its own address")?);
        }
        let drain = Drain::new();
        tokio::task::spawn_local(ready.serve(drain.guard()));
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        drain.start(Some(Instant::now() + DRAIN_MAX));
        if timeout(DRAIN_MAX, drain.finished()).await.is_err() {
            eprintln!("requests are cut that took longer than {} s to end", DRAIN_MAX.as_secs());
        }
        Ok(ExitCode::SUCCESS)
    })
}

impl Sample {
    /// Takes its settings and its listener. `variable` is the environment.
    pub(crate) fn bind(self, variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Ready> {
        Ok(match self {
            Self::FakeService { listen } => {
                let service = FakeService::from_environment(variable)?;
                for notice in service.notices() {
                    eprintln!("{notice}");
                }
                let address = listen.as_deref().unwrap_or(service.listen_address());
                Ready::FakeService(server::listen(address)?, Box::new(service))
            }
            Self::Echo(listen) => Ready::Echo(server::listen(&listen.address)?),
            Self::TcpEcho(listen) => Ready::TcpEcho(server::listen(&listen.address)?),
            Self::TcpEchoServer { ports, prefix } => {
                let listeners = ports.iter().map(|port| server::listen(&format!(":{port}")));
                Ready::TcpEchoServer(listeners.collect::<Result<_, _>>()?, prefix)
            }
            Self::Helloworld { listen, version } => {
                let hello = Hello::from_environment(version, variable);
                Ready::Helloworld(server::listen(&listen)?, hello)
            }
            Self::Httpbin { listen, original } => {
                let set = |name| variable(name).filter(|value| !value.is_empty());
                let (host, port) = (set("HOST"), set("PORT"));
                let (host, port) = (host.as_deref(), port.as_deref().unwrap_or("8080"));
                let address = match host {
                    Some(host) if host.contains(':') => format!("[{host}]:{port}"),
                    host => format!("{}:{port}", host.unwrap_or_default()),
                };
                let hostname = variable("HOSTNAME").unwrap_or_default();
                let listener = server::listen(listen.as_deref().unwrap_or(&address))?;
                Ready::Httpbin(listener, Httpbin { original, hostname })
            }
            Self::Banner { listen, line } => Ready::Banner(server::listen(&listen.address)?, line),
            Self::Details { listen, writing } => {
                Ready::Details(server::listen(&listen.address)?, writing)
            }
            Self::Productpage { listen, closing } => {
                let front = Productpage::from_environment(closing, variable)?;
                Ready::Productpage(server::listen(&listen.address)?, Box::new(front))
            }
            Self::Reviews { listen, version } => {
                let reviews = Reviews::from_environment(version, variable)?;
                Ready::Reviews(server::listen(&listen.address)?, Box::new(reviews))
            }
            Self::Ratings(listen) => {
                let health = ratings::Health::from_environment(variable);
                Ready::Ratings(server::listen(&listen.address)?, health)
            }
            Self::Sink(listen) => Ready::Sink(server::listen(&listen.address)?),
            Self::Timed { listen, timing } => {
                Ready::Timed(server::listen(&listen.address)?, timing)
            }
            Self::Sleep => Ready::Sleep,
        })
    }
}

impl Ready {
    /// The listener, unless it is asleep.
    pub(crate) fn listener(&self) -> Option<&TcpListener> {
        match self {
            Self::FakeService(listener, _)
            | Self::Echo(listener)
            | Self::TcpEcho(listener)
            | Self::Banner(listener, _)
            | Self::Helloworld(listener, _)
            | Self::Httpbin(listener, _)
            | Self::Sink(listener)
            | Self::Timed(listener, _)
            | Self::Productpage(listener, _)
            | Self::Reviews(listener, _)
            | Self::Ratings(listener, _)
            | Self::Details(listener, _) => Some(listener),
            Self::TcpEchoServer(listeners, _) => listeners.first(),
            Self::Sleep => None,
        }
    }

    /// Serves until it is asked to end.
    pub(crate) async fn serve(self, guard: Guard) {
        match self {
            Self::FakeService(listener, service) => service.serve(listener, guard).await,
            Self::Echo(listener) => echo::serve(listener, guard).await,
            Self::TcpEcho(listener) => raw_echo::serve(listener, guard).await,
            Self::TcpEchoServer(listeners, prefix) => {
                line_echo::serve(listeners, guard, &prefix).await;
            }
            Self::Helloworld(listener, hello) => hello.serve(listener, guard).await,
            Self::Httpbin(listener, bin) => httpbin::serve(listener, guard, bin).await,
            Self::Banner(listener, line) => banner::serve(listener, guard, &line).await,
            Self::Sink(listener) => sink::serve(listener, guard).await,
            Self::Timed(listener, timing) => timed::serve(listener, guard, &timing).await,
            Self::Details(listener, writing) => details::serve(listener, guard, writing).await,
            Self::Productpage(listener, front) => front.serve(listener, guard).await,
            Self::Reviews(listener, reviews) => reviews.serve(listener, guard).await,
            Self::Ratings(listener, health) => ratings::serve(listener, guard, health).await,
            Self::Sleep => {
                let mut guard = guard;
                guard.draining().await;
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::SocketAddr;

    use super::*;

    /// Starts a sample on a free port of the loopback interface, on the current [`LocalSet`].
    pub(crate) fn start(words: &[&str], environment: &[(&str, &str)]) -> (SocketAddr, Drain) {
        let all = ["ambit sample"].iter().chain(words).chain(&["--listen", "127.0.0.1:0"]);
        let words = Words::try_parse_from(all).unwrap();
        let variable = |name: &str| {
            let found = environment.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let ready = words.sample.bind(variable).unwrap();
        let address = ready.listener().unwrap().local_addr().unwrap();
        let drain = Drain::new();
        tokio::task::spawn_local(ready.serve(drain.guard()));
        (address, drain)
    }

    #[tokio::test]
    async fn sleep_ends_when_it_is_asked_to() {
        let drain = Drain::new();
        drain.start(None);
        timeout(DRAIN_MAX, Ready::Sleep.serve(drain.guard())).await.unwrap();
    }
}
