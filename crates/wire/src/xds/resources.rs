//! What a control plane serves: named resources, their versions and the order of their changes.
//!
//! Everything is persistent: a clone is a handful of reference counts, so a writer publishes a new
//! [`Resources`] after each change and streams read theirs without waiting. A journal of changes,
//! ordered by sequence number, makes one change cost the streams O(changed) and not O(all). It is
//! bounded: it lists each resource once, and the last [`MAX_TOMBSTONES`] removed ones. A stream
//! that is further behind starts again and compares versions.
//!
//! Everything is kept once, in the form that is sent, because one process serves 100,000 workloads.
//! Few clients ask for workloads alone, without services; for those, workloads are extracted from
//! the addresses.

use std::fmt;

use bytes::Bytes;
use imbl::{HashMap, OrdMap, OrdSet};
use prost::Message as _;
use zeroize::Zeroize as _;

use ambit_model::Text;
use ambit_model::few::{self, Few};
use ambit_model::http::certificate::{Certificate, CertificateName};
use ambit_model::http::gateway::{Gateway, GatewayRoute, GatewayRouteName};
use ambit_model::http::policy::RequestPolicy;
use ambit_model::http::service::ServiceHttp;
use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::policy::Policy;
use ambit_model::service::Service;
use ambit_model::workload::Workload;

use super::digest::{Grouping, Lazy};
use super::{ResourceType, VERSION_LEN, content_version, service_aliases, workload_aliases};
use crate::proto::Any;
use crate::proto::ambit::http;
use crate::proto::envoy::service::discovery::v3::Resource;
use crate::proto::istio::{security, workload as proto};

/// How many vanished resources a journal remembers.
pub const MAX_TOMBSTONES: usize = 65_536;
/// Where the version is in an encoded resource: its first field, after a tag and a length.
const VERSION_AT: usize = 2;

/// Everything that is served, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Resources {
    authorizations: ResourceSet,
    addresses: ResourceSet,
    http_services: ResourceSet,
    certificates: ResourceSet,
    gateways: ResourceSet,
    request_policies: ResourceSet,
}

impl Resources {
    /// Adds or replaces a workload. Returns whether anything changed.
    pub fn put_workload(&mut self, workload: &Workload) -> bool {
        let parents = workload.services.keys().map(ToString::to_string).collect();
        let names = Names { aliases: workload_aliases(workload), parents };
        let message = proto::Workload::from(workload);
        let workload_len = message.encoded_len();
        let message = proto::Address { r#type: Some(proto::address::Type::Workload(message)) };
        let (name, body) = (&*workload.uid, message.encode_to_vec());
        self.addresses.put(ResourceType::Address, name, names, body, workload_len)
    }

    /// Adds or replaces a service. Returns whether anything changed.
    pub fn put_service(&mut self, service: &Service) -> bool {
        let names = Names { aliases: service_aliases(service), parents: Vec::new() };
        let body = proto::Address::from(service).encode_to_vec();
        self.addresses.put(ResourceType::Address, &service.key.to_string(), names, body, 0)
    }

    /// Adds or replaces a policy. Returns whether anything changed.
    pub fn put_policy(&mut self, policy: &Policy) -> bool {
        let (name, kind) = (policy.key.to_string(), ResourceType::Authorization);
        let body = security::Authorization::from(policy).encode_to_vec();
        self.authorizations.put(kind, &name, Names::default(), body, 0)
    }

    /// Adds or replaces what holds for the requests to a service. Returns whether anything changed.
    pub fn put_http_service(&mut self, service: &ServiceHttp) -> bool {
        let (name, kind) = (service.service.to_string(), ResourceType::HttpService);
        let body = http::Service::from(service).encode_to_vec();
        self.http_services.put(kind, &name, Names::default(), body, 0)
    }

    /// Adds or replaces a certificate of a gateway. Returns whether anything changed.
    pub fn put_certificate(&mut self, certificate: &Certificate) -> bool {
        let (name, kind) = (certificate.key.to_string(), ResourceType::Certificate);
        let mut message = http::Certificate::from(certificate);
        let body = message.encode_to_vec();
        message.key_pem.zeroize();
        self.certificates.put(kind, &name, Names::default(), body, 0)
    }

    /// Adds or replaces a gateway, without its routes. Returns whether anything changed.
    pub fn put_gateway(&mut self, gateway: &Gateway) -> bool {
        let (name, kind) = (gateway.service.to_string(), ResourceType::Gateway);
        let body = http::GatewayResource::from(gateway).encode_to_vec();
        self.gateways.put(kind, &name, Names::default(), body, 0)
    }

    /// Adds or replaces a route of a gateway. Returns whether anything changed.
    pub fn put_gateway_route(&mut self, route: &GatewayRoute) -> bool {
        let (name, kind) = (route.name.to_string(), ResourceType::Gateway);
        let names = Names { parents: vec![route.name.gateway.to_string()], ..Names::default() };
        let body = http::GatewayResource::from(route).encode_to_vec();
        self.gateways.put(kind, &name, names, body, 0)
    }

    /// Adds or replaces a policy that reads requests. Returns whether anything changed.
    pub fn put_request_policy(&mut self, policy: &RequestPolicy) -> bool {
        let (name, kind) = (policy.key.to_string(), ResourceType::RequestPolicy);
        let body = http::RequestPolicy::from(policy).encode_to_vec();
        self.request_policies.put(kind, &name, Names::default(), body, 0)
    }

    /// Removes a workload by its uid. Returns whether it was there.
    pub fn remove_workload(&mut self, uid: &str) -> bool {
        self.addresses.remove(uid)
    }

    /// Removes a service. Returns whether it was there.
    pub fn remove_service(&mut self, name: &ServiceName) -> bool {
        self.addresses.remove(&name.to_string())
    }

    /// Removes a policy. Returns whether it was there.
    pub fn remove_policy(&mut self, name: &PolicyName) -> bool {
        self.authorizations.remove(&name.to_string())
    }

    /// Removes what holds for the requests to a service. Returns whether it was there.
    pub fn remove_http_service(&mut self, name: &ServiceName) -> bool {
        self.http_services.remove(&name.to_string())
    }

    /// Removes a certificate of a gateway. Returns whether it was there.
    pub fn remove_certificate(&mut self, name: &CertificateName) -> bool {
        self.certificates.remove(&name.to_string())
    }

    /// Removes what a gateway serves. Returns whether it was there.
    pub fn remove_gateway(&mut self, name: &ServiceName) -> bool {
        self.gateways.remove(&name.to_string())
    }

    /// Removes a route of a gateway. Returns whether it was there.
    pub fn remove_gateway_route(&mut self, name: &GatewayRouteName) -> bool {
        self.gateways.remove(&name.to_string())
    }

    /// Removes a policy that reads requests. Returns whether it was there.
    pub fn remove_request_policy(&mut self, name: &PolicyName) -> bool {
        self.request_policies.remove(&name.to_string())
    }

    /// The resources of one type.
    pub fn of(&self, resource_type: ResourceType) -> Served<'_> {
        let set = match resource_type {
            ResourceType::Authorization => &self.authorizations,
            ResourceType::HttpService => &self.http_services,
            ResourceType::Certificate => &self.certificates,
            ResourceType::Gateway => &self.gateways,
            ResourceType::RequestPolicy => &self.request_policies,
            ResourceType::Address | ResourceType::Workload => &self.addresses,
        };
        Served { set, resource_type }
    }
}

/// Resources in one space of names.
#[derive(Clone, Debug, Default)]
struct ResourceSet {
    entries: HashMap<Text, Entry>,
    /// How many of them are workloads.
    workloads: usize,
    /// By alias, the names that it means: two pods share an address while one replaces the other.
    aliases: OrdMap<Text, Few<Text>>,
    /// By the name of a service, its workloads. The service need not be there.
    members: HashMap<Text, OrdSet<Text>>,
    /// The last change of each resource that is there, and of some that are gone. A number that is
    /// not its name's newest says nothing.
    journal: OrdMap<u64, Text>,
    /// Numbers of the removals in the journal, and whether it was a workload that went.
    tombstones: OrdMap<u64, bool>,
    /// Changes up to here may be missing from the journal.
    horizon: u64,
    sequence: u64,
    digests: Lazy,
}

/// One resource, in the form that is served.
#[derive(Clone)]
pub(crate) struct Entry {
    /// The whole resource as it is sent, which begins with its version.
    encoded: Bytes,
    /// Its other names, which are sent to clients.
    pub(crate) aliases: Box<[Text]>,
    /// Resources that are sent together with it, for a workload its services.
    pub(crate) parents: Box<[Text]>,
    sequence: u64,
    /// How long the workload in an address is, 0 for anything else.
    workload_len: u32,
}

impl fmt::Debug for Entry {
    /// Never the content, which may be a private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({}, change {})", self.version(), self.sequence)
    }
}

impl Entry {
    /// Its version, a hash of its content.
    pub(crate) fn version(&self) -> &str {
        let version = self.encoded.get(VERSION_AT..VERSION_AT + VERSION_LEN);
        version.and_then(|it| str::from_utf8(it).ok()).unwrap_or_default()
    }

    /// Number of its last change.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The resource, in the form that is sent.
    pub(crate) fn encoded(&self, resource_type: ResourceType, name: &str) -> Bytes {
        if resource_type != ResourceType::Workload {
            return self.encoded.clone();
        }
        // An address ends with its workload and is followed by the name and the aliases.
        let aliases = self.aliases();
        let after = Resource { name: name.to_owned(), aliases, ..Resource::default() };
        let end = self.encoded.len() - after.encoded_len();
        let body = self.encoded.slice(end - self.workload_len as usize..end);
        encode(resource_type, self.version().to_owned(), body, after)
    }

    fn aliases(&self) -> Vec<String> {
        self.aliases.iter().map(ToString::to_string).collect()
    }

    fn is_workload(&self) -> bool {
        self.workload_len > 0
    }
}

fn encode(resource_type: ResourceType, version: String, body: Bytes, names: Resource) -> Bytes {
    let any = Any { type_url: resource_type.url().to_owned(), value: body };
    Resource { version, resource: Some(any), ..names }.encode_to_vec().into()
}

/// By what else a resource is found.
#[derive(Default)]
struct Names {
    aliases: Vec<String>,
    parents: Vec<String>,
}

/// What the journal says about a resource.
pub(crate) enum Changed<'a> {
    /// It is there, and this is its last change.
    Put(&'a Text, &'a Entry),
    /// It is gone.
    Gone(&'a Text),
}

impl ResourceSet {
    /// Adds or replaces a resource. Returns whether anything changed.
    fn put(
        &mut self,
        resource_type: ResourceType,
        name: &str,
        names: Names,
        body: Vec<u8>,
        workload_len: usize,
    ) -> bool {
        let version = content_version(&body);
        let old = self.entries.get(name);
        let is_same = |it: &[Text], other: &[String]| it.iter().map(|it| &**it).eq(other);
        if old.is_some_and(|old| {
            old.version() == version
                && is_same(&old.aliases, &names.aliases)
                && is_same(&old.parents, &names.parents)
        }) {
            return false;
        }
        if let Some(old) = old.cloned() {
            self.unlink(name, &old);
        }
        let name: Text = name.into();
        // The indexes hold the same texts.
        let link = |alias: &String| {
            let known = self.aliases.get_key_value(alias.as_str());
            let alias = known.map_or_else(|| alias.as_str().into(), |(known, _)| known.clone());
            few::add(&mut self.aliases, alias.clone(), name.clone());
            alias
        };
        let aliases = names.aliases.iter().map(link).collect();
        let link = |parent: &String| {
            let known = self.members.get_key_value(parent.as_str());
            let parent = known.map_or_else(|| parent.as_str().into(), |(known, _)| known.clone());
            self.members.entry(parent.clone()).or_default().insert(name.clone());
            parent
        };
        let parents = names.parents.iter().map(link).collect();
        self.sequence += 1;
        self.digests.forget();
        self.journal.insert(self.sequence, name.clone());
        let told =
            Resource { name: name.to_string(), aliases: names.aliases, ..Resource::default() };
        let entry = Entry {
            encoded: encode(resource_type, version, body.into(), told),
            aliases,
            parents,
            sequence: self.sequence,
            workload_len: u32::try_from(workload_len).expect("a workload is far below 4 GiB"),
        };
        self.workloads += usize::from(entry.is_workload());
        self.entries.insert(name, entry);
        true
    }

    /// The oldest tombstone makes room for a new one.
    fn remove(&mut self, name: &str) -> bool {
        let Some((name, old)) = self.entries.remove_with_key(name) else { return false };
        self.unlink(&name, &old);
        self.sequence += 1;
        self.digests.forget();
        self.journal.insert(self.sequence, name);
        self.tombstones.insert(self.sequence, old.is_workload());
        if self.tombstones.len() > MAX_TOMBSTONES
            && let Some((oldest, _)) = self.tombstones.get_min().copied()
        {
            self.tombstones.remove(&oldest);
            self.journal.remove(&oldest);
            self.horizon = oldest;
        }
        true
    }

    /// Takes a resource out of the journal and of the indexes.
    fn unlink(&mut self, name: &str, old: &Entry) {
        self.workloads -= usize::from(old.is_workload());
        self.journal.remove(&old.sequence);
        for alias in &old.aliases {
            few::remove(&mut self.aliases, alias, &Text::from(name));
        }
        for parent in &old.parents {
            let Some(names) = self.members.get_mut(parent) else { continue };
            names.remove(name);
            if names.is_empty() {
                self.members.remove(parent);
            }
        }
    }
}

/// The resources of one type, at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Served<'a> {
    set: &'a ResourceSet,
    resource_type: ResourceType,
}

impl<'a> Served<'a> {
    /// How many resources there are.
    pub fn len(self) -> usize {
        match self.resource_type {
            ResourceType::Workload => self.set.workloads,
            _ => self.set.entries.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Number of the last change; equal numbers of one history mean equal content.
    pub fn sequence(self) -> u64 {
        self.set.sequence
    }

    /// The version of a resource.
    pub fn version(self, name: &str) -> Option<&'a str> {
        self.entry(name).map(|(_, entry)| entry.version())
    }

    fn has(self, entry: &Entry) -> bool {
        self.resource_type != ResourceType::Workload || entry.is_workload()
    }

    /// Whether what vanished by this change was of the type.
    fn had(self, change: u64) -> bool {
        let was_workload = || self.set.tombstones.get(&change).copied().unwrap_or_default();
        self.resource_type != ResourceType::Workload || was_workload()
    }

    /// The resource of this very name, with the shared copy of the name.
    pub(crate) fn entry(self, name: &str) -> Option<(&'a Text, &'a Entry)> {
        self.set.entries.get_key_value(name).filter(|(_, entry)| self.has(entry))
    }

    /// All resources, in no particular order.
    fn entries(self) -> impl Iterator<Item = (&'a Text, &'a Entry)> {
        self.set.entries.iter().filter(move |(_, entry)| self.has(entry))
    }

    /// The digests of all that is there.
    pub(crate) fn digests(self, grouping: Grouping) -> Bytes {
        let resources = || self.entries().map(|(name, it)| (&**name, it.version()));
        self.set.digests.get((self.resource_type, grouping), resources)
    }

    /// All names.
    pub(crate) fn names(self) -> impl Iterator<Item = &'a Text> {
        self.entries().map(|(name, _)| name)
    }

    /// The resources of a name or alias.
    pub(crate) fn resolve(self, asked: &str) -> Vec<Text> {
        let itself = self.entry(asked).map(|(name, _)| name.clone());
        let others = self.set.aliases.get(asked).into_iter().flat_map(Few::iter);
        let others = others.filter(|name| self.entry(name).is_some());
        itself.into_iter().chain(others.cloned()).collect()
    }

    /// The resources that are sent together with this one.
    pub(crate) fn members(self, name: &str) -> impl Iterator<Item = &'a Text> {
        self.set.members.get(name).into_iter().flatten()
    }

    /// Whether the journal has everything after this number.
    pub(crate) fn remembers(self, sequence: u64) -> bool {
        sequence >= self.set.horizon
    }

    /// The changes after this number, in order.
    pub(crate) fn changes_after(self, sequence: u64) -> impl Iterator<Item = (u64, Changed<'a>)> {
        self.set.journal.range(sequence.saturating_add(1)..).filter_map(
            move |(at, name)| match self.set.entries.get(name) {
                Some(entry) if entry.sequence != *at || !self.has(entry) => None,
                Some(entry) => Some((*at, Changed::Put(name, entry))),
                None if self.had(*at) => Some((*at, Changed::Gone(name))),
                None => None,
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_and_indexes_stay_as_small_as_what_is_there() {
        let mut resources = Resources::default();
        for index in 0..100_u8 {
            let mut workload = Workload::named("w", "n", "w");
            workload.addresses = vec![[10, 0, 0, index].into()].into();
            workload.serve(ServiceName::new("n", format!("s{index}")), Vec::new());
            resources.put_workload(&workload);
        }
        let sizes = |set: &ResourceSet| {
            [set.journal.len(), set.tombstones.len(), set.aliases.len(), set.members.len()]
        };
        assert_eq!(sizes(&resources.addresses), [1, 0, 1, 1]);
        resources.remove_workload("w");
        assert_eq!(sizes(&resources.addresses), [1, 1, 0, 0]);
        for index in 0..=MAX_TOMBSTONES {
            resources.put_workload(&Workload::named(format!("w{index}"), "n", "w"));
            resources.remove_workload(&format!("w{index}"));
        }
        assert_eq!(sizes(&resources.addresses), [MAX_TOMBSTONES, MAX_TOMBSTONES, 0, 0]);
    }
}
