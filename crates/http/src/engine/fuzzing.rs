//! What fuzz targets look at of the inside: first bytes of connections, and frames.

use std::time::Duration;

use tokio::time::Instant;

use crate::engine::detect::{Verdict, detect};
use crate::engine::server::Meter;

/// What more bytes never change: a verdict that needs no more of them.
pub fn detection(bytes: &[u8]) {
    // A longer target is taken for one, whatever comes behind it.
    let bytes = &bytes[..bytes.len().min(4096)];
    let mut decided = None;
    for end in 0..=bytes.len() {
        let verdict = detect(&bytes[..end]);
        assert!(!matches!(verdict.in_the_end(), Verdict::More | Verdict::MoreHttp1));
        match decided {
            Some(decided) => assert_eq!(verdict, decided),
            None if matches!(verdict, Verdict::More | Verdict::MoreHttp1) => {}
            None => decided = Some(verdict),
        }
    }
}

/// However frames are cut, the same is counted of them.
pub fn frames(bytes: &[u8]) {
    let Some((size, bytes)) = bytes.split_first() else { return };
    let (now, limit) = (Instant::now(), Duration::from_secs(1));
    let (mut whole, mut cut) = (Meter::new(now), Meter::new(now));
    whole.received(bytes, now);
    bytes.chunks(usize::from(*size).max(1)).for_each(|piece| cut.received(piece, now));
    assert_eq!(whole.excess(), cut.excess());
    assert_eq!(whole.whole_by(limit), cut.whole_by(limit));
    whole.sent(bytes);
}
