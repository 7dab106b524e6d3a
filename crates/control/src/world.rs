//! The current state of the control plane, shared by everything that answers requests.
//!
//! One task feeds it with the registry's events; discovery streams wait for its resources, the
//! authority and the administration read its objects. It is complete before any client is served:
//! to a proxy, a registry that is still being read must never look like a mesh without workloads.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard};
use std::time::Instant;

use ambit_manifest::ObjectName;
use ambit_manifest::gateway::Position;
use ambit_model::Text;
use ambit_model::identity::{DEFAULT_SERVICE_ACCOUNT, Identity};
use ambit_model::names::ServiceName;
use ambit_model::view::Change;
use ambit_tls::token::PodClaim;
use ambit_wire::xds::resources::Resources;
use ambit_words::error_chain;
use tokio::sync::watch;

use crate::ca::Holder;
use crate::durable::{self, PRIVATE};
use crate::metrics::Metrics;
use crate::registry::{Batch, Event};
use crate::view_builder::{Builder, Mesh, Vips};

/// What the control plane knows.
pub(crate) struct World {
    builder: RwLock<Builder>,
    resources: watch::Sender<Arc<Resources>>,
    objects: watch::Sender<u64>,
    /// The last mark that somebody set, and the last that was reached.
    marks: watch::Sender<u64>,
    reached: AtomicU64,
    vips_path: PathBuf,
    metrics: Arc<Metrics>,
}

impl World {
    /// A world without objects, and the addresses that earlier runs allocated.
    pub(crate) fn new(mesh: Mesh, vips: Vips, vips_path: PathBuf, metrics: Arc<Metrics>) -> Self {
        let builder = Builder::new(mesh, vips);
        let mut resources = Resources::default();
        for change in builder.initial() {
            serve(&mut resources, &change);
        }
        Self {
            builder: RwLock::new(builder),
            resources: watch::Sender::new(Arc::new(resources)),
            objects: watch::Sender::new(0),
            marks: watch::Sender::new(0),
            reached: AtomicU64::new(0),
            vips_path,
            metrics,
        }
    }

    /// Takes a batch of the registry. Its mark counts as reached once its events are published.
    pub(crate) fn take(&self, batch: Batch) {
        if !batch.events.is_empty() {
            self.apply(batch.events);
        }
        if let Some(mark) = batch.mark {
            self.reached.store(mark, Ordering::Release);
        }
    }

    /// Sets a mark: once it is reached, everything that is in the registry now is published.
    pub(crate) fn set_mark(&self) -> u64 {
        let mut mark = 0;
        self.marks.send_modify(|last| {
            *last += 1;
            mark = *last;
        });
        mark
    }

    /// The marks as they are set, for the reader of the registry.
    pub(crate) fn marks(&self) -> watch::Receiver<u64> {
        self.marks.subscribe()
    }

    /// The last mark that was reached.
    pub(crate) fn reached_mark(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    /// Takes events of the registry, and publishes what they change.
    pub(crate) fn apply(&self, events: Vec<Event>) {
        let started = Instant::now();
        let count = events.len();
        let changes = {
            let mut builder = self.builder.write().expect("no holder of the lock panics");
            let changes = builder.apply(events);
            if let Some(vips) = builder.changed_vips() {
                let written = durable::replace(&self.vips_path, &vips.to_json(), PRIVATE);
                if let Err(error) = written {
                    let error = error_chain(&error);
                    tracing::error!(error, "allocated addresses may change at the next start");
                }
            }
            changes
        };
        if !changes.is_empty() {
            self.resources.send_modify(|resources| {
                let resources = Arc::make_mut(resources);
                for change in &changes {
                    serve(resources, change);
                }
            });
        }
        self.objects.send_modify(|version| *version += 1);
        let took = started.elapsed();
        self.metrics.built(count, changes.len(), took);
        tracing::debug!(events = count, changes = changes.len(), ?took, "view built");
    }

    /// What discovery serves, as it changes.
    pub(crate) fn resources(&self) -> watch::Receiver<Arc<Resources>> {
        self.resources.subscribe()
    }

    /// Counts up whenever objects changed, whether or not the view did.
    pub(crate) fn objects(&self) -> watch::Receiver<u64> {
        self.objects.subscribe()
    }

    /// The objects and the view. Not to be held across an await.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Builder> {
        self.builder.read().expect("no holder of the lock panics")
    }

    /// Whether a pod of `identity` that has not ended was given to `node`.
    pub(crate) fn runs_on(&self, identity: &Identity, node: &str) -> bool {
        let builder = self.read();
        let store = builder.store();
        store.pods_on(node).any(|name| {
            name.namespace == identity.namespace
                && store.pod(name).is_some_and(|(pod, state)| {
                    pod.service_account == identity.service_account && state.may_run(pod)
                })
        })
    }

    /// Whether this pod of a token is a Gateway's, of either position, and may run. It must be the
    /// very pod that the token was given to, with the token's account.
    pub(crate) fn is_waypoint(&self, namespace: &str, account: &str, claim: &PodClaim) -> bool {
        let name = ObjectName::new(namespace, &claim.name);
        let builder = self.read();
        let store = builder.store();
        store.pod(&name).is_some_and(|(pod, state)| {
            *pod.uid == *claim.uid
                && *pod.service_account == *account
                && state.may_run(pod)
                && store.gateways().of_pod(namespace, pod).is_some()
        })
    }

    /// What decides whose computer may speak for a WorkloadEntry. One that is being deleted is
    /// gone: a finalizer must not keep its computer in the mesh.
    pub(crate) fn entry(&self, name: &ObjectName) -> Option<EntryOwner> {
        let builder = self.read();
        let entry = builder.store().workload_entry(name)?;
        let account = &*entry.spec.service_account;
        entry.metadata.deletion_timestamp.is_none().then(|| EntryOwner {
            uid: entry.metadata.uid.as_deref().unwrap_or_default().into(),
            service_account: match account {
                "" => DEFAULT_SERVICE_ACCOUNT.into(),
                account => account.into(),
            },
            unreadable: entry.unreadable.clone(),
        })
    }

    /// The service of the gateway at the edge whose pod this pod of a token is.
    pub(crate) fn gateway_of(
        &self,
        namespace: &str,
        account: &str,
        claim: &PodClaim,
    ) -> Option<ServiceName> {
        if !self.is_waypoint(namespace, account, claim) {
            return None;
        }
        let builder = self.read();
        let (store, gateways) = (builder.store(), builder.store().gateways());
        let (pod, _) = store.pod(&ObjectName::new(namespace, &claim.name))?;
        let (gateway, position) = gateways.of_pod(namespace, pod)?;
        let gateway = ObjectName::new(namespace, gateway);
        (position == Position::Edge).then(|| gateways.service_of(builder.mesh(), &gateway))
    }

    /// The pods of Gateways that have a node, with their uid, account and node.
    pub(crate) fn waypoint_pods(&self) -> Vec<WaypointPod> {
        let builder = self.read();
        let store = builder.store();
        let pods = store.pods().filter_map(|(name, pod)| {
            let (_, state) = store.pod(name)?;
            let is_meant = !pod.node.is_empty() && state.may_run(pod);
            store.gateways().of_pod(&name.namespace, pod).filter(|_| is_meant)?;
            Some(WaypointPod {
                name: name.clone(),
                uid: pod.uid.clone(),
                service_account: pod.service_account.clone(),
                node: pod.node.clone(),
            })
        });
        pods.collect()
    }

    /// Every identity on every node that should hold a certificate: those of captured pods
    /// and of Gateways.
    pub(crate) fn holders(&self) -> Vec<Holder> {
        let builder = self.read();
        let (store, mesh) = (builder.store(), builder.mesh());
        let holders = store.pods().filter_map(|(name, pod)| {
            let (_, state) = store.pod(name)?;
            let has_own = store.gateways().of_pod(&name.namespace, pod).is_some();
            (state.may_run(pod) && (state.is_captured(pod) || has_own)).then(|| {
                let identity = Identity::new(
                    mesh.trust_domain.clone(),
                    name.namespace.clone(),
                    pod.service_account.clone(),
                );
                (identity, pod.node.to_string())
            })
        });
        let mut holders: Vec<Holder> = holders.collect();
        holders.sort();
        holders.dedup();
        holders
    }

    /// Whether the Node object of this name lists the address.
    pub(crate) fn is_address_of(&self, node: &str, ip: IpAddr) -> bool {
        let builder = self.read();
        builder.store().node(node).is_some_and(|node| node.addresses.contains(&ip))
    }

    /// The nodes that have an object.
    pub(crate) fn nodes(&self) -> Vec<Text> {
        self.read().store().nodes().map(|(name, _)| name.clone()).collect()
    }
}

/// Whose a WorkloadEntry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EntryOwner {
    /// Its uid.
    pub(crate) uid: Text,
    /// Its service account.
    pub(crate) service_account: Text,
    /// What of it cannot be read, its account perhaps.
    pub(crate) unreadable: Option<String>,
}

/// A pod of a waypoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WaypointPod {
    /// Its namespace and name.
    pub(crate) name: ObjectName,
    /// Its uid.
    pub(crate) uid: Text,
    /// Its service account.
    pub(crate) service_account: Text,
    /// Its node.
    pub(crate) node: Text,
}

fn serve(resources: &mut Resources, change: &Change) {
    match change {
        Change::Workload(workload) => {
            resources.put_workload(workload);
        }
        Change::Service(service) => {
            resources.put_service(service);
        }
        Change::Policy(policy) => {
            resources.put_policy(policy);
        }
        Change::RemoveAddress(name) => {
            // A service's name and a workload's uid cannot be mistaken: only uids hold several
            // slashes.
            if !resources.remove_workload(name)
                && let Ok(name) = name.parse()
            {
                resources.remove_service(&name);
            }
        }
        Change::RemovePolicy(name) => {
            resources.remove_policy(name);
        }
        Change::HttpService(service) => {
            resources.put_http_service(service);
        }
        Change::RemoveHttpService(name) => {
            resources.remove_http_service(name);
        }
        Change::RequestPolicy(policy) => {
            resources.put_request_policy(policy);
        }
        Change::RemoveRequestPolicy(name) => {
            resources.remove_request_policy(name);
        }
        Change::Certificate(certificate) => {
            resources.put_certificate(certificate);
        }
        Change::RemoveCertificate(name) => {
            resources.remove_certificate(name);
        }
        Change::Gateway(gateway) => {
            resources.put_gateway(gateway);
        }
        Change::RemoveGateway(name) => {
            resources.remove_gateway(name);
        }
        Change::GatewayRoute(route) => {
            resources.put_gateway_route(route);
        }
        Change::UnreadableGatewayRoute(name) | Change::RemoveGatewayRoute(name) => {
            resources.remove_gateway_route(name);
        }
    }
}
