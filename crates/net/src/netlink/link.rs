//! Interfaces: loopback, bridges, veth pairs.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use super::message::{self, Answer, Request};
use super::socket::{deleted, malformed};
use super::{NetlinkError, RouteSocket};
use crate::namespace::NetNs;

/// The kinds of interface that Ambit makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// A switch in the kernel.
    Bridge,
    /// One end of a virtual cable.
    Veth,
}

impl fmt::Display for LinkKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Bridge => "bridge",
            Self::Veth => "veth",
        })
    }
}

/// An interface as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Number within the namespace.
    pub index: u32,
    /// Name within the namespace.
    pub name: String,
    /// `bridge`, `veth`, ...; empty for hardware and loopback.
    pub kind: String,
    /// Administratively up.
    pub up: bool,
    /// Whether the other end is there, too.
    pub carrier: bool,
    /// Whether packets go through; follows `up` and `carrier` a little later.
    pub running: bool,
    /// Largest packet.
    pub mtu: u32,
    /// Hardware address.
    pub mac: [u8; 6],
    /// Index of the bridge that it is a port of.
    pub master: Option<u32>,
    /// Index of a veth's other end, in the namespace where that is.
    pub peer: Option<u32>,
    /// That namespace, as numbered by this one; `None` for this one.
    peer_namespace: Option<u32>,
}

impl Link {
    /// Whether packets go through, or cannot be expected to. Loopback and TUN devices report no
    /// state at all.
    fn settled(&self) -> bool {
        let is_silent = self.kind.is_empty() || self.kind == TUN;
        self.running || !self.carrier || !self.up || is_silent
    }
}

/// The kind of a TUN device.
const TUN: &str = "tun";
/// Size of `ifinfomsg`.
const INFO_BYTES: usize = 16;
/// `VETH_INFO_PEER`.
const VETH_PEER: u16 = 1;
/// `IFLA_BR_MCAST_SNOOPING`.
const BRIDGE_SNOOPING: u16 = 23;
/// `IFLA_BRPORT_MODE`: send back out of the port of arrival.
const PORT_HAIRPIN: u16 = 4;
const UP: u32 = libc::IFF_UP as u32;
/// `IFF_LOWER_UP`.
const CARRIER: u32 = 1 << 16;

/// `IF_OPER_UP`. The flag `IFF_RUNNING` is set earlier, while the state is still unknown.
const OPERATIONAL: u8 = 6;

/// `IFLA_TARGET_NETNSID`: look in another namespace.
const TARGET_NAMESPACE: u16 = 46;

/// Between looks at an interface that was switched on. The kernel takes about as long.
const ACTIVATION_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// The kernel may put the change off for a second; beyond that nobody waits.
const MAX_ACTIVATION_CHECKS: usize = 1200;

impl RouteSocket {
    /// Every interface of the namespace.
    pub fn links(&mut self) -> Result<Vec<Link>, NetlinkError> {
        let request = Request::new(libc::RTM_GETLINK, 0).body(&info(libc::AF_UNSPEC, 0, 0, 0));
        let answers = self.netlink.dump(request, "list interfaces")?;
        answers.iter().map(parse).collect()
    }

    /// The interface of that name, if there is one.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>, NetlinkError> {
        let mut request = Request::new(libc::RTM_GETLINK, 0).body(&info(libc::AF_UNSPEC, 0, 0, 0));
        request.text(libc::IFLA_IFNAME, name);
        match self.netlink.request(request, &format!("look up interface {name}")) {
            Ok(answers) => answers.first().map(parse).transpose(),
            Err(error) if error.errno() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a bridge unless there is one of that name. It is down until [`RouteSocket::set_up`].
    ///
    /// It floods multicast: without a querier, snooping would lose neighbour discovery.
    pub fn ensure_bridge(&mut self, name: &str) -> Result<Link, NetlinkError> {
        if let Some(link) = self.existing(name, LinkKind::Bridge)? {
            return Ok(link);
        }
        let mut request = create();
        request.text(libc::IFLA_IFNAME, name);
        // A bridge without an address of its own takes that of a port, and changes it when ports
        // come and go.
        request.attribute(libc::IFLA_ADDRESS, &random_mac());
        request.nested(libc::IFLA_LINKINFO, |info| {
            info.text(libc::IFLA_INFO_KIND, "bridge");
            info.nested(libc::IFLA_INFO_DATA, |data| data.attribute(BRIDGE_SNOOPING, &[0]));
        });
        self.netlink.request(request, &format!("create bridge {name}"))?;
        self.require(name, "create bridge")
    }

    /// Makes a veth pair unless it is there: `name` here, `peer` in `peer_namespace` (here for
    /// `None`).
    ///
    /// Both ends are down. If `name` exists with another peer, it is replaced.
    pub fn ensure_veth(
        &mut self,
        name: &str,
        peer: &str,
        peer_namespace: Option<&NetNs>,
    ) -> Result<Link, NetlinkError> {
        if let Some(link) = self.existing(name, LinkKind::Veth)? {
            let other = match peer_namespace {
                Some(namespace) => Self::open_in(namespace)?.link(peer)?,
                None => self.link(peer)?,
            };
            if other.is_some_and(|other| {
                other.peer == Some(link.index) && link.peer == Some(other.index)
            }) {
                return Ok(link);
            }
            self.delete_link(name)?;
        }
        let operation = format!("create veth pair {name} - {peer}");
        let request = veth_request(name, peer, peer_namespace, distinct_indices());
        let result = match self.netlink.request(request, &operation) {
            Err(error) if error.errno() == Some(libc::EBUSY) => {
                let any = veth_request(name, peer, peer_namespace, [0, 0]);
                self.netlink.request(any, &operation)
            }
            other => other,
        };
        result?;
        self.require(name, "create veth pair")
    }

    /// Moves an interface into another namespace. It arrives there down and without addresses.
    pub fn move_link(&mut self, name: &str, namespace: &NetNs) -> Result<(), NetlinkError> {
        self.change(name, "move interface", |request| {
            request.native_u32(libc::IFLA_NET_NS_FD, fd_number(namespace));
        })
    }

    /// Switches an interface on, for example `lo`, which is down in a new namespace.
    ///
    /// If it has a carrier, this waits until the kernel lets packets through: it does so a little
    /// later, and earlier packets are lost, which costs a connection a whole second.
    pub fn set_up(&mut self, name: &str) -> Result<(), NetlinkError> {
        const OPERATION: &str = "switch on interface";
        self.set_flags(name, OPERATION, UP)?;
        for _ in 0..MAX_ACTIVATION_CHECKS {
            let link = self.require(name, OPERATION)?;
            // The other end came up together with this one, and answers have to get out there.
            if link.settled() && self.other_end(&link).is_none_or(|other| other.settled()) {
                break;
            }
            std::thread::sleep(ACTIVATION_CHECK_INTERVAL);
        }
        Ok(())
    }

    /// The other end of a veth pair, if there is one and it may be read.
    fn other_end(&mut self, link: &Link) -> Option<Link> {
        let body = info(libc::AF_UNSPEC, link.peer?, 0, 0);
        let mut request = Request::new(libc::RTM_GETLINK, 0).body(&body);
        if let Some(namespace) = link.peer_namespace {
            request.native_u32(TARGET_NAMESPACE, namespace);
        }
        let answers = self.netlink.request(request, "look up the other end of a veth pair").ok()?;
        parse(answers.first()?).ok()
    }

    /// Switches an interface off.
    pub fn set_down(&mut self, name: &str) -> Result<(), NetlinkError> {
        self.set_flags(name, "switch off interface", 0)
    }

    /// Sets the largest packet.
    pub fn set_mtu(&mut self, name: &str, mtu: u32) -> Result<(), NetlinkError> {
        self.change(name, "set the MTU of interface", |request| {
            request.native_u32(libc::IFLA_MTU, mtu);
        })
    }

    /// Makes an interface a port of a bridge.
    pub fn set_master(&mut self, name: &str, bridge: &str) -> Result<(), NetlinkError> {
        let index = self.require(bridge, "find bridge")?.index;
        self.change(name, "add a bridge port", |request| {
            request.native_u32(libc::IFLA_MASTER, index);
        })
    }

    /// Lets a bridge port send frames back out of the port they came from, for a pod that reaches
    /// itself by the address of a service.
    pub fn set_hairpin(&mut self, name: &str) -> Result<(), NetlinkError> {
        const OPERATION: &str = "set hairpin mode of bridge port";
        let index = self.require(name, OPERATION)?.index;
        let mut request =
            Request::new(libc::RTM_SETLINK, 0).body(&info(libc::AF_BRIDGE, index, 0, 0));
        request.nested(libc::IFLA_PROTINFO, |port| port.attribute(PORT_HAIRPIN, &[1]));
        self.netlink.request(request, &format!("{OPERATION} {name}")).map(drop)
    }

    /// Deletes an interface (a veth's other end goes too); `false` when there was none.
    pub fn delete_link(&mut self, name: &str) -> Result<bool, NetlinkError> {
        let mut request = Request::new(libc::RTM_DELLINK, 0).body(&info(libc::AF_UNSPEC, 0, 0, 0));
        request.text(libc::IFLA_IFNAME, name);
        let result = self.netlink.request(request, &format!("delete interface {name}"));
        deleted(result, &[libc::ENODEV])
    }

    /// The interface, which must exist.
    pub(crate) fn require(
        &mut self,
        name: &str,
        operation: &'static str,
    ) -> Result<Link, NetlinkError> {
        let missing = || NetlinkError::NoSuchLink { operation, name: name.to_owned() };
        self.link(name)?.ok_or_else(missing)
    }

    fn existing(&mut self, name: &str, wanted: LinkKind) -> Result<Option<Link>, NetlinkError> {
        let link = self.link(name)?;
        if link.as_ref().is_some_and(|link| link.kind != wanted.to_string()) {
            return Err(NetlinkError::OtherKind { name: name.to_owned(), wanted });
        }
        Ok(link)
    }

    fn set_flags(
        &mut self,
        name: &str,
        what: &'static str,
        flags: u32,
    ) -> Result<(), NetlinkError> {
        let index = self.require(name, what)?.index;
        let request =
            Request::new(libc::RTM_NEWLINK, 0).body(&info(libc::AF_UNSPEC, index, flags, UP));
        self.netlink.request(request, &format!("{what} {name}")).map(drop)
    }

    fn change(
        &mut self,
        name: &str,
        what: &'static str,
        attributes: impl FnOnce(&mut Request),
    ) -> Result<(), NetlinkError> {
        let index = self.require(name, what)?.index;
        let mut request =
            Request::new(libc::RTM_SETLINK, 0).body(&info(libc::AF_UNSPEC, index, 0, 0));
        attributes(&mut request);
        self.netlink.request(request, &format!("{what} {name}")).map(drop)
    }
}

fn create() -> Request {
    create_with_index(0)
}

/// Index 0 leaves the choice to the kernel.
fn create_with_index(index: u32) -> Request {
    let body = info(libc::AF_UNSPEC, index, 0, 0);
    Request::new(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL).body(&body)
}

fn veth_request(
    name: &str,
    peer: &str,
    namespace: Option<&NetNs>,
    [index, peer_index]: [u32; 2],
) -> Request {
    let mut request = create_with_index(index);
    request.text(libc::IFLA_IFNAME, name);
    request.nested(libc::IFLA_LINKINFO, |linkinfo| {
        linkinfo.text(libc::IFLA_INFO_KIND, "veth");
        linkinfo.nested(libc::IFLA_INFO_DATA, |data| {
            data.nested(VETH_PEER, |other| {
                other.raw(&info(libc::AF_UNSPEC, peer_index, 0, 0));
                other.text(libc::IFLA_IFNAME, peer);
                if let Some(namespace) = namespace {
                    other.native_u32(libc::IFLA_NET_NS_FD, fd_number(namespace));
                }
            });
        });
    });
    request
}

/// `ifinfomsg`.
fn info(family: i32, index: u32, flags: u32, change: u32) -> [u8; INFO_BYTES] {
    let mut bytes = [0; INFO_BYTES];
    bytes[0] = family as u8;
    bytes[4..8].copy_from_slice(&index.to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes[12..16].copy_from_slice(&change.to_ne_bytes());
    bytes
}

fn fd_number(namespace: &NetNs) -> u32 {
    namespace.as_fd().as_raw_fd().cast_unsigned()
}

/// Two indices that differ and are hardly taken in any namespace.
///
/// Where both ends of a veth pair have the same index, each in its namespace, the kernel takes a
/// carrier that comes up for not urgent, and the first packets are lost for up to a second.
fn distinct_indices() -> [u32; 2] {
    const ABOVE_THE_KERNELS_OWN: u32 = 1 << 20;
    let [low, high] = [random(), random()].map(|random| (random as u32) % ABOVE_THE_KERNELS_OWN);
    [ABOVE_THE_KERNELS_OWN + low, 2 * ABOVE_THE_KERNELS_OWN + high]
}

/// Only uniqueness matters, not secrecy.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A locally administered unicast address.
fn random_mac() -> [u8; 6] {
    let [first, rest @ .., _, _] = random().to_ne_bytes();
    let [b, c, d, e, f] = rest;
    [(first & 0xfc) | 0x02, b, c, d, e, f]
}

fn parse(answer: &Answer) -> Result<Link, NetlinkError> {
    let short = || malformed("look up interfaces", "it lacks the fixed part");
    let fixed = answer.payload.get(..INFO_BYTES).ok_or_else(short)?;
    let flags = message::read_u32(&fixed[8..12]);
    let mut link = Link {
        index: message::read_u32(&fixed[4..8]),
        name: String::new(),
        kind: String::new(),
        up: flags & UP != 0,
        carrier: flags & CARRIER != 0,
        running: false,
        mtu: 0,
        mac: [0; 6],
        master: None,
        peer: None,
        peer_namespace: None,
    };
    for (kind, payload) in message::attributes_after(&answer.payload, INFO_BYTES) {
        match kind {
            libc::IFLA_IFNAME => link.name = message::read_text(payload),
            libc::IFLA_MTU => link.mtu = message::read_u32(payload),
            libc::IFLA_OPERSTATE => link.running = payload == [OPERATIONAL],
            libc::IFLA_MASTER => link.master = Some(message::read_u32(payload)),
            libc::IFLA_LINK => link.peer = Some(message::read_u32(payload)),
            libc::IFLA_LINK_NETNSID => link.peer_namespace = Some(message::read_u32(payload)),
            libc::IFLA_ADDRESS => link.mac = payload.first_chunk().copied().unwrap_or_default(),
            libc::IFLA_LINKINFO => {
                let kind = message::find(payload, libc::IFLA_INFO_KIND);
                link.kind = kind.map(message::read_text).unwrap_or_default();
            }
            _ => {}
        }
    }
    Ok(link)
}
