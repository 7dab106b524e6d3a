//! Tables and chains.

use super::{Rule, Set};

/// Which packets a table sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// Both.
    Inet,
    /// Frames that pass through the namespace's bridges, whatever they carry.
    Bridge,
    /// Frames that come in by single devices, before anybody else sees them.
    Netdev,
}

/// What a base chain may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChainKind {
    /// Accept, drop, set marks.
    Filter,
    /// Like filter, and a packet whose mark changed is routed again (output only).
    Route,
    /// Address translation: sees the first packet of a connection only.
    Nat,
}

/// Where in a packet's way a base chain sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hook {
    /// Arrived, not routed yet.
    Prerouting,
    /// Routed to this host.
    Input,
    /// Routed onward.
    Forward,
    /// Sent by this host.
    Output,
    /// About to leave.
    Postrouting,
    /// Come in by a device; only in [`Family::Netdev`].
    Ingress,
}

/// Order among the chains of one hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(pub i32);

impl Priority {
    /// Before connection tracking.
    pub const RAW: Self = Self(-300);
    /// After connection tracking, before translation.
    pub const MANGLE: Self = Self(-150);
    /// Destination translation.
    pub const DESTINATION_NAT: Self = Self(-100);
    /// Filtering.
    pub const FILTER: Self = Self(0);
    /// Source translation.
    pub const SOURCE_NAT: Self = Self(100);
}

/// Where and how a base chain is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Base {
    pub(super) kind: ChainKind,
    pub(super) hook: Hook,
    pub(super) priority: Priority,
    pub(super) drop_by_default: bool,
}

/// The device that a chain of [`Family::Netdev`] is attached to.
pub(super) type Device = Option<String>;

/// A list of rules, attached to a hook or called by other chains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub(super) name: String,
    pub(super) base: Option<Base>,
    pub(super) device: Device,
    pub(super) rules: Vec<Rule>,
}

impl Chain {
    /// A chain that only jumps lead to.
    pub fn regular(name: &str) -> Self {
        Self { name: name.to_owned(), base: None, device: None, rules: Vec::new() }
    }

    /// A chain that filters.
    pub fn filter(name: &str, hook: Hook, priority: Priority) -> Self {
        Self::base(name, ChainKind::Filter, hook, priority)
    }

    /// A chain on the output hook after which packets with a changed mark are routed again.
    pub fn route(name: &str, priority: Priority) -> Self {
        Self::base(name, ChainKind::Route, Hook::Output, priority)
    }

    /// A chain that translates addresses.
    pub fn nat(name: &str, hook: Hook, priority: Priority) -> Self {
        Self::base(name, ChainKind::Nat, hook, priority)
    }

    /// A chain that filters what comes in by a device, and is named as the device is. The kernel
    /// drops it with the device.
    pub fn ingress(device: &str, priority: Priority) -> Self {
        let chain = Self::base(device, ChainKind::Filter, Hook::Ingress, priority);
        Self { device: Some(device.to_owned()), ..chain }
    }

    fn base(name: &str, kind: ChainKind, hook: Hook, priority: Priority) -> Self {
        let base = Base { kind, hook, priority, drop_by_default: false };
        Self { base: Some(base), ..Self::regular(name) }
    }

    /// Drops what no rule of this base chain decides on. Ignored nowhere: a regular chain has no
    /// default.
    #[must_use]
    pub fn drop_by_default(mut self) -> Self {
        let base = self.base.as_mut().expect("only a base chain has a default");
        base.drop_by_default = true;
        self
    }

    /// Appends a rule.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Appends rules.
    #[must_use]
    pub fn rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.rules.extend(rules);
        self
    }
}

/// Everything in one table of Ambit's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub(super) family: Family,
    pub(super) name: String,
    pub(super) sets: Vec<Set>,
    pub(super) chains: Vec<Chain>,
}

impl Table {
    /// A table without anything in it.
    pub fn new(family: Family, name: &str) -> Self {
        Self { family, name: name.to_owned(), sets: Vec::new(), chains: Vec::new() }
    }

    /// Adds a chain. Jumps may lead to chains that are added later.
    #[must_use]
    pub fn chain(mut self, chain: Chain) -> Self {
        self.chains.push(chain);
        self
    }

    /// Adds chains.
    #[must_use]
    pub fn chains(mut self, chains: impl IntoIterator<Item = Chain>) -> Self {
        self.chains.extend(chains);
        self
    }

    /// Adds a named set or map.
    #[must_use]
    pub fn set(mut self, set: Set) -> Self {
        self.sets.push(set);
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its family.
    pub fn family(&self) -> Family {
        self.family
    }
}
