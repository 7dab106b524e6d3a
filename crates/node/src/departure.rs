//! How the mesh comes to a node and leaves it, beside its pods: the CNI plugin, the node's taint,
//! and what a stop of the agent means.
//!
//! An agent that is stopped for an upgrade or a restart of the node leaves everything as it is.
//! Only if its own DaemonSet is gone, or on its way, the mesh leaves the node. Nothing is removed
//! on a guess.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kube::Client;
use tokio::sync::watch;

use crate::RunError;
use crate::args::{CniDirectories, Settings};
use crate::cluster::{self, DaemonSetName};
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
    /// Whether the mesh is to leave the node.
    removal: watch::Sender<bool>,
    grace: Duration,
}

impl Departure {
    /// Nothing is put on the node before [`Departure::keep`].
    pub(crate) fn new(settings: &Settings, client: Option<Client>) -> Result<Self, RunError> {
        let installer = |directories: &CniDirectories| -> Result<Installer, RunError> {
            Ok(Installer {
                conf_dir: directories.conf_dir.clone(),
                bin_dir: directories.bin_dir.clone(),
                conf_name: directories.conf_name.clone(),
                executable: std::env::current_exe().map_err(RunError::Executable)?,
                entry: conflist::entry(&settings.cni_socket),
                removed: Arc::default(),
            })
        };
        Ok(Self {
            installer: settings.cni.as_ref().map(installer).transpose()?,
            client,
            node: settings.node_name.clone(),
            taint: settings.taint.clone(),
            daemon_set: settings.daemon_set.clone(),
            may_ask: AtomicBool::new(false),
            removal: watch::channel(settings.uninstall).0,
            grace: settings.uninstall_grace,
        })
    }

    /// Keeps the plugin in its place and opens the node; when the mesh is to leave, takes the
    /// plugin away and tells the agent until when connections may go on. Never comes back.
    pub(crate) async fn keep(&self, health: &Arc<Health>, leave: &watch::Sender<Option<Instant>>) {
        let mut removal = self.removal.subscribe();
        let install = async {
            match &self.installer {
                Some(installer) => install::keep(installer.clone(), health.clone()).await,
                None => std::future::pending().await,
            }
        };
        let in_cluster = async {
            if let Some((client, daemon_set)) = self.client.as_ref().zip(self.daemon_set.as_ref()) {
                let may_ask = cluster::may_ask(client, daemon_set).await;
                self.may_ask.store(may_ask, Ordering::Relaxed);
            }
            while health.missing().is_some() {
                tokio::time::sleep(READY_POLL).await;
            }
            if let Some((client, taint)) = self.client.as_ref().zip(self.taint.as_ref()) {
                cluster::remove_taint(client, &self.node, taint).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            // First: what is to be removed is not installed before.
            biased;
            _ = removal.wait_for(|removal| *removal) => {}
            () = install => {}
            () = in_cluster => {}
        }
        tracing::info!(grace = ?self.grace, "the mesh leaves this node");
        // Before the agent stops answering: a pod that starts from now on asks nobody.
        self.uninstall().await;
        leave.send_replace(Some(Instant::now() + self.grace));
        std::future::pending().await
    }

    /// The agent was told to stop. Comes back when it may, with everything left as it is.
    pub(crate) async fn stopped(&self) {
        let Some((client, daemon_set)) = self.client.as_ref().zip(self.daemon_set.as_ref()) else {
            return;
        };
        if cluster::is_removed(client, daemon_set, self.may_ask.load(Ordering::Relaxed)).await {
            self.removal.send_replace(true);
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
