//! Detects an HBONE peer that is gone without having closed the connection.
//!
//! A PING is sent only when nothing has arrived for a while, and its loss alone closes nothing: a
//! peer that still sends bytes is alive, however busy.

use std::future::poll_fn;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::link::Link;
use super::transport::Activity;

/// Silence after which the peer is asked.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Silence after the question, after which the peer is gone.
pub(super) const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Ends when the peer is gone.
pub(super) async fn watch(link: &Link, activity: Activity) {
    let mut seen = activity.bytes();
    loop {
        sleep(PING_INTERVAL).await;
        if activity.bytes() == seen && !answers(link, &activity).await {
            return;
        }
        seen = activity.bytes();
    }
}

/// Asks, and waits for the answer while bytes arrive in every period: it may be stuck behind them,
/// and comes in order.
async fn answers(link: &Link, activity: &Activity) -> bool {
    let before = link.ping();
    loop {
        let seen = activity.bytes();
        let answer = poll_fn(|cx| link.poll_pong(cx, before));
        match timeout(PING_TIMEOUT, answer).await {
            Ok(answered) => return answered,
            Err(_) if activity.bytes() == seen => return false,
            Err(_) => {}
        }
    }
}
