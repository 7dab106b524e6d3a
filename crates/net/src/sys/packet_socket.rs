//! AF_PACKET: frames as an interface sees them.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::socket_option::{read, write};
use super::{check, check_len};

/// A socket that sees every frame of one interface of the current namespace, in and out.
pub(crate) fn open(interface_index: u32) -> io::Result<OwnedFd> {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    let index = libc::c_int::try_from(interface_index)
        .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // Protocol 0: no frame arrives until the socket is bound to its one interface.
    // SAFETY: integers only; the returned descriptor is ours alone.
    let socket = unsafe {
        OwnedFd::from_raw_fd(check(libc::socket(
            libc::AF_PACKET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            0,
        ))?)
    };
    // SAFETY: sockaddr_ll is plain data.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = index;
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: pointer and length are those of a live sockaddr_ll.
    check(unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) })?;
    // SAFETY: packet_mreq is plain data.
    let mut membership: libc::packet_mreq = unsafe { mem::zeroed() };
    membership.mr_ifindex = index;
    membership.mr_type = libc::PACKET_MR_PROMISC as u16;
    // SAFETY: PACKET_ADD_MEMBERSHIP takes a packet_mreq.
    unsafe { write(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)? };
    Ok(socket)
}

/// Bounds how long [`receive`] waits.
pub(crate) fn set_receive_timeout(socket: impl AsFd, timeout: Duration) -> io::Result<()> {
    let value = libc::timeval {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_usec: libc::suseconds_t::from(timeout.subsec_micros() as i32),
    };
    // SAFETY: SO_RCVTIMEO takes a timeval.
    unsafe { write(socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &value) }
}

/// Reads one frame; returns its full length, which may exceed the buffer.
pub(crate) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: pointer and length are those of a live slice. MSG_TRUNC asks for the full length.
    check_len(unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_TRUNC) })
}

/// Sends one frame unchanged.
#[cfg(test)]
pub(crate) fn send(socket: impl AsFd, frame: &[u8]) -> io::Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: pointer and length are those of a live slice.
    check_len(unsafe { libc::send(fd, frame.as_ptr().cast(), frame.len(), 0) })
}

/// Frames that the kernel had to drop since the last call because the queue was full.
pub(crate) fn dropped(socket: impl AsFd) -> io::Result<u32> {
    // SAFETY: tpacket_stats is valid for any bytes.
    let stats: libc::tpacket_stats =
        unsafe { read(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS)? };
    Ok(stats.tp_drops)
}
