//! Replies of a client that may wait: a later reply covers the earlier ones.
//!
//! Under churn a control plane sends to every proxy several times a second, and acknowledgements
//! are half of what that costs both ends. A reply is sent at once after a pause, or when the server
//! or a user waits for it; other replies cover two responses, or wait for [`REPLY_PACE`]. Reads no
//! clock and sends nothing: the driver asks when it is time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::ResourceType;
use crate::proto::envoy::service::discovery::v3::DeltaDiscoveryRequest;

/// How far replies are apart while responses keep coming.
pub const REPLY_PACE: Duration = Duration::from_millis(400);
/// So many responses of one type are not left without a reply: servers send only so far ahead.
const UNANSWERED_MAX: usize = 2;

/// What people change and wait for: policies and routes.
const WAITED_FOR: [ResourceType; 3] =
    [ResourceType::Authorization, ResourceType::RequestPolicy, ResourceType::HttpService];

/// The replies of one stream.
#[derive(Debug, Default)]
pub struct Replies {
    /// By type, the newest reply and how many replies it covers.
    waiting: BTreeMap<String, (DeltaDiscoveryRequest, usize)>,
    /// The types for which a reply was sent.
    begun: BTreeSet<String>,
    is_urgent: bool,
    sent_at: Option<Instant>,
}

impl Replies {
    /// Adds the reply to the newest response.
    pub fn add(&mut self, reply: DeltaDiscoveryRequest) {
        let waiting = self.waiting.get(&reply.type_url).map_or(0, |(_, count)| *count);
        // The first, for which the server may let others wait; refusals, what the server asked for,
        // and what people wait for.
        self.is_urgent |= self.begun.insert(reply.type_url.clone())
            || waiting + 1 >= UNANSWERED_MAX
            || reply.error_detail.is_some()
            || !reply.initial_resource_versions.is_empty()
            || WAITED_FOR.iter().any(|it| reply.type_url == it.url());
        self.waiting.insert(reply.type_url.clone(), (reply, waiting + 1));
    }

    /// When to send the waiting replies; never, if there are none.
    pub fn due_at(&self, now: Instant) -> Option<Instant> {
        let paced = self.sent_at.filter(|_| !self.is_urgent).map(|at| at + REPLY_PACE);
        (!self.waiting.is_empty()).then(|| paced.unwrap_or(now).max(now))
    }

    /// The replies to send now.
    pub fn take_due(&mut self, now: Instant) -> Vec<DeltaDiscoveryRequest> {
        if self.due_at(now).is_none_or(|due| due > now) {
            return Vec::new();
        }
        (self.is_urgent, self.sent_at) = (false, Some(now));
        std::mem::take(&mut self.waiting).into_values().map(|(reply, _)| reply).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::google::rpc::Status;

    fn reply(resource_type: ResourceType, nonce: &str) -> DeltaDiscoveryRequest {
        let (type_url, response_nonce) = (resource_type.url().to_owned(), nonce.to_owned());
        DeltaDiscoveryRequest { type_url, response_nonce, ..Default::default() }
    }

    #[test]
    fn replies_wait_while_responses_keep_coming_and_never_longer() {
        use ResourceType::{Address, Authorization};
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut replies = Replies::default();
        assert_eq!(replies.due_at(start), None);
        let mut check =
            |reply: DeltaDiscoveryRequest, now: u64, expected: &[&str], due: Option<u64>| {
                replies.add(reply);
                let sent = replies.take_due(at(now));
                let sent: Vec<_> = sent.iter().map(|it| it.response_nonce.as_str()).collect();
                assert_eq!((&*sent, replies.due_at(at(now))), (expected, due.map(at)), "at {now}");
            };
        check(reply(Authorization, "0"), 0, &["0"], None);
        check(reply(Address, "1"), 0, &["1"], None);
        check(reply(Address, "2"), 200, &[], Some(400));
        check(reply(Address, "3"), 300, &["3"], None);
        check(reply(Address, "4"), 400, &[], Some(700));
        check(reply(Authorization, "5"), 410, &["5", "4"], None);
        let refusal =
            DeltaDiscoveryRequest { error_detail: Some(Status::default()), ..reply(Address, "6") };
        check(refusal, 420, &["6"], None);
        check(reply(Address, "7"), 430, &[], Some(820));
        assert!(replies.take_due(at(819)).is_empty());
        assert_eq!(replies.take_due(at(820)).len(), 1);
    }
}
