//! From the parts of a rule to the kernel's expressions.
//!
//! Expressions run on a small register machine: load something into word 0, mask it, compare it,
//! act.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::abi::{attribute, expression as attr, family, key, register};
use super::encode::{ANONYMOUS_NAME, NAME_BYTES, write_verdict};
use super::rule::{Condition, Part, Statement};
use super::{ConnectionState, Direction, Family, Rule, SocketOwner};
use crate::netlink::message::{Request, ip_bytes};

/// The VLAN in a tag, beside priority and drop eligibility (IEEE 802.1Q, section 9.6).
const VLAN_BITS: u16 = 0x0fff;

/// Emits the expressions of one rule.
pub(super) struct Code<'a> {
    /// The list of expressions in the rule's message.
    pub(super) list: &'a mut Request,
    /// That of the table.
    pub(super) family: Family,
    /// The rule's map of backends, if it has one.
    pub(super) map_id: Option<u32>,
}

impl Code<'_> {
    /// Emits a whole rule.
    pub(super) fn rule(&mut self, rule: &Rule) {
        for part in &rule.parts {
            match part {
                Part::When(condition) => self.condition(condition),
                Part::Then(statement) => self.statement(statement),
            }
        }
    }

    /// What the rule does to a packet that got this far.
    fn statement(&mut self, statement: &Statement) {
        match statement {
            Statement::Counter => self.emit("counter", |_| {}),
            Statement::NoTrack => self.emit("notrack", |_| {}),
            Statement::Masquerade => self.emit("masq", |_| {}),
            Statement::SetMark(mark) => {
                self.load_immediate(0, &mark.to_ne_bytes());
                self.store_meta(key::META_MARK);
            }
            Statement::SetConnectionMark(mark) => {
                self.load_immediate(0, &mark.to_ne_bytes());
                self.store_ct(key::CT_MARK);
            }
            Statement::MarkFromConnection => {
                self.load_ct(key::CT_MARK);
                self.store_meta(key::META_MARK);
            }
            Statement::ConnectionFromMark => {
                self.load_meta(key::META_MARK);
                self.store_ct(key::CT_MARK);
            }
            Statement::Zone(zone) => {
                self.load_immediate(0, &zone.to_ne_bytes());
                self.store_ct(key::CT_ZONE);
            }
            Statement::Verdict(verdict) => self.emit("immediate", |data| {
                data.network_u32(attr::IMMEDIATE_DESTINATION, 0);
                data.nested(attr::IMMEDIATE_DATA, |value| write_verdict(value, verdict));
            }),
            Statement::ServiceVerdict { map, ipv6 } => self.service_verdict(map, *ipv6),
            Statement::Reject { tcp_reset } => self.reject(*tcp_reset),
            Statement::RedirectInto { block, port } => {
                let port_at = if block.addr().is_ipv6() { 4 } else { 1 };
                self.load_address(block.addr().is_ipv6(), false);
                self.bitwise(&ip_bytes(block.hostmask()), &ip_bytes(block.network()));
                self.load_immediate(port_at, &port.to_be_bytes());
                self.nat(key::DESTINATION_NAT, block.addr(), Some(port_at));
            }
            Statement::Redirect(port) => {
                self.load_immediate(0, &port.to_be_bytes());
                self.emit("redir", |data| {
                    data.network_u32(attr::REDIRECT_PORT_MIN, register(0));
                    data.network_u32(attr::REDIRECT_PORT_MAX, register(0));
                    data.network_u32(attr::REDIRECT_FLAGS, key::NAT_PORT);
                });
            }
            Statement::DestinationNat { backends, by_source } => {
                self.destination_nat(backends, *by_source);
            }
            Statement::SourceNat(ip) => {
                self.load_immediate(0, &ip_bytes(*ip));
                self.nat(key::SOURCE_NAT, *ip, None);
            }
        }
    }

    /// Ends the rule for packets that are not as wanted.
    fn condition(&mut self, condition: &Condition) {
        match condition {
            Condition::Source { net, equal } => self.address(*net, *equal, true),
            Condition::Destination { net, equal } => self.address(*net, *equal, false),
            Condition::SourceIn { set, ipv6 } => self.address_in(set, *ipv6, true),
            Condition::DestinationIn { set, ipv6 } => self.address_in(set, *ipv6, false),
            Condition::InInterface { name, equal } => {
                self.interface(key::META_IN_NAME, name, *equal)
            }
            Condition::OutInterface { name, equal } => {
                self.interface(key::META_OUT_NAME, name, *equal)
            }
            Condition::ToLocalAddress(local) => self.local_address(*local),
            Condition::ConnectionIn { set, ipv6, received } => {
                self.connection_in(set, *ipv6, *received);
            }
            Condition::Protocol { protocol, equal } => {
                self.load_meta(key::META_PROTOCOL);
                self.compare(*equal, &[protocol.number()]);
            }
            Condition::Ipv6(ipv6) if matches!(self.family, Family::Bridge | Family::Netdev) => {
                self.ether_type(if *ipv6 { libc::ETH_P_IPV6 } else { libc::ETH_P_IP });
            }
            Condition::NestedTag { service, vlan } => {
                self.nested_tag(*service, *vlan);
            }
            Condition::Ipv6(ipv6) => {
                self.load_meta(key::META_FAMILY);
                self.compare(true, &[if *ipv6 { family::IPV6 } else { family::IPV4 }]);
            }
            Condition::Mark { value, mask, equal } => {
                self.load_meta(key::META_MARK);
                self.masked_word(*value, *mask, *equal);
            }
            Condition::ConnectionMark { value, mask, equal } => {
                self.load_ct(key::CT_MARK);
                self.masked_word(*value, *mask, *equal);
            }
            Condition::State(states) => {
                self.load_ct(key::CT_STATE);
                let mask = states.iter().fold(0, |mask, state| mask | state_bit(*state));
                self.masked_word(0, mask, false);
            }
            Condition::Direction(direction) => {
                self.load_ct(key::CT_DIRECTION);
                self.compare(true, &[u8::from(*direction == Direction::Reply)]);
            }
            Condition::SourcePort { port, equal } => {
                self.load_payload(key::TRANSPORT_HEADER, 0, 2, 0);
                self.compare(*equal, &port.to_be_bytes());
            }
            Condition::DestinationPort { port, equal } => {
                self.load_payload(key::TRANSPORT_HEADER, 2, 2, 0);
                self.compare(*equal, &port.to_be_bytes());
            }
            Condition::TcpFlags { mask, value, equal } => {
                self.load_payload(key::TRANSPORT_HEADER, 13, 1, 0);
                self.mask(&[*mask]);
                self.compare(*equal, &[*value]);
            }
            Condition::SentBy(owner) => {
                // Loading the user ends the rule for packets without a socket.
                self.load_meta(key::META_SOCKET_USER);
                if let SocketOwner::User(user) = owner {
                    self.compare(true, &user.to_ne_bytes());
                }
            }
        }
    }

    fn nested_tag(&mut self, service: bool, vlan: u16) {
        self.ether_type(if service { libc::ETH_P_8021AD } else { libc::ETH_P_8021Q });
        // Whatever header is left first counts as the network's.
        self.load_payload(key::NETWORK_HEADER, 0, 2, 0);
        self.mask(&VLAN_BITS.to_be_bytes());
        self.compare(true, &vlan.to_be_bytes());
    }

    /// Ends the rule for frames that carry something else.
    fn ether_type(&mut self, ether_type: i32) {
        self.load_meta(key::META_ETHER_TYPE);
        let ether_type = u16::try_from(ether_type).expect("an EtherType has 16 bits");
        self.compare(true, &ether_type.to_be_bytes());
    }

    /// Appends one expression; `content` writes its attributes.
    fn emit(&mut self, name: &str, content: impl FnOnce(&mut Request)) {
        self.list.nested(attribute::LIST_ELEMENT, |element| {
            element.text(attribute::EXPRESSION_NAME, name);
            element.nested(attribute::EXPRESSION_DATA, content);
        });
    }

    /// Loads what the kernel knows of the packet into word 0.
    fn load_meta(&mut self, what: u32) {
        self.load_meta_at(what, 0);
    }

    /// Loads what the kernel knows of the packet into a given word.
    fn load_meta_at(&mut self, what: u32, word: u32) {
        self.emit("meta", |data| {
            data.network_u32(attr::META_DESTINATION, register(word));
            data.network_u32(attr::META_KEY, what);
        });
    }

    /// Sets a property of the packet from word 0.
    fn store_meta(&mut self, what: u32) {
        self.emit("meta", |data| {
            data.network_u32(attr::META_KEY, what);
            data.network_u32(attr::META_SOURCE, register(0));
        });
    }

    /// Loads what connection tracking knows of the packet into word 0.
    fn load_ct(&mut self, what: u32) {
        self.emit("ct", |data| {
            data.network_u32(attr::CT_DESTINATION, register(0));
            data.network_u32(attr::CT_KEY, what);
        });
    }

    /// Sets a property of the connection from word 0.
    fn store_ct(&mut self, what: u32) {
        self.emit("ct", |data| {
            data.network_u32(attr::CT_KEY, what);
            data.network_u32(attr::CT_SOURCE, register(0));
        });
    }

    /// Loads bytes of a header.
    fn load_payload(&mut self, header: u32, offset: u32, length: u32, word: u32) {
        self.emit("payload", |data| {
            data.network_u32(attr::PAYLOAD_DESTINATION, register(word));
            data.network_u32(attr::PAYLOAD_BASE, header);
            data.network_u32(attr::PAYLOAD_OFFSET, offset);
            data.network_u32(attr::PAYLOAD_BYTES, length);
        });
    }

    /// Loads a constant.
    fn load_immediate(&mut self, word: u32, value: &[u8]) {
        self.emit("immediate", |data| {
            data.network_u32(attr::IMMEDIATE_DESTINATION, register(word));
            data.nested(attr::IMMEDIATE_DATA, |content| {
                content.attribute(attribute::DATA_VALUE, value);
            });
        });
    }

    /// Goes on only if word 0 and those after it are (or are not) `value`.
    fn compare(&mut self, equal: bool, value: &[u8]) {
        self.emit("cmp", |data| {
            data.network_u32(attr::COMPARE_SOURCE, register(0));
            let operation = if equal { key::EQUAL } else { key::NOT_EQUAL };
            data.network_u32(attr::COMPARE_OPERATION, operation);
            data.nested(attr::COMPARE_DATA, |content| {
                content.attribute(attribute::DATA_VALUE, value);
            });
        });
    }

    /// Clears the bits of word 0 and those after it that are not in `mask`.
    fn mask(&mut self, mask: &[u8]) {
        self.bitwise(mask, &vec![0; mask.len()]);
    }

    /// Clears the bits of word 0 and those after it that are not in `mask`, and flips those in
    /// `flip`.
    fn bitwise(&mut self, mask: &[u8], flip: &[u8]) {
        self.emit("bitwise", |data| {
            data.network_u32(attr::BITWISE_SOURCE, register(0));
            data.network_u32(attr::BITWISE_DESTINATION, register(0));
            let length = u32::try_from(mask.len()).expect("masks are at most 16 bytes");
            data.network_u32(attr::BITWISE_BYTES, length);
            data.nested(attr::BITWISE_MASK, |content| {
                content.attribute(attribute::DATA_VALUE, mask);
            });
            data.nested(attr::BITWISE_XOR, |content| {
                content.attribute(attribute::DATA_VALUE, flip);
            });
        });
    }

    /// Compares the bits of word 0 that are in `mask`.
    fn masked_word(&mut self, value: u32, mask: u32, equal: bool) {
        if mask != u32::MAX {
            self.mask(&mask.to_ne_bytes());
        }
        self.compare(equal, &value.to_ne_bytes());
    }

    /// Compares an interface name, which the kernel pads with zeros.
    fn interface(&mut self, which: u32, name: &str, equal: bool) {
        let mut padded = name.as_bytes().to_vec();
        padded.resize(NAME_BYTES, 0);
        self.load_meta(which);
        self.compare(equal, &padded);
    }

    /// Asks the routing tables what kind of address the destination is.
    fn local_address(&mut self, local: bool) {
        self.emit("fib", |data| {
            data.network_u32(attr::FIB_DESTINATION, register(0));
            data.network_u32(attr::FIB_RESULT, key::FIB_ADDRESS_TYPE);
            data.network_u32(attr::FIB_FLAGS, key::FIB_DESTINATION_ADDRESS);
        });
        self.compare(local, &u32::from(libc::RTN_LOCAL).to_ne_bytes());
    }

    /// Loads the source or destination address into word 0 and those after it.
    fn load_address(&mut self, ipv6: bool, source: bool) {
        self.load_address_at(ipv6, source, 0);
    }

    /// Loads the source or destination address into a given word and those after it.
    fn load_address_at(&mut self, ipv6: bool, source: bool, word: u32) {
        let (offset, length) = match (ipv6, source) {
            (false, true) => (12, 4),
            (false, false) => (16, 4),
            (true, true) => (8, 16),
            (true, false) => (24, 16),
        };
        self.load_payload(key::NETWORK_HEADER, offset, length, word);
    }

    /// Compares an address with a subnet.
    fn address(&mut self, net: IpNet, equal: bool, source: bool) {
        self.load_address(net.addr().is_ipv6(), source);
        if net.prefix_len() < net.max_prefix_len() {
            self.mask(&ip_bytes(net.netmask()));
        }
        self.compare(equal, &ip_bytes(net.network()));
    }

    /// Goes on only if an address is in a set.
    fn address_in(&mut self, set: &str, ipv6: bool, source: bool) {
        self.load_address(ipv6, source);
        self.look_up(set, None, None);
    }

    /// Goes on only if the packet's connection is in a set: this namespace's address and port, then
    /// the other's, as [`Connection::bytes`] lays them out.
    fn connection_in(&mut self, set: &str, ipv6: bool, received: bool) {
        const SOURCE_PORT_AT: u32 = 0;
        const DESTINATION_PORT_AT: u32 = 2;
        let address_words = if ipv6 { 4 } else { 1 };
        let mut word = 0;
        // What comes in is for this end, what goes out is from it.
        for source in [!received, received] {
            self.load_address_at(ipv6, source, word);
            let offset = if source { SOURCE_PORT_AT } else { DESTINATION_PORT_AT };
            self.load_payload(key::TRANSPORT_HEADER, offset, 2, word + address_words);
            word += address_words + 1;
        }
        self.look_up(set, None, None);
    }

    /// Looks word 0 and those after it up in a set or map; into `destination` for a map.
    fn look_up(&mut self, set: &str, id: Option<u32>, destination: Option<u32>) {
        self.emit("lookup", |data| {
            data.text(attr::LOOKUP_SET, set);
            data.network_u32(attr::LOOKUP_SOURCE, register(0));
            if let Some(destination) = destination {
                data.network_u32(attr::LOOKUP_DESTINATION, destination);
            }
            if let Some(id) = id {
                data.network_u32(attr::LOOKUP_SET_ID, id);
            }
        });
    }

    /// Address, protocol and port side by side, as [`SetContent::elements`] lays out its keys.
    fn service_verdict(&mut self, map: &str, ipv6: bool) {
        const VERDICT_REGISTER: u32 = 0;
        let address_words = if ipv6 { 4 } else { 1 };
        self.load_address(ipv6, false);
        self.load_meta_at(key::META_PROTOCOL, address_words);
        self.load_payload(key::TRANSPORT_HEADER, 2, 2, address_words + 1);
        self.look_up(map, None, Some(VERDICT_REGISTER));
    }

    /// Refuses with the message that the family has for a closed port.
    fn reject(&mut self, tcp_reset: bool) {
        const PORT_UNREACHABLE: u8 = 3;
        const PORT_UNREACHABLE_V6: u8 = 4;
        const PORT_UNREACHABLE_EITHER: u8 = 1;
        let (kind, code) = match (tcp_reset, self.family) {
            (true, _) => (key::REJECT_RESET, 0),
            (false, Family::Ip) => (key::REJECT_ICMP, PORT_UNREACHABLE),
            (false, Family::Ip6) => (key::REJECT_ICMP, PORT_UNREACHABLE_V6),
            (false, Family::Inet | Family::Bridge | Family::Netdev) => {
                (key::REJECT_ICMP_EITHER, PORT_UNREACHABLE_EITHER)
            }
        };
        self.emit("reject", |data| {
            data.network_u32(attr::REJECT_TYPE, kind);
            data.attribute(attr::REJECT_CODE, &[code]);
        });
    }

    /// Puts the address into word 0 and those after it, the port into the next, and translates.
    fn destination_nat(&mut self, backends: &[SocketAddr], by_source: bool) {
        let first = backends[0];
        let port_at = if first.is_ipv6() { 4 } else { 1 };
        match self.map_id {
            None => {
                self.load_immediate(0, &ip_bytes(first.ip()));
                self.load_immediate(port_at, &first.port().to_be_bytes());
            }
            Some(id) => {
                let count = u32::try_from(backends.len()).expect("checked against MAX_BACKENDS");
                if by_source {
                    self.hash_source(first.ip(), count);
                } else {
                    self.emit("numgen", |data| {
                        data.network_u32(attr::NUMBER_DESTINATION, register(0));
                        data.network_u32(attr::NUMBER_MODULUS, count);
                        data.network_u32(attr::NUMBER_TYPE, key::RANDOM);
                    });
                }
                self.look_up(ANONYMOUS_NAME, Some(id), Some(register(0)));
            }
        }
        self.nat(key::DESTINATION_NAT, first.ip(), Some(port_at));
    }

    /// Puts a number below `modulus` into word 0 that depends on the source address alone.
    fn hash_source(&mut self, family_of: IpAddr, modulus: u32) {
        // Left to the kernel the seed would be another each time that the rule is replaced.
        const SEED: u32 = 0x6d62_6974;
        let (ipv6, bytes) = if family_of.is_ipv6() { (true, 16) } else { (false, 4) };
        self.load_address(ipv6, true);
        self.emit("hash", |data| {
            data.network_u32(attr::HASH_SOURCE, register(0));
            data.network_u32(attr::HASH_DESTINATION, register(0));
            data.network_u32(attr::HASH_BYTES, bytes);
            data.network_u32(attr::HASH_MODULUS, modulus);
            data.network_u32(attr::HASH_SEED, SEED);
        });
    }

    /// Translates to the address in word 0 and the port in word `port_at`.
    fn nat(&mut self, kind: u32, ip: IpAddr, port_at: Option<u32>) {
        let family = if ip.is_ipv6() { family::IPV6 } else { family::IPV4 };
        self.emit("nat", |data| {
            data.network_u32(attr::NAT_TYPE, kind);
            data.network_u32(attr::NAT_FAMILY, family.into());
            data.network_u32(attr::NAT_ADDRESS_MIN, register(0));
            data.network_u32(attr::NAT_ADDRESS_MAX, register(0));
            let mut flags = key::NAT_ADDRESS;
            if let Some(word) = port_at {
                data.network_u32(attr::NAT_PORT_MIN, register(word));
                data.network_u32(attr::NAT_PORT_MAX, register(word));
                flags |= key::NAT_PORT;
            }
            data.network_u32(attr::NAT_FLAGS, flags);
        });
    }
}

/// `NF_CT_STATE_BIT`.
fn state_bit(state: ConnectionState) -> u32 {
    match state {
        ConnectionState::Invalid => 1,
        ConnectionState::Established => 2,
        ConnectionState::Related => 4,
        ConnectionState::New => 8,
        ConnectionState::Untracked => 64,
    }
}
