//! What all sockets of a machine do that cannot accept, as when there are too many open files.

use std::time::Duration;

/// Wait before such a socket is tried again.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
