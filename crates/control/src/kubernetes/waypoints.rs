//! Makes the objects of waypoints and of gateways at the edge in a cluster, and says in their
//! Gateways' status how they are.
//!
//! Each Gateway of our classes has a ServiceAccount, a Service, a Deployment and a
//! PodDisruptionBudget of its own, written by server-side apply under a field manager of its own:
//! fields of others, such as the number of replicas, stay theirs. They belong to the Gateway, so
//! the cluster deletes them with it. Patches change them before they are written
//! ([`parameters`](super::parameters)). An object of that name which is somebody else's is never
//! touched. Only the leader writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ambit_manifest::gateway::listeners::runs;
use ambit_manifest::gateway::{Gateway, Position};
use ambit_manifest::waypoint::parameters;
use ambit_manifest::waypoint::{self, Common, Made, Place, attached_sets};
use ambit_manifest::{Kind, ObjectName};
use ambit_model::Text;
use ambit_model::names::ServiceName;
use ambit_net::drain::Guard;
use ambit_words::kinds::HORIZONTAL_POD_AUTOSCALER as AUTOSCALER;
use ambit_words::{error_chain, names, ports};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::acme;
use super::listener_sets::{Sets, Told};
use super::merged::Edition;
use super::parameters::Parameters;
use super::{ApiError, answer, classes};
use crate::registry::kubernetes::istio;
use crate::view_builder::edge::Edge;
use crate::view_builder::{Builder, Mesh};
use crate::world::World;

/// The field manager of what is made for Gateways.
const MANAGER: &str = "ambit-gateways";
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(500);
/// Pause after something could not be written.
const RETRY: Duration = Duration::from_secs(5);
/// How often objects are written again that nobody watches: a deleted one comes back.
const AGAIN: Duration = Duration::from_secs(60);
/// The same while the cluster has no Gateway API: who installs it looks for the classes next.
const AGAIN_WITHOUT_KIND: Duration = Duration::from_secs(10);

/// What waypoints of a cluster have in common.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Their image; none where control was not told one.
    pub(crate) image: Option<String>,
    /// When it is pulled.
    pub(crate) pull_policy: Option<String>,
    /// What names the mesh.
    pub(crate) mesh: Mesh,
}

/// Makes waypoints.
pub(crate) struct Waypoints {
    pub(crate) client: Client,
    pub(crate) world: Arc<World>,
    pub(crate) leads: watch::Receiver<bool>,
    /// What becomes of certificates.
    pub(crate) certificates: watch::Receiver<acme::Told>,
    pub(crate) settings: Settings,
}

/// A Gateway that is to be served.
struct Asked {
    name: ObjectName,
    gateway: Arc<Gateway>,
    position: Position,
    /// What adds listeners to it.
    sets: Sets,
    /// What is known of its Service, pods and routes.
    found: Made,
}

/// What was written for a Gateway.
struct Written {
    objects: Vec<Value>,
    at: Instant,
    problem: Option<String>,
    told: Option<(Edition, Made)>,
}

/// What was written so far.
#[derive(Default)]
struct Memory {
    gateways: BTreeMap<ObjectName, Written>,
    /// The classes that were looked at.
    classes: BTreeMap<Text, Edition>,
    sets: Told,
    /// When the classes are looked at again.
    classes_due: Option<Instant>,
    parameters: Parameters,
}

impl Memory {
    /// When there is something to do though nothing changes.
    fn due(&self) -> tokio::time::Instant {
        let latest = Instant::now() + AGAIN;
        let dues = [self.classes_due, self.parameters.due()];
        dues.into_iter().flatten().fold(latest, Instant::min)
    }
}

impl Waypoints {
    /// Keeps waypoints as their Gateways ask, while this replica leads, until asked to drain.
    pub(crate) async fn run(mut self, mut guard: Guard) {
        let mut objects = self.world.objects();
        let mut memory = Memory::default();
        let mut has_failed = false;
        loop {
            objects.mark_unchanged();
            self.certificates.mark_unchanged();
            let leads = *self.leads.borrow_and_update();
            let written = if leads { self.step(&mut memory).await } else { Ok(()) };
            if !leads {
                memory = Memory::default();
            }
            let pause = match written {
                Ok(()) => {
                    has_failed = false;
                    PAUSE
                }
                Err(error) => {
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::error!(
                            error = error_chain(&error),
                            "the objects of Gateways are not written"
                        );
                    }
                    RETRY
                }
            };
            tokio::select! {
                _ = guard.draining() => return,
                () = tokio::time::sleep(pause) => {}
            }
            if !has_failed {
                tokio::select! {
                    _ = guard.draining() => return,
                    changed = objects.changed() => if changed.is_err() { return },
                    changed = self.leads.changed() => if changed.is_err() { return },
                    Ok(()) = self.certificates.changed() => {}
                    () = tokio::time::sleep_until(memory.due()) => {}
                }
            }
        }
    }

    /// One look at all Gateways.
    async fn step(&self, memory: &mut Memory) -> Result<(), ApiError> {
        let classes = self.classes();
        let stands_in = self.settings.mesh.stands_in;
        let is_due = memory.classes_due.is_none_or(|due| due <= Instant::now());
        if is_due || memory.classes != classes {
            let names = classes.keys().map(|name| &**name);
            let is_there = classes::write(&self.client, MANAGER, stands_in, names).await?;
            memory.classes = classes;
            let pause = if is_there { AGAIN } else { AGAIN_WITHOUT_KIND };
            memory.classes_due = Some(Instant::now() + pause);
        }
        let asked = self.asked();
        let orphans = memory.sets.orphans(self.world.read().store());
        memory.gateways.retain(|name, _| asked.iter().any(|it| it.name == *name));
        memory.sets.retain(asked.iter().map(|it| &it.sets));
        let gateways = asked.iter().map(|it| (&it.name, &*it.gateway));
        let root_namespace = &self.settings.mesh.root_namespace;
        memory.parameters.look(&self.client, root_namespace, gateways).await?;
        for asked in asked {
            if !*self.leads.borrow() {
                return Ok(());
            }
            let written = memory.gateways.remove(&asked.name);
            let built = self.objects(&asked, &memory.parameters);
            match self.serve(&asked, built, written).await {
                Ok(written) => {
                    self.tell_sets(&asked, &written, &mut memory.sets).await?;
                    memory.gateways.insert(asked.name, written);
                }
                // It is gone, or changes just now: then it is looked at again.
                Err(error)
                    if error.is_not_found()
                        || error.is_conflict()
                        || error.is_ending_namespace() => {}
                Err(error) => return Err(error),
            }
        }
        orphans.tell(&self.client, MANAGER).await
    }

    /// The classes of our controllers.
    fn classes(&self) -> BTreeMap<Text, Edition> {
        let builder = self.world.read();
        let stands_in = builder.mesh().stands_in;
        let all = builder.store().gateways().classes();
        let ours =
            all.filter(|(_, class)| classes::is_ours(&class.spec.controller_name, stands_in));
        ours.map(|(name, class)| (name.clone(), Edition::of(&class.metadata))).collect()
    }

    /// The Gateways of our classes, each with what the view knows of its Service.
    fn asked(&self) -> Vec<Asked> {
        let builder = self.world.read();
        let store = builder.store();
        let gateways = store.gateways();
        let asked = gateways.iter().filter_map(|(name, gateway)| {
            let position = gateways.position(&gateway.spec.gateway_class_name)?;
            let key = gateways.service_of(builder.mesh(), name);
            let endpoints = builder.view().endpoints(&key);
            let edge = Edge::find(store, name);
            let mut found = Made {
                addresses: addresses(&builder, &key),
                ready: endpoints.map_or(0, |all| all.iter().filter(|it| it.healthy).count()),
                wanted: endpoints.map_or(0, |all| all.len()),
                unresolved: edge.as_ref().and_then(|edge| edge.unresolved(store)),
                listeners: edge.as_ref().map(|edge| edge.made(store)).unwrap_or_default(),
                ..Made::default()
            };
            if let Some(edge) = &edge {
                acme::explain(edge, (name, &**gateway), &self.certificates.borrow(), &mut found);
            }
            found.sets = edge.map_or(0, |edge| attached_sets(edge.listeners(), &found));
            let sets = Sets::of(store, name, gateway, position);
            Some(Asked { name: name.clone(), gateway: gateway.clone(), position, sets, found })
        });
        asked.collect()
    }

    async fn serve(
        &self,
        asked: &Asked,
        built: Result<Vec<Value>, String>,
        before: Option<Written>,
    ) -> Result<Written, ApiError> {
        let told = before.as_ref().and_then(|before| before.told.clone());
        // Of what cannot be built, what is there stays.
        let (objects, wrong_parameters) = match built {
            Ok(objects) => (Some(objects), None),
            Err(what) => (None, Some(what)),
        };
        let mut written = match (objects, before) {
            (None, Some(before)) => before,
            (None, None) => {
                Written { objects: Vec::new(), at: Instant::now(), problem: None, told }
            }
            (Some(objects), Some(before))
                if before.objects == objects && before.at.elapsed() < AGAIN =>
            {
                before
            }
            (Some(objects), _) => {
                let problem = self.apply(asked, &objects).await?;
                Written { objects, at: Instant::now(), problem, told }
            }
        };
        let problem = written.problem.clone();
        let made = Made { problem, wrong_parameters, ..asked.found.clone() };
        let edition = Edition::of(&asked.gateway.metadata);
        if written.told.as_ref() != Some(&(edition.clone(), made.clone())) {
            self.tell(asked, &made).await?;
            written.told = Some((edition, made));
        }
        Ok(written)
    }

    /// What a Gateway asks for: nothing if it is not accepted, or without an image. An error says
    /// what is wrong with its patches.
    fn objects(&self, asked: &Asked, known: &Parameters) -> Result<Vec<Value>, String> {
        let Asked { name, gateway, position, .. } = asked;
        let image = self.settings.image.as_ref().filter(|_| runs(&gateway.spec, *position));
        let Some(image) = image else { return Ok(Vec::new()) };
        let mesh = &self.settings.mesh;
        let control =
            format!("https://{}.{}.svc:{}", names::CONTROL, mesh.root_namespace, ports::XDS);
        let common = Common {
            position: *position,
            sets: &asked.sets.taken(),
            image,
            place: Place::Cluster { pull_policy: self.settings.pull_policy.as_deref() },
            control: &control,
            control_host: None,
            trust_domain: &mesh.trust_domain,
            cluster_id: &mesh.cluster_id,
        };
        parameters::objects(gateway, &common, &known.of(name, gateway)?)
    }

    /// Writes the objects of a Gateway; answers why that cannot be, for its author to correct.
    async fn apply(&self, asked: &Asked, objects: &[Value]) -> Result<Option<String>, ApiError> {
        let Asked { name, gateway, position, .. } = asked;
        if self.settings.image.is_none() {
            let problem =
                "control was started without --waypoint-image: no pod runs for the Gateway";
            return Ok(Some(problem.to_owned()));
        }
        let uid = gateway.metadata.uid.as_ref();
        let is_foreign = |there: &DynamicObject| {
            let mut owners = there.metadata.owner_references.iter().flatten();
            !owners.any(|owner| Some(&owner.uid) == uid)
        };
        let mut wanted = Vec::new();
        for object in objects {
            let there = answer(self.api(name, object).get_opt(name_of(object))).await?;
            if there.as_ref().is_none_or(|there| !is_foreign(there)) {
                wanted.push(object);
                continue;
            }
            let kind = object["kind"].as_str().unwrap_or_default();
            if kind == "ServiceAccount" && waypoint::names(gateway, *position).is_account_given {
                continue;
            }
            return Ok(Some(format!(
                "{kind} {}/{} is there already and is not this Gateway's; delete it, or rename the \
                 Gateway",
                name.namespace,
                name_of(object)
            )));
        }
        let as_us = PatchParams::apply(MANAGER).force();
        for object in wanted {
            let api = self.api(name, object);
            match answer(api.patch(name_of(object), &as_us, &Patch::Apply(object))).await {
                Ok(_) => {}
                // Trying again does not help: a quota, a policy of the cluster.
                Err(ApiError::Refused(status)) if !status.is_conflict() => {
                    let kind = object["kind"].as_str().unwrap_or_default();
                    return Ok(Some(format!("the cluster refuses its {kind}: {}", status.message)));
                }
                Err(error) => return Err(error),
            }
        }
        let is_scaled = objects.iter().any(|it| it["kind"] == AUTOSCALER);
        if !objects.is_empty() && !is_scaled {
            self.remove_autoscaler(asked, is_foreign).await?;
        }
        Ok(None)
    }

    /// Removes the autoscaler that patches no longer ask for.
    async fn remove_autoscaler(
        &self,
        asked: &Asked,
        is_foreign: impl Fn(&DynamicObject) -> bool,
    ) -> Result<(), ApiError> {
        let named = waypoint::names(&asked.gateway, asked.position).objects;
        let object = json!({"apiVersion": "autoscaling/v2", "kind": AUTOSCALER});
        let api = self.api(&asked.name, &object);
        let Some(there) = answer(api.get_opt(&named)).await? else { return Ok(()) };
        if is_foreign(&there) {
            return Ok(());
        }
        match answer(api.delete(&named, &DeleteParams::default())).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    fn api(&self, name: &ObjectName, object: &Value) -> Api<DynamicObject> {
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        let (group, version) = match text("apiVersion").split_once('/') {
            Some(parts) => parts,
            None => ("", text("apiVersion")),
        };
        let kind = GroupVersionKind::gvk(group, version, text("kind"));
        let plural = format!("{}s", text("kind").to_lowercase());
        let resource = ApiResource::from_gvk_with_plural(&kind, &plural);
        Api::namespaced_with(self.client.clone(), &name.namespace, &resource)
    }

    /// Writes the status of the ListenerSets that name a Gateway.
    async fn tell_sets(
        &self,
        asked: &Asked,
        written: &Written,
        told: &mut Told,
    ) -> Result<(), ApiError> {
        let Some((_, made)) = &written.told else { return Ok(()) };
        let of = (&*asked.gateway, asked.position, made);
        asked.sets.tell(&self.client, MANAGER, of, told).await
    }

    /// Writes a Gateway's status.
    async fn tell(&self, asked: &Asked, made: &Made) -> Result<(), ApiError> {
        let Asked { name, gateway, position, .. } = asked;
        let client = self.client.clone();
        let gateways: Api<DynamicObject> =
            Api::namespaced_with(client, &name.namespace, &istio(Kind::Gateway));
        let Some(object) = answer(gateways.get_opt(&name.name)).await? else { return Ok(()) };
        if object.metadata.uid != gateway.metadata.uid {
            return Ok(());
        }
        // Others have conditions there too: those of this moment are kept.
        let before = object.data.get("status").cloned();
        let status = waypoint::status(
            &Gateway { status: before.clone(), ..(**gateway).clone() },
            *position,
            made,
            &Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        );
        if before.as_ref() == Some(&status) {
            return Ok(());
        }
        let version = object.metadata.resource_version;
        let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
        let as_us =
            PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        answer(gateways.patch_status(&name.name, &as_us, &Patch::Merge(&patch))).await?;
        Ok(())
    }
}

/// The addresses of the Service in front of a Gateway's pods: those that a load balancer gave it,
/// if it asks for one.
fn addresses(builder: &Builder, key: &ServiceName) -> Vec<String> {
    let service = builder.store().kubernetes_service(builder.mesh(), key);
    let service = service.map(|(_, record)| &*record.object);
    let is_balanced =
        |it: &&Service| it.spec.as_ref().and_then(|it| it.type_.as_deref()) == Some("LoadBalancer");
    if let Some(balanced) = service.filter(is_balanced) {
        let balancer = balanced.status.as_ref().and_then(|it| it.load_balancer.as_ref());
        let given = balancer.iter().flat_map(|it| it.ingress.iter().flatten());
        return given.filter_map(|it| it.ip.clone().or_else(|| it.hostname.clone())).collect();
    }
    let service = builder.view().service(key);
    let addresses = service.iter().flat_map(|service| &service.addresses);
    addresses.map(|address| address.address.ip.to_string()).collect()
}

fn name_of(object: &Value) -> &str {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fake::FakeApi;
    use crate::metrics::Metrics;
    use crate::registry::Registry;
    use crate::view_builder::Vips;

    const GATEWAY: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/shop/gateways/way";
    const ACCOUNT: &str = "/api/v1/namespaces/shop/serviceaccounts/way";
    const SERVICE: &str = "/api/v1/namespaces/shop/services/way";
    const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/shop/deployments/way";
    const BUDGET: &str = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/way";

    fn gateway(protocol: &str) -> Value {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"generation": 1},
            "spec": {"gatewayClassName": "istio-waypoint",
                "listeners": [{"name": "mesh", "protocol": protocol, "port": 15008}]},
            "status": {"conditions": [{"type": "Other", "status": "True"}]},
        })
    }

    /// What a leader that starts now makes of the cluster.
    async fn step(api: &FakeApi, image: Option<&str>, memory: &mut Memory) -> Waypoints {
        step_of(Mesh::sample(), api, image, memory).await
    }

    async fn step_of(
        mesh: Mesh,
        api: &FakeApi,
        image: Option<&str>,
        memory: &mut Memory,
    ) -> Waypoints {
        let path = std::env::temp_dir().join("ambit-waypoints-none");
        let metrics = Arc::new(Metrics::new());
        let world = World::new(mesh.clone(), Vips::default(), path, metrics);
        let mut registry = Registry::kubernetes(&api.client(), "istio-system");
        registry.load(|events| world.apply(events)).await.unwrap();
        let settings = Settings { image: image.map(str::to_owned), pull_policy: None, mesh };
        let leads = watch::channel(true).1;
        let waypoints = Waypoints {
            client: api.client(),
            world: Arc::new(world),
            leads,
            certificates: watch::channel(acme::Told::new()).1,
            settings,
        };
        waypoints.step(memory).await.unwrap();
        waypoints
    }

    fn condition(api: &FakeApi, kind: &str) -> [String; 3] {
        let gateway = api.get(GATEWAY).unwrap();
        let all = gateway["status"]["conditions"].as_array().unwrap();
        assert!(all.iter().any(|it| it["type"] == "Other"), "those of others stay: {all:?}");
        let of = all.iter().find(|it| it["type"] == kind).unwrap();
        ["status", "reason", "message"].map(|field| of[field].as_str().unwrap().to_owned())
    }

    #[tokio::test]
    async fn a_gateway_has_its_objects_and_says_how_they_are() {
        let api = FakeApi::default();
        api.put(GATEWAY, gateway("HBONE"));
        let mut memory = Memory::default();
        step(&api, Some("ambit:1"), &mut memory).await;
        for path in [ACCOUNT, SERVICE, DEPLOYMENT, BUDGET] {
            let made = api.get(path).unwrap_or_else(|| panic!("no {path}"));
            assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "uid-way", "{path}");
        }
        let deployment = api.get(DEPLOYMENT).unwrap();
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], "ambit:1");
        let environment = container["env"].as_array().unwrap();
        let control =
            json!({"name": "CA_ADDRESS", "value": "https://istiod.istio-system.svc:15012"});
        assert!(environment.contains(&control), "{environment:?}");
        assert_eq!(condition(&api, "Accepted")[..2], ["True", "Accepted"]);
        assert_eq!(condition(&api, "Programmed")[..2], ["False", "AddressNotAssigned"]);
        let patches = api.count("PATCH");
        let mut service = api.get(SERVICE).unwrap();
        service["spec"]["clusterIP"] = json!("10.96.0.7");
        api.put(SERVICE, service);
        step(&api, Some("ambit:1"), &mut memory).await;
        assert_eq!(condition(&api, "Programmed")[..2], ["False", "AddressNotUsable"]);
        let address = &api.get(GATEWAY).unwrap()["status"]["addresses"][0]["value"];
        assert_eq!(address, "10.96.0.7");
        assert_eq!(api.count("PATCH"), patches + 1, "only the status is written again");
        step(&api, Some("ambit:1"), &mut memory).await;
        assert_eq!(api.count("PATCH"), patches + 1, "what is as it should be is left alone");
    }

    #[tokio::test]
    async fn objects_of_others_are_not_touched() {
        let api = FakeApi::default();
        api.put(GATEWAY, gateway("HBONE"));
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {}, "spec": {}});
        api.put(SERVICE, service);
        let before = api.get(SERVICE);
        step(&api, Some("ambit:1"), &mut Memory::default()).await;
        assert_eq!(api.get(SERVICE), before);
        assert_eq!(api.get(ACCOUNT), None, "none is made if not all can be");
        let [status, _, message] = condition(&api, "Programmed");
        assert!(status == "False" && message.contains("Service shop/way"), "{message}");
    }

    #[tokio::test]
    async fn without_an_image_or_a_listener_nothing_is_made() {
        let check = async |protocol: &str, image: Option<&str>, part: &str| {
            let api = FakeApi::default();
            api.put(GATEWAY, gateway(protocol));
            step(&api, image, &mut Memory::default()).await;
            assert_eq!(api.get(DEPLOYMENT), None);
            let told = [condition(&api, "Accepted"), condition(&api, "Programmed")].concat();
            assert!(told.iter().any(|text| text.contains(part)), "{told:?}");
        };
        check("HBONE", None, "--waypoint-image").await;
        check("HTTP", Some("ambit:1"), "UnsupportedProtocol").await;
    }

    #[tokio::test]
    async fn a_gateway_at_the_edge_has_its_objects_its_address_and_its_routes() {
        const OF_EDGE: &str = "/api/v1/namespaces/shop/services/way-ambit";
        let api = FakeApi::default();
        let mut edge = gateway("HTTP");
        edge["spec"]["gatewayClassName"] = json!("ambit");
        edge["spec"]["listeners"][0]["port"] = json!(80);
        api.put(GATEWAY, edge);
        let route = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {}, "spec": {"parentRefs": [{"name": "way"}], "rules": [{}]}});
        api.put("/apis/gateway.networking.k8s.io/v1/namespaces/shop/httproutes/web", route);
        let mut memory = Memory::default();
        step(&api, Some("ambit:1"), &mut memory).await;
        let mut service = api.get(OF_EDGE).expect("a Service");
        assert_eq!((api.get(SERVICE), &service["spec"]["type"]), (None, &json!("LoadBalancer")));
        assert_eq!(condition(&api, "Accepted")[..2], ["True", "Accepted"]);
        assert_eq!(condition(&api, "Programmed")[..2], ["False", "AddressNotAssigned"]);
        let listener = api.get(GATEWAY).unwrap()["status"]["listeners"][0].clone();
        assert_eq!(listener["attachedRoutes"], 1);
        service["spec"]["clusterIP"] = json!("10.96.0.7");
        service["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}});
        api.put(OF_EDGE, service);
        step(&api, Some("ambit:1"), &mut memory).await;
        let addresses = api.get(GATEWAY).unwrap()["status"]["addresses"].clone();
        assert_eq!(addresses, json!([{"type": "IPAddress", "value": "192.0.2.7"}]));
        assert_eq!(condition(&api, "Programmed")[1], "Pending", "no pod is ready");
    }

    #[tokio::test]
    async fn a_listener_set_is_told_how_it_is() {
        const SET: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/shop/listenersets/own";
        const OF_EDGE: &str = "/api/v1/namespaces/shop/services/way-ambit";
        let api = FakeApi::default();
        let mut edge = gateway("HTTP");
        edge["spec"]["gatewayClassName"] = json!("ambit");
        edge["spec"]["listeners"][0]["port"] = json!(80);
        api.put(GATEWAY, edge.clone());
        let set = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
            "metadata": {"generation": 2}, "spec": {"parentRef": {"name": "way"},
                "listeners": [{"name": "alt", "protocol": "HTTP", "port": 8080}]}});
        api.put(SET, set);
        let mut memory = Memory::default();
        let told = |api: &FakeApi| {
            let set = api.get(SET).unwrap();
            let all = set["status"]["conditions"].as_array().unwrap();
            let all = all.iter().map(|it| {
                assert_eq!(it["observedGeneration"], 2);
                it["reason"].as_str().unwrap().to_owned()
            });
            all.collect::<Vec<_>>()
        };
        let ports = |api: &FakeApi| {
            let service = api.get(OF_EDGE).unwrap();
            let all = service["spec"]["ports"].as_array().unwrap();
            all.iter().filter_map(|it| it["port"].as_u64()).collect::<Vec<_>>()
        };
        step(&api, Some("ambit:1"), &mut memory).await;
        assert_eq!(told(&api), ["NotAllowed", "NotAllowed"]);
        assert_eq!(ports(&api), [15_021, 80]);
        assert_eq!(api.get(GATEWAY).unwrap()["status"].get("attachedListenerSets"), None);
        edge["spec"]["allowedListeners"] = json!({"namespaces": {"from": "Same"}});
        edge["status"] = api.get(GATEWAY).unwrap()["status"].clone();
        api.put(GATEWAY, edge);
        step(&api, Some("ambit:1"), &mut memory).await;
        assert_eq!(told(&api), ["Accepted", "ParentNotProgrammed"]);
        assert_eq!(api.get(SET).unwrap()["status"]["listeners"][0]["name"], "alt");
        assert_eq!(ports(&api), [15_021, 80, 8080]);
        assert_eq!(api.get(GATEWAY).unwrap()["status"]["attachedListenerSets"], 1);
        let patches = api.count("PATCH");
        step(&api, Some("ambit:1"), &mut memory).await;
        assert_eq!(api.count("PATCH"), patches, "what is as it should be is left alone");
        api.delete(GATEWAY);
        step(&api, Some("ambit:1"), &mut memory).await;
        assert_eq!(told(&api), ["ParentNotAccepted", "ParentNotAccepted"]);
    }

    const PATCHES: &str = "/api/v1/namespaces/shop/configmaps/own";
    const OF_CLASS: &str = "/api/v1/namespaces/istio-system/configmaps/all";
    const AUTOSCALER_PATH: &str =
        "/apis/autoscaling/v2/namespaces/shop/horizontalpodautoscalers/way";

    fn config_map(labels: &Value, key: &str, patch: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"labels": labels},
            "data": {key: patch}})
    }

    #[tokio::test]
    async fn patches_are_followed_and_wrong_ones_change_nothing() {
        let api = FakeApi::default();
        let class = json!({"gateway.istio.io/defaults-for-class": "istio-waypoint"});
        api.put(OF_CLASS, config_map(&class, "deployment", "spec: {replicas: 2}"));
        let mut named = gateway("HBONE");
        let reference = json!({"group": "", "kind": "ConfigMap", "name": "own"});
        named["spec"]["infrastructure"] = json!({"parametersRef": reference});
        api.put(GATEWAY, named);
        let mut memory = Memory::default();
        let mut again = async |api: &FakeApi| {
            memory.parameters = Parameters::default();
            step(api, Some("ambit:1"), &mut memory).await;
        };
        again(&api).await;
        let [status, reason, message] = condition(&api, "Accepted");
        assert_eq!([&*status, &*reason], ["False", "InvalidParameters"], "{message}");
        assert!(message.contains("ConfigMap shop/own does not exist"), "{message}");
        assert_eq!(api.get(DEPLOYMENT), None, "nothing is made without its patches");
        api.put(PATCHES, config_map(&json!({}), "service", "spec: {type: LoadBalancer}"));
        again(&api).await;
        assert_eq!(api.get(SERVICE).unwrap()["spec"]["type"], "LoadBalancer");
        assert_eq!(api.get(DEPLOYMENT).unwrap()["spec"]["replicas"], 2);
        assert_eq!(condition(&api, "Accepted")[..2], ["True", "Accepted"]);
        let before = api.get(DEPLOYMENT);
        api.put(PATCHES, config_map(&json!({}), "deployment", "metadata: {name: other}"));
        again(&api).await;
        assert_eq!(condition(&api, "Accepted")[1], "InvalidParameters");
        assert_eq!(api.get(DEPLOYMENT), before, "what is there stays");
        let scaled = "spec: {minReplicas: 2, maxReplicas: 4}";
        let mut both = config_map(&json!({}), "horizontalPodAutoscaler", scaled);
        both["data"]["deployment"] = json!("spec: {replicas: null}");
        api.put(PATCHES, both);
        again(&api).await;
        assert_eq!(api.get(AUTOSCALER_PATH).unwrap()["spec"]["maxReplicas"], 4);
        api.put(PATCHES, config_map(&json!({}), "service", "spec: {type: ClusterIP}"));
        again(&api).await;
        assert_eq!(api.get(AUTOSCALER_PATH), None, "nobody asks for it any more");
    }

    #[tokio::test]
    async fn an_account_that_a_gateway_names_is_used_as_it_is() {
        let api = FakeApi::default();
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {}});
        let path = "/api/v1/namespaces/shop/serviceaccounts/cloud";
        api.put(path, account);
        let before = api.get(path);
        let mut named = gateway("HBONE");
        named["metadata"]["annotations"] = json!({"gateway.istio.io/service-account": "cloud"});
        api.put(GATEWAY, named);
        step(&api, Some("ambit:1"), &mut Memory::default()).await;
        assert_eq!((api.get(path), api.get(ACCOUNT)), (before, None));
        let pod = api.get(DEPLOYMENT).unwrap()["spec"]["template"]["spec"].clone();
        assert_eq!(pod["serviceAccountName"], "cloud");
    }

    #[tokio::test]
    async fn gateways_of_istios_class_are_served_when_asked() {
        let class = "/apis/gateway.networking.k8s.io/v1/gatewayclasses/istio";
        for stands_in in [false, true] {
            let api = FakeApi::default();
            let mut istios = gateway("HTTP");
            istios["spec"]["gatewayClassName"] = json!("istio");
            istios["spec"]["listeners"][0]["port"] = json!(80);
            api.put(GATEWAY, istios);
            let mesh = Mesh { stands_in, ..Mesh::sample() };
            step_of(mesh, &api, Some("ambit:1"), &mut Memory::default()).await;
            let deployment = api.get("/apis/apps/v1/namespaces/shop/deployments/way-istio");
            assert_eq!((api.get(class).is_some(), deployment.is_some()), (stands_in, stands_in));
        }
    }

    #[tokio::test]
    async fn classes_are_there_and_accepted() {
        let api = FakeApi::default();
        step(&api, None, &mut Memory::default()).await;
        let path = |name: &str| format!("/apis/gateway.networking.k8s.io/v1/gatewayclasses/{name}");
        for (name, controller) in [
            ("ambit-waypoint", "ambit.io/mesh-controller"),
            ("istio-waypoint", "istio.io/mesh-controller"),
            ("ambit", "ambit.io/gateway-controller"),
        ] {
            let class = api.get(&path(name)).unwrap();
            assert_eq!(class["spec"]["controllerName"], controller);
            assert_eq!(class["status"]["conditions"][0]["status"], "True");
        }
        // A class of another controller is that controller's.
        let other = FakeApi::default();
        let class = json!({"spec": {"controllerName": "example.com/other"}});
        other.put(&path("istio-waypoint"), class);
        step(&other, None, &mut Memory::default()).await;
        assert_eq!(other.get(&path("istio-waypoint")).unwrap().get("status"), None);
        let without = FakeApi::default();
        without.know("gateway.networking.k8s.io/v1/gatewayclasses", false);
        without.know("gateway.networking.k8s.io/v1/gateways", false);
        let mut memory = Memory::default();
        step(&without, None, &mut memory).await;
        // They are made soon after the definitions are installed.
        assert!(memory.classes_due.unwrap() <= Instant::now() + AGAIN_WITHOUT_KIND);
        memory.classes_due = None;
        without.know("gateway.networking.k8s.io/v1/gatewayclasses", true);
        step(&without, None, &mut memory).await;
        assert!(without.get(&path("istio-waypoint")).is_some());
        assert!(memory.classes_due.unwrap() > Instant::now() + AGAIN_WITHOUT_KIND);
    }
}
