//! One netlink socket: requests, acknowledgements, dumps.
use super::NetlinkError;
#[derive(Debug)]
pub(crate) struct NetlinkSocket;
impl NetlinkSocket {
    pub(crate) fn open(_protocol: isize) -> Result<Self, NetlinkError> {
        unimplemented!()
    }
}
