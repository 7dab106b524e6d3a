//! Detects an HBONE peer that is gone without having closed the connection.
//!
//! A PING is sent only when nothing has arrived for a while, and its loss alone closes nothing: a
//! peer that still sends bytes is alive, however busy.

use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{Instant, sleep, timeout_at};

use super::transport::Activity;

/// Silence after which the peer is asked.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Silence after the question, after which the peer is gone.
pub(super) const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Ends when the peer is gone, or when the connection ended by itself.
pub(super) async fn watch(mut ping_pong: PingPong, activity: Activity) {
    let mut seen = activity.bytes();
    loop {
        sleep(PING_INTERVAL).await;
        if activity.bytes() == seen {
            let deadline = Instant::now() + PING_TIMEOUT;
            match timeout_at(deadline, ping_pong.ping(Ping::opaque())).await {
                Ok(Ok(_)) => {}
                // The connection is over; its driver reports that.
                Ok(Err(_)) => return,
                Err(_) if activity.bytes() == seen => return,
                // The answer is stuck behind data that does arrive: wait for it, it comes in order.
                Err(_) if still_alive(&mut ping_pong, &activity).await => {}
                Err(_) => return,
            }
        }
        seen = activity.bytes();
    }
}

/// Waits for an overdue answer while bytes arrive in every period; returns whether it came.
async fn still_alive(ping_pong: &mut PingPong, activity: &Activity) -> bool {
    loop {
        let seen = activity.bytes();
        let answer = std::future::poll_fn(|cx| ping_pong.poll_pong(cx));
        let answered = timeout_at(Instant::now() + PING_TIMEOUT, answer).await.is_ok();
        if answered || activity.bytes() == seen {
            return answered;
        }
    }
}
