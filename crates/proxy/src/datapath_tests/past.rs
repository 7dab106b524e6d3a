//! Two pods of one node whose bytes the kernel moves past the proxy.

use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use ambit_model::policy::Action;
use ambit_model::view::Change;
use ambit_net::kernel_path::{KernelPath, KernelPathError};
use ambit_net::sys::capability;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::world::{self, PodBox, Proxy, World, change, policy, publish};
use super::{at, wait_until};
use crate::config::SameNode;
use crate::worker::kernel_path;

/// More than it takes until both directions are joined.
const PINGS: u64 = 100;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A socket whose calls do not wait.
fn watched(stream: TcpStream) -> tokio::net::TcpStream {
    stream.set_nonblocking(true).unwrap();
    tokio::net::TcpStream::from_std(stream).unwrap()
}

fn echo(stream: TcpStream) {
    runtime().block_on(async {
        let (mut from, mut to) = watched(stream).into_split();
        let _cut = tokio::io::copy(&mut from, &mut to).await;
    });
}

async fn ping(stream: &mut tokio::net::TcpStream) -> std::io::Result<()> {
    stream.write_all(b"ping").await?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await?;
    assert_eq!(&answer, b"ping");
    Ok(())
}

/// How long it can be used.
async fn ping_to_the_end(stream: &mut tokio::net::TcpStream) -> Duration {
    let started = Instant::now();
    while ping(stream).await.is_ok() {
        assert!(started.elapsed() < world::PATIENCE, "it does not end");
    }
    started.elapsed()
}

/// A client and a server on one node, and its proxy.
struct Neighbours {
    proxy: Proxy,
    client: PodBox,
    server: PodBox,
}

impl Neighbours {
    fn new(world: &World, flag: &str) -> Self {
        let (mut client, mut server) = (world.pod("client", "c"), world.pod("server", "s"));
        let proxy = world.proxy_with(SameNode::Join, None, &[flag]);
        proxy.enrol(&mut client);
        proxy.enrol(&mut server);
        publish(&[&proxy], &[&client, &server], &[]);
        server.serve(8080, echo);
        Self { proxy, client, server }
    }

    fn joined(&self) -> usize {
        self.proxy.shared.kernel_path.as_ref().unwrap().joined()
    }

    /// A connection that was used until the kernel moves its bytes.
    async fn talk(&self, to: IpAddr) -> tokio::net::TcpStream {
        let mut stream = watched(self.client.connect(at(to, 8080)).unwrap());
        for _ in 0..PINGS {
            ping(&mut stream).await.unwrap();
        }
        stream
    }
}

/// Runs a test where programs may be loaded: not in a user namespace.
fn with_neighbours(test: impl FnOnce(&World, Neighbours)) {
    if world::is_in_a_user_namespace() {
        KernelPath::open(0).expect_err("only root of the machine may");
    } else {
        let world = World::new();
        test(&world, Neighbours::new(&world, "--kernel-path=on"));
    }
}

/// What the settings come to, for who may not load programs.
fn without_privileges(flag: &str) -> anyhow::Result<Option<KernelPath>> {
    let config = world::config(&[flag]);
    // They are those of the thread.
    let tried = std::thread::spawn(move || {
        capability::drop_all().expect("dropped");
        kernel_path(&config)
    });
    tried.join().expect("no panic")
}

in_namespaces! {
    fn a_proxy_that_shall_not_join_moves_every_byte() {
        let world = World::new();
        let pods = Neighbours::new(&world, "--kernel-path=off");
        assert!(pods.proxy.shared.kernel_path.is_none());
        let _used = runtime().block_on(pods.talk(pods.server.v4));
        let listed = pods.proxy.list();
        assert_eq!((listed.len(), listed[0].bytes_to_server), (1, 4 * PINGS));
        let metrics = pods.proxy.metrics();
        for line in ["ambit_kernel_path 0\n", "ambit_kernel_path_connections_total 0\n"] {
            assert!(metrics.contains(line), "{metrics}");
        }
    }

    fn a_proxy_that_may_not_join_goes_without_or_says_why() {
        assert!(without_privileges("--kernel-path=auto").unwrap().is_none());
        let error = without_privileges("--kernel-path=on").unwrap_err();
        let why = error.downcast_ref::<KernelPathError>();
        assert!(why.is_some() && error.to_string().contains("use auto"), "{error:#}");
    }

    fn what_goes_past_is_counted_and_cut_as_ever() {
        with_neighbours(|_, pods| {
            let runtime = runtime();
            let mut stream = runtime.block_on(pods.talk(pods.server.v4));
            assert_eq!(pods.joined(), 2, "both directions");
            let held = pods.proxy.shared.mesh.descriptors.used().0;
            assert_eq!(held, 2, "each of its sockets counts as long as it lives");
            let listed = pods.proxy.list();
            assert_eq!(listed.len(), 1);
            assert_eq!(listed[0].bytes_to_server, 4 * PINGS);
            assert_eq!(listed[0].bytes_to_client, 4 * PINGS);
            change(&[&pods.proxy], Change::Policy(policy("p", Action::Deny, "c")));
            let cut_after = runtime.block_on(ping_to_the_end(&mut stream));
            assert!(cut_after < Duration::from_secs(1), "cut after {cut_after:?}");
            wait_until("the end", || pods.proxy.list().is_empty() && pods.joined() == 0);
            let metrics = pods.proxy.metrics();
            for line in ["ambit_kernel_path 1\n", "ambit_kernel_path_connections_total 1\n"] {
                assert!(metrics.contains(line), "{metrics}");
            }
        });
    }

    fn a_revocation_of_either_pod_cuts() {
        with_neighbours(|world, pods| {
            let runtime = runtime();
            for revoked in [&pods.client, &pods.server] {
                let mut stream = runtime.block_on(pods.talk(pods.server.v4));
                assert_eq!(pods.joined(), 2);
                world.revoke(&pods.proxy, revoked);
                // The list is looked at twice a second.
                let cut_after = runtime.block_on(ping_to_the_end(&mut stream));
                assert!(cut_after < Duration::from_millis(1500), "cut after {cut_after:?}");
                wait_until("the end", || pods.proxy.list().is_empty() && pods.joined() == 0);
            }
            // What is revoked is a certificate, not the identity.
            runtime.block_on(pods.talk(pods.server.v4));
        });
    }

    fn addresses_of_both_families_are_joined() {
        with_neighbours(|_, pods| {
            let runtime = runtime();
            let _v4 = runtime.block_on(pods.talk(pods.server.v4));
            assert_eq!(pods.joined(), 2);
            let _v6 = runtime.block_on(pods.talk(pods.server.v6));
            assert_eq!(pods.joined(), 4);
        });
    }

    fn a_proxy_that_leaves_ends_with_its_last_joined_connection() {
        with_neighbours(|_, mut pods| {
            let runtime = runtime();
            let mut stream = runtime.block_on(pods.talk(pods.server.v4));
            assert_eq!(pods.joined(), 2);
            let leaving = Instant::now();
            let client = std::thread::spawn(move || {
                let used = async {
                    while leaving.elapsed() < Duration::from_millis(200) {
                        ping(&mut stream).await.expect("open connections go on");
                    }
                };
                runtime.block_on(used);
            });
            pods.proxy.stop();
            client.join().expect("it was served to its end");
            let took = leaving.elapsed();
            assert!(took < world::PATIENCE, "it took {took:?}");
        });
    }

    /// Another proxy has its pods, and their connections had long to finish.
    fn a_proxy_that_leaves_waits_for_no_deadline_beside_nothing() {
        with_neighbours(|_, mut pods| {
            let runtime = runtime();
            let mut stream = runtime.block_on(pods.talk(pods.server.v4));
            assert_eq!(pods.joined(), 2);
            pods.proxy.remove(&pods.server, 2 * world::PATIENCE);
            pods.proxy.remove(&pods.client, 2 * world::PATIENCE);
            runtime.block_on(ping(&mut stream)).expect("open connections go on");
            let leaving = Instant::now();
            let client = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(200));
                drop((stream, runtime));
            });
            pods.proxy.stop();
            client.join().expect("it closes");
            let took = leaving.elapsed();
            assert!(took < world::PATIENCE, "it took {took:?}");
        });
    }

    /// It had long when it was removed, and now the proxy itself must end.
    fn a_removed_pod_ends_no_later_than_its_proxy() {
        with_neighbours(|_, pods| {
            let runtime = runtime();
            let mut stream = runtime.block_on(pods.talk(pods.server.v4));
            pods.proxy.remove(&pods.server, 2 * world::PATIENCE);
            pods.proxy.end_by(Duration::from_millis(300));
            let ended_after = runtime.block_on(ping_to_the_end(&mut stream));
            assert!(ended_after >= Duration::from_millis(250), "ended after {ended_after:?}");
        });
    }

    /// The server was killed, and its network taken down before it could say so.
    fn a_removed_pod_ends_with_its_network() {
        with_neighbours(|_, pods| {
            let runtime = runtime();
            let mut stream = runtime.block_on(pods.talk(pods.server.v4));
            pods.proxy.remove(&pods.server, 2 * world::PATIENCE);
            runtime.block_on(ping(&mut stream)).expect("open connections go on");
            pods.server.take_network_down();
            let ended_after = runtime.block_on(ping_to_the_end(&mut stream));
            assert!(ended_after < world::PATIENCE, "ended after {ended_after:?}");
        });
    }

    fn a_removed_pod_ends_at_its_deadline() {
        with_neighbours(|_, pods| {
            let runtime = runtime();
            let mut stream = runtime.block_on(pods.talk(pods.server.v4));
            assert_eq!(pods.joined(), 2);
            pods.proxy.remove(&pods.server, Duration::from_millis(300));
            let ended_after = runtime.block_on(ping_to_the_end(&mut stream));
            assert!(ended_after >= Duration::from_millis(250), "ended after {ended_after:?}");
            wait_until("the end", || pods.joined() == 0);
        });
    }
}
