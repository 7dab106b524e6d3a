//! The ports that the node proxy needs in a pod, and which program of the pod has one of them.
//!
//! Asked only when a proxy refuses a pod because an address is in use: its own listeners, or those
//! of a proxy that it is to replace, are in nobody's way. It looks and never opens a socket there.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ambit_net::namespace::NetNs;
use ambit_net::procnet;
use ambit_wire::capture::Obstacle;
use ambit_words::ports::{DNS_CAPTURE, HBONE, INBOUND, OUTBOUND};

use super::CaptureError;

/// The ports, in the order in which they are looked at.
const PORTS: [u16; 4] = [OUTBOUND, INBOUND, HBONE, DNS_CAPTURE];
/// Descriptors that are looked at in one search: a pod may open as many as it likes, and whoever
/// searches has other pods to see to.
const DESCRIPTORS_MAX: usize = 200_000;
/// How an error of the kernel is written that says so, by every proxy that is written in Rust.
const IN_USE: &str = "(os error 98)";

/// What keeps a proxy out of a pod that it refused for this reason.
pub(crate) fn obstacle(netns: &NetNs, reason: String) -> Result<Obstacle, CaptureError> {
    if !reason.contains(IN_USE) {
        return Ok(Obstacle::Refused(reason));
    }
    let held = netns.run(holders).map_err(CaptureError::Enter)?.map_err(CaptureError::Sockets)?;
    let found = holder(Path::new("/proc"), netns.inode(), &held);
    // Nobody was found: a socket that does not listen is in no table, and another namespace's
    // program may hold it. The proxy's words name the port.
    Ok(found.map_or(Obstacle::Refused(reason), |(port, process)| Obstacle::PortTaken {
        port,
        process: Some(process),
    }))
}

/// The sockets that have each port. Of UDP only DNS is in the way.
fn holders() -> io::Result<Vec<(u16, BTreeSet<u64>)>> {
    let of = |port| {
        let (mut inodes, udp) = procnet::holders(port)?;
        if port == DNS_CAPTURE {
            inodes.extend(udp);
        }
        Ok((port, inodes))
    };
    PORTS.into_iter().map(of).collect()
}

/// The first port whose socket a process of that network namespace holds, with its name.
fn holder(proc: &Path, netns: u64, held: &[(u16, BTreeSet<u64>)]) -> Option<(u16, String)> {
    let mut found: Option<(u16, String)> = None;
    let mut left = DESCRIPTORS_MAX;
    for process in fs::read_dir(proc).ok()?.flatten() {
        let process = process.path();
        // Others are the proxy's, or of another pod.
        if !fs::metadata(process.join("ns/net")).is_ok_and(|it| it.ino() == netns) {
            continue;
        }
        let Ok(descriptors) = fs::read_dir(process.join("fd")) else { continue };
        for descriptor in descriptors.flatten() {
            left = left.checked_sub(1)?;
            let Some(inode) = socket_of(&descriptor.path()) else { continue };
            let port = held.iter().find(|(_, inodes)| inodes.contains(&inode));
            let Some((port, _)) = port else { continue };
            if found.as_ref().is_none_or(|(before, _)| port < before) {
                let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
                found = Some((*port, name.trim_end().to_owned()));
            }
        }
    }
    found
}

/// The inode of the socket that a descriptor is, if it is one.
fn socket_of(descriptor: &Path) -> Option<u64> {
    let target = fs::read_link(descriptor).ok()?;
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, UdpSocket};
    use std::os::fd::OwnedFd;
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::testbed::Testbed;

    const REFUSAL: &str = "listen on [::]:15006 in the pod: Address already in use (os error 98)";

    /// A program in the pod that holds this socket.
    struct Program(Child);

    impl Program {
        fn holding(netns: &NetNs, socket: OwnedFd) -> Self {
            let mut sleep = Command::new("sleep");
            sleep.arg("60").stdin(Stdio::from(socket));
            Self(netns.run(|| sleep.spawn()).expect("enter").expect("start"))
        }
    }

    impl Drop for Program {
        fn drop(&mut self) {
            self.0.kill().expect("kill");
            self.0.wait().expect("it ends");
        }
    }

    fn check(bed: &Testbed, reason: &str, expected: &Obstacle) {
        assert_eq!(&obstacle(&bed.pod, reason.to_owned()).expect("look"), expected);
    }

    #[tokio::test]
    async fn the_program_that_has_a_port_of_the_proxy_is_named() {
        let refused = Obstacle::Refused(REFUSAL.to_owned());
        let mut served = Testbed::new();
        // Those of a proxy that is still there are held by no process of the pod.
        served.proxy_listens();
        check(&served, REFUSAL, &refused);

        let bed = Testbed::new();
        check(&bed, REFUSAL, &refused);
        let of_pod = |address: &str| -> SocketAddr { address.parse().expect("literal") };
        let bind = |address| move || OwnedFd::from(UdpSocket::bind(of_pod(address)).expect("bind"));
        let program = |socket: OwnedFd| Program::holding(&bed.pod, socket);
        // Nobody else receives datagrams there.
        let _other = program(bed.pod.run(bind("10.244.1.5:15001")).expect("enter"));
        check(&bed, REFUSAL, &refused);
        let _first = program(bed.pod.run(bind("10.244.1.5:15053")).expect("enter"));
        let taken = |port| Obstacle::PortTaken { port, process: Some("sleep".to_owned()) };
        check(&bed, REFUSAL, &taken(15053));
        let none_free = "no room (os error 24)";
        check(&bed, none_free, &Obstacle::Refused(none_free.to_owned()));
        let listen =
            || OwnedFd::from(TcpListener::bind(of_pod("127.0.0.1:15006")).expect("listen"));
        let _second = program(bed.pod.run(listen).expect("enter"));
        check(&bed, REFUSAL, &taken(15006));
    }
}
