//! `ambit up`, `ambit down` and `ambit demo`.

#![deny(clippy::print_stderr, reason = "it panics where nobody listens, before machines are down")]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ambit_bench::demo::{self, DemoConfig};
use ambit_load::tell;
use ambit_machine::layout::Layout;
use ambit_machine::{
    Born, Client, ClientError, HostPath, ImageArguments, ImportError, LinkConfig, NodeLabels,
    Progress, UpConfig, WaitError,
};
use ambit_manifest::Typed;
use ambit_model::printable::{printable, printable_lines};
use ambit_wire::admin::FailingPod;
use anyhow::{Context, Result, anyhow, bail};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{findings, publish};
use crate::args::{DemoArgs, Report, StateArgs, UpArgs};
use crate::progress;

/// How long the pods of a new mesh may take to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// How often it is looked whether the machine still lives.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Starts a machine and applies the manifests.
pub(super) async fn up(args: UpArgs) -> Result<ExitCode> {
    let (inputs, ignored) = (args.inputs.inputs(), args.ignored.unenforced());
    let manifests = super::change::load(&inputs, args.namespace.asked(), ignored)?;
    let images = args.pods.images.read()?;
    let config = config(&args, &images)?;
    super::change::check(&manifests, &nodes(&config)?, &images)?;
    publish::check(&args.publish, &manifests.objects, !args.no_mesh)?;
    // Before anything is started that would have to be taken down again.
    let sockets = ambit_machine::bind(&args.publish)?;
    let api = args.kubernetes_api.map(ambit_machine::bind_kubernetes_api).transpose()?;
    let start = Instant::now();
    let mut interruptions = Interruptions::listen()?;
    let born = self::start(&config, &images, &mut interruptions, start).await?;
    let client = Client::new(born.layout.clone());
    let objects = manifests.objects.into_iter().map(|object| object.named).collect();
    let filling = async {
        ambit_machine::publish(&born.layout, &args.publish, sockets).await?;
        if let Some(port) = api {
            ambit_machine::serve_kubernetes_api(&born.layout, port).await?;
        }
        fill(&client, objects, !args.no_mesh, start).await
    };
    let filled = tokio::select! {
        filled = filling => filled,
        () = interruptions.next() => Err(anyhow!("interrupted; the machine is taken down")),
    };
    let failing = match filled {
        Ok(failing) => failing,
        Err(error) => {
            ambit_machine::down(&born.layout)
                .await
                .context("take the half-started machine down")?;
            return Err(error);
        }
    };
    let but = if failing.is_empty() { "" } else { ", but not all of it" };
    tell(format_args!(
        "{:6.2}s up{but}; state in {}",
        start.elapsed().as_secs_f64(),
        born.layout.root().display()
    ));
    tell_ways(&args, &config.link, &born.layout);
    if let Err(error) = publish::open_asked(&client, |_, _| true).await {
        tell(format_args!("warning: ports of services are not open: {error:#}"));
    }
    if args.detach {
        return Ok(if failing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    tell(format_args!("        Ctrl-C takes it down"));
    tokio::select! {
        () = interruptions.next() => {}
        () = gone(&client) => bail!("the machine has ended; see its logs"),
        () = super::acme::watch(&client), if !args.no_mesh => {}
    }
    down(&StateArgs { state: Some(config.state) }).await
}

/// Starts the machine, with its images.
pub(super) async fn start(
    config: &UpConfig,
    images: &ImageArguments,
    interruptions: &mut Interruptions,
    start: Instant,
) -> Result<Born> {
    let registries = super::registries::of_user(&images.sources)?;
    let import = async |layout: &Layout, progress: &mut dyn FnMut(&str)| {
        let sources = &images.sources;
        let imported = sources.import(layout, &registries, progress, interruptions.next()).await?;
        // One that came with the last image must not be lost behind it.
        tokio::select! {
            biased;
            () = interruptions.next() => Err(ImportError::Interrupted),
            () = tokio::task::yield_now() => Ok(imported),
        }
    };
    // After that, not cut short: a machine that is half born could not be found again.
    let said = |step| say(start, &step);
    Ok(ambit_machine::up_with(config, import, said).await?)
}

/// Says what of the host leads to the machine.
fn tell_ways(args: &UpArgs, link: &LinkConfig, layout: &Layout) {
    for published in &args.publish {
        tell(format_args!("        {published}"));
    }
    if let LinkConfig::Home { address, .. } = link {
        tell(format_args!("        {address} takes computers that join: `ambit token create`"));
    }
    if let Some(egress) = &args.pods.egress {
        tell(format_args!("        pods reach the outside by TCP: {egress}"));
    }
    if args.kubernetes_api.is_some() {
        let path = layout.kubeconfig();
        tell(format_args!("        kubectl uses it with KUBECONFIG={}", path.display()));
    }
}

/// The nodes that there will be, for manifests that name one.
fn nodes(config: &UpConfig) -> Result<Vec<Typed>> {
    let node = |number| {
        let node = ambit_machine::node_object(number, &config.node_labels).to_string();
        ambit_manifest::stored(ambit_manifest::Kind::Node, node.as_bytes())
    };
    Ok((1..=config.nodes).map(node).collect::<Result<_, _>>()?)
}

/// Applies the objects and waits for them. Returns the pods that are still not ready: what runs is
/// kept, for the user to inspect and correct.
async fn fill(
    client: &Client,
    objects: Vec<serde_json::Value>,
    has_mesh: bool,
    start: Instant,
) -> Result<Vec<FailingPod>> {
    for warning in client.apply(objects, false).await?.warnings {
        tell(format_args!("warning: {warning}"));
    }
    let progress = |missing: &[String]| {
        let first = missing.first().map(|pod| format!(" ({pod})")).unwrap_or_default();
        let pods = if missing.len() == 1 { "pod" } else { "pods" };
        let what = format!("{} {pods}{first}", missing.len());
        say(start, &Progress::Waiting { what });
    };
    let is_ready = match client.wait_until_ready(READY_TIMEOUT, progress).await {
        Ok(_) => true,
        Err(WaitError::NoNode { .. } | WaitError::Timeout { .. }) => false,
        Err(WaitError::Client(error)) => return Err(error.into()),
    };
    let control = client.layout().control_socket();
    if has_mesh {
        let told = |what: &str| say(start, &Progress::Waiting { what: what.to_owned() });
        super::settle::wait(&control, told).await;
    }
    let mut pods = client.pods().await?;
    // What was ready once is up, unless it crashes again and again.
    pods.retain(|pod| pod.crash_looping || !is_ready);
    let failing = findings::of_machine(&pods);
    let mut text = findings::pods_text(&failing);
    if has_mesh {
        text.push_str(&findings::loud(&control).await);
    }
    tell_lines(&text);
    Ok(failing)
}

/// Each line by itself, behind whatever the terminal shows of the progress.
fn tell_lines(text: &str) {
    printable_lines(text).lines().for_each(|line| tell(format_args!("{line}")));
}

fn config(args: &UpArgs, images: &ImageArguments) -> Result<UpConfig> {
    let mut proxies = BTreeMap::new();
    for proxy in &args.proxies {
        let (node, path) = proxy.split_once('=').with_context(|| {
            format!("--proxy {proxy:?}: write it as NODE=PATH, for example node-2=/bin/ztunnel")
        })?;
        let found = std::fs::canonicalize(path).and_then(|path| match path.is_file() {
            true => Ok(path),
            false => Err(std::io::Error::other("it is not a file")),
        });
        let path = found.with_context(|| format!("--proxy {proxy}: find the program {path}"))?;
        proxies.insert(node.to_owned(), path);
    }
    let arguments = BTreeMap::from([
        ("control".to_owned(), args.control_flags.clone()),
        ("proxy".to_owned(), args.proxy_flags.clone()),
        ("node".to_owned(), args.node_flags.clone()),
    ]);
    Ok(UpConfig {
        state: super::layout(&args.state).root().to_owned(),
        nodes: args.nodes,
        binary: std::env::current_exe().context("find this program")?,
        mesh: !args.no_mesh,
        images: images.commands.clone(),
        node_labels: NodeLabels::all(&args.node_labels, args.nodes)?,
        host_paths: HostPath::all(&args.pods.host_paths)?,
        confined: false,
        limits: !args.pods.no_limits,
        egress: args.pods.egress.clone(),
        proxies,
        arguments,
        environment: BTreeMap::new(),
        link: args.join_address.map(LinkConfig::home).transpose()?.unwrap_or_default(),
    })
}

/// Prints the progress. A closed output is no reason to stop half way.
fn say(start: Instant, step: &Progress) {
    let at = start.elapsed().as_secs_f64();
    let mut error = std::io::stderr().lock();
    // Names and words of manifests are among it.
    let what = match step {
        Progress::Waiting { what } | Progress::Done { what } => printable(what),
        Progress::Up | Progress::Failed { .. } => Cow::default(),
    };
    let _unheard = match step {
        Progress::Waiting { .. } if error.is_terminal() => {
            write!(error, "\r\x1b[K{at:6.2}s waiting for {what}")
        }
        Progress::Waiting { .. } => writeln!(error, "{at:6.2}s waiting for {what}"),
        Progress::Done { .. } if error.is_terminal() => {
            writeln!(error, "\r\x1b[K{at:6.2}s {what}")
        }
        Progress::Done { .. } => writeln!(error, "{at:6.2}s {what}"),
        Progress::Up | Progress::Failed { .. } if error.is_terminal() => {
            write!(error, "\r\x1b[K")
        }
        Progress::Up | Progress::Failed { .. } => Ok(()),
    };
}

/// Ctrl-C and SIGTERM, from the first moment on.
pub(super) struct Interruptions {
    interrupt: Signal,
    terminate: Signal,
}

impl Interruptions {
    pub(super) fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).context("listen for Ctrl-C");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Returns when the machine does not answer any more.
pub(super) async fn gone(client: &Client) {
    // One that is too busy to answer is there.
    while matches!(client.status().await, Ok(_) | Err(ClientError::Silent { .. })) {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Takes a machine down.
pub(super) async fn down(args: &StateArgs) -> Result<ExitCode> {
    let shown = progress::shown("taking the machine down");
    let report = ambit_machine::down(&super::layout(args)).await?;
    drop(shown);
    let what = if report.ended { "down" } else { "what was left is removed" };
    let seconds = report.duration_ms as f64 / 1e3;
    tell(format_args!("{what} in {seconds:.2} s; logs are in {}", report.logs.display()));
    Ok(ExitCode::SUCCESS)
}

/// Brings the example up, proves it, takes it down.
pub(super) async fn demo(args: DemoArgs) -> Result<ExitCode> {
    let keep = match args.keep {
        Some(keep) => keep,
        None => std::env::temp_dir().join(format!("ambit-demo-{}", std::process::id())),
    };
    let config = DemoConfig {
        binary: std::env::current_exe().context("find this program")?,
        keep: std::path::absolute(keep).unwrap_or_else(|_| PathBuf::from("ambit-demo")),
        seconds: args.seconds,
        rate: args.rate,
    };
    let report = demo::run(&config, |line| tell(format_args!("{line}"))).await?;
    match args.output {
        Report::Text => super::print_text(&report.to_string())?,
        Report::Json => super::print_json(&report)?,
    }
    Ok(if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
