//! Hosts as Istio's resources write them, and which objects name which.
//!
//! A name without dots is a Service of the object's own namespace; `*` stands for any beginning.

use std::collections::{BTreeMap, BTreeSet};

use ambit_manifest::ObjectName;
use ambit_model::Text;

/// A host of an object of this namespace, in full, in a mesh with this domain.
pub(super) fn full(domain: &str, host: &str, namespace: &str) -> Text {
    match host.contains('.') || host.starts_with('*') {
        true => host.into(),
        false => format!("{host}.{namespace}.svc.{domain}").into(),
    }
}

/// Whether a host, in full, means the service of this hostname.
pub(super) fn means(host: &str, hostname: &str) -> bool {
    match host.strip_prefix('*') {
        Some(end) => hostname.ends_with(end),
        None => host == hostname,
    }
}

/// Whether clients of `client` are meant by the `exportTo` of an object of `namespace`.
pub(super) fn is_exported(export_to: &[String], namespace: &str, client: &str) -> bool {
    export_to.is_empty()
        || export_to.iter().any(|it| match it.as_str() {
            "*" => true,
            "." => namespace == client,
            other => other == client,
        })
}

/// Objects by the hosts that they name, in full.
#[derive(Debug, Default)]
pub(super) struct ByHost {
    exact: BTreeMap<Text, BTreeSet<ObjectName>>,
    wild: BTreeSet<(Text, ObjectName)>,
}

impl ByHost {
    pub(super) fn insert(&mut self, host: Text, object: &ObjectName) {
        match host.starts_with('*') {
            true => {
                self.wild.insert((host, object.clone()));
            }
            false => {
                self.exact.entry(host).or_default().insert(object.clone());
            }
        }
    }

    pub(super) fn remove(&mut self, host: &Text, object: &ObjectName) {
        self.wild.remove(&(host.clone(), object.clone()));
        if let Some(objects) = self.exact.get_mut(host) {
            objects.remove(object);
            if objects.is_empty() {
                self.exact.remove(host);
            }
        }
    }

    /// The objects that name this hostname, each with the host that it names. What is more
    /// specific comes first.
    pub(super) fn naming<'a>(&'a self, hostname: &'a str) -> Vec<(&'a str, &'a ObjectName)> {
        let exact = self.exact.get_key_value(hostname).into_iter();
        let exact = exact.flat_map(|(host, all)| all.iter().map(|object| (&**host, object)));
        let wild = self.wild.iter().filter(|(host, _)| means(host, hostname));
        let mut wild: Vec<_> = wild.map(|(host, object)| (&**host, object)).collect();
        wild.sort_by_key(|(host, _)| std::cmp::Reverse(host.len()));
        exact.chain(wild).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_full_and_the_more_specific_comes_first() {
        assert_eq!(&*full("cluster.local", "web", "shop"), "web.shop.svc.cluster.local");
        assert_eq!(&*full("cluster.local", "web.shop", "app"), "web.shop");
        let mut hosts = ByHost::default();
        let object = |name: &str| ObjectName::new("shop", name);
        for (host, name) in [("*", "all"), ("*.x.com", "part"), ("a.x.com", "one"), ("b", "b")] {
            hosts.insert(host.into(), &object(name));
        }
        let names = |hosts: &ByHost| {
            let names = hosts.naming("a.x.com").into_iter().map(|(_, it)| it.name.to_string());
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&hosts), "one part all");
        hosts.remove(&"*.x.com".into(), &object("part"));
        hosts.remove(&"a.x.com".into(), &object("one"));
        assert_eq!(names(&hosts), "all");
    }

    #[test]
    fn an_object_is_for_whom_it_is_exported_to() {
        for (export_to, client, expected) in [
            (vec![], "any", true),
            (vec!["*"], "any", true),
            (vec!["."], "own", true),
            (vec!["."], "any", false),
            (vec!["shop", "bank"], "bank", true),
            (vec!["~"], "own", false),
        ] {
            let export_to: Vec<String> = export_to.into_iter().map(str::to_owned).collect();
            assert_eq!(is_exported(&export_to, "own", client), expected, "{export_to:?} {client}");
        }
    }
}
