//! The arguments of `ambit join` and `ambit token`.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use ambit_words::durations::{DurationError, parse_duration, write_duration};
use clap::{Args, Subcommand};

use super::kube::KubeArgs;
use super::state::StateArgs;
use super::{PodArgs, inputs};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a token of a machine can be used, and without --ttl.
const MACHINE_TTL: RangeInclusive<Duration> = Duration::from_secs(1)..=DAY;
const MACHINE_TTL_DEFAULT: Duration = Duration::from_secs(60 * 60);
/// How long a token of a cluster can be used, and without --ttl. Kubernetes gives none for less.
const CLUSTER_TTL: RangeInclusive<Duration> =
    Duration::from_secs(10 * 60)..=Duration::from_secs(365 * 24 * 60 * 60);
const CLUSTER_TTL_DEFAULT: Duration = DAY;

/// `ambit join`.
#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// What `ambit token create` printed on the other computer, or for a WorkloadEntry of a
    /// cluster; - reads it from standard input, which no other user of this computer can see.
    #[arg(value_name = "TOKEN")]
    pub(crate) token: String,
    /// With the token of a WorkloadEntry: what runs as that workload. It is started again when it
    /// ends.
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
    /// Gives the token to the machine that has joined as this WorkloadEntry, before its token ends.
    #[arg(long, conflicts_with_all = ["command", "detach", "trust_home"])]
    pub(crate) renew: bool,
    /// Returns when the node works. Without it, the command stays until Ctrl-C. `ambit down` ends
    /// it.
    #[arg(long)]
    pub(crate) detach: bool,
    /// Lets pods run programs of this computer and read its files, as pods of `ambit up` do. The
    /// users of the other computer choose which. Without it, pods are images that this computer has
    /// in its store, and the built-in ones, and see no files but those below --host-path.
    #[arg(long)]
    pub(crate) trust_home: bool,
    #[command(flatten)]
    pub(crate) pods: PodArgs,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

/// `ambit token`.
#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    pub(crate) command: TokenCommand,
}

/// What becomes of tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Prints a token, by which one computer joins with `ambit join`. It is a secret.
    ///
    /// Of a machine: the computer joins once, as a node. Of a Kubernetes cluster, with --kube: the
    /// computer is the workload of a WorkloadEntry, and its program runs outside of the cluster.
    Create(TokenCreateArgs),
}

impl TokenCommand {
    /// Which machine.
    pub(crate) fn state(&mut self) -> &mut StateArgs {
        match self {
            Self::Create(args) => &mut args.state,
        }
    }

    /// Which cluster.
    pub(crate) fn kube(&self) -> &KubeArgs {
        match self {
            Self::Create(args) => &args.kube,
        }
    }
}

/// `ambit token create`.
#[derive(Debug, Args)]
pub(crate) struct TokenCreateArgs {
    /// The WorkloadEntry of the other computer, in a cluster. It names the computer's address and
    /// its service account, and has the label networking.istio.io/tunnel=http.
    #[arg(value_name = "ENTRY")]
    entry: Option<String>,
    /// The namespace of ENTRY [default: default].
    #[arg(short, long, value_parser = inputs::namespace)]
    namespace: Option<String>,
    /// Which node of a machine the other computer will be, such as node-5 [default: the first that
    /// is free].
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// How long the token can be used. Of a machine: 1s to 24h [default: 1h]; the node stays. Of a
    /// cluster: 10m to 365d [default: 24h]; then the computer needs another token.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    ttl: Option<Duration>,
    /// Where the other computer connects to. Of a machine: IP:PORT of this computer [default: that
    /// of `ambit up --join-address`]. Of a cluster: HOST or HOST:PORT of its control plane
    /// [default: the load balancer of the Service istiod; port 15012].
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
}

/// For whom a token is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Joiner {
    /// A computer that becomes a node of a machine.
    Node {
        /// Which; without one, the first that is free.
        node: Option<String>,
        /// How long the token can be used.
        ttl: Duration,
        /// Where the computer reaches the machine, if that is written.
        address: Option<SocketAddr>,
    },
    /// A computer that is a WorkloadEntry of a cluster.
    Workload {
        /// The namespace.
        namespace: String,
        /// The name.
        entry: String,
        /// How long the token can be used.
        ttl: Duration,
        /// Where the computer reaches control, if that is written: HOST or HOST:PORT.
        address: Option<String>,
    },
}

impl TokenCreateArgs {
    /// For whom the token is, or why these arguments do not fit together.
    pub(crate) fn joiner(&self) -> Result<Joiner, String> {
        if self.kube.is_meant() { self.workload() } else { self.machine_node() }
    }

    /// Which machine.
    pub(crate) fn machine(&self) -> &StateArgs {
        &self.state
    }

    fn machine_node(&self) -> Result<Joiner, String> {
        if let Some(entry) = &self.entry {
            return Err(format!(
                "{entry}: a token of a machine is for a node and takes no WorkloadEntry; add \
                 --kube for one of a cluster, or write --node NODE"
            ));
        }
        if self.namespace.is_some() {
            return Err("-n is the namespace of a WorkloadEntry; add --kube and its name, or \
                        leave -n out"
                .to_owned());
        }
        let address = self.address.as_ref().map(|written| {
            let read = written.parse::<SocketAddr>();
            read.map_err(|_| {
                format!("--address {written:?}: write IP:PORT, where this computer listens")
            })
        });
        let ttl = self.ttl(MACHINE_TTL_DEFAULT, MACHINE_TTL, "a machine")?;
        Ok(Joiner::Node { node: self.node.clone(), ttl, address: address.transpose()? })
    }

    fn workload(&self) -> Result<Joiner, String> {
        if let Some(node) = &self.node {
            return Err(format!(
                "--node {node} is for a machine; leave it out, because a token of a cluster is \
                 for a WorkloadEntry"
            ));
        }
        let Some(entry) = self.entry.clone() else {
            return Err(
                "name the WorkloadEntry of the other computer: `ambit token create --kube \
                        -n NAMESPACE ENTRY`; `kubectl get workloadentries -A` lists them"
                    .to_owned(),
            );
        };
        if let Some(wrong) = ambit_manifest::names::dns_subdomain(&entry) {
            return Err(format!("ENTRY: {wrong}; write the name of a WorkloadEntry, and -n"));
        }
        let namespace = self.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let ttl = self.ttl(CLUSTER_TTL_DEFAULT, CLUSTER_TTL, "a cluster")?;
        Ok(Joiner::Workload { namespace, entry, ttl, address: self.address.clone() })
    }

    fn ttl(
        &self,
        default: Duration,
        range: RangeInclusive<Duration>,
        of: &str,
    ) -> Result<Duration, String> {
        let ttl = self.ttl.unwrap_or(default);
        if range.contains(&ttl) {
            return Ok(ttl);
        }
        let error = DurationError::OutOfRange { text: write_duration(ttl), range };
        Err(format!("--ttl of a token of {of}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn joiner(words: &str) -> Result<Joiner, String> {
        let words = ["ambit", "token", "create"].into_iter().chain(words.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let command = cli.into_command(None).map_err(|error| error.to_string())?;
        let Command::Token(TokenArgs { command: TokenCommand::Create(args) }) = command else {
            panic!("another command")
        };
        args.joiner()
    }

    #[test]
    fn a_token_is_for_a_node_or_for_an_entry() {
        let hour = Duration::from_secs(3600);
        let node = Joiner::Node { node: None, ttl: hour, address: None };
        assert_eq!(joiner(""), Ok(node));
        let node = Joiner::Node {
            node: Some("node-5".to_owned()),
            ttl: DAY,
            address: Some(([192, 0, 2, 1], 7443).into()),
        };
        assert_eq!(joiner("--node node-5 --ttl 24h --address 192.0.2.1:7443"), Ok(node));
        let workload = |namespace: &str, ttl, address: Option<&str>| Joiner::Workload {
            namespace: namespace.to_owned(),
            entry: "db".to_owned(),
            ttl,
            address: address.map(str::to_owned),
        };
        assert_eq!(joiner("--kube db"), Ok(workload("default", DAY, None)));
        let written = "--context c -n shop --ttl 10m --address mesh.example.com db";
        let expected = workload("shop", Duration::from_secs(600), Some("mesh.example.com"));
        assert_eq!(joiner(written), Ok(expected));
        assert_eq!(joiner("db --kube --ttl 365d"), Ok(workload("default", DAY * 365, None)));
    }

    #[test]
    fn what_does_not_fit_together_says_what_to_do() {
        let check = |words: &str, part: &str| {
            let error = joiner(words).expect_err(words);
            assert!(error.contains(part), "{words}: {error}");
        };
        check("db", "add --kube");
        check("-n shop", "add --kube");
        check("--address mesh.example.com", "write IP:PORT");
        check("--ttl 25h", "of a machine: 25h0m0s is out of range; write 1s to 24h0m0s");
        check("--kube", "name the WorkloadEntry");
        check("--kube shop/db", "write the name of a WorkloadEntry, and -n");
        check("--kube --node node-5 db", "leave it out");
        check("--kube --ttl 1m db", "of a cluster: 1m0s is out of range; write 10m0s to");
        check("--kube --ttl 366d db", "of a cluster");
        check("--kube --state /run/x db", "--state names a machine");
        check("--kube --ttl soon db", "is not a duration");
        check("--kube -n Shop db", "Shop");
    }
}
