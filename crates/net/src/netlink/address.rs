//! Addresses of interfaces.

use ipnet::IpNet;

use super::message::{self, Answer, Request};
use super::socket::{deleted, malformed};
use super::{NetlinkError, RouteSocket};

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Which interface.
    pub link_index: u32,
    /// The address with the length of its subnet's prefix.
    pub address: IpNet,
}

/// Size of `ifaddrmsg`.
const INFO_BYTES: usize = 8;

impl RouteSocket {
    /// Every address of the namespace, both families.
    pub fn addresses(&mut self) -> Result<Vec<Address>, NetlinkError> {
        let request = Request::new(libc::RTM_GETADDR, 0).body(&[0; INFO_BYTES]);
        let answers = self.netlink.dump(request, "list addresses")?;
        answers.iter().map(parse).collect()
    }

    /// Gives an interface an address, usable at once (no duplicate address detection for IPv6).
    pub fn ensure_address(&mut self, link: &str, address: IpNet) -> Result<(), NetlinkError> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
        let operation = format!("add address {address} to interface {link}");
        let request = self.address_request(libc::RTM_NEWADDR, flags, link, address)?;
        self.netlink.request(request, &operation).map(drop)
    }

    /// Takes an address away; `false` when it was not there.
    pub fn delete_address(&mut self, link: &str, address: IpNet) -> Result<bool, NetlinkError> {
        let operation = format!("delete address {address} of interface {link}");
        let request = self.address_request(libc::RTM_DELADDR, 0, link, address)?;
        deleted(self.netlink.request(request, &operation), &[libc::EADDRNOTAVAIL])
    }

    fn address_request(
        &mut self,
        kind: u16,
        flags: i32,
        link: &str,
        address: IpNet,
    ) -> Result<Request, NetlinkError> {
        let index = self.require(link, "change an address")?.index;
        let mut body = [0; INFO_BYTES];
        body[0] = message::family_of(address.addr());
        body[1] = address.prefix_len();
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        let mut request = Request::new(kind, flags).body(&body);
        request.address(libc::IFA_LOCAL, address.addr());
        request.address(libc::IFA_ADDRESS, address.addr());
        if address.addr().is_ipv6() {
            request.native_u32(libc::IFA_FLAGS, libc::IFA_F_NODAD);
        }
        Ok(request)
    }
}

fn parse(answer: &Answer) -> Result<Address, NetlinkError> {
    let wrong = |reason| malformed("list addresses", reason);
    let short = || wrong("it lacks the fixed part");
    let fixed = answer.payload.get(..INFO_BYTES).ok_or_else(short)?;
    let mut ip = None;
    for (kind, payload) in message::attributes_after(&answer.payload, INFO_BYTES) {
        // On a point-to-point link IFA_ADDRESS is the other end's; IFA_LOCAL, if present, is ours.
        match kind {
            libc::IFA_LOCAL => ip = message::read_ip(payload),
            libc::IFA_ADDRESS if ip.is_none() => ip = message::read_ip(payload),
            _ => {}
        }
    }
    let ip = ip.ok_or_else(|| wrong("an address is missing"))?;
    let address = IpNet::new(ip, fixed[1]).map_err(|_| wrong("a prefix is too long"))?;
    Ok(Address { link_index: message::read_u32(&fixed[4..8]), address })
}
