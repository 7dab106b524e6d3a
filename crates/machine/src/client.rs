//! The user's commands to a running machine, as functions.
//!
//! Each is one HTTP request over `machine.sock`. It returns plain data, which the caller prints.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ambit_net::capture::CaptureSummary;
use ambit_net::local_http::{self, LocalHttpError};
use http::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::command::{
    Apply, Captured, CreateToken, Delete, Diff, Differences, Expected, Kill, NoteLink, Refusal,
    Restart, Scale, Seated, StartCapture,
};
use crate::egress::Egress;
use crate::image::ImageMap;
use crate::join::CarriedWorkload;
use crate::join::{JoinToken, LinkInfo, Proof};
use crate::layout::Layout;
use crate::objects::{Changes, Kind, ObjectRef, Sent};
use crate::ownership::{OwnershipError, check_state_directory};
use crate::registry::{ContainerStatus, Phase};
use crate::rollout_progress::RolloutProgress;

/// How long the machine may take to answer a question.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long it may take to do something: many objects take a busy computer a while, and one that
/// dies closes its socket at once.
const ORDER_TIMEOUT: Duration = Duration::from_secs(600);
/// How often a wait looks again.
const WAIT_INTERVAL: Duration = Duration::from_millis(50);

/// A command that was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No machine answers.
    #[error("no machine answers at {state}; start one with `ambit up`, or name it with --state")]
    Unreachable {
        /// The state directory.
        state: PathBuf,
        /// Why.
        source: LocalHttpError,
    },
    /// One is there and takes long.
    #[error(
        "the machine at {state} runs and does not answer; maybe the computer is too busy for it: \
         see `ambit logs lab`"
    )]
    Silent {
        /// The state directory.
        state: PathBuf,
        /// Which question, and how long it was waited.
        source: LocalHttpError,
    },
    /// Somebody else could answer in the machine's place.
    #[error(transparent)]
    Ownership(#[from] OwnershipError),
    /// The machine says no; nothing was changed.
    #[error("{reason}")]
    Refused {
        /// Its words.
        reason: String,
    },
    /// The machine speaks another dialect.
    #[error("the machine's answer is not as expected; was it started by another version?")]
    Answer(#[source] serde_json::Error),
}

/// A wait that ended without success.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// The machine could not be asked.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Everything else is ready: waiting does not help.
    #[error("no node takes {}", pods.join("; "))]
    NoNode {
        /// The pods, each with the reason.
        pods: Vec<String>,
    },
    /// Not everything is ready.
    #[error("not ready after {} s: {}", waited.as_secs(), waiting_for.join("; "))]
    Timeout {
        /// How long.
        waited: Duration,
        /// What is missing.
        waiting_for: Vec<String>,
    },
}

/// The state of a machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// The version of its process 1, and so of all that it starts. One before this field is silent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Its process 1 as seen on the host.
    pub pid: i32,
    /// When it was started.
    pub started_at: String,
    /// It was started without root.
    pub rootless: bool,
    /// It carries the mesh.
    pub mesh: bool,
    /// Where the machine listens that it is a node of, if it joined one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined: Option<SocketAddr>,
    /// The workload of a cluster that it carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<CarriedWorkload>,
    /// What of the outside its pods may reach, as networks; absent where they reach nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
    /// Its nodes.
    pub nodes: Vec<NodeInfo>,
    /// Its programs.
    pub roles: Vec<RoleInfo>,
    /// What the mesh leaves alone, such as pods on their node's own network; each in words.
    pub left_alone: Vec<String>,
}

/// A node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeInfo {
    /// Its name.
    pub name: String,
    /// Its addresses on the fabric.
    pub addresses: Vec<IpAddr>,
    /// The networks of its pods.
    pub pod_cidrs: Vec<String>,
    /// Pods that are placed on it.
    pub pods: usize,
    /// Those of them that run, those that crash again and again included.
    pub running: usize,
    /// Those of them that are ready and do not crash again and again.
    pub ready: usize,
    /// Those of them that have done their work.
    pub succeeded: usize,
    /// The link to it if it is another machine's, or to home if this machine joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkInfo>,
}

/// A program of the mesh or of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleInfo {
    /// `control`, `lab-link`, or `node`, `proxy`, `lab-node` and the node: `proxy/node-1`.
    pub name: String,
    /// Its process inside the machine; absent while it does not run. See [`super::processes`] for
    /// the host's number.
    pub pid: Option<i32>,
    /// How often it was started again.
    pub restarts: u32,
    /// Its last exit: a status, or 128 and the signal that ended it.
    pub last_exit: Option<i32>,
    /// Why it does not do its work, if it does not.
    pub waiting_for: Option<String>,
    /// Its log.
    pub log: PathBuf,
}

/// A pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodInfo {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its node; empty while it has none.
    pub node: String,
    /// Its service account.
    pub service_account: String,
    /// The kind of what made it, such as Deployment; empty for a pod of its own.
    #[serde(default)]
    pub owner_kind: String,
    /// The name of that; empty for a pod of its own.
    pub owner: String,
    /// How far it is in its life.
    pub phase: Phase,
    /// It takes traffic.
    pub ready: bool,
    /// It is going away.
    pub terminating: bool,
    /// It shares its node's network.
    pub host_network: bool,
    /// Its traffic goes through the mesh.
    pub captured: bool,
    /// Its addresses.
    pub pod_ips: Vec<IpAddr>,
    /// How often something of it was started again.
    pub restarts: u32,
    /// Why it is not ready, or that its containers crash again and again.
    pub reason: String,
    /// No node takes it.
    pub unschedulable: bool,
    /// One of its containers crashes again and again, though it may run at the moment.
    pub crash_looping: bool,
    /// When it was created.
    pub created: String,
    /// Its containers.
    pub containers: Vec<ContainerStatus>,
    /// Its init inside the machine; 0 while there is none.
    pub pid: i32,
}

impl PodInfo {
    /// The least is whom a user means who names only what made the pods: one that takes traffic, or
    /// runs at least, and none that is going away while another stays.
    pub fn rank(&self) -> impl Ord + use<> {
        (self.terminating, self.phase != Phase::Running, !self.ready)
    }
}

/// Sends commands to one machine.
#[derive(Clone, Debug)]
pub struct Client {
    layout: Layout,
    /// It runs in the machine, whose state directory was looked at before; in a user namespace
    /// nobody can tell whose the directories above it are.
    is_within: bool,
}

impl Client {
    /// A client of the machine of this state directory, which may or may not live.
    pub fn new(layout: Layout) -> Self {
        Self { layout, is_within: false }
    }

    /// A client that runs in the machine itself.
    pub(crate) fn within(layout: Layout) -> Self {
        Self { layout, is_within: true }
    }

    /// Where the machine keeps its state.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// How the machine is.
    pub async fn status(&self) -> Result<MachineStatus, ClientError> {
        self.ask(Method::GET, "/status", String::new()).await
    }

    /// Every pod.
    pub async fn pods(&self) -> Result<Vec<PodInfo>, ClientError> {
        self.ask(Method::GET, "/pods", String::new()).await
    }

    /// The objects of one kind, by its plural, as Kubernetes JSON.
    pub async fn objects(&self, plural: &str) -> Result<Vec<Value>, ClientError> {
        self.ask(Method::GET, &format!("/objects/{plural}"), String::new()).await
    }

    /// What happened to pods and what makes them, as Kubernetes' events; the latest last. The
    /// machine keeps a bounded number of them.
    pub async fn events(&self) -> Result<Vec<Value>, ClientError> {
        self.ask(Method::GET, "/events", String::new()).await
    }

    /// Applies manifests as `kubectl apply` does: all, or none and an error. What they do not name,
    /// and have not named before, stays as it is. A dry run says what would change.
    pub async fn apply(&self, objects: Vec<Value>, dry_run: bool) -> Result<Changes, ClientError> {
        self.apply_with_images(objects, ImageMap::default(), dry_run).await
    }

    /// The same, and says what more images mean. It holds for every pod that starts from then on,
    /// also if its object was applied before. If the objects are refused, the images are too.
    pub async fn apply_with_images(
        &self,
        objects: Vec<Value>,
        images: ImageMap,
        dry_run: bool,
    ) -> Result<Changes, ClientError> {
        let (sent, expected) = (Sent::Manifests, Vec::new());
        self.order("/apply", &Apply { objects, sent, images, dry_run, expected }).await
    }

    /// Puts objects in the place of those that are there, if those that are `expected` are still as
    /// they were read.
    pub async fn replace_expecting(
        &self,
        objects: Vec<Value>,
        expected: Vec<Expected>,
    ) -> Result<Changes, ClientError> {
        let (sent, images, dry_run) = (Sent::Objects, ImageMap::default(), false);
        self.order("/apply", &Apply { objects, sent, images, dry_run, expected }).await
    }

    /// What applying manifests would change, beside what more images mean.
    pub async fn differences(
        &self,
        objects: Vec<Value>,
        images: ImageMap,
    ) -> Result<Differences, ClientError> {
        self.order("/diff", &Diff { objects, sent: Sent::Manifests, images }).await
    }

    /// Deletes objects and what they own: all, or none and an error.
    ///
    /// With `ignore_absent` those that are not there are passed over.
    pub async fn delete(
        &self,
        objects: &[ObjectRef],
        ignore_absent: bool,
        dry_run: bool,
    ) -> Result<Changes, ClientError> {
        let objects = objects.to_vec();
        self.order("/delete", &Delete { objects, ignore_absent, dry_run }).await
    }

    /// Sets the replicas of a Deployment or StatefulSet.
    pub async fn scale(&self, object: &ObjectRef, replicas: u32) -> Result<Changes, ClientError> {
        self.order("/scale", &Scale { object: object.clone(), replicas }).await
    }

    /// Restarts the pods of an object that rolls out, a few at a time.
    pub async fn restart(&self, object: &ObjectRef) -> Result<Changes, ClientError> {
        self.order("/restart", &Restart { object: object.clone() }).await
    }

    /// Makes a token by which another machine joins this one as a node: `node`, or the first that
    /// is free. It connects to `address`, or to where this machine listens.
    pub async fn create_token(
        &self,
        node: Option<String>,
        ttl: Duration,
        address: Option<SocketAddr>,
    ) -> Result<JoinToken, ClientError> {
        let ttl_seconds = ttl.as_secs();
        self.order("/token/create", &CreateToken { node, ttl_seconds, address }).await
    }

    /// Asks whether a machine may join.
    pub(crate) async fn admit(&self, proof: &Proof) -> Result<Seated, ClientError> {
        self.order("/link/admit", proof).await
    }

    /// Asks whether a machine that was taken still has its node.
    pub(crate) async fn holds(&self, seated: &Seated) -> Result<bool, ClientError> {
        self.order("/link/holds", seated).await
    }

    /// Says how the link of a node is; without a reason it works.
    pub(crate) async fn note_link(&self, note: &NoteLink) -> Result<(), ClientError> {
        self.order("/link/note", note).await
    }

    /// Sends a signal to one of the machine's programs, by its name in [`RoleInfo`].
    pub async fn kill(&self, role: &str, signal: i32) -> Result<(), ClientError> {
        self.order("/kill", &Kill { role: role.to_owned(), signal }).await
    }

    /// Starts to write every frame between nodes to a file, of at most `limit_bytes`.
    pub async fn start_capture(&self, path: &Path, limit_bytes: u64) -> Result<(), ClientError> {
        self.order("/capture/start", &StartCapture { path: path.to_owned(), limit_bytes }).await
    }

    /// Ends the capture and says how it went.
    pub async fn stop_capture(&self) -> Result<CaptureSummary, ClientError> {
        let captured: Captured = self.order("/capture/stop", &()).await?;
        Ok(captured.into())
    }

    /// Asks the machine to end. [`super::down`] does so too, and cleans up.
    pub async fn end(&self) -> Result<(), ClientError> {
        self.order("/down", &()).await
    }

    /// Waits until every pod is ready or has completed, and reports what is missing when that
    /// changes. It does not wait for pods that no node takes.
    pub async fn wait_until_ready(
        &self,
        limit: Duration,
        mut progress: impl FnMut(&[String]),
    ) -> Result<Vec<PodInfo>, WaitError> {
        let start = Instant::now();
        let mut told = Vec::new();
        loop {
            let pods = match self.pods().await {
                // It goes on starting them.
                Err(ClientError::Silent { .. }) if start.elapsed() <= limit => continue,
                Err(silent @ ClientError::Silent { .. }) => {
                    let waiting_for = vec![silent.to_string()];
                    return Err(WaitError::Timeout { waited: limit, waiting_for });
                }
                pods => pods?,
            };
            let nowhere = pods.iter().filter(|pod| pod.unschedulable);
            let nowhere: Vec<String> = nowhere.filter_map(missing).collect();
            let others = pods.iter().filter(|pod| !pod.unschedulable);
            let waiting_for: Vec<String> = others.filter_map(missing).collect();
            let is_done = match waiting_for.is_empty() {
                false => false,
                true => match self.rollouts_done(&pods).await {
                    Err(ClientError::Silent { .. }) => false,
                    done => done?,
                },
            };
            if is_done {
                return match nowhere.is_empty() {
                    true => Ok(pods),
                    false => Err(WaitError::NoNode { pods: nowhere }),
                };
            }
            if start.elapsed() > limit {
                return Err(WaitError::Timeout { waited: limit, waiting_for });
            }
            if waiting_for != told {
                progress(&waiting_for);
                told = waiting_for;
            }
            sleep(WAIT_INTERVAL).await;
        }
    }

    /// Whether everything that rolls out has the pods that it wants, of the template that they
    /// are to have, and all are ready but those that no node takes.
    async fn rollouts_done(&self, pods: &[PodInfo]) -> Result<bool, ClientError> {
        for kind in RolloutProgress::KINDS {
            let done = self.objects(kind.plural()).await?.iter().all(|value| {
                let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str);
                let nowhere = pods.iter().filter(|pod| {
                    pod.unschedulable
                        && pod.owner_kind == kind.name()
                        && text("/metadata/namespace") == Some(&pod.namespace)
                        && text("/metadata/name") == Some(&pod.owner)
                });
                RolloutProgress::of(kind, value).is_done_but(nowhere.count() as u64)
            });
            if !done {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Has the machine do something.
    async fn order<T: DeserializeOwned>(
        &self,
        target: &str,
        command: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_string(command).expect("a command can be written as JSON");
        self.ask_for(Method::POST, target, body, ORDER_TIMEOUT).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: String,
    ) -> Result<T, ClientError> {
        self.ask_for(method, target, body, ANSWER_TIMEOUT).await
    }

    async fn ask_for<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: String,
        patience: Duration,
    ) -> Result<T, ClientError> {
        if !self.is_within {
            check_state_directory(self.layout.root())?;
        }
        let socket = self.layout.socket();
        let answer = local_http::request(&socket, method, target, body.into(), patience);
        let state = || self.layout.root().to_owned();
        let (status, body) = answer.await.map_err(|source| match source {
            LocalHttpError::Timeout(..) => ClientError::Silent { state: state(), source },
            source => ClientError::Unreachable { state: state(), source },
        })?;
        if status == StatusCode::OK {
            return serde_json::from_slice(&body).map_err(ClientError::Answer);
        }
        let refusal: Refusal = serde_json::from_slice(&body).map_err(ClientError::Answer)?;
        Err(ClientError::Refused { reason: refusal.error })
    }
}

/// What a pod waits for; nothing if it is ready, has done its work, or is going away with another
/// in its place. A Job takes care of those of its pods that failed.
fn missing(pod: &PodInfo) -> Option<String> {
    let is_replaced = pod.phase == Phase::Failed && pod.owner_kind == Kind::Job.name();
    if pod.ready || pod.phase == Phase::Succeeded || is_replaced {
        return None;
    }
    let reason = if pod.terminating {
        "terminating"
    } else if pod.reason.is_empty() {
        "starting"
    } else {
        &pod.reason
    };
    Some(format!("{}/{}: {reason}", pod.namespace, pod.name))
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_takes_long_is_not_taken_for_absent() {
        let directory = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(directory.path());
        let client = Client::within(layout.clone());
        let absent = client.pods().await.expect_err("nobody listens");
        assert!(matches!(absent, ClientError::Unreachable { .. }), "{absent}");
        // Nobody accepts: what is asked waits.
        let _machine = UnixListener::bind(layout.socket()).expect("a socket");
        let silent = client.pods().await.expect_err("nobody answers");
        assert!(matches!(silent, ClientError::Silent { .. }), "{silent}");
        let limit = 4 * ANSWER_TIMEOUT;
        let waited = client.wait_until_ready(limit, |_| {}).await.expect_err("nobody answers");
        assert!(matches!(waited, WaitError::Timeout { .. }), "{waited}");
    }
}
