//! What a control plane serves: named resources, their versions and the order of their changes.
//!
//! Everything is persistent: a clone is a handful of reference counts, so a writer publishes a new
//! [`Resources`] after each change and streams read theirs without waiting. A journal of changes,
//! ordered by sequence number, makes one change cost the streams O(changed) and not O(all). It is
//! bounded: each resource stands in it once, and of those that are gone the last
//! [`MAX_TOMBSTONES`]; a stream that is further behind starts anew and is told by versions.

use std::sync::Arc;

use bytes::Bytes;
use imbl::{HashMap, OrdMap, OrdSet};
use prost::Message as _;

use ambit_model::Text;
use ambit_model::few::{self, Few};
use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::policy::Policy;
use ambit_model::service::Service;
use ambit_model::workload::Workload;

use super::digest::{Grouping, Lazy};
use super::{ResourceType, content_version, service_aliases, workload_aliases};
use crate::proto::Any;
use crate::proto::envoy::service::discovery::v3::Resource;
use crate::proto::istio::{security, workload as proto};

/// How many vanished resources a journal remembers.
pub const MAX_TOMBSTONES: usize = 65_536;

/// Everything that is served, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Resources {
    authorizations: ResourceSet,
    addresses: ResourceSet,
    workloads: ResourceSet,
}

impl Resources {
    /// Adds or replaces a workload. Returns whether anything changed.
    pub fn put_workload(&mut self, workload: &Workload) -> bool {
        let parents = workload.services.keys().map(ToString::to_string).collect();
        let names = Arc::new(Names { aliases: workload_aliases(workload), parents });
        let message = proto::Workload::from(workload);
        let bare_len = message.encoded_len();
        let message = proto::Address { r#type: Some(proto::address::Type::Workload(message)) };
        let (name, body) = (&*workload.uid, message.encode_to_vec());
        let version = content_version(&body);
        if self.addresses.is_current(name, &version, &names) {
            return false;
        }
        let content = Content::whole(ResourceType::Address, name, &version, &names, body);
        // An Address ends with the one workload it holds.
        let body = content.body.slice(content.body.len() - bare_len..);
        let bare = content_version(&body);
        self.workloads.put(name, bare, names.clone(), Content { body, resource: None });
        self.addresses.put(name, version, names, content);
        true
    }

    /// Adds or replaces a service. Returns whether anything changed.
    pub fn put_service(&mut self, service: &Service) -> bool {
        let names = Arc::new(Names { aliases: service_aliases(service), parents: Vec::new() });
        let body = proto::Address::from(service).encode_to_vec();
        self.addresses.put_body(ResourceType::Address, &service.key.to_string(), names, body)
    }

    /// Adds or replaces a policy. Returns whether anything changed.
    pub fn put_policy(&mut self, policy: &Policy) -> bool {
        let (name, kind) = (policy.key.to_string(), ResourceType::Authorization);
        let body = security::Authorization::from(policy).encode_to_vec();
        self.authorizations.put_body(kind, &name, Arc::default(), body)
    }

    /// Removes a workload by its uid. Returns whether it was there.
    pub fn remove_workload(&mut self, uid: &str) -> bool {
        self.workloads.remove(uid);
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

    /// The resources of one type.
    pub fn of(&self, resource_type: ResourceType) -> &ResourceSet {
        match resource_type {
            ResourceType::Authorization => &self.authorizations,
            ResourceType::Address => &self.addresses,
            ResourceType::Workload => &self.workloads,
        }
    }
}

/// The resources of one type.
#[derive(Clone, Debug, Default)]
pub struct ResourceSet {
    entries: HashMap<Text, Entry>,
    /// By alias, what it stands for: two pods share an address while one replaces the other.
    aliases: HashMap<Text, Few<Text>>,
    /// By the name of a service, its workloads. The service need not be there.
    members: HashMap<Text, OrdSet<Text>>,
    /// The last change of each resource that is there, and of some that are gone. A number that is
    /// not its name's newest says nothing.
    journal: OrdMap<u64, Text>,
    /// Numbers of the removals in the journal, oldest first.
    tombstones: OrdSet<u64>,
    /// Changes up to here may be missing from the journal.
    horizon: u64,
    sequence: u64,
    digests: Lazy,
}

/// One resource as it is served.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) version: Text,
    pub(crate) names: Arc<Names>,
    content: Content,
    sequence: u64,
}

impl Entry {
    /// Number of its last change.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The resource as it is sent.
    pub(crate) fn encoded(&self, resource_type: ResourceType, name: &str) -> Bytes {
        let Content { body, resource } = &self.content;
        let encode = || encode(resource_type, name, &self.version, &self.names, body.clone());
        resource.clone().unwrap_or_else(encode)
    }
}

/// What a resource says.
#[derive(Clone, Debug)]
struct Content {
    body: Bytes,
    /// The whole resource, of which the body is a part; none of a type that few ask for.
    resource: Option<Bytes>,
}

impl Content {
    fn whole(
        resource_type: ResourceType,
        name: &str,
        version: &str,
        names: &Names,
        body: Vec<u8>,
    ) -> Self {
        let body_len = body.len();
        let resource = encode(resource_type, name, version, names, body.into());
        // The body, if it is not empty, is followed by the name and the aliases.
        let (name, aliases) = (name.to_owned(), names.aliases.clone());
        let after = Resource { name, aliases, ..Resource::default() }.encoded_len();
        let end = resource.len() - after;
        Self { body: resource.slice(end - body_len..end), resource: Some(resource) }
    }
}

fn encode(
    resource_type: ResourceType,
    name: &str,
    version: &str,
    names: &Names,
    body: Bytes,
) -> Bytes {
    let resource = Resource {
        version: version.to_owned(),
        resource: Some(Any { type_url: resource_type.url().to_owned(), value: body }),
        name: name.to_owned(),
        aliases: names.aliases.clone(),
        ttl: None,
    };
    resource.encode_to_vec().into()
}

/// By what else a resource is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    /// Names that stand for it, told to clients.
    pub(crate) aliases: Vec<String>,
    /// Resources that are sent together with it, for a workload its services.
    pub(crate) parents: Vec<String>,
}

/// What the journal says about a resource.
pub(crate) enum Changed<'a> {
    /// It is there, and this is its last change.
    Put(&'a Text, &'a Entry),
    /// It is gone.
    Gone(&'a Text),
}

impl ResourceSet {
    /// How many resources there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of the last change; equal numbers of one set's history mean equal content.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The version of a resource.
    pub fn version(&self, name: &str) -> Option<&str> {
        self.entries.get(name).map(|entry| &*entry.version)
    }

    /// Whether a resource is what it was: its version would be the same.
    fn is_current(&self, name: &str, version: &str, names: &Arc<Names>) -> bool {
        let old = self.entries.get(name);
        old.is_some_and(|old| *old.version == *version && old.names == *names)
    }

    /// Adds or replaces a resource. Returns whether anything changed.
    fn put_body(
        &mut self,
        resource_type: ResourceType,
        name: &str,
        names: Arc<Names>,
        body: Vec<u8>,
    ) -> bool {
        let version = content_version(&body);
        if self.is_current(name, &version, &names) {
            return false;
        }
        let content = Content::whole(resource_type, name, &version, &names, body);
        self.put(name, version, names, content);
        true
    }

    fn put(&mut self, name: &str, version: String, names: Arc<Names>, content: Content) {
        if let Some(old) = self.entries.get(name).cloned() {
            self.unlink(name, &old);
        }
        let name: Text = name.into();
        for alias in &names.aliases {
            few::add(&mut self.aliases, alias.as_str().into(), name.clone());
        }
        for parent in &names.parents {
            self.members.entry(parent.as_str().into()).or_default().insert(name.clone());
        }
        self.sequence += 1;
        self.digests.forget();
        self.journal.insert(self.sequence, name.clone());
        let entry = Entry { version: version.into(), names, content, sequence: self.sequence };
        self.entries.insert(name, entry);
    }

    /// The oldest tombstone makes room for a new one.
    fn remove(&mut self, name: &str) -> bool {
        let Some(old) = self.entries.remove(name) else { return false };
        self.unlink(name, &old);
        self.sequence += 1;
        self.digests.forget();
        self.journal.insert(self.sequence, name.into());
        self.tombstones.insert(self.sequence);
        if self.tombstones.len() > MAX_TOMBSTONES
            && let Some(oldest) = self.tombstones.remove_min()
        {
            self.journal.remove(&oldest);
            self.horizon = oldest;
        }
        true
    }

    /// Takes a resource out of the journal and of the indexes.
    fn unlink(&mut self, name: &str, old: &Entry) {
        self.journal.remove(&old.sequence);
        for alias in &old.names.aliases {
            few::remove(&mut self.aliases, alias.as_str(), &Text::from(name));
        }
        for parent in &old.names.parents {
            let Some(names) = self.members.get_mut(parent.as_str()) else { continue };
            names.remove(name);
            if names.is_empty() {
                self.members.remove(parent.as_str());
            }
        }
    }

    /// The resource of this very name, with the shared copy of the name.
    pub(crate) fn entry(&self, name: &str) -> Option<(&Text, &Entry)> {
        self.entries.get_key_value(name)
    }

    /// The digests of all that is there.
    pub(crate) fn digests(&self, grouping: Grouping) -> Bytes {
        let resources = || self.entries.iter().map(|(name, it)| (&**name, &*it.version));
        self.digests.get(grouping, resources)
    }

    /// All names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Text> {
        self.entries.keys()
    }

    /// The resources that a name or alias stands for.
    pub(crate) fn resolve(&self, asked: &str) -> Vec<Text> {
        let itself = self.entry(asked).map(|(name, _)| name.clone());
        let others = self.aliases.get(asked).into_iter().flat_map(Few::iter);
        itself.into_iter().chain(others.cloned()).collect()
    }

    /// The resources that are sent together with this one.
    pub(crate) fn members(&self, name: &str) -> impl Iterator<Item = &Text> {
        self.members.get(name).into_iter().flatten()
    }

    /// Whether the journal tells everything after this number.
    pub(crate) fn remembers(&self, sequence: u64) -> bool {
        sequence >= self.horizon
    }

    /// The changes after this number, in order.
    pub(crate) fn changes_after(&self, sequence: u64) -> impl Iterator<Item = (u64, Changed<'_>)> {
        self.journal.range(sequence.saturating_add(1)..).filter_map(|(at, name)| {
            match self.entries.get(name) {
                Some(entry) if entry.sequence == *at => Some((*at, Changed::Put(name, entry))),
                Some(_) => None,
                None => Some((*at, Changed::Gone(name))),
            }
        })
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
            workload.addresses = vec![[10, 0, 0, index].into()];
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
