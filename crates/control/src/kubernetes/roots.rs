//! Publishes the roots and the revocation list in every namespace, as proxies mount them.
//!
//! ConfigMap `istio-ca-root-cert` (key root-cert.pem), and `istio-ca-crl` (key ca-crl.pem) once
//! anything was revoked. Only the leader writes, only what differs, and not into a namespace that
//! is being deleted. An existing list was signed by a replica that may know more: its entries are
//! taken over before another list is written. Nothing but these two is ever touched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambit_net::drain::Guard;
use ambit_words::error_chain;
use ambit_words::names::ROOT_CONFIG_MAP;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::{ApiError, FIELD_MANAGER, answer};
use crate::ca::CertificateAuthority;
use crate::world::World;

/// What is written: name, key.
const ROOTS: (&str, &str) = (ROOT_CONFIG_MAP, "root-cert.pem");
const LIST: (&str, &str) = ("istio-ca-crl", "ca-crl.pem");
/// How often what is there is compared, though nothing is known to have changed.
const COMPARE_INTERVAL: Duration = Duration::from_secs(60);
/// Pause after something could not be written.
const PAUSE: Duration = Duration::from_secs(5);
/// Writes under way at the same time.
const WRITES_MAX: usize = 8;
/// ConfigMaps in one page of a list: each may have 1 MiB.
const PAGE: u32 = 50;
/// Most different texts of one ConfigMap that are read. There is one, and another while it is
/// replaced; anyone who may write in a namespace can make more.
const TEXTS_MAX: usize = 16;

/// What the ConfigMaps of one name hold.
#[derive(Default)]
struct Known {
    /// The hash of each namespace's text.
    hashes: BTreeMap<String, [u8; 32]>,
    /// The texts by their hashes, as far as they are read.
    texts: BTreeMap<[u8; 32], String>,
}

/// Writes the ConfigMaps.
pub(crate) struct Roots {
    pub(crate) client: Client,
    pub(crate) authority: Arc<CertificateAuthority>,
    pub(crate) world: Arc<World>,
    pub(crate) leads: watch::Receiver<bool>,
}

impl Roots {
    /// Keeps the ConfigMaps as they should be, while this replica leads, until asked to drain.
    pub(crate) async fn run(mut self, mut guard: Guard) {
        let mut objects = self.world.objects();
        let mut authority = self.authority.changes();
        let mut written = BTreeSet::new();
        let mut has_failed = false;
        loop {
            if !*self.leads.borrow_and_update() {
                tokio::select! {
                    _ = guard.draining() => return,
                    changed = self.leads.changed() => if changed.is_err() { return },
                }
                continue;
            }
            authority.mark_unchanged();
            let wrote = self.write_all().await;
            let pause = match &wrote {
                Ok(_) => COMPARE_INTERVAL,
                Err(_) => PAUSE,
            };
            match wrote {
                Ok(namespaces) => {
                    written = namespaces;
                    has_failed = false;
                }
                Err(error) if !has_failed => {
                    has_failed = true;
                    tracing::error!(error = error_chain(&error), "roots not written; trying again");
                }
                Err(_) => {}
            }
            let pause = tokio::time::sleep(pause);
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    _ = guard.draining() => return,
                    changed = self.leads.changed() => if changed.is_err() { return },
                    changed = authority.changed() => if changed.is_err() { return },
                    changed = objects.changed() => {
                        if changed.is_err() { return }
                        // Pods come and go all the time; only a new namespace is news here.
                        if !has_failed && self.namespaces().is_subset(&written) { continue }
                    }
                    () = &mut pause => {}
                }
                break;
            }
            if has_failed {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    fn namespaces(&self) -> BTreeSet<String> {
        let builder = self.world.read();
        let namespaces = builder.store().namespaces().filter(|(_, record)| !record.is_ending);
        namespaces.map(|(name, _)| name.to_string()).collect()
    }

    /// Writes what differs; answers with the namespaces that have it.
    async fn write_all(&self) -> Result<BTreeSet<String>, ApiError> {
        let namespaces = self.namespaces();
        let roots = self.known(ROOTS).await?;
        self.write_where_missing(&namespaces, ROOTS, &self.authority.roots_pem(), &roots).await?;
        let lists = self.known(LIST).await?;
        for published in lists.texts.values() {
            if let Err(error) = self.authority.succeed(published, SystemTime::now()) {
                tracing::error!(
                    error = error_chain(&error),
                    "a list that was published is not followed"
                );
                return Ok(namespaces);
            }
        }
        if let Some(list) = self.authority.crl_pem() {
            self.write_where_missing(&namespaces, LIST, &list, &lists).await?;
        }
        Ok(namespaces)
    }

    async fn write_where_missing(
        &self,
        namespaces: &BTreeSet<String>,
        (name, key): (&str, &str),
        text: &str,
        known: &Known,
    ) -> Result<(), ApiError> {
        let hash: [u8; 32] = Sha256::digest(text).into();
        let missing = namespaces.iter().filter(|it| known.hashes.get(*it) != Some(&hash));
        let writes = missing.map(|namespace| self.write(namespace, name, key, text));
        let writes: Vec<_> = writes.collect();
        let mut writes = futures::stream::iter(writes).buffer_unordered(WRITES_MAX);
        while let Some(written) = writes.next().await {
            written?;
        }
        Ok(())
    }

    /// What each namespace's ConfigMap of this name holds.
    async fn known(&self, (name, key): (&str, &str)) -> Result<Known, ApiError> {
        let maps: Api<ConfigMap> = Api::all(self.client.clone());
        let mut known = Known::default();
        let mut page = ListParams::default().fields(&format!("metadata.name={name}")).limit(PAGE);
        loop {
            let list = answer(maps.list(&page)).await?;
            for map in list.items {
                let text = map.data.and_then(|mut data| data.remove(key));
                let Some((namespace, text)) = map.metadata.namespace.zip(text) else { continue };
                let hash = Sha256::digest(&text).into();
                known.hashes.insert(namespace, hash);
                if known.texts.len() < TEXTS_MAX {
                    known.texts.insert(hash, text);
                }
            }
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page.continue_token = Some(token),
                None => return Ok(known),
            }
        }
    }

    async fn write(
        &self,
        namespace: &str,
        name: &str,
        key: &str,
        text: &str,
    ) -> Result<(), ApiError> {
        if !*self.leads.borrow() {
            return Ok(());
        }
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": name, "labels": { "istio.io/config": "true" } },
            "data": { key: text },
        });
        // By force: the authority's text counts, whichever manager wrote the field before.
        let apply = PatchParams::apply(FIELD_MANAGER).force();
        match answer(maps.patch(name, &apply, &Patch::Apply(&map))).await {
            Ok(_) => {
                tracing::debug!(namespace, name, "written");
                Ok(())
            }
            // It is being deleted, or already gone, and the world has not heard of it yet.
            Err(error) if error.is_ending_namespace() || error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use ambit_net::drain::Drain;
    use ambit_tls::Authority;

    use super::*;
    use crate::ca::Which;
    use crate::kubernetes::fake::FakeApi;
    use crate::metrics::Metrics;
    use crate::registry::Event;
    use crate::view_builder::{Mesh, Vips};
    use ambit_manifest::{Kind, stored};

    fn namespace(name: &str, ending: Option<&str>) -> Event {
        let object = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "deletionTimestamp": ending}});
        Event::Put(stored(Kind::Namespace, object.to_string().as_bytes()).unwrap())
    }

    #[tokio::test]
    async fn every_namespace_has_the_roots_and_only_what_differs_is_written() {
        let api = FakeApi::default();
        let temporary = tempfile::tempdir().unwrap();
        let directory = temporary.path();
        let metrics = Arc::new(Metrics::new());
        let world =
            Arc::new(World::new(Mesh::sample(), Vips::default(), directory.join("vips"), metrics));
        let now = SystemTime::now();
        let root = Authority::generate("cluster.local", now).unwrap();
        let life = Duration::from_secs(600);
        let authority = CertificateAuthority::of_cluster(directory, root, life, now).unwrap();
        let authority = Arc::new(authority);
        world.apply(vec![
            namespace("a", None),
            namespace("b", None),
            namespace("z", Some("2026-01-01T00:00:00Z")),
        ]);
        let path = |namespace: &str, name: &str| {
            format!("/api/v1/namespaces/{namespace}/configmaps/{name}")
        };
        let right = json!({ "data": { "root-cert.pem": authority.roots_pem() } });
        api.put(&path("a", "istio-ca-root-cert"), right);
        let (leads, leading) = watch::channel(false);
        let roots = Roots {
            client: api.client(),
            authority: authority.clone(),
            world: world.clone(),
            leads: leading,
        };
        let drain = Drain::new();
        let task = drain.guard().spawn(roots.run(drain.guard()));
        let eventually = async |what: &str, is_so: &dyn Fn() -> bool| {
            let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
            while !is_so() {
                assert!(tokio::time::Instant::now() < deadline, "{what}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert_eq!(api.count("PATCH"), 0, "does not lead");
        leads.send_replace(true);
        let has = |namespace: &str, name: &str| api.get(&path(namespace, name)).is_some();
        eventually("b", &|| has("b", "istio-ca-root-cert")).await;
        world.apply(vec![namespace("c", None)]);
        eventually("a new namespace", &|| has("c", "istio-ca-root-cert")).await;
        assert_eq!(api.count("PATCH"), 2, "a was right, z is being deleted");
        assert!(!has("a", "istio-ca-crl"), "nothing was revoked");
        authority.revoke(&Which::Serial("01ab".parse().unwrap()), now).unwrap();
        eventually("the list", &|| ["a", "b", "c"].iter().all(|it| has(it, "istio-ca-crl"))).await;
        assert!(!has("z", "istio-ca-root-cert"));
        drain.start(None);
        task.await.unwrap();
    }
}
