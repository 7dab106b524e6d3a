//! The programs of the mesh and of the nodes: starts them with their flags, and restarts them.
//!
//! Each is a separate process in the network namespace of its node. One that dies is restarted at
//! once, and with back-off when it dies again and again. Its output goes to a log of bounded size.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ambit_net::namespace::NetNs;
use ambit_net::sys::process::{self, Pid, Signal};
use ambit_words::{names, ports};
use tokio::time::{Instant, sleep};

use super::client::RoleInfo;
use super::config::{LinkConfig, UpConfig};
use super::fabric;
use super::readiness::Check;
use crate::addresses::{CONTROL, DNS, NodeNetwork};
use crate::image::SHIPPED_BINARY;
use crate::join::Workload;
use crate::layout::Layout;
use crate::link;
use crate::logs::LogFile;
use crate::reaper::{Reaper, exit_code};

/// Wait before the second restart in a row; the first comes at once.
const BACK_OFF_FIRST: Duration = Duration::from_millis(100);
/// Longest wait before a restart.
const BACK_OFF_MAX: Duration = Duration::from_secs(5);
/// A program that ran this long starts afresh in its back-off.
const GOOD_RUN: Duration = Duration::from_secs(5);
/// How often a file is looked for that must be there first.
const NEED_INTERVAL: Duration = Duration::from_millis(10);

/// One program to keep running.
#[derive(Clone, Debug)]
pub(super) struct Role {
    /// `control`, `lab-link`, or `node`, `proxy`, `lab-node` and the node: `proxy/node-1`.
    pub(super) name: String,
    /// The node, `control` or `fabric`: whose network it lives in.
    pub(super) place: String,
    /// How to see that it does its work.
    pub(super) check: Check,
    /// Its log.
    pub(super) log: PathBuf,
    program: PathBuf,
    arguments: Vec<String>,
    environment: BTreeMap<String, String>,
    /// Files that must be there before it starts.
    needs: Vec<PathBuf>,
    /// The socket of the host's network that is its standard input.
    socket: Option<Arc<OwnedFd>>,
}

/// What is known of a program that is kept running.
#[derive(Clone, Debug, Default)]
struct State {
    pid: Option<Pid>,
    restarts: u32,
    last_exit: Option<i32>,
}

/// The programs of a machine.
#[derive(Clone, Debug)]
pub(super) struct Roles {
    states: Arc<Mutex<BTreeMap<String, State>>>,
    /// How many files they may open, and pods with them, unless they raise that themselves.
    open_files: usize,
}

/// Every program of a machine of this configuration.
pub(super) fn roles(config: &UpConfig, layout: &Layout) -> Vec<Role> {
    let builder = Builder { config, layout };
    let mut roles = Vec::new();
    roles.extend(builder.link());
    if config.has_control() {
        roles.push(builder.control());
    }
    for node in config.networks() {
        roles.push(builder.lab_node(node));
        if config.mesh {
            roles.push(builder.agent(node));
            roles.push(builder.proxy(node));
        }
    }
    roles
}

struct Builder<'a> {
    config: &'a UpConfig,
    layout: &'a Layout,
}

impl Builder<'_> {
    fn role(&self, role: &str, node: Option<&str>, check: Check, flags: &[(&str, String)]) -> Role {
        let mut arguments = vec![role.to_owned()];
        for (flag, value) in flags {
            arguments.extend([(*flag).to_owned(), value.clone()]);
        }
        arguments.extend(self.config.arguments.get(role).into_iter().flatten().cloned());
        Role {
            name: node.map_or_else(|| role.to_owned(), |node| format!("{role}/{node}")),
            place: node.unwrap_or(fabric::CONTROL_NAME).to_owned(),
            check,
            log: self.layout.role_log(role, node),
            program: "/proc/self/exe".into(),
            arguments,
            environment: self.config.environment.clone(),
            needs: Vec::new(),
            socket: None,
        }
    }

    fn registry(&self) -> String {
        format!("files:{}", self.layout.registry().display())
    }

    fn control(&self) -> Role {
        let socket = self.layout.control_socket();
        let flags = [
            ("--registry", self.registry()),
            ("--state", text(self.layout.control())),
            ("--admin-socket", text(socket.clone())),
            ("--node-credentials", text(self.layout.nodes())),
            ("--xds-address", format!("[::]:{}", ports::XDS)),
            ("--monitoring-address", format!("[::]:{}", ports::CONTROL_MONITORING)),
        ];
        self.role("control", None, Check::Socket(socket), &flags)
    }

    /// The link to other machines, or to the one that this one is a node of.
    fn link(&self) -> Option<Role> {
        let state = ("--state", text(self.layout.root().to_owned()));
        let (side, place, flags) = match &self.config.link {
            LinkConfig::None | LinkConfig::Cluster { .. } => return None,
            LinkConfig::Home { .. } => (link::HOME, fabric::BRIDGE.to_owned(), vec![state]),
            LinkConfig::Joined { token, .. } => {
                let node = token.node.clone();
                (link::JOINED, node.clone(), vec![state, ("--node-name", node)])
            }
        };
        let check = Check::Socket(self.layout.link_socket());
        let mut role = self.role("lab-link", None, check, &flags);
        role.arguments.insert(1, side.to_owned());
        role.place = place;
        role.socket = self.config.link.socket().cloned();
        Some(role)
    }

    fn lab_node(&self, node: NodeNetwork) -> Role {
        let flags =
            [("--node-name", node.name()), ("--state", text(self.layout.root().to_owned()))];
        let check = Check::Connect((DNS.v4, ports::DNS).into());
        self.role("lab-node", Some(&node.name()), check, &flags)
    }

    fn agent(&self, node: NodeNetwork) -> Role {
        let name = node.name();
        let socket = self.layout.cni_socket(&name);
        let flags = [
            ("--node-name", name.clone()),
            ("--registry", self.registry()),
            ("--zds-socket", text(self.layout.zds_socket(&name))),
            ("--cni-socket", text(socket.clone())),
        ];
        self.role("node", Some(&name), Check::Socket(socket), &flags)
    }

    fn proxy(&self, node: NodeNetwork) -> Role {
        let name = node.name();
        let control = format!("https://{}:{}", CONTROL.v4, ports::XDS);
        let (root, token) = (self.layout.root_certificate(&name), self.layout.token(&name));
        let flags = [
            ("--node-name", name.clone()),
            ("--zds-socket", text(self.layout.zds_socket(&name))),
            ("--xds-address", control.clone()),
            ("--ca-address", control),
            ("--xds-root-ca", text(root.clone())),
            ("--ca-root-ca", text(root.clone())),
            ("--auth-token", text(token.clone())),
            ("--alt-hostname", names::CONTROL_HOST.to_owned()),
            ("--snapshot", text(self.layout.snapshot(&name))),
            ("--admin-socket", text(self.layout.proxy_admin_socket(&name))),
            // It knows all names that there are. No resolver of the host can be reached from here.
            ("--lookup-resolvers", DNS.v4.to_string()),
        ];
        let check = Check::Get {
            address: ([127, 0, 0, 1], ports::PROXY_READINESS).into(),
            path: "/healthz/ready",
        };
        let mut role = self.role("proxy", Some(&name), check, &flags);
        if let Some(workload) = self.config.cluster() {
            self.of_cluster(&mut role, node, workload);
        }
        if let Some(program) = self.config.proxies.get(&name) {
            role.program.clone_from(program);
            role.arguments = vec!["proxy".to_owned(), "ztunnel".to_owned()];
            let given = std::mem::take(&mut role.environment);
            role.environment = self.ztunnel_environment(node);
            role.environment.extend(given);
        }
        role.needs = vec![root, token];
        role
    }

    /// The flags of a proxy whose control is a cluster's.
    fn of_cluster(&self, role: &mut Role, node: NodeNetwork, workload: &Workload) {
        let name = node.name();
        let control = format!("https://{}", workload.control);
        let root = text(self.layout.root_certificate(&name));
        let flags = [
            ("--node-name", name.clone()),
            ("--zds-socket", text(self.layout.zds_socket(&name))),
            ("--xds-address", control.clone()),
            ("--ca-address", control),
            ("--xds-root-ca", root.clone()),
            ("--ca-root-ca", root),
            ("--auth-token", text(self.layout.token(&name))),
            ("--alt-hostname", workload.control_name.clone()),
            ("--trust-domain", workload.trust_domain.clone()),
            ("--cluster-id", workload.cluster_id.clone()),
            ("--cluster-domain", workload.cluster_domain.clone()),
            ("--network", workload.network.clone()),
            ("--admin-socket", text(self.layout.proxy_admin_socket(&name))),
            ("--lookup-resolvers", DNS.v4.to_string()),
            // Other pods of the cluster may have its name: what leads to them goes there.
            ("--same-node", "encrypt".to_owned()),
            ("--outside-address", workload.address.to_string()),
            ("--outside-socket", text(self.layout.outside_socket())),
            ("--outside-control-socket", text(self.layout.outside_control_socket())),
        ];
        let words = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
        role.arguments = std::iter::once("proxy".to_owned()).chain(words).collect();
        for prefix in ["XDS_HEADER_", "CA_HEADER_"] {
            let variable = format!("{prefix}{}", names::WORKLOAD_ENTRY_METADATA);
            role.environment.insert(variable, workload.entry.clone());
        }
    }

    /// The same settings as ztunnel's environment variables.
    fn ztunnel_environment(&self, node: NodeNetwork) -> BTreeMap<String, String> {
        let name = node.name();
        let control = format!("https://{}:{}", CONTROL.v4, ports::XDS);
        let root = text(self.layout.root_certificate(&name));
        [
            ("XDS_ADDRESS", control.clone()),
            ("CA_ADDRESS", control),
            ("XDS_ROOT_CA", root.clone()),
            ("CA_ROOT_CA", root),
            ("AUTH_TOKEN", text(self.layout.token(&name))),
            ("ALT_XDS_HOSTNAME", names::CONTROL_HOST.to_owned()),
            ("ALT_CA_HOSTNAME", names::CONTROL_HOST.to_owned()),
            ("INPOD_UDS", text(self.layout.zds_socket(&name))),
            ("CLUSTER_ID", "Kubernetes".to_owned()),
            ("POD_NAME", format!("ztunnel-{name}")),
            ("POD_NAMESPACE", names::DEFAULT_MESH_NAMESPACE.to_owned()),
            ("SERVICE_ACCOUNT", names::PROXY.to_owned()),
            ("TRUST_DOMAIN", names::DEFAULT_TRUST_DOMAIN.to_owned()),
            ("INSTANCE_IP", node.fabric().v4.to_string()),
            ("PROXY_MODE", "shared".to_owned()),
            ("RUST_LOG", "info".to_owned()),
            ("NODE_NAME", name),
        ]
        .into_iter()
        .map(|(variable, value)| (variable.to_owned(), value))
        .collect()
    }
}

fn text(path: PathBuf) -> String {
    path.into_os_string().to_string_lossy().into_owned()
}

impl Roles {
    /// None yet, and so many open files for each.
    pub(super) fn new(open_files: usize) -> Self {
        Self { states: Arc::default(), open_files }
    }

    /// Starts a program and keeps it running for as long as the runtime lives.
    pub(super) fn keep(&self, role: Role, netns: NetNs, reaper: Reaper) {
        self.change(&role.name, |_| {});
        let roles = self.clone();
        tokio::spawn(async move { roles.keep_running(&role, &netns, &reaper).await });
    }

    async fn keep_running(&self, role: &Role, netns: &NetNs, reaper: &Reaper) {
        let mut back_off = Duration::ZERO;
        loop {
            while !role.needs.iter().all(|path| path.exists()) {
                sleep(NEED_INTERVAL).await;
            }
            let started = Instant::now();
            let exit = match start(role, netns, self.open_files) {
                Ok(pid) => {
                    self.change(&role.name, |state| state.pid = Some(pid));
                    reaper.end_of(pid).await.map_or(-1, exit_code)
                }
                Err(error) => {
                    tracing::error!(role = role.name, %error, "cannot start a program");
                    -1
                }
            };
            tracing::warn!(role = role.name, exit, "a program ended, starting it again");
            self.change(&role.name, |state| {
                state.pid = None;
                state.last_exit = Some(exit);
                state.restarts += 1;
            });
            if started.elapsed() >= GOOD_RUN {
                back_off = Duration::ZERO;
            }
            sleep(back_off).await;
            back_off = (back_off * 2).clamp(BACK_OFF_FIRST, BACK_OFF_MAX);
        }
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut State)) {
        let mut states = self.states.lock().expect("nothing panics while it holds the lock");
        change(states.entry(name.to_owned()).or_default());
    }

    /// Sends a signal to a program. `None` when there is no such program, or it does not run just
    /// now.
    pub(super) fn signal(&self, name: &str, signal: i32) -> Option<io::Result<()>> {
        let states = self.states.lock().expect("nothing panics while it holds the lock");
        let pid = states.get(name)?.pid?;
        Some(process::kill(pid, Signal::Number(signal)))
    }

    /// What is known about a program. Its [`Check`] says whether it works.
    pub(super) fn info(&self, role: &Role) -> RoleInfo {
        let states = self.states.lock().expect("nothing panics while it holds the lock");
        let state = states.get(&role.name).cloned().unwrap_or_default();
        RoleInfo {
            name: role.name.clone(),
            pid: state.pid,
            restarts: state.restarts,
            last_exit: state.last_exit,
            waiting_for: None,
            log: role.log.clone(),
        }
    }
}

fn start(role: &Role, netns: &NetNs, open_files: usize) -> io::Result<Pid> {
    let output = LogFile::open(&role.log)?.collect()?;
    let error = output.try_clone()?;
    let input = match &role.socket {
        Some(socket) => Stdio::from(socket.try_clone()?),
        None => Stdio::null(),
    };
    let mut command = Command::new(&role.program);
    command
        .arg0(SHIPPED_BINARY)
        .args(&role.arguments)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .envs(&role.environment)
        .current_dir("/")
        .stdin(input)
        .stdout(output)
        .stderr(error);
    process::start_with_open_files(&mut command, open_files);
    // The child is born where its parent is at that moment; the reaper waits for it.
    let child = netns.run(|| command.spawn())??;
    Ok(Pid::try_from(child.id()).expect("process ids are positive"))
}
