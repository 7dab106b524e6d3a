//! The machine of a demonstration, and the user's commands that it runs.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use ambit_machine::layout::Layout;
use ambit_machine::{Client, PodInfo};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::DemoConfig;
use super::report::{Inventory, Pod};

/// The example, as it lies in the repository.
const APP: &str = include_str!("../../../../examples/tiered-app/app.yaml");
const MESH_ON: &str = include_str!("../../../../examples/tiered-app-steps/mesh-on.yaml");
/// The policies of the example.
pub(super) const POLICIES: &str =
    include_str!("../../../../examples/tiered-app-steps/policies.yaml");
/// Mutual TLS for everybody.
pub(super) const STRICT: &str = include_str!("../../../../examples/tiered-app-steps/strict.yaml");

/// How long a label or a policy may take to be in force everywhere.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);
const SETTLE_INTERVAL: Duration = Duration::from_millis(50);
/// How long one command may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(900);

/// A machine with the example on it.
pub(super) struct Stage {
    binary: PathBuf,
    pub(super) layout: Layout,
    pub(super) keep: PathBuf,
}

impl Stage {
    /// Brings the example up with the mesh off.
    pub(super) async fn set(config: &DemoConfig) -> Result<Self> {
        std::fs::create_dir_all(&config.keep)
            .with_context(|| format!("make {}", config.keep.display()))?;
        let state = std::env::temp_dir().join(format!("ambit-{}", std::process::id()));
        let layout = Layout::new(state);
        let stage = Self { binary: config.binary.clone(), layout, keep: config.keep.clone() };
        let app = stage.manifest("app", APP)?;
        let up = stage.ambit(&["up", text(&app)?, "--nodes", "2", "--detach"]).await;
        if up.is_err() {
            // What runs is kept for a user; here nobody looks at it.
            let _not_even_started = ambit_machine::down(&stage.layout).await;
        }
        up.map(|_| stage)
    }

    /// Takes it down; returns what is left of it, which should be nothing.
    pub(super) async fn strike(&self) -> Result<Vec<String>> {
        let record = ambit_machine::Record::read(&self.layout)?;
        self.ambit(&["down"]).await?;
        let kept = self.keep.join("logs");
        if kept.exists() {
            std::fs::remove_dir_all(&kept).context("replace older logs")?;
        }
        move_directory(&self.layout.logs(), &kept)?;
        std::fs::remove_dir_all(self.layout.root()).context("remove the state directory")?;
        Ok(ambit_machine::left(&record, &self.layout))
    }

    /// A client of the machine.
    pub(super) fn client(&self) -> Client {
        Client::new(self.layout.clone())
    }

    /// Runs one of the user's commands and returns what it prints.
    pub(super) async fn ambit(&self, words: &[&str]) -> Result<String> {
        self.ambit_with_input(words, "").await
    }

    /// Runs one of the user's commands with something on its standard input.
    pub(super) async fn ambit_with_input(&self, words: &[&str], input: &str) -> Result<String> {
        let mut child = Command::new(&self.binary)
            .args(words)
            .env("AMBIT_STATE", self.layout.root())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", self.binary.display()))?;
        let mut stdin = child.stdin.take().context("its input is a pipe")?;
        stdin.write_all(input.as_bytes()).await.context("write its input")?;
        drop(stdin);
        let output = tokio::time::timeout(COMMAND_TIMEOUT, child.wait_with_output()).await;
        let output = output.context("the command takes too long")??;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            bail!("ambit {}: {}", words.join(" "), error.trim());
        }
        String::from_utf8(output.stdout).context("its output is text")
    }

    /// Runs this binary in a pod and reads the JSON it prints. Named plainly, it is found there too
    /// when it lies where pods have a directory of their own, as below /tmp.
    pub(super) async fn in_pod(&self, pod: &str, words: &[&str], input: &str) -> Result<Value> {
        let mut all = vec!["exec", pod, "--", "ambit"];
        all.extend(words);
        let printed = self.ambit_with_input(&all, input).await?;
        serde_json::from_str(printed.trim()).with_context(|| format!("read {printed:?}"))
    }

    /// Applies manifests given as text.
    pub(super) async fn apply(&self, name: &str, manifests: &str) -> Result<()> {
        let file = self.manifest(name, manifests)?;
        self.ambit(&["apply", text(&file)?]).await.map(drop)
    }

    /// Deletes what manifests given as text name.
    pub(super) async fn delete(&self, name: &str, manifests: &str) -> Result<()> {
        let file = self.manifest(name, manifests)?;
        self.ambit(&["delete", text(&file)?]).await.map(drop)
    }

    fn manifest(&self, name: &str, manifests: &str) -> Result<PathBuf> {
        let file = self.keep.join(format!("{name}.yaml"));
        std::fs::write(&file, manifests).with_context(|| format!("write {}", file.display()))?;
        Ok(file)
    }

    /// Labels the namespaces and waits until their pods are captured and offered HBONE.
    pub(super) async fn label(&self) -> Result<()> {
        self.apply("mesh-on", MESH_ON).await?;
        self.settled("every pod of the mesh is captured", async || {
            let pods = self.client().pods().await?;
            let mut meshed = pods.iter().filter(|pod| pod.namespace != "outside");
            Ok(meshed.all(|pod| pod.captured))
        })
        .await?;
        self.settled("every workload is offered HBONE", async || {
            let list = self.ambit(&["get", "workloads", "-o", "json"]).await?;
            let list: Value = serde_json::from_str(&list)?;
            let mut items = list["items"].as_array().into_iter().flatten();
            Ok(items.all(|item| item["protocol"] == "HBONE" || item["namespace"] == "outside"))
        })
        .await
    }

    /// Waits until `is_so`.
    pub(super) async fn settled(
        &self,
        what: &str,
        is_so: impl AsyncFn() -> Result<bool>,
    ) -> Result<()> {
        let end = tokio::time::Instant::now() + SETTLE_TIMEOUT;
        while !is_so().await? {
            if tokio::time::Instant::now() > end {
                bail!("waited {} s in vain until {what}", SETTLE_TIMEOUT.as_secs());
            }
            tokio::time::sleep(SETTLE_INTERVAL).await;
        }
        Ok(())
    }

    /// Nodes, pods and identities.
    pub(super) async fn inventory(&self) -> Result<Inventory> {
        let status = self.client().status().await?;
        let certificates = self.ambit(&["get", "certificates", "-o", "json"]).await?;
        let certificates: Value = serde_json::from_str(&certificates)?;
        let items = certificates["items"].as_array().into_iter().flatten();
        let identities = items.filter_map(|item| item["identity"].as_str().map(str::to_owned));
        let mut identities: Vec<String> = identities.collect();
        identities.sort();
        identities.dedup();
        let pods = self.client().pods().await?;
        let pod = |pod: PodInfo| Pod {
            name: format!("{}/{}", pod.namespace, pod.name),
            node: pod.node,
            address: pod.pod_ips.first().map(ToString::to_string).unwrap_or_default(),
            captured: pod.captured,
        };
        Ok(Inventory {
            nodes: status.nodes.into_iter().map(|node| node.name).collect(),
            pods: pods.into_iter().map(pod).collect(),
            identities,
        })
    }

    /// The pod of this name, or the first of this Deployment.
    pub(super) async fn pod(&self, namespace: &str, name: &str) -> Result<PodInfo> {
        let pods = self.client().pods().await?;
        let mut matching = pods
            .into_iter()
            .filter(|pod| pod.namespace == namespace && (pod.name == name || pod.owner == name));
        matching.next().with_context(|| format!("find the pod {namespace}/{name}"))
    }
}

/// The pod's IPv4 address.
pub(super) fn address_of(pod: &PodInfo) -> Result<IpAddr> {
    let v4 = pod.pod_ips.iter().find(|ip| ip.is_ipv4());
    v4.copied().with_context(|| format!("{}/{} has no address", pod.namespace, pod.name))
}

/// A path as an argument.
pub(super) fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

/// Moves files across file systems too.
pub(crate) fn move_directory(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
    for entry in std::fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            move_directory(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target)
                .with_context(|| format!("keep {}", entry.path().display()))?;
        }
    }
    Ok(())
}
