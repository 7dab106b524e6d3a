//! What process 1 does in the namespaces of control and of the nodes for a machine with a way out.
//!
//! The packet filter redirects TCP to anywhere outside to a listener of process 1, which asks the
//! process on the host for a connection and copies both ways. The connection is accepted before the
//! outside is asked, so one that is refused outside is reset. Everything else to the outside is
//! refused at once. Names that are not the cluster's are asked for at a socket in the state
//! directory; where control is, process 1 answers DNS too.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ambit_net::namespace::NetNs;
use ambit_net::netlink::{Route, RouteSocket};
use ambit_net::nftables::{Chain, Family, Hook, Nftables, Priority, Protocol, Rule, Table};
use ambit_net::seqpacket::{Connection, Listener};
use ambit_net::socket::{
    ISTIO_KEEPALIVE, ListenOptions, original_destination, set_keepalive, set_linger_reset,
    tcp_listener,
};
use ambit_net::sys::{mount, process};
use ambit_words::names::{DEFAULT_CLUSTER_DOMAIN, RESOLV_CONF};
use ambit_words::ports;
use anyhow::Context as _;
use ipnet::IpNet;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::allowed::Egress;
use super::hand_out::{self, Office};
use super::protocol::QUERY_SIZE_MAX_BYTES;
use super::told::Told;
use super::way::{For, Way};
use crate::accepting::ACCEPT_PAUSE;
use crate::addresses::{DNS, own_networks};
use crate::fabric;
use crate::node::dns::{self, SharedZone};
use crate::node::network::host;
use crate::state::Machine;

/// The name of the tables.
const TABLE: &str = "ambit-egress";
/// Connections to the outside at once, if the process may open the files for them; more wait.
const CONNECTIONS_MAX: usize = 1024;
/// As many files are not for connections to the outside: each takes two.
const OTHER_FILES: usize = 512;
/// Who may ask for names at once; more wait.
const CALLERS_MAX: usize = 128;
/// How long one that asks for a name may take to say which.
const CALLER_TIMEOUT: Duration = Duration::from_secs(5);

/// What all connections share.
struct Outside {
    way: Arc<Way>,
    egress: Egress,
    room: Arc<Semaphore>,
    /// Addresses that the log says are refused.
    told: Told,
}

/// Opens the way out of a machine, on a thread of its own: what passes must not wait while the
/// controllers of the machine work. The other end of the socket has a process on the host. A
/// machine that carries a workload of a cluster has a listener for HBONE too: only its proxy
/// reaches the outside then.
pub(crate) fn open(
    machine: &Arc<Machine>,
    socket: OwnedFd,
    hbone: Option<&Arc<OwnedFd>>,
) -> anyhow::Result<()> {
    let egress = machine.record.egress.clone().context("the machine has no way out")?;
    let files = process::open_files_limit();
    let connections = (files.saturating_sub(OTHER_FILES) / 2).clamp(1, CONNECTIONS_MAX);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let outside = Arc::new(Outside {
        way: Arc::new(Way::new(socket)?),
        egress,
        room: Arc::new(Semaphore::new(connections)),
        told: Told::default(),
    });
    if machine.record.workload.is_some() {
        let hbone = hbone.context("the socket that listens for other proxies is missing")?;
        let (way, hbone) = (Arc::clone(&outside.way), Arc::clone(hbone));
        let office = Arc::new(Office::new(way, hbone, outside.egress.clone()));
        for (whose, path) in [
            (For::Pod, machine.layout.outside_socket()),
            (For::Control, machine.layout.outside_control_socket()),
        ] {
            hand_out::serve(&path, whose, &office)
                .with_context(|| format!("listen at {}", path.display()))?;
        }
    } else {
        for (name, netns) in &machine.members {
            let listener = lead_out(netns).with_context(|| format!("lead {name} out"))?;
            let listener = tokio::net::TcpListener::from_std(listener)?;
            tokio::spawn(take(Arc::clone(&outside), listener));
        }
    }
    let names = machine.layout.resolve_socket();
    let listener = Listener::bind(&names);
    let listener = listener.with_context(|| format!("listen at {}", names.display()))?;
    tokio::spawn(answer_names(Arc::clone(&outside), listener));
    // A machine whose control is elsewhere has none.
    if let Some(control) = machine.members.get(fabric::CONTROL_NAME) {
        control.run(|| answer_here(&names))?.context("answer DNS where control is")?;
    }
    use_cluster_dns(machine.layout.root()).context("have the machine's programs use its DNS")?;
    drop(entered);
    let machine = Arc::clone(machine);
    let receiving = async move {
        outside.way.receive().await;
        machine.has_lost_egress.store(true, Ordering::Relaxed);
        // What is connected goes on.
        std::future::pending::<()>().await;
    };
    std::thread::Builder::new()
        .name("egress".to_owned())
        .spawn(move || runtime.block_on(receiving))?;
    Ok(())
}

/// Where the machine's own programs look names up: the host's resolvers cannot be reached here.
fn use_cluster_dns(root: &Path) -> io::Result<()> {
    let file = root.join("resolv.conf");
    fs::write(&file, format!("nameserver {}\n", DNS.v4))?;
    match mount::bind_one(&file, Path::new(RESOLV_CONF)) {
        // A host without the file has programs that do without it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Answers DNS in the calling thread's namespace, which has no names of its own.
fn answer_here(names: &Path) -> anyhow::Result<()> {
    let mut route = RouteSocket::open()?;
    for address in DNS.both() {
        route.ensure_address("lo", host(address))?;
    }
    let outside = Some(dns::Outside::new(names.to_owned(), DEFAULT_CLUSTER_DOMAIN));
    Ok(dns::serve(&DNS.both(), dns::Names { zone: SharedZone::default(), outside })?)
}

/// Has a namespace send what goes outside to the listener that is returned.
///
/// Its route to everywhere leads to the fabric, where nobody takes it: it lets programs of the
/// namespace itself send at all, until the packet filter says where to.
fn lead_out(netns: &NetNs) -> anyhow::Result<TcpListener> {
    netns.run(|| {
        let options = ListenOptions { v6only: false, ..ListenOptions::default() };
        let listener = tcp_listener(ports::everywhere(0), &options)?;
        let port = listener.local_addr()?.port();
        let mut route = RouteSocket::open()?;
        for everywhere in ["0.0.0.0/0", "::/0"] {
            let everywhere = everywhere.parse().expect("a literal network");
            route.ensure_route(&Route::on_link(everywhere, fabric::MEMBER_LINK))?;
        }
        Nftables::open()?.replace(&[table(Family::Ip, port), table(Family::Ip6, port)])?;
        Ok(listener)
    })?
}

fn table(family: Family, port: u16) -> Table {
    let outside = |comment: &str| {
        let rule = Rule::new(comment);
        inside(family).fold(rule, |rule, network| rule.destination_not(network))
    };
    let redirect = || outside("TCP to the outside").protocol(Protocol::Tcp).redirect(port);
    let refuse = || outside("anything else to the outside").reject();
    Table::new(family, TABLE).chains([
        Chain::nat("prerouting", Hook::Prerouting, Priority::DESTINATION_NAT).rule(redirect()),
        Chain::nat("output", Hook::Output, Priority::DESTINATION_NAT).rule(redirect()),
        Chain::filter("refuse-forwarded", Hook::Prerouting, Priority::FILTER).rule(refuse()),
        Chain::filter("refuse-own", Hook::Output, Priority::FILTER).rule(refuse()),
    ])
}

/// What is no business of the way out: the machine's networks, and what never leaves a link.
fn inside(family: Family) -> impl Iterator<Item = IpNet> {
    let is_v6 = family == Family::Ip6;
    let of_link: &[&str] = if is_v6 {
        &["::1/128", "fe80::/10", "ff00::/8"]
    } else {
        &["127.0.0.0/8", "224.0.0.0/4", "255.255.255.255/32"]
    };
    let of_link = of_link.iter().map(|network| network.parse().expect("a literal network"));
    let own = own_networks().into_iter().filter(move |it| matches!(it, IpNet::V6(_)) == is_v6);
    own.chain(of_link)
}

/// Accepts for as long as the machine lives.
async fn take(outside: Arc<Outside>, listener: tokio::net::TcpListener) {
    loop {
        let room = Arc::clone(&outside.room);
        let held = room.acquire_owned().await.expect("nobody closes it");
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the outside; waiting");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let outside = Arc::clone(&outside);
        tokio::spawn(async move {
            if let Err(error) = carry(&outside, client).await {
                let error = format!("{error:#}");
                tracing::debug!(error, "a connection to the outside came to nothing");
            }
            drop(held);
        });
    }
}

/// Carries one connection to its end. One that breaks is reset at the other side, too.
async fn carry(outside: &Outside, mut client: TcpStream) -> anyhow::Result<()> {
    let to = original_destination(&client).context("find out where it goes")?;
    let outcome = match outside.connect(to).await {
        Ok(mut server) => {
            client.set_nodelay(true)?;
            set_keepalive(&client, ISTIO_KEEPALIVE)?;
            let copied = copy_bidirectional(&mut client, &mut server).await;
            copied.map(drop).inspect_err(|_| {
                // One that cannot be set is closed in order instead.
                let _set = set_linger_reset(&server);
            })
        }
        Err(error) => Err(error),
    };
    if outcome.is_err() {
        set_linger_reset(&client)?;
    }
    outcome.with_context(|| format!("carry to {to}"))
}

impl Outside {
    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        if let Some(why) = self.egress.refusal(to.ip()) {
            self.tell_refused(to, why);
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let server = self.way.dial(For::Pod, to).await?;
        server.set_nonblocking(true)?;
        TcpStream::from_std(server)
    }

    /// Says once for each address why it is not reached.
    fn tell_refused(&self, to: SocketAddr, why: &str) {
        if self.told.is_new(to.ip()) {
            tracing::warn!(%to, why, "a connection to the outside is refused");
        }
    }
}

/// Answers who asks for names, for as long as the machine lives.
async fn answer_names(outside: Arc<Outside>, listener: Listener) {
    let places = Arc::new(Semaphore::new(CALLERS_MAX));
    loop {
        let held = Arc::clone(&places).acquire_owned().await.expect("nobody closes it");
        match listener.accept().await {
            Ok(caller) => {
                let outside = Arc::clone(&outside);
                tokio::spawn(async move {
                    if let Err(error) = answer_name(&outside.way, &caller).await {
                        let error = format!("{error:#}");
                        tracing::debug!(error, "a name is not looked up outside");
                    }
                    drop(held);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot take who asks for a name; waiting");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A query is one packet, and so is its answer; without an answer the connection just closes.
async fn answer_name(way: &Way, caller: &Connection) -> anyhow::Result<()> {
    let mut query = vec![0; QUERY_SIZE_MAX_BYTES];
    let packet = timeout(CALLER_TIMEOUT, caller.receive(&mut query)).await??;
    query.truncate(packet.length);
    let answer = way.resolve(query).await?;
    Ok(caller.send(&answer, &[]).await?)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Needs the rights of root over network namespaces.
    #[test]
    fn tcp_to_the_outside_comes_to_the_listener_and_nothing_else_leaves() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let _entered = runtime.as_ref().expect("a runtime").enter();
        let netns = NetNs::create().expect("a namespace");
        let link = fabric::MEMBER_LINK;
        let address = |text: &str| text.parse::<IpNet>().expect("a literal network");
        netns
            .run(|| -> anyhow::Result<()> {
                let mut route = RouteSocket::open()?;
                route.set_up("lo")?;
                route.ensure_bridge(link)?;
                route.ensure_address(link, address("172.18.0.11/24"))?;
                Ok(route.set_up(link)?)
            })
            .expect("entered")
            .expect("a network");
        let listener = lead_out(&netns).expect("led out");
        listener.set_nonblocking(false).expect("set");
        let connect = |to: &str| {
            let to: SocketAddr = to.parse().expect("an address");
            netns.run(|| std::net::TcpStream::connect_timeout(&to, Duration::from_secs(5)))
        };
        let _client = connect("192.0.2.7:80").expect("entered").expect("redirected");
        let (accepted, _) = listener.accept().expect("it came");
        let to = original_destination(&accepted).expect("it is known");
        assert_eq!(to, "192.0.2.7:80".parse().expect("an address"));
        // Loopback is the namespace's own.
        assert!(connect("127.0.0.1:80").expect("entered").is_err());
        let refused = netns.run(|| -> io::Result<()> {
            let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.set_read_timeout(Some(Duration::from_secs(5)))?;
            socket.connect("192.0.2.7:4000")?;
            socket.send(b"x")?;
            socket.recv(&mut [0]).map(drop)
        });
        let refused = refused.expect("entered").expect_err("UDP does not leave");
        let kinds = [io::ErrorKind::ConnectionRefused, io::ErrorKind::PermissionDenied];
        assert!(kinds.contains(&refused.kind()), "{refused}");
    }
}
