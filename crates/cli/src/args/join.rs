//! The arguments of `ambit join` and `ambit token`.

use std::net::SocketAddr;
use std::time::Duration;

use ambit_words::durations::{DurationError, parse_duration_within};
use clap::{Args, Subcommand};

use super::PodArgs;
use super::state::StateArgs;

/// The longest that a token can be used.
const TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// `ambit join`.
#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// What `ambit token create` printed on the other computer; - reads it from standard input,
    /// which no other user of this computer can see.
    #[arg(value_name = "TOKEN")]
    pub(crate) token: String,
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
    /// Prints a token, by which one computer joins once, with `ambit join`. It is a secret.
    Create(TokenCreateArgs),
}

impl TokenCommand {
    /// Which machine.
    pub(crate) fn state(&mut self) -> &mut StateArgs {
        match self {
            Self::Create(args) => &mut args.state,
        }
    }
}

/// `ambit token create`.
#[derive(Debug, Args)]
pub(crate) struct TokenCreateArgs {
    /// Which node the other computer will be, such as node-5 [default: the first that is free].
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
    /// How long the token can be used, at most a day. The node stays.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = ttl)]
    pub(crate) ttl: Duration,
    /// Where the other computer reaches this one [default: the address of
    /// `ambit up --join-address`].
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) address: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

fn ttl(text: &str) -> Result<Duration, DurationError> {
    parse_duration_within(text, Duration::from_secs(1)..=TTL_MAX)
}
