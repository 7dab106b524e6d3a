//! The `ioctl`s of `/dev/net/tun`, which netlink has no messages for: a descriptor becomes a queue
//! of a device only by them.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

use super::check;

/// Makes a descriptor of `/dev/net/tun` a queue of the TUN device of this name in the calling
/// thread's namespace. Makes the device if it is not there.
pub(crate) fn attach(tun: impl AsFd, name: &str) -> io::Result<()> {
    // SAFETY: ifreq is plain data.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for (into, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *into = from as libc::c_char;
    }
    // IP packets, without the four bytes of protocol before each.
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    let fd = tun.as_fd().as_raw_fd();
    // SAFETY: TUNSETIFF reads and writes one ifreq.
    check(unsafe { libc::ioctl(fd, libc::TUNSETIFF, &raw mut request) }).map(drop)
}

/// Has the device stay when its last descriptor is closed.
pub(crate) fn persist(tun: impl AsFd) -> io::Result<()> {
    let on: libc::c_ulong = 1;
    let fd = tun.as_fd().as_raw_fd();
    // SAFETY: TUNSETPERSIST takes an integer.
    check(unsafe { libc::ioctl(fd, libc::TUNSETPERSIST, on) }).map(drop)
}
