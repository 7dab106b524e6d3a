//! Packets with file descriptors (`SCM_RIGHTS`) over Unix sockets.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use super::{check, check_len};

/// The kernel's own limit of descriptors per packet (`SCM_MAX_FD`).
pub(crate) const MAX_FDS: usize = 253;

/// Room for `MAX_FDS` descriptors and one header, aligned for `cmsghdr`.
const CONTROL_WORDS: usize = (MAX_FDS * size_of::<RawFd>() + 64) / size_of::<u64>();

/// What one `recvmsg` brought.
#[derive(Debug)]
pub(crate) struct Received {
    /// Bytes written to the buffer; 0 when the peer has closed (or sent an empty packet).
    pub(crate) length: usize,
    /// The descriptors that came along, close-on-exec.
    pub(crate) fds: Vec<OwnedFd>,
    /// Whether bytes or descriptors did not fit.
    pub(crate) truncated: bool,
}

/// A connected pair of SOCK_SEQPACKET sockets, close-on-exec.
pub(crate) fn seqpacket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds: [RawFd; 2] = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: fds is a live array of two ints; on success both are ours alone.
    unsafe {
        check(libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()))?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// Sends one packet with descriptors. The caller keeps its own copies.
pub(crate) fn send(socket: impl AsFd, payload: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    if fds.len() > MAX_FDS {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut control = [0_u64; CONTROL_WORDS];
    let mut part =
        libc::iovec { iov_base: payload.as_ptr().cast_mut().cast(), iov_len: payload.len() };
    // SAFETY: msghdr is plain data, null and zero mean "none".
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        let bytes = size_of_val(fds) as u32;
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE only computes; MAX_FDS descriptors fit into `control`.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as usize;
        // SAFETY: msg_control points at an aligned, zeroed buffer large enough for one header and
        // `bytes`.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as usize;
            // BorrowedFd is repr(transparent) over RawFd.
            ptr::copy_nonoverlapping(
                fds.as_ptr().cast::<u8>(),
                libc::CMSG_DATA(header),
                bytes as usize,
            );
        }
    }
    // SAFETY: all pointers in message are to live data.
    check_len(unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &message, libc::MSG_NOSIGNAL) })
}

/// Receives one packet. Descriptors are taken over whatever else is wrong with the packet, so that
/// none leaks.
pub(crate) fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    flags: libc::c_int,
) -> io::Result<Received> {
    let mut control = [0_u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: msghdr is plain data, null and zero mean "none".
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let flags = flags | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: all pointers in message are to live data of the given lengths.
    let length =
        check_len(unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &mut message, flags) })?;
    let mut fds = Vec::new();
    // SAFETY: the kernel filled msg_control up to msg_controllen; the CMSG macros stay within it,
    // and each descriptor in an SCM_RIGHTS message is new and ours alone.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while let Some(current) = header.as_ref() {
            if current.cmsg_level == libc::SOL_SOCKET && current.cmsg_type == libc::SCM_RIGHTS {
                let bytes = current.cmsg_len - libc::CMSG_LEN(0) as usize;
                let first = libc::CMSG_DATA(header).cast::<RawFd>();
                for index in 0..bytes / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(ptr::read_unaligned(first.add(index))));
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    let truncated = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    Ok(Received { length, fds, truncated })
}
