//! `ambit join`: this computer as a node of a machine on another.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ambit_load::tell;
use ambit_machine::{
    Client, ClusterToken, Egress, HostPath, JoinToken, LinkConfig, Liveness, NodeLabels, UpConfig,
    Workload, liveness,
};
use anyhow::{Context, Result, anyhow, bail};
use tokio::time::sleep;

use super::up::{Interruptions, down, gone, start};
use crate::args::{JoinArgs, StateArgs};

/// How long a command may take until it runs, and how often that is looked at.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The most that is read of standard input: more than a token has.
const INPUT_SIZE_MAX_BYTES: u64 = 64 << 10;

/// Starts a machine that is a node of another, or that carries a workload of a cluster.
pub(super) async fn join(args: JoinArgs) -> Result<ExitCode> {
    let token = read(&args.token)?;
    let is_of_cluster = ClusterToken::is_meant(&token);
    if args.renew {
        if !is_of_cluster {
            bail!("--renew is for tokens of a cluster's WorkloadEntry; a machine needs no other");
        }
        let layout = super::layout(&args.state);
        ambit_machine::renew(&layout, &token.parse()?)?;
        tell(format_args!("the machine at {} has the token", layout.root().display()));
        return Ok(ExitCode::SUCCESS);
    }
    let (link, mesh, as_what) = match is_of_cluster {
        true => of_cluster(&args, token.parse()?)?,
        false => of_machine(&args, token.parse()?)?,
    };
    let images = args.pods.images.read()?;
    let mut egress = args.pods.egress.clone();
    if is_of_cluster && egress.is_none() {
        egress = Some(Egress::EVERYWHERE.parse()?);
    }
    let config = UpConfig {
        state: super::layout(&args.state).root().to_owned(),
        nodes: 1,
        binary: std::env::current_exe().context("find this program")?,
        mesh,
        images: images.commands.clone(),
        node_labels: NodeLabels::default(),
        host_paths: HostPath::all(&args.pods.host_paths)?,
        // The command is this user's own.
        confined: !args.trust_home && !is_of_cluster,
        limits: !args.pods.no_limits,
        egress,
        proxies: BTreeMap::new(),
        arguments: BTreeMap::new(),
        environment: BTreeMap::new(),
        link,
    };
    let begun = Instant::now();
    let mut interruptions = Interruptions::listen()?;
    let born = start(&config, &images, &mut interruptions, begun).await?;
    let state = born.layout.root().display();
    let client = Client::new(born.layout.clone());
    if is_of_cluster {
        let running = tokio::select! {
            running = command_runs(&client) => running,
            () = interruptions.next() => Err(anyhow!("interrupted; the machine is taken down")),
        };
        if let Err(error) = running {
            down(&StateArgs { state: Some(config.state) }).await?;
            return Err(error);
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    tell(format_args!("{seconds:6.2}s joined {as_what}; state in {state}"));
    if args.detach {
        return Ok(ExitCode::SUCCESS);
    }
    tell(format_args!("        Ctrl-C leaves it"));
    tokio::select! {
        () = interruptions.next() => {}
        () = gone(&client) => bail!("the machine has ended; see its logs"),
    }
    down(&StateArgs { state: Some(config.state) }).await
}

/// Waits until the command of a workload runs; says why if it does not.
async fn command_runs(client: &Client) -> Result<()> {
    let begun = Instant::now();
    loop {
        let pods = client.pods().await?;
        if !pods.is_empty() && pods.iter().all(|pod| pod.ready) {
            return Ok(());
        }
        let failing = pods.iter().find(|pod| pod.crash_looping || pod.unschedulable);
        let late = pods.first().filter(|_| begun.elapsed() > COMMAND_TIMEOUT);
        if let Some(pod) = failing.or(late) {
            let (namespace, name, reason) = (&pod.namespace, &pod.name, &pod.reason);
            bail!(
                "the command of {namespace}/{name} does not run: {reason}; its output is in the \
                 logs of the machine, which is taken down"
            );
        }
        sleep(LOOK_INTERVAL).await;
    }
}

/// How the machine is linked, whether it carries the mesh, and as what it joins which.
type Link = (LinkConfig, bool, String);

fn of_machine(args: &JoinArgs, token: JoinToken) -> Result<Link> {
    if !args.command.is_empty() {
        bail!(
            "the token is one of a machine, whose pods run here; leave out -- and the command, or \
             make a token of a WorkloadEntry with `ambit token create --kube`"
        );
    }
    let (mesh, as_what) = (token.mesh, format!("{} as {}", token.address, token.node));
    Ok((LinkConfig::joined(token)?, mesh, as_what))
}

fn of_cluster(args: &JoinArgs, token: ClusterToken) -> Result<Link> {
    if args.command.is_empty() {
        bail!(
            "the token is one of a WorkloadEntry; write what runs as that workload behind --, as \
             in `ambit join - -- python3 -m http.server 8080`"
        );
    }
    if args.trust_home {
        bail!("--trust-home is for tokens of a machine; a cluster chooses nothing here");
    }
    if !args.pods.images.is_empty() {
        bail!("--image is for tokens of a machine; the command of a WorkloadEntry has no image");
    }
    let layout = super::layout(&args.state);
    if liveness(&layout).is_ok_and(|it| it == Liveness::Alive) {
        let state = layout.root().display();
        bail!("a machine runs at {state}; --renew gives it another token, `ambit down` ends it");
    }
    let Workload { namespace, entry, control, .. } = &token.cluster;
    let as_what = format!("the mesh of {control} as WorkloadEntry {namespace}/{entry}");
    Ok((LinkConfig::cluster(token, args.command.clone())?, true, as_what))
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
