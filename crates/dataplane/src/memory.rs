//! Whose memory a connection uses, and how much each owner may use.
//!
//! Bytes that wait on a connection are on the account of the party that opened it, as far as that
//! is proven: the client's identity and address, or the pod of this node. They are also on the
//! accounts of the served pod and of the whole worker. A client never gets all of a pod's share,
//! nor a pod all of the worker's unless the settings say so: the others continue. Threads share the
//! accounts, because the kernel decides which thread gets a connection.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ambit_model::Text;
use ambit_model::identity::Identity;
use ambit_net::memory::{Account, Accounts, Owner};
use serde::Serialize;

/// The part of a pod's share that one client may use.
const CLIENT_PART_OF_POD: usize = 2;
/// A share is used up when no more than this part of it is free: windows are at their narrowest.
const FREE_PART_WHEN_USED_UP: usize = 8;
/// Most shares in a report to operators.
const MAX_TOLD: usize = 32;
/// Accounts beyond which those are forgotten that nothing uses any more.
const SWEEP_ACCOUNTS: usize = 256;

/// How many bytes may wait for slow readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// Of all pods together.
    pub worker_bytes: usize,
    /// Of one pod, inbound and outbound each.
    pub pod_bytes: usize,
}

/// The accounts of a worker.
pub struct Memory {
    budget: Budget,
    worker: Arc<Account>,
    others: Mutex<Others>,
}

/// The accounts below the worker's, as long as something uses them.
struct Others {
    accounts: HashMap<Who, Weak<Account>>,
    sweep_at: usize,
}

/// Whose account it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Who {
    /// All that comes to a pod.
    Inbound { pod: Text },
    /// What one client opens to a pod; without an identity what comes in plain text.
    Client { pod: Text, identity: Option<Identity>, address: IpAddr },
    /// What a pod opens.
    Outbound { pod: Text },
}

impl Memory {
    /// Nothing is used.
    pub fn new(budget: Budget) -> Self {
        let worker = Arc::new(Account::new(Owner::Many, budget.worker_bytes));
        let others = Others { accounts: HashMap::new(), sweep_at: SWEEP_ACCOUNTS };
        Self { budget, worker, others: Mutex::new(others) }
    }

    /// Bytes that are held, or that may arrive at any moment.
    pub fn reserved_bytes(&self) -> usize {
        self.worker.reserved_bytes()
    }

    /// For a connection that a client opened to a pod.
    pub fn inbound(&self, pod: &Text, identity: Option<&Identity>, address: IpAddr) -> Accounts {
        let client = Who::Client { pod: pod.clone(), identity: identity.cloned(), address };
        let pod = Who::Inbound { pod: pod.clone() };
        [self.account(client), self.account(pod), self.worker.clone()].into_iter().collect()
    }

    /// For a connection that a pod opened.
    pub fn outbound(&self, pod: &Text) -> Accounts {
        let pod = Who::Outbound { pod: pod.clone() };
        [self.account(pod), self.worker.clone()].into_iter().collect()
    }

    /// The shares that are used up, and whose they are: a sentence each.
    pub fn used_up(&self, name_of: impl Fn(&Text) -> String) -> Vec<String> {
        // A panic elsewhere leaves the map whole.
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let below = others.accounts.iter().filter_map(|(who, account)| {
            let account = account.upgrade().filter(|account| is_used_up(account))?;
            Some(format!("{}: {}", who.told(&name_of), told(&account)))
        });
        let mut sentences: Vec<_> = below.collect();
        sentences.sort();
        sentences.truncate(MAX_TOLD);
        if is_used_up(&self.worker) {
            sentences.insert(0, format!("all connections: {}", told(&self.worker)));
        }
        sentences
    }

    fn account(&self, who: Who) -> Arc<Account> {
        // A panic elsewhere leaves the map whole.
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = others.accounts.get(&who).and_then(Weak::upgrade) {
            return account;
        }
        if others.accounts.len() >= others.sweep_at {
            others.accounts.retain(|_, account| account.strong_count() > 0);
            others.sweep_at = (2 * others.accounts.len()).max(SWEEP_ACCOUNTS);
        }
        let pod_bytes = self.budget.pod_bytes;
        let account = Arc::new(match who {
            Who::Inbound { .. } => Account::new(Owner::Many, pod_bytes),
            Who::Client { .. } => Account::new(Owner::One, pod_bytes / CLIENT_PART_OF_POD),
            Who::Outbound { .. } => Account::new(Owner::One, pod_bytes),
        });
        others.accounts.insert(who, Arc::downgrade(&account));
        account
    }
}

impl Who {
    fn told(&self, name_of: &impl Fn(&Text) -> String) -> String {
        match self {
            Self::Inbound { pod } => format!("pod {}, inbound", name_of(pod)),
            Self::Outbound { pod } => format!("pod {}, outbound", name_of(pod)),
            Self::Client { pod, identity: Some(identity), address } => {
                format!("pod {}, inbound from {identity} at {address}", name_of(pod))
            }
            Self::Client { pod, identity: None, address } => {
                format!("pod {}, inbound from {address}", name_of(pod))
            }
        }
    }
}

fn is_used_up(account: &Account) -> bool {
    let share = account.share_bytes();
    account.reserved_bytes() >= share - share / FREE_PART_WHEN_USED_UP
}

fn told(account: &Account) -> String {
    let (reserved, share) = (account.reserved_bytes() >> 20, account.share_bytes() >> 20);
    format!("{reserved} of {share} MiB wait for readers that stand still")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn memory() -> Memory {
        Memory::new(Budget { worker_bytes: 512 * MIB, pod_bytes: 128 * MIB })
    }

    fn client(number: u32) -> IpAddr {
        IpAddr::V4(number.into())
    }

    #[test]
    fn the_same_owner_has_one_account_and_another_another() {
        let (memory, pod, other) = (memory(), Text::from("a"), Text::from("b"));
        let identity = Identity::new("cluster.local", "ns", "sa");
        let one = Who::Client { pod: pod.clone(), identity: None, address: client(1) };
        let account = memory.account(one.clone());
        assert!(Arc::ptr_eq(&account, &memory.account(one)));
        let strangers = [
            Who::Client { pod: pod.clone(), identity: None, address: client(2) },
            Who::Client { pod: pod.clone(), identity: Some(identity), address: client(1) },
            Who::Client { pod: other, identity: None, address: client(1) },
            Who::Inbound { pod: pod.clone() },
            Who::Outbound { pod },
        ];
        for stranger in strangers {
            assert!(!Arc::ptr_eq(&account, &memory.account(stranger)));
        }
    }

    #[test]
    fn shares_that_are_used_up_are_told_of_with_their_owners() {
        let (memory, pod) = (memory(), Text::from("uid"));
        let name_of = |uid: &Text| if *uid == pod { "shop/cart".to_owned() } else { String::new() };
        let identity = Identity::new("cluster.local", "shop", "slow");
        let accounts = memory.inbound(&pod, Some(&identity), client(1));
        assert_eq!(memory.used_up(name_of), [""; 0]);
        let client = memory.account(Who::Client {
            pod: pod.clone(),
            identity: Some(identity),
            address: client(1),
        });
        let fills = client.share_bytes();
        accounts.charge(fills - 1);
        let owner = "pod shop/cart, inbound from spiffe://cluster.local/ns/shop/sa/slow at 0.0.0.1";
        let expected = format!("{owner}: 63 of 64 MiB wait for readers that stand still");
        assert_eq!(memory.used_up(name_of), [expected]);
        accounts.release(fills - 1);
        assert_eq!(memory.used_up(name_of), [""; 0]);
    }

    #[test]
    fn accounts_that_nothing_uses_are_forgotten() {
        let (memory, pod) = (memory(), Text::from("a"));
        let kept: Vec<_> =
            (0..300).map(|number| memory.inbound(&pod, None, client(number))).collect();
        for number in 300..100_000 {
            memory.inbound(&pod, None, client(number));
        }
        let len = || memory.others.lock().expect("whole").accounts.len();
        assert!((kept.len()..=2 * kept.len() + 2).contains(&len()), "{} accounts", len());
    }
}
