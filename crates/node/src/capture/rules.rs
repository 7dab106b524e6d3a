//! The capture rules of one pod as data: nftables tables, policy routing, kernel parameters.
//!
//! They are those of istio-cni, row by row, so that ztunnel finds what it expects, with four
//! differences. Every redirect of TCP asks for the first packet of a connection (SYN alone), so
//! that connections which are open at enrolment live on: to connection tracking, which begins with
//! these rules, their packets look new. The probe address is believed only on the interface
//! towards the node. And an outbound connection arrives at a local address that depends on where
//! it goes: at 127.0.0.1 a client's port that is used again for another destination would meet the
//! last connection's TIME_WAIT, whose time stamps have nothing to do with the new one's, and every
//! second such connection would wait a second for its next SYN. And an inbound connection is
//! redirected only from an address that the pod has: a neighbour may write any other into a packet,
//! and the redirect would deliver it, and name that address to the proxy as the one to dial.
//! Without it such a packet is for somebody else, and a pod that is no router drops it.
//!
//! Address translation decides by a connection's first packet alone, and only where connection
//! tracking sees a first packet. So two chains stand behind it and drop what passed it by, whatever
//! the way: TCP that comes from outside and was not translated, and TCP of the pod that is about to
//! leave and is not the proxy's. What they let pass is a list; the rest is dropped. This module
//! never touches the kernel.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ambit_net::netlink;
use ambit_net::nftables::{
    Chain, Connection, Direction, Family, Hook, Priority, Protocol, Rule, Set, Table,
};
use ambit_words::addresses::{PROBE_V4, PROBE_V6};
use ambit_words::ports::{DNS, DNS_CAPTURE, HBONE, INBOUND, OUTBOUND};
use ipnet::{IpNet, Ipv4Net};

use crate::pod::CaptureOptions;

/// Name of the agent's tables, in the pods' namespaces and in the node's.
pub(crate) const TABLE: &str = "ambit";

/// Mark of every socket of the proxy.
pub(crate) const PROXY_MARK: u32 = 0x539;
/// Mark of connections that the proxy opened with the client's address as source.
pub(crate) const TRANSPARENT_MARK: u32 = 0x111;
/// The bits of a mark that are ours.
pub(crate) const MARK_MASK: u32 = 0xfff;

/// Kernel parameter that lets a connection waiting on a closed listener move to another one.
pub(crate) const MIGRATE_PARAMETER: &str = "net/ipv4/tcp_migrate_req";

/// Kernel parameter by which connection tracking takes a packet from the midst of a connection that
/// it does not know for a connection. Such a connection is never translated, so any packet could
/// make one that passes by capture.
pub(crate) const LOOSE_PARAMETER: &str = "net/netfilter/nf_conntrack_tcp_loose";

/// Set of the connections that are older than the capture and go on as they are.
pub(crate) const OLDER: &str = "older";
/// Chain that drops what came in by passing by the redirects.
pub(crate) const INPUT_FILTER: &str = "filter-input";
/// Chain that drops what goes out by passing by the redirects.
pub(crate) const OUTPUT_FILTER: &str = "filter-output";

const RULE_PRIORITY: u32 = 32764;
const ROUTE_TABLE: u32 = 100;
/// The kernel's own table of what is delivered here.
const LOCAL_TABLE: u32 = 255;
const DNS_ZONE: u16 = 1;

const TCP_FIN: u8 = 0x01;
const TCP_SYN: u8 = 0x02;
const TCP_RST: u8 = 0x04;
const TCP_ACK: u8 = 0x10;

/// IPv4 or IPv6, with what differs between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum IpVersion {
    V4,
    V6,
}

impl IpVersion {
    /// The family of the tables for this version.
    pub(crate) fn family(self) -> Family {
        match self {
            Self::V4 => Family::Ip,
            Self::V6 => Family::Ip6,
        }
    }

    /// The address that probes come from.
    pub(crate) fn probe(self) -> IpAddr {
        match self {
            Self::V4 => PROBE_V4.into(),
            Self::V6 => PROBE_V6.into(),
        }
    }

    fn localhost(self) -> IpNet {
        match self {
            Self::V4 => IpAddr::from(Ipv4Addr::LOCALHOST).into(),
            Self::V6 => IpAddr::from(Ipv6Addr::LOCALHOST).into(),
        }
    }

    /// The addresses, local to every captured pod, at which its outbound connections arrive.
    fn outbound_block(self) -> IpNet {
        let (address, length): (IpAddr, u8) = match self {
            Self::V4 => (Ipv4Addr::new(127, 64, 0, 0).into(), 10),
            Self::V6 => (Ipv6Addr::new(0xfd16, 0x9254, 0x7127, 0x1338, 0, 0, 0, 0).into(), 64),
        };
        IpNet::new(address, length).expect("the length fits the address")
    }

    /// All addresses to which outbound connections are redirected. Packets to them never leave.
    fn redirected(self) -> Vec<IpNet> {
        match self {
            Self::V4 => vec![Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8).into()],
            Self::V6 => vec![self.outbound_block(), self.localhost()],
        }
    }

    fn everything(self) -> IpNet {
        let (address, length): (IpAddr, u8) = match self {
            Self::V4 => (Ipv4Addr::UNSPECIFIED.into(), 0),
            Self::V6 => (Ipv6Addr::UNSPECIFIED.into(), 0),
        };
        IpNet::new(address, length).expect("a prefix of no bits is valid")
    }
}

/// How much of the rules is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// New connections are captured.
    Full,
    /// None are; those captured before go on. Address translation, marks and routes stay for them.
    Remains,
}

/// What the filters behind the redirects drop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Filter {
    /// First packets of connections that no redirect took. What is open goes on, so that it can be
    /// listed; nothing can join it.
    FirstPackets,
    /// All that no redirect took, but for what belongs to these connections.
    AllBut(BTreeSet<Connection>),
}

/// The interface by which the node's own packets reach the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Uplink {
    /// The one that the default route leaves by.
    Named(String),
    /// The pod has no default route: any interface but loopback.
    NotLoopback,
}

/// The pod's table for one IP version.
pub(crate) fn table(
    version: IpVersion,
    options: CaptureOptions,
    extent: Extent,
    uplink: &Uplink,
    filter: &Filter,
) -> Table {
    let (inbound, outbound) = match extent {
        Extent::Full => (nat_prerouting(version, options, uplink), nat_output(version, options)),
        Extent::Remains => (Vec::new(), Vec::new()),
    };
    let nat = Priority::DESTINATION_NAT;
    let mangle = Priority::MANGLE;
    let mut table = Table::new(version.family(), TABLE)
        .chain(Chain::filter("mangle-prerouting", Hook::Prerouting, mangle).rule(mark_connection()))
        .chain(Chain::route("mangle-output", mangle).rule(mark_packet()))
        .chain(Chain::nat("nat-prerouting", Hook::Prerouting, nat).rules(inbound))
        .chain(Chain::nat("nat-output", Hook::Output, nat).rules(outbound));
    if options.dns {
        let raw = Priority::RAW;
        table = table
            .chain(Chain::filter("raw-prerouting", Hook::Prerouting, raw).rule(zone_of_answer()))
            .chain(Chain::filter("raw-output", Hook::Output, raw).rule(zone_of_query()));
    }
    if extent == Extent::Full { filtered(table, version, options, uplink, filter) } else { table }
}

/// The table with its filters.
fn filtered(
    mut table: Table,
    version: IpVersion,
    options: CaptureOptions,
    uplink: &Uplink,
    filter: &Filter,
) -> Table {
    let priority = Priority::FILTER;
    if let Filter::AllBut(older) = filter {
        let older = older.iter().copied();
        table = table.set(Set::connections(OLDER, version == IpVersion::V6, older));
    }
    if !options.bypass_inbound {
        let rules = filter_input(version, uplink, filter);
        table = table.chain(Chain::filter(INPUT_FILTER, Hook::Input, priority).rules(rules));
    }
    let rules = filter_output(version, filter);
    table.chain(Chain::filter(OUTPUT_FILTER, Hook::Output, priority).rules(rules))
}

/// The rule that sends marked packets through [`routes`].
pub(crate) fn policy_rule(version: IpVersion) -> netlink::Rule {
    netlink::Rule {
        ipv6: version == IpVersion::V6,
        priority: RULE_PRIORITY,
        mark: TRANSPARENT_MARK,
        mask: MARK_MASK,
        table: ROUTE_TABLE,
    }
}

/// What is delivered to this namespace: marked packets, which are answers to an address that the
/// proxy borrowed, and where outbound connections arrive, which for IPv4 is loopback anyway.
pub(crate) fn routes(version: IpVersion) -> Vec<netlink::Route> {
    let mut routes = vec![netlink::Route::local(version.everything(), ROUTE_TABLE)];
    if version == IpVersion::V6 {
        routes.push(netlink::Route::local(version.outbound_block(), LOCAL_TABLE));
    }
    routes
}

/// Whether a route is a default route.
pub(crate) fn is_default(route: &netlink::Route, version: IpVersion) -> bool {
    route.table == netlink::MAIN_TABLE && route.destination == version.everything()
}

fn mark_connection() -> Rule {
    Rule::new("connections of the proxy to the application")
        .mark(PROXY_MARK, MARK_MASK)
        .set_connection_mark(TRANSPARENT_MARK)
}

fn mark_packet() -> Rule {
    Rule::new("answers to them").connection_mark(TRANSPARENT_MARK, MARK_MASK).mark_from_connection()
}

fn nat_prerouting(version: IpVersion, options: CaptureOptions, uplink: &Uplink) -> Vec<Rule> {
    if options.bypass_inbound {
        return Vec::new();
    }
    let probe = probe_of_node(version, uplink);
    // What is local for outbound connections alone is nobody's to reach from outside.
    let redirected = version.redirected().into_iter();
    let inbound = redirected
        .fold(first_packet(Rule::new("inbound")), Rule::destination_not)
        .to_local_address()
        .port_not(HBONE)
        .mark_not(PROXY_MARK, MARK_MASK)
        .redirect(INBOUND);
    vec![probe.accept(), inbound]
}

fn nat_output(version: IpVersion, options: CaptureOptions) -> Vec<Rule> {
    let mut rules = vec![
        Rule::new("to the probe address")
            .destination(version.probe().into())
            .protocol(Protocol::Tcp)
            .accept(),
    ];
    if options.dns {
        rules.push(
            Rule::new("dns over udp")
                .protocol(Protocol::Udp)
                .port(DNS)
                .out_interface_not("lo")
                .mark_not(PROXY_MARK, MARK_MASK)
                .redirect(DNS_CAPTURE),
        );
        rules.push(
            first_packet(Rule::new("dns over tcp"))
                .port(DNS)
                .destination_not(version.localhost())
                .mark_not(PROXY_MARK, MARK_MASK)
                .redirect(DNS_CAPTURE),
        );
    }
    rules.extend([
        Rule::new("answers to the proxy")
            .protocol(Protocol::Tcp)
            .mark(TRANSPARENT_MARK, MARK_MASK)
            .accept(),
        Rule::new("to the pod itself")
            .out_interface("lo")
            .destination_not(version.localhost())
            .accept(),
        first_packet(Rule::new("outbound"))
            .destination_not(version.localhost())
            .mark_not(PROXY_MARK, MARK_MASK)
            .redirect_into(version.outbound_block(), OUTBOUND),
    ]);
    rules
}

fn probe_of_node(version: IpVersion, uplink: &Uplink) -> Rule {
    let probe =
        Rule::new("probes of the node").source(version.probe().into()).protocol(Protocol::Tcp);
    match uplink {
        Uplink::Named(name) => probe.in_interface(name),
        Uplink::NotLoopback => probe.in_interface_not("lo"),
    }
}

/// What may come in. By the time of this hook the redirects are done.
fn filter_input(version: IpVersion, uplink: &Uplink, filter: &Filter) -> Vec<Rule> {
    let mut rules = vec![
        Rule::new("within the pod").in_interface("lo").accept(),
        // A packet in which no protocol is found is none of the others, either.
        Rule::new("other protocols").protocol_not(Protocol::Tcp).accept(),
        Rule::new("hbone").protocol(Protocol::Tcp).port(HBONE).accept(),
        Rule::new("redirected").protocol(Protocol::Tcp).port(INBOUND).accept(),
        probe_of_node(version, uplink).accept(),
    ];
    rules.extend(unless_captured(filter, |rule| match version {
        IpVersion::V4 => rule.received_for_ipv4(OLDER),
        IpVersion::V6 => rule.received_for_ipv6(OLDER),
    }));
    rules
}

/// What may go out. The interface is the one before any redirect; addresses are those after it.
fn filter_output(version: IpVersion, filter: &Filter) -> Vec<Rule> {
    let mut rules = vec![
        Rule::new("within the pod").out_interface("lo").accept(),
        Rule::new("other protocols").protocol_not(Protocol::Tcp).accept(),
        Rule::new("of the proxy").mark(PROXY_MARK, MARK_MASK).accept(),
        Rule::new("answers to the proxy").mark(TRANSPARENT_MARK, MARK_MASK).accept(),
    ];
    let redirected = version.redirected().into_iter();
    rules.extend(redirected.map(|block| Rule::new("redirected").destination(block).accept()));
    rules.push(Rule::new("to the probe address").destination(version.probe().into()).accept());
    rules.extend(unless_captured(filter, |rule| match version {
        IpVersion::V4 => rule.sent_from_ipv4(OLDER),
        IpVersion::V6 => rule.sent_from_ipv6(OLDER),
    }));
    rules
}

/// The end of both filters. A first packet that comes this far was redirected nowhere: connection
/// tracking took it for a part of something else. It is never let pass, not by the set either.
fn unless_captured(filter: &Filter, of_older: impl Fn(Rule) -> Rule) -> Vec<Rule> {
    let (mask, first) = (TCP_SYN | TCP_ACK, TCP_SYN);
    let past = Rule::new("past the redirects").counter();
    match filter {
        Filter::FirstPackets => {
            vec![past.protocol(Protocol::Tcp).tcp_flags(mask, first).drop()]
        }
        Filter::AllBut(_) => {
            let later = |name| Rule::new(name).protocol(Protocol::Tcp).tcp_flags_not(mask, first);
            vec![
                later("answers").direction(Direction::Reply).accept(),
                of_older(later("older than the capture")).accept(),
                past.drop(),
            ]
        }
    }
}

/// The proxy's own DNS queries get a zone of their own: they may bear the very addresses and ports
/// of the captured query that they serve.
fn zone_of_query() -> Rule {
    Rule::new("dns queries of the proxy")
        .protocol(Protocol::Udp)
        .port(DNS)
        .mark(PROXY_MARK, MARK_MASK)
        .zone(DNS_ZONE)
}

fn zone_of_answer() -> Rule {
    Rule::new("dns answers to the proxy")
        .protocol(Protocol::Udp)
        .source_port(DNS)
        .mark_not(PROXY_MARK, MARK_MASK)
        .zone(DNS_ZONE)
}

/// The first packet of a TCP connection: SYN set; FIN, RST and ACK clear.
fn first_packet(rule: Rule) -> Rule {
    rule.protocol(Protocol::Tcp).tcp_flags(TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK, TCP_SYN)
}
