//! Reads the ConfigMaps with roots that Gateways at the edge and BackendTLSPolicies name.
//!
//! They are few and change seldom, so nobody watches the ConfigMaps of a cluster: those that are
//! named are read again every [`AGAIN`], and at once when another one is named. Every
//! replica reads them, for each serves gateways. While the API server is away, what is known stays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ambit_manifest::{Kind, ObjectKey, ObjectName, Typed};
use ambit_net::drain::Guard;
use ambit_words::error_chain;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client};
use tokio::time::sleep;

use super::{ApiError, answer};
use crate::registry::Event;
use crate::view_builder::records::ROOTS_KEY;
use crate::world::World;

/// How often they are read again.
const AGAIN: Duration = Duration::from_secs(10);
/// Pause after a look, however many objects change.
const PAUSE: Duration = Duration::from_millis(500);

/// Reads ConfigMaps for the view.
pub(crate) struct ClientRootMaps {
    pub(crate) client: Client,
    pub(crate) world: Arc<World>,
}

/// The roots of each ConfigMap that was read; `None` for one without.
type Known = BTreeMap<ObjectName, Option<String>>;

impl ClientRootMaps {
    /// Reads until asked to drain.
    pub(crate) async fn run(self, mut guard: Guard) {
        let mut objects = self.world.objects();
        let mut known = Known::new();
        let mut has_failed = false;
        loop {
            objects.mark_unchanged();
            let wanted = self.world.read().store().named_root_maps();
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
                    if objects.changed().await.is_err()
                        || self.world.read().store().named_root_maps() != wanted
                    {
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

    /// Reads the ConfigMaps that are wanted, and puts those that changed into the view.
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
            let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &name.namespace);
            let found = match answer(maps.get_opt(&name.name)).await {
                Ok(found) => found,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            };
            let roots = found.map(|map| map.data.and_then(|mut data| data.remove(ROOTS_KEY)));
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
