//! How the mesh comes to a node and leaves it, beside its pods: the CNI plugin, the node's taint,
//! and what a stop of the agent means.
//!
//! An agent that is stopped for an upgrade or a restart of the node leaves everything as it is.
//! Only if its own DaemonSet orders it ([`course`]), or is gone, or on its way, the mesh leaves the
//! node. Nothing is removed on a guess: a refusal to say is no word that it is gone. The token of a
//! pod that was deleted by force is refused too, and so is every agent when its Role is broken.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ambit_words::error_chain;
use kube::Client;
use tokio::sync::watch;

use crate::RunError;
use crate::args::{CniDirectories, Settings};
use crate::cluster::{self, DaemonSetName, State};
use crate::course::{self, Course};
use crate::install::{self, Installer, conflist};
use crate::monitor::Health;

/// How often readiness is asked for before the node is opened.
const READY_POLL: Duration = Duration::from_millis(100);
/// What the agent may take beyond the grace for connections.
const REMOVAL_MARGIN: Duration = Duration::from_secs(5);
/// How long the watch has to tell that the DaemonSet is deleted, when the server does not let the
/// agent ask. Helm deletes the DaemonSet before its permissions, and its pods are told to stop only
/// when it is gone, so that the event is there already, or on its way.
const WATCH_PATIENCE: Duration = Duration::from_secs(3);

/// What has been put on the node, and has to leave it.
pub(crate) struct Departure {
    pub(crate) installer: Option<Installer>,
    client: Option<Client>,
    node: String,
    taint: Option<String>,
    daemon_set: Option<DaemonSetName>,
    /// Whether the DaemonSet is deleted or on its way, as far as its watch has told.
    deleted: watch::Sender<bool>,
    /// What is to become of the mesh on the node, as far as it was ordered.
    wanted: watch::Sender<Course>,
    grace: Duration,
}

impl Departure {
    /// Nothing is put on the node before [`Departure::keep`].
    pub(crate) fn new(settings: &Settings, client: Option<Client>) -> Result<Self, RunError> {
        let mesh_namespace = settings.daemon_set.as_ref().map(|name| &*name.namespace);
        let installer = |directories: &CniDirectories| -> Result<Installer, RunError> {
            Ok(Installer {
                conf_dir: directories.conf_dir.clone(),
                bin_dir: directories.bin_dir.clone(),
                conf_name: directories.conf_name.clone(),
                executable: std::env::current_exe().map_err(RunError::Executable)?,
                entry: conflist::entry(&settings.cni_socket, mesh_namespace),
                removed: Arc::default(),
            })
        };
        let wanted = match settings.uninstall {
            true => Course::End { until: Instant::now() + settings.uninstall_grace },
            false => Course::Stay,
        };
        Ok(Self {
            installer: settings.cni.as_ref().map(installer).transpose()?,
            client,
            node: settings.node_name.clone(),
            taint: settings.taint.clone(),
            daemon_set: settings.daemon_set.clone(),
            deleted: watch::channel(false).0,
            wanted: watch::channel(wanted).0,
            grace: settings.uninstall_grace,
        })
    }

    /// Asks what is ordered, before anything is put on the node that an agent before this one was
    /// told to remove. Says what course the agent begins with.
    pub(crate) async fn ask(&self) -> Course {
        if let Some((client, daemon_set)) = self.client.as_ref().zip(self.daemon_set.as_ref())
            && let State::There { order } = cluster::state_of(client, daemon_set).await
        {
            course::take(order.as_deref(), &self.wanted);
        }
        match self.wanted.borrow().clone() {
            // Not before the plugin is away, or the agent could end before it is.
            Course::End { .. } => Course::Stay,
            course => course,
        }
    }

    /// Keeps the plugin in its place and opens the node; when the mesh is to leave, takes the
    /// plugin away and then tells the agent. Comes back when it is to stay after all: then the
    /// agent starts over.
    pub(crate) async fn keep(&self, health: &Arc<Health>, course: &watch::Sender<Course>) {
        let Some((client, daemon_set)) = self.client.as_ref().zip(self.daemon_set.as_ref()) else {
            return self.stay_or_leave(health, course).await;
        };
        tokio::select! {
            () = course::follow(client, daemon_set, &self.node, &self.wanted, &self.deleted) => {}
            () = self.stay_or_leave(health, course) => {}
        }
    }

    async fn stay_or_leave(&self, health: &Arc<Health>, course: &watch::Sender<Course>) {
        let mut wanted = self.wanted.subscribe();
        let install = async {
            match &self.installer {
                Some(installer) => install::keep(installer.clone(), health.clone()).await,
                None => std::future::pending().await,
            }
        };
        let open_node = async {
            while health.missing().is_some() {
                tokio::time::sleep(READY_POLL).await;
            }
            if let Some((client, taint)) = self.client.as_ref().zip(self.taint.as_ref()) {
                cluster::remove_taint(client, &self.node, taint).await;
            }
            std::future::pending::<()>().await;
        };
        let until_away = async {
            loop {
                let ordered = wanted.borrow_and_update().clone();
                if ordered.is_away() {
                    return;
                }
                course.send_replace(ordered);
                wanted.changed().await.expect("its sender lives as long");
            }
        };
        tokio::select! {
            // First: what is to be removed is not installed before.
            biased;
            () = until_away => {}
            () = install => {}
            () = open_node => {}
        }
        tracing::info!("the mesh leaves this node");
        // Before the agent stops answering: a pod that starts from now on asks nobody.
        self.uninstall().await;
        loop {
            let ordered = wanted.borrow_and_update().clone();
            if !ordered.is_away() {
                tracing::info!("the order to leave was withdrawn: the mesh stays, starting over");
                return;
            }
            course.send_replace(ordered);
            wanted.changed().await.expect("its sender lives as long");
        }
    }

    /// The agent was told to stop. Comes back when it may, with everything left as it is.
    pub(crate) async fn stopped(&self) {
        let Some((client, daemon_set)) = self.client.as_ref().zip(self.daemon_set.as_ref()) else {
            return;
        };
        let state = cluster::state_of(client, daemon_set).await;
        let is_deleted = match state {
            State::Refused => self.hears_of_deletion().await,
            _ => *self.deleted.borrow(),
        };
        if is_removed(&state, is_deleted, self.wanted.borrow().is_away()) {
            self.wanted.send_replace(Course::End { until: Instant::now() + self.grace });
            // The agent ends by itself, before that.
            tokio::time::sleep(self.grace + REMOVAL_MARGIN).await;
        }
    }

    /// Whether the watch has told that the DaemonSet is deleted, or does so in time.
    async fn hears_of_deletion(&self) -> bool {
        let mut deleted = self.deleted.subscribe();
        let told = deleted.wait_for(|is_deleted| *is_deleted);
        tokio::time::timeout(WATCH_PATIENCE, told).await.is_ok()
    }

    async fn uninstall(&self) {
        let Some(installer) = self.installer.clone() else { return };
        let removed = tokio::task::spawn_blocking(move || installer.uninstall()).await;
        match removed.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())) {
            Ok(()) => tracing::info!("the CNI configuration is as it was"),
            Err(error) => {
                tracing::error!(error = %error_chain(&error), "the CNI plugin stays on the node");
            }
        }
    }
}

/// Whether an agent that is told to stop takes the mesh off its node: `state` is what the server
/// says of its DaemonSet, `is_deleted` what the watch told, and `is_ordered` that the last order
/// was to leave.
fn is_removed(state: &State, is_deleted: bool, is_ordered: bool) -> bool {
    match state {
        State::There { .. } => false,
        State::Gone => true,
        // Its permission may have been taken away with all the rest; or it was ordered to leave,
        // and nobody says that it is to stay after all.
        State::Refused | State::Unknown => is_deleted || is_ordered,
    }
}

/// Removes the sockets that nobody serves any more.
pub(crate) fn remove_sockets(paths: [&Path; 2]) {
    for path in paths {
        if let Err(error) = std::fs::remove_file(path) {
            tracing::warn!(%error, socket = %path.display(), "cannot be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use hyper::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::args::tests::parse_from;
    use crate::testbed::Directory;

    fn departure(flags: &[&str], client: Option<Client>) -> Departure {
        let args = parse_from("kubernetes", flags).expect("parses");
        Departure::new(&args.try_into().expect("valid"), client).expect("an executable")
    }

    /// A server that answers everything so.
    fn server(code: u16, reason: &'static str) -> Client {
        let service = tower::service_fn(move |_: Request<Body>| {
            let metadata = json!({"name": "istio-cni-node", "namespace": "istio-system"});
            let body = match code {
                200 => json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                    "metadata": metadata}),
                _ => json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "code": code,
                    "status": "Failure", "message": "refused by the test",
                    "reason": reason}),
            };
            let response =
                Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
            async move { Ok::<_, Infallible>(response.expect("a response")) }
        });
        Client::new(service, "default")
    }

    /// What an agent does that is stopped while the server answers with `code`: whether it takes
    /// the mesh off its node. `told`: when its watch tells that the DaemonSet is deleted.
    async fn leaves(
        (code, reason): (u16, &'static str),
        told: Option<Duration>,
        course: Course,
    ) -> bool {
        let flags = ["--daemonset=istio-system/istio-cni-node"];
        let departure = departure(&flags, Some(server(code, reason)));
        departure.wanted.send_replace(course);
        let watching = async {
            if let Some(after) = told {
                tokio::time::sleep(after).await;
                departure.deleted.send_replace(true);
            }
        };
        tokio::join!(departure.stopped(), watching);
        matches!(*departure.wanted.borrow(), Course::End { .. })
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_to_say_what_became_of_the_daemon_set_removes_nothing() {
        let now = Some(Duration::ZERO);
        let late = Some(WATCH_PATIENCE - Duration::from_millis(1));
        let too_late = Some(WATCH_PATIENCE + Duration::from_millis(1));
        let away = || {
            let course = watch::channel(Course::Stay).0;
            course::take(Some("leave/2999-01-01T00:00:00Z"), &course);
            course.borrow().clone()
        };
        for (answer, told, course, expected) in [
            // A pod that was deleted by force; its node; a broken Role.
            ((401, ""), None, Course::Stay, false),
            ((403, ""), None, Course::Stay, false),
            ((403, ""), too_late, Course::Stay, false),
            // `helm uninstall`: its permission has gone after its DaemonSet.
            ((401, ""), now, Course::Stay, true),
            ((403, ""), now, Course::Stay, true),
            ((403, ""), late, Course::Stay, true),
            ((403, ""), None, away(), true),
            // The server says.
            ((404, "NotFound"), None, Course::Stay, true),
            // A balancer before it says.
            ((404, ""), None, Course::Stay, false),
            ((200, ""), None, Course::Stay, false),
            ((200, ""), now, Course::Stay, false),
            ((200, ""), None, away(), false),
            // It cannot say.
            ((500, ""), None, Course::Stay, false),
            ((500, ""), now, Course::Stay, true),
            ((500, ""), None, away(), true),
        ] {
            let case = format!("{answer:?} {told:?} {course:?}");
            assert_eq!(leaves(answer, told, course).await, expected, "{case}");
        }
    }

    #[tokio::test]
    async fn told_by_its_flag_it_takes_the_plugin_out_and_asks_nobody() {
        let host = Directory::new("departure");
        let original = r#"{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}]}"#;
        for part in ["net.d", "bin"] {
            std::fs::create_dir_all(host.path(part)).expect("directory");
        }
        let configuration = host.path("net.d/10-net.conflist");
        std::fs::write(&configuration, original).expect("write");
        let directories = [
            format!("--cni-conf-dir={}", host.path("net.d").display()),
            format!("--cni-bin-dir={}", host.path("bin").display()),
        ];
        let [conf_dir, bin_dir] = directories.each_ref().map(|flag| &**flag);
        let before = departure(&[conf_dir, bin_dir], None).installer.expect("directories");
        before.look().expect("installed");
        let departure = departure(&[conf_dir, bin_dir, "--uninstall"], None);
        assert_eq!(departure.ask().await, Course::Stay, "the plugin goes first");
        let (course, mut followed) = watch::channel(Course::Stay);
        let health = Arc::default();
        tokio::select! {
            () = departure.keep(&health, &course) => panic!("it is to stay"),
            ended = followed.wait_for(|course| matches!(course, Course::End { .. })) => {
                ended.expect("told");
            }
        }
        assert_eq!(std::fs::read_to_string(configuration).expect("text"), original);
        let left = ["net.d", "bin"]
            .map(|part| std::fs::read_dir(host.path(part)).expect("directory").count());
        assert_eq!(left, [1, 0]);
    }
}
