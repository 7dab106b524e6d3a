//! The way out of a machine, for who asks for it with `ambit up --egress`.
//!
//! A machine's networks have no link to the host's, and nothing here changes the host's. The user's
//! command starts a process where it runs itself ([`process`]): it opens TCP connections and asks
//! the host's resolvers, and ends with the machine. Process 1 has the other end of its socket
//! ([`way`]). It takes what pods and the machine's own programs connect to outside ([`carry`]).
//! A machine that carries a workload of a cluster hands sockets of the host's network to its proxy
//! instead ([`hand_out`]).
//! UDP other than DNS, and ICMP, do not leave.

mod allowed;
mod carry;
mod hand_out;
mod process;
mod protocol;
mod resolve;
mod told;
mod way;

pub use allowed::{Egress, EgressError};
pub(crate) use carry::open;
pub(crate) use process::{COMMAND, run, start};
