//! Whether the view knows a name, and its addresses. A pure function.
//!
//! A name is looked up unchanged, with the cluster's suffixes added (a short name of a service),
//! and with a search domain of the pod removed (resolvers try those first, also behind names of
//! other domains). A name of the cluster (`name.namespace.svc` and its short forms) belongs to the
//! namespace in it: no other namespace can take it over. A name that the view does not know is left
//! to another resolver: nothing here answers that a name does not exist.

use std::net::IpAddr;
use std::sync::Arc;

use ambit_model::Text;
use ambit_model::names::ServiceName;
use ambit_model::service::{IpFamilies, Service};
use ambit_model::view::View;
use ambit_model::workload::Workload;

/// Addresses in one answer.
const MAX_ADDRESSES: usize = 64;
/// Longest name as text, without the last dot (RFC 1035, section 2.3.4).
const NAME_BYTES_MAX: usize = 253;
/// How long an answer may be remembered.
const TTL_SECONDS: u32 = 30;
/// The same for endpoints, which come and go.
const HEADLESS_TTL_SECONDS: u32 = 5;

/// Which kind of address is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// A records.
    Ipv4,
    /// AAAA records.
    Ipv6,
}

/// The pod that asks.
pub(super) struct Asker<'a> {
    /// The namespace of the pod.
    pub(super) namespace: &'a str,
    /// The network of the pod.
    pub(super) network: &'a Text,
    /// The domain of the cluster's DNS.
    pub(super) cluster_domain: &'a str,
    /// Whether IPv6 is served.
    pub(super) ipv6: bool,
}

/// What the view says about a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Resolution {
    /// It is a service with these addresses of the family asked for, possibly none.
    Known {
        /// The name without a search domain, if one had to be taken off.
        canonical: Option<String>,
        /// The addresses.
        addresses: Vec<IpAddr>,
        /// How long they may be remembered.
        ttl: u32,
    },
    /// Nothing.
    Forward,
}

/// Looks up `name`, in lower case and without the last dot. `random` spreads clients over the
/// endpoints of a headless service.
pub(super) fn resolve(
    view: &View,
    asker: &Asker<'_>,
    name: &str,
    family: Family,
    random: u64,
) -> Resolution {
    let Some((service, meant)) = find(view, asker, name) else { return Resolution::Forward };
    let canonical = (meant != name).then(|| canonical(service, asker, meant));
    let wanted = |ip: &IpAddr| match family {
        Family::Ipv4 => ip.is_ipv4() && service.ip_families != IpFamilies::Ipv6Only,
        Family::Ipv6 => ip.is_ipv6() && service.ip_families != IpFamilies::Ipv4Only && asker.ipv6,
    };
    if !service.addresses.is_empty() {
        let single = service.addresses.iter().filter(|it| it.prefix_len.is_none());
        let near = single.filter(|it| it.address.network == *asker.network);
        let near: Vec<IpAddr> = near.map(|it| it.address.ip).collect();
        if near.is_empty() {
            return Resolution::Forward;
        }
        let addresses = near.into_iter().filter(wanted).take(MAX_ADDRESSES).collect();
        return Resolution::Known { canonical, addresses, ttl: TTL_SECONDS };
    }
    let mut all = endpoints(view, asker, service);
    if all.is_empty() && !belongs_to(name, asker.cluster_domain) {
        // A ServiceEntry whose endpoints are names: their owner knows their addresses.
        return Resolution::Forward;
    }
    all.retain(wanted);
    if !all.is_empty() {
        let start = random % all.len() as u64;
        all.rotate_left(usize::try_from(start).expect("below a length"));
        all.truncate(MAX_ADDRESSES);
    }
    Resolution::Known { canonical, addresses: all, ttl: HEADLESS_TTL_SECONDS }
}

/// The name of a service that was found by `meant`: its full name where that is a short one, which
/// no other resolver knows.
fn canonical(service: &Service, asker: &Asker<'_>, meant: &str) -> String {
    let full = expansion(meant, &domains(asker));
    full.filter(|full| full.len() <= NAME_BYTES_MAX && **full == *service.key.hostname)
        .unwrap_or_else(|| meant.to_owned())
}

/// The search domains of a pod, as Kubernetes writes them.
fn domains(asker: &Asker<'_>) -> [String; 3] {
    [
        format!("{}.svc.{}", asker.namespace, asker.cluster_domain),
        format!("svc.{}", asker.cluster_domain),
        asker.cluster_domain.to_owned(),
    ]
}

/// The addresses behind a headless service.
fn endpoints(view: &View, asker: &Asker<'_>, service: &Service) -> Vec<IpAddr> {
    let Some(endpoints) = view.endpoints(&service.key) else { return Vec::new() };
    // An endpoint without ports among others with ports does not serve for now.
    let has_ports =
        |it: &Workload| it.services.get(&service.key).is_some_and(|ports| !ports.is_empty());
    let all_alike = !endpoints.iter().any(|workload| has_ports(workload));
    let ready = endpoints.iter().filter(|workload| {
        (workload.healthy || service.load_balancing.allow_unhealthy)
            && workload.network == *asker.network
            && (all_alike || has_ports(workload))
    });
    ready.flat_map(|workload| workload.addresses.iter().copied()).collect()
}

/// The service that a name means to the asker, and the name without the search domain that was
/// taken off.
///
/// Nobody takes over another namespace's names. What the asker's own namespace declares by this
/// very name comes first; then what the namespace that the name names declares; only then what any
/// other namespace declares for it in a ServiceEntry.
fn find<'a, 'n>(
    view: &'a View,
    asker: &Asker<'_>,
    name: &'n str,
) -> Option<(&'a Arc<Service>, &'n str)> {
    let domains = domains(asker);
    let stripped = domains.iter().filter_map(|domain| {
        name.strip_suffix(domain.as_str()).and_then(|rest| rest.strip_suffix('.'))
    });
    // A single label is a service of the cluster, which is looked up under its full name.
    let stripped = stripped.filter(|rest| rest.contains('.'));
    let expanded = expansion(name, &domains);
    let own = |name: &str| {
        let expanded = expansion(name, &domains);
        declared(view, asker, asker.namespace, name)
            .or_else(|| of_its_namespace(view, asker, name))
            .or_else(|| of_its_namespace(view, asker, &expanded?))
    };
    if let Some(found) = own(name) {
        return Some((found, name));
    }
    // A pod's name, below its service or by its address. The view has none of them: the cluster's
    // resolver knows them.
    let is_a_pods = |name: &str| {
        let short =
            name.strip_suffix(asker.cluster_domain).map_or(name, |it| it.trim_end_matches('.'));
        let parent = name.split_once('.').map(|(_, parent)| parent);
        let full = parent.and_then(|parent| expansion(parent, &domains));
        let mut named = [parent, full.as_deref()].into_iter().flatten();
        // Only below a headless service do pods have names.
        let is_headless = |parent: &str| {
            of_its_namespace(view, asker, parent).is_some_and(|it| it.addresses.is_empty())
        };
        matches!(short.split('.').collect::<Vec<&str>>()[..], [_, _, "pod"])
            || named.any(is_headless)
    };
    if is_a_pods(name) {
        return None;
    }
    for rest in stripped.clone() {
        match own(rest) {
            Some(found) => return Some((found, rest)),
            // Most names are asked for with each search domain first.
            None if is_a_pods(rest) => return None,
            None => {}
        }
    }
    let exact = |hostname: &str| view.service_by_hostname(hostname, asker.namespace);
    let any = |hostname: &str| exact(hostname).or_else(|| wildcard(view, asker, hostname));
    let whole = any(name).or_else(|| exact(&expanded?)).map(|found| (found, name));
    whole.or_else(|| stripped.clone().find_map(|rest| Some((any(rest)?, rest))))
}

/// What a namespace declares by this name, if the asker may see it.
fn declared<'a>(
    view: &'a View,
    asker: &Asker<'_>,
    namespace: &str,
    hostname: &str,
) -> Option<&'a Arc<Service>> {
    let found = view.service(&ServiceName::new(namespace, hostname))?;
    (!found.namespace_only || namespace == asker.namespace).then_some(found)
}

/// What the namespace in a full name declares by it: all names below the namespace are its own.
fn of_its_namespace<'a>(
    view: &'a View,
    asker: &Asker<'_>,
    hostname: &str,
) -> Option<&'a Arc<Service>> {
    let short = hostname.strip_suffix(asker.cluster_domain)?.strip_suffix(".svc.")?;
    let (_, namespace) = short.rsplit_once('.')?;
    declared(view, asker, namespace, hostname)
}

/// The full name of a service from `service`, `service.namespace` or `service.namespace.svc`.
fn expansion(name: &str, domains: &[String; 3]) -> Option<String> {
    let labels: Vec<&str> = name.split('.').collect();
    let domain = match labels[..] {
        [_] => &domains[0],
        [_, _] => &domains[1],
        [_, _, "svc"] => &domains[2],
        _ => return None,
    };
    Some(format!("{name}.{domain}"))
}

/// The ServiceEntry for `*.` something that holds this name, the longest first.
fn wildcard<'a>(view: &'a View, asker: &Asker<'_>, name: &str) -> Option<&'a Arc<Service>> {
    let mut rest = name;
    while let Some((_, parent)) = rest.split_once('.') {
        let found = view.service_by_hostname(&format!("*.{parent}"), asker.namespace);
        if found.is_some() {
            return found;
        }
        rest = parent;
    }
    None
}

fn belongs_to(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        || !name.contains('.')
}

#[cfg(test)]
mod tests {
    use ambit_model::names::NetworkAddress;
    use ambit_model::service::VirtualAddress;
    use ambit_model::view::Change;
    use ambit_model::workload::{AppProtocol, PortMapping};

    use super::*;

    fn service(namespace: &str, hostname: &str, ips: &[&str]) -> Change {
        let mut service = Service::named(namespace, hostname);
        service.addresses = ips
            .iter()
            .map(|ip| VirtualAddress {
                address: NetworkAddress::new("", ip.parse().expect("an address")),
                prefix_len: None,
            })
            .collect();
        Change::Service(service)
    }

    fn workload(name: &str, hostname: &str, ips: &[&str], healthy: bool) -> Change {
        let mut workload = Workload::named(format!("k//Pod/shop/{name}"), "shop", name);
        let ips = ips.iter().map(|ip| ip.parse().expect("an address"));
        workload.addresses = ips.collect::<Vec<_>>().into();
        workload.healthy = healthy;
        let key = ServiceName::new("shop", hostname);
        workload.serve(key, ports(u16::from(!["half-1", "none-0"].contains(&name))));
        Change::Workload(workload)
    }

    fn ports(count: u16) -> Vec<PortMapping> {
        let app_protocol = AppProtocol::default();
        let port = |at| PortMapping { service_port: at, target_port: at, app_protocol };
        (1..=count).map(port).collect()
    }

    fn view() -> View {
        let mut view = View::default();
        let headless = "db.shop.svc.cluster.local";
        let mut half = Service::named("shop", "half.shop.svc.cluster.local");
        half.ports = ports(1);
        let half = Change::Service(half);
        // Its port leads to a name that no pod declares.
        let mut unlike = Service::named("shop", "unlike.shop.svc.cluster.local");
        unlike.ports = ports(1);
        let unlike = Change::Service(unlike);
        for change in [
            service("shop", "cart.shop.svc.cluster.local", &["10.96.0.1", "fd00::1"]),
            service("pay", "bank.pay.svc.cluster.local", &["10.96.0.2"]),
            service("shop", headless, &[]),
            service("shop", "none.shop.svc.cluster.local", &[]),
            service("shop", "api.example.com", &["240.240.0.1", "2001:2::1"]),
            service("shop", "*.wild.example.com", &["240.240.0.2"]),
            service("shop", "*.deep.wild.example.com", &["240.240.0.3"]),
            service("shop", "named.example.com", &[]),
            workload("db-0", headless, &["10.244.1.1", "fd01::1"], true),
            workload("db-1", headless, &["10.244.1.2"], true),
            workload("db-2", headless, &["10.244.1.3"], false),
            half,
            workload("half-0", "half.shop.svc.cluster.local", &["10.244.2.1"], true),
            workload("half-1", "half.shop.svc.cluster.local", &["10.244.2.2"], true),
            unlike,
            workload("none-0", "unlike.shop.svc.cluster.local", &["10.244.2.3"], true),
        ] {
            view.apply(change);
        }
        view
    }

    fn check(name: &str, family: Family, expected: Option<&[&str]>) {
        let network = Text::from("");
        let asker = Asker {
            namespace: "shop",
            network: &network,
            cluster_domain: "cluster.local",
            ipv6: true,
        };
        let got = match resolve(&view(), &asker, name, family, 0) {
            Resolution::Known { addresses, .. } => Some(addresses),
            Resolution::Forward => None,
        };
        let expected = expected.map(|ips| {
            ips.iter().map(|ip| ip.parse::<IpAddr>().expect("an address")).collect::<Vec<_>>()
        });
        assert_eq!(got, expected, "{name} {family:?}");
    }

    #[test]
    fn names_resolve_in_every_form() {
        use Family::{Ipv4, Ipv6};
        let cart = Some(&["10.96.0.1"][..]);
        check("cart.shop.svc.cluster.local", Ipv4, cart);
        check("cart.shop.svc.cluster.local", Ipv6, Some(&["fd00::1"]));
        check("cart", Ipv4, cart);
        check("cart.shop", Ipv4, cart);
        check("cart.shop.svc", Ipv4, cart);
        check("bank.pay", Ipv4, Some(&["10.96.0.2"]));
        check("bank", Ipv4, None);
        check("bank.pay.svc.cluster.local", Ipv6, Some(&[]));
        check("db", Ipv4, Some(&["10.244.1.1", "10.244.1.2"]));
        check("db.shop.svc.cluster.local", Ipv6, Some(&["fd01::1"]));
        check("half", Ipv4, Some(&["10.244.2.1"]));
        check("unlike", Ipv4, Some(&["10.244.2.3"]));
        check("none.shop.svc.cluster.local", Ipv4, Some(&[]));
        check("api.example.com", Ipv4, Some(&["240.240.0.1"]));
        check("api.example.com", Ipv6, Some(&["2001:2::1"]));
        check("api.example.com.shop.svc.cluster.local", Ipv4, Some(&["240.240.0.1"]));
        check("api.example.com.svc.cluster.local", Ipv4, Some(&["240.240.0.1"]));
        check("api.example.com.cluster.local", Ipv4, Some(&["240.240.0.1"]));
        check("a.wild.example.com", Ipv4, Some(&["240.240.0.2"]));
        check("a.b.wild.example.com", Ipv4, Some(&["240.240.0.2"]));
        check("a.deep.wild.example.com", Ipv4, Some(&["240.240.0.3"]));
        check("wild.example.com", Ipv4, None);
        check("named.example.com", Ipv4, None);
        check("other.example.com", Ipv4, None);
        check("missing.shop.svc.cluster.local", Ipv4, None);
        check("", Ipv4, None);
        check(".", Ipv4, None);
    }

    /// The same view with a Service `server` in namespace `a`, and these hosts of ServiceEntries.
    fn beside(entries: &[(&str, &str, &str)]) -> View {
        let mut view = view();
        for change in [
            service("a", "server.a.svc.cluster.local", &["10.96.0.7"]),
            service("a", "db.a.svc.cluster.local", &[]),
            service("db", "db-0.db.svc.cluster.local", &["10.96.0.8"]),
        ] {
            let Change::Service(mut service) = change else { unreachable!() };
            service.canonical = true;
            view.apply(Change::Service(service));
        }
        for (namespace, host, ip) in entries {
            view.apply(service(namespace, host, &[*ip]));
        }
        view
    }

    #[test]
    fn a_search_domain_is_no_part_of_a_name() {
        let check = |name: &str, expected: Option<&str>| {
            let asker = Asker {
                namespace: "shop",
                network: &Text::from(""),
                cluster_domain: "cluster.local",
                ipv6: true,
            };
            let view = self::view();
            match resolve(&view, &asker, name, Family::Ipv4, 0) {
                Resolution::Known { canonical, .. } => {
                    assert_eq!(canonical.as_deref(), expected, "{name}");
                }
                Resolution::Forward => panic!("{name}"),
            }
        };
        check("db.shop.svc.cluster.local", None);
        check("db.shop.svc", None);
        check("db", None);
        for domain in ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local"] {
            let name = format!("db.shop.svc.cluster.local.{domain}");
            check(&name, Some("db.shop.svc.cluster.local"));
        }
        check("db.shop.shop.svc.cluster.local", Some("db.shop.svc.cluster.local"));
    }

    fn resolved(view: &View, namespace: &str, name: &str) -> Option<String> {
        let network = Text::from("");
        let asker =
            Asker { namespace, network: &network, cluster_domain: "cluster.local", ipv6: true };
        match resolve(view, &asker, name, Family::Ipv4, 0) {
            Resolution::Known { addresses, .. } => {
                Some(addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
            }
            Resolution::Forward => None,
        }
    }

    #[test]
    fn no_namespace_takes_over_anothers_names() {
        let hosts = [
            "server",
            "server.a",
            "server.a.svc",
            "server.a.svc.cluster.local",
            "server.a.a.svc.cluster.local",
            "server.a.svc.a.svc.cluster.local",
            "server.a.cluster.local",
            "*.a",
            "*.svc",
            "*.a.svc",
            "*.a.svc.cluster.local",
            "*.cluster.local",
        ];
        let names = [
            "server",
            "server.a",
            "server.a.svc",
            "server.a.svc.cluster.local",
            // With each search domain behind it.
            "server.a.a.svc.cluster.local",
            "server.a.svc.svc.cluster.local",
            "server.a.cluster.local",
            "server.a.svc.a.svc.cluster.local",
            "server.a.svc.cluster.local.a.svc.cluster.local",
        ];
        for host in hosts {
            let view = beside(&[("b", host, "10.66.0.1")]);
            for name in names {
                let found = resolved(&view, "a", name);
                assert_eq!(found.as_deref(), Some("10.96.0.7"), "{name} beside {host}");
            }
            for name in &names[1..4] {
                let found = resolved(&view, "shop", name);
                assert_eq!(found.as_deref(), Some("10.96.0.7"), "{name} from elsewhere");
            }
        }
        // Its own names are the namespace's to redirect, for itself.
        let view = beside(&[("b", "server.a", "10.66.0.1")]);
        assert_eq!(resolved(&view, "b", "server.a").as_deref(), Some("10.66.0.1"));
        let searched = resolved(&view, "b", "server.a.b.svc.cluster.local");
        assert_eq!(searched.as_deref(), Some("10.66.0.1"));
    }

    #[test]
    fn names_that_only_a_service_entry_has_are_found() {
        let hosts =
            ["other", "other.a", "other.a.svc", "other.a.svc.cluster.local", "api.b.example"];
        for host in hosts {
            let view = beside(&[("b", host, "10.66.0.1")]);
            assert_eq!(resolved(&view, "a", host).as_deref(), Some("10.66.0.1"), "{host}");
            if host.contains('.') {
                let searched = resolved(&view, "a", &format!("{host}.a.svc.cluster.local"));
                assert_eq!(searched.as_deref(), Some("10.66.0.1"), "{host}");
            }
        }
    }

    #[test]
    fn pods_below_a_service_are_nobody_elses_to_name() {
        let pod = "db-0.db.a.svc.cluster.local";
        // Neither a ServiceEntry, nor a Service of a namespace that is called like the service.
        for host in [pod, "db-0.db", "*.db.a.svc.cluster.local", "*.db"] {
            assert_eq!(resolved(&beside(&[("b", host, "10.66.0.1")]), "a", pod), None, "{host}");
        }
        assert_eq!(resolved(&beside(&[]), "shop", "db-0.db").as_deref(), Some("10.96.0.8"));
        // A pod asks for most names with each of its search domains first.
        for short in ["db-0.db.a", "db-0.db.a.svc", pod] {
            let view = beside(&[("b", short, "10.66.0.1"), ("b", pod, "10.66.0.1")]);
            for domain in ["", ".shop.svc.cluster.local", ".svc.cluster.local", ".cluster.local"] {
                let name = format!("{short}{domain}");
                assert_eq!(resolved(&view, "shop", &name), None, "{name}");
            }
        }
        for name in ["10-9-0-1.a.pod", "10-9-0-1.a.pod.cluster.local"] {
            let view = beside(&[("b", name, "10.66.0.1")]);
            for domain in ["", ".shop.svc.cluster.local", ".cluster.local"] {
                assert_eq!(resolved(&view, "shop", &format!("{name}{domain}")), None, "{name}");
            }
        }
        // Neither a Service with an address nor a name that only ends like a pod's is one.
        for name in ["api.server.a", "api.example.b.pod", "api.pod"] {
            let view = beside(&[("b", name, "10.66.0.1")]);
            assert_eq!(resolved(&view, "shop", name).as_deref(), Some("10.66.0.1"), "{name}");
        }
        // Its own namespace may name what it likes, for itself.
        let view = beside(&[("b", "db-0.db.a", "10.66.0.1")]);
        let found = resolved(&view, "b", "db-0.db.a.b.svc.cluster.local");
        assert_eq!(found.as_deref(), Some("10.66.0.1"));
    }

    #[test]
    fn what_is_private_to_a_namespace_is_seen_there_alone() {
        let mut view = beside(&[]);
        let Change::Service(mut private) = service("a", "own.a.svc.cluster.local", &["10.96.0.9"])
        else {
            unreachable!()
        };
        private.namespace_only = true;
        view.apply(Change::Service(private));
        assert_eq!(resolved(&view, "a", "own.a").as_deref(), Some("10.96.0.9"));
        assert_eq!(resolved(&view, "shop", "own.a"), None);
    }

    #[test]
    fn clients_are_spread_over_endpoints() {
        let network = Text::from("");
        let asker = Asker {
            namespace: "shop",
            network: &network,
            cluster_domain: "cluster.local",
            ipv6: false,
        };
        let first = |random| match resolve(&view(), &asker, "db", Family::Ipv4, random) {
            Resolution::Known { addresses, ttl: HEADLESS_TTL_SECONDS, .. } => addresses[0],
            other => panic!("{other:?}"),
        };
        assert_ne!(first(0), first(1));
        let six = resolve(&view(), &asker, "db", Family::Ipv6, 0);
        let ttl = HEADLESS_TTL_SECONDS;
        assert_eq!(six, Resolution::Known { canonical: None, addresses: vec![], ttl });
    }
}
