//! How many descriptors each share may have: arithmetic alone.
//!
//! A quarter of the descriptors for connections is guaranteed: a part of it to each share of each
//! pod, and to future pods. The rest is lent as switches lend their buffers (dynamic thresholds): a
//! share may have half of what is left for all. So the more a share takes, the less it can still
//! take, and something is always left.

/// What an operator's four sockets of 64 connections, the supervisor, the control plane, the
/// authority and files take at most.
const OF_OPERATORS: usize = 4 * 64 + 64;
/// A runtime's own descriptors, and the way home from other namespaces.
const OF_A_THREAD: usize = 8;
/// Threads beside those of the data plane: control and DNS.
const FURTHER_THREADS: usize = 2;
/// Listeners of a pod on one thread: ports 15001, 15006 and 15008.
const LISTENERS: usize = 3;
/// A pod's namespace, and its DNS sockets: two protocols, two families.
const OF_A_POD: usize = 1 + 4;
/// Pods that a node is expected to have; Kubernetes' default is 110.
const USUAL_PODS: usize = 128;
/// The part of the limit that listeners of pods to come may keep back.
const PART_FOR_PODS_TO_COME: usize = 8;
/// The part of the limit that connections have, however small it is.
const LEAST_PART_FOR_CONNECTIONS: usize = 4;
/// The part of the connections' descriptors that is guaranteed to pods.
const GUARANTEED_PART: usize = 4;
/// What a pod is guaranteed, in the parts that [`super::Direction::parts`] deals out.
const PARTS_OF_A_POD: usize = 16;
/// A guarantee that is worth something: one connection of two descriptors.
const LEAST_GUARANTEE: usize = 2;
/// A share may have so many times less than what is left for all.
const SHARE_OF_THE_REST: usize = 2;
/// An identity, or an IPv6 site, may have so many times what is left of a share: up to four fifths
/// of it, so that one with very many addresses leaves a fifth to the others.
const PARTY_TIMES_THE_REST: usize = 4;

/// The process, as far as its descriptors are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// `RLIMIT_NOFILE`.
    pub limit: usize,
    /// Data-plane threads.
    pub threads: usize,
}

impl Process {
    /// What the process has open before its first connection.
    fn own(self, pods: usize) -> usize {
        OF_OPERATORS + OF_A_THREAD * (self.threads + FURTHER_THREADS) + pods * self.of_a_pod()
    }

    fn of_a_pod(self) -> usize {
        LISTENERS * self.threads + OF_A_POD
    }

    /// What connections may have while there are so many pods. Pods that come change little of it:
    /// what they need is set aside beforehand.
    pub(super) fn for_connections(self, pods: usize) -> usize {
        let to_come = USUAL_PODS.saturating_sub(pods) * self.of_a_pod();
        let to_come = to_come.min(self.limit / PART_FOR_PODS_TO_COME).max(self.of_a_pod());
        let rest = self.limit.saturating_sub(self.own(pods) + to_come);
        rest.max(self.limit / LEAST_PART_FOR_CONNECTIONS)
    }

    /// Whether the sockets of one more pod can be taken on.
    pub(super) fn fits_another_pod(self, pods: usize, used: usize) -> bool {
        self.own(pods + 1) + used <= self.limit
    }
}

/// What there is for connections at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// For all connections.
    pub(super) total: usize,
    /// Pods that are served.
    pub(super) pods: usize,
    /// In use, of the guaranteed part.
    pub(super) guaranteed: usize,
    /// In use, of the lent part.
    pub(super) lent: usize,
}

impl Room {
    /// All that is in use.
    pub(super) fn used(self) -> usize {
        self.guaranteed + self.lent
    }

    /// Whether so many are left at all.
    pub(super) fn holds(self, count: usize) -> bool {
        self.used() + count <= self.total
    }

    /// What a share of so many parts always gets.
    pub(super) fn guarantee(self, parts: usize) -> usize {
        let of_a_pod = self.total / GUARANTEED_PART / self.pods.max(USUAL_PODS);
        (of_a_pod * parts / PARTS_OF_A_POD).max(LEAST_GUARANTEE)
    }

    /// What may be lent to one share.
    pub(super) fn loan(self) -> usize {
        let guaranteed = self.total / GUARANTEED_PART;
        let taken = self.lent + self.guaranteed.saturating_sub(guaranteed);
        (self.total - guaranteed).saturating_sub(taken) / SHARE_OF_THE_REST
    }
}

/// What one identity or site may have of a share from which so many may still be lent.
pub(super) fn of_party(rest: usize) -> usize {
    rest.saturating_mul(PARTY_TIMES_THE_REST)
}

/// What one source, an identity at an address, may have of a share from which so many may still be
/// lent: as many as it leaves to others.
pub(super) fn of_source(rest: usize) -> usize {
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_comes_first_and_pods_to_come_next() {
        let check = |limit, threads, pods, expected| {
            let process = Process { limit, threads };
            assert_eq!(process.for_connections(pods), expected, "{process:?}, {pods} pods");
        };
        // 352 for the process; 1408 for the 11 descriptors each of 128 pods, here or to come.
        check(20_000, 2, 0, 18_240);
        check(20_000, 2, 100, 18_240);
        check(20_000, 2, 128, 18_229);
        check(20_000, 2, 300, 16_337);
        check(1 << 20, 8, 10, 1_044_464);
        // Of a small limit pods to come keep an eighth back at most, and connections have a
        // quarter.
        check(1_024, 2, 0, 544);
        check(256, 2, 10, 64);
    }

    #[test]
    fn one_more_pod_fits_as_long_as_its_sockets_do() {
        let process = Process { limit: 2_000, threads: 2 };
        let own = process.own(11);
        assert!(process.fits_another_pod(10, 2_000 - own));
        assert!(!process.fits_another_pod(10, 2_001 - own));
        let pods = [0, 10, 100];
        let full = |pods| process.for_connections(pods);
        assert!(pods.iter().all(|pods| process.fits_another_pod(*pods, full(*pods))), "by itself");
    }

    /// How much `greedy` shares, one after the other, get of 18,240; and what is left to lend.
    fn check(greedy: usize, first: usize, last: usize, loan_left: usize) {
        let mut room = Room { total: 18_240, pods: 100, guaranteed: 0, lent: 0 };
        let mut taken = Vec::new();
        for _ in 0..greedy {
            let mut lent = 0;
            while lent < room.loan() {
                lent += 1;
                room.lent += 1;
            }
            taken.push(lent);
        }
        assert_eq!((taken[0], taken[greedy - 1], room.loan()), (first, last, loan_left));
        // Whatever was taken, what is guaranteed is there for every pod.
        let of_a_pod = room.guarantee(PARTS_OF_A_POD);
        assert!(of_a_pod >= 35 && room.total - room.lent >= of_a_pod * USUAL_PODS);
        assert_eq!(room.guarantee(5), 10);
    }

    #[test]
    fn greedy_shares_get_less_and_less_and_never_all() {
        check(1, 4_560, 4_560, 4_560);
        check(2, 4_560, 3_040, 3_040);
        check(10, 4_560, 119, 118);
        check(100, 4_560, 0, 0);
    }
}
