//! Clients that take all they can get: their victims' neighbours are still served.

use std::net::{IpAddr, SocketAddr};
use std::thread::JoinHandle;

use ambit_net::drain::Drain;
use ambit_net::hbone::{Client, HboneError, Settings, Transport, Tunnel};
use ambit_net::netlink::RouteSocket;
use ambit_net::socket::{DialOptions, Dialing, ListenOptions, tcp_dial, tcp_listener};
use http::{Method, Request, StatusCode};
use tokio::sync::oneshot;

use super::world::{self, MARK, PodBox, Proxy, World, mirror, publish};
use super::{at, wait_until};
use crate::config::SameNode;

/// HBONE connections of one attack, and tunnels that are asked for in each.
const CONNECTIONS: usize = 55;
const TUNNELS: usize = 200;
/// Descriptors of the attacked proxy, so that the attack is over soon: 3,132 of them are for
/// connections.
const LIMIT: usize = 4_000;

/// What an attack got. It holds on to it until it is ended.
struct Attack {
    /// Open tunnels.
    accepted: usize,
    /// Tunnels that were refused.
    crowded: usize,
    /// Tunnels that were asked for in connections that were refused.
    closed: usize,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Attack {
    /// Opens all the tunnels to a port of a pod, with the attacker's own certificate.
    fn begin(near: &Proxy, attacker: &PodBox, server: &PodBox, port: u16) -> Self {
        let identity = attacker.workload.identity();
        let credentials = near.shared.mesh.certificates.cached(&identity).expect("it has one");
        let expected = vec![server.workload.identity()];
        let netns = attacker.netns.try_clone().expect("a descriptor");
        let (hbone, target) = (at(server.v4, 15008), at(server.v4, port));
        let (told, outcome) = std::sync::mpsc::channel();
        let (end, ended) = oneshot::channel();
        let work = async move || {
            let drain = Drain::new();
            let mut kept = (Vec::new(), Vec::new());
            let (mut crowded, mut closed) = (0, 0);
            for _ in 0..CONNECTIONS {
                let options = DialOptions { mark: Some(MARK), ..DialOptions::default() };
                let dialing = netns.run(|| tcp_dial(hbone, &options)).unwrap().unwrap();
                let transport = Transport::new(dialing.connected().await.unwrap());
                let activity = transport.activity();
                let proven = credentials.connector.connect(transport, &expected).await;
                let (stream, _) = proven.expect("both prove who they are");
                let settings = Settings::default();
                let client = Client::start(stream, activity, &settings, &drain.guard());
                let asking = (0..TUNNELS).map(|_| client.connect(ask(target)));
                for answer in futures::future::join_all(asking).await {
                    match answer {
                        Ok((_, tunnel)) => kept.0.push(tunnel),
                        Err(HboneError::Refused(StatusCode::SERVICE_UNAVAILABLE)) => crowded += 1,
                        Err(error) => {
                            assert!(error.transport().is_some(), "{error:?}");
                            closed += 1;
                        }
                    }
                }
                kept.1.push(client);
            }
            told.send((kept.0.len(), crowded, closed)).unwrap();
            let _ended: Result<(), _> = ended.await;
            drop::<(Vec<Tunnel>, Vec<Client>)>(kept);
            // Its tasks say farewell.
            drain.finished().await;
        };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            tokio::task::LocalSet::new().block_on(&runtime.unwrap(), work());
        });
        let (accepted, crowded, closed) = outcome.recv().expect("the attack is over");
        Self { accepted, crowded, closed, end: Some(end), thread: Some(thread) }
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        drop(self.end.take());
        let joined = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || joined.is_some_and(|it| it.is_ok()));
    }
}

/// Addresses of a silent client, and the connections that it opens from each.
const ADDRESSES: u8 = 20;
const SILENT_OF_ONE_ADDRESS: usize = 64;

/// Connects from further addresses of its own to a pod's port of HBONE, and says nothing.
fn stay_silent(stranger: &PodBox, server: &PodBox) -> Vec<Dialing> {
    let mut routes = RouteSocket::open_in(&stranger.netns).unwrap();
    let mut silent = Vec::new();
    for last in 1..=ADDRESSES {
        let own: IpAddr = [10, 9, 1, last].into();
        routes.ensure_address("eth0", format!("{own}/16").parse().unwrap()).unwrap();
        let source = Some(SocketAddr::new(own, 0));
        for _ in 0..SILENT_OF_ONE_ADDRESS {
            let options = DialOptions { source, ..DialOptions::default() };
            let dial = || tcp_dial(at(server.v4, 15008), &options);
            silent.push(stranger.netns.run(dial).unwrap().unwrap());
        }
    }
    silent
}

fn ask(target: SocketAddr) -> Request<()> {
    Request::builder().method(Method::CONNECT).uri(target.to_string()).body(()).unwrap()
}

/// Serves this port by accepting and nothing else.
pub(super) fn keep(pod: &PodBox, port: u16) {
    let address: SocketAddr = format!("[::]:{port}").parse().unwrap();
    let options = ListenOptions { v6only: false, ..ListenOptions::default() };
    let listener = pod.netns.run(|| tcp_listener(address, &options)).unwrap().unwrap();
    listener.set_nonblocking(false).unwrap();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept() {
            kept.push(stream);
        }
    });
}

in_namespaces! {
    fn who_takes_all_it_can_get_leaves_room_for_everybody_else() {
        let world = World::new();
        let near = world.proxy(SameNode::Join);
        let far = world.proxy_of(SameNode::Join, Some(LIMIT));
        let mut clients = [world.pod("attacker", "attacker"), world.pod("neighbour", "neighbour")];
        let mut servers = ["first", "second", "third"].map(|name| world.pod(name, name));
        let stranger = world.pod("stranger", "stranger");
        clients.iter_mut().for_each(|pod| near.enrol(pod));
        servers.iter_mut().for_each(|pod| far.enrol(pod));
        let pods: Vec<&PodBox> = clients.iter().chain(&servers).collect();
        publish(&[&near, &far], &pods, &[]);
        servers.iter().for_each(|pod| pod.serve(8080, mirror));
        servers.iter().take(2).for_each(|pod| keep(pod, 9000));
        let [attacker, neighbour] = &clients;

        let served = |when: &str| {
            for server in &servers {
                for _ in 0..3 {
                    let answer = neighbour.ask(at(server.v4, 8080));
                    let expected = format!("{} said hello\n", neighbour.v4);
                    assert_eq!(answer.unwrap_or_else(|it| format!("{when}: {it}")), expected);
                }
                assert!(stranger.ask(at(server.v4, 8080)).is_ok(), "{when}: from outside");
                assert!(server.ask(at(servers[2].v4, 8080)).is_ok(), "{when}: outbound");
            }
        };
        served("before");
        let attacks = [&servers[0], &servers[1]].map(|server| {
            let attack = Attack::begin(&near, attacker, server, 9000);
            served("while one pod is filled");
            attack
        });
        for attack in &attacks {
            let Attack { accepted, crowded, closed, .. } = attack;
            println!("{accepted} tunnels accepted, {crowded} + {closed} refused");
            assert_eq!(accepted + crowded + closed, CONNECTIONS * TUNNELS);
            assert!(*crowded > 0 && *closed % TUNNELS == 0);
            assert!(*accepted > 200 && *accepted < LIMIT / 6, "{accepted}");
        }
        let told = far.shares();
        println!("{:#?}", told.used_up);
        assert!(told.fits_another_pod, "the node goes on");
        assert_eq!(told.used_up.len(), 2, "{:?}", told.used_up);
        for pod in ["first", "second"] {
            let about = format!("pod default/{pod}, inbound: ");
            let who = format!("sa/attacker at {} has ", attacker.v4);
            let is_told = |it: &String| it.starts_with(&about) && it.contains(&who);
            assert!(told.used_up.iter().any(is_told), "{:?}", told.used_up);
        }
        let metrics = far.metrics();
        let refused = |it: &Attack| it.crowded + it.closed / TUNNELS;
        let refused: usize = attacks.iter().map(refused).sum();
        let line = format!("ambit_share_refusals_total{{direction=\"inbound\"}} {refused}\n");
        assert!(metrics.contains(&line) && metrics.contains("response_flags=\"UO\""), "{metrics}");

        drop(attacks);
        wait_until("what the attacker had is given back", || {
            let (used, _) = far.shared.mesh.descriptors.used();
            used < 20
        });
        assert!(far.shares().used_up.is_empty());
    }

    fn whoever_stays_silent_keeps_nobody_out() {
        let world = World::new();
        let near = world.proxy(SameNode::Join);
        let far = world.proxy_of(SameNode::Join, Some(LIMIT));
        let mut clients = ["first", "second", "third"].map(|name| world.pod(name, name));
        let mut server = world.pod("server", "server");
        let stranger = world.pod("stranger", "stranger");
        clients.iter_mut().for_each(|pod| near.enrol(pod));
        far.enrol(&mut server);
        let pods: Vec<&PodBox> = clients.iter().chain([&server]).collect();
        publish(&[&near, &far], &pods, &[]);
        server.serve(8080, mirror);
        // Each client is new to the server: its proxy has no connection that it could use again.
        for client in &clients {
            let _silent = stay_silent(&stranger, &server);
            let answer = client.ask(at(server.v4, 8080));
            assert_eq!(answer.expect("served"), format!("{} said hello\n", client.v4));
        }
        let (used, _) = far.shared.mesh.descriptors.used();
        assert!(used < LIMIT / 10, "{used} descriptors");
    }
}
