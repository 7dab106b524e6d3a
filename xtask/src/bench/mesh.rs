//! A machine of namespaces that carries `bench/mesh.yaml`, driven through the shipped command.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::cpu::Proxies;

/// What both machines carry.
pub(super) const MANIFEST: &str = "bench/mesh.yaml";
/// Where machines keep their state; below it one directory for each.
const STATE: &str = "/run/ambit-bench";
const NODES: [&str; 2] = ["node-1", "node-2"];

/// A running machine. Is taken down with its last use.
pub(super) struct Mesh {
    /// Whose proxies it has.
    pub(super) name: &'static str,
    ambit: PathBuf,
    state: PathBuf,
}

impl Mesh {
    /// Brings a machine up, with another program in place of the proxies if one is given.
    pub(super) fn up(name: &'static str, ambit: &Path, proxy: Option<&Path>) -> Result<Self> {
        let state = Path::new(STATE).join(name);
        let mut up = Command::new(ambit);
        up.args(["up", MANIFEST, "--detach", "--state"]).arg(&state);
        for (node, path) in NODES.iter().zip(proxy.into_iter().cycle()) {
            up.arg("--proxy").arg(format!("{node}={}", path.display()));
        }
        let output = up.output().with_context(|| format!("start {}", ambit.display()))?;
        if !output.status.success() {
            bail!("{up:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(Self { name, ambit: ambit.to_owned(), state })
    }

    /// Runs the load generator in a pod and returns what it measured.
    pub(super) fn load(&self, pod: &str, words: &[String]) -> Result<Value> {
        let mut exec = self.load_command(pod, words);
        let output = exec.stderr(Stdio::inherit()).output().context("start ambit exec")?;
        if !output.status.success() {
            bail!("{exec:?} failed");
        }
        serde_json::from_slice(&output.stdout).context("read what the load generator says")
    }

    /// The command that runs the load generator in a pod.
    pub(super) fn load_command(&self, pod: &str, words: &[String]) -> Command {
        let mut exec = self.ambit(&["exec", pod]);
        exec.arg("--").arg(&self.ambit).args(words);
        exec
    }

    /// Proves that what is to be compared is there: policy by identity, and one log line per
    /// connection at each end.
    pub(super) fn prove(&self) -> Result<()> {
        let once = "load http://server.bench:8080/ --rate 10 --connections 1 --duration 500ms \
                    --keep-going --output json";
        let words: Vec<String> = once.split_whitespace().map(Into::into).collect();
        let failed = |pod| -> Result<(u64, u64)> {
            let result = self.load(pod, &words)?;
            let count = |name: &str| result[name].as_u64().context("the load generator counts");
            Ok((count("failed")?, count("requests")?))
        };
        let (client, stranger) = (failed("bench/client")?, failed("bench/stranger")?);
        if client.0 != 0 || stranger.0 != stranger.1 {
            bail!(
                "{}: of the client's requests failed {client:?}, of a stranger's {stranger:?}",
                self.name
            );
        }
        for (node, direction) in NODES.iter().zip(["outbound", "inbound"]) {
            let log = self.ambit(&["logs", &format!("proxy/{node}")]).output()?;
            let log = String::from_utf8_lossy(&log.stdout).into_owned();
            let direction = [format!("={direction} "), format!("=\"{direction}\"")];
            let is_it = |line: &&str| {
                line.contains("connection complete") && direction.iter().any(|it| line.contains(it))
            };
            if !log.lines().any(|line| is_it(&line)) {
                bail!("{}: the proxy of {node} did not log the connection", self.name);
            }
        }
        Ok(())
    }

    /// The proxies as they run now.
    pub(super) fn proxies(&self) -> Result<Proxies> {
        let path = self.state.join("machine.json");
        let text = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let record: Value = serde_json::from_slice(&text)?;
        let network = |node: &&str| record["networkNamespaces"][node].as_u64();
        let networks: Option<BTreeMap<String, u64>> =
            NODES.iter().map(|node| Some(((*node).to_owned(), network(node)?))).collect();
        Proxies::find(&networks.context("the machine's record names its nodes' networks")?)
    }

    fn ambit(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.ambit);
        command.args(words).arg("--state").arg(&self.state);
        command
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        let down = self.ambit(&["down"]).stderr(Stdio::null()).status();
        if !down.is_ok_and(|status| status.success()) {
            eprintln!("take it down with `ambit down --state {}`", self.state.display());
        }
    }
}
