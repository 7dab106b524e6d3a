//! Authentication: whether a call comes from a node's proxy, from a waypoint's pod or, in a
//! cluster, from a WorkloadEntry's computer.
//!
//! The token is checked before the body of a call is read, and no other caller is served. The first
//! such call proves the connection: see [`crate::listener`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use ambit_log::{KNOWN, STRANGERS, Throttle};
use ambit_model::Text;
use ambit_words::names::WORKLOAD_ENTRY_METADATA;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::callers::{Caller, CallerError, Callers, SpeaksFor};
use crate::entry_callers::{self, EntryRefusal};
use crate::listener::Remote;
use crate::world::World;

/// Knows the proxies of nodes, the pods of waypoints and the computers of WorkloadEntries.
#[derive(Clone)]
pub(crate) struct Authentication {
    pub(crate) callers: Callers,
    pub(crate) world: Arc<World>,
    /// Namespace and name of the accounts that node proxies have.
    pub(crate) trusted_accounts: Vec<(Text, Text)>,
}

/// Why a call is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// Nobody can say whose it is.
    #[error(transparent)]
    Caller(#[from] CallerError),
    /// The token belongs to another account, its pod is no waypoint's, and no WorkloadEntry is
    /// named.
    #[error(
        "{0} is neither the account of a node proxy (see --trusted-node-accounts) nor that of a \
         waypoint whose pod this is; a workload entry's computer names it in the metadata \
         {WORKLOAD_ENTRY_METADATA}"
    )]
    Untrusted(String),
    /// It is not the computer of the WorkloadEntry that it names.
    #[error(transparent)]
    Entry(#[from] EntryRefusal),
}

impl Refusal {
    /// The status that the caller gets.
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Caller(error) => error.status(),
            Self::Untrusted(_) | Self::Entry(_) => Status::permission_denied(self.to_string()),
        }
    }

    /// Which lines of the log this counts with: those about strangers, or about a caller whose
    /// token is good, or may be. The second must not be hidden by the first.
    pub(crate) fn lines(&self) -> &'static Throttle {
        match self {
            Self::Caller(CallerError::NoToken | CallerError::Own(_) | CallerError::Refused(_)) => {
                &STRANGERS
            }
            _ => &KNOWN,
        }
    }

    /// A word for metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Caller(CallerError::Unknown(_)) => "unavailable",
            Self::Caller(_) => "unauthenticated",
            Self::Untrusted(_) | Self::Entry(_) => "denied",
        }
    }
}

impl Authentication {
    /// The proxy that calls, and with it the proof of its connection.
    pub(crate) async fn caller(
        &self,
        metadata: &MetadataMap,
        remote: Option<&Remote>,
    ) -> Result<Caller, Refusal> {
        let _one_at_a_time = match remote {
            Some(remote) => remote.turn().await,
            None => None,
        };
        let caller = self.judge(metadata, remote.map(|remote| remote.address)).await;
        match (&caller, remote) {
            (Ok(caller), Some(remote)) => remote.prove(caller.connection_owner()),
            // The token could not be verified: that is not the client's fault.
            (Err(Refusal::Caller(CallerError::Unknown(_))), _) | (_, None) => {}
            (Err(_), Some(remote)) => remote.refuse(),
        }
        caller
    }

    async fn judge(
        &self,
        metadata: &MetadataMap,
        from: Option<SocketAddr>,
    ) -> Result<Caller, Refusal> {
        let now = SystemTime::now();
        let caller = self.callers.caller(metadata, from, &self.world, now).await?;
        // Before the account is looked at: a waypoint never speaks for its node, whatever its name.
        if caller.is_waypoint(&self.world) {
            return Ok(Caller { speaks_for: SpeaksFor::Waypoint, ..caller });
        }
        let is_trusted = |(namespace, name): &(Text, Text)| {
            **namespace == *caller.namespace && **name == *caller.service_account
        };
        let is_trusted = self.trusted_accounts.iter().any(is_trusted);
        // Machines sign their own tokens and have no computers of WorkloadEntries.
        let named = match &self.callers {
            Callers::Reviewed(_) => metadata.get(WORKLOAD_ENTRY_METADATA),
            Callers::Own(_) => None,
        };
        // What the token of a pod proves is no matter of metadata.
        if is_trusted
            && caller.speaks_for == SpeaksFor::Node
            && (named.is_none() || caller.pod.is_some())
        {
            return Ok(caller);
        }
        if let Some(named) = named {
            let called = entry_callers::Call { caller, named, is_node_account: is_trusted };
            return Ok(called.judge(&self.world).await?);
        }
        Err(Refusal::Untrusted(caller.subject()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use ambit_manifest::{Kind, stored};
    use base64::Engine as _;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;
    use serde_json::{Value, json};

    use super::*;
    use crate::callers::Reviews;
    use crate::kubernetes::fake::FakeApi;
    use crate::metrics::Metrics;
    use crate::registry::Event;
    use crate::view_builder::{Mesh, Vips};

    /// A token of the cluster that tells this name from others.
    fn token(name: &str) -> String {
        let exp = SystemTime::now() + Duration::from_secs(600);
        let exp = exp.duration_since(UNIX_EPOCH).unwrap().as_secs();
        let body = json!({"aud": ["istio-ca"], "exp": exp, "name": name}).to_string();
        format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(body))
    }

    /// A pod as a kubelet's API server has it.
    fn pod(namespace: &str, name: &str, account: &str, of: &str) -> Value {
        let labels = json!({"gateway.networking.k8s.io/gateway-name": of,
            "gateway.istio.io/managed": "istio.io-mesh-controller", "pod-template-hash": "h"});
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet",
            "name": format!("{of}-h"), "uid": "r", "controller": true});
        json!({
            "metadata": {"namespace": namespace, "name": name, "uid": name, "labels": labels,
                "ownerReferences": [owner]},
            "spec": {"nodeName": "node-1", "serviceAccountName": account, "containers": []},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.9"}]},
        })
    }

    #[tokio::test(start_paused = true)]
    async fn in_a_cluster_a_pod_is_a_waypoint_by_its_gateway_and_its_account() {
        let api = FakeApi::default();
        let path = std::env::temp_dir().join("ambit-authentication-none");
        let metrics = Arc::new(Metrics::new());
        let world = Arc::new(World::new(Mesh::sample(), Vips::default(), path, metrics));
        let put = |kind, object: &Value| {
            Event::Put(stored(kind, object.to_string().as_bytes()).expect("an object"))
        };
        let gateway = |namespace: &str, name: &str| {
            json!({"apiVersion": "", "kind": "Gateway",
                "metadata": {"namespace": namespace, "name": name},
                "spec": {"gatewayClassName": "istio-waypoint",
                    "listeners": [{"name": "mesh", "protocol": "HBONE", "port": 15008}]}})
        };
        world.apply(vec![
            put(Kind::Gateway, &gateway("shop", "way")),
            put(Kind::Gateway, &gateway("istio-system", "ztunnel")),
        ]);
        let callers = Callers::Reviewed(Arc::new(Reviews::new(api.client())));
        let trusted_accounts = vec![("istio-system".into(), "ztunnel".into())];
        let authentication = Authentication { callers, world: world.clone(), trusted_accounts };
        let check = async |namespace: &str, account: &str, of: &str, expected| {
            let name = format!("{namespace}-{account}-{of}");
            world.apply(vec![put(Kind::Pod, &pod(namespace, &name, account, of))]);
            let token = token(&name);
            let user = format!("system:serviceaccount:{namespace}:{account}");
            api.review(
                &token,
                json!({"authenticated": true, "audiences": ["istio-ca"],
                "user": {"username": user, "extra": {
                    "authentication.kubernetes.io/pod-name": [name],
                    "authentication.kubernetes.io/pod-uid": [name]}}}),
            );
            let mut metadata = MetadataMap::new();
            metadata.insert("authorization", format!("Bearer {token}").parse().unwrap());
            let caller = authentication.caller(&metadata, None).await;
            match (caller, expected) {
                (Ok(caller), Some(speaks_for)) => {
                    assert_eq!(caller.speaks_for, speaks_for, "{name}");
                    assert_eq!(caller.node, "node-1");
                }
                (Err(Refusal::Untrusted(_)), None) => {}
                (caller, _) => panic!("{name}: {caller:?}"),
            }
        };
        check("shop", "way", "way", Some(SpeaksFor::Waypoint)).await;
        check("shop", "web", "way", None).await;
        check("shop", "way", "other", None).await;
        check("bank", "way", "way", None).await;
        check("istio-system", "ztunnel", "nothing", Some(SpeaksFor::Node)).await;
        // Not for its node, though the account is that of the node proxies.
        check("istio-system", "ztunnel", "ztunnel", Some(SpeaksFor::Waypoint)).await;
    }
}
