//! From tables as values to the kernel's messages.
//!
//! Attributes are written the way the kernel lists them, so that both sides can be compared.

use std::net::{IpAddr, SocketAddr};

use super::abi::{self, attribute, family, message, verdict};
use super::code::Code;
use super::rule::{Condition, Part, Statement};
use super::set::{Element, ElementData, SetContent};
use super::table::Base;
use super::{Chain, ChainKind, Family, Hook, Protocol, Rule, Set, Table, Verdict};
use crate::netlink::NetlinkError;
use crate::netlink::message::{Request, ip_bytes};

/// Longest comment of a rule.
pub(crate) const MAX_COMMENT_BYTES: usize = 100;

/// Elements per message, so that a list of them fits into an attribute (64 KiB).
pub(super) const ELEMENTS_PER_MESSAGE: usize = 400;

/// Backends per rule, for the same reason.
const MAX_BACKENDS: usize = ELEMENTS_PER_MESSAGE;

/// Size of an interface name as the kernel compares it.
pub(super) const NAME_BYTES: usize = 16;

/// The kernel gives a set with this name one of its own.
pub(super) const ANONYMOUS_NAME: &str = "__map%d";

/// A request and, for error messages, its description.
pub(super) type Described = (Request, String);

/// All messages that make up tables, in the order in which the kernel has to see them.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    pub(super) messages: Vec<Described>,
}

impl Encoded {
    /// Appends the creation of a table with all its content.
    pub(super) fn add(&mut self, table: &Table) -> Result<(), NetlinkError> {
        self.push(table_message(message::NEW_TABLE, table.family, &table.name), || {
            format!("create nftables table {}", table.name)
        });
        // Chains first: the verdicts in maps and rules refer to them.
        for chain in &table.chains {
            self.push(chain_message(table, chain), || {
                format!("create nftables chain {}", chain.name)
            });
        }
        for set in &table.sets {
            self.add_set(table, set);
        }
        for chain in &table.chains {
            for rule in &chain.rules {
                self.add_rule(table, chain, rule)?;
            }
        }
        Ok(())
    }

    fn push(&mut self, request: Request, describe: impl FnOnce() -> String) {
        self.messages.push((request, describe()));
    }

    fn add_set(&mut self, table: &Table, set: &Set) {
        let (key_type, key_bytes) = set.content.key_type();
        let is_map = matches!(set.content, SetContent::Services { .. });
        let mut request = object(message::NEW_SET, libc::NLM_F_CREATE, table.family);
        request.text(attribute::SET_TABLE, &table.name);
        request.text(attribute::SET_NAME, &set.name);
        request.network_u32(attribute::SET_FLAGS, if is_map { abi::set::MAP } else { 0 });
        request.network_u32(attribute::SET_KEY_TYPE, key_type);
        request.network_u32(attribute::SET_KEY_BYTES, key_bytes);
        if is_map {
            request.network_u32(attribute::SET_DATA_TYPE, abi::set::DATA_VERDICT);
        }
        request.network_u32(attribute::SET_ID, self.next_set_id());
        self.push(request, || format!("create nftables set {}", set.name));
        for chunk in set.content.elements().chunks(ELEMENTS_PER_MESSAGE) {
            let kind = message::NEW_ELEMENTS;
            let request = elements_message(kind, table.family, &table.name, &set.name, chunk, None);
            self.push(request, || format!("fill nftables set {}", set.name));
        }
    }

    fn next_set_id(&self) -> u32 {
        u32::try_from(self.messages.len() + 1).expect("far fewer messages than 2^32")
    }

    fn add_rule(&mut self, table: &Table, chain: &Chain, rule: &Rule) -> Result<(), NetlinkError> {
        rule.check(table.family)?;
        let map = rule.parts.iter().find_map(|part| match part {
            Part::Then(Statement::DestinationNat { backends, .. }) => Some(backends),
            _ => None,
        });
        let map = map.filter(|backends| backends.len() > 1);
        let map_id = map.map(|backends| self.add_backend_map(table, rule, backends));
        let mut request =
            object(message::NEW_RULE, libc::NLM_F_CREATE | libc::NLM_F_APPEND, table.family);
        request.text(attribute::RULE_TABLE, &table.name);
        request.text(attribute::RULE_CHAIN, &chain.name);
        request.nested(attribute::RULE_EXPRESSIONS, |list| {
            Code { list, family: table.family, map_id }.rule(rule);
        });
        request.attribute(attribute::RULE_USERDATA, &comment_userdata(&rule.comment));
        self.push(request, || format!("add nftables rule {:?} to {}", rule.comment, chain.name));
        Ok(())
    }

    /// A map from 0.. to the backends, which the rule's random number looks up.
    fn add_backend_map(&mut self, table: &Table, rule: &Rule, backends: &[SocketAddr]) -> u32 {
        let id = self.next_set_id();
        let (address_type, address_bytes) = match backends[0] {
            SocketAddr::V4(_) => (abi::set::IPV4, 4),
            SocketAddr::V6(_) => (abi::set::IPV6, 16),
        };
        let flags = abi::set::ANONYMOUS | abi::set::CONSTANT | abi::set::MAP;
        let data_type = (address_type << abi::set::TYPE_BITS) | abi::set::SERVICE;
        let mut request = object(message::NEW_SET, libc::NLM_F_CREATE, table.family);
        request.text(attribute::SET_TABLE, &table.name);
        request.text(attribute::SET_NAME, ANONYMOUS_NAME);
        request.network_u32(attribute::SET_FLAGS, flags);
        request.network_u32(attribute::SET_KEY_TYPE, abi::set::INTEGER);
        request.network_u32(attribute::SET_KEY_BYTES, 4);
        request.network_u32(attribute::SET_DATA_TYPE, data_type);
        request.network_u32(attribute::SET_DATA_BYTES, address_bytes + 4);
        request.network_u32(attribute::SET_ID, id);
        let describe = || format!("create the backend map of nftables rule {:?}", rule.comment);
        self.push(request, describe);
        let elements: Vec<Element> = (0_u32..).zip(backends).map(backend_element).collect();
        let kind = message::NEW_ELEMENTS;
        let request =
            elements_message(kind, table.family, &table.name, ANONYMOUS_NAME, &elements, Some(id));
        self.push(request, describe);
        id
    }
}

fn backend_element((number, backend): (u32, &SocketAddr)) -> Element {
    let mut data = ip_bytes(backend.ip());
    data.extend(port_word(backend.port()));
    Element { key: number.to_ne_bytes().to_vec(), data: Some(ElementData::Value(data)) }
}

/// A port as the first half of a word, as in a register.
pub(super) fn port_word(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

impl Rule {
    /// Finds what the kernel would refuse with a bare "invalid argument".
    fn check(&self, table: Family) -> Result<(), NetlinkError> {
        let unusable =
            |reason| Err(NetlinkError::Unusable { comment: self.comment.clone(), reason });
        if self.comment.len() > MAX_COMMENT_BYTES {
            return unusable("its comment is longer than 100 bytes");
        }
        for part in &self.parts {
            match part {
                Part::When(condition) => condition.check(table).or_else(unusable)?,
                Part::Then(statement) => statement.check(table).or_else(unusable)?,
            }
        }
        Ok(())
    }
}

impl Condition {
    fn check(&self, table: Family) -> Result<(), &'static str> {
        match self {
            Self::Source { net, .. } | Self::Destination { net, .. }
                if !table.holds(net.addr()) =>
            {
                Err("its address is not of the table's address family")
            }
            Self::InInterface { name, .. } | Self::OutInterface { name, .. }
                if name.len() >= NAME_BYTES =>
            {
                Err("its interface name is longer than 15 bytes")
            }
            _ => Ok(()),
        }
    }
}

impl Statement {
    fn check(&self, table: Family) -> Result<(), &'static str> {
        let Self::DestinationNat { backends, .. } = self else {
            return match self {
                Self::SourceNat(ip) if !table.holds(*ip) => {
                    Err("its address is not of the table's address family")
                }
                _ => Ok(()),
            };
        };
        let first = backends.first().ok_or("it has no backend; reject the connection instead")?;
        if backends.len() > MAX_BACKENDS {
            return Err("it has more than 400 backends");
        }
        let alike = |backend: &SocketAddr| backend.is_ipv4() == first.is_ipv4();
        if !table.holds(first.ip()) || !backends.iter().all(alike) {
            return Err("its backends are not all of the table's address family");
        }
        Ok(())
    }
}

impl Family {
    fn holds(self, ip: IpAddr) -> bool {
        match self {
            Self::Ip => ip.is_ipv4(),
            Self::Ip6 => ip.is_ipv6(),
            Self::Inet | Self::Bridge | Self::Netdev => true,
        }
    }

    /// `NFPROTO_*`.
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Ip => family::IPV4,
            Self::Ip6 => family::IPV6,
            Self::Inet => family::INET,
            Self::Bridge => family::BRIDGE,
            Self::Netdev => family::NETDEV,
        }
    }
}

impl Hook {
    /// `NF_INET_*`, and `NF_NETDEV_INGRESS`.
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Prerouting | Self::Ingress => 0,
            Self::Input => 1,
            Self::Forward => 2,
            Self::Output => 3,
            Self::Postrouting => 4,
        }
    }
}

impl ChainKind {
    /// The kernel's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Route => "route",
            Self::Nat => "nat",
        }
    }
}

impl Base {
    /// The default verdict as the kernel numbers it.
    pub(super) fn policy(self) -> u32 {
        if self.drop_by_default { verdict::DROP } else { verdict::ACCEPT }.cast_unsigned()
    }
}

impl Protocol {
    /// `IPPROTO_*`.
    pub(crate) fn number(self) -> u8 {
        (match self {
            Self::Tcp => libc::IPPROTO_TCP,
            Self::Udp => libc::IPPROTO_UDP,
            Self::Icmp => libc::IPPROTO_ICMP,
            Self::Icmpv6 => libc::IPPROTO_ICMPV6,
        }) as u8
    }
}

/// A message of the nftables subsystem.
pub(super) fn object(kind: u16, flags: i32, family: Family) -> Request {
    Request::new((abi::SUBSYSTEM << 8) | kind, flags).body(&[family.number(), 0, 0, 0])
}

/// What opens or closes a transaction.
pub(super) fn batch(kind: u16) -> Request {
    let [high, low] = abi::SUBSYSTEM.to_be_bytes();
    Request::new(kind, 0).body(&[0, 0, high, low])
}

/// Creates or deletes a table.
pub(super) fn table_message(kind: u16, family: Family, table: &str) -> Request {
    let flags = if kind == message::NEW_TABLE { libc::NLM_F_CREATE } else { 0 };
    let mut request = object(kind, flags, family);
    request.text(attribute::TABLE_NAME, table);
    request
}

fn chain_message(table: &Table, chain: &Chain) -> Request {
    let mut request = object(message::NEW_CHAIN, libc::NLM_F_CREATE, table.family);
    request.text(attribute::CHAIN_TABLE, &table.name);
    request.text(attribute::CHAIN_NAME, &chain.name);
    if let Some(base) = chain.base {
        request.nested(attribute::CHAIN_HOOK, |hook| {
            hook.network_u32(attribute::HOOK_NUMBER, base.hook.number());
            hook.network_u32(attribute::HOOK_PRIORITY, base.priority.0.cast_unsigned());
            if let Some(device) = &chain.device {
                hook.text(attribute::HOOK_DEVICE, device);
            }
        });
        request.network_u32(attribute::CHAIN_POLICY, base.policy());
        request.text(attribute::CHAIN_TYPE, base.kind.name());
    }
    request
}

/// Adds elements to or deletes them from a set.
pub(super) fn elements_message(
    kind: u16,
    family: Family,
    table: &str,
    set: &str,
    elements: &[Element],
    id: Option<u32>,
) -> Request {
    let flags = if kind == message::NEW_ELEMENTS { libc::NLM_F_CREATE } else { 0 };
    let mut request = object(kind, flags, family);
    request.text(attribute::ELEMENTS_TABLE, table);
    request.text(attribute::ELEMENTS_SET, set);
    if let Some(id) = id {
        request.network_u32(attribute::ELEMENTS_SET_ID, id);
    }
    request.nested(attribute::ELEMENTS_LIST, |list| {
        for element in elements {
            list.nested(attribute::LIST_ELEMENT, |item| write_element(item, element));
        }
    });
    request
}

fn write_element(item: &mut Request, element: &Element) {
    item.nested(attribute::ELEMENT_KEY, |key| key.attribute(attribute::DATA_VALUE, &element.key));
    match &element.data {
        None => {}
        Some(ElementData::Value(value)) => item.nested(attribute::ELEMENT_DATA, |data| {
            data.attribute(attribute::DATA_VALUE, value);
        }),
        Some(ElementData::Verdict(verdict)) => {
            item.nested(attribute::ELEMENT_DATA, |data| write_verdict(data, verdict));
        }
    }
}

/// Writes a verdict as the data of an element or expression.
pub(super) fn write_verdict(data: &mut Request, verdict: &Verdict) {
    let (code, chain) = match verdict {
        Verdict::Accept => (verdict::ACCEPT, None),
        Verdict::Drop => (verdict::DROP, None),
        Verdict::Return => (verdict::RETURN, None),
        Verdict::Jump(chain) => (verdict::JUMP, Some(chain)),
        Verdict::Goto(chain) => (verdict::GOTO, Some(chain)),
    };
    data.nested(attribute::DATA_VERDICT, |content| {
        content.network_u32(attribute::VERDICT_CODE, code.cast_unsigned());
        if let Some(chain) = chain {
            content.text(attribute::VERDICT_CHAIN, chain);
        }
    });
}

/// A comment in the form in which `nft` keeps and shows them.
fn comment_userdata(comment: &str) -> Vec<u8> {
    const COMMENT: u8 = 0;
    let length = u8::try_from(comment.len() + 1).expect("checked against MAX_COMMENT_BYTES");
    let mut userdata = vec![COMMENT, length];
    userdata.extend(comment.as_bytes());
    userdata.push(0);
    userdata
}
