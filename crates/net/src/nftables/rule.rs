//! Rules: conditions, then statements, in the order of the calls.
//!
//! Each builder method appends one condition or statement; a packet that fails a condition leaves
//! the rule.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::Verdict;

/// Transport protocols that rules distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP for IPv4.
    Icmp,
    /// ICMP for IPv6.
    Icmpv6,
}

/// What connection tracking knows of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionState {
    /// Fits no connection.
    Invalid,
    /// Belongs to one that has seen packets both ways.
    Established,
    /// Belongs to another one, such as an ICMP error.
    Related,
    /// Begins one.
    New,
    /// Not tracked.
    Untracked,
}

/// Way of a packet within its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// As the first packet.
    Original,
    /// Against it.
    Reply,
}

/// The owner of the socket that sent a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketOwner {
    /// Any local socket.
    Anyone,
    /// Sockets of this user.
    User(u32),
}

/// What a packet must match for the rule to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Protocol { protocol: Protocol, equal: bool },
    Ipv6(bool),
    NestedTag { service: bool, vlan: u16 },
    Mark { value: u32, mask: u32, equal: bool },
    ConnectionMark { value: u32, mask: u32, equal: bool },
    State(Vec<ConnectionState>),
    Direction(Direction),
    Source { net: IpNet, equal: bool },
    Destination { net: IpNet, equal: bool },
    SourceIn { set: String, ipv6: bool },
    DestinationIn { set: String, ipv6: bool },
    ConnectionIn { set: String, ipv6: bool, received: bool },
    SourcePort { port: u16, equal: bool },
    DestinationPort { port: u16, equal: bool },
    TcpFlags { mask: u8, value: u8, equal: bool },
    InInterface { name: String, equal: bool },
    OutInterface { name: String, equal: bool },
    SentBy(SocketOwner),
    ToLocalAddress(bool),
}

/// An action on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Statement {
    Counter,
    SetMark(u32),
    SetConnectionMark(u32),
    MarkFromConnection,
    ConnectionFromMark,
    Zone(u16),
    NoTrack,
    Verdict(Verdict),
    ServiceVerdict { map: String, ipv6: bool },
    Reject { tcp_reset: bool },
    Redirect(u16),
    RedirectInto { block: IpNet, port: u16 },
    DestinationNat { backends: Vec<SocketAddr>, by_source: bool },
    SourceNat(IpAddr),
    Masquerade,
}

/// One step of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    When(Condition),
    Then(Statement),
}

/// A rule with the comment by which people and the tamper check know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub(super) comment: String,
    pub(super) parts: Vec<Part>,
}

macro_rules! parts {
    ($($(#[$doc:meta])* $method:ident($($name:ident: $kind:ty),*) => $part:expr;)*) => {
        impl Rule {
            $($(#[$doc])*
            #[must_use]
            pub fn $method(self $(, $name: $kind)*) -> Self {
                self.with($part)
            })*
        }
    };
}

parts! {
    /// Packets of this transport protocol.
    protocol(protocol: Protocol) => Part::When(Condition::Protocol { protocol, equal: true });
    /// Packets of another transport protocol. One whose protocol cannot be found is none of these.
    protocol_not(protocol: Protocol) =>
        Part::When(Condition::Protocol { protocol, equal: false });
    /// IPv4 packets; needed in `Family::Inet`, `Family::Bridge` and `Family::Netdev` before
    /// addresses.
    ipv4() => Part::When(Condition::Ipv6(false));
    /// IPv6 packets.
    ipv6() => Part::When(Condition::Ipv6(true));
    /// Frames with a tag of this VLAN within another tag, which the kernel has taken off before; in
    /// `Family::Bridge` and `Family::Netdev`. A service tag is one of IEEE 802.1ad.
    nested_tag(service: bool, vlan: u16) => Part::When(Condition::NestedTag { service, vlan });
    /// Packets whose masked mark is `value`.
    mark(value: u32, mask: u32) => Part::When(Condition::Mark { value, mask, equal: true });
    /// Packets whose masked mark is not `value`.
    mark_not(value: u32, mask: u32) => Part::When(Condition::Mark { value, mask, equal: false });
    /// Packets of connections whose masked mark is `value`.
    connection_mark(value: u32, mask: u32) =>
        Part::When(Condition::ConnectionMark { value, mask, equal: true });
    /// Packets of connections whose masked mark is not `value`.
    connection_mark_not(value: u32, mask: u32) =>
        Part::When(Condition::ConnectionMark { value, mask, equal: false });
    /// Packets in any of these states.
    state(states: &[ConnectionState]) => Part::When(Condition::State(states.to_vec()));
    /// Packets that go this way within their connection.
    direction(direction: Direction) => Part::When(Condition::Direction(direction));
    /// Packets from these addresses.
    source(net: IpNet) => Part::When(Condition::Source { net, equal: true });
    /// Packets not from these addresses.
    source_not(net: IpNet) => Part::When(Condition::Source { net, equal: false });
    /// Packets to these addresses.
    destination(net: IpNet) => Part::When(Condition::Destination { net, equal: true });
    /// Packets not to these addresses.
    destination_not(net: IpNet) => Part::When(Condition::Destination { net, equal: false });
    /// Packets from an address in a set of IPv4 addresses.
    source_in_ipv4(set: &str) =>
        Part::When(Condition::SourceIn { set: set.to_owned(), ipv6: false });
    /// Packets from an address in a set of IPv6 addresses.
    source_in_ipv6(set: &str) =>
        Part::When(Condition::SourceIn { set: set.to_owned(), ipv6: true });
    /// Packets to an address in a set of IPv4 addresses.
    destination_in_ipv4(set: &str) =>
        Part::When(Condition::DestinationIn { set: set.to_owned(), ipv6: false });
    /// Packets to an address in a set of IPv6 addresses.
    destination_in_ipv6(set: &str) =>
        Part::When(Condition::DestinationIn { set: set.to_owned(), ipv6: true });
    /// TCP packets that come in for a connection in a set of IPv4 connections; goes after
    /// `protocol`.
    received_for_ipv4(set: &str) =>
        Part::When(Condition::ConnectionIn { set: set.to_owned(), ipv6: false, received: true });
    /// TCP packets that come in for a connection in a set of IPv6 connections.
    received_for_ipv6(set: &str) =>
        Part::When(Condition::ConnectionIn { set: set.to_owned(), ipv6: true, received: true });
    /// TCP packets that go out from a connection in a set of IPv4 connections; goes after
    /// `protocol`.
    sent_from_ipv4(set: &str) =>
        Part::When(Condition::ConnectionIn { set: set.to_owned(), ipv6: false, received: false });
    /// TCP packets that go out from a connection in a set of IPv6 connections.
    sent_from_ipv6(set: &str) =>
        Part::When(Condition::ConnectionIn { set: set.to_owned(), ipv6: true, received: false });
    /// TCP or UDP packets from this port; goes after `protocol`.
    source_port(port: u16) => Part::When(Condition::SourcePort { port, equal: true });
    /// TCP or UDP packets to this port; goes after `protocol`.
    port(port: u16) => Part::When(Condition::DestinationPort { port, equal: true });
    /// TCP or UDP packets not to this port; goes after `protocol`.
    port_not(port: u16) => Part::When(Condition::DestinationPort { port, equal: false });
    /// TCP packets whose masked flags are `value`; goes after `protocol`.
    tcp_flags(mask: u8, value: u8) =>
        Part::When(Condition::TcpFlags { mask, value, equal: true });
    /// TCP packets whose masked flags are not `value`; goes after `protocol`.
    tcp_flags_not(mask: u8, value: u8) =>
        Part::When(Condition::TcpFlags { mask, value, equal: false });
    /// Packets that came in by this interface.
    in_interface(name: &str) =>
        Part::When(Condition::InInterface { name: name.to_owned(), equal: true });
    /// Packets that came in by another interface.
    in_interface_not(name: &str) =>
        Part::When(Condition::InInterface { name: name.to_owned(), equal: false });
    /// Packets that leave by this interface.
    out_interface(name: &str) =>
        Part::When(Condition::OutInterface { name: name.to_owned(), equal: true });
    /// Packets that leave by another interface.
    out_interface_not(name: &str) =>
        Part::When(Condition::OutInterface { name: name.to_owned(), equal: false });
    /// Packets sent by a local socket, of anyone or of one user.
    sent_by(owner: SocketOwner) => Part::When(Condition::SentBy(owner));
    /// Packets to an address of this namespace.
    to_local_address() => Part::When(Condition::ToLocalAddress(true));
    /// Packets to no address of this namespace.
    to_other_address() => Part::When(Condition::ToLocalAddress(false));
    /// Counts packets and bytes.
    counter() => Part::Then(Statement::Counter);
    /// Sets the packet's mark.
    set_mark(mark: u32) => Part::Then(Statement::SetMark(mark));
    /// Sets the connection's mark.
    set_connection_mark(mark: u32) => Part::Then(Statement::SetConnectionMark(mark));
    /// Copies the connection's mark to the packet.
    mark_from_connection() => Part::Then(Statement::MarkFromConnection);
    /// Copies the packet's mark to the connection.
    connection_from_mark() => Part::Then(Statement::ConnectionFromMark);
    /// Puts the connection into a zone of its own; in a chain before connection tracking.
    zone(zone: u16) => Part::Then(Statement::Zone(zone));
    /// Leaves the packet untracked; in a chain before connection tracking.
    no_track() => Part::Then(Statement::NoTrack);
    /// Ends with this verdict.
    verdict(verdict: Verdict) => Part::Then(Statement::Verdict(verdict));
    /// Accepts.
    accept() => Part::Then(Statement::Verdict(Verdict::Accept));
    /// Drops.
    drop() => Part::Then(Statement::Verdict(Verdict::Drop));
    /// Goes back to the calling chain.
    return_to_caller() => Part::Then(Statement::Verdict(Verdict::Return));
    /// Calls a chain.
    jump(chain: &str) => Part::Then(Statement::Verdict(Verdict::Jump(chain.to_owned())));
    /// Goes to a chain for good.
    goto(chain: &str) => Part::Then(Statement::Verdict(Verdict::Goto(chain.to_owned())));
    /// Takes the verdict that an IPv4 service map has for destination, protocol and port, if it has
    /// one.
    service_verdict_ipv4(map: &str) =>
        Part::Then(Statement::ServiceVerdict { map: map.to_owned(), ipv6: false });
    /// Takes the verdict that an IPv6 service map has for destination, protocol and port, if it has
    /// one.
    service_verdict_ipv6(map: &str) =>
        Part::Then(Statement::ServiceVerdict { map: map.to_owned(), ipv6: true });
    /// Refuses with a TCP reset; goes after `protocol(Protocol::Tcp)`.
    reject_with_reset() => Part::Then(Statement::Reject { tcp_reset: true });
    /// Refuses with an ICMP error (port unreachable).
    reject() => Part::Then(Statement::Reject { tcp_reset: false });
    /// Redirects the connection to a port of this namespace.
    redirect(port: u16) => Part::Then(Statement::Redirect(port));
    /// Redirects the connection to a port of this namespace, at the address of `block` that ends
    /// as the destination ends. The block is of the table's family, and local to the namespace.
    redirect_into(block: IpNet, port: u16) =>
        Part::Then(Statement::RedirectInto { block, port });
    /// Sends the connection to one of these backends, each equally likely. All must be of the
    /// table's family.
    destination_nat(backends: &[SocketAddr]) =>
        Part::Then(Statement::DestinationNat { backends: backends.to_vec(), by_source: false });
    /// Like `destination_nat`, but connections of one source address go to one backend, as long as
    /// the backends stay the same.
    destination_nat_by_source(backends: &[SocketAddr]) =>
        Part::Then(Statement::DestinationNat { backends: backends.to_vec(), by_source: true });
    /// Gives the connection this source address.
    source_nat(ip: IpAddr) => Part::Then(Statement::SourceNat(ip));
    /// Gives the connection the source address of the interface it leaves by.
    masquerade() => Part::Then(Statement::Masquerade);
}

impl Rule {
    /// A rule that matches everything and does nothing yet. The comment is at most 100 bytes.
    pub fn new(comment: &str) -> Self {
        Self { comment: comment.to_owned(), parts: Vec::new() }
    }

    /// Its comment.
    pub fn comment(&self) -> &str {
        &self.comment
    }

    fn with(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }
}
