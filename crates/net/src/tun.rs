//! TUN devices: interfaces whose IP packets a program sends and receives.
//!
//! The kernel's queue of the device is the bound: what comes while nobody reads is dropped there.
//! What a packet may hold is the caller's to decide.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;

use tokio::io::unix::AsyncFd;

use crate::sys;

/// Where devices are made.
const DEVICE: &str = "/dev/net/tun";

/// Makes a TUN device of this name in the calling thread's namespace. It stays until it is deleted.
/// Nothing happens if it is there.
pub fn ensure_tun(name: &str) -> io::Result<()> {
    let queue = open(name)?;
    sys::tun::persist(&queue)
}

fn open(name: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DEVICE)?;
    sys::tun::attach(&file, name)?;
    Ok(file)
}

/// The packets of a TUN device. Only one process has them at a time.
#[derive(Debug)]
pub struct Tun {
    queue: File,
    watched: AsyncFd<OwnedFd>,
}

impl Tun {
    /// Takes the packets of the device of this name in the calling thread's namespace. Makes a
    /// device that goes with this value if there is none.
    pub fn open(name: &str) -> io::Result<Self> {
        let queue = open(name)?;
        let watched = sys::watch(queue.try_clone()?.into())?;
        Ok(Self { queue, watched })
    }

    /// Waits for a packet that the kernel sends to the device. Cancel safe.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.watched.readable().await?;
            match self.try_read(buffer)? {
                Some(length) => return Ok(length),
                None => ready.clear_ready(),
            }
        }
    }

    /// A packet that is there already.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match (&self.queue).read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            read => read.map(Some),
        }
    }

    /// Gives a packet to the kernel, as one that came in at the device.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        (&self.queue).write(packet).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;
    use crate::namespace::NetNs;
    use crate::netlink::RouteSocket;

    /// Needs the rights of root over network namespaces.
    #[tokio::test]
    async fn packets_go_from_one_device_to_the_other() {
        let end = |address: &'static str| {
            let netns = NetNs::create().expect("a namespace");
            let opened = netns.run(|| {
                ensure_tun("t").expect("a device that stays");
                let tun = Tun::open("t").expect("its packets");
                let mut route = RouteSocket::open().expect("netlink");
                let address = format!("{address}/24").parse().expect("a network");
                route.ensure_address("t", address).expect("an address");
                route.set_up("t").expect("up");
                let socket = UdpSocket::bind("0.0.0.0:7").expect("a socket");
                socket.set_nonblocking(true).expect("non-blocking");
                (tun, tokio::net::UdpSocket::from_std(socket).expect("a socket"))
            });
            opened.expect("entered")
        };
        let ((near, client), (far, server)) = (end("192.0.2.1"), end("192.0.2.2"));
        client.send_to(b"hello", "192.0.2.2:7").await.expect("sent");
        let carried = async {
            let mut buffer = [0; 2048];
            loop {
                let length = near.read(&mut buffer).await.expect("a packet");
                far.write(&buffer[..length]).expect("given");
            }
        };
        let mut heard = [0; 16];
        let arrived = tokio::time::timeout(Duration::from_secs(5), async {
            tokio::select! {
                () = carried => unreachable!("it carries for ever"),
                received = server.recv_from(&mut heard) => received.expect("received"),
            }
        });
        let (length, from) = arrived.await.expect("in time");
        assert_eq!((&heard[..length], from.to_string().as_str()), (&b"hello"[..], "192.0.2.1:7"));
        assert!(Tun::open("a-name-that-is-too-long").is_err());
    }
}
