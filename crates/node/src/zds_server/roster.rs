//! Who should be known to the proxies, and what each connected proxy is to be told next.
//!
//! Nothing is queued: what a proxy is told follows from the difference between the roster and what
//! that proxy has answered, so a slow or refusing proxy costs no memory and delays no other. New
//! pods go to the newest connection only, removals to all. Pure: no socket, no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ambit_net::namespace::NetNs;
use tokio::time::Instant;

use crate::pod::{PodName, PodUid};

/// Wait before a refused pod is offered again; doubles with each refusal.
const REFUSAL_RETRY_MIN: Duration = Duration::from_millis(500);
/// Longest wait between two offers.
const REFUSAL_RETRY_MAX: Duration = Duration::from_secs(15);

/// What a proxy needs to serve a pod.
#[derive(Debug, Clone)]
pub(crate) struct Announcement {
    pub(crate) name: PodName,
    pub(crate) service_account: String,
    pub(crate) netns: Arc<NetNs>,
}

/// One connection, in the order of their greetings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnectionId(u64);

/// What a proxy is to be told next.
#[derive(Debug, Clone)]
pub(crate) enum Next {
    /// Serve this pod.
    Add(PodUid, Announcement),
    /// Go on serving this pod, if it is served; part of the snapshot only.
    Keep(PodUid),
    /// Stop serving it.
    Delete(PodUid),
    /// Everything so far was the whole; forget what was not in it.
    SnapshotSent,
    /// Nothing before this moment, unless the roster changes.
    Wait(Option<Instant>),
}

/// A proxy's answer to an offer that matters to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The newest proxy serves the pod.
    Acknowledged(PodUid),
    /// A proxy refused it, for this reason.
    Refused(PodUid, String),
}

/// What was sent of a pod over one connection.
#[derive(Debug)]
struct Offer {
    /// The namespace that was sent.
    inode: u64,
    answer: Answer,
    /// How often in a row the proxy refused it.
    refusals: u32,
}

#[derive(Debug)]
enum Answer {
    Awaited,
    Acknowledged,
    Refused { again_at: Instant },
}

#[derive(Debug)]
struct Peer {
    id: ConnectionId,
    /// Still to be sent before SnapshotSent.
    snapshot: BTreeSet<PodUid>,
    snapshot_sent: bool,
    offers: BTreeMap<PodUid, Offer>,
    deletes: BTreeSet<PodUid>,
}

/// The roster and the proxies that follow it.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    pods: BTreeMap<PodUid, Announcement>,
    /// Pods that are ending and of which nothing but the uid is known any more.
    kept: BTreeSet<PodUid>,
    /// Oldest first.
    peers: Vec<Peer>,
    last_id: u64,
}

impl Roster {
    /// Puts a pod on the roster. True: the newest proxy serves it already.
    pub(crate) fn announce(&mut self, uid: PodUid, announcement: Announcement) -> bool {
        let inode = announcement.netns.inode();
        let replaced = self.pods.insert(uid.clone(), announcement);
        if replaced.is_some_and(|earlier| earlier.netns.inode() != inode) {
            self.delete_everywhere(&uid);
        }
        let newest = self.peers.last();
        newest.is_some_and(|peer| peer.serves(&uid, inode) && !peer.deletes.contains(&uid))
    }

    /// Has the proxies go on with a pod of which this agent knows only the uid.
    pub(crate) fn keep(&mut self, uid: PodUid) {
        self.kept.insert(uid);
    }

    /// Takes a pod off the roster; [`Roster::is_withdrawn`] says when every proxy knows.
    pub(crate) fn withdraw(&mut self, uid: &PodUid) {
        if self.pods.remove(uid).is_some() || self.kept.remove(uid) {
            self.delete_everywhere(uid);
        }
    }

    /// Whether no proxy is still to be told that the pod was withdrawn.
    pub(crate) fn is_withdrawn(&self, uid: &PodUid) -> bool {
        !self.peers.iter().any(|peer| peer.deletes.contains(uid))
    }

    /// A proxy has said hello: it is the newest now.
    pub(crate) fn join(&mut self) -> ConnectionId {
        self.last_id += 1;
        let id = ConnectionId(self.last_id);
        self.peers.push(Peer {
            id,
            snapshot: self.pods.keys().chain(&self.kept).cloned().collect(),
            snapshot_sent: false,
            offers: BTreeMap::new(),
            deletes: BTreeSet::new(),
        });
        id
    }

    /// A proxy has gone. Pods that it alone knew are offered to the newest that is left.
    pub(crate) fn leave(&mut self, id: ConnectionId) {
        self.peers.retain(|peer| peer.id != id);
    }

    /// How many proxies are connected.
    pub(crate) fn connections(&self) -> usize {
        self.peers.len()
    }

    /// What a proxy is to be told next; it counts as told from here on.
    pub(crate) fn next(&mut self, id: ConnectionId, now: Instant) -> Next {
        let next = self.due(id, now);
        if let Next::Add(uid, announcement) = &next {
            let peer = self.peers.iter_mut().find(|peer| peer.id == id);
            let offers = &mut peer.expect("only a peer is due an offer").offers;
            let refused = match offers.get(uid) {
                Some(Offer { answer: Answer::Refused { .. }, refusals, .. }) => *refusals,
                _ => 0,
            };
            let inode = announcement.netns.inode();
            let offer = Offer { inode, answer: Answer::Awaited, refusals: refused };
            offers.insert(uid.clone(), offer);
        }
        next
    }

    fn due(&self, id: ConnectionId, now: Instant) -> Next {
        let Some(peer) = self.peers.iter().find(|peer| peer.id == id) else {
            return Next::Wait(None);
        };
        if let Some(uid) = peer.deletes.first() {
            return Next::Delete(uid.clone());
        }
        let in_snapshot = peer.snapshot.iter().find_map(|uid| self.pods.get_key_value(uid));
        if let Some((uid, announcement)) = in_snapshot {
            return Next::Add(uid.clone(), announcement.clone());
        }
        if let Some(uid) = peer.snapshot.intersection(&self.kept).next() {
            return Next::Keep(uid.clone());
        }
        if !peer.snapshot_sent {
            return Next::SnapshotSent;
        }
        if self.peers.last().is_some_and(|newest| newest.id != id) {
            return Next::Wait(None);
        }
        let mut again = None;
        for (uid, announcement) in &self.pods {
            match peer.offers.get(uid).map(|offer| &offer.answer) {
                Some(Answer::Acknowledged) => {}
                Some(Answer::Refused { again_at }) if now < *again_at => {
                    again = Some(again.map_or(*again_at, |other: Instant| other.min(*again_at)));
                }
                Some(_) | None => return Next::Add(uid.clone(), announcement.clone()),
            }
        }
        Next::Wait(again)
    }

    /// A proxy has answered what [`Roster::next`] said; `refusal` is the reason, if it refused.
    pub(crate) fn answered(
        &mut self,
        id: ConnectionId,
        told: &Next,
        refusal: Option<&str>,
        now: Instant,
    ) -> Option<Verdict> {
        let newest = self.peers.last().is_some_and(|newest| newest.id == id);
        let peer = self.peers.iter_mut().find(|peer| peer.id == id)?;
        match told {
            Next::Wait(_) => None,
            Next::Keep(uid) => {
                peer.snapshot.remove(uid);
                None
            }
            Next::SnapshotSent => {
                peer.snapshot_sent = true;
                None
            }
            // A proxy that cannot delete what it does not know has nothing left to do either.
            Next::Delete(uid) => {
                peer.deletes.remove(uid);
                peer.offers.remove(uid);
                None
            }
            Next::Add(uid, announcement) => {
                peer.snapshot.remove(uid);
                let offer = peer.offers.get_mut(uid)?;
                let Some(reason) = refusal else {
                    offer.answer = Answer::Acknowledged;
                    let inode = announcement.netns.inode();
                    let current = self.pods.get(uid).is_some_and(|a| a.netns.inode() == inode);
                    return (newest && current).then(|| Verdict::Acknowledged(uid.clone()));
                };
                offer.refusals = offer.refusals.saturating_add(1);
                offer.answer = Answer::Refused { again_at: now + refusal_wait(offer.refusals) };
                Some(Verdict::Refused(uid.clone(), reason.to_owned()))
            }
        }
    }

    /// Every proxy that may know the pod is to be told. A proxy whose snapshot is not complete
    /// knows, besides what was sent, only what the end of the snapshot makes it forget.
    fn delete_everywhere(&mut self, uid: &PodUid) {
        for peer in &mut self.peers {
            if peer.snapshot_sent || peer.offers.contains_key(uid) {
                peer.deletes.insert(uid.clone());
            }
        }
    }
}

impl Peer {
    fn serves(&self, uid: &PodUid, inode: u64) -> bool {
        let offer = self.offers.get(uid);
        offer.is_some_and(|o| o.inode == inode && matches!(o.answer, Answer::Acknowledged))
    }
}

fn refusal_wait(times: u32) -> Duration {
    let doublings = times.saturating_sub(1).min(16);
    REFUSAL_RETRY_MIN.saturating_mul(1 << doublings).min(REFUSAL_RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A roster in a script: what the proxies are told, as short words.
    struct Script {
        roster: Roster,
        netns: Arc<NetNs>,
        now: Instant,
    }

    impl Script {
        fn new() -> Self {
            let netns = Arc::new(NetNs::current().expect("own namespace"));
            Self { roster: Roster::default(), netns, now: Instant::now() }
        }

        fn announce(&mut self, uid: &str) -> bool {
            let netns = self.netns.clone();
            let name = PodName::new("shop", uid);
            let announcement = Announcement { name, service_account: "default".into(), netns };
            self.roster.announce(PodUid::new(uid), announcement)
        }

        fn withdraw(&mut self, uid: &str) {
            self.roster.withdraw(&PodUid::new(uid));
        }

        /// Tells a proxy all that is due, each accepted at once.
        fn tell(&mut self, id: ConnectionId) -> Vec<String> {
            self.tell_with(id, |_| None)
        }

        fn tell_with(
            &mut self,
            id: ConnectionId,
            refuse: impl Fn(&str) -> Option<&'static str>,
        ) -> Vec<String> {
            let mut told = Vec::new();
            for _ in 0..100 {
                let next = self.roster.next(id, self.now);
                let mut refusal = None;
                told.push(match &next {
                    Next::Wait(_) => return told,
                    Next::Add(uid, _) => {
                        refusal = refuse(uid.as_str());
                        format!("+{uid}")
                    }
                    Next::Keep(uid) => format!("={uid}"),
                    Next::Delete(uid) => format!("-{uid}"),
                    Next::SnapshotSent => "snapshot".to_owned(),
                });
                self.roster.answered(id, &next, refusal, self.now);
            }
            panic!("the proxy is told things without end: {told:?}");
        }
    }

    #[test]
    fn a_new_proxy_is_told_everything_and_then_changes() {
        let mut script = Script::new();
        assert!(!script.announce("a"));
        script.announce("b");
        let proxy = script.roster.join();
        assert_eq!(script.tell(proxy), ["+a", "+b", "snapshot"]);
        assert!(script.announce("a"), "the proxy serves it already");
        script.announce("c");
        script.withdraw("a");
        assert!(!script.roster.is_withdrawn(&PodUid::new("a")));
        assert_eq!(script.tell(proxy), ["-a", "+c"]);
        assert!(script.roster.is_withdrawn(&PodUid::new("a")));
    }

    #[test]
    fn additions_go_to_the_newest_and_removals_to_all() {
        let mut script = Script::new();
        script.announce("a");
        let old = script.roster.join();
        assert_eq!(script.tell(old), ["+a", "snapshot"]);
        let new = script.roster.join();
        script.announce("b");
        assert_eq!(script.tell(old), [""; 0]);
        assert_eq!(script.tell(new), ["+a", "snapshot", "+b"]);
        script.withdraw("a");
        script.withdraw("b");
        assert_eq!(script.tell(old), ["-a", "-b"]);
        assert!(!script.roster.is_withdrawn(&PodUid::new("a")), "the other proxy does not know");
        assert_eq!(script.tell(new), ["-a", "-b"]);
        assert!(script.roster.is_withdrawn(&PodUid::new("a")));
    }

    #[test]
    fn a_proxy_overtaken_while_it_gets_its_snapshot_gets_the_rest_of_it() {
        let mut script = Script::new();
        script.announce("a");
        script.announce("b");
        let old = script.roster.join();
        let first = script.roster.next(old, script.now);
        script.roster.join();
        script.announce("c");
        script.roster.answered(old, &first, None, script.now);
        assert_eq!(script.tell(old), ["+b", "snapshot"]);
    }

    #[test]
    fn when_the_newest_leaves_the_one_before_takes_over_what_it_missed() {
        let mut script = Script::new();
        let old = script.roster.join();
        script.tell(old);
        let new = script.roster.join();
        script.tell(new);
        script.announce("a");
        assert_eq!(script.tell(new), ["+a"]);
        script.roster.leave(new);
        assert_eq!(script.tell(old), ["+a"]);
        assert_eq!(script.roster.connections(), 1);
    }

    #[test]
    fn a_refused_pod_is_offered_again_later_and_holds_nothing_up() {
        let mut script = Script::new();
        script.announce("a");
        script.announce("b");
        let proxy = script.roster.join();
        let refuse_a = |uid: &str| (uid == "a").then_some("no");
        assert_eq!(script.tell_with(proxy, refuse_a), ["+a", "+b", "snapshot"]);
        assert_eq!(script.tell_with(proxy, refuse_a), [""; 0]);
        script.now += REFUSAL_RETRY_MIN;
        assert_eq!(script.tell_with(proxy, refuse_a), ["+a"]);
        script.now += REFUSAL_RETRY_MIN;
        assert_eq!(script.tell_with(proxy, refuse_a), [""; 0], "the second wait is longer");
        script.now += REFUSAL_RETRY_MIN;
        assert_eq!(script.tell(proxy), ["+a"]);
        script.now += REFUSAL_RETRY_MAX;
        assert_eq!(script.tell(proxy), [""; 0]);
    }

    #[test]
    fn a_kept_pod_is_in_the_snapshot_by_its_uid_alone() {
        let mut script = Script::new();
        script.roster.keep(PodUid::new("k"));
        script.announce("a");
        let proxy = script.roster.join();
        assert_eq!(script.tell(proxy), ["+a", "=k", "snapshot"]);
        script.withdraw("k");
        assert_eq!(script.tell(proxy), ["-k"]);
    }

    #[test]
    fn a_refused_pod_is_deleted_like_any_other() {
        let mut script = Script::new();
        script.announce("a");
        let proxy = script.roster.join();
        script.tell_with(proxy, |_| Some("no"));
        script.withdraw("a");
        assert_eq!(script.tell(proxy), ["-a"]);
    }

    #[test]
    fn a_pod_withdrawn_while_its_offer_is_under_way_is_deleted_afterwards() {
        let mut script = Script::new();
        script.announce("a");
        let proxy = script.roster.join();
        let offer = script.roster.next(proxy, script.now);
        script.withdraw("a");
        assert!(!script.roster.is_withdrawn(&PodUid::new("a")));
        assert_eq!(script.roster.answered(proxy, &offer, None, script.now), None);
        assert_eq!(script.tell(proxy), ["-a", "snapshot"]);
    }

    #[test]
    fn a_pod_that_returns_in_another_namespace_is_deleted_and_added() {
        let mut script = Script::new();
        script.announce("a");
        let proxy = script.roster.join();
        script.tell(proxy);
        script.netns = Arc::new(NetNs::create().expect("a namespace (needs root)"));
        assert!(!script.announce("a"));
        assert_eq!(script.tell(proxy), ["-a", "+a"]);
        assert!(script.announce("a"));
    }

    #[test]
    fn the_waits_after_refusals_are_bounded() {
        assert_eq!(refusal_wait(1), REFUSAL_RETRY_MIN);
        assert_eq!(refusal_wait(u32::MAX), REFUSAL_RETRY_MAX);
    }
}
