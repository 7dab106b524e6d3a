//! What a token of a cluster says of a WorkloadEntry and of the way to control, and what keeps a
//! computer from joining. Decisions only: nothing here asks the cluster.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ambit_cluster::{AccountToken, Way};
use ambit_machine::Workload;
use ambit_manifest::istio::WorkloadEntry;
use ambit_manifest::names;
use ambit_model::address::not_for_entries;
use ambit_model::identity::DEFAULT_SERVICE_ACCOUNT;
use ambit_words::durations::write_duration;
use ambit_words::labels::{TUNNEL, TUNNEL_HTTP};
use ambit_words::ports::XDS;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// A computer outside, as its WorkloadEntry says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outside {
    pub(super) address: IpAddr,
    pub(super) service_account: String,
    /// Empty for the mesh's default one.
    pub(super) network: String,
}

/// What a WorkloadEntry says, if a computer can join by it. `kubectl` is that of its namespace.
pub(super) fn judge(entry: Value, name: &str, kubectl: &str) -> Result<Outside> {
    let entry: WorkloadEntry = serde_json::from_value(entry)
        .context("it is not as this command reads it; is it of another version than v1?")?;
    ensure!(
        entry.metadata.deletion_timestamp.is_none(),
        "it is being deleted; make it again when it is gone"
    );
    let written = &entry.spec.address;
    let Some(address) = names::address(written) else {
        bail!(
            "its spec.address {written:?} is no IP address, and the other computer must have one \
             that the mesh's nodes reach; write it with `{kubectl} edit workloadentry {name}`"
        )
    };
    if let Some(wrong) = not_for_entries(address) {
        bail!(
            "its spec.address {address} {wrong}; write an address of the other computer with \
             `{kubectl} edit workloadentry {name}`"
        );
    }
    if entry.labels().get(TUNNEL).is_none_or(|value| value != TUNNEL_HTTP) {
        let remedy = match entry.spec.labels.get(TUNNEL) {
            // They go before those of the object.
            Some(_) => format!("change it in spec.labels: `{kubectl} edit workloadentry {name}`"),
            None => format!(
                "add it: `{kubectl} label --overwrite workloadentry {name} {TUNNEL}={TUNNEL_HTTP}`"
            ),
        };
        bail!(
            "it lacks the label {TUNNEL}={TUNNEL_HTTP}, so the mesh would send it plain text; \
             {remedy}"
        );
    }
    let service_account = match entry.spec.service_account {
        account if account.is_empty() => DEFAULT_SERVICE_ACCOUNT.to_owned(),
        account => account,
    };
    if let Some(wrong) = names::dns_subdomain(&service_account) {
        bail!("its spec.serviceAccount {wrong}; change it");
    }
    Ok(Outside { address, service_account, network: entry.spec.network })
}

/// Refuses what `ambit join` would refuse.
pub(super) fn usable(workload: &Workload) -> Result<()> {
    let Workload { namespace, entry, .. } = workload;
    match workload.wrong() {
        Some(wrong) => bail!("WorkloadEntry {namespace}/{entry} gets no token: the token {wrong}"),
        None => Ok(()),
    }
}

/// HOST:PORT of what was written as HOST or HOST:PORT.
pub(super) fn written_address(written: &str) -> Result<String> {
    let wrong = || {
        format!(
            "--address {written:?}: write HOST[:PORT], such as mesh.example.com, 192.0.2.1:30012 \
             or [2001:db8::1]:{XDS}"
        )
    };
    if let Ok(address) = written.parse::<SocketAddr>() {
        ensure!(address.port() != 0, wrong());
        return Ok(address.to_string());
    }
    let bare = written.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if bare.unwrap_or(written).parse::<IpAddr>().is_ok() {
        return Ok(authority(bare.unwrap_or(written), XDS));
    }
    let (host, port) = match written.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok().filter(|port| *port != 0)),
        None => (written, Some(XDS)),
    };
    let host = host.to_ascii_lowercase();
    match port {
        Some(port) if names::dns_subdomain(&host).is_none() => Ok(authority(&host, port)),
        _ => bail!(wrong()),
    }
}

/// HOST:PORT that control's Service says, or what to do where it says none.
pub(super) fn found_address(way: &Way, service: &str) -> Result<String> {
    match way {
        Way::Balancer { host, port } => Ok(authority(host, *port)),
        Way::Pending => bail!(
            "{service} is of type LoadBalancer and has no address yet; wait until it has, or \
             write --address HOST[:PORT]"
        ),
        Way::NodePort(port) => bail!(
            "{service} is of type NodePort; write --address NODE:{port}, where NODE is the address \
             of a node that the other computer reaches"
        ),
        Way::Closed(kind) => bail!(
            "{service} is of type {kind}, which no computer outside reaches; make it one of type \
             LoadBalancer or NodePort, or open another way to port {XDS} of control, and write \
             --address HOST[:PORT]"
        ),
        Way::Portless => bail!(
            "{service} has no port {XDS}, where control serves proxies; write --address \
             HOST[:PORT]"
        ),
    }
}

/// A host and a port, as URLs write them.
fn authority(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(address) => SocketAddr::new(address, port).to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}

/// The remark on a token that the cluster gives for less time than was asked for.
pub(super) fn shortened(asked: Duration, token: &AccountToken) -> Option<String> {
    let AccountToken { lifetime, end, .. } = token;
    // Kubernetes counts seconds.
    (lifetime.as_secs() < asked.as_secs()).then(|| {
        let (asked, given) = (write_duration(asked), write_duration(*lifetime));
        format!("the cluster gives the token for {given}, not for {asked}: it ends at {end}")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(spec: Value, labels: Value) -> Value {
        json!({"apiVersion": "networking.istio.io/v1", "kind": "WorkloadEntry", "spec": spec,
            "metadata": {"namespace": "shop", "name": "db", "labels": labels}})
    }

    #[test]
    fn an_entry_says_who_the_computer_is() {
        let check = |spec: Value, labels: Value, account: &str, network: &str| {
            let found = judge(entry(spec, labels), "db", "kubectl -n shop").expect("it can join");
            let expected = Outside {
                address: [192, 0, 2, 7].into(),
                service_account: account.to_owned(),
                network: network.to_owned(),
            };
            assert_eq!(found, expected);
        };
        let label = || json!({"networking.istio.io/tunnel": "http"});
        check(json!({"address": "192.0.2.7"}), label(), "default", "");
        let named = json!({"address": "::ffff:192.0.2.7", "serviceAccount": "db",
            "network": "n2", "labels": label()});
        check(named, json!({"networking.istio.io/tunnel": "none"}), "db", "n2");
    }

    #[test]
    fn an_entry_that_no_computer_can_join_by_says_what_to_do() {
        let check = |entry: Value, part: &str| {
            let error = judge(entry, "db", "kubectl -n shop").expect_err(part);
            let error = format!("{error:#}");
            assert!(error.contains(part), "{error}");
        };
        let label = |value: &str| json!({ "networking.istio.io/tunnel": value });
        check(entry(json!({"address": "db.example.com"}), label("http")), "is no IP address");
        check(entry(json!({}), label("http")), "`kubectl -n shop edit workloadentry db`");
        check(entry(json!({"address": "127.0.0.1"}), label("http")), "means the client itself");
        let here = json!({"address": "192.0.2.7"});
        let command =
            "`kubectl -n shop label --overwrite workloadentry db networking.istio.io/tunnel=http`";
        check(entry(here.clone(), Value::Null), command);
        check(entry(here.clone(), label("none")), command);
        let other = json!({"address": "192.0.2.7", "labels": label("none")});
        check(entry(other, label("http")), "change it in spec.labels");
        let account = json!({"address": "192.0.2.7", "serviceAccount": "a/b"});
        check(entry(account, label("http")), "spec.serviceAccount `a/b`");
        check(entry(json!({"address": 7}), label("http")), "invalid type");
        let mut ending = entry(here, label("http"));
        ending["metadata"]["deletionTimestamp"] = json!("2026-06-02T00:00:00Z");
        check(ending, "is being deleted");
    }

    #[test]
    fn a_name_that_no_computer_can_carry_gets_no_token() {
        let text = |text: &str| text.to_owned();
        let named = |entry: String| Workload {
            control: text("192.0.2.1:15012"),
            root: text("root"),
            control_name: text("istiod.istio-system.svc"),
            namespace: text("shop"),
            entry,
            service_account: text("db"),
            address: "192.0.2.7".parse().expect("an address"),
            network: String::new(),
            trust_domain: text("cluster.local"),
            cluster_domain: text("cluster.local"),
            cluster_id: text("Kubernetes"),
        };
        assert!(usable(&named("d".repeat(160))).is_ok());
        let error = usable(&named("d".repeat(250))).expect_err("too long").to_string();
        assert!(error.contains("of more than 160 characters"), "{error}");
        assert!(error.contains("shorter name"), "{error}");
    }

    #[test]
    fn a_written_address_is_a_host_and_perhaps_a_port() {
        let check = |written: &str, expected: Option<&str>| {
            let found = written_address(written).map_err(|error| error.to_string());
            match expected {
                Some(expected) => assert_eq!(found.as_deref(), Ok(expected)),
                None => assert!(found.expect_err(written).contains("write HOST[:PORT]")),
            }
        };
        check("mesh.example.com", Some("mesh.example.com:15012"));
        check("Mesh.example.com:443", Some("mesh.example.com:443"));
        check("192.0.2.1", Some("192.0.2.1:15012"));
        check("192.0.2.1:30012", Some("192.0.2.1:30012"));
        check("2001:db8::1", Some("[2001:db8::1]:15012"));
        check("[2001:db8::1]", Some("[2001:db8::1]:15012"));
        check("[2001:db8::1]:443", Some("[2001:db8::1]:443"));
        for wrong in ["", ":15012", "a:0", "192.0.2.1:0", "a:x", "https://a", "a/b", "[a]:1"] {
            check(wrong, None);
        }
    }

    #[test]
    fn the_service_of_control_says_the_way_or_what_to_write() {
        let check = |way: Way, expected: Result<&str, &str>| {
            let found = found_address(&way, "Service istio-system/istiod");
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(error), Err(part)) => {
                    let error = error.to_string();
                    assert!(error.contains(part) && error.contains("--address"), "{error}");
                }
                (found, _) => panic!("{way:?}: {found:?}"),
            }
        };
        let balancer = |host: &str| Way::Balancer { host: host.to_owned(), port: 15012 };
        check(balancer("lb.example.com"), Ok("lb.example.com:15012"));
        check(balancer("2001:db8::1"), Ok("[2001:db8::1]:15012"));
        check(Way::Pending, Err("no address yet"));
        check(Way::NodePort(30012), Err("--address NODE:30012"));
        check(Way::Closed("ClusterIP".to_owned()), Err("of type ClusterIP"));
        check(Way::Portless, Err("has no port 15012"));
    }

    #[test]
    fn a_shorter_life_than_was_asked_for_is_said() {
        let remark = |asked, given| {
            let token = AccountToken {
                secret: "secret".to_owned(),
                lifetime: Duration::from_secs(given),
                end: "2026-06-02T00:00:00Z".to_owned(),
            };
            shortened(Duration::from_secs(asked), &token)
        };
        assert_eq!(remark(3600, 3600), None);
        let said = remark(86_400, 3600).expect("it is shorter");
        assert!(said.contains("1h0m0s") && said.contains("2026-06-02"), "{said}");
        assert!(!said.contains("secret"), "{said}");
    }
}
