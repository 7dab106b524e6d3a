//! The small languages of the settings: durations, thread counts, CPU quantities, addresses.
//!
//! Each error shows what was given and what is accepted. Nothing here has its own default.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use ambit_dataplane::control_plane::{host_of, service_uri};
use ambit_words::durations::{DurationError, parse_duration_or_seconds};
use ambit_words::{names, ports};
use http::Uri;

use super::istio::{Environment, ProxyConfig};
use super::{Args, ConfigError};

/// ztunnel's floor for the number of threads.
const MIN_WORKER_THREADS: usize = 2;
/// Listeners exist per thread and pod: more threads would cost descriptors, not bring speed.
const MAX_WORKER_THREADS: usize = 64;

/// How many data-plane threads to start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threads {
    /// As many.
    Number(usize),
    /// As many percent of the cores.
    Percent(f64),
    /// One for each core.
    All,
}

impl FromStr for Threads {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is neither a number, a percentage up to 100%, nor 0");
        match text.strip_suffix('%') {
            Some(percent) => {
                let percent: f64 = percent.parse().map_err(|_| wrong())?;
                let fits = percent > 0.0 && percent <= 100.0;
                fits.then_some(Self::Percent(percent)).ok_or_else(wrong)
            }
            None => match text.parse().map_err(|_| wrong())? {
                0 => Ok(Self::All),
                number => Ok(Self::Number(number)),
            },
        }
    }
}

/// How many data-plane threads to start, by ztunnel's rules.
pub(super) fn worker_threads(args: &Args, concurrency: Option<u16>) -> usize {
    let here = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cores = args.resource_cpu_limit.or(args.cpu_limit).unwrap_or_else(here);
    let asked = args.worker_threads.or(match concurrency {
        Some(0) => Some(Threads::All),
        Some(number) => Some(Threads::Number(number.into())),
        None => None,
    });
    let request = args.resource_cpu_request.unwrap_or(0);
    let number = match (asked, args.resource_cpu_limit) {
        (Some(Threads::Number(number)), _) => number,
        (Some(Threads::All), _) => cores,
        (Some(Threads::Percent(percent)), _) => share(cores, percent),
        (None, Some(limit)) => limit.max(request),
        (None, None) => share(cores, 25.0).max(request).max(MIN_WORKER_THREADS),
    };
    number.clamp(1, MAX_WORKER_THREADS)
}

fn share(cores: usize, percent: f64) -> usize {
    // A share of a number of cores is far inside what both types hold.
    (cores as f64 * percent / 100.0).ceil() as usize
}

/// A Kubernetes CPU quantity (`2`, `1.5`, `500m`) in whole cores, rounded up.
pub(super) fn cpu_quantity(text: &str) -> Result<usize, String> {
    let wrong = || format!("{text:?} is no CPU quantity, such as 2, 1.5 or 500m");
    let (number, scale) = match text.strip_suffix('m') {
        Some(millis) => (millis, 1000.0),
        None => (text, 1.0),
    };
    let cores = number.parse::<f64>().map_err(|_| wrong())? / scale;
    if !cores.is_finite() || cores <= 0.0 || cores > 1e6 {
        return Err(wrong());
    }
    Ok(cores.ceil() as usize)
}

/// A duration; as for ztunnel, a bare number is seconds.
pub(super) fn duration(text: &str) -> Result<Duration, DurationError> {
    parse_duration_or_seconds(text, Duration::ZERO..=Duration::MAX)
}

/// A DNS server, with port 53 unless it names another.
pub(super) fn dns_server(text: &str) -> Result<SocketAddr, String> {
    let with_port = text.parse::<SocketAddr>();
    let bare = || text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, ports::DNS));
    with_port
        .or_else(|_| bare())
        .map_err(|_| format!("{text:?} is no IP address, nor one with a port"))
}

/// Where the control plane's two services are.
pub(super) struct Uris {
    pub(super) discovery: Uri,
    pub(super) authority: Uri,
}

impl Uris {
    pub(super) fn new(
        args: &Args,
        proxy_config: &ProxyConfig,
        environment: &Environment,
    ) -> Result<Self, ConfigError> {
        let host = match environment.variable("KUBERNETES_SERVICE_HOST") {
            Some(_) => names::CONTROL_HOST,
            None => "localhost",
        };
        let default = format!("https://{host}:{}", ports::XDS);
        let named = args.xds_address.as_deref().or(proxy_config.discovery_address.as_deref());
        Ok(Self {
            discovery: uri("--xds-address", named.unwrap_or(&default))?,
            authority: uri("--ca-address", args.ca_address.as_deref().unwrap_or(&default))?,
        })
    }

    pub(super) fn server_name(
        &self,
        uri: &Uri,
        alternative: &Option<String>,
        args: &Args,
    ) -> Result<String, ConfigError> {
        let alternative = alternative.as_ref().or(args.alt_hostname.as_ref());
        if let Some(name) = alternative {
            return Ok(name.clone());
        }
        Ok(host_of(uri).to_owned())
    }
}

fn uri(name: &str, text: &str) -> Result<Uri, ConfigError> {
    service_uri(text).map_err(|reason| ConfigError::invalid(name, reason))
}
