//! The client end of delta discovery.
//!
//! The driver owns the connection. On every new stream it sends what [`Client::connected`] returns,
//! then feeds each response to [`Client::receive`], applies the changes to its view and *then*
//! sends the reply; between attempts it waits for [`super::Backoff`].
//!
//! Good resources of a response are accepted even when others are refused; the reply then names
//! each refused one. A refused resource leaves its previous version in force and is not remembered,
//! so a control plane sends it again; of layer 7 it takes the previous version with it, because
//! that might allow what the new one denies, and a route of a gateway the whole gateway, because
//! another route might take its requests. Never puts a message into the view without converting
//! it, and never forgets a resource because a connection ended.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use ambit_model::Text;
use ambit_model::http::gateway::GatewayRouteName;
use ambit_model::intern::Interner;
use ambit_model::view::Change;
use ambit_model::workload::Workload;
use bytes::Bytes;

use super::digest::Grouping;
use super::server::is_partial;
use super::{ResourceType, UnknownType, WILDCARD};
use crate::convert::http::gateway::{self, GatewayResource};
use crate::convert::{self, Address, ConvertError, Problem};
use crate::proto::Any;
use crate::proto::ambit::snapshot::{Delta, Snapshot};
use crate::proto::envoy::config::core::v3::Node;
use crate::proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, HeldVersion, Resource,
};
use crate::proto::google::rpc::Status;
use crate::proto::istio::workload as proto;

/// Most names that may be demanded on one client.
pub(crate) const MAX_DEMANDED: usize = 100_000;
/// Longest reason sent in a refusal.
const MAX_REASON_BYTES: usize = 4096;
/// `google.rpc.Code.INVALID_ARGUMENT`.
const INVALID_ARGUMENT: i32 = 3;

/// The subscription to one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Everything there is.
    Everything,
    /// Only what is demanded by name or alias.
    OnDemand,
}

/// The client end; lives as long as the proxy and survives connections.
#[derive(Debug)]
pub struct Client {
    node: Node,
    watches: BTreeMap<ResourceType, Watch>,
    /// The version of everything that is in force: a server sends what differs.
    versions: BTreeMap<ResourceType, HashMap<Text, Box<str>>>,
    interner: Interner,
}

/// What is asked for of one type, and how far it has been answered.
#[derive(Debug)]
struct Watch {
    interest: Interest,
    demanded: BTreeMap<String, Answer>,
    /// The whole was received at least once.
    complete: bool,
    /// The groups in which the server was last sent what is held.
    grouping: Grouping,
}

/// What is known of a name that was demanded.
#[derive(Debug, PartialEq)]
enum Answer {
    /// Nothing yet.
    Awaited,
    /// It does not exist, or no longer.
    Nothing,
    /// It means the resource of this name.
    Resource(String),
}

/// What a demand needs.
#[derive(Debug, Clone, PartialEq)]
pub enum Demand {
    /// Nothing: the view already has the answer for the name.
    Known,
    /// Patience: it was asked for and is not answered yet.
    Pending,
    /// This request, then patience.
    Send(Box<DeltaDiscoveryRequest>),
}

/// What follows from the names that are wanted.
#[derive(Debug, Default)]
pub struct Wanted {
    /// What asks for those that are new, and no longer for those that are not wanted.
    pub request: Option<DeltaDiscoveryRequest>,
    /// What is no longer known.
    pub changes: Vec<Change>,
}

/// What came of one response.
#[derive(Debug)]
pub struct Received {
    /// What changes in the view, in this order.
    pub changes: Vec<Change>,
    /// Demanded names that are now answered: present, or known not to exist.
    pub answered: Vec<String>,
    /// The refused resources.
    pub refused: Vec<Refusal>,
    /// What changes in the snapshot kept elsewhere.
    pub delta: Delta,
    /// The acknowledgement or refusal, to be sent once the changes are applied.
    pub reply: DeltaDiscoveryRequest,
}

/// A resource that was not taken as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: Reason,
}

/// Why a resource was not taken as it came.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// It could not be converted; its previous version, if any, stays.
    #[error("{0}")]
    Rejected(ConvertError),
    /// A policy in force, with conditions that could not be read in their strictest reading.
    #[error("in force with the strictest reading of {}", .0.join(", "))]
    Tightened(Vec<String>),
    /// The response is of a type that was not asked for.
    #[error("type {0} was not subscribed to")]
    NotSubscribed(String),
}

/// More names are demanded than a client keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_DEMANDED} names are demanded already; subscribe to everything instead")]
pub struct TooManyDemanded;

impl Client {
    /// A client that has not seen anything yet.
    pub fn new(node: Node, interests: impl IntoIterator<Item = (ResourceType, Interest)>) -> Self {
        let watch = |interest| Watch {
            interest,
            demanded: BTreeMap::new(),
            complete: false,
            grouping: Grouping::default(),
        };
        let watches = interests.into_iter().map(|(it, interest)| (it, watch(interest))).collect();
        Self { node, watches, versions: BTreeMap::new(), interner: Interner::default() }
    }

    /// Starts from what an earlier client held, and returns the view's changes. Resources that this
    /// version refuses are left out; types that are not asked for are ignored.
    pub fn restore(&mut self, snapshot: Snapshot) -> Result<Vec<Change>, UnknownType> {
        let mut changes = Vec::with_capacity(snapshot.resources.len());
        for kept in snapshot.resources {
            let resource_type = kept.type_url.parse()?;
            if !self.watches.contains_key(&resource_type) {
                continue;
            }
            match convert_body(resource_type, &kept.name, kept.body) {
                Ok((mut change, _)) => {
                    self.hold(resource_type, &mut change, kept.name, kept.version);
                    changes.push(change);
                }
                Err(_) => changes.extend(self.hold_unreadable(resource_type, &kept.name)),
            }
        }
        Ok(changes)
    }

    /// Whether each type asked for as a whole has been received as a whole, on any connection.
    pub fn is_complete(&self) -> bool {
        let whole = |watch: &&Watch| watch.interest == Interest::Everything;
        self.watches.values().filter(whole).all(|watch| watch.complete)
    }

    /// The requests that open a stream. They name to the server what is held already, by digests if
    /// it is known to compare them.
    pub fn connected(&mut self, server_compares: bool) -> Vec<DeltaDiscoveryRequest> {
        let versions = &self.versions;
        let opening = |(resource_type, watch): (&ResourceType, &mut Watch)| {
            let nothing = || match watch.interest {
                Interest::Everything => Vec::new(),
                Interest::OnDemand => vec![WILDCARD.to_owned()],
            };
            // An alias goes by the version of its resource; what is awaited has none, and is so
            // answered in any case.
            let version = |answer: &Answer| match answer {
                Answer::Awaited | Answer::Nothing => None,
                Answer::Resource(name) => version_of(versions, *resource_type, name),
            };
            let demanded = watch.demanded.iter();
            let demanded = demanded
                .map(|(name, answer)| HeldVersion::new(name, version(answer).unwrap_or_default()));
            let held = versions.get(resource_type).into_iter().flatten();
            let held = held.map(|(name, version)| (&**name, &**version));
            let mut request = DeltaDiscoveryRequest {
                node: Some(self.node.clone()),
                type_url: resource_type.url().to_owned(),
                resource_names_subscribe: nothing(),
                resource_names_unsubscribe: nothing(),
                ..Default::default()
            };
            let holds = versions.get(resource_type).map_or(0, HashMap::len);
            if server_compares && holds > 0 && watch.interest == Interest::Everything {
                watch.grouping = Grouping::of(holds);
                request.held_digests = watch.grouping.digests(held);
            } else {
                let held = held.map(|(name, version)| HeldVersion::new(name, version));
                request.initial_resource_versions = demanded.chain(held).collect();
            }
            request
        };
        self.watches.iter_mut().map(opening).collect()
    }

    /// Asks for one name or alias; [`Received::answered`] says when the answer is there.
    pub fn demand(
        &mut self,
        resource_type: ResourceType,
        name: &str,
    ) -> Result<Demand, TooManyDemanded> {
        let Some(watch) = self.watches.get_mut(&resource_type) else { return Ok(Demand::Known) };
        match watch.demanded.get(name) {
            _ if watch.interest == Interest::Everything => return Ok(Demand::Known),
            Some(Answer::Awaited) => return Ok(Demand::Pending),
            Some(Answer::Nothing | Answer::Resource(_)) => return Ok(Demand::Known),
            None if watch.demanded.len() >= MAX_DEMANDED => return Err(TooManyDemanded),
            None => watch.demanded.insert(name.to_owned(), Answer::Awaited),
        };
        Ok(Demand::Send(Box::new(DeltaDiscoveryRequest {
            type_url: resource_type.url().to_owned(),
            resource_names_subscribe: vec![name.to_owned()],
            ..Default::default()
        })))
    }

    /// Asks for exactly these names of a type that is watched on demand. What else it was asked for
    /// is forgotten: it would not be kept current.
    pub fn want(
        &mut self,
        resource_type: ResourceType,
        names: &BTreeSet<String>,
    ) -> Result<Wanted, TooManyDemanded> {
        let watch = self.watches.get_mut(&resource_type);
        let watch = watch.filter(|watch| watch.interest == Interest::OnDemand);
        let Some(watch) = watch else { return Ok(Wanted::default()) };
        if names.len() > MAX_DEMANDED {
            return Err(TooManyDemanded);
        }
        let added: Vec<String> =
            names.iter().filter(|name| !watch.demanded.contains_key(*name)).cloned().collect();
        let dropped: Vec<String> =
            watch.demanded.keys().filter(|name| !names.contains(*name)).cloned().collect();
        watch.demanded.retain(|name, _| names.contains(name));
        watch.demanded.extend(added.iter().map(|name| (name.clone(), Answer::Awaited)));
        let members = self.members(resource_type, &dropped);
        let held = dropped.iter().chain(&members).filter(|name| self.forget(resource_type, name));
        let held: Vec<&String> = held.collect();
        let changes = held.into_iter().filter_map(|name| removal(resource_type, name)).collect();
        let is_same = added.is_empty() && dropped.is_empty();
        let request = (!is_same).then(|| DeltaDiscoveryRequest {
            type_url: resource_type.url().to_owned(),
            resource_names_subscribe: added,
            resource_names_unsubscribe: dropped.into_iter().chain(members).collect(),
            ..Default::default()
        });
        Ok(Wanted { request, changes })
    }

    /// What is held for the sake of these names.
    fn members(&self, resource_type: ResourceType, owners: &[String]) -> Vec<String> {
        let held = self.versions.get(&resource_type).filter(|_| !owners.is_empty());
        let names = held.into_iter().flat_map(|it| it.keys());
        let is_one =
            |name: &&Text| owner(resource_type, name).is_some_and(|it| owners.contains(&it));
        names.filter(is_one).map(ToString::to_string).collect()
    }

    /// Whether everything that was asked for by name is answered, for a type that is watched.
    pub fn is_answered(&self, resource_type: ResourceType) -> bool {
        let watch = self.watches.get(&resource_type);
        watch.is_none_or(|watch| watch.demanded.values().all(|it| *it != Answer::Awaited))
    }

    /// Takes one response.
    pub fn receive(&mut self, response: DeltaDiscoveryResponse) -> Received {
        let mut received = Received {
            changes: Vec::with_capacity(response.resources.len()),
            answered: Vec::new(),
            refused: Vec::new(),
            delta: Delta { type_url: response.type_url.clone(), ..Delta::default() },
            reply: DeltaDiscoveryRequest {
                type_url: response.type_url.clone(),
                response_nonce: response.nonce.clone(),
                ..Default::default()
            },
        };
        let asked = response.type_url.parse().ok().filter(|it| self.watches.contains_key(it));
        match asked {
            Some(resource_type) => self.take(resource_type, response, &mut received),
            None => received.refused.push(Refusal {
                name: String::new(),
                reason: Reason::NotSubscribed(response.type_url),
            }),
        }
        received.reply.error_detail = error_detail(&received.refused);
        received
    }

    /// Removals come first, so that an address that moved belongs to its new owner in the end.
    fn take(
        &mut self,
        resource_type: ResourceType,
        response: DeltaDiscoveryResponse,
        received: &mut Received,
    ) {
        let last = !is_partial(&response);
        received.reply.initial_resource_versions =
            self.held_in(resource_type, &response.differing_groups);
        for name in response.removed_resources {
            if self.forget(resource_type, &name) && !resource_type.is_secret() {
                received.delta.removed.push(name.clone());
            }
            received.changes.extend(removal(resource_type, &name));
            self.answer(resource_type, name, Answer::Nothing, received);
        }
        for resource in response.resources {
            self.take_one(resource_type, resource, received);
        }
        if last && let Some(watch) = self.watches.get_mut(&resource_type) {
            watch.complete = true;
        }
    }

    /// A resource answers the demands for its name and its aliases, accepted or not.
    fn take_one(&mut self, resource_type: ResourceType, encoded: Bytes, received: &mut Received) {
        let refuse = |name: &str, reason| Refusal { name: name.to_owned(), reason };
        let resource = match convert::decode::<Resource>(encoded.clone()) {
            Ok(resource) => resource,
            Err(error) => return received.refused.push(refuse("", Reason::Rejected(error))),
        };
        let Resource { name, version, resource, aliases, .. } = resource;
        if !self.is_wanted(resource_type, &name) {
            return;
        }
        match convert_resource(resource_type, &name, resource) {
            Ok((mut change, unreadable)) => {
                if !unreadable.is_empty() {
                    received.refused.push(refuse(&name, Reason::Tightened(unreadable)));
                }
                if !resource_type.is_secret() {
                    received.delta.resources.push(encoded);
                }
                self.hold(resource_type, &mut change, name.clone(), version);
                received.changes.push(change);
            }
            Err(error) => {
                received.refused.push(refuse(&name, Reason::Rejected(error)));
                if let Some(change) = self.hold_unreadable(resource_type, &name) {
                    received.delta.removed.push(name.clone());
                    received.changes.push(change);
                } else if resource_type.is_void_if_unreadable() && self.forget(resource_type, &name)
                {
                    received.delta.removed.push(name.clone());
                    received.changes.extend(removal(resource_type, &name));
                }
            }
        }
        for alias in aliases.into_iter().chain([name.clone()]) {
            self.answer(resource_type, alias, Answer::Resource(name.clone()), received);
        }
    }

    /// Whether a resource that came is still asked for. One of layer 7 may have been under way when
    /// it no longer was; an address may have come for the sake of another.
    fn is_wanted(&self, resource_type: ResourceType, name: &str) -> bool {
        !resource_type.is_only_by_name()
            || self.watches.get(&resource_type).is_none_or(|watch| {
                watch.interest == Interest::Everything
                    || watch.demanded.contains_key(name)
                    || owner(resource_type, name).is_some_and(|it| watch.demanded.contains_key(&it))
            })
    }

    /// Forgets the version of a resource; answers whether it was held.
    fn forget(&mut self, resource_type: ResourceType, name: &str) -> bool {
        let held = self.versions.get_mut(&resource_type);
        held.is_some_and(|held| held.remove(name).is_some())
    }

    /// Remembers the version of what is taken, and makes it share what it has in common with the
    /// rest.
    fn hold(
        &mut self,
        resource_type: ResourceType,
        change: &mut Change,
        name: String,
        version: String,
    ) {
        let name = match change {
            Change::Workload(workload) => {
                self.interner.workload(workload);
                workload.uid.clone()
            }
            _ => name.into(),
        };
        self.versions.entry(resource_type).or_default().insert(name, version.into());
    }

    /// The view's change when a resource came that cannot be read, if without it requests would go
    /// elsewhere. Its name is asked for on each new stream: it is sent, and refused, again, or it
    /// is told that it is gone.
    fn hold_unreadable(&mut self, resource_type: ResourceType, name: &str) -> Option<Change> {
        let change = route_name(resource_type, name).map(Change::UnreadableGatewayRoute)?;
        let versions = self.versions.entry(resource_type).or_default();
        versions.insert(name.into(), Box::default());
        Some(change)
    }

    /// What is held in these groups.
    fn held_in(&self, resource_type: ResourceType, groups: &[u32]) -> Vec<HeldVersion> {
        // As a rule nothing is asked for, and nothing is walked.
        let asked = self.watches.get(&resource_type).filter(|_| !groups.is_empty());
        let (Some(watch), Some(held)) = (asked, self.versions.get(&resource_type)) else {
            return Vec::new();
        };
        let groups: HashSet<&u32> = groups.iter().collect();
        let held = held.iter().filter(|(name, _)| groups.contains(&watch.grouping.group_of(name)));
        held.map(|(name, version)| HeldVersion::new(name, version)).collect()
    }

    /// Records what a demanded name means; the first time, the demand is reported answered.
    fn answer(
        &mut self,
        resource_type: ResourceType,
        asked: String,
        answer: Answer,
        received: &mut Received,
    ) {
        let watch = self.watches.get_mut(&resource_type);
        if let Some(known) = watch.and_then(|watch| watch.demanded.get_mut(&asked))
            && std::mem::replace(known, answer) == Answer::Awaited
        {
            received.answered.push(asked);
        }
    }
}

fn version_of<'a>(
    versions: &'a BTreeMap<ResourceType, HashMap<Text, Box<str>>>,
    resource_type: ResourceType,
    name: &str,
) -> Option<&'a str> {
    versions.get(&resource_type)?.get(name).map(|version| &**version)
}

fn convert_resource(
    resource_type: ResourceType,
    name: &str,
    resource: Option<Any>,
) -> Result<(Change, Vec<String>), ConvertError> {
    let any = resource.ok_or_else(|| ConvertError::new("resource", Problem::Missing))?;
    if any.type_url != resource_type.url() {
        return Err(ConvertError::new("resource", Problem::TypeMismatch(any.type_url)));
    }
    convert_body(resource_type, name, any.value)
}

/// The content must belong to the name: by that name it will be removed.
fn convert_body(
    resource_type: ResourceType,
    name: &str,
    body: Bytes,
) -> Result<(Change, Vec<String>), ConvertError> {
    let workload = |it: Workload| (it.uid.to_string(), Change::Workload(it), Vec::new());
    let (content, change, unreadable) = match resource_type {
        ResourceType::Address => match convert::decode::<proto::Address>(body)?.try_into()? {
            Address::Workload(it) => workload(it),
            Address::Service(it) => (it.key.to_string(), Change::Service(it), Vec::new()),
        },
        ResourceType::Workload => workload(convert::decode::<proto::Workload>(body)?.try_into()?),
        ResourceType::Authorization => {
            let it = convert::policy::read(&body)?;
            (it.policy.key.to_string(), Change::Policy(it.policy), it.unreadable)
        }
        ResourceType::HttpService => {
            let it = convert::http::read_service(&body)?;
            (it.service.to_string(), Change::HttpService(Arc::new(it)), Vec::new())
        }
        ResourceType::Certificate => {
            let it = convert::http::read_certificate(&body)?;
            (it.key.to_string(), Change::Certificate(Arc::new(it)), Vec::new())
        }
        ResourceType::Gateway => {
            let (name, change) = match gateway::read(&body)? {
                GatewayResource::Gateway(it) => {
                    (it.service.to_string(), Change::Gateway(Arc::new(it)))
                }
                GatewayResource::Route(it) => {
                    (it.name.to_string(), Change::GatewayRoute(Arc::new(it)))
                }
            };
            (name, change, Vec::new())
        }
        ResourceType::RequestPolicy => {
            let it = convert::http::read_policy(&body)?;
            (it.key.to_string(), Change::RequestPolicy(Arc::new(it)), Vec::new())
        }
    };
    if content != name {
        let problem = Problem::NameMismatch { resource: name.to_owned(), content };
        return Err(ConvertError::new("name", problem));
    }
    Ok((change, unreadable))
}

/// The name for the sake of which a resource is sent: a gateway's, for a route of it.
fn owner(resource_type: ResourceType, name: &str) -> Option<String> {
    route_name(resource_type, name).map(|it| it.gateway.to_string())
}

/// The name of a route of a gateway, if it is one.
fn route_name(resource_type: ResourceType, name: &str) -> Option<GatewayRouteName> {
    name.parse().ok().filter(|_| resource_type == ResourceType::Gateway)
}

/// The view's change when a name is withdrawn; none when no resource can have that name.
fn removal(resource_type: ResourceType, name: &str) -> Option<Change> {
    match resource_type {
        ResourceType::Address | ResourceType::Workload => Some(Change::RemoveAddress(name.into())),
        ResourceType::Authorization => name.parse().ok().map(Change::RemovePolicy),
        ResourceType::HttpService => name.parse().ok().map(Change::RemoveHttpService),
        ResourceType::Certificate => name.parse().ok().map(Change::RemoveCertificate),
        ResourceType::Gateway => {
            let route = route_name(resource_type, name).map(Change::RemoveGatewayRoute);
            route.or_else(|| name.parse().ok().map(Change::RemoveGateway))
        }
        ResourceType::RequestPolicy => name.parse().ok().map(Change::RemoveRequestPolicy),
    }
}

/// Names each refusal, as far as they fit.
fn error_detail(refused: &[Refusal]) -> Option<Status> {
    if refused.is_empty() {
        return None;
    }
    let mut message = String::new();
    for (index, Refusal { name, reason }) in refused.iter().enumerate() {
        let line = format!("{}{name}: {reason}", if index == 0 { "" } else { "; " });
        if message.len() + line.len() > MAX_REASON_BYTES {
            message.push_str(&format!(" and {} more", refused.len() - index));
            break;
        }
        message.push_str(&line);
    }
    Some(Status { code: INVALID_ARGUMENT, message })
}
