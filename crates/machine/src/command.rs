//! The messages on `machine.sock`: what the user's commands send, and what the machine answers.
//!
//! The machine and its commands are one program, mostly of one build. A field that the machine does
//! not know is an error: otherwise it would be silently ignored.

use std::net::SocketAddr;
use std::path::PathBuf;

use ambit_net::capture::CaptureSummary;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::image::ImageMap;
use crate::objects::{ObjectRef, Sent};

/// `/apply`: Kubernetes objects, all or none.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Apply {
    /// The objects.
    pub(crate) objects: Vec<Value>,
    /// What they are.
    #[serde(default)]
    pub(crate) sent: Sent,
    /// What images mean besides; the machine keeps it.
    #[serde(default)]
    pub(crate) images: ImageMap,
    /// Only says what would change.
    #[serde(default)]
    pub(crate) dry_run: bool,
    /// What must still be so of objects.
    #[serde(default)]
    pub(crate) expected: Vec<Expected>,
}

/// An object as somebody has read it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expected {
    /// Which.
    pub object: ObjectRef,
    /// Its resource version; `None` where it was not there.
    pub version: Option<String>,
}

/// `/diff`: the same objects as for `/apply`; nothing is changed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Diff {
    /// The objects.
    pub(crate) objects: Vec<Value>,
    /// What they are.
    #[serde(default)]
    pub(crate) sent: Sent,
    /// What images mean besides.
    #[serde(default)]
    pub(crate) images: ImageMap,
}

/// What an apply would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Differences {
    /// The objects that it would change.
    pub differences: Vec<Difference>,
    /// What who applies should know.
    pub warnings: Vec<String>,
}

/// An object that an apply would change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Which.
    pub object: ObjectRef,
    /// As it is; `None` for a new one.
    pub before: Option<Value>,
    /// As it would be.
    pub after: Value,
}

/// `/delete`: objects and what they own, all or none.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Delete {
    /// The objects.
    pub(crate) objects: Vec<ObjectRef>,
    /// Those that are not there are passed over.
    #[serde(default)]
    pub(crate) ignore_absent: bool,
    /// Only says what would change.
    #[serde(default)]
    pub(crate) dry_run: bool,
}

/// `/scale`: the replicas of a Deployment or StatefulSet.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scale {
    /// Which.
    pub(crate) object: ObjectRef,
    /// How many.
    pub(crate) replicas: u32,
}

/// `/restart`: the pods of a Deployment, StatefulSet or DaemonSet, a few at a time.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Restart {
    /// Which.
    pub(crate) object: ObjectRef,
}

/// `/token/create`: a token by which another machine joins.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CreateToken {
    /// Which node it will be; the first that is free, if absent.
    pub(crate) node: Option<String>,
    /// How long it can be used.
    pub(crate) ttl_seconds: u64,
    /// Where the other machine reaches this one, if not where it listens.
    pub(crate) address: Option<SocketAddr>,
}

/// A machine that home has taken; `/link/holds` asks whether it still has its node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Seated {
    /// The node.
    pub(crate) node: String,
    /// Which of all machines that joined it is.
    pub(crate) number: u64,
}

/// `/link/note`: how the link of a node is.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct NoteLink {
    /// The node.
    pub(crate) node: String,
    /// Which of the machines that joined says it, if it is one of them: only the one that has the
    /// node now is heard.
    pub(crate) number: Option<u64>,
    /// The other end.
    pub(crate) peer: String,
    /// Why it does not work; none if it does.
    pub(crate) reason: Option<String>,
}

/// `/kill`: a signal to one of the machine's programs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kill {
    /// The program, by its name in [`super::RoleInfo`].
    pub(crate) role: String,
    /// The signal's number.
    pub(crate) signal: i32,
}

/// `/capture/start`: every frame between nodes into a file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct StartCapture {
    /// The file.
    pub(crate) path: PathBuf,
    /// How long it may become.
    pub(crate) limit_bytes: u64,
}

/// The answer of `/capture/stop`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Captured {
    frames: u64,
    size_bytes: u64,
    dropped: u64,
    over_limit: u64,
}

impl From<CaptureSummary> for Captured {
    fn from(summary: CaptureSummary) -> Self {
        let CaptureSummary { frames, size_bytes, dropped, over_limit } = summary;
        Self { frames, size_bytes, dropped, over_limit }
    }
}

impl From<Captured> for CaptureSummary {
    fn from(captured: Captured) -> Self {
        let Captured { frames, size_bytes, dropped, over_limit } = captured;
        Self { frames, size_bytes, dropped, over_limit }
    }
}

/// How the machine says no.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Refusal {
    /// Why.
    pub(crate) error: String,
}
