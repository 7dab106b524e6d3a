//! Changes of interfaces, as they happen.

use super::NetlinkError;
use super::socket::Subscription;

/// `RTNLGRP_LINK`: gets every interface that is added, removed or changed.
const LINKS_GROUP: u32 = 1;

/// Reports when any interface of a namespace is added, removed or changed.
#[derive(Debug)]
pub struct LinkWatch(Subscription);

impl LinkWatch {
    /// Subscribes in the calling thread's namespace. Needs a tokio runtime.
    pub fn open() -> Result<Self, NetlinkError> {
        Subscription::open(libc::NETLINK_ROUTE, LINKS_GROUP).map(Self)
    }

    /// Waits for the next change; several at once count as one. Cancel safe.
    pub async fn changed(&mut self) -> Result<(), NetlinkError> {
        self.0.changed("wait for changes of interfaces").await
    }
}
