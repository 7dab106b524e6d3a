//! Behaviour of the pool, with HBONE connections and with connections for one exchange at a time.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use crate::{connect_to, in_simulated_time};
use ambit_net::drain::Drain;
use ambit_net::hbone::{Client, Settings, Transport, Tunnel, serve};
use ambit_net::pool::{Connection, Limits, Pool, PoolError};
use http::HeaderMap;
use tokio::io::duplex;
use tokio::time::sleep;

#[derive(Debug, thiserror::Error)]
#[error("unreachable")]
struct Unreachable;

/// An HBONE connection and its number.
struct Numbered {
    client: Client,
    number: u32,
}

impl Connection for Numbered {
    fn has_room(&self, limit: usize) -> bool {
        self.client.has_room(limit)
    }

    fn is_closing(&self) -> bool {
        self.client.is_closing()
    }

    fn idle(&self) -> Option<Duration> {
        self.client.idle()
    }
}

/// A pool whose connections lead to servers that accept every tunnel and leave it idle.
struct World {
    pool: Pool<&'static str, Numbered, Unreachable>,
    drain: Drain,
    servers: Drain,
    opened: Rc<Cell<u32>>,
}

impl World {
    fn new(users_per_connection: usize) -> Self {
        let drain = Drain::new();
        let limits = Limits { users_per_connection, idle: Duration::from_secs(60), waiters: 8 };
        let pool = Pool::new(limits, drain.guard());
        Self { pool, drain, servers: Drain::new(), opened: Rc::default() }
    }

    /// Connects after a moment, as a real network would.
    fn connect(&self) -> impl Future<Output = Result<Numbered, Unreachable>> + 'static {
        let (opened, guard) = (self.opened.clone(), self.drain.guard());
        let serving = self.servers.guard();
        async move {
            opened.set(opened.get() + 1);
            let number = opened.get();
            sleep(Duration::from_millis(10)).await;
            let (near, far) = duplex(1 << 16);
            serving.clone().spawn_local(async move {
                let transport = Transport::new(far);
                let activity = transport.activity();
                let mut idle = Vec::new();
                let settings = Settings::default();
                // How the client leaves is not what is tested here.
                let _ended = serve(transport, activity, &settings, &serving, |connect| {
                    idle.push(connect.accept(HeaderMap::new()).unwrap());
                })
                .await;
            });
            let transport = Transport::new(near);
            let activity = transport.activity();
            let settings = Settings::default();
            let client = Client::start(transport, activity, &settings, &guard);
            Ok(Numbered { client, number })
        }
    }

    /// Takes a tunnel; returns the number of its connection.
    async fn tunnel(&self, key: &'static str, generation: u128) -> (u32, Tunnel) {
        let guard = self.drain.guard();
        let connection = self.pool.connection(&key, generation, &guard, || self.connect()).await;
        let connection = connection.unwrap();
        let request = connect_to("127.0.0.1:1".parse().unwrap());
        (connection.number, connection.client.connect(request).await.unwrap().1)
    }
}

#[test]
fn connections_are_shared_until_they_are_full() {
    in_simulated_time(async {
        let world = World::new(2);
        let (a, b, c) =
            tokio::join!(world.tunnel("k", 1), world.tunnel("k", 1), world.tunnel("k", 1));
        assert_eq!((a.0, b.0, c.0), (1, 1, 2), "two share the first, opened once");
        let other = world.tunnel("other", 1).await;
        assert_eq!(other.0, 3);
        drop(a);
        let again = world.tunnel("k", 1).await;
        assert_eq!(again.0, 1, "the place that became free");
        assert_eq!(world.pool.connections(), 3);
    });
}

#[test]
fn a_new_certificate_is_for_new_tunnels_only() {
    in_simulated_time(async {
        let world = World::new(100);
        let before = world.tunnel("k", 1).await;
        let after = world.tunnel("k", 2).await;
        assert_eq!((before.0, after.0), (1, 2));
        assert_eq!(world.pool.connections(), 1, "the older one is only kept by its tunnel");
    });
}

#[test]
fn an_unused_connection_is_released() {
    in_simulated_time(async {
        let world = World::new(100);
        let (_, used) = world.tunnel("used", 1).await;
        let (_, unused) = world.tunnel("unused", 1).await;
        sleep(Duration::from_secs(100)).await;
        assert_eq!(world.pool.connections(), 2);
        drop(unused);
        sleep(Duration::from_secs(59)).await;
        assert_eq!(world.pool.connections(), 2);
        sleep(Duration::from_secs(7)).await;
        assert_eq!(world.pool.connections(), 1);
        drop(used);
    });
}

#[test]
fn a_failure_is_told_to_all_that_waited_and_not_remembered() {
    in_simulated_time(async {
        let world = World::new(100);
        let tries = Cell::new(0);
        let fail = || {
            tries.set(tries.get() + 1);
            async {
                sleep(Duration::from_millis(10)).await;
                Err(Unreachable)
            }
        };
        let guard = world.drain.guard();
        let waiting = (0..8).map(|_| world.pool.connection(&"k", 1, &guard, fail));
        for outcome in futures::future::join_all(waiting).await {
            assert!(matches!(outcome, Err(PoolError::Connect(_))));
        }
        assert_eq!(tries.get(), 1);
        assert_eq!(world.tunnel("k", 1).await.0, 1);
    });
}

#[test]
fn only_so_many_may_wait() {
    in_simulated_time(async {
        let world = World::new(100);
        let guard = world.drain.guard();
        let waiting = (0..9).map(|_| world.pool.connection(&"k", 1, &guard, || world.connect()));
        let outcomes = futures::future::join_all(waiting).await;
        let crowded = |it: &&Result<_, _>| matches!(it, Err(PoolError::Crowded(8)));
        assert_eq!(outcomes.iter().filter(crowded).count(), 1);
    });
}

#[test]
fn a_drained_pool_lets_everything_end() {
    in_simulated_time(async {
        let world = World::new(100);
        let (_, tunnel) = world.tunnel("k", 1).await;
        world.pool.forget(|_| true);
        world.drain.start(None);
        drop(tunnel);
        world.drain.finished().await;
    });
}

#[test]
fn what_is_opened_while_the_owner_drains_ends_with_its_tunnels() {
    in_simulated_time(async {
        let world = World::new(100);
        world.pool.forget(|_| true);
        world.drain.start(None);
        // The pool's own task has looked for the last time.
        sleep(Duration::from_millis(1)).await;
        let (_, tunnel) = world.tunnel("k", 1).await;
        assert_eq!(world.pool.connections(), 0, "nobody is left who would forget it");
        drop(tunnel);
        world.drain.finished().await;
    });
}

/// A connection that carries one exchange at a time, as HTTP/1.1 does.
struct Single {
    number: u32,
    is_used: Cell<bool>,
}

impl Connection for Single {
    fn has_room(&self, limit: usize) -> bool {
        usize::from(self.is_used.get()) < limit.min(1)
    }

    fn is_closing(&self) -> bool {
        false
    }

    fn idle(&self) -> Option<Duration> {
        (!self.is_used.get()).then_some(Duration::ZERO)
    }
}

#[test]
fn who_waited_for_a_connection_has_it_before_who_comes_later() {
    in_simulated_time(async {
        let drain = Drain::new();
        let limits = Limits { users_per_connection: 1, ..Limits::default() };
        let pool: Pool<_, Single, Unreachable> = Pool::new(limits, drain.guard());
        let (opened, guard) = (Cell::new(0), drain.guard());
        let connect = || {
            opened.set(opened.get() + 1);
            let number = opened.get();
            async move {
                sleep(Duration::from_millis(10)).await;
                Ok(Single { number, is_used: Cell::new(false) })
            }
        };
        let exchange = || async {
            let connection = pool.connection(&"k", 1, &guard, connect).await.unwrap();
            assert!(!connection.is_used.replace(true), "one at a time");
            connection
        };
        // The later one looks in the moment in which the connection is open and not yet used.
        let mut first = Box::pin(exchange());
        assert!(futures::poll!(&mut first).is_pending());
        sleep(Duration::from_millis(11)).await;
        let later = exchange().await;
        let first = first.await;
        assert_eq!((first.number, later.number), (1, 2));
        first.is_used.set(false);
        assert_eq!(exchange().await.number, 1, "the place that became free");
    });
}
