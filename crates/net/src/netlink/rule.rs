//! Policy routing rules: which table a marked packet looks up.

use super::{NetlinkError, RouteSocket};

/// A rule by firewall mark, for one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// For IPv6, else IPv4.
    pub ipv6: bool,
    /// Lower is asked earlier.
    pub priority: u32,
    /// What the masked mark must be.
    pub mark: u32,
    /// Which bits of the mark count.
    pub mask: u32,
    /// The table to look up.
    pub table: u32,
}

impl RouteSocket {
    /// Every rule that goes by mark, both families.
    pub fn rules(&mut self) -> Result<Vec<Rule>, NetlinkError> {
        unimplemented!()
    }

    /// Adds a rule unless it is there.
    pub fn ensure_rule(&mut self, _rule: &Rule) -> Result<(), NetlinkError> {
        unimplemented!()
    }

    /// Deletes a rule; `false` when it was not there.
    pub fn delete_rule(&mut self, _rule: &Rule) -> Result<bool, NetlinkError> {
        unimplemented!()
    }
}
