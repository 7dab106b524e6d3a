//! The paths in a machine's state directory.
//!
//! The names are in one place because five programs and the command line share the directory. It
//! never touches the file system.

use std::path::{Path, PathBuf};

use ambit_words::names::{ROOT_CERTIFICATE, WAYPOINT_CREDENTIALS};

/// The longest path of a state directory: the sockets below it must fit a `sockaddr_un`.
pub(crate) const STATE_PATH_LEN_MAX: usize = 43;

/// The name of a pod's socket in the pod's directory.
pub(crate) const SOCKET_NAME: &str = "sock";

/// The name of the store of container images. It may outlive a command that was killed while it
/// imported one.
pub(crate) const IMAGE_STORE: &str = "image-store";

/// Where a container's own layer is mounted, in the pod's directory.
pub(crate) const LAYER: &str = "layer";

/// A state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The layout below `root`, which should be absolute.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where the state is kept when the user names no directory.
    pub fn default_root(is_root: bool, runtime_directory: Option<&Path>) -> PathBuf {
        match runtime_directory {
            Some(directory) if !is_root => directory.join("ambit"),
            _ => PathBuf::from("/run/ambit"),
        }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What the machine is: process, namespaces, nodes.
    pub fn record(&self) -> PathBuf {
        self.root.join("machine.json")
    }

    /// Locked by the machine for as long as it lives.
    pub fn lock(&self) -> PathBuf {
        self.root.join("machine.lock")
    }

    /// The socket for the user's commands.
    pub fn socket(&self) -> PathBuf {
        self.root.join("machine.sock")
    }

    /// The socket that takes commands to run in pods.
    pub fn exec_socket(&self) -> PathBuf {
        self.root.join("exec.sock")
    }

    /// The socket that takes ports of the host which lead to gateways.
    pub fn publish_socket(&self) -> PathBuf {
        self.root.join("publish.sock")
    }

    /// The socket that answers DNS queries for names outside, of a machine with a way out.
    pub(crate) fn resolve_socket(&self) -> PathBuf {
        self.root.join("resolve.sock")
    }

    /// The socket that hands out sockets of the host's network, of a machine that carries a
    /// workload of a cluster.
    pub(crate) fn outside_socket(&self) -> PathBuf {
        self.root.join("outside.sock")
    }

    /// The same for what its proxy needs itself: connections with control, and the listener.
    pub(crate) fn outside_control_socket(&self) -> PathBuf {
        self.root.join("outside-control.sock")
    }

    /// The socket that takes a port of the host on which the Kubernetes API is served.
    pub(crate) fn kubernetes_api_socket(&self) -> PathBuf {
        self.root.join("kubeapi.sock")
    }

    /// How kubectl reaches the machine, and what it proves itself with.
    pub fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    /// What the control plane and the agents watch.
    pub fn registry(&self) -> PathBuf {
        self.root.join("registry")
    }

    /// The applied objects.
    pub fn objects(&self) -> PathBuf {
        self.registry().join("objects")
    }

    /// One object. Objects without a namespace lie below `_`.
    pub fn object(&self, plural: &str, namespace: Option<&str>, name: &str) -> PathBuf {
        self.objects().join(plural).join(namespace.unwrap_or("_")).join(format!("{name}.json"))
    }

    /// Where objects are written before they are moved into place.
    pub(crate) fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }

    /// What the nodes report about their pods.
    pub fn pod_statuses(&self) -> PathBuf {
        self.registry().join("status/pods")
    }

    /// What a node reports about one pod.
    pub(crate) fn pod_status(&self, namespace: &str, name: &str) -> PathBuf {
        self.pod_statuses().join(namespace).join(format!("{name}.json"))
    }

    /// The agents' marks of captured pods.
    pub(crate) fn captured_directory(&self) -> PathBuf {
        self.registry().join("captured")
    }

    /// Exists, and holds the pod's uid, while the pod is captured.
    pub fn captured(&self, namespace: &str, name: &str) -> PathBuf {
        self.captured_directory().join(namespace).join(name)
    }

    /// The agents' reasons why pods are not captured.
    pub(crate) fn uncaptured_directory(&self) -> PathBuf {
        self.registry().join("uncaptured")
    }

    /// Exists, and holds the pod's uid and a reason, while the pod should be captured and is not.
    pub(crate) fn uncaptured(&self, namespace: &str, name: &str) -> PathBuf {
        self.uncaptured_directory().join(namespace).join(name)
    }

    /// What a machine that others join proves itself with, or what a joined one knows of its home.
    pub(crate) fn join(&self) -> PathBuf {
        self.root.join("join")
    }

    /// The link is asked there whether it works.
    pub(crate) fn link_socket(&self) -> PathBuf {
        self.root.join("link.sock")
    }

    /// The control plane's keys and certificates.
    pub fn control(&self) -> PathBuf {
        self.root.join("control")
    }

    /// The control plane's admin interface.
    pub fn control_socket(&self) -> PathBuf {
        self.root.join("control.sock")
    }

    /// The volumes of claims.
    pub(crate) fn claims(&self) -> PathBuf {
        self.root.join("claims")
    }

    /// The volume of the claim with this uid.
    pub(crate) fn claim(&self, uid: &str) -> PathBuf {
        self.claims().join(uid)
    }

    /// The store of container images.
    pub fn images(&self) -> PathBuf {
        self.root.join(IMAGE_STORE)
    }

    /// The directories of all nodes.
    pub fn nodes(&self) -> PathBuf {
        self.root.join("nodes")
    }

    /// One node's directory.
    pub fn node(&self, node: &str) -> PathBuf {
        self.nodes().join(node)
    }

    /// The socket by which a node's agent hands pods to its proxy.
    pub fn zds_socket(&self, node: &str) -> PathBuf {
        self.node(node).join("ztunnel.sock")
    }

    /// The socket by which the pod runner asks the agent to enrol a pod.
    pub fn cni_socket(&self, node: &str) -> PathBuf {
        self.node(node).join("pluginevent.sock")
    }

    /// The proxy's admin interface.
    pub fn proxy_admin_socket(&self, node: &str) -> PathBuf {
        self.node(node).join("proxy-admin.sock")
    }

    /// The proxy's last view, kept across its restarts.
    pub fn snapshot(&self, node: &str) -> PathBuf {
        self.node(node).join("snapshot")
    }

    /// The token by which a node's proxy proves which node it is.
    pub fn token(&self, node: &str) -> PathBuf {
        self.node(node).join("token")
    }

    /// The root certificate that was handed over with the token.
    pub(crate) fn root_certificate(&self, node: &str) -> PathBuf {
        self.node(node).join(ROOT_CERTIFICATE)
    }

    /// Token and root certificate of a waypoint's pod, each in a directory; control writes them.
    pub(crate) fn waypoint_credentials(&self, node: &str, uid: &str) -> PathBuf {
        self.node(node).join(WAYPOINT_CREDENTIALS).join(uid)
    }

    /// The network namespace of control or of a node, by its name.
    pub(crate) fn network_namespace(&self, name: &str) -> PathBuf {
        self.root.join("netns").join(name)
    }

    /// The network namespace of a pod.
    pub(crate) fn pod_network_namespace(&self, node: &str, uid: &str) -> PathBuf {
        self.node(node).join("netns").join(uid)
    }

    /// What the pod runner keeps of a pod: the files it mounts, the socket of its init.
    pub(crate) fn pod_directory(&self, node: &str, uid: &str) -> PathBuf {
        self.node(node).join("pods").join(uid)
    }

    /// The socket of a pod's init.
    pub(crate) fn pod_socket(&self, node: &str, uid: &str) -> PathBuf {
        self.pod_directory(node, uid).join(SOCKET_NAME)
    }

    /// All logs; the only thing that `down` leaves.
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// The directory of the logs of containers.
    pub fn pod_logs(&self) -> PathBuf {
        self.logs().join("pods")
    }

    /// The log of a process of the mesh: `control`, `lab`, or `node`, `proxy` and `lab-node` of a
    /// node.
    pub fn role_log(&self, role: &str, node: Option<&str>) -> PathBuf {
        self.logs().join(match node {
            Some(node) => format!("{role}-{node}.log"),
            None => format!("{role}.log"),
        })
    }

    /// The log of one container.
    pub fn pod_log(&self, namespace: &str, pod: &str, container: &str) -> PathBuf {
        self.pod_logs().join(format!("{namespace}_{pod}_{container}.log"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_socket_fits_sockaddr_un() {
        let root = format!("/{}", "s".repeat(STATE_PATH_LEN_MAX - 1));
        let uid = "00000000-0000-0000-0000-000000000000";
        let socket = Layout::new(root).pod_socket("node-200", uid);
        assert!(socket.as_os_str().len() < 108, "{}", socket.as_os_str().len());
    }

    #[test]
    fn user_without_root_gets_runtime_directory() {
        let runtime = Path::new("/run/user/7");
        assert_eq!(Layout::default_root(false, Some(runtime)), Path::new("/run/user/7/ambit"));
        assert_eq!(Layout::default_root(true, Some(runtime)), Path::new("/run/ambit"));
    }
}
