//! The machine of one mode: started, loaded and taken down by the user's own commands.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use ambit_net::sys::process::{self, Pid, Signal};
use anyhow::{Context, Result, bail};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::experiment::{START_LIMIT, Size};
use super::modes::{Carrier, Mode, Programs};
use super::peer::Sidecars;
use super::record::MachineSize;
use super::roles::Roles;
use crate::image::PROGRAMS;
use crate::layout::Layout;
use crate::load::Report;
use crate::machine::{self, Client, Liveness, Record};

/// The nodes of every experiment.
const NODES: [&str; 2] = ["node-1", "node-2"];
/// How much longer than its load a load generator may take.
const GRACE: Duration = Duration::from_secs(60);
/// How long a machine may take to end, the removal of its files included.
const DOWN_LIMIT: Duration = Duration::from_secs(600);
/// What is sent once to prove that a stranger is refused.
const KNOCKS: &str = "--rate 10/s --connections 1 --requests 3 --timeout 2s --keep-going";

/// A machine of a mode.
pub(super) struct Bed {
    pub(super) mode: Mode,
    pub(super) size: MachineSize,
    binary: PathBuf,
    client: Client,
    generators: Vec<String>,
    /// `ambit up`, as long as it runs.
    starting: Option<Starting>,
    /// Where sidecars write.
    logs: PathBuf,
    sidecars: Option<Sidecars>,
}

impl Bed {
    /// A machine that is not started yet.
    pub(super) fn new(
        mode: Mode,
        binary: &Path,
        state: PathBuf,
        logs: PathBuf,
        size: &Size,
    ) -> Self {
        let mut generators: Vec<String> =
            size.cases.iter().flat_map(|load| load.generators.clone()).collect();
        generators.sort();
        generators.dedup();
        Self {
            mode,
            size: MachineSize {
                name: size.name(),
                namespaces: size.namespaces,
                ..MachineSize::default()
            },
            binary: binary.to_owned(),
            client: Client::new(Layout::new(state)),
            generators,
            starting: None,
            logs,
            sidecars: None,
        }
    }

    /// Starts it, and proves that it is what it is called.
    pub(super) async fn up(&mut self, size: &Size, programs: &Programs) -> Result<()> {
        let start = Instant::now();
        let mut words: Vec<String> = ["up", "-", "--nodes", "2", "--detach"].map(Into::into).into();
        if !self.mode.has_mesh() {
            words.push("--no-mesh".to_owned());
        }
        if let Carrier::NodeProxy(peer) = self.mode.carrier {
            let program = programs.get(&peer).context("its program was named")?;
            for node in NODES {
                words.extend(["--proxy".to_owned(), format!("{node}={}", program.display())]);
            }
        }
        let mut manifests = size.manifests.text(self.mode.has_mesh());
        if self.mode.has_mesh() && self.mode.has_policies {
            manifests = format!("{manifests}\n---\n{}", size.policies);
        }
        self.start(&words, &manifests).await?;
        if let Some(beside) = size.beside.filter(|_| self.mode.has_mesh()) {
            let apply = ["apply", "-"].map(Into::into);
            for manifests in beside.manifests() {
                self.ambit(&apply, &manifests, START_LIMIT).await?;
            }
        }
        if let Carrier::Sidecar(peer) = self.mode.carrier {
            let program = programs.get(&peer).context("its program was named")?;
            let kind = peer.sidecar().context("it runs in pods")?;
            let started = Sidecars::start(kind, program, &self.client, &self.logs).await?;
            self.sidecars = Some(started);
        }
        self.size.up_seconds = start.elapsed().as_secs_f64();
        self.prove(size).await?;
        let pods = self.client.pods().await?;
        self.size.pods = pods.len();
        self.size.at_rest = self.roles().await?.memory();
        Ok(())
    }

    /// Runs `ambit up`. It is not killed when nobody waits for it any more: half a machine could
    /// not be found again.
    async fn start(&mut self, words: &[String], manifests: &str) -> Result<()> {
        let child = self.spawn(words, false)?;
        let pid = child.id().and_then(|pid| Pid::try_from(pid).ok());
        let pid = pid.context("it has just been started")?;
        let output = tokio::spawn(fed(child, manifests.to_owned()));
        let starting = self.starting.insert(Starting { pid, output });
        let output = timeout(START_LIMIT, &mut starting.output).await;
        let output = output.with_context(|| {
            format!("ambit up takes longer than {} s", START_LIMIT.as_secs())
        })???;
        self.starting = None;
        said(&words[0], &output).map(drop)
    }

    /// Whether the mesh carries what the generators send, and its policies hold.
    async fn prove(&self, size: &Size) -> Result<()> {
        if !self.mode.has_mesh() {
            return Ok(());
        }
        let pods = self.client.pods().await?;
        let name = |pod: &machine::PodInfo| format!("{}/{}", pod.namespace, pod.name);
        let mut generators = pods.iter().filter(|pod| self.generators.contains(&name(pod)));
        if let Some(pod) = generators.find(|pod| !pod.captured) {
            bail!("{} is not in the mesh; label its namespace", name(pod));
        }
        let Some((stranger, url)) = size.stranger.as_ref().filter(|_| self.mode.has_policies)
        else {
            return Ok(());
        };
        let words = format!("load {url} {KNOCKS}");
        let words: Vec<String> = words.split(' ').map(Into::into).collect();
        let knocked = self.load(stranger, &words).await?;
        if knocked.failed != knocked.requests || knocked.requests == 0 {
            bail!(
                "the policies are not in force: {} of {} requests of {stranger} were let in",
                knocked.requests - knocked.failed,
                knocked.requests
            );
        }
        Ok(())
    }

    /// Its processes.
    pub(super) async fn roles(&self) -> Result<Roles> {
        let record = Record::read(self.client.layout())?;
        let pods = self.client.pods().await?;
        let processes = machine::processes(&record, &pods).context("list its processes")?;
        let sidecars = self.sidecars.as_ref().map(Sidecars::pids).unwrap_or_default();
        Ok(Roles::of(&processes, &sidecars, &self.generators))
    }

    /// Whether everything that was started runs still, and was not started again meanwhile.
    pub(super) async fn check(&self) -> Result<()> {
        if let Some(sidecars) = &self.sidecars {
            sidecars.alive()?;
        }
        let status = self.client.status().await?;
        for role in status.roles {
            if role.restarts > 0 {
                let code = role.last_exit.unwrap_or_default();
                bail!("{} ended with {code}{}", role.name, last_words(&role.log));
            }
        }
        let pods = self.client.pods().await?;
        if let Some(pod) = pods.iter().find(|pod| pod.restarts > 0) {
            bail!("the pod {}/{} was started again: {}", pod.namespace, pod.name, pod.reason);
        }
        Ok(())
    }

    /// Drives a load for a time from all its pods at once.
    pub(super) async fn drive(
        &self,
        generators: &[String],
        loads: &[Vec<String>],
        duration: Duration,
    ) -> Result<Report> {
        let time = ["--duration".to_owned(), format!("{}s", duration.as_secs_f64())];
        let words = loads.iter().map(|words| [words.as_slice(), &time].concat());
        let words: Vec<Vec<String>> = words.collect();
        let runs = generators.iter().zip(&words).map(|(pod, words)| self.load(pod, words));
        let reports = futures::future::try_join_all(runs).await?;
        Report::merged(&reports).context("a load has at least one generator")
    }

    /// Runs the load generator in a pod.
    async fn load(&self, pod: &str, words: &[String]) -> Result<Report> {
        let mut all: Vec<String> = ["exec", pod, "--"].map(Into::into).into();
        all.push(format!("{PROGRAMS}/ambit"));
        all.extend(words.iter().cloned());
        all.extend(["--quiet", "--output", "json"].map(Into::into));
        let printed = self.ambit(&all, "", START_LIMIT + GRACE).await?;
        let report = serde_json::from_str(&printed);
        let report: Report = report.context("read what the load generator says")?;
        if report.interrupted {
            bail!("the load generator was interrupted");
        }
        Ok(report)
    }

    /// Takes it down, whatever is left of it.
    pub(super) async fn down(&mut self) -> Result<()> {
        let stopped = self.sidecars.take().map_or(Ok(()), Sidecars::stop);
        if let Some(starting) = self.starting.take() {
            // It takes down what it has started.
            let _ended = process::kill(starting.pid, Signal::Term);
            let ended = timeout(DOWN_LIMIT, starting.output).await;
            let _its_words = ended.context("ambit up does not end")?;
        }
        let layout = self.client.layout();
        let start = Instant::now();
        if machine::liveness(layout).context("look whether it lives")? != Liveness::Absent {
            self.ambit(&["down".to_owned()], "", DOWN_LIMIT).await?;
            self.size.down_seconds = start.elapsed().as_secs_f64();
        }
        if layout.root().exists() {
            std::fs::remove_dir_all(layout.root()).context("remove its state directory")?;
        }
        stopped.context("end its sidecars")
    }

    /// Keeps the logs of a machine that failed, beside those of its sidecars.
    pub(super) fn keep_logs(&self) -> Result<()> {
        crate::demo::move_directory(&self.client.layout().logs(), &self.logs)
    }

    /// Nobody needs the logs of sidecars that did what they should.
    pub(super) fn forget_logs(&self) {
        let _none_there = std::fs::remove_dir_all(&self.logs);
    }

    /// Runs one of the user's commands, which ends when nobody waits for it any more.
    async fn ambit(&self, words: &[String], input: &str, limit: Duration) -> Result<String> {
        let child = self.spawn(words, true)?;
        let output = timeout(limit, fed(child, input.to_owned())).await;
        let output = output.with_context(|| {
            format!("ambit {} takes longer than {} s", words[0], limit.as_secs())
        })??;
        said(&words[0], &output)
    }

    /// Starts one of the user's commands. It is in a process group of its own: Ctrl-C is for the
    /// run, which takes everything down.
    fn spawn(&self, words: &[String], kill_on_drop: bool) -> Result<Child> {
        Command::new(&self.binary)
            .args(words)
            .env("AMBIT_STATE", self.client.layout().root())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(kill_on_drop)
            .spawn()
            .with_context(|| format!("start {}", self.binary.display()))
    }
}

/// A command that starts a machine.
struct Starting {
    pid: Pid,
    output: JoinHandle<io::Result<Output>>,
}

/// Gives a command its input, and waits for its end.
async fn fed(mut child: Child, input: String) -> io::Result<Output> {
    let mut stdin = child.stdin.take().expect("its input is a pipe");
    let feed = async {
        // One that ends without reading says why.
        let _unread = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
    };
    tokio::join!(feed, child.wait_with_output()).1
}

/// What a command printed, or what it said went wrong.
fn said(command: &str, output: &Output) -> Result<String> {
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("ambit {command}: {}", last_line(error.trim()));
    }
    String::from_utf8(output.stdout.clone()).context("its output is text")
}

/// What a program wrote last, as part of a sentence.
fn last_words(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let last = last_line(text.trim());
    if last.is_empty() { String::new() } else { format!(": {last}") }
}

/// The last line that says what went wrong; progress stands before it.
fn last_line(text: &str) -> &str {
    let lines = || text.lines().rev();
    lines().find(|line| line.contains("error")).or_else(|| lines().next()).unwrap_or(text)
}
