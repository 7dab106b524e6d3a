//! What the Gateways of a machine ask for, and what its Secrets hold.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ambit_machine::objects::ObjectRef;
use ambit_machine::{Client, Expected};
use ambit_manifest::gateway::acme::{Acme, account_secret, wanted, written};
use ambit_manifest::gateway::listeners::judge_all;
use ambit_manifest::gateway::sets::ListenerSet;
use ambit_manifest::gateway::{Gateway, GatewayClass, Position};
use ambit_manifest::{Input, Kind, Typed, Unenforced, waypoint};
use ambit_model::http::gateway::Challenge;
use ambit_tls::service::ServerCertificate;
use ambit_words::annotations::ACME_CHALLENGES;
use ambit_words::labels::ACME;
use ambit_words::secrets::{
    ACCOUNT_KEY, ACCOUNT_TYPE, ROOTS_KEY, SECRET_CHAIN, SECRET_KEY, SECRET_TYPE,
};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use zeroize::Zeroizing;

/// What is read of a machine at one moment.
pub(super) struct Machine {
    /// By kind, namespace and name.
    objects: BTreeMap<(Kind, String, String), Value>,
}

/// A certificate that a Gateway asks for.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) acme: Acme,
    /// Its hosts, or why none is ordered.
    pub(super) hosts: Result<Vec<String>, String>,
    /// The Secret, in the Gateway's namespace.
    pub(super) secret: String,
    pub(super) held: Held,
    /// The account that is kept, with its key.
    pub(super) account: Option<Arc<Zeroizing<String>>>,
    /// Whether the Secret for the account is ours to write.
    pub(super) may_keep_account: bool,
    /// By which the directory is verified besides those of the system, or what is wrong with them.
    pub(super) roots: Result<Option<String>, String>,
    /// Whether a pod of the gateway takes requests.
    pub(super) is_served: bool,
    namespace: String,
    gateway: Gateway,
    /// Its Secret as it was read, and that of the account.
    of_secret: Expected,
    of_account: Expected,
}

/// What a Secret holds.
#[derive(Clone)]
pub(super) enum Held {
    Nothing,
    /// A certificate of somebody else's.
    Foreign,
    /// Something else of somebody else's.
    Unusable,
    /// What was ordered.
    Own(Arc<ServerCertificate>),
}

impl Machine {
    /// Reads all that certificates depend on.
    pub(super) async fn read(client: &Client) -> Result<Self> {
        let kinds = [
            Kind::Namespace,
            Kind::GatewayClass,
            Kind::Gateway,
            Kind::ListenerSet,
            Kind::Service,
            Kind::Deployment,
            Kind::Secret,
            Kind::ConfigMap,
        ];
        let mut objects = BTreeMap::new();
        for kind in kinds {
            for object in client.objects(kind.plural()).await? {
                let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
                objects
                    .insert((kind, text("namespace").to_owned(), text("name").to_owned()), object);
            }
        }
        Ok(Self { objects })
    }

    fn object(&self, kind: Kind, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(kind, namespace.to_owned(), name.to_owned()))
    }

    fn all<T: serde::de::DeserializeOwned>(&self, kind: Kind) -> impl Iterator<Item = T> {
        let all = self.objects.iter().filter(move |((it, ..), _)| *it == kind);
        all.filter_map(|(_, object)| serde_json::from_value(object.clone()).ok())
    }

    /// What its Gateways ask for.
    pub(super) fn asked(&self) -> Vec<Asked> {
        let mut sets: Vec<ListenerSet> = self.all(Kind::ListenerSet).collect();
        sets.sort_by(ListenerSet::order);
        let gateways = self.all::<Gateway>(Kind::Gateway);
        gateways.flat_map(|gateway| self.asked_by(&gateway, &sets)).collect()
    }

    fn asked_by(&self, gateway: &Gateway, sets: &[ListenerSet]) -> Vec<Asked> {
        let class = &gateway.spec.gateway_class_name;
        let of_class = self.object(Kind::GatewayClass, "", class).cloned();
        let of_class = of_class.and_then(|it| serde_json::from_value::<GatewayClass>(it).ok());
        let position = Position::of_class(class, of_class.as_ref().map(|it| &it.spec));
        let Some(Ok(acme)) = Acme::of(gateway).filter(|_| position == Some(Position::Edge)) else {
            return Vec::new();
        };
        let (namespace, name) = named(gateway);
        let taken = sets.iter().filter(|set| {
            let of_set = set.namespaced_name().0;
            let is_taken = gateway.spec.takes_sets_of(namespace, of_set, &self.labels(of_set));
            set.gateway() == Some((namespace, name)) && is_taken
        });
        let judged = judge_all(&gateway.spec, &taken.collect::<Vec<_>>());
        let (account, may_keep_account) = self.account(gateway);
        let ready = self.object(Kind::Deployment, namespace, &objects(gateway));
        let ready = ready.and_then(|it| it.pointer("/status/readyReplicas")?.as_u64());
        let roots = self.roots(namespace, &acme);
        let asked = wanted(gateway, &judged).into_iter().map(|(secret, hosts)| Asked {
            acme: acme.clone(),
            hosts,
            held: self.held(gateway, &secret),
            of_secret: self.expected(Kind::Secret, namespace, &secret),
            of_account: self.expected(Kind::Secret, namespace, &account_name(gateway)),
            secret,
            account: account.clone(),
            may_keep_account,
            roots: roots.clone(),
            is_served: ready.is_some_and(|it| it > 0),
            namespace: namespace.to_owned(),
            gateway: gateway.clone(),
        });
        asked.collect()
    }

    fn labels(&self, namespace: &str) -> BTreeMap<String, String> {
        let labels = self.object(Kind::Namespace, "", namespace);
        let labels = labels.and_then(|it| it.pointer("/metadata/labels")).cloned();
        labels.and_then(|it| serde_json::from_value(it).ok()).unwrap_or_default()
    }

    /// The roots that a Gateway names for its directory.
    fn roots(&self, namespace: &str, acme: &Acme) -> Result<Option<String>, String> {
        let Some(map) = &acme.directory_ca else { return Ok(None) };
        let found = self.object(Kind::ConfigMap, namespace, map);
        let roots = found.and_then(|it| it["data"][ROOTS_KEY].as_str()).map(str::to_owned);
        let missing = || format!("there is no ConfigMap {namespace}/{map} with {ROOTS_KEY}");
        roots.map(Some).ok_or_else(missing)
    }

    /// A text in a Secret, whether it was written in base64 or not.
    fn secret(&self, namespace: &str, name: &str, key: &str) -> Option<Zeroizing<String>> {
        let object = self.object(Kind::Secret, namespace, name)?;
        if let Some(text) = object["stringData"][key].as_str() {
            return Some(text.to_owned().into());
        }
        let typed = ambit_manifest::stored(Kind::Secret, object.to_string().as_bytes()).ok()?;
        let Typed::Secret(secret) = typed else { return None };
        String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok().map(Zeroizing::new)
    }

    /// Whether a Secret is one that was written for this Gateway.
    fn is_own(&self, gateway: &Gateway, secret: &str) -> bool {
        let (namespace, name) = named(gateway);
        let object = self.object(Kind::Secret, namespace, secret);
        object.is_some_and(|it| it["metadata"]["labels"][ACME] == *name)
    }

    fn held(&self, gateway: &Gateway, secret: &str) -> Held {
        let (namespace, _) = named(gateway);
        let Some(object) = self.object(Kind::Secret, namespace, secret) else {
            return Held::Nothing;
        };
        if !self.is_own(gateway, secret) {
            return if object["type"] == SECRET_TYPE { Held::Foreign } else { Held::Unusable };
        }
        let text = |key| self.secret(namespace, secret, key).unwrap_or_default();
        let chain_pem = text(SECRET_CHAIN).to_string();
        Held::Own(Arc::new(ServerCertificate { chain_pem, key_pem: text(SECRET_KEY) }))
    }

    /// The account that is kept, and whether one could be.
    fn account(&self, gateway: &Gateway) -> (Option<Arc<Zeroizing<String>>>, bool) {
        let ((namespace, _), secret) = (named(gateway), account_name(gateway));
        if self.object(Kind::Secret, namespace, &secret).is_none() {
            return (None, true);
        }
        let is_own = self.is_own(gateway, &secret);
        let kept = self.secret(namespace, &secret, ACCOUNT_KEY).filter(|_| is_own);
        (kept.map(Arc::new), is_own)
    }

    /// The Service of a Gateway, with what its pods answer, if it is still as it was read.
    pub(super) fn answering(
        &self,
        asked: &Asked,
        challenges: &[Challenge],
    ) -> Result<(Value, Expected)> {
        let service = objects(&asked.gateway);
        let found = self.object(Kind::Service, &asked.namespace, &service);
        let found = found.with_context(|| {
            format!("there is no Service {}/{service} of the gateway", asked.namespace)
        });
        let mut object = found?.clone();
        object["metadata"]["annotations"][ACME_CHALLENGES] = written(challenges).into();
        let expected = self.expected(Kind::Service, &asked.namespace, &service);
        Ok((object, expected))
    }

    /// Whether a gateway answers a directory.
    pub(super) fn is_answering(&self) -> bool {
        self.answering_services().next().is_some()
    }

    /// The Services of gateways that answer a directory, without what they answer.
    pub(super) fn silent(&self) -> Vec<(Value, Expected)> {
        let silent = self.answering_services().map(|((_, namespace, name), object)| {
            let mut object = object.clone();
            if let Some(Value::Object(all)) = object.pointer_mut("/metadata/annotations") {
                all.remove(ACME_CHALLENGES);
            }
            (object, self.expected(Kind::Service, namespace, name))
        });
        silent.collect()
    }

    fn answering_services(&self) -> impl Iterator<Item = (&(Kind, String, String), &Value)> {
        let all = self.objects.iter().filter(|((kind, ..), _)| *kind == Kind::Service);
        all.filter(|(_, object)| !object["metadata"]["annotations"][ACME_CHALLENGES].is_null())
    }

    /// What an object must still be when it is written.
    fn expected(&self, kind: Kind, namespace: &str, name: &str) -> Expected {
        let object = self.object(kind, namespace, name);
        let version = object.and_then(|it| it["metadata"]["resourceVersion"].as_str());
        let object = ObjectRef {
            plural: kind.plural().to_owned(),
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
        };
        Expected { object, version: version.map(str::to_owned) }
    }
}

impl Asked {
    /// Whether another look asked for the same.
    pub(super) fn wants_as(&self, other: &Self) -> bool {
        (&self.acme, &self.hosts, &self.roots) == (&other.acme, &other.hosts, &other.roots)
    }

    pub(super) fn account_name(&self) -> String {
        account_name(&self.gateway)
    }

    /// The Secret for an account, if it is still as it was read. It goes with the Gateway.
    pub(super) fn account_secret(&self, kept: &str) -> Result<(Value, Expected)> {
        let data = json!({ACCOUNT_KEY: kept});
        let mut secret = self.object(&self.account_name(), ACCOUNT_TYPE, data)?;
        let owner = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "name": named(&self.gateway).1, "uid": self.gateway.metadata.uid,
        });
        secret["metadata"]["ownerReferences"] = json!([owner]);
        Ok((secret, self.of_account.clone()))
    }

    /// The Secret for a certificate, if it is still as it was read.
    pub(super) fn certificate_secret(&self, pair: &ServerCertificate) -> Result<(Value, Expected)> {
        let data = json!({SECRET_CHAIN: pair.chain_pem, SECRET_KEY: *pair.key_pem});
        Ok((self.object(&self.secret, SECRET_TYPE, data)?, self.of_secret.clone()))
    }

    /// A Secret as manifests are read, so that nothing is written which `ambit apply` refuses.
    fn object(&self, name: &str, kind: &str, data: Value) -> Result<Value> {
        let (_, gateway) = named(&self.gateway);
        let text = json!({
            "apiVersion": "v1", "kind": "Secret", "type": kind, "stringData": data,
            "metadata": {"name": name, "namespace": self.namespace, "labels": {ACME: gateway}},
        });
        let input = Input::Text { name: format!("Secret {name}"), text: text.to_string() };
        let read = ambit_manifest::load_as(&[input], Unenforced::Refused)?;
        let object = read.objects.into_iter().next().context("a Secret was written")?;
        Ok(object.json)
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (namespace, gateway) = named(&self.gateway);
        write!(f, "Gateway {namespace}/{gateway}, Secret {}", self.secret)?;
        let hosts = self.hosts.as_deref().unwrap_or_default();
        if hosts.is_empty() { Ok(()) } else { write!(f, " ({})", hosts.join(", ")) }
    }
}

fn named(gateway: &Gateway) -> (&str, &str) {
    let metadata = &gateway.metadata;
    (
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

/// The name of what is made for a Gateway.
fn objects(gateway: &Gateway) -> String {
    waypoint::names(gateway, Position::Edge).objects.into_owned()
}

fn account_name(gateway: &Gateway) -> String {
    account_secret(named(gateway).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(objects: Vec<Value>) -> Machine {
        let key = |object: &Value| {
            let kind = Kind::all().find(|kind| object["kind"] == kind.name()).expect("a kind");
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
            (kind, text("namespace").to_owned(), text("name").to_owned())
        };
        Machine { objects: objects.into_iter().map(|it| (key(&it), it)).collect() }
    }

    fn object(kind: &str, name: &str, rest: Value) -> Value {
        let mut object = json!({"apiVersion": "v1", "kind": kind,
            "metadata": {"name": name, "namespace": "edge"}});
        let all = object.as_object_mut().expect("an object");
        all.extend(rest.as_object().expect("an object").clone());
        object
    }

    fn gateway(class: &str) -> Value {
        let mut gateway = object(
            "Gateway",
            "in",
            json!({"spec": {"gatewayClassName": class, "listeners": [
                {"name": "http", "port": 80, "protocol": "HTTP"},
                {"name": "https", "port": 443, "protocol": "HTTPS", "hostname": "shop.test",
                 "tls": {"certificateRefs": [{"name": "own"}]}},
            ]}}),
        );
        let annotations = json!({"ambit.io/acme-directory": "https://ca.example/dir",
            "ambit.io/acme-directory-ca": "roots"});
        gateway["metadata"]["annotations"] = annotations;
        gateway
    }

    fn of(mut secret: Value, gateway: &str) -> Value {
        secret["metadata"]["labels"] = json!({ACME: gateway});
        secret
    }

    #[test]
    fn what_a_gateway_asks_for_is_read() {
        let asked = |more: Vec<Value>| {
            let mut all = machine([vec![gateway("ambit")], more].concat()).asked();
            assert_eq!(all.len(), 1);
            all.remove(0)
        };
        let bare = asked(Vec::new());
        assert_eq!(bare.to_string(), "Gateway edge/in, Secret own (shop.test)");
        assert!(matches!(bare.held, Held::Nothing) && !bare.is_served && bare.may_keep_account);
        assert!(bare.roots.expect_err("no ConfigMap").contains("edge/roots"));
        let ready = object("Deployment", "in-ambit", json!({"status": {"readyReplicas": 1}}));
        let roots = object("ConfigMap", "roots", json!({"data": {ROOTS_KEY: "PEM"}}));
        let served = asked(vec![ready, roots]);
        assert!(served.is_served);
        assert_eq!(served.roots, Ok(Some("PEM".to_owned())));
        assert!(machine(vec![gateway("ambit-waypoint")]).asked().is_empty(), "it has no hosts");
    }

    #[test]
    fn what_somebody_else_has_written_is_never_ours() {
        let held = |secret: Value| machine(vec![gateway("ambit"), secret]).asked().remove(0).held;
        let pair = json!({"type": SECRET_TYPE, "data": {SECRET_CHAIN: "Yw==", SECRET_KEY: "aw=="}});
        let secret = object("Secret", "own", pair);
        assert!(matches!(held(secret.clone()), Held::Foreign));
        assert!(matches!(held(of(secret.clone(), "other")), Held::Foreign));
        assert!(matches!(held(object("Secret", "own", json!({}))), Held::Unusable));
        match held(of(secret, "in")) {
            Held::Own(pair) => assert_eq!((&*pair.chain_pem, &**pair.key_pem), ("c", "k")),
            _ => panic!("it is ours"),
        }
        let account =
            object("Secret", "in-acme-account", json!({"stringData": {ACCOUNT_KEY: "a"}}));
        let asked = |account| machine(vec![gateway("ambit"), account]).asked().remove(0);
        let foreign = asked(account.clone());
        assert!(foreign.account.is_none() && !foreign.may_keep_account);
        let own = asked(of(account, "in"));
        assert_eq!(own.account.expect("it is kept").as_str(), "a");
        assert!(own.may_keep_account);
    }

    #[test]
    fn what_is_answered_is_taken_back() {
        let service = object("Service", "in-ambit", json!({"spec": {}}));
        let mut bare = service.clone();
        bare["metadata"]["resourceVersion"] = json!("7");
        let quiet = machine(vec![gateway("ambit"), bare]);
        assert!(!quiet.is_answering() && quiet.silent().is_empty());
        let challenge =
            Challenge { host: "shop.test".into(), token: "t".into(), answer: "t.a".into() };
        let asked = quiet.asked().remove(0);
        let (answering, expected) = quiet.answering(&asked, &[challenge]).expect("a Service");
        assert_eq!(expected.version.as_deref(), Some("7"));
        let loud = machine(vec![gateway("ambit"), answering]);
        assert!(loud.is_answering());
        let (silent, _) = loud.silent().remove(0);
        assert_eq!(silent["metadata"]["annotations"], json!({}));
        let none = machine(vec![gateway("ambit")]);
        assert!(none.answering(&asked, &[]).is_err(), "it is not made again");
    }

    #[test]
    fn what_is_written_is_read_again() {
        let asked = machine(vec![gateway("ambit")]).asked().remove(0);
        let pair =
            ServerCertificate { chain_pem: "chain".into(), key_pem: "key".to_owned().into() };
        let (secret, expected) = asked.certificate_secret(&pair).expect("a Secret");
        assert_eq!((expected.object.name.as_str(), expected.version), ("own", None));
        let (account, _) = asked.account_secret("kept").expect("a Secret");
        let asked = machine(vec![gateway("ambit"), secret, account]).asked().remove(0);
        assert_eq!(asked.account.as_ref().expect("it is kept").as_str(), "kept");
        match asked.held {
            Held::Own(read) => assert_eq!(read.chain_pem, pair.chain_pem),
            _ => panic!("it is ours"),
        }
    }
}
