//! The device by which a joined node reaches the machine.

use std::io;

use ambit_net::tun::ensure_tun;

/// Its name, in the node's namespace.
pub(crate) const JOINED_LINK: &str = "eth0";

/// Makes it in the calling thread's namespace. It stays while the link is started again.
pub(crate) fn make_joined_device() -> io::Result<()> {
    ensure_tun(JOINED_LINK)
}
