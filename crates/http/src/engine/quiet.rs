//! The end of an exchange in which nothing moves: every wait for a peer has a limit.

use std::time::Duration;

use tokio::time::sleep;

use crate::engine::piece::Broken;

/// The count is looked at so often within a limit: no timer is set again for each piece.
const LOOKS: u32 = 4;

/// Waits until a count of bytes has stayed the same for `limit`, or up to a quarter longer.
/// Then it is [`Broken::Silent`].
pub async fn quiet(limit: Duration, count: impl Fn() -> u64) -> Broken {
    let (mut seen, mut looks) = (count(), 0);
    while looks < LOOKS {
        sleep(limit / LOOKS).await;
        let now = count();
        looks = if now == seen { looks + 1 } else { 0 };
        seen = now;
    }
    Broken::Silent(limit)
}
