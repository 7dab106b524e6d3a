//! A machine that carries one workload of a Kubernetes cluster's mesh.
//!
//! It is one node with one pod, and control is in the cluster. The pod stands for a WorkloadEntry,
//! whose address is one of the host: the host's network has the socket that listens there, and
//! every connection to others is opened there ([`crate::egress`]). Nothing else leaves the pod's
//! network, so what is not captured reaches nobody. Nothing here may decide who may connect: the
//! proxy does, by what control says.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ambit_model::identity::DEFAULT_SERVICE_ACCOUNT;
use ambit_net::local_http;
use ambit_words::labels::{AMBIENT, DATAPLANE_MODE};
use http::Method;
use hyper::body::Bytes;
use serde_json::{Value, json};

use crate::addresses::NodeNetwork;
use crate::host_path::HostPath;
use crate::join::{CarriedWorkload, ClusterToken, LinkInfo, Workload};
use crate::layout::Layout;
use crate::ownership::{OwnershipError, check_state_directory};
use crate::record::{Liveness, Record, RecordError, liveness};
use crate::registry::replace_secret_file;

/// The number of its node: the last one, whose pod network the fewest clusters have too.
pub(crate) const NODE: u8 = 200;
/// The one container of its pod.
const CONTAINER: &str = "command";
/// How long the proxy may take to say how its connection with control is.
const LINK_TIMEOUT: Duration = Duration::from_secs(2);
/// What a proxy says of itself.
const READY: &str = "/healthz/ready";

/// Why another token is not taken.
#[derive(Debug, thiserror::Error)]
pub enum RenewError {
    /// There is no such machine.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Somebody else could have put it there.
    #[error(transparent)]
    Ownership(#[from] OwnershipError),
    /// It does not run any more.
    #[error("the machine at {state} does not run; join again, without --renew")]
    Dead {
        /// Its state directory.
        state: PathBuf,
    },
    /// It carries none.
    #[error(
        "the machine at {state} carries no workload of a cluster; join without --renew, or name \
         another directory with --state"
    )]
    NotOfCluster {
        /// Its state directory.
        state: PathBuf,
    },
    /// The token is of another one.
    #[error(
        "the token is of WorkloadEntry {theirs}, and this machine carries {ours}; take it down \
         with `ambit down` first, or make a token for {ours}"
    )]
    Other {
        /// What the machine carries.
        ours: String,
        /// What the token names.
        theirs: String,
    },
    /// The token cannot be kept.
    #[error("cannot write {path}")]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Gives a machine another token for the workload that it carries. Its proxy reads it for the next
/// connection with control.
pub fn renew(layout: &Layout, token: &ClusterToken) -> Result<(), RenewError> {
    check_state_directory(layout.root())?;
    let not_of_cluster = || RenewError::NotOfCluster { state: layout.root().to_owned() };
    let ours = Record::read(layout)?.workload.ok_or_else(not_of_cluster)?;
    let theirs = CarriedWorkload::from(&token.cluster);
    if ours != theirs {
        let name = |it: &CarriedWorkload| {
            let CarriedWorkload { control, namespace, entry, service_account, address, .. } = it;
            format!("{namespace}/{entry} ({address}, {service_account}, control at {control})")
        };
        return Err(RenewError::Other { ours: name(&ours), theirs: name(&theirs) });
    }
    if !liveness(layout).is_ok_and(|it| it == Liveness::Alive) {
        return Err(RenewError::Dead { state: layout.root().to_owned() });
    }
    keep(layout, token).map_err(|(path, source)| RenewError::Write { path, source })
}

/// Writes down what proves the mesh and the workload, for this user alone.
pub(crate) fn keep(layout: &Layout, token: &ClusterToken) -> Result<(), (PathBuf, io::Error)> {
    let node = NodeNetwork::new(NODE).name();
    let write = |path: PathBuf, content: &str| {
        replace_secret_file(&path, content.as_bytes()).map_err(|error| (path, error))
    };
    write(layout.root_certificate(&node), &token.cluster.root)?;
    write(layout.token(&node), token.secret())
}

/// How the proxy's connection with control is, as it says itself.
pub(crate) async fn link(admin: &Path, workload: &CarriedWorkload) -> LinkInfo {
    let said = local_http::request(admin, Method::GET, READY, Bytes::new(), LINK_TIMEOUT).await;
    let reason = match said {
        Ok((_, said)) => {
            let text = String::from_utf8_lossy(&said).into_owned();
            let away = text.lines().find_map(|line| line.strip_prefix("control plane: "));
            away.unwrap_or_default().to_owned()
        }
        Err(_) => "its proxy does not answer".to_owned(),
    };
    let peer = workload.control.clone();
    LinkInfo { connected: reason.is_empty(), peer, since: String::new(), reason }
}

/// The objects of the machine: the namespace in the mesh, the account, and the pod, which may write
/// the directories of the host that the user has named.
pub(crate) fn objects(
    workload: &Workload,
    command: &[String],
    host_paths: &[HostPath],
) -> Vec<Value> {
    let Workload { namespace, entry, service_account, .. } = workload;
    let namespaced = |kind: &str, name: &str| {
        json!({"apiVersion": "v1", "kind": kind,
            "metadata": {"name": name, "namespace": namespace}})
    };
    let in_mesh = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": namespace, "labels": {DATAPLANE_MODE: AMBIENT}}});
    let mut pod = namespaced("Pod", entry);
    let directories = || host_paths.iter().enumerate().map(|(i, it)| (format!("host-{i}"), it));
    let volumes: Vec<Value> = directories()
        .map(|(name, it)| json!({"name": name, "hostPath": {"path": it.path()}}))
        .collect();
    let mounts: Vec<Value> =
        directories().map(|(name, it)| json!({"name": name, "mountPath": it.path()})).collect();
    pod["spec"] = json!({
        "serviceAccountName": service_account,
        "containers": [{"name": CONTAINER, "image": CONTAINER, "command": command,
            "volumeMounts": mounts}],
        "volumes": volumes,
    });
    let account = namespaced("ServiceAccount", service_account);
    let accounts = (service_account != DEFAULT_SERVICE_ACCOUNT).then_some(account);
    std::iter::once(in_mesh).chain(accounts).chain([pod]).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_command_may_write_what_the_user_has_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let all = HostPath::all(&[directory.path().to_owned()]).expect("a directory");
        let token = ClusterToken::sample();
        let objects = objects(&token.cluster, &["run".to_owned()], &all);
        let spec = &objects.last().expect("the pod")["spec"];
        let path = json!(all[0].path());
        assert_eq!(spec["volumes"][0]["hostPath"]["path"], path);
        assert_eq!(spec["containers"][0]["volumeMounts"][0]["mountPath"], path);
    }

    #[test]
    fn another_token_must_be_of_the_same_entry() {
        let directory = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(directory.path());
        let token = ClusterToken::sample();
        let renewed = renew(&layout, &token).expect_err("no machine");
        assert!(matches!(renewed, RenewError::Record(_)), "{renewed}");
        let mut record = Record::sample();
        record.write(&layout).expect("written");
        let renewed = renew(&layout, &token).expect_err("another machine");
        assert!(matches!(renewed, RenewError::NotOfCluster { .. }), "{renewed}");
        record.workload = Some(CarriedWorkload::from(&token.cluster));
        record.write(&layout).expect("written");
        let renewed = renew(&layout, &token).expect_err("it is dead");
        assert!(matches!(renewed, RenewError::Dead { .. }), "{renewed}");
        let lock = std::fs::File::create(layout.lock()).expect("a lock");
        lock.try_lock().expect("held");
        renew(&layout, &token).expect("the same");
        let path = layout.token("node-200");
        assert_eq!(std::fs::read_to_string(&path).expect("a token"), "secret");
        let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "nobody else reads it");
        let mut other = token.clone();
        other.cluster.entry = "web".to_owned();
        let renewed = renew(&layout, &other).expect_err("another entry").to_string();
        assert!(renewed.contains("shop/web") && renewed.contains("shop/db"), "{renewed}");
        let mut elsewhere = token;
        elsewhere.cluster.control = "192.0.2.2:15012".to_owned();
        let renewed = renew(&layout, &elsewhere).expect_err("another control").to_string();
        assert!(renewed.contains("control at 192.0.2.2:15012"), "{renewed}");
    }
}
