//! The server end of delta discovery, one [`Stream`] per connected client.
//!
//! The driver feeds each request to [`Stream::receive`] and, after that and after every change of
//! the resources, sends what [`Stream::next_response`] returns until it returns nothing. It must
//! always pass the newest [`Resources`] it has, never older ones than before.
//!
//! A subscription to everything walks the journal of changes from its last position; it remembers
//! one number, not the names it has sent. A subscription by name remembers its names. A service
//! brings its workloads with it. A client that reconnects may send digests instead of names
//! ([`super::digest`]). A resource that a client refused is recorded and not sent again before it
//! changes. Never waits, never sends more than [`MAX_UNACKNOWLEDGED`] responses of one type ahead
//! of their acknowledgements, never forgets a change.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use ambit_model::Text;
use bytes::Bytes;

use super::digest::{self, Grouping};
use super::node::Introduction;
use super::resources::{Changed, Entry, Resources, Served};
use super::{ResourceType, UnknownType, WILDCARD};
use crate::proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, HeldVersion,
};

/// Size at which a response is closed and the rest goes into the next one. Large, because other
/// proxies take the first response for the whole.
pub(crate) const RESPONSE_BYTES: usize = 64 * 1024 * 1024;
/// Most responses of one type that are sent ahead of their acknowledgements.
pub const MAX_UNACKNOWLEDGED: usize = 4;
/// Most names that one stream may subscribe to.
pub(crate) const MAX_SUBSCRIBED_NAMES: usize = 200_000;
/// Longest reason of a refusal that is kept.
const MAX_REASON_BYTES: usize = 4096;
/// What a resource costs in a response beyond itself.
const RESOURCE_OVERHEAD_BYTES: usize = 8;
/// Marks a response, in the version that is for humans, as not the last of a first answer.
const PARTIAL: &str = "partial";

/// Whether more responses follow before the client knows all it asked for.
pub fn is_partial(response: &DeltaDiscoveryResponse) -> bool {
    response.system_version_info == PARTIAL
}

/// Why a stream must be closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The client asked for something that is not served.
    #[error(transparent)]
    UnknownType(#[from] UnknownType),
    /// The client subscribed to too many names.
    #[error("over {MAX_SUBSCRIBED_NAMES} names of {0} subscribed; subscribe to everything instead")]
    TooManyNames(ResourceType),
    /// The client sent digests that are none.
    #[error("digests of {0} have a wrong length; reconnect and name what you hold")]
    Digests(ResourceType),
    /// The client did not keep up, and what it missed is no longer known.
    #[error("client fell too far behind in {0}; reconnect with the versions you hold")]
    TooFarBehind(ResourceType),
}

/// A refusal by the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// What kind of resource.
    pub resource_type: ResourceType,
    /// The response that was refused.
    pub nonce: String,
    /// What the client said.
    pub reason: String,
}

/// What one client asked for and was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// What kind of resource.
    pub resource_type: ResourceType,
    /// Whether it gets everything.
    pub everything: bool,
    /// How many names it asked for.
    pub names: usize,
    /// The last change that was sent.
    pub sent_sequence: u64,
    /// The last change that was answered, accepted or refused.
    pub acknowledged_sequence: u64,
    /// Its last refusal, until a later response is accepted.
    pub rejection: Option<Rejection>,
}

/// One client's stream.
#[derive(Debug, Default)]
pub struct Stream {
    node: Option<Introduction>,
    subscriptions: BTreeMap<ResourceType, Subscription>,
    last_nonce: u64,
}

impl Stream {
    /// A stream on which nothing was asked yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The client's introduction, once the first request has come.
    pub fn node(&self) -> Option<&Introduction> {
        self.node.as_ref()
    }

    /// What was requested and sent, by type.
    pub fn progress(&self) -> Vec<Progress> {
        let progress = |(resource_type, it): (&ResourceType, &Subscription)| Progress {
            resource_type: *resource_type,
            everything: it.everything,
            names: it.asked.len(),
            sent_sequence: it.position,
            acknowledged_sequence: it.acknowledged,
            rejection: it.rejection.clone(),
        };
        self.subscriptions.iter().map(progress).collect()
    }

    /// Takes one request. Returns the refusal that it carried, if any.
    pub fn receive(
        &mut self,
        request: DeltaDiscoveryRequest,
        resources: &Resources,
    ) -> Result<Option<Rejection>, StreamError> {
        let resource_type: ResourceType = request.type_url.parse()?;
        if self.node.is_none() {
            self.node = request.node.as_ref().map(Introduction::from);
        }
        let set = resources.of(resource_type);
        let Some(subscription) = self.subscriptions.get_mut(&resource_type) else {
            let subscription = Subscription::open(resource_type, request, set)?;
            self.subscriptions.insert(resource_type, subscription);
            return Ok(None);
        };
        let refused = subscription.acknowledge(&request, set);
        subscription.subscribe(request.resource_names_subscribe, set)?;
        subscription.unsubscribe(&request.resource_names_unsubscribe, set);
        Ok(refused)
    }

    /// Whether the client waits for all that it asked for first, and not the server for what the
    /// client holds.
    pub fn owes_first_answer(&self) -> bool {
        let is_asked = |it: &Subscription| it.differing.as_ref().is_some_and(|it| it.is_sent);
        self.subscriptions.values().any(|it| it.owes_answer && !is_asked(it))
    }

    /// Whether the client has acknowledged all that it was sent.
    pub fn is_acknowledged(&self) -> bool {
        self.subscriptions.values().all(|it| it.unacknowledged.is_empty())
    }

    /// The next response to send, if there is one. Policies come first.
    pub fn next_response(
        &mut self,
        resources: &Resources,
    ) -> Result<Option<DeltaDiscoveryResponse>, StreamError> {
        for (resource_type, subscription) in &mut self.subscriptions {
            if let Some(mut response) = subscription.next(resources.of(*resource_type))? {
                self.last_nonce += 1;
                response.nonce = self.last_nonce.to_string();
                let sent = (response.nonce.clone(), subscription.told());
                subscription.unacknowledged.push_back(sent);
                return Ok(Some(response));
            }
        }
        Ok(None)
    }
}

/// Groups for which a client must name what it holds.
#[derive(Debug)]
struct Differing {
    grouping: Grouping,
    groups: Vec<u32>,
    is_sent: bool,
}

/// What one client wants of one type, and how far it got.
#[derive(Debug)]
struct Subscription {
    resource_type: ResourceType,
    everything: bool,
    /// Names and aliases that were asked for.
    asked: HashSet<String>,
    /// By name: the resources that the client holds. Not kept for everything.
    sent: HashSet<Text>,
    /// Names and aliases to answer now, with their resources or with "does not exist".
    unanswered: BTreeSet<String>,
    /// Names of resources that the client held when it connected and that are gone. Separate from
    /// `unanswered`, because such a name may by now be an alias of something else.
    gone: BTreeSet<String>,
    /// Numbers of the changes that need not be sent, in order: the client came with the versions
    /// that they left.
    resumed: Vec<u64>,
    /// The client holds something else in these groups, and has not said what.
    differing: Option<Differing>,
    /// The journal up to here is dealt with.
    position: u64,
    /// The journal's end when everything was asked for; what vanished before is no news.
    start: u64,
    /// The first request gets an answer, even an empty one.
    owes_answer: bool,
    /// Nonces of the responses under way, and the journal's position after each.
    unacknowledged: VecDeque<(String, u64)>,
    acknowledged: u64,
    /// What the client refused last, for the operator; gone once it accepts something.
    rejection: Option<Rejection>,
}

impl Subscription {
    /// The first request of a type decides between everything and names.
    fn open(
        resource_type: ResourceType,
        request: DeltaDiscoveryRequest,
        set: Served<'_>,
    ) -> Result<Self, StreamError> {
        let subscribe = request.resource_names_subscribe;
        let unsubscribe = request.resource_names_unsubscribe;
        let mut it = Self {
            resource_type,
            everything: false,
            asked: HashSet::new(),
            sent: HashSet::new(),
            unanswered: BTreeSet::new(),
            gone: BTreeSet::new(),
            resumed: Vec::new(),
            differing: None,
            position: set.sequence(),
            start: set.sequence(),
            owes_answer: true,
            unacknowledged: VecDeque::new(),
            acknowledged: 0,
            rejection: None,
        };
        let is_wildcard = |name: &String| name == WILDCARD;
        let everything = subscribe.is_empty() && unsubscribe.is_empty()
            || subscribe.iter().any(is_wildcard) && !unsubscribe.iter().any(is_wildcard);
        if everything && !request.held_digests.is_empty() {
            it.everything = true;
            it.compare(&request.held_digests, set)?;
        } else if everything {
            it.subscribe_everything(set);
            it.resume_everything(&request.initial_resource_versions, set);
        } else {
            let held = request.initial_resource_versions.iter().filter_map(HeldVersion::texts);
            let held = held.map(|(name, version)| (name.to_owned(), version.to_owned()));
            it.resume_names(held.collect(), set)?;
        }
        let names = subscribe.into_iter().filter(|name| name != WILDCARD).collect();
        it.subscribe(names, set)?;
        it.unsubscribe(&unsubscribe, set);
        Ok(it)
    }

    /// Walks the journal from its beginning, whatever was sent before.
    fn subscribe_everything(&mut self, set: Served<'_>) {
        self.everything = true;
        self.position = 0;
        self.start = set.sequence();
        self.sent.clear();
    }

    /// Sends what vanished while the client was away, and skips what did not change. A client that
    /// missed nothing costs a comparison and no walk.
    fn resume_everything(&mut self, held: &[HeldVersion], set: Served<'_>) {
        for (name, version) in held.iter().filter_map(HeldVersion::texts) {
            match set.entry(name) {
                None => drop(self.gone.insert(name.to_owned())),
                Some((_, entry)) if entry.version() == version => {
                    self.resumed.push(entry.sequence());
                }
                Some(_) => {}
            }
        }
        self.resumed.sort_unstable();
        self.resumed.dedup();
        if self.resumed.len() == set.len() {
            self.position = set.sequence();
            self.resumed = Vec::new();
        }
    }

    /// What is equal is known; the client is asked for the rest, and hears of changes meanwhile.
    fn compare(&mut self, told: &[u8], set: Served<'_>) -> Result<(), StreamError> {
        let grouping = Grouping::told(told).ok_or(StreamError::Digests(self.resource_type))?;
        // Digests of other groups than there should be are not worth their computation.
        let groups = match grouping.is_near(Grouping::of(set.len())) {
            true => digest::differing(told, &set.digests(grouping)),
            false => grouping.all().collect(),
        };
        if !groups.is_empty() {
            self.differing = Some(Differing { grouping, groups, is_sent: false });
        }
        Ok(())
    }

    /// What the client holds in the groups that differ: it is sent everything that is different
    /// now.
    fn resume_groups(&mut self, differing: &Differing, held: &[HeldVersion], set: Served<'_>) {
        let Differing { grouping, groups, .. } = differing;
        let held: HashMap<&str, &str> = held.iter().filter_map(HeldVersion::texts).collect();
        let is_news = |name: &&str| held.get(name).copied() != set.version(name);
        // The groups are in order.
        let is_asked = |name: &&str| groups.binary_search(&grouping.group_of(name)).is_ok();
        let known = set.names().map(|name| &**name).filter(is_asked).filter(is_news);
        self.unanswered.extend(known.map(str::to_owned));
        let gone = held.keys().filter(|name| set.version(name).is_none());
        self.gone.extend(gone.map(ToString::to_string));
    }

    /// Takes the names that the client holds, and those it waits for, as asked for. A name it
    /// waits for has no version; an alias has that of the resource it stood for.
    fn resume_names(
        &mut self,
        held: HashMap<String, String>,
        set: Served<'_>,
    ) -> Result<(), StreamError> {
        let current = |name: &str| held.get(name).map(String::as_str) == set.version(name);
        for (asked, version) in &held {
            let found = set.resolve(asked);
            let news = found.iter().flat_map(|name| set.members(name)).filter(|it| !current(it));
            self.unanswered.extend(news.map(ToString::to_string));
            if version.is_empty() || !found.iter().all(|it| current(it)) {
                self.unanswered.insert(asked.clone());
            }
            if !version.is_empty() {
                self.sent.insert(asked.as_str().into());
                // An alias came with the version of its resource.
                let is_alias = found.iter().any(|name| held.get(&**name) == Some(version));
                if !is_alias && set.entry(asked).is_none() {
                    self.gone.insert(asked.clone());
                }
            }
        }
        self.asked.extend(held.into_keys());
        self.check_names()
    }

    /// A client that names too much is better served with everything.
    fn check_names(&self) -> Result<(), StreamError> {
        match self.asked.len() {
            0..=MAX_SUBSCRIBED_NAMES => Ok(()),
            _ => Err(StreamError::TooManyNames(self.resource_type)),
        }
    }

    /// Each name is answered, even when the client holds it: it may have dropped it meanwhile.
    fn subscribe(&mut self, names: Vec<String>, set: Served<'_>) -> Result<(), StreamError> {
        for asked in names {
            if asked == WILDCARD {
                self.subscribe_everything(set);
            } else {
                self.unanswered.insert(asked.clone());
                self.asked.insert(asked);
            }
        }
        self.check_names()
    }

    /// Stops following what these names led to, unless another name leads there too.
    fn unsubscribe(&mut self, names: &[String], set: Served<'_>) {
        for asked in names {
            if asked == WILDCARD {
                self.unsubscribe_everything(set);
            } else if self.asked.remove(asked) {
                self.unanswered.remove(asked);
                for name in set.resolve(asked) {
                    self.release(&name, set);
                    set.members(&name).for_each(|member| self.release(member, set));
                }
            }
        }
    }

    /// Names that were requested are still followed.
    fn unsubscribe_everything(&mut self, set: Served<'_>) {
        if std::mem::take(&mut self.everything) {
            self.resumed.clear();
            self.position = set.sequence();
            for name in self.asked.iter().flat_map(|asked| set.resolve(asked)) {
                self.sent.extend(set.members(&name).cloned());
                self.sent.insert(name);
            }
        }
    }

    /// Stops following a resource that nothing asked for leads to any more.
    fn release(&mut self, name: &Text, set: Served<'_>) {
        if let Some((_, entry)) = set.entry(name)
            && !self.wants(name, entry)
        {
            self.sent.remove(name);
        }
    }

    /// Whether something that was asked for leads to this resource.
    fn wants(&self, name: &Text, entry: &Entry) -> bool {
        self.everything
            || self.asked.contains(&**name)
            || entry.aliases.iter().any(|alias| self.asked.contains(&**alias))
            || entry.parents.iter().any(|parent| self.sent.contains(parent))
    }

    /// What the client holds is kept fresh, even when what led to it is gone.
    fn follows(&self, name: &Text, entry: &Entry) -> bool {
        self.sent.contains(name) || self.wants(name, entry)
    }

    /// An answer to one response answers those before it; an unknown nonce answers nothing.
    fn acknowledge(
        &mut self,
        request: &DeltaDiscoveryRequest,
        set: Served<'_>,
    ) -> Option<Rejection> {
        let nonce = &request.response_nonce;
        let at = self.unacknowledged.iter().position(|(sent, _)| sent == nonce)?;
        let (nonce, position) = self.unacknowledged.drain(..=at).next_back()?;
        // Nothing was sent before the groups that differ, so this answers them.
        if let Some(differing) = self.differing.take_if(|it| it.is_sent) {
            self.resume_groups(&differing, &request.initial_resource_versions, set);
        }
        self.acknowledged = position;
        self.rejection = request.error_detail.as_ref().map(|status| Rejection {
            resource_type: self.resource_type,
            nonce,
            reason: bounded(&status.message),
        });
        self.rejection.clone()
    }

    /// The change up to which a client has everything, once it has what was sent so far.
    fn told(&self) -> u64 {
        match self.is_answered() {
            true => self.position,
            false => self.acknowledged,
        }
    }

    /// Whether nothing that was asked for waits for its answer.
    fn is_answered(&self) -> bool {
        self.unanswered.is_empty() && self.gone.is_empty() && self.differing.is_none()
    }

    /// Answers first, then changes. The first request is answered even if there is nothing to say,
    /// so that a client knows when it has everything.
    fn next(&mut self, set: Served<'_>) -> Result<Option<DeltaDiscoveryResponse>, StreamError> {
        if !set.remembers(self.position.max(self.start)) {
            return Err(StreamError::TooFarBehind(self.resource_type));
        }
        if self.unacknowledged.len() >= MAX_UNACKNOWLEDGED {
            return Ok(None);
        }
        let mut response = Response::new(self.resource_type);
        if let Some(differing) = self.differing.as_mut().filter(|it| !it.is_sent) {
            differing.is_sent = true;
            let groups = differing.groups.clone();
            let response = response.finish(PARTIAL.into());
            return Ok(Some(DeltaDiscoveryResponse { differing_groups: groups, ..response }));
        }
        self.send_gone(set, &mut response);
        self.send_answers(set, &mut response);
        self.send_changes(set, &mut response);
        let complete = self.is_answered() && self.position >= self.start;
        if response.is_empty() && !(self.owes_answer && complete) {
            if self.unacknowledged.is_empty() && !self.owes_answer {
                // What changed is none of the client's business: there is nothing to answer.
                self.acknowledged = self.position;
            }
            return Ok(None);
        }
        let partial = self.owes_answer && !complete;
        self.owes_answer = partial;
        Ok(Some(response.finish(if partial { PARTIAL.into() } else { self.position.to_string() })))
    }

    /// What is back by now is among the changes.
    fn send_gone(&mut self, set: Served<'_>, response: &mut Response) {
        while !response.is_full() {
            let Some(name) = self.gone.pop_first() else { return };
            if set.entry(&name).is_none() {
                self.sent.remove(name.as_str());
                response.remove(name);
            }
        }
    }

    /// A name is resolved when it is answered, not when it was asked: it may be gone by then. Its
    /// resources are never split over two responses.
    fn send_answers(&mut self, set: Served<'_>, response: &mut Response) {
        while !response.is_full() {
            let Some(asked) = self.unanswered.pop_first() else { return };
            let found = set.resolve(&asked);
            if found.is_empty() {
                self.sent.remove(asked.as_str());
                response.remove(asked);
            }
            // Who gets everything gets the members anyway.
            let members = |name| set.members(name).filter(|_| !self.everything);
            let found = found.iter().flat_map(|name| [name].into_iter().chain(members(name)));
            for name in found.collect::<Vec<_>>() {
                if let Some((name, entry)) = set.entry(name) {
                    self.send(name, entry, response);
                }
            }
        }
    }

    /// Continues the walk of the journal from its last position until it ends or the response is
    /// full.
    fn send_changes(&mut self, set: Served<'_>, response: &mut Response) {
        for (at, changed) in set.changes_after(self.position) {
            if response.is_full() {
                return;
            }
            match changed {
                Changed::Put(name, entry) if self.follows(name, entry) => {
                    let resumed = at <= self.start && self.resumed.binary_search(&at).is_ok();
                    if !resumed {
                        self.send(name, entry, response);
                    }
                    self.follow_members(name, set);
                }
                Changed::Gone(name) if self.everything && at > self.start => {
                    response.remove(name.to_string());
                }
                Changed::Gone(name) if self.sent.remove(name) => {
                    response.remove(name.to_string());
                }
                Changed::Put(..) | Changed::Gone(_) => {}
            }
            self.position = at;
        }
        self.position = set.sequence();
        self.resumed = Vec::new();
        // Members of services that appeared in this very walk.
        self.send_answers(set, response);
    }

    /// A service that came into sight brings the workloads that were there before it.
    fn follow_members(&mut self, name: &Text, set: Served<'_>) {
        if !self.everything {
            let unknown = set.members(name).filter(|member| !self.sent.contains(*member));
            self.unanswered.extend(unknown.map(ToString::to_string));
        }
    }

    /// Adds a resource, and remembers that the client will hold it.
    fn send(&mut self, name: &Text, entry: &Entry, response: &mut Response) {
        response.put(name, entry);
        if !self.everything {
            self.sent.insert(name.clone());
        }
    }
}

/// What a client says is kept for humans; it must not fill the memory.
fn bounded(reason: &str) -> String {
    let mut end = reason.len().min(MAX_REASON_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason[..end].to_owned()
}

/// A response that is being put together.
struct Response {
    resource_type: ResourceType,
    resources: Vec<Bytes>,
    /// Names of these resources: a resource is in a response only once.
    sent: HashSet<Text>,
    /// Names that are gone, in an order that is the same everywhere.
    removed: BTreeSet<String>,
    /// An estimate from above, of what the resources come to when encoded.
    size_bytes: usize,
}

impl Response {
    fn new(resource_type: ResourceType) -> Self {
        Self {
            resource_type,
            resources: Vec::new(),
            sent: HashSet::new(),
            removed: BTreeSet::new(),
            size_bytes: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.removed.is_empty()
    }

    fn is_full(&self) -> bool {
        self.size_bytes >= RESPONSE_BYTES
    }

    /// A resource is in a response only once, and a response never also removes it.
    fn put(&mut self, name: &Text, entry: &Entry) {
        if !self.sent.insert(name.clone()) {
            return;
        }
        self.removed.remove(&**name);
        let resource = entry.encoded(self.resource_type, name);
        self.size_bytes += resource.len() + RESOURCE_OVERHEAD_BYTES;
        self.resources.push(resource);
    }

    fn remove(&mut self, name: String) {
        self.size_bytes += name.len() + RESOURCE_OVERHEAD_BYTES;
        self.removed.insert(name);
    }

    /// The nonce is given by the stream, which counts over all types.
    fn finish(self, system_version_info: String) -> DeltaDiscoveryResponse {
        DeltaDiscoveryResponse {
            system_version_info,
            resources: self.resources,
            type_url: self.resource_type.url().to_owned(),
            nonce: String::new(),
            removed_resources: self.removed.into_iter().collect(),
            differing_groups: Vec::new(),
        }
    }
}
