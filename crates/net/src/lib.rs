//! Moves bytes: sockets, namespaces, netlink, HBONE, drain and gRPC transport.
//!
//! The roles say *what* to move, this crate knows *how* Linux does it. It never decides whether a
//! flow is allowed and never talks to Kubernetes. All `unsafe` of the whole project lives in
//! [`sys`].
//!
//! What other crates call:
//! * [`namespace`]: `NetNs::{create, current, open, from_fd, of_pid, run, enter, pin, inode}`,
//!   `unpin`, `set_sysctl`, `open_sysctl`
//! * [`socket`]: `tcp_listener`, `udp_bind`, `tcp_dial`, `tcp_redial`, `tcp_connect`,
//!   `original_destination`, `normalise`, `set_linger_reset`, `address_exists`, `tcp_info`,
//!   `peer_credentials`
//! * [`seqpacket`]: `Listener`, `Connection`, `BlockingConnection`: descriptors with packets
//! * [`memory`]: `Account`, `Accounts`: how many bytes connections may hold together
//! * [`local_http`]: `request`, `get`: HTTP/1.1 over a unix socket or loopback
//! * [`admission`]: `Admission`, `Bounds`, `Place`, `Proof`: who may be connected to a port that
//!   strangers reach
//! * [`accept`]: `Listener`, `next`, `Admitted`: connections with such a place
//! * [`http_port`]: `serve`: small HTTP/1.1 on such a port
//! * [`memfd`]: `Sealed::{create, from_fd, read}`
//! * [`netlink`]: `RouteSocket`: links, addresses, routes, rules, neighbours
//! * [`nftables`]: `Table`, `Chain`, `Rule`, `Set`; `Nftables::{replace, delete, verify}`, `Watch`
//! * [`conntrack`]: `Conntrack::{original_of_reply, count, entries, delete_matching}`
//! * [`outside`]: `Outside::{dial, listener}`: sockets of another network, handed over
//! * [`capture`]: `Capture::start(..).stop()`, `Trace::read(..)`: packets on a wire
//! * [`procnet`] has `established_by_local_port`
//! * [`program`]: `give_back_start`: the pages that only the start needs
//! * [`readable`]: `Readable`: a descriptor that another library reads, waited for
//! * [`tcp_table`]: `connections`, `destroy`: the TCP connections of a namespace
//! * [`tun`]: `ensure_tun`, `Tun::{open, read, write}`: interfaces whose packets a program carries
//! * [`cork`](mod@cork): `cork`: what is written at one moment is sent at once
//! * [`drain`]: `Drain`, `Guard`: ending in good order
//! * [`copy`](mod@copy): `copy(client, server, &flow)` between `SocketEnd`s and tunnels, `Flow`
//! * [`kernel_path`]: `KernelPath::{open, shortcut}`: two sockets joined in the kernel
//! * [`grpc`]: `connect`: a channel to the control plane
//! * [`hbone`]: `Client`, `Early`, `serve`, `Connect`, `Tunnel`, `Transport`, `Settings`
//! * [`pool`]: `Pool` of any `Connection`, shared by the users of one thread
//! * [`sys`]: `process`, `mount`, `capability`: what a pod's init needs

pub mod accept;
pub mod admission;
pub mod capture;
pub mod conntrack;
pub mod copy;
pub mod cork;
pub mod drain;
mod ended;
pub mod grpc;
pub mod hbone;
pub mod http_port;
pub mod kernel_path;
pub mod local_http;
pub mod memfd;
pub mod memory;
pub mod namespace;
pub mod netlink;
pub mod nftables;
pub mod outside;
pub mod pool;
pub mod procnet;
pub mod program;
pub mod readable;
pub mod seqpacket;
pub mod socket;
pub mod sys;
pub mod tcp_table;
pub mod tun;
