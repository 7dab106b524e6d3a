//! Reads the ConfigMaps and ClusterTrustBundles with roots that Gateways at the edge and
//! BackendTLSPolicies name.
//!
//! They are few and change seldom, so nobody watches the ConfigMaps of a cluster: those that are
//! named are read again every [`AGAIN`], and at once when another one is named. Every
//! replica reads them, for each serves gateways. While the API server is away, what is known stays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ambit_manifest::gateway::{TRUST_BUNDLE, TRUST_BUNDLE_GROUP};
use ambit_manifest::{Kind, ObjectKey, ObjectName, Typed};
use ambit_net::drain::Guard;
use ambit_words::error_chain;
use ambit_words::secrets::ROOTS_KEY;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use tokio::time::sleep;

use super::{ApiError, answer};
use crate::registry::Event;
use crate::world::World;

/// Versions of ClusterTrustBundle, the newest first.
const BUNDLE_VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
/// Its plural.
const BUNDLES: &str = "clustertrustbundles";
/// How often they are read again.
const AGAIN: Duration = Duration::from_secs(10);
/// Pause after a look, however many objects change.
const PAUSE: Duration = Duration::from_millis(500);

/// Reads ConfigMaps for the view.
pub(crate) struct ClientRootMaps {
    pub(crate) client: Client,
    pub(crate) world: Arc<World>,
}

/// The roots of each object that was read; `None` for one without.
type Known = BTreeMap<ObjectName, Option<String>>;

impl ClientRootMaps {
    /// Reads until asked to drain.
    pub(crate) async fn run(self, mut guard: Guard) {
        let mut objects = self.world.objects();
        let mut known = Known::new();
        let mut has_failed = false;
        loop {
            objects.mark_unchanged();
            let wanted = self.wanted();
            match self.look(&wanted, &mut known).await {
                Ok(()) => has_failed = false,
                Err(error) => {
                    if !std::mem::replace(&mut has_failed, true) {
                        let error = error_chain(&error);
                        tracing::error!(
                            error,
                            "roots of clients and endpoints not read; trying again"
                        );
                    }
                }
            }
            // Its own change of the view wakes it too: without the pause it would never rest.
            tokio::select! {
                _ = guard.draining() => return,
                () = sleep(PAUSE) => {}
            }
            let others = async {
                loop {
                    if objects.changed().await.is_err() || self.wanted() != wanted {
                        return;
                    }
                }
            };
            tokio::select! {
                _ = guard.draining() => return,
                () = sleep(AGAIN) => {}
                () = others => {}
            }
        }
    }

    /// What is named now.
    fn wanted(&self) -> BTreeSet<ObjectName> {
        let builder = self.world.read();
        builder.store().named_root_maps(builder.mesh())
    }

    /// Reads the objects that are wanted, and puts those that changed into the view.
    async fn look(&self, wanted: &BTreeSet<ObjectName>, known: &mut Known) -> Result<(), ApiError> {
        let mut events = Vec::new();
        let dropped: Vec<ObjectName> =
            known.keys().filter(|name| !wanted.contains(name)).cloned().collect();
        for name in dropped {
            known.remove(&name);
            events.push(deleted(&name));
        }
        let mut result = Ok(());
        for name in wanted {
            let roots = match self.read(name).await {
                Ok(roots) => roots,
                // What is known of it stays, and the others are read.
                Err(error) => {
                    result = Err(error);
                    continue;
                }
            };
            if roots.as_ref() == known.get(name) {
                continue;
            }
            match roots {
                Some(roots) => {
                    events.push(put(name, roots.clone()));
                    known.insert(name.clone(), roots);
                }
                None => {
                    known.remove(name);
                    events.push(deleted(name));
                }
            }
        }
        if !events.is_empty() {
            self.world.apply(events);
        }
        result
    }

    /// The roots of an object, if it has any; `None` if it is not there.
    async fn read(&self, name: &ObjectName) -> Result<Option<Option<String>>, ApiError> {
        if !name.namespace.is_empty() {
            let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &name.namespace);
            let found = answer(maps.get_opt(&name.name)).await?;
            return Ok(found.map(|map| map.data.and_then(|mut data| data.remove(ROOTS_KEY))));
        }
        // A cluster may have the kind in one of these versions, or not at all.
        for version in BUNDLE_VERSIONS {
            let kind = GroupVersionKind::gvk(TRUST_BUNDLE_GROUP, version, TRUST_BUNDLE);
            let resource = ApiResource::from_gvk_with_plural(&kind, BUNDLES);
            let bundles: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
            if let Some(bundle) = answer(bundles.get_opt(&name.name)).await? {
                return Ok(Some(of_bundle(&bundle)));
            }
        }
        Ok(None)
    }
}

/// What a bundle holds.
fn of_bundle(bundle: &DynamicObject) -> Option<String> {
    bundle.data.pointer("/spec/trustBundle")?.as_str().map(str::to_owned)
}

fn put(name: &ObjectName, roots: Option<String>) -> Event {
    let metadata = ObjectMeta {
        namespace: Some(name.namespace.to_string()),
        name: Some(name.name.to_string()),
        ..ObjectMeta::default()
    };
    let data = roots.map(|roots| BTreeMap::from([(ROOTS_KEY.to_owned(), roots)]));
    Event::Put(Typed::ConfigMap(Arc::new(ConfigMap { metadata, data, ..ConfigMap::default() })))
}

fn deleted(name: &ObjectName) -> Event {
    Event::Delete(ObjectKey::new(Kind::ConfigMap, &name.namespace, &name.name))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kubernetes::fake::FakeApi;
    use crate::metrics::Metrics;
    use crate::view_builder::{Mesh, Vips};

    #[tokio::test]
    async fn roots_are_read_from_maps_and_from_bundles_of_any_version() {
        let api = FakeApi::default();
        let (file, metrics) = (std::env::temp_dir().join("none"), Arc::new(Metrics::new()));
        let world = World::new(Mesh::sample(), Vips::default(), file, metrics);
        let maps = ClientRootMaps { client: api.client(), world: Arc::new(world) };
        let bundle = |version: &str, name: &str| {
            format!("/apis/certificates.k8s.io/{version}/clustertrustbundles/{name}")
        };
        let held = json!({"metadata": {}, "spec": {"trustBundle": "roots"}});
        api.put(&bundle("v1", "newest"), held.clone());
        api.put(&bundle("v1beta1", "new"), held);
        api.put(&bundle("v1alpha1", "odd"), json!({"metadata": {}, "spec": {}}));
        let map = |data: Value| json!({"metadata": {}, "data": data});
        api.put("/api/v1/namespaces/shop/configmaps/ca", map(json!({"ca.crt": "map"})));
        let check = async |namespace: &str, name: &str, expected: Option<Option<&str>>| {
            let read = maps.read(&ObjectName::new(namespace, name)).await.expect("it answers");
            assert_eq!(read, expected.map(|it| it.map(str::to_owned)), "{namespace}/{name}");
        };
        check("", "newest", Some(Some("roots"))).await;
        check("", "new", Some(Some("roots"))).await;
        check("", "odd", Some(None)).await;
        check("", "none", None).await;
        check("", "ca", None).await;
        check("shop", "ca", Some(Some("map"))).await;
        check("shop", "none", None).await;
    }
}
