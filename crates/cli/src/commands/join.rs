//! `ambit join` and `ambit token`: this computer as a node of a machine on another.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::process::ExitCode;
use std::time::Instant;

use ambit_load::tell;
use ambit_machine::{Client, HostPath, JoinToken, LinkConfig, NodeLabels, UpConfig};
use anyhow::{Context, Result, bail};

use super::up::{Interruptions, down, gone, start};
use crate::args::{JoinArgs, StateArgs, TokenArgs, TokenCommand};

/// The most that is read of standard input: more than a token has.
const INPUT_SIZE_MAX_BYTES: u64 = 64 << 10;

/// Makes a token and prints it.
pub(super) async fn token(args: TokenArgs) -> Result<ExitCode> {
    let TokenCommand::Create(args) = args.command;
    let client = Client::new(super::layout(&args.state));
    let token = client.create_token(args.node, args.ttl, args.address).await?;
    super::print_text(&format!("{}\n", token.to_line()))?;
    Ok(ExitCode::SUCCESS)
}

/// Starts a machine that is a node of another.
pub(super) async fn join(args: JoinArgs) -> Result<ExitCode> {
    let token: JoinToken = read(&args.token)?.parse()?;
    let images = args.pods.images.read()?;
    let (node, address) = (token.node.clone(), token.address);
    let config = UpConfig {
        state: super::layout(&args.state).root().to_owned(),
        nodes: 1,
        binary: std::env::current_exe().context("find this program")?,
        mesh: token.mesh,
        images: images.commands.clone(),
        node_labels: NodeLabels::default(),
        host_paths: HostPath::all(&args.pods.host_paths)?,
        confined: !args.trust_home,
        limits: !args.pods.no_limits,
        egress: args.pods.egress.clone(),
        proxies: BTreeMap::new(),
        arguments: BTreeMap::new(),
        environment: BTreeMap::new(),
        link: LinkConfig::joined(token)?,
    };
    let begun = Instant::now();
    let mut interruptions = Interruptions::listen()?;
    let born = start(&config, &images, &mut interruptions, begun).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let state = born.layout.root().display();
    tell(format_args!("{seconds:6.2}s joined {address} as {node}; state in {state}"));
    if args.detach {
        return Ok(ExitCode::SUCCESS);
    }
    tell(format_args!("        Ctrl-C leaves it"));
    let client = Client::new(born.layout);
    tokio::select! {
        () = interruptions.next() => {}
        () = gone(&client) => bail!("the machine has ended; see its logs"),
    }
    down(&StateArgs { state: Some(config.state) }).await
}

/// The token, or what is on standard input in its place.
fn read(written: &str) -> Result<String> {
    if written != "-" {
        return Ok(written.to_owned());
    }
    let mut text = String::new();
    let input = std::io::stdin().lock().take(INPUT_SIZE_MAX_BYTES);
    std::io::BufReader::new(input).read_to_string(&mut text).context("read the token")?;
    Ok(text)
}
