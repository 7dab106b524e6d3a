//! What a computer outside of a cluster needs, to be one of its workloads: a WorkloadEntry, a token
//! of its service account, the mesh's root, and a way to control.
//!
//! Nothing here changes the cluster: a token is only answered. It is in no error and no log.

use std::fmt;
use std::time::Duration;

use ambit_words::names::{CONTROL, ROOT_CERTIFICATE, ROOT_CONFIG_MAP};
use ambit_words::ports;
use serde_json::{Value, json};

use crate::Cluster;
use crate::api::ClusterError;
use crate::json::{items, number, text};

/// A token of a service account.
pub struct AccountToken {
    /// The token. It is a secret.
    pub secret: String,
    /// How long the cluster takes it, from now on.
    pub lifetime: Duration,
    /// When it ends, as the API server writes it.
    pub end: String,
}

impl fmt::Debug for AccountToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccountToken").field("end", &self.end).finish_non_exhaustive()
    }
}

/// The way of computers outside to control, as its Service says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// By a load balancer.
    Balancer {
        /// Its name or address.
        host: String,
        /// Its port.
        port: u16,
    },
    /// By a load balancer that has no address yet.
    Pending,
    /// By this port of every node.
    NodePort(u16),
    /// None: the Service is of this type.
    Closed(String),
    /// None: the Service has no port for proxies.
    Portless,
}

impl Cluster {
    /// A WorkloadEntry.
    pub async fn workload_entry(&self, namespace: &str, name: &str) -> Result<Value, ClusterError> {
        let api = "/apis/networking.istio.io/v1";
        self.read(&format!("{api}/namespaces/{namespace}/workloadentries/{name}")).await
    }

    /// The mesh's root certificates, in PEM, as control writes them into each namespace.
    pub async fn root_certificates(&self, namespace: &str) -> Result<String, ClusterError> {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps/{ROOT_CONFIG_MAP}");
        let config_map = self.read(&path).await?;
        let pem = config_map["data"][ROOT_CERTIFICATE].as_str().unwrap_or_default();
        match pem.contains("BEGIN CERTIFICATE") {
            true => Ok(pem.to_owned()),
            false => Err(ClusterError::Absent(format!("certificate in {path}"))),
        }
    }

    /// How computers outside reach control.
    pub async fn way_to_control(&self) -> Result<Way, ClusterError> {
        let namespace = self.mesh_namespace();
        let path = format!("/api/v1/namespaces/{namespace}/services/{CONTROL}");
        self.read(&path).await.map(|service| way(&service))
    }

    /// A token of a service account, for an audience. The cluster may give it for less time.
    pub async fn account_token(
        &self,
        namespace: &str,
        account: &str,
        audience: &str,
        lifetime: Duration,
    ) -> Result<AccountToken, ClusterError> {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let spec = json!({"audiences": [audience], "expirationSeconds": lifetime.as_secs()});
        let request =
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let mut answer = self.review(&path, &request).await?;
        let lifetime = Duration::from_secs(number(&answer, "/spec/expirationSeconds"));
        let end = text(&answer, "/status/expirationTimestamp").to_owned();
        match answer.pointer_mut("/status/token").map(Value::take) {
            Some(Value::String(secret)) if !secret.is_empty() => {
                Ok(AccountToken { secret, lifetime, end })
            }
            _ => {
                let message = "the answer has no token".to_owned();
                Err(ClusterError::Answer { what: path, message })
            }
        }
    }
}

fn way(service: &Value) -> Way {
    let xds = u64::from(ports::XDS);
    let leads_there = |port: &&Value| {
        number(port, "/port") == xds
            || number(port, "/targetPort") == xds
            || text(port, "/name") == "https-xds"
    };
    let Some(port) = items(service, "/spec/ports").find(leads_there) else {
        return Way::Portless;
    };
    let of = |pointer: &str| u16::try_from(number(port, pointer)).unwrap_or_default();
    match text(service, "/spec/type") {
        "LoadBalancer" => {
            let mut addresses = items(service, "/status/loadBalancer/ingress")
                .flat_map(|ingress| [text(ingress, "/ip"), text(ingress, "/hostname")])
                .filter(|host| !host.is_empty());
            match addresses.next() {
                Some(host) => Way::Balancer { host: host.to_owned(), port: of("/port") },
                None => Way::Pending,
            }
        }
        "NodePort" => Way::NodePort(of("/nodePort")),
        "" => Way::Closed("ClusterIP".to_owned()),
        other => Way::Closed(other.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::api::playing;

    #[test]
    fn the_way_to_control_is_what_its_service_says() {
        let service = |kind: &str, ports: Value, ingress: Value| {
            json!({"spec": {"type": kind, "ports": ports},
                "status": {"loadBalancer": {"ingress": ingress}}})
        };
        let check = |kind: &str, ports: Value, ingress: Value, expected: Way| {
            assert_eq!(way(&service(kind, ports, ingress)), expected, "{kind}");
        };
        let xds = || {
            json!([{"name": "monitoring", "port": 15014, "nodePort": 30001},
                {"name": "https-xds", "port": 15012, "targetPort": 15012, "nodePort": 30002}])
        };
        let at = |host: &str, port| Way::Balancer { host: host.to_owned(), port };
        let name = json!([{"hostname": "lb.example.com"}]);
        check("LoadBalancer", xds(), json!([{"ip": "2001:db8::1"}]), at("2001:db8::1", 15012));
        check("LoadBalancer", xds(), name.clone(), at("lb.example.com", 15012));
        let renamed = json!([{"name": "x", "port": 443, "targetPort": 15012}]);
        check("LoadBalancer", renamed, name, at("lb.example.com", 443));
        check("LoadBalancer", xds(), json!([]), Way::Pending);
        check("NodePort", xds(), json!([]), Way::NodePort(30002));
        check("ClusterIP", xds(), json!([]), Way::Closed("ClusterIP".to_owned()));
        check("", xds(), Value::Null, Way::Closed("ClusterIP".to_owned()));
        check("NodePort", json!([{"port": 15014}]), json!([]), Way::Portless);
    }

    #[tokio::test]
    async fn a_token_is_of_one_account_and_is_not_shown() {
        let cluster = playing(|method, path| {
            assert_eq!(method, Method::POST);
            match path {
                "/api/v1/namespaces/shop/serviceaccounts/db/token" => {
                    let status = json!({"token": "secret", "expirationTimestamp": "2026-06-02"});
                    (201, json!({"spec": {"expirationSeconds": 3600}, "status": status}))
                }
                "/api/v1/namespaces/shop/serviceaccounts/none/token" => {
                    (404, json!({"kind": "Status", "code": 404, "message": "not found"}))
                }
                "/api/v1/namespaces/shop/serviceaccounts/locked/token" => {
                    let message = "cannot create resource \"serviceaccounts/token\"";
                    (403, json!({"kind": "Status", "code": 403, "message": message}))
                }
                _ => (201, json!({"status": {}})),
            }
        });
        let of = async |account| {
            cluster.account_token("shop", account, "istio-ca", Duration::from_secs(86_400)).await
        };
        let token = of("db").await.expect("a token");
        assert_eq!((&*token.secret, token.lifetime), ("secret", Duration::from_secs(3600)));
        assert!(!format!("{token:?}").contains("secret"), "{token:?}");
        assert!(matches!(of("none").await, Err(ClusterError::Absent(_))));
        let refused = of("locked").await.expect_err("it may not").to_string();
        assert!(refused.contains("serviceaccounts/token"), "{refused}");
        let empty = of("empty").await.expect_err("it is empty").to_string();
        assert!(empty.contains("has no token"), "{empty}");
    }

    #[tokio::test]
    async fn the_root_is_that_of_the_namespace() {
        let cluster = playing(|_, path| match path {
            "/api/v1/namespaces/shop/configmaps/istio-ca-root-cert" => {
                (200, json!({"data": {"root-cert.pem": "-----BEGIN CERTIFICATE-----"}}))
            }
            _ => (200, json!({"data": {}})),
        });
        assert!(cluster.root_certificates("shop").await.is_ok());
        assert!(matches!(cluster.root_certificates("b").await, Err(ClusterError::Absent(_))));
    }
}
