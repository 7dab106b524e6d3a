//! Neighbours: which hardware address an IP address on the link has.

use std::net::IpAddr;

use super::message::{self, Request};
use super::socket::deleted;
use super::{NetlinkError, RouteSocket};

/// A permanent neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// On which interface.
    pub link: String,
    /// Whose address.
    pub ip: IpAddr,
    /// Where frames to it go.
    pub mac: [u8; 6],
}

/// Size of `ndmsg`.
const INFO_BYTES: usize = 12;

impl RouteSocket {
    /// Adds or replaces a permanent neighbour, so that no resolution is needed.
    pub fn ensure_neighbour(&mut self, neighbour: &Neighbour) -> Result<(), NetlinkError> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
        let request = self.neighbour_request(libc::RTM_NEWNEIGH, flags, neighbour)?;
        self.netlink.request(request, &format!("add neighbour {}", neighbour.ip)).map(drop)
    }

    /// Forgets where frames to an address go, be that permanent or learned; `false` when it was not
    /// known.
    pub fn delete_neighbour(&mut self, link: &str, ip: IpAddr) -> Result<bool, NetlinkError> {
        // The hardware address does not matter here.
        let neighbour = Neighbour { link: link.to_owned(), ip, mac: [0; 6] };
        let request = self.neighbour_request(libc::RTM_DELNEIGH, 0, &neighbour)?;
        let deletion = self.netlink.request(request, &format!("delete neighbour {ip}"));
        deleted(deletion, &[libc::ENOENT])
    }

    fn neighbour_request(
        &mut self,
        kind: u16,
        flags: i32,
        neighbour: &Neighbour,
    ) -> Result<Request, NetlinkError> {
        let index = self.require(&neighbour.link, "change a neighbour")?.index;
        let mut body = [0; INFO_BYTES];
        body[0] = message::family_of(neighbour.ip);
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        body[8..10].copy_from_slice(&libc::NUD_PERMANENT.to_ne_bytes());
        let mut request = Request::new(kind, flags).body(&body);
        request.address(libc::NDA_DST, neighbour.ip);
        request.attribute(libc::NDA_LLADDR, &neighbour.mac);
        Ok(request)
    }
}
