//! The names under `cluster.local`, as the specification of Kubernetes' DNS has them.
//!
//! A zone is built whole from services and pods and never changed. A name that is only the end of
//! others exists and has no data, which resolvers treat differently from a name that does not
//! exist.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use ambit_net::nftables::Protocol;
use ambit_words::names::DEFAULT_CLUSTER_DOMAIN;
use hickory_proto::rr::RecordType;

use crate::node::services::ServiceView;

/// One piece of data of a name. Names are without the final dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// A or AAAA.
    Address(IpAddr),
    /// SRV.
    Service {
        /// The port.
        port: u16,
        /// The host.
        target: String,
    },
    /// PTR.
    Pointer(String),
}

/// What a zone has for a name and a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// There is no such name.
    Nothing,
    /// The name exists; there may be no data of the type.
    Data(Vec<Data>),
}

/// All names of the cluster.
#[derive(Debug, Default)]
pub(crate) struct Zone {
    names: BTreeMap<String, Vec<Data>>,
    /// Every ending of a name.
    endings: HashSet<String>,
    /// Answers begin with another record each time, so that clients that take the first spread.
    turn: AtomicUsize,
}

impl Zone {
    /// The zone of these services and of pods with these namespaces and addresses.
    pub(crate) fn build<'a>(
        services: &[ServiceView],
        pods: impl IntoIterator<Item = (&'a str, &'a [IpAddr])>,
    ) -> Self {
        let mut zone = Self::default();
        for service in services {
            zone.add_service(service);
        }
        for (namespace, addresses) in pods {
            for address in addresses {
                let name = format!("{}.{namespace}.pod.{DEFAULT_CLUSTER_DOMAIN}", dashed(*address));
                zone.add(name, Data::Address(*address));
            }
        }
        zone
    }

    /// Looks a name up (lower case, with or without the final dot).
    pub(crate) fn find(&self, name: &str, kind: RecordType) -> Found {
        let name = name.trim_end_matches('.');
        let Some(data) = self.names.get(name) else {
            let exists = self.endings.contains(name) || name == DEFAULT_CLUSTER_DOMAIN;
            return if exists { Found::Data(Vec::new()) } else { Found::Nothing };
        };
        let of_kind = |data: &&Data| match data {
            Data::Address(address) => {
                kind == if address.is_ipv4() { RecordType::A } else { RecordType::AAAA }
            }
            Data::Service { .. } => kind == RecordType::SRV,
            Data::Pointer(_) => kind == RecordType::PTR,
        };
        let mut data: Vec<Data> = data.iter().filter(of_kind).cloned().collect();
        if !data.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % data.len();
            data.rotate_left(turn);
        }
        Found::Data(data)
    }

    fn add(&mut self, name: String, data: Data) {
        let mut ending = name.as_str();
        while let Some((_, parent)) = ending.split_once('.') {
            // All endings of an ending that is known are known.
            if !self.endings.insert(parent.to_owned()) {
                break;
            }
            ending = parent;
        }
        let known = self.names.entry(name).or_default();
        if !known.contains(&data) {
            known.push(data);
        }
    }

    fn add_service(&mut self, service: &ServiceView) {
        let host = format!("{}.{}.svc.{DEFAULT_CLUSTER_DOMAIN}", service.name, service.namespace);
        for address in &service.addresses {
            self.add(host.clone(), Data::Address(*address));
            self.add(reverse(*address), Data::Pointer(host.clone()));
        }
        let headless = service.addresses.is_empty();
        if !headless {
            for port in &service.ports {
                let data = Data::Service { port: port.port, target: host.clone() };
                self.add_port(&host, &port.name, port.protocol, data);
            }
        }
        for endpoint in service.endpoints.iter().filter(|endpoint| endpoint.ready) {
            for address in &endpoint.addresses {
                let label = endpoint.hostname.clone().unwrap_or_else(|| dashed(*address));
                let own = format!("{label}.{host}");
                self.add(own.clone(), Data::Address(*address));
                if headless {
                    self.add(host.clone(), Data::Address(*address));
                }
                if endpoint.hostname.is_some() {
                    self.add(reverse(*address), Data::Pointer(own.clone()));
                }
                if headless {
                    for (port, target) in service.ports.iter().zip(&endpoint.ports) {
                        let Some(number) = target else { continue };
                        let data = Data::Service { port: *number, target: own.clone() };
                        self.add_port(&host, &port.name, port.protocol, data);
                    }
                }
            }
        }
    }

    fn add_port(&mut self, host: &str, port: &str, protocol: Protocol, data: Data) {
        let protocol = if protocol == Protocol::Udp { "udp" } else { "tcp" };
        if !port.is_empty() {
            self.add(format!("_{port}._{protocol}.{host}"), data);
        }
    }
}

/// An address as a label.
fn dashed(address: IpAddr) -> String {
    address.to_string().replace(['.', ':'], "-")
}

/// The name under which the name of an address is looked up.
fn reverse(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(address) => {
            let nibbles =
                address.octets().into_iter().rev().flat_map(|byte| [byte & 15, byte >> 4]);
            nibbles.map(|nibble| format!("{nibble:x}.")).collect::<String>() + "ip6.arpa"
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::node::services::{Endpoint, PortView};

    /// A shop with a web service, a headless database with one named host, and a service of sixty.
    pub(crate) fn zone() -> Zone {
        let port = |name: &str, port| PortView {
            name: name.into(),
            protocol: Protocol::Tcp,
            port,
            application_protocol: None,
        };
        let endpoint = |last: u8, hostname: Option<&str>, ready| Endpoint {
            hostname: hostname.map(str::to_owned),
            addresses: vec![IpAddr::from([10, 244, 1, last])],
            node: "node-1".into(),
            ready,
            ports: vec![Some(5432)],
        };
        let service = |name: &str, addresses: &[&str], ports, endpoints| ServiceView {
            namespace: "shop".into(),
            name: name.into(),
            addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
            ports,
            endpoints,
            client_affinity: false,
            local_only: false,
        };
        let web = service("web", &["10.96.1.0", "fd00:10:96::100"], vec![port("http", 80)], vec![]);
        let hosts = vec![
            endpoint(2, Some("first"), true),
            endpoint(3, None, true),
            endpoint(4, None, false),
        ];
        let database = service("db", &[], vec![port("sql", 5432)], hosts);
        let many = (100..160).map(|last| endpoint(last, None, true)).collect();
        let many = service("many", &[], vec![], many);
        let addresses = [IpAddr::from([10, 244, 1, 3])];
        Zone::build(&[web, database, many], [("shop", &addresses[..])])
    }

    #[test]
    fn answers_take_turns() {
        let zone = zone();
        let first = || match zone.find("db.shop.svc.cluster.local", RecordType::A) {
            Found::Data(data) => data[0].clone(),
            Found::Nothing => panic!("db is there"),
        };
        assert_ne!(first(), first());
    }

    #[test]
    fn addresses_reverse_to_arpa_names() {
        assert_eq!(reverse("10.0.1.2".parse().unwrap()), "2.1.0.10.in-addr.arpa");
        let six = reverse("fd00::1".parse().unwrap());
        assert!(six.starts_with("1.0.0.0.") && six.ends_with("0.0.d.f.ip6.arpa"), "{six}");
    }
}
