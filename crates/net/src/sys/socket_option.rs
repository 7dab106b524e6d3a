//! Socket options and calls that socket2 does not wrap.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use super::check;

const SO_ORIGINAL_DST: libc::c_int = 80;
const IP6T_SO_ORIGINAL_DST: libc::c_int = 80;

/// Where an IPv4 connection went before a redirect.
pub(crate) fn original_destination_v4(socket: impl AsFd) -> io::Result<SocketAddr> {
    // SAFETY: sockaddr_in is valid for any bytes, and is what the kernel fills in.
    let raw: libc::sockaddr_in = unsafe { read(socket, libc::SOL_IP, SO_ORIGINAL_DST)? };
    Ok((Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr)), u16::from_be(raw.sin_port)).into())
}

/// Where an IPv6 connection went before a redirect.
pub(crate) fn original_destination_v6(socket: impl AsFd) -> io::Result<SocketAddr> {
    // SAFETY: sockaddr_in6 is valid for any bytes, and is what the kernel fills in.
    let raw: libc::sockaddr_in6 = unsafe { read(socket, libc::SOL_IPV6, IP6T_SO_ORIGINAL_DST)? };
    let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
    Ok(SocketAddrV6::new(ip, u16::from_be(raw.sin6_port), 0, raw.sin6_scope_id).into())
}

/// State and round-trip time of a TCP connection, from the front part of `tcp_info` that never
/// changes.
pub(crate) fn tcp_info(socket: impl AsFd) -> io::Result<libc::tcp_info> {
    // SAFETY: tcp_info is valid for any bytes; older kernels fill in less, the rest stays zero.
    unsafe { read(socket, libc::IPPROTO_TCP, libc::TCP_INFO) }
}

/// What waits in a socket, without taking or waiting; the runtime's own call knows only of what it
/// was told by the last look at all sockets.
pub(crate) fn peek(socket: impl AsFd, into: &mut [u8]) -> io::Result<usize> {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes at most as many bytes as there is room for.
    let bytes = unsafe {
        libc::recv(socket.as_fd().as_raw_fd(), into.as_mut_ptr().cast(), into.len(), flags)
    };
    super::check_len(bytes)
}

/// The process at the other end of a Unix socket, at the time of its connect.
pub(crate) fn peer_credentials(socket: impl AsFd) -> io::Result<libc::ucred> {
    // SAFETY: ucred is valid for any bytes.
    unsafe { read(socket, libc::SOL_SOCKET, libc::SO_PEERCRED) }
}

/// Lets an IPv6 socket bind to addresses that are not local.
pub(crate) fn set_transparent_v6(socket: impl AsFd) -> io::Result<()> {
    set(socket, libc::SOL_IPV6, libc::IPV6_TRANSPARENT)
}

/// Lets an IPv6 socket bind to addresses that do not exist (yet).
pub(crate) fn set_freebind_v6(socket: impl AsFd) -> io::Result<()> {
    set(socket, libc::SOL_IPV6, libc::IPV6_FREEBIND)
}

/// Sizes the receive queue; beyond the system's limit only where this process is root of the
/// machine.
pub(crate) fn grow_receive_buffer(socket: impl AsFd, size_bytes: libc::c_int) -> io::Result<()> {
    grow(socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, size_bytes)
}

/// Sizes the send queue; beyond the system's limit only where this process is root of the machine.
pub(crate) fn grow_send_buffer(socket: impl AsFd, size_bytes: libc::c_int) -> io::Result<()> {
    grow(socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, size_bytes)
}

/// How much memory the send queue of a socket may hold.
pub(crate) fn send_buffer_bytes(socket: impl AsFd) -> io::Result<u32> {
    // SAFETY: integers are valid for any bytes.
    unsafe { read(socket, libc::SOL_SOCKET, libc::SO_SNDBUF) }
}

/// Takes the bound for what is written and not sent yet away.
pub(crate) fn allow_unsent(socket: impl AsFd) -> io::Result<()> {
    // SAFETY: the option takes an int; as an unsigned one this is the largest.
    unsafe { write(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &-1) }
}

/// How much memory the send queue of a socket holds.
pub(crate) fn queued_bytes(socket: impl AsFd) -> io::Result<u32> {
    const SO_MEMINFO: libc::c_int = 55;
    /// `SK_MEMINFO_WMEM_QUEUED` of `SK_MEMINFO_VARS`.
    const QUEUED: usize = 5;
    // SAFETY: integers are valid for any bytes.
    let memory: [u32; 9] = unsafe { read(socket, libc::SOL_SOCKET, SO_MEMINFO)? };
    Ok(memory[QUEUED])
}

fn grow(
    socket: impl AsFd,
    force: libc::c_int,
    ask: libc::c_int,
    size_bytes: libc::c_int,
) -> io::Result<()> {
    // SAFETY: all four options take an int.
    match unsafe { write(&socket, libc::SOL_SOCKET, force, &size_bytes) } {
        // Root of a user namespace only: the kernel gives what the system's limit allows.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            // SAFETY: as above.
            unsafe { write(&socket, libc::SOL_SOCKET, ask, &size_bytes) }
        }
        other => other,
    }
}

/// Has the kernel explain netlink errors in words and not repeat the request.
pub(crate) fn netlink_explain_errors(socket: impl AsFd) -> io::Result<()> {
    set(&socket, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK)?;
    set(&socket, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK)
}

/// Subscribes a netlink socket to a multicast group (1 to 32).
///
/// By `bind`: what `NETLINK_ADD_MEMBERSHIP` subscribes to does not arrive in a namespace on Linux
/// 6.18.
pub(crate) fn netlink_join(socket: impl AsFd, group: u32) -> io::Result<()> {
    // SAFETY: sockaddr_nl is plain data.
    let mut address: libc::sockaddr_nl = unsafe { mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as u16;
    address.nl_groups = 1 << (group - 1);
    let length = size_of_val(&address) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: pointer and length are those of a live sockaddr_nl.
    check(unsafe { libc::bind(fd, ptr::from_ref(&address).cast(), length) }).map(drop)
}

/// Leaves the choice of the port to `connect`. IPv6 sockets take the option too.
pub(crate) fn set_bind_address_no_port(socket: impl AsFd) -> io::Result<()> {
    set(socket, libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT)
}

/// Dissolves the connection of a TCP socket, or its attempt at one: `connect` to no address. The
/// peer is told with a reset.
pub(crate) fn disconnect(socket: impl AsFd) -> io::Result<()> {
    // SAFETY: sockaddr is plain data.
    let mut nowhere: libc::sockaddr = unsafe { mem::zeroed() };
    nowhere.sa_family = libc::AF_UNSPEC as u16;
    let length = size_of_val(&nowhere) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: pointer and length are those of a live sockaddr.
    check(unsafe { libc::connect(fd, ptr::from_ref(&nowhere), length) }).map(drop)
}

/// The kind of a namespace's descriptor (`CLONE_NEW*`); fails for anything else.
pub(crate) fn namespace_kind(fd: impl AsFd) -> io::Result<libc::c_int> {
    const NS_GET_NSTYPE: libc::c_ulong = 0xb703;
    // SAFETY: this ioctl takes no argument.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), NS_GET_NSTYPE) })
}

/// Whether an interface of the socket's namespace is up. Unlike a question by netlink it waits for
/// nobody who changes the network's configuration.
pub(crate) fn is_interface_up(socket: impl AsFd, name: &str) -> io::Result<bool> {
    // SAFETY: ifreq is plain data.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for (into, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *into = from as libc::c_char;
    }
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: SIOCGIFFLAGS reads and writes one ifreq.
    check(unsafe { libc::ioctl(fd, libc::SIOCGIFFLAGS, &raw mut request) })?;
    // SAFETY: the call has filled the flags in.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(libc::c_int::from(flags) & libc::IFF_UP != 0)
}

fn set(socket: impl AsFd, level: libc::c_int, name: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: callers name options that take an int.
    unsafe { write(socket, level, name, &on) }
}

/// # Safety
/// The option must take a `T`.
pub(super) unsafe fn write<T>(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let length = mem::size_of::<T>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: pointer and length are those of a live T, which the caller says is right for this
    // option.
    check(unsafe { libc::setsockopt(fd, level, name, ptr::from_ref(value).cast(), length) })
        .map(drop)
}

/// # Safety
/// `T` must be valid for any bytes, zero included.
pub(super) unsafe fn read<T>(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<T> {
    let mut length = mem::size_of::<T>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the caller vouches for T.
    let mut value: T = unsafe { mem::zeroed() };
    // SAFETY: pointer and length are those of a live T.
    check(unsafe {
        libc::getsockopt(fd, level, name, ptr::from_mut(&mut value).cast(), &mut length)
    })?;
    Ok(value)
}
