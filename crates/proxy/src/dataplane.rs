//! One data-plane thread: its pods, their listeners, and everything it owns for itself.
//!
//! A connection lives and dies on the thread that accepted it. Nothing here knows what is done
//! with a connection: that is told in `outbound`, `inbound` and `plaintext`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ambit_model::Text;
use ambit_net::drain::{Drain, Guard};
use ambit_net::namespace::remember_home;
use ambit_net::pool::{Limits, Pool};
use ambit_net::socket::{DialOptions, normalise, original_destination};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::accept::{Entrance, accept_loop};
use crate::choice::Balance;
use crate::connections::{ConnectionInfo, Connections};
use crate::descriptors::{Crowded, Direction, Permit, Source};
use crate::handshakes::Handshakes;
use crate::metrics::Reporter;
use crate::pods::Pod;
use crate::record::{Record, Tally};
use crate::shared::Shared;
use crate::tunnel::{DialError, PoolKey, TunnelPeer};
use crate::{inbound, outbound, plaintext};

/// Connections that may wait for an HBONE connection to one destination.
const MAX_POOL_WAITERS: usize = 4096;
/// How often the remaining connections of a pod that is gone are cut.
const CUT_INTERVAL: Duration = Duration::from_millis(100);

/// What the control thread asks of a data-plane thread.
pub(crate) enum Command {
    /// Serve a pod.
    Add {
        /// The pod.
        pod: Arc<Pod>,
        /// This thread's sockets in its namespace.
        listeners: Listeners,
    },
    /// A pod is gone: its connections may finish until the deadline.
    Remove {
        /// Which pod.
        uid: Text,
        /// How long its connections may go on.
        deadline: Duration,
    },
    /// Another worker takes the new connections; those that are here go on.
    StopAccepting,
    /// Tell of every connection.
    List(oneshot::Sender<Vec<ConnectionInfo>>),
}

/// A thread's own sockets of one pod (`SO_REUSEPORT`), of both families.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    /// Captured outbound connections, port 15001.
    pub(crate) outbound: Vec<std::net::TcpListener>,
    /// HBONE, port 15008.
    pub(crate) inbound: Vec<std::net::TcpListener>,
    /// Captured inbound connections, port 15006.
    pub(crate) plaintext: Vec<std::net::TcpListener>,
}

/// What all connections of a thread use.
pub(crate) struct DataPlane {
    pub(crate) shared: Arc<Shared>,
    pub(crate) connections: Connections,
    pub(crate) pool: Pool<PoolKey, TunnelPeer, DialError>,
    pub(crate) balance: Balance,
    pub(crate) tally: Tally,
}

/// A pod as one thread serves it.
pub(crate) struct Served {
    pub(crate) pod: Arc<Pod>,
    /// Everything that runs for the pod.
    pub(crate) drain: Drain,
    pub(crate) handshakes: Handshakes,
}

/// Serves pods until [`Command::StopAccepting`] was given, or the sender is gone, and every
/// connection has ended. Must run in a `LocalSet`.
pub(crate) async fn run(shared: Arc<Shared>, commands: mpsc::Receiver<Command>) {
    if let Err(error) = remember_home() {
        tracing::warn!(%error, "every dial will ask anew which namespace this thread is in");
    }
    let everything = Drain::new();
    let plane = Rc::new(DataPlane::new(shared, everything.guard()));
    let mut thread = Thread { plane: plane.clone(), pods: HashMap::new(), everything };
    tokio::select! {
        () = thread.serve(commands) => {}
        () = plane.connections.keep_judged() => {}
    }
}

impl DataPlane {
    fn new(shared: Arc<Shared>, guard: Guard) -> Self {
        let hbone = &shared.mesh.settings.hbone;
        let limits = Limits {
            tunnels_per_connection: hbone.max_streams_per_connection.into(),
            idle: hbone.idle_timeout,
            waiters: MAX_POOL_WAITERS,
        };
        Self {
            connections: Connections::new(shared.mesh.clone()),
            pool: Pool::new(limits, guard),
            balance: Balance::new(rand::random()),
            tally: Tally::new(shared.mesh.metrics.clone()),
            shared,
        }
    }

    /// The address that an application shall see as its client's: the client's own, where the
    /// settings say so and families allow it. The kernel chooses the port.
    pub(crate) fn original_source(
        &self,
        client: SocketAddr,
        server: SocketAddr,
    ) -> Option<SocketAddr> {
        let possible = client.is_ipv4() == server.is_ipv4();
        let wanted = self.shared.mesh.settings.original_source && possible;
        wanted.then(|| SocketAddr::new(client.ip(), 0))
    }

    /// What an accept loop of a pod needs of its shares.
    fn entrance(&self, pod: &Pod, direction: Direction) -> Entrance {
        let share = pod.shares.of(direction).clone();
        // What another proxy brings has one descriptor until it is told which tunnels.
        let count = if direction == Direction::Handshakes { 1 } else { 2 };
        let keepalive = self.shared.mesh.settings.sockets.keepalive;
        if direction == Direction::Outbound {
            return Entrance { share, count, source_of: None, keepalive };
        }
        let mesh = self.shared.mesh.clone();
        let source_of = move |peer: SocketAddr| {
            let (view, network) = (mesh.view.load(), &mesh.settings.network);
            Source::unproven(peer.ip(), view.workload_at(network, peer.ip()).is_some())
        };
        Entrance { share, count, source_of: Some(Box::new(source_of)), keepalive }
    }

    /// Resets a connection that there is no descriptor for.
    fn turn_away(
        &self,
        direction: Direction,
        stream: TcpStream,
        peer: SocketAddr,
        crowded: &Crowded,
    ) {
        let reporter = match direction {
            Direction::Outbound => Reporter::Source,
            _ => Reporter::Destination,
        };
        let to = original_destination(&stream).or_else(|_| stream.local_addr());
        let to = to.map_or_else(|_| SocketAddr::new(peer.ip(), 0), normalise);
        Record::new(reporter, peer, to).failed(&self.tally, crowded);
        outbound::refuse(stream);
    }

    /// Options of a socket towards a pod.
    pub(crate) fn dial_options(&self, source: Option<SocketAddr>) -> DialOptions {
        let sockets = &self.shared.mesh.settings.sockets;
        DialOptions {
            mark: Some(sockets.mark),
            source,
            keepalive: sockets.keepalive,
            user_timeout: sockets.user_timeout,
            nodelay: true,
        }
    }
}

/// The pods of a thread, which only commands change.
struct Thread {
    plane: Rc<DataPlane>,
    pods: HashMap<Text, Rc<Served>>,
    /// Ends with the last pod's last connection.
    everything: Drain,
}

impl Thread {
    async fn serve(&mut self, mut commands: mpsc::Receiver<Command>) {
        loop {
            match commands.recv().await {
                Some(Command::StopAccepting) | None => break,
                Some(command) => self.obey(command),
            }
        }
        self.pods.values().for_each(|served| self.retire(served.clone()));
        self.plane.pool.forget(|_| true);
        self.everything.start(None);
        let mut open = true;
        loop {
            tokio::select! {
                () = self.everything.finished() => return,
                command = commands.recv(), if open => match command {
                    None => open = false,
                    Some(command) => self.obey(command),
                },
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Add { pod, listeners } => self.add(pod, listeners),
            Command::Remove { uid, deadline } => self.remove(&uid, deadline),
            Command::StopAccepting => {}
            Command::List(answer) => {
                // Whoever asked may have gone.
                let _unwanted = answer.send(self.plane.connections.list());
            }
        }
    }

    fn add(&mut self, pod: Arc<Pod>, listeners: Listeners) {
        let uid = pod.uid.clone();
        if let Some(before) = self.pods.remove(&uid) {
            self.retire(before);
        }
        let served =
            Rc::new(Served { pod, drain: Drain::new(), handshakes: Handshakes::default() });
        self.pods.insert(uid, served.clone());
        self.listen(&served, Direction::Outbound, listeners.outbound, outbound::serve);
        self.listen(&served, Direction::Handshakes, listeners.inbound, inbound::serve);
        self.listen(&served, Direction::Plaintext, listeners.plaintext, plaintext::serve);
    }

    /// Lets a pod's connections go on without time limit, but takes no new ones.
    fn retire(&self, served: Rc<Served>) {
        served.drain.start(None);
        self.everything.guard().spawn_local(async move { served.drain.finished().await });
    }

    /// Starts one accept loop for each of a pod's sockets of one kind.
    fn listen<F>(
        &self,
        served: &Rc<Served>,
        direction: Direction,
        listeners: Vec<std::net::TcpListener>,
        serve: fn(Rc<DataPlane>, Rc<Served>, TcpStream, SocketAddr, Permit) -> F,
    ) where
        F: Future<Output = ()> + 'static,
    {
        for listener in listeners {
            let guard = served.drain.guard();
            let entrance = self.plane.entrance(&served.pod, direction);
            let (plane, served) = (self.plane.clone(), served.clone());
            let name = served.pod.name.clone();
            let each = move |stream, peer, permit: Result<Permit, Box<Crowded>>| match permit {
                Ok(permit) => {
                    let connection = serve(plane.clone(), served.clone(), stream, peer, permit);
                    drop(served.drain.guard().spawn_local(connection));
                }
                Err(crowded) => plane.turn_away(direction, stream, peer, &crowded),
            };
            guard.clone().spawn_local(async move {
                if let Err(error) = accept_loop(listener, guard, &entrance, each).await {
                    tracing::error!(pod = %name, %error, "cannot accept connections of this pod");
                }
            });
        }
    }

    fn remove(&mut self, uid: &Text, deadline: Duration) {
        let Some(served) = self.pods.remove(uid) else { return };
        let plane = self.plane.clone();
        let until = Instant::now() + deadline;
        served.drain.start(Some(until));
        plane.pool.forget(|key| key.pod == served.pod.uid);
        self.everything.guard().spawn_local(async move {
            let finished = tokio::time::timeout_at(until, served.drain.finished()).await.is_ok();
            // Joined connections run for the pod of their client and end here all the same.
            if finished && plane.connections.hold(&served.pod.uid) {
                sleep_until(until).await;
            }
            loop {
                plane.connections.cut_pod(&served.pod.uid);
                // One that was still dialling may stand now.
                let rest = tokio::time::timeout(CUT_INTERVAL, served.drain.finished());
                if rest.await.is_ok() {
                    return;
                }
            }
        });
    }
}
