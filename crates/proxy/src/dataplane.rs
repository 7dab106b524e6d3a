//! One data-plane thread: its pods, their listeners, and which direction serves what they accept.
//!
//! A connection stays on the thread that accepted it. `outbound`, `inbound` and `plaintext` serve
//! it; what they use lies below them, in [`Thread`].

use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ambit_dataplane::accept::accept_loop;
use ambit_dataplane::descriptors::{Crowded, Direction, Permit};
use ambit_dataplane::handshakes::handshakes;
use ambit_dataplane::own::{OwnWorkload, Served};
use ambit_dataplane::plane::Plane;
use ambit_model::Text;
use ambit_net::drain::Drain;
use ambit_net::namespace::remember_home;
use ambit_wire::admin::Connection;
use futures::future::OptionFuture;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use crate::pods::Pod;
use crate::shared::Shared;
use crate::thread::Thread;
use crate::{inbound, outbound, plaintext};

/// How often the remaining connections of a pod that is gone are cut.
const CUT_INTERVAL: Duration = Duration::from_millis(100);

/// How often it is looked whether a pod that is gone has its network yet.
const NETWORK_INTERVAL: Duration = Duration::from_secs(1);
/// How long what it said before that may take to be passed on.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// What the control thread asks of a data-plane thread.
pub(crate) enum Command {
    /// Serve a pod.
    Add {
        pod: Arc<Pod>,
        /// This thread's sockets in its namespace.
        listeners: Listeners,
    },
    /// A pod is gone: its connections may finish until the deadline.
    Remove {
        /// Which pod.
        uid: Text,
        /// How long its connections may continue.
        deadline: Duration,
    },
    /// Another worker takes the new connections; existing ones continue.
    StopAccepting,
    /// The connections of pods that are gone may not continue for longer than this.
    EndBy(Duration),
    /// List every connection.
    List(oneshot::Sender<Vec<Connection>>),
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

/// Serves pods until [`Command::StopAccepting`] was given, or the sender is gone, and every
/// connection has ended. Must run in a `LocalSet`.
pub(crate) async fn run(shared: Arc<Shared>, commands: mpsc::Receiver<Command>) {
    if let Err(error) = remember_home() {
        tracing::warn!(%error, "every dial asks again which namespace this thread is in");
    }
    let everything = Drain::new();
    let plane = Rc::new(Plane::new(shared.mesh.clone(), everything.guard()));
    let thread = Rc::new(Thread { shared, plane: plane.clone() });
    let mut serving = Serving { thread, pods: HashMap::new(), everything };
    tokio::select! {
        () = serving.serve(commands) => {}
        () = plane.connections.keep_judged() => {}
    }
}

/// The pods of a thread, which only commands change.
struct Serving {
    thread: Rc<Thread>,
    pods: HashMap<Text, Rc<Served>>,
    /// Ends with the last pod's last connection.
    everything: Drain,
}

impl Serving {
    async fn serve(&mut self, mut commands: mpsc::Receiver<Command>) {
        loop {
            match commands.recv().await {
                Some(Command::StopAccepting) | None => break,
                Some(command) => self.obey(command),
            }
        }
        self.pods.values().for_each(|served| self.retire(served.clone()));
        self.thread.plane.pool.forget(|_| true);
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
            Command::EndBy(deadline) => self.everything.start(Some(Instant::now() + deadline)),
            Command::List(answer) => {
                // The caller may be gone.
                let _unwanted = answer.send(self.thread.plane.connections.list());
            }
        }
    }

    fn add(&mut self, pod: Arc<Pod>, listeners: Listeners) {
        let uid = pod.uid.clone();
        if let Some(before) = self.pods.remove(&uid) {
            self.retire(before);
        }
        let descriptors = self.thread.shared.mesh.descriptors.used().1;
        let threads = self.thread.shared.config.worker_threads;
        let served = Rc::new(Served::new(pod, handshakes(descriptors, threads)));
        self.pods.insert(uid, served.clone());
        self.listen(&served, Direction::Outbound, listeners.outbound, outbound::serve);
        self.listen(&served, Direction::Handshakes, listeners.inbound, inbound::serve);
        self.listen(&served, Direction::Plaintext, listeners.plaintext, plaintext::serve);
    }

    /// Lets a pod's connections continue without time limit, but takes no new ones.
    fn retire(&self, served: Rc<Served>) {
        self.end(served, None);
    }

    /// Starts one accept loop for each of a pod's sockets of one kind.
    fn listen<F>(
        &self,
        served: &Rc<Served>,
        direction: Direction,
        listeners: Vec<std::net::TcpListener>,
        serve: fn(Rc<Thread>, Rc<Served>, TcpStream, SocketAddr, Permit) -> F,
    ) where
        F: Future<Output = ()> + 'static,
    {
        for listener in listeners {
            let guard = served.drain.guard();
            let entrance = self.thread.plane.entrance(&served.own, direction);
            let (thread, served) = (self.thread.clone(), served.clone());
            let name = served.own.name.clone();
            let each = move |stream, peer, permit: Result<Permit, Box<Crowded>>| match permit {
                Ok(permit) => {
                    let connection = serve(thread.clone(), served.clone(), stream, peer, permit);
                    drop(served.drain.guard().spawn_local(connection));
                }
                Err(crowded) => thread.plane.turn_away(direction, stream, peer, &crowded),
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
        self.thread.plane.pool.forget(|key| key.own == served.own.uid);
        self.end(served, Some(Instant::now() + deadline));
    }

    /// Takes no new connections of a pod. Those that it has go on until they end, the time is up,
    /// or the pod's network is gone.
    fn end(&self, served: Rc<Served>, until: Option<Instant>) {
        let plane = self.thread.plane.clone();
        let mut everything = self.everything.guard();
        served.drain.start(until);
        self.everything.guard().spawn_local(async move {
            let finished = async || {
                served.drain.finished().await;
                // Joined connections run for the pod of their client but end here too.
                plane.connections.all_left(&served.own).await;
            };
            let time_is_up = OptionFuture::from(until.map(sleep_until));
            tokio::select! {
                () = finished() => return,
                Some(()) = time_is_up => {}
                () = everything.overdue() => {}
                () = network_gone(&served.own) => {}
            }
            // What is being set up, and what waits for a peer that does not hear of the end.
            served.drain.start(Some(Instant::now()));
            loop {
                plane.connections.cut_pod(&served.own);
                // One that was still dialling may be open now.
                let rest = tokio::time::timeout(CUT_INTERVAL, finished());
                if rest.await.is_ok() {
                    return;
                }
            }
        });
    }
}

/// Waits until the network of a pod that is gone is gone too. Nothing can arrive in it any more, so
/// that its connections would wait for acknowledgements until the kernel gives up, a quarter of an
/// hour later.
async fn network_gone(pod: &OwnWorkload) {
    let Some(netns) = &pod.netns else { return std::future::pending().await };
    // It is taken down before the namespace would go, which our sockets hold. Applications and the
    // proxy speak over loopback.
    while netns.is_loopback_up().unwrap_or(true) {
        sleep(NETWORK_INTERVAL).await;
    }
    sleep(LAST_WORDS).await;
}
