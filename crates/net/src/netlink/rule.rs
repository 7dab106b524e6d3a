//! Policy routing rules: which table a marked packet looks up.

use super::message::{self, Answer, Request};
use super::socket::deleted;
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

/// Size of `fib_rule_hdr`.
const INFO_BYTES: usize = 12;
/// `FR_ACT_TO_TBL`.
const LOOK_UP_TABLE: u8 = 1;
const PRIORITY: u16 = 6;
const MARK: u16 = 10;
const TABLE: u16 = 15;
const MASK: u16 = 16;

impl RouteSocket {
    /// Every rule that goes by mark, both families.
    pub fn rules(&mut self) -> Result<Vec<Rule>, NetlinkError> {
        let request = Request::new(libc::RTM_GETRULE, 0).body(&[0; INFO_BYTES]);
        let answers = self.netlink.dump(request, "list routing rules")?;
        Ok(answers.iter().filter_map(parse).collect())
    }

    /// Adds a rule unless it is there.
    pub fn ensure_rule(&mut self, rule: &Rule) -> Result<(), NetlinkError> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let request = rule_request(libc::RTM_NEWRULE, flags, rule);
        match self.netlink.request(request, &format!("add the routing rule for {:#x}", rule.mark)) {
            Err(error) if error.errno() != Some(libc::EEXIST) => Err(error),
            _ => Ok(()),
        }
    }

    /// Deletes a rule; `false` when it was not there.
    pub fn delete_rule(&mut self, rule: &Rule) -> Result<bool, NetlinkError> {
        let request = rule_request(libc::RTM_DELRULE, 0, rule);
        let operation = format!("delete the routing rule for {:#x}", rule.mark);
        deleted(self.netlink.request(request, &operation), &[libc::ENOENT])
    }
}

fn rule_request(kind: u16, flags: i32, rule: &Rule) -> Request {
    let mut body = [0; INFO_BYTES];
    body[0] = if rule.ipv6 { libc::AF_INET6 } else { libc::AF_INET } as u8;
    body[7] = LOOK_UP_TABLE;
    let mut request = Request::new(kind, flags).body(&body);
    request.native_u32(PRIORITY, rule.priority);
    request.native_u32(MARK, rule.mark);
    request.native_u32(MASK, rule.mask);
    request.native_u32(TABLE, rule.table);
    request
}

fn parse(answer: &Answer) -> Option<Rule> {
    let fixed = answer.payload.get(..INFO_BYTES)?;
    let attributes = &answer.payload[INFO_BYTES..];
    let number = |kind| message::find(attributes, kind).map(message::read_u32);
    Some(Rule {
        ipv6: i32::from(fixed[0]) == libc::AF_INET6,
        priority: number(PRIORITY).unwrap_or(0),
        mark: number(MARK)?,
        mask: number(MASK)?,
        table: number(TABLE)?,
    })
}
