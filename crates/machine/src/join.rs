//! Other machines that join this one: their tokens and nodes, as process 1 of home keeps them.
//!
//! In memory alone, for as long as the machine lives. Home keeps no secret: it compares SHA-256.
//! Times are passed in. Nothing here may open a socket or write a file.

mod cluster_token;
mod token;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use ambit_image::Digest;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

pub use cluster_token::{CarriedWorkload, ClusterToken, Workload};
pub use token::{JoinToken, JoinTokenError};

use crate::addresses::{NODES_MAX, NodeNetwork};
use crate::objects::random_bytes;

/// Random bytes of a secret.
const SECRET_SIZE_BYTES: usize = 32;

/// Why there is no token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenRefused {
    /// Every number is taken.
    #[error("a machine has at most {NODES_MAX} nodes; delete one that joined")]
    Full,
    /// No name of a node.
    #[error("{0:?} is no name of a node; write node-1 to node-{NODES_MAX}")]
    Name(String),
    /// It is a node already.
    #[error("{0} is there; name another node, or delete it first with `ambit delete node {0}`")]
    Taken(String),
}

/// Why a machine is not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JoinRefused {
    /// Nothing that is known proves it.
    #[error(
        "the token is not known here: it was used, it has ended, or its node was deleted; make \
         another with `ambit token create`"
    )]
    Unknown,
}

/// How the link of a joined node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkInfo {
    /// Whether it works.
    pub connected: bool,
    /// The other end: where the joined machine connects from, or where home listens.
    pub peer: String,
    /// Since when it is so.
    pub since: String,
    /// Why it does not work.
    pub reason: String,
}

/// A machine that proves itself.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Proof {
    /// The secret of its token.
    pub(crate) secret: String,
    /// Its own.
    pub(crate) key: String,
}

impl Proof {
    /// Whether both are as [`new_secret`] makes them: nobody is known by less.
    pub(crate) fn is_whole(&self) -> bool {
        let is_secret = |text: &str| {
            text.len() == 2 * SECRET_SIZE_BYTES && text.bytes().all(|it| it.is_ascii_hexdigit())
        };
        is_secret(&self.secret) && is_secret(&self.key)
    }
}

/// A moment, by a clock that nobody sets and by one that goes on while the computer sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    steady: Instant,
    clock: SystemTime,
}

impl Moment {
    /// This one.
    pub(crate) fn now() -> Self {
        Self { steady: Instant::now(), clock: SystemTime::now() }
    }

    fn after(self, time: Duration) -> Self {
        Self { steady: self.steady + time, clock: self.clock + time }
    }

    /// Whether either clock says that it is over.
    fn is_over(self, now: Self) -> bool {
        self.steady <= now.steady || self.clock <= now.clock
    }
}

/// A node that joined.
#[derive(Debug)]
struct Joined {
    /// Which of all that joined it is: a later one may have the same node.
    number: u64,
    key: Digest,
    link: LinkInfo,
}

/// A token that nobody has used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    secret: Digest,
    ends: Moment,
}

/// Tokens and joined nodes, by the nodes' numbers.
#[derive(Debug, Default)]
pub(crate) struct Joins {
    open: BTreeMap<u8, Open>,
    joined: BTreeMap<u8, Joined>,
    /// How many have joined.
    count: u64,
}

/// Who was taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) node: NodeNetwork,
    /// Which of all that joined it is.
    pub(crate) number: u64,
    /// The token that it has used, if it was not there before.
    pub(crate) token: Option<Open>,
}

impl Joins {
    /// Makes a token: the node that it is for, the one that is asked for or the first that is free,
    /// and the secret. `own` is how many nodes the machine itself has. A token that was made for
    /// the node before is of no use any more.
    pub(crate) fn open(
        &mut self,
        wanted: Option<&str>,
        own: usize,
        ttl: Duration,
        now: Moment,
    ) -> Result<(NodeNetwork, String), TokenRefused> {
        self.open.retain(|_, open| !open.ends.is_over(now));
        let is_free = |number: &u8| usize::from(*number) > own && !self.joined.contains_key(number);
        let number = match wanted {
            None => (1..=NODES_MAX)
                .find(|number| is_free(number) && !self.open.contains_key(number))
                .ok_or(TokenRefused::Full)?,
            Some(name) => {
                let network = NodeNetwork::of_name(name);
                let number = network.ok_or_else(|| TokenRefused::Name(name.to_owned()))?.number();
                Some(number).filter(is_free).ok_or_else(|| TokenRefused::Taken(name.to_owned()))?
            }
        };
        let secret = new_secret();
        let open = Open { secret: Digest::of(secret.as_bytes()), ends: now.after(ttl) };
        self.open.insert(number, open);
        Ok((NodeNetwork::new(number), secret))
    }

    /// Takes a machine: by its key from the second time on, and by a token the first time, which is
    /// of no use from then on.
    pub(crate) fn admit(&mut self, proof: &Proof, now: Moment) -> Result<Taken, JoinRefused> {
        let of = |secret: &str| Digest::of(secret.as_bytes());
        let (secret, key) = (of(&proof.secret), of(&proof.key));
        self.open.retain(|_, open| !open.ends.is_over(now));
        if let Some((node, it)) = self.joined.iter().find(|(_, it)| it.key == key) {
            return Ok(Taken { node: NodeNetwork::new(*node), number: it.number, token: None });
        }
        let found = self.open.iter().find(|(_, open)| open.secret == secret);
        let node = *found.ok_or(JoinRefused::Unknown)?.0;
        let token = self.open.remove(&node);
        let link = LinkInfo {
            connected: false,
            peer: String::new(),
            since: String::new(),
            reason: "it has not connected yet".to_owned(),
        };
        self.count += 1;
        let number = self.count;
        self.joined.insert(node, Joined { number, key, link });
        Ok(Taken { node: NodeNetwork::new(node), number, token })
    }

    /// Undoes what [`Self::admit`] did: the token can be used again.
    pub(crate) fn give_back(&mut self, node: NodeNetwork, token: Open) {
        self.joined.remove(&node.number());
        self.open.insert(node.number(), token);
    }

    /// Whether the machine that was taken with this number still has the node.
    pub(crate) fn holds(&self, node: NodeNetwork, number: u64) -> bool {
        self.joined.get(&node.number()).is_some_and(|joined| joined.number == number)
    }

    /// Forgets a node, and the key of its machine; whether there was one.
    pub(crate) fn forget(&mut self, node: NodeNetwork) -> bool {
        self.joined.remove(&node.number()).is_some()
    }

    /// Notes how the link of a node is; whether it is a joined node and that is new.
    pub(crate) fn note(&mut self, node: NodeNetwork, link: LinkInfo) -> bool {
        let Some(joined) = self.joined.get_mut(&node.number()) else { return false };
        // Each connection of the same computer has another port.
        let host =
            |peer: &str| peer.rsplit_once(':').map_or_else(String::new, |it| it.0.to_owned());
        let same = |it: &LinkInfo| (it.connected, host(&it.peer), it.reason.clone());
        let is_new = same(&joined.link) != same(&link);
        if is_new {
            joined.link = link;
        }
        is_new
    }

    /// The joined nodes, with their links.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (NodeNetwork, &LinkInfo)> {
        self.joined.iter().map(|(number, it)| (NodeNetwork::new(*number), &it.link))
    }
}

/// 256 random bits as text.
pub(crate) fn new_secret() -> String {
    random_bytes::<SECRET_SIZE_BYTES>().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn proof(secret: &str, key: &str) -> Proof {
        Proof { secret: secret.to_owned(), key: key.to_owned() }
    }

    /// Which node, which of all, and whether it is new.
    fn admitted(
        joins: &mut Joins,
        secret: &str,
        key: &str,
        now: Moment,
    ) -> Result<(String, u64, bool), JoinRefused> {
        let taken = joins.admit(&proof(secret, key), now)?;
        Ok((taken.node.name(), taken.number, taken.token.is_some()))
    }

    fn taken(node: &str, number: u64, is_new: bool) -> Result<(String, u64, bool), JoinRefused> {
        Ok((node.to_owned(), number, is_new))
    }

    #[test]
    fn a_token_takes_one_machine_once() {
        let (mut joins, now) = (Joins::default(), Moment::now());
        let (node, secret) = joins.open(None, 2, HOUR, now).expect("a token");
        assert_eq!(node, NodeNetwork::new(3));
        let mut admit = |secret: &str, key: &str| admitted(&mut joins, secret, key, now);
        assert_eq!(admit("other", "key"), Err(JoinRefused::Unknown));
        assert_eq!(admit("", ""), Err(JoinRefused::Unknown));
        assert_eq!(admit(&secret, "key"), taken("node-3", 1, true));
        assert_eq!(admit(&secret, "key"), taken("node-3", 1, false), "home's answer was lost");
        assert_eq!(admit("anything", "key"), taken("node-3", 1, false), "its key proves it");
        assert_eq!(admit(&secret, "another"), Err(JoinRefused::Unknown), "it was used");
    }

    #[test]
    fn a_token_ends_and_a_key_does_not() {
        let (mut joins, now) = (Joins::default(), Moment::now());
        let (_, late) = joins.open(None, 1, HOUR, now).expect("a token");
        let (_, secret) = joins.open(None, 1, 2 * HOUR, now).expect("a token");
        let later = now.after(HOUR);
        assert_eq!(admitted(&mut joins, &late, "a", later), Err(JoinRefused::Unknown));
        assert_eq!(admitted(&mut joins, &secret, "b", later), taken("node-3", 1, true));
        let much_later = later.after(100 * HOUR);
        assert_eq!(admitted(&mut joins, "", "b", much_later), taken("node-3", 1, false));
        let node = NodeNetwork::new(3);
        assert!(joins.holds(node, 1) && joins.forget(node));
        assert!(!joins.holds(node, 1) && !joins.forget(node));
        assert_eq!(admitted(&mut joins, &secret, "b", later), Err(JoinRefused::Unknown));
    }

    #[test]
    fn a_token_ends_while_the_computer_sleeps() {
        let (mut joins, now) = (Joins::default(), Moment::now());
        let (_, secret) = joins.open(None, 1, HOUR, now).expect("a token");
        let woken = Moment { clock: now.clock + HOUR, ..now };
        assert_eq!(admitted(&mut joins, &secret, "a", woken), Err(JoinRefused::Unknown));
    }

    #[test]
    fn a_machine_that_cannot_be_kept_keeps_its_token() {
        let (mut joins, now) = (Joins::default(), Moment::now());
        let (node, secret) = joins.open(None, 1, HOUR, now).expect("a token");
        let taken = joins.admit(&proof(&secret, "a"), now).expect("taken");
        joins.give_back(node, taken.token.expect("it is new"));
        assert!(!joins.holds(node, taken.number));
        let again = joins.admit(&proof(&secret, "a"), now).expect("taken");
        assert!(joins.holds(node, again.number) && again.number != taken.number);
    }

    #[test]
    fn a_proof_is_two_secrets() {
        let (one, other) = (new_secret(), new_secret());
        assert!(proof(&one, &other).is_whole());
        let long = format!("{one}0");
        for wrong in ["", "key", &one[1..], &long, &one.replace(|_| true, "x")] {
            assert!(!proof(&one, wrong).is_whole() && !proof(wrong, &one).is_whole(), "{wrong}");
        }
    }

    #[test]
    fn each_node_is_given_once() {
        let (mut joins, now) = (Joins::default(), Moment::now());
        let mut open = |wanted: Option<&str>| {
            joins
                .open(wanted, 2, HOUR, now)
                .map(|(node, _)| node.name())
                .map_err(|it| it.to_string())
        };
        assert_eq!(open(None).as_deref(), Ok("node-3"));
        assert_eq!(open(None).as_deref(), Ok("node-4"), "the first is waited for");
        assert_eq!(open(Some("node-9")).as_deref(), Ok("node-9"));
        assert_eq!(open(Some("node-9")).as_deref(), Ok("node-9"), "in place of the first");
        assert!(open(Some("node-2")).expect_err("home's own").contains("node-2 is there"));
        assert!(open(Some("node-0")).expect_err("none").contains("is no name of a node"));
        for _ in 0..195 {
            open(None).expect("there is room");
        }
        assert!(open(None).expect_err("all are given").contains("at most 200 nodes"));
        let (_, secret) = joins.open(Some("node-9"), 2, HOUR, now).expect("a token");
        assert_eq!(admitted(&mut joins, &secret, "k", now), taken("node-9", 1, true));
        let refused = joins.open(Some("node-9"), 2, HOUR, now);
        assert_eq!(refused, Err(TokenRefused::Taken("node-9".to_owned())));
    }

    #[test]
    fn what_is_new_of_a_link_is_noted() {
        let (mut joins, now) = (Joins::default(), Moment::now());
        let (node, secret) = joins.open(None, 2, HOUR, now).expect("a token");
        let link = |connected, since: &str| LinkInfo {
            connected,
            // Each connection comes from another port.
            peer: format!("192.0.2.1:{since}"),
            since: since.to_owned(),
            reason: String::new(),
        };
        assert!(!joins.note(node, link(true, "1")), "it has not joined");
        joins.admit(&proof(&secret, "k"), now).expect("taken");
        assert!(joins.note(node, link(true, "1")) && !joins.note(node, link(true, "2")));
        assert!(joins.note(node, link(false, "3")));
        let nodes: Vec<_> = joins.nodes().map(|(node, it)| (node, it.since.clone())).collect();
        assert_eq!(nodes, [(node, "3".to_owned())]);
    }
}
