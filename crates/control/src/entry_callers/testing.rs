//! A cluster with WorkloadEntries and tokens, for tests.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ambit_manifest::{Kind, ObjectKey, stored};
use ambit_words::names::WORKLOAD_ENTRY_METADATA;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use tonic::metadata::MetadataMap;

use crate::authentication::{Authentication, Refusal};
use crate::callers::{Caller, Callers, Reviews};
use crate::kubernetes::fake::FakeApi;
use crate::metrics::Metrics;
use crate::registry::Event;
use crate::view_builder::{Mesh, Vips};
use crate::world::World;

/// How long tokens are good, unless a test says otherwise.
pub(crate) const LIFE: Duration = Duration::from_secs(600);

/// An API server, a world, and what judges calls.
pub(crate) struct Bed {
    pub(crate) api: FakeApi,
    pub(crate) world: Arc<World>,
    pub(crate) authentication: Authentication,
}

impl Bed {
    /// One whose node proxies have the account `mesh/node`.
    pub(crate) fn new() -> Self {
        let api = FakeApi::default();
        let path = std::env::temp_dir().join("ambit-entry-callers-none");
        let metrics = Arc::new(Metrics::new());
        let world = Arc::new(World::new(Mesh::sample(), Vips::default(), path, metrics));
        let callers = Callers::Reviewed(Arc::new(Reviews::new(api.client())));
        let trusted_accounts = vec![("mesh".into(), "node".into())];
        let authentication = Authentication { callers, world: world.clone(), trusted_accounts };
        Self { api, world, authentication }
    }

    /// Puts a WorkloadEntry that names this account.
    pub(crate) fn put(&self, namespace: &str, name: &str, uid: &str, account: &str) {
        let entry = json!({"metadata": {"namespace": namespace, "name": name, "uid": uid},
            "spec": {"address": "192.0.2.7", "serviceAccount": account}});
        self.put_object(Kind::WorkloadEntry, &entry);
    }

    /// Puts any object.
    pub(crate) fn put_object(&self, kind: Kind, object: &Value) {
        let mut object = object.clone();
        if object["apiVersion"].is_null() {
            object["apiVersion"] = "".into();
        }
        if object["kind"].is_null() {
            object["kind"] = format!("{kind:?}").into();
        }
        let object = stored(kind, object.to_string().as_bytes()).expect("an object");
        self.world.apply(vec![Event::Put(object)]);
    }

    /// Deletes a WorkloadEntry.
    pub(crate) fn delete(&self, namespace: &str, name: &str) {
        let (namespace, name) = (namespace.into(), name.into());
        let key = ObjectKey { kind: Kind::WorkloadEntry, namespace, name };
        self.world.apply(vec![Event::Delete(key)]);
    }

    /// A token of this account that ends after `life`, and is of this pod if there is one.
    pub(crate) fn token(
        &self,
        namespace: &str,
        account: &str,
        pod: Option<&str>,
        life: Duration,
    ) -> String {
        let exp = SystemTime::now() + life;
        let exp = exp.duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let name = format!("{namespace}/{account}/{pod:?}");
        let body = json!({"aud": ["istio-ca"], "exp": exp, "name": name}).to_string();
        let token = format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(body));
        let extra = match pod {
            Some(pod) => json!({"authentication.kubernetes.io/pod-name": [pod],
                "authentication.kubernetes.io/pod-uid": [pod]}),
            None => json!({}),
        };
        self.review(&token, namespace, account, &extra);
        token
    }

    /// What the API server answers about a token.
    pub(crate) fn review(&self, token: &str, namespace: &str, account: &str, extra: &Value) {
        let username = format!("system:serviceaccount:{namespace}:{account}");
        self.api.review(
            token,
            json!({"authenticated": true, "audiences": ["istio-ca"],
                "user": {"username": username, "extra": extra}}),
        );
    }

    /// Who calls so.
    pub(crate) async fn call(&self, token: &str, entry: Option<&str>) -> Result<Caller, Refusal> {
        let metadata = MetadataMap::from_headers(headers(token, entry));
        self.authentication.caller(&metadata, None).await
    }

    /// The computer of a WorkloadEntry that is there.
    pub(crate) async fn computer(&self, namespace: &str, account: &str, entry: &str) -> Caller {
        let token = self.token(namespace, account, None, LIFE);
        self.call(&token, Some(entry)).await.expect("it may call")
    }
}

/// The headers of a call.
pub(crate) fn headers(token: &str, entry: Option<&str>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).expect("a header");
    headers.insert("authorization", value(&format!("Bearer {token}")));
    if let Some(entry) = entry {
        headers.insert(WORKLOAD_ENTRY_METADATA, value(entry));
    }
    headers
}
