//! How many TLS handshakes with one pod may be under way on one thread, and which is ended when
//! there are too many.
//!
//! A handshake costs a descriptor and, once the client sends its hello, a signature. Silent clients
//! never make others be refused: the oldest handshake of the source that has most is ended,
//! strangers before clients that have proven themselves at this pod. A client that sends is done
//! before its turn comes. If a bound refused newcomers, an attacker with a few addresses could keep
//! everybody out.

use std::sync::Arc;
use std::time::Duration;

use ambit_net::admission::{Admission, Bound, Bounds};
use ambit_tls::HANDSHAKE_TIMEOUT;

/// Longest that a connection counts as one: a handshake has a time of its own, and its pod's
/// certificate may have to come first.
const LONGEST: Duration = HANDSHAKE_TIMEOUT.saturating_mul(2);
/// Handshakes with one pod on one thread.
const MAX_HANDSHAKES: usize = 1024;
/// Of these from one IPv4 address or IPv6 network. A proxy opens one at a time to a destination;
/// more come from one address only when a cluster translates addresses.
const MAX_HANDSHAKES_OF_ONE_SOURCE: usize = 64;
/// All threads together use so small a part of the descriptors for connections: well below what
/// one client may have of a pod's share, so that here a handshake goes before there one is refused.
const PART_OF_THE_DESCRIPTORS: usize = 12;

/// The handshakes with one pod on one of so many threads, in a process that has so many descriptors
/// for connections.
pub fn handshakes(for_connections: usize, threads: usize) -> Arc<Admission> {
    let total = for_connections / PART_OF_THE_DESCRIPTORS / threads.max(1);
    let total = total.clamp(1, MAX_HANDSHAKES);
    let silent = Bound { total, each: MAX_HANDSHAKES_OF_ONE_SOURCE.min(total) };
    // Who has proven itself leaves at once, so that the bound of those is none.
    let bounds = Bounds { silent, proven: silent, guests: Bound::NONE, proof_within: LONGEST };
    Admission::new("TLS handshakes of a pod", bounds)
}
