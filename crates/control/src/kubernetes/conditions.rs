//! Writes the state of each policy, route and traffic resource where its author looks.
//!
//! Conditions `ZtunnelAccepted` and `WaypointAccepted` in the object's status, as istiod writes
//! them, and an Event of type Warning when a policy is not enforced as written. A
//! PeerAuthentication gets one only when it cannot be read, and from then on it is kept up to date.
//! VirtualServices, DestinationRules and Telemetry get [`HONOURED`]. Only the leader writes, and
//! only what changed; conditions of other types are left unchanged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ambit_manifest::Kind;
use ambit_manifest::ObjectName;
use ambit_manifest::honoured::{self, HONOURED};
use ambit_manifest::istio::AuthorizationPolicy;
use ambit_manifest::policy::{self, StatusCondition, WAYPOINT_ACCEPTED};
use ambit_manifest::remarks::Remark;
use ambit_net::drain::Guard;
use ambit_words::error_chain;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::bindings::{self, Bindings};
use super::merged::{Edition, merged, newly_false, now};
use super::route_status::{self, RouteVerdict};
use super::{ApiError, FIELD_MANAGER, answer};
use crate::attached::{self, Fronted};
use crate::jwks::state::{self as keys, KEYS_FETCHED};
use crate::registry::kubernetes::istio;
use crate::view_builder::Builder;
use crate::view_builder::routes::RouteName;
use crate::world::World;

/// The condition's type; istiod's for the same.
const TYPE: &str = "ZtunnelAccepted";
/// Pause between two looks: policies change seldom, pods all the time.
const PAUSE: Duration = Duration::from_millis(500);
/// Pause after something could not be written.
const RETRY: Duration = Duration::from_secs(5);
/// Longest note of an Event, by the API's rules.
const NOTE_SIZE_MAX_BYTES: usize = 1024;

/// What is reported about a policy: which it is, and the conditions.
type Verdict = (Edition, Vec<StatusCondition>);
/// Of which object.
type Named = (Kind, ObjectName);

/// What this replica has written since it leads.
#[derive(Default)]
struct Written {
    policies: BTreeMap<Named, Verdict>,
    routes: BTreeMap<RouteName, RouteVerdict>,
    /// None until it is looked up.
    bindings: Option<Bindings>,
}

/// Writes conditions and Events.
pub(crate) struct Conditions {
    pub(crate) client: Client,
    pub(crate) world: Arc<World>,
    pub(crate) leads: watch::Receiver<bool>,
    /// The name of the reporting instance in Events.
    pub(crate) instance: String,
}

impl Conditions {
    /// Keeps conditions as they should be, while this replica leads, until asked to drain.
    pub(crate) async fn run(mut self, mut guard: Guard) {
        let mut objects = self.world.objects();
        let mut written = Written::default();
        let mut has_failed = false;
        loop {
            objects.mark_unchanged();
            let pause = if *self.leads.borrow_and_update() {
                match self.write_changed(&mut written).await {
                    Ok(()) => {
                        has_failed = false;
                        PAUSE
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut has_failed, true) {
                            let error = error_chain(&error);
                            tracing::error!(error, "conditions not written; trying again");
                        }
                        RETRY
                    }
                }
            } else {
                // Another leads and writes: what we wrote may be old.
                written = Written::default();
                PAUSE
            };
            tokio::select! {
                _ = guard.draining() => return,
                () = tokio::time::sleep(pause) => {}
            }
            if has_failed {
                continue;
            }
            tokio::select! {
                _ = guard.draining() => return,
                changed = objects.changed() => if changed.is_err() { return },
                changed = self.leads.changed() => if changed.is_err() { return },
            }
        }
    }

    fn verdicts(&self) -> BTreeMap<Named, Verdict> {
        let builder = self.world.read();
        let (store, fronted) = (builder.store(), Fronted::of(&builder));
        let of_ztunnel =
            |condition: &StatusCondition| StatusCondition { kind: TYPE, ..condition.clone() };
        let policies = store.policies().filter_map(|(name, policy)| {
            let conditions = builder.condition(name).map(of_ztunnel).into_iter();
            let conditions = conditions.chain(of_waypoints(&builder, &fronted, name, policy));
            let edition = Edition::of(&policy.metadata);
            let conditions: Vec<_> = conditions.collect();
            let named = (Kind::AuthorizationPolicy, name.clone());
            (!conditions.is_empty()).then_some((named, (edition, conditions)))
        });
        let modes = store.peer_authentications().map(|(name, policy)| {
            let edition = Edition::of(&policy.metadata);
            let condition = of_ztunnel(&policy::peer_authentication(policy));
            ((Kind::PeerAuthentication, name.clone()), (edition, vec![condition]))
        });
        let tokens = store.request_authentications().map(|(name, object)| {
            let edition = Edition::of(&object.metadata);
            let keys = keys::condition(&store.issuer_keys(object));
            let attached = attached::of_authentication(&builder, &fronted, name, object);
            let conditions = attached.into_iter().chain(keys).collect();
            ((Kind::RequestAuthentication, name.clone()), (edition, conditions))
        });
        let remarked = |kind, name: &ObjectName, metadata: &ObjectMeta, remarks: &[Remark]| {
            let conditions = vec![honoured::condition(remarks)];
            ((kind, name.clone()), (Edition::of(metadata), conditions))
        };
        let rules = store.destination_rules().iter().map(|(name, rule, remarks)| {
            remarked(Kind::DestinationRule, name, &rule.metadata, remarks)
        });
        let services = store.virtual_services().iter().map(|(name, service)| {
            let remarks = builder.virtual_service_remarks(service);
            remarked(Kind::VirtualService, name, &service.metadata, &remarks)
        });
        let telemetries = store.telemetries().map(|(name, object)| {
            let remarks = builder.telemetry_remarks(name);
            remarked(Kind::Telemetry, name, &object.metadata, &remarks)
        });
        let of_istio = rules.chain(services).chain(telemetries);
        policies.chain(modes).chain(tokens).chain(of_istio).collect()
    }

    async fn write_changed(&self, written: &mut Written) -> Result<(), ApiError> {
        self.write_policies(&mut written.policies).await?;
        self.write_routes(&mut written.routes).await?;
        self.write_bindings(&mut written.bindings).await
    }

    async fn write_bindings(&self, written: &mut Option<Bindings>) -> Result<(), ApiError> {
        let bindings = match written {
            Some(bindings) => bindings,
            None => written.insert(bindings::found(&self.client).await?),
        };
        let verdicts = bindings::verdicts(&self.world.read());
        let is_over = |name: &&Named| !verdicts.contains_key(*name);
        let over: Vec<Named> = bindings.keys().filter(is_over).cloned().collect();
        let asked = verdicts.into_iter().map(|(name, verdict)| (name, Some(verdict)));
        for (name, verdict) in asked.chain(over.into_iter().map(|name| (name, None))) {
            let is_told = verdict.is_some() && bindings.get(&name) == Some(&verdict);
            if is_told || !*self.leads.borrow() {
                continue;
            }
            let wanted = verdict.as_deref().unwrap_or_default();
            match bindings::write(&self.client, &name, wanted).await {
                Ok(()) if verdict.is_none() => drop(bindings.remove(&name)),
                Ok(()) => drop(bindings.insert(name, verdict)),
                // It is gone, or was changed meanwhile: then it is looked at again.
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn write_routes(
        &self,
        written: &mut BTreeMap<RouteName, RouteVerdict>,
    ) -> Result<(), ApiError> {
        let (verdicts, stands_in) = {
            let builder = self.world.read();
            (route_status::verdicts(&builder), builder.mesh().stands_in)
        };
        written.retain(|name, _| verdicts.contains_key(name));
        for (name, verdict) in verdicts {
            if written.get(&name) == Some(&verdict) || !*self.leads.borrow() {
                continue;
            }
            match route_status::write(&self.client, &name, &verdict, stands_in).await {
                Ok(()) => {
                    written.insert(name, verdict);
                }
                // It is gone, or was changed meanwhile: then it is looked at again.
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn write_policies(&self, written: &mut BTreeMap<Named, Verdict>) -> Result<(), ApiError> {
        let verdicts = self.verdicts();
        written.retain(|name, _| verdicts.contains_key(name));
        for (name, verdict) in verdicts {
            if written.get(&name) == Some(&verdict) || !*self.leads.borrow() {
                continue;
            }
            match self.write(&name, &verdict).await {
                Ok(()) => {
                    written.insert(name, verdict);
                }
                // It is gone, or was changed meanwhile: then it is looked at again.
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn write(&self, named: &Named, verdict: &Verdict) -> Result<(), ApiError> {
        let (kind, name) = named;
        let resource = istio(*kind);
        let client = self.client.clone();
        let policies: Api<DynamicObject> = Api::namespaced_with(client, &name.namespace, &resource);
        let Some(object) = answer(policies.get_opt(&name.name)).await? else { return Ok(()) };
        let before = object.data.pointer("/status/conditions").and_then(Value::as_array);
        let before = before.cloned().unwrap_or_default();
        let own = own_types(*kind);
        let (edition, conditions) = verdict;
        let is_told = || before.iter().any(|it| own.iter().any(|own| it["type"] == **own));
        let is_well = conditions.iter().all(|it| it.status == "True");
        if *kind == Kind::PeerAuthentication && is_well && !is_told() {
            return Ok(());
        }
        let after = merged(&before, own, conditions, edition.generation, &now());
        let Some(after) = after else { return Ok(()) };
        let patch = json!({
            "metadata": { "resourceVersion": object.metadata.resource_version },
            "status": { "conditions": after },
        });
        let as_us =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        answer(policies.patch_status(&name.name, &as_us, &Patch::Merge(&patch))).await?;
        for condition in newly_false(&before, conditions) {
            self.warn(named, &object.metadata, condition).await?;
        }
        Ok(())
    }

    async fn warn(
        &self,
        (kind, name): &Named,
        object: &ObjectMeta,
        condition: &StatusCondition,
    ) -> Result<(), ApiError> {
        let mut note = condition.message.clone();
        note.truncate(note.floor_char_boundary(NOTE_SIZE_MAX_BYTES));
        let event = Event {
            metadata: ObjectMeta {
                generate_name: Some(format!("{}.", name.name)),
                namespace: Some(name.namespace.to_string()),
                ..ObjectMeta::default()
            },
            type_: Some("Warning".to_owned()),
            reason: Some(condition.reason.to_owned()),
            action: Some("Translate".to_owned()),
            note: Some(note),
            event_time: Some(MicroTime(Timestamp::now())),
            reporting_controller: Some("ambit/control".to_owned()),
            reporting_instance: Some(self.instance.clone()),
            regarding: Some(ObjectReference {
                api_version: Some(kind.api_versions()[0].to_owned()),
                kind: Some(kind.name().to_owned()),
                namespace: Some(name.namespace.to_string()),
                name: Some(name.name.to_string()),
                uid: object.uid.clone(),
                resource_version: object.resource_version.clone(),
                ..ObjectReference::default()
            }),
            ..Event::default()
        };
        let events: Api<Event> = Api::namespaced(self.client.clone(), &name.namespace);
        match answer(events.create(&PostParams::default(), &event)).await {
            Err(error) if !error.is_ending_namespace() => Err(error),
            _ => Ok(()),
        }
    }
}

/// What became of a policy at waypoints. A provider that cannot be asked is told first.
fn of_waypoints(
    builder: &Builder,
    fronted: &Fronted,
    name: &ObjectName,
    policy: &AuthorizationPolicy,
) -> Option<StatusCondition> {
    match builder.provider_condition(policy) {
        Some(provider) if provider.status == "False" => Some(provider),
        provider => attached::of_policy(builder, fronted, name, policy).or(provider),
    }
}

/// The types of the conditions that are written of a kind.
fn own_types(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::AuthorizationPolicy => &[TYPE, WAYPOINT_ACCEPTED],
        Kind::RequestAuthentication => &[WAYPOINT_ACCEPTED, KEYS_FETCHED],
        Kind::DestinationRule | Kind::VirtualService | Kind::Telemetry => &[HONOURED],
        _ => &[TYPE],
    }
}

#[cfg(test)]
mod tests {
    use ambit_net::drain::Drain;
    use tokio::sync::mpsc;

    use super::*;
    use crate::kubernetes::fake::FakeApi;
    use crate::metrics::Metrics;
    use crate::registry::Registry;
    use crate::view_builder::{Mesh, Vips};

    const MODE: &str = "/apis/security.istio.io/v1/namespaces/shop/peerauthentications/own";
    const PATH: &str = "/apis/security.istio.io/v1/namespaces/shop/authorizationpolicies/web";
    const ROUTE: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/shop/httproutes/web";
    const EVENTS: &str = "POST /apis/events.k8s.io/v1/namespaces/shop/events";

    fn policy(generation: i64, operation: &Value) -> Value {
        json!({
            "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": {"generation": generation},
            "spec": {"action": "DENY", "rules": [{"to": [{"operation": operation}]}]},
            "status": {"conditions": [{"type": "Other", "status": "True"}]},
        })
    }

    fn mode(generation: i64, mode: &str) -> Value {
        json!({
            "apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
            "metadata": {"generation": generation}, "spec": {"mtls": {"mode": mode}},
            "status": {"conditions": [{"type": "Other", "status": "True"}]},
        })
    }

    fn own(api: &FakeApi, path: &str) -> Value {
        let object = api.get(path).unwrap();
        let conditions = object["status"]["conditions"].as_array().unwrap().clone();
        assert!(conditions.iter().any(|it| it["type"] == "Other"), "{conditions:?}");
        conditions.into_iter().find(|it| it["type"] == TYPE).unwrap_or_default()
    }

    async fn a_route_says_what_became_of_it(api: &FakeApi) {
        let parents = json!([{"group": "", "kind": "Service", "name": "web"}]);
        let route = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"generation": 7}, "spec": {"parentRefs": parents},
        });
        api.put(ROUTE, route);
        let accepted = || {
            let route = api.get(ROUTE).unwrap();
            route.pointer("/status/parents/0/conditions/0").cloned().unwrap_or_default()
        };
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        while accepted()["observedGeneration"] != 7 {
            assert!(tokio::time::Instant::now() < deadline, "{}", accepted());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(accepted()["reason"], "NoMatchingParent");
    }

    #[tokio::test]
    async fn a_policy_says_what_became_of_it_and_only_the_leader_writes() {
        let api = FakeApi::default();
        api.put(PATH, policy(1, &json!({"methods": ["GET"]})));
        let vips = std::env::temp_dir().join("ambit-conditions-none");
        let metrics = Arc::new(Metrics::new());
        let world = Arc::new(World::new(Mesh::sample(), Vips::default(), vips, metrics));
        let mut registry = Registry::kubernetes(&api.client(), "istio-system");
        registry.load(|events| world.apply(events)).await.unwrap();
        let (sender, mut batches) = mpsc::channel(8);
        let watching = tokio::spawn(registry.run(world.marks(), sender));
        let taking = tokio::spawn({
            let world = world.clone();
            async move {
                while let Some(batch) = batches.recv().await {
                    world.take(batch);
                }
            }
        });
        let (leads, leading) = watch::channel(false);
        let instance = "one".to_owned();
        let conditions = Conditions { client: api.client(), world, leads: leading, instance };
        let drain = Drain::new();
        let task = drain.guard().spawn(conditions.run(drain.guard()));
        let eventually = async |path: &str, generation: i64| {
            let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
            while own(&api, path)["observedGeneration"] != generation {
                assert!(tokio::time::Instant::now() < deadline, "{}", own(&api, path));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            own(&api, path)
        };
        assert_eq!(api.count("PATCH"), 0, "does not lead");
        leads.send_replace(true);
        let condition = eventually(PATH, 1).await;
        assert_eq!(condition["status"], "False", "{condition}");
        assert!(condition["message"].as_str().unwrap().contains("methods"), "{condition}");
        api.put(PATH, policy(2, &json!({"ports": ["80"]})));
        assert_eq!(eventually(PATH, 2).await["status"], "True");
        assert_eq!((api.count("PATCH"), api.count(EVENTS)), (2, 1));
        // Nothing is reported about a PeerAuthentication until it cannot be read.
        api.put(MODE, mode(1, "PERMISSIVE"));
        api.put(MODE, mode(2, "NEWER"));
        let condition = eventually(MODE, 2).await;
        let message = condition["message"].as_str().unwrap();
        assert!(message.contains("NEWER") && message.contains("refused"), "{message}");
        assert_eq!((api.count("PATCH"), api.count(EVENTS)), (3, 2));
        let mut mended = api.get(MODE).unwrap();
        mended["metadata"]["generation"] = json!(3);
        mended["spec"] = json!({"mtls": {"mode": "PERMISSIVE"}});
        api.put(MODE, mended);
        assert_eq!(eventually(MODE, 3).await["status"], "True");
        assert_eq!((api.count("PATCH"), api.count(EVENTS)), (4, 2));
        a_route_says_what_became_of_it(&api).await;
        drain.start(None);
        task.await.unwrap();
        watching.abort();
        taking.abort();
    }
}
