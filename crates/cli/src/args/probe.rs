//! The words of a probe.

use std::net::SocketAddr;

use ambit_words::ports;
use clap::{Args, ValueEnum};

/// `ambit probe`.
#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// The part of the mesh.
    #[arg(value_enum)]
    part: ProbedPart,
    /// Asks whether the process runs, not whether it is ready.
    #[arg(long)]
    live: bool,
    /// Its address on loopback [default: 127.0.0.1:9876 for control, 127.0.0.1:15000 for the proxy,
    /// 127.0.0.1:8000 for the node agent].
    #[arg(long, value_parser = loopback)]
    address: Option<SocketAddr>,
}

/// A part that answers probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProbedPart {
    /// The control plane.
    Control,
    /// The node agent.
    Node,
    /// The node proxy.
    Proxy,
}

impl ProbeArgs {
    /// Where to ask.
    pub(crate) fn address(&self) -> SocketAddr {
        let port = match self.part {
            ProbedPart::Control => ports::CONTROL_ADMIN,
            ProbedPart::Node => ports::NODE_MONITORING,
            ProbedPart::Proxy => ports::PROXY_ADMIN,
        };
        self.address.unwrap_or_else(|| ports::on_loopback(port))
    }

    /// What to ask.
    pub(crate) fn target(&self) -> &'static str {
        match (self.part, self.live) {
            (ProbedPart::Control, false) => "/ready",
            (ProbedPart::Control, true) => "/live",
            (ProbedPart::Node, false) => "/readyz",
            (ProbedPart::Node, true) => "/healthz",
            (ProbedPart::Proxy, false) => "/healthz/ready",
            // Whoever tells which process it is lives.
            (ProbedPart::Proxy, true) => "/process",
        }
    }
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| "write an address as 127.0.0.1:9876")?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err("a probe asks loopback only, for example 127.0.0.1:9876".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Probe {
        #[command(flatten)]
        args: ProbeArgs,
    }

    #[test]
    fn each_part_is_asked_where_it_answers() {
        let check = |words: &str, expected: Result<&str, &str>| {
            let parsed = Probe::try_parse_from(["probe"].into_iter().chain(words.split(' ')));
            match (parsed, expected) {
                (Ok(probe), Ok(expected)) => {
                    let asked = format!("{}{}", probe.args.address(), probe.args.target());
                    assert_eq!(asked, expected, "{words}");
                }
                (Err(error), Err(part)) => {
                    assert!(error.to_string().contains(part), "{words}: {error}");
                }
                (Ok(_), Err(part)) => panic!("{words}: not refused with {part}"),
                (Err(error), Ok(_)) => panic!("{words}: {error}"),
            }
        };
        check("control", Ok("127.0.0.1:9876/ready"));
        check("control --live", Ok("127.0.0.1:9876/live"));
        check("proxy", Ok("127.0.0.1:15000/healthz/ready"));
        check("proxy --live --address [::1]:1", Ok("[::1]:1/process"));
        check("node", Ok("127.0.0.1:8000/readyz"));
        check("node --live", Ok("127.0.0.1:8000/healthz"));
        check("control --address 10.0.0.1:9876", Err("loopback only"));
        check("waypoint", Err("possible values"));
    }
}
