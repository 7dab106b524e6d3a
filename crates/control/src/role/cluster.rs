//! The tasks that only a control plane in a cluster starts.
//!
//! Every replica follows the shared authority; the leader writes into the cluster. Nothing here
//! decides what is written.

use std::sync::Arc;

use ambit_net::drain::Guard;
use kube::Client;
use tokio::sync::watch;

use super::Parts;
use crate::ca::cluster::ClusterAuthority;
use crate::config::Config;
use crate::jwks::system_roots;
use crate::kubernetes::acme::Certificates;
use crate::kubernetes::client_roots::ClientRootMaps;
use crate::kubernetes::conditions::Conditions;
use crate::kubernetes::election::Election;
use crate::kubernetes::roots::Roots;
use crate::kubernetes::waypoints::{Settings, Waypoints};

/// A cluster, and what its replicas share.
#[derive(Clone)]
pub(super) struct Cluster {
    pub(super) client: Client,
    pub(super) authority: Arc<ClusterAuthority>,
}

impl Cluster {
    /// The cluster of `client`.
    pub(super) fn new(client: Client, config: &Config) -> Self {
        let mesh = &config.mesh;
        let authority =
            ClusterAuthority::new(client.clone(), &mesh.root_namespace, &mesh.trust_domain);
        Self { client, authority: Arc::new(authority) }
    }

    /// Starts the tasks that run beside serving.
    pub(super) fn start(&self, parts: &Parts, config: &Config, guard: &Guard) {
        let following = self.authority.clone().run(parts.authority.clone(), guard.clone());
        guard.spawn(following);
        let namespace = &config.mesh.root_namespace;
        let instance = identity();
        let (election, leads) = Election::new(self.client.clone(), namespace, instance.clone());
        guard.spawn(election.run(guard.clone()));
        let conditions = Conditions {
            client: self.client.clone(),
            world: parts.world.clone(),
            leads: leads.clone(),
            instance,
        };
        guard.spawn(conditions.run(guard.clone()));
        let certificates = Certificates {
            client: self.client.clone(),
            world: parts.world.clone(),
            leads: leads.clone(),
            told: watch::Sender::default(),
            metrics: parts.metrics.clone(),
            system_roots: system_roots(config.jwks.system_roots.clone()),
        };
        let waypoints = Waypoints {
            client: self.client.clone(),
            world: parts.world.clone(),
            leads: leads.clone(),
            certificates: certificates.told.subscribe(),
            settings: Settings {
                image: config.waypoint_image.clone(),
                pull_policy: config.waypoint_pull_policy.clone(),
                mesh: config.mesh.clone(),
            },
        };
        guard.spawn(waypoints.run(guard.clone()));
        guard.spawn(certificates.run(guard.clone()));
        let maps = ClientRootMaps { client: self.client.clone(), world: parts.world.clone() };
        guard.spawn(maps.run(guard.clone()));
        let roots = Roots {
            client: self.client.clone(),
            authority: parts.authority.clone(),
            world: parts.world.clone(),
            leads,
        };
        guard.spawn(roots.run(guard.clone()));
    }
}

/// A name that no other replica has, nor an earlier life of this one: the host's, which is the
/// pod's, and a random number.
fn identity() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    format!("{}_{}", read("/proc/sys/kernel/hostname"), read("/proc/sys/kernel/random/uuid"))
}
