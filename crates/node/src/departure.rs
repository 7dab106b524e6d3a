//! How the mesh comes to a node and leaves it, beside its pods: the CNI plugin, the node's taint,
//! and what a stop of the agent means.
//!
//! An agent that is stopped for an upgrade or a restart of the node leaves everything as it is.
//! Only if its own DaemonSet orders it ([`course`]), or is gone, or on its way, the mesh leaves the
//! node. Nothing is removed on a guess.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kube::Client;
use tokio::sync::watch;

use crate::RunError;
use crate::args::{CniDirectories, Settings};
use crate::cluster::{self, DaemonSetName, State};
use crate::course::{self, Course};
use crate::install::{self, Installer, conflist};
use crate::monitor::Health;
use crate::work::chain;

/// How often readiness is asked for before the node is opened.
const READY_POLL: Duration = Duration::from_millis(100);
/// What the agent may take beyond the grace for connections.
const REMOVAL_MARGIN: Duration = Duration::from_secs(5);

/// What has been put on the node, and has to leave it.
pub(crate) struct Departure {
    pub(crate) installer: Option<Installer>,
    client: Option<Client>,
    node: String,
    taint: Option<String>,
    daemon_set: Option<DaemonSetName>,
    /// The server let the agent ask for its DaemonSet when it started.
    may_ask: AtomicBool,
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
            may_ask: AtomicBool::new(false),
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
            self.may_ask.store(true, Ordering::Relaxed);
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
            () = course::follow(client, daemon_set, &self.node, &self.wanted) => {}
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
                tracing::info!("the mesh is to stay after all: starting over");
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
        let is_removed = match cluster::state_of(client, daemon_set).await {
            State::There { .. } => false,
            State::Gone => true,
            // Its permission was taken away with all the rest.
            State::Refused if self.may_ask.load(Ordering::Relaxed) => true,
            // It was ordered to leave, and nobody says that it is to stay after all.
            State::Refused | State::Unknown => self.wanted.borrow().is_away(),
        };
        if is_removed {
            self.wanted.send_replace(Course::End { until: Instant::now() + self.grace });
            // The agent ends by itself, before that.
            tokio::time::sleep(self.grace + REMOVAL_MARGIN).await;
        }
    }

    async fn uninstall(&self) {
        let Some(installer) = self.installer.clone() else { return };
        let removed = tokio::task::spawn_blocking(move || installer.uninstall()).await;
        match removed.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())) {
            Ok(()) => tracing::info!("the CNI configuration is as it was"),
            Err(error) => {
                tracing::error!(error = %chain(&error), "the CNI plugin stays on the node");
            }
        }
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
