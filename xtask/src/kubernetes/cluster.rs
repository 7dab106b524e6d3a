//! The cluster: the one process that everything descends from, and access to it.
//!
//! `machine.sh` is process 1 of the cluster's PID, mount and network namespaces, so when it ends,
//! the kernel ends every process, mount and link. Only cgroups and the state directory outlive it,
//! and are removed here.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::kit::{output, run};
use super::remains;

/// How long any one step of starting may take.
const START_TIMEOUT: Duration = Duration::from_secs(120);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(200);
/// What is the cluster's alone and goes with it; its logs stay until the next one.
const OF_ONE_LIFE: [&str; 8] =
    ["cfg", "etcd", "helm", "helm-cache", "k", "machine.init", "node", "pki"];
const LOG: &str = "log";
/// Where the mesh is installed.
const NAMESPACE: &str = "istio-system";

/// A cluster, up or not.
pub(super) struct Cluster {
    state: PathBuf,
    nodes: u8,
}

impl Cluster {
    /// The cluster whose state is in `state`.
    pub(super) fn at(state: &Path, nodes: u8) -> Self {
        Self { state: state.to_owned(), nodes }
    }

    /// Where all of it is.
    pub(super) fn state(&self) -> &Path {
        &self.state
    }

    /// Whether it runs.
    pub(super) fn is_up(&self) -> bool {
        self.init().is_some()
    }

    /// Starts it and waits until its nodes are ready. Unless `keep` is set, it dies with us. If
    /// `is_large`, for a thousand nodes, its API server gets more memory.
    pub(super) fn up(&self, keep: bool, is_large: bool) -> Result<()> {
        self.clear(&[LOG])?;
        for directory in [LOG, "cfg"] {
            fs::create_dir_all(self.state.join(directory)).context("make the state directory")?;
        }
        let nodes = self.nodes.to_string();
        let script = |name: &str| Path::new("e2e/kubernetes").join(name);
        run(Command::new("bash").arg(script("pki.sh")).arg(&self.state).arg(&nodes))?;
        let log = fs::File::create(self.state.join("log/machine.log")).context("make a log")?;
        // In a session of its own, which the kernel gives its share of the processors.
        let mut command = if keep {
            Command::new("setsid")
        } else {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "setsid"]);
            command
        };
        command.args(["unshare", "--pid", "--mount", "--ipc", "--net", "--fork"]);
        command.args(["--kill-child", "--mount-proc", "bash"]);
        let machine = fs::canonicalize(script("machine.sh")).context("find machine.sh")?;
        command.arg(machine).arg(&self.state).arg(&nodes);
        command.arg(remains::cgroup_prefix(&self.state)).args(is_large.then_some("large"));
        command.stdin(Stdio::null());
        command.stderr(log.try_clone().context("share a log")?).stdout(log);
        let mut child = command.spawn().context("start the cluster's first process")?;
        let outer = child.id();
        wait_for("the cluster's first process", || {
            ensure!(
                child.try_wait().context("look at it")?.is_none(),
                "machine.sh ended; see {}/log/machine.log",
                self.state.display()
            );
            Ok(only_child(outer))
        })
        .and_then(|init| self.write("machine.init", &init.to_string(), 0o644))?;
        self.write_wrappers()?;
        self.await_nodes()
    }

    fn await_nodes(&self) -> Result<()> {
        let kubectl = |words: &[&str]| Ok(self.kubectl(words).is_ok().then_some(()));
        wait_for("the API server", || kubectl(&["get", "--raw", "/readyz"]))?;
        for node in 1..=self.nodes {
            let name = format!("n{node}");
            wait_for(&name, || kubectl(&["get", "node", &name]))?;
            let init = wait_for(&name, || Ok(self.node_init(node)))?;
            self.write(&format!("{name}.init"), &init.to_string(), 0o644)?;
        }
        self.kubectl(&["wait", "--for=condition=Ready", "node", "--all", "--timeout=120s"])?;
        self.kubectl(&["apply", "-f", "e2e/kubernetes/dns.yaml"])?;
        let rollout = ["rollout", "status", "deployment/coredns", "--timeout=120s"];
        self.kubectl(&[&["-n", "kube-system"], &rollout[..]].concat()).map(|_| ())
    }

    /// Loads the images of `state/img` into running nodes again.
    pub(super) fn import_images(&self) -> Result<()> {
        let ctr = "cd /mnt/img && for archive in *.tar; do ctr -a /run/containerd/containerd.sock \
             -n k8s.io images import $archive || exit 1; done";
        for node in 1..=self.nodes {
            let mut node = self.program("node", &[&format!("n{node}"), "sh", "-c", ctr]);
            run(node.stdout(Stdio::null()))?;
        }
        Ok(())
    }

    /// Installs or upgrades the chart, and waits until everything is ready. The digest makes
    /// Kubernetes replace pods of an older image of the same name.
    pub(super) fn install_chart(&self, digest: &str) -> Result<()> {
        let words = "upgrade --install ambit deploy/chart --create-namespace --wait --timeout 180s \
                     --set image.repository=registry.local/ambit --set image.tag=test \
                     --set image.pullPolicy=Never";
        let mut helm = self.program("helm", &words.split_whitespace().collect::<Vec<_>>());
        for part in ["control", "node", "proxy"] {
            helm.arg("--set-string").arg(format!("{part}.podAnnotations.digest={digest}"));
        }
        run(helm.args(["--namespace", NAMESPACE]).stdout(Stdio::null()))
    }

    /// Ends it and removes the rest, except its logs and its pods' logs.
    pub(super) fn down(&self) -> Result<()> {
        if let Some(init) = self.init() {
            run(Command::new("kill").args(["-KILL", &init.to_string()]))?;
            let start = Instant::now();
            while Path::new("/proc").join(init.to_string()).exists() && !is_zombie(init) {
                ensure!(start.elapsed() < STOP_TIMEOUT, "process {init} does not end");
                std::thread::sleep(STEP);
            }
        }
        remove_cgroups(&self.state)?;
        for node in 1..=self.nodes {
            let pods = self.state.join(format!("n{node}/pods"));
            if pods.exists() {
                let kept = self.state.join(LOG).join(format!("n{node}-pods"));
                fs::rename(&pods, kept).context("keep the pods' logs")?;
            }
        }
        self.clear(&[])
    }

    /// Prints how to reach it.
    pub(super) fn print_how_to_reach(&self) {
        let state = self.state.display();
        println!(
            "\nThe cluster is up. Its own network namespace is the only way to it:\n\
             \x20 {state}/k get pods -A           kubectl\n\
             \x20 {state}/helm -n {NAMESPACE} list    helm\n\
             \x20 {state}/node n1 COMMAND         a command on a node\n\
             \x20 export KUBECONFIG={state}/cfg/admin.kubeconfig; \
             nsenter --net=/proc/$(cat {state}/machine.init)/ns/net {state}/bin/kubectl\n\
             \x20 cargo xtask e2e kubernetes --down --state {state}"
        );
    }

    /// Prints what a person would look at first.
    pub(super) fn print_state(&self) {
        for words in [&["get", "pods", "-A", "-o", "wide"][..], &["get", "events", "-n", NAMESPACE]]
        {
            match self.kubectl(words) {
                Ok(text) => println!("{text}"),
                Err(error) => println!("{error:#}"),
            }
        }
    }

    /// Runs kubectl, which must succeed, and returns its output.
    pub(super) fn kubectl(&self, words: &[&str]) -> Result<String> {
        output(&self.state.join("k").to_string_lossy(), words)
    }

    /// A program with an administrator's access, in the control plane's network; not started yet.
    pub(super) fn inside(&self, program: &Path) -> Command {
        let init = fs::read_to_string(self.state.join("machine.init")).unwrap_or_default();
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", init.trim())).arg(program);
        command.env("KUBECONFIG", self.state.join("cfg/admin.kubeconfig"));
        command
    }

    fn program(&self, name: &str, words: &[&str]) -> Command {
        let mut command = Command::new(self.state.join(name));
        command.args(words);
        command
    }

    /// The cluster's first process, if it lives.
    fn init(&self) -> Option<u32> {
        let pid = fs::read_to_string(self.state.join("machine.init")).ok()?.trim().parse().ok()?;
        command_line(pid)?.contains("machine.sh").then_some(pid)
    }

    /// The first process of a node.
    fn node_init(&self, node: u8) -> Option<u32> {
        let words = format!("node.sh {node} ");
        let is_node = |pid: &u32| command_line(*pid).is_some_and(|line| line.contains(&words));
        let outer = children(self.init()?).into_iter().find(is_node)?;
        only_child(outer)
    }

    fn write_wrappers(&self) -> Result<()> {
        let state = self.state.display();
        for (name, program) in [("k", "kubectl"), ("helm", "helm")] {
            let script = format!(
                "#!/bin/sh\n# {program} on the test cluster\ncache={state}/helm-cache\n\
                 export KUBECONFIG={state}/cfg/admin.kubeconfig KUBECACHEDIR=$cache\n\
                 export HELM_CACHE_HOME=$cache HELM_CONFIG_HOME=$cache HELM_DATA_HOME=$cache\n\
                 init=$(cat {state}/machine.init)\n\
                 exec nsenter --net=/proc/$init/ns/net {state}/bin/{program} \"$@\"\n"
            );
            self.write(name, &script, 0o755)?;
        }
        let script = format!(
            "#!/bin/sh\n# node NAME COMMAND...: a command in all namespaces of a node\n\
             init=$(cat {state}/$1.init)\nshift\n\
             exec nsenter --target $init --mount --net --pid --uts --ipc \
             env PATH=/mnt/bin:/usr/sbin:/usr/bin:/sbin:/bin \"$@\"\n"
        );
        self.write("node", &script, 0o755)
    }

    fn write(&self, name: &str, content: &str, mode: u32) -> Result<()> {
        let path = self.state.join(name);
        fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).context("set a mode")
    }

    /// Removes what belonged to the last life, and what else is named.
    fn clear(&self, also: &[&str]) -> Result<()> {
        let of_nodes =
            (1..=self.nodes).flat_map(|node| [format!("n{node}"), format!("n{node}.init")]);
        for name in OF_ONE_LIFE.iter().chain(also).map(|name| (*name).to_owned()).chain(of_nodes) {
            let path = self.state.join(&name);
            let removed = match path.symlink_metadata() {
                Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(&path),
                Ok(_) => fs::remove_file(&path),
                Err(_) => Ok(()),
            };
            removed.with_context(|| format!("remove {}", path.display()))?;
        }
        Ok(())
    }
}

/// Removes the nodes' cgroups, innermost first; the kernel needs a moment to empty them.
fn remove_cgroups(state: &Path) -> Result<()> {
    let start = Instant::now();
    loop {
        let mut left = remains::cgroups(state);
        left.sort_by_key(|path| std::cmp::Reverse(path.as_os_str().len()));
        for path in &left {
            // A group that is still busy is tried again.
            drop(fs::remove_dir(path));
        }
        match remains::cgroups(state).first() {
            None => return Ok(()),
            Some(path) if start.elapsed() > STOP_TIMEOUT => {
                bail!("{} cannot be removed", path.display())
            }
            Some(_) => std::thread::sleep(STEP),
        }
    }
}

/// Asks again and again until there is an answer.
fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        ensure!(start.elapsed() < START_TIMEOUT, "{what} is not there after {START_TIMEOUT:?}");
        std::thread::sleep(STEP);
    }
}

fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn only_child(pid: u32) -> Option<u32> {
    children(pid).first().copied()
}

/// The words of a process, each followed by a blank.
fn command_line(pid: u32) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    Some(String::from_utf8_lossy(&line).replace('\0', " "))
}

fn is_zombie(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
}
