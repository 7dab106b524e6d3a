//! The machine of one mode: started, loaded and taken down with the user's own commands.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use ambit_load::Report;
use ambit_machine::image::PROGRAMS;
use ambit_machine::layout::Layout;
use ambit_machine::{Client, Liveness, Record};
use ambit_net::sys::process::{self, Pid, Signal};
use anyhow::{Context, Result, bail};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{KNOCKS, Scratch, read_report};
use crate::experiment::{START_LIMIT, Size};
use crate::host;
use crate::manifest;
use crate::modes::{Carrier, Mode, Programs};
use crate::peer::Sidecars;
use crate::record::{MachineSize, Meanwhile, Memory, Usage};
use crate::roles::{PROXY, Reading, Roles, WAYPOINT};

/// The nodes of every experiment.
const NODES: [&str; 2] = ["node-1", "node-2"];
/// How much longer than its load a load generator may take.
const GRACE: Duration = Duration::from_secs(60);
/// How long a machine may take to end, the removal of its files included.
const DOWN_LIMIT: Duration = Duration::from_secs(600);
/// How long proxies may keep the memory that taking up thousands of objects took: jemalloc, which
/// Ambit and ztunnel use, gives it back within 10 s. Without such objects nothing is waited for.
const DECAY: Duration = Duration::from_secs(15);
/// How often is looked whether pods run.
const LOOK: Duration = Duration::from_millis(50);
/// What a pod takes besides the program it shares with all others, at most.
const POD_BYTES: u64 = 16 << 20;
/// A pod knows its node, and its node the pod.
const NEIGHBOURS_OF_POD: usize = 2;
/// What the machine of a mode takes besides its pods.
const MACHINE_BYTES: u64 = 256 << 20;

/// What machines are started with.
pub(crate) struct Machines {
    pub(crate) binary: PathBuf,
    pub(crate) programs: Programs,
    /// Where their state goes.
    pub(crate) state: Scratch,
}

/// A machine of a mode.
pub(crate) struct Machine {
    pub(super) mode: Mode,
    pub(super) size: MachineSize,
    binary: PathBuf,
    programs: Programs,
    client: Client,
    generators: Vec<String>,
    /// `ambit up`, as long as it runs.
    starting: Option<Starting>,
    /// Where sidecars write.
    logs: PathBuf,
    sidecars: Option<Sidecars>,
}

/// What a machine's processes have used so far, and had.
pub(crate) struct Used {
    roles: Roles,
    memory: BTreeMap<String, Memory>,
    host: host::Reading,
    threads: Reading,
}

impl Used {
    /// The memory that they had at the first reading.
    pub(super) fn memory_before(&self) -> BTreeMap<String, Memory> {
        self.memory.clone()
    }

    /// What they have now.
    pub(super) fn memory_now(&self) -> BTreeMap<String, Memory> {
        self.roles.memory()
    }
}

impl Machine {
    /// A machine that is not started yet. `name` is its own among those of the run.
    pub(super) fn new(
        mode: Mode,
        machines: &Machines,
        name: &str,
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
            binary: machines.binary.clone(),
            programs: machines.programs.clone(),
            client: Client::new(Layout::new(machines.state.0.join(name))),
            generators,
            starting: None,
            logs,
            sidecars: None,
        }
    }

    /// Starts it, and checks that it really runs its mode.
    pub(super) async fn up(&mut self, size: &Size) -> Result<()> {
        let start = Instant::now();
        // What carries the load is measured, not what stops the pods that make it.
        let words = ["up", "-", "--nodes", "2", "--detach", "--no-limits"];
        let mut words: Vec<String> = words.map(Into::into).into();
        if !self.mode.has_mesh() {
            words.push("--no-mesh".to_owned());
        }
        if let Carrier::NodeProxy(peer) = self.mode.carrier {
            let program = self.programs.get(&peer).context("its program was named")?;
            for node in NODES {
                words.extend(["--proxy".to_owned(), format!("{node}={}", program.display())]);
            }
        }
        if let Carrier::Waypoint(_) = self.mode.carrier {
            // Its pods wait for the program, which comes when they have their addresses.
            words.extend(["--image", "ambit/waypoint=sleep infinity"].map(Into::into));
        }
        let manifests = size.text(&self.mode);
        self.start(&words, &manifests).await?;
        if let Some(beside) = size.beside.filter(|_| self.mode.has_mesh()) {
            let apply = ["apply", "-"].map(Into::into);
            for manifests in beside.manifests() {
                self.ambit(&apply, &manifests, START_LIMIT).await?;
            }
        }
        if let Carrier::Sidecar(peer) = self.mode.carrier {
            let program = self.programs.get(&peer).context("its program was named")?;
            let kind = peer.sidecar().context("it runs in pods")?;
            let started = Sidecars::start(kind, program, &self.client, &self.logs).await?;
            self.sidecars = Some(started);
        }
        if let Carrier::Waypoint(peer) = self.mode.carrier {
            let program = self.programs.get(&peer).context("its program was named")?.clone();
            self.stand_in(&program, size).await?;
        }
        self.size.up_seconds = start.elapsed().as_secs_f64();
        self.prove(size).await?;
        if size.beside.is_some() {
            tokio::time::sleep(DECAY).await;
        }
        let pods = self.client.pods().await?;
        self.size.pods = pods.len();
        self.size.at_rest = self.roles().await?.memory();
        Ok(())
    }

    /// Makes waypoints, and starts the program in their pods.
    async fn stand_in(&mut self, program: &Path, size: &Size) -> Result<()> {
        let waypoints: Vec<_> = size
            .waypoints
            .iter()
            .flat_map(|namespace| manifest::waypoint_objects(namespace))
            .collect();
        self.client.apply(waypoints, false).await?;
        let limit = Instant::now() + START_LIMIT;
        loop {
            let pods = self.client.pods().await?;
            let running = pods.iter().filter(|pod| pod.owner == manifest::WAYPOINT && pod.pid != 0);
            if running.count() == size.waypoints.len() {
                break;
            }
            if Instant::now() > limit {
                bail!("the waypoints' pods do not run after {} s", START_LIMIT.as_secs());
            }
            tokio::time::sleep(LOOK).await;
        }
        let account = manifest::WAYPOINT;
        let started = Sidecars::start_waypoints(program, &self.client, &self.logs, account).await?;
        self.sidecars = Some(started);
        let ready = self.client.wait_until_ready(START_LIMIT, |_| {}).await;
        ready.map(drop).context("wait for the waypoints")
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
        let name = |pod: &ambit_machine::PodInfo| format!("{}/{}", pod.namespace, pod.name);
        let mut generators = pods.iter().filter(|pod| self.generators.contains(&name(pod)));
        if let Some(pod) = generators.find(|pod| !pod.captured) {
            bail!("{} is not in the mesh; label its namespace", name(pod));
        }
        for (pod, url, method) in size.refused(&self.mode) {
            let words = format!("load {url} --method {method} {KNOCKS}");
            let words: Vec<String> = words.split(' ').map(Into::into).collect();
            let knocked = self.load(&pod, &words).await?;
            if knocked.failed != knocked.requests || knocked.requests == 0 {
                bail!(
                    "the policies are not in force: {} of {} requests ({method}) of {pod} were let \
                     in",
                    knocked.requests - knocked.failed,
                    knocked.requests
                );
            }
        }
        Ok(())
    }

    /// Its processes.
    pub(super) async fn roles(&self) -> Result<Roles> {
        let record = Record::read(self.client.layout())?;
        let pods = self.client.pods().await?;
        let processes = ambit_machine::processes(&record, &pods).context("list its processes")?;
        let sidecars = self.sidecars.as_ref().map(Sidecars::pids).unwrap_or_default();
        let waypoints = pods.iter().filter(|pod| pod.owner == manifest::WAYPOINT);
        let waypoints = waypoints.map(|pod| format!("{}/{}", pod.namespace, pod.name));
        let waypoints: Vec<String> = waypoints.filter(|_| self.mode.has_waypoint).collect();
        let is_waypoint = matches!(self.mode.carrier, Carrier::Waypoint(_));
        let role = if is_waypoint { WAYPOINT } else { PROXY };
        Ok(Roles::of(&processes, (role, &sidecars), &self.generators, &waypoints))
    }

    /// What its processes have used so far.
    pub(super) async fn used(&self) -> Result<Used> {
        let roles = self.roles().await?;
        let memory = roles.memory();
        let (host, threads) = (host::Reading::now()?, roles.read()?);
        Ok(Used { roles, memory, host, threads })
    }

    /// What they have used since then; complete only if none of them restarted.
    pub(super) async fn used_since(
        &self,
        before: &Used,
    ) -> Result<(BTreeMap<String, Usage>, Meanwhile)> {
        let (after, host) = (before.roles.read()?, before.host.until_now()?);
        self.check().await?;
        let roles = self.roles().await?;
        if let Some(role) =
            [PROXY, WAYPOINT].into_iter().find(|role| roles.pids(role) != before.roles.pids(role))
        {
            bail!("a process of a {role} ended during the load");
        }
        Ok((after.since(&before.threads), host))
    }

    /// Whether everything that was started runs still, and was not started again meanwhile.
    async fn check(&self) -> Result<()> {
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

    /// Runs the load generator in a pod.
    pub(super) async fn load(&self, pod: &str, words: &[String]) -> Result<Report> {
        let mut all: Vec<String> = ["exec", pod, "--"].map(Into::into).into();
        all.push(format!("{PROGRAMS}/ambit"));
        all.extend(words.iter().cloned());
        all.extend(["--quiet", "--output", "json"].map(Into::into));
        let printed = self.ambit(&all, "", START_LIMIT + GRACE).await?;
        read_report(&printed)
    }

    /// Takes it down, whatever is left of it.
    pub(super) async fn down(&mut self) -> Result<()> {
        let root = self.client.layout().root().display().to_string();
        self.stop().await.with_context(|| format!("try `ambit down --state {root}`"))
    }

    async fn stop(&mut self) -> Result<()> {
        let stopped = self.sidecars.take().map_or(Ok(()), Sidecars::stop);
        // Kept until it has ended: an interrupted caller waits for its end again.
        if let Some(starting) = &mut self.starting {
            // It takes down what it has started.
            let _ended = process::kill(starting.pid, Signal::Term);
            let ended = timeout(DOWN_LIMIT, &mut starting.output).await;
            let _its_words = ended.context("ambit up does not end")?;
            self.starting = None;
        }
        let layout = self.client.layout();
        let start = Instant::now();
        if ambit_machine::liveness(layout).context("look whether it lives")? != Liveness::Absent {
            self.ambit(&["down".to_owned()], "", DOWN_LIMIT).await?;
            self.size.down_seconds = start.elapsed().as_secs_f64();
        }
        if layout.root().exists() {
            std::fs::remove_dir_all(layout.root()).context("remove its state directory")?;
        }
        stopped.context("end its sidecars")
    }

    /// Its state directory, if there is one still.
    pub(super) fn left(&self) -> Option<String> {
        let root = self.client.layout().root();
        root.exists().then(|| root.display().to_string())
    }

    /// Keeps the logs of a machine that failed, beside those of its sidecars.
    pub(super) fn keep_logs(&self) -> Result<()> {
        crate::demo::move_directory(&self.client.layout().logs(), &self.logs)
    }

    /// Drops the logs of sidecars that worked.
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

/// Fails unless a machine of this size fits beside machines with so many pods.
pub(super) fn ensure_room(size: &Size, pods: usize) -> Result<()> {
    ensure_neighbours(pods + size.pods())?;
    let needed = size.pods() as u64 * POD_BYTES + MACHINE_BYTES;
    let available = host::available_bytes()?;
    if needed > available {
        bail!(
            "its machine may need {} MiB of memory and {} are left; name fewer --modes at once, or \
             a smaller size",
            needed >> 20,
            available >> 20
        );
    }
    Ok(())
}

/// The kernel keeps the neighbours of all network namespaces in one table. When that is full,
/// connections fail with "host unreachable", in whichever machine comes next.
fn ensure_neighbours(pods: usize) -> Result<()> {
    let Some(limit) = host::neighbours_max() else { return Ok(()) };
    let needed = pods * NEIGHBOURS_OF_POD;
    if needed > limit {
        bail!(
            "{pods} pods on all machines need {needed} entries of the kernel's table of \
             neighbours, which takes {limit}; name fewer --modes at once, or raise it with sysctl \
             net.ipv4.neigh.default.gc_thresh3={}",
            needed * 2
        );
    }
    Ok(())
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

/// The last line, which says what went wrong; progress comes before it.
fn last_line(text: &str) -> &str {
    let lines = || text.lines().rev();
    lines().find(|line| line.contains("error")).or_else(|| lines().next()).unwrap_or(text)
}
