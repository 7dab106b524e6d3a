//! Datagrams that come to a gateway: each client has a session, which is judged and routed once,
//! and ends when nothing moves any more.
//!
//! The mesh carries no datagrams. They go to the address of the Service, in clear text, and the
//! node finds the endpoint, as for everybody's. What policies ask of requests or of who the client
//! is cannot be known of them, and is read strictly, as of connections. Nobody waits here: what
//! there is no room for is dropped, as the network may.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use ambit_dataplane::accept::Entrance;
use ambit_dataplane::descriptors::{Direction, Permit};
use ambit_http::Scheme;
use ambit_http::engine::position::{Arrival, Goal, Outside, Position as _};
use ambit_model::authorize::Source;
use ambit_model::http::rule::Destination;
use ambit_model::names::ServiceName;
use ambit_net::drain::Guard;
use ambit_net::socket::normalise;
use bytes::Bytes;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use crate::access_log::Passage;
use crate::hello::ServerName;
use crate::passage;
use crate::position::{Here, Holds};
use crate::refused::Refused;
use crate::thread::Thread;

/// The longest datagram there is.
const DATAGRAM_MAX: usize = 65_535;
/// Datagrams of one client that wait while its session begins, or its server is slow.
const WAITING_MAX: usize = 8;
/// How long a session lasts that the server has not answered, and one that it has.
const IDLE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));
/// How long a socket that is to close still passes on: clients do not learn that it goes.
const LINGER: Duration = Duration::from_secs(5);
/// Pause after the socket could not be read.
const PAUSE: Duration = Duration::from_millis(100);

/// The sessions of one port.
struct Sessions {
    thread: Rc<Thread>,
    port: u16,
    /// What clients send to.
    socket: UdpSocket,
    open: RefCell<HashMap<SocketAddr, mpsc::Sender<Bytes>>>,
    /// Where datagrams of servers are read to.
    buffer: RefCell<Box<[u8]>>,
    entrance: Entrance,
}

/// Serves the datagrams of one port, until it is closed.
pub(crate) async fn serve(thread: Rc<Thread>, socket: UdpSocket, port: u16, mut guard: Guard) {
    let entrance = thread.plane.entrance(&thread.served.own, Direction::Plaintext);
    let buffer = RefCell::new(vec![0; DATAGRAM_MAX].into());
    let open = RefCell::default();
    let sessions = Rc::new(Sessions { thread, port, socket, open, buffer, entrance });
    let mut buffer = vec![0; DATAGRAM_MAX];
    let receiving = async {
        loop {
            match sessions.socket.recv_from(&mut buffer).await {
                Ok((length, client)) => sessions.take(&buffer[..length], client),
                Err(error) => {
                    tracing::debug!(port, %error, "cannot receive; waiting");
                    sleep(PAUSE).await;
                }
            }
        }
    };
    let closing = async {
        guard.draining().await;
        sleep(LINGER).await;
    };
    tokio::select! {
        () = receiving => {}
        () = closing => {}
    }
}

impl Sessions {
    /// Gives a datagram to its client's session, which begins with the first.
    fn take(self: &Rc<Self>, datagram: &[u8], client: SocketAddr) {
        let datagram = Bytes::copy_from_slice(datagram);
        let datagram = match self.open.borrow().get(&client).map(|it| it.try_send(datagram.clone()))
        {
            Some(Ok(()) | Err(mpsc::error::TrySendError::Full(_))) => return,
            Some(Err(mpsc::error::TrySendError::Closed(datagram))) => datagram,
            None => datagram,
        };
        let refused = &self.thread.shared.requests;
        if self.thread.engine.is_closed() {
            return refused.refused("overload");
        }
        let Ok(permit) = self.entrance.take(normalise(client)) else {
            return refused.refused("descriptors");
        };
        let (to, datagrams) = mpsc::channel(WAITING_MAX);
        // It is empty, and somebody will read it.
        drop(to.try_send(datagram));
        self.open.borrow_mut().insert(client, to);
        let session = self.clone().session(client, datagrams, permit);
        drop(self.thread.served.drain.guard().spawn_local(session));
    }

    /// One session from its beginning to its end.
    async fn session(
        self: Rc<Self>,
        client: SocketAddr,
        mut datagrams: mpsc::Receiver<Bytes>,
        permit: Permit,
    ) {
        let here = self.thread.engine.position();
        let gateway = here.own(&here.view()).cloned();
        let from = normalise(client);
        let arrival = Arrival {
            source: Source::new(None, from.ip()),
            workload: None,
            client: from,
            destination: SocketAddr::new(here.instance(), self.port),
            scheme: Scheme::Http,
            outside: Some(Box::new(Outside { gateway, ..Outside::default() })),
        };
        let mut passage = Passage::new(&arrival);
        let ended = self.pass(here, &mut passage, client, &mut datagrams).await;
        match ended {
            Ok(()) => here.record_bytes(&passage, None),
            Err(refused) => here.refuse_datagrams(&passage, &refused),
        }
        // What has come since begins another one.
        drop(datagrams);
        let mut open = self.open.borrow_mut();
        if open.get(&client).is_some_and(mpsc::Sender::is_closed) {
            open.remove(&client);
        }
        drop(permit);
    }

    /// Judges and routes a session, and passes on what moves; an error says why it ends so.
    async fn pass(
        &self,
        here: &Here,
        passage: &mut Passage<'_>,
        client: SocketAddr,
        datagrams: &mut mpsc::Receiver<Bytes>,
    ) -> Result<(), Refused> {
        let arrival = passage.arrival;
        let version = here.policies_version();
        let none = || {
            let text = "the control plane has not described this gateway yet".to_owned();
            Refused::unreachable("unknown_service", text)
        };
        let holds = here.rules(arrival).await.ok_or_else(none)?;
        if let Some(denial) = here.judge_bytes(&holds, arrival, &ServerName::Unknown) {
            return Err(Refused::denied(denial));
        }
        let rule = holds.datagram_rule(arrival.destination.ip());
        let rule = rule.map_err(|none| Refused::unreachable("no_route", none.to_string()))?;
        let drawn = rule.draw(|bound| here.random_below(bound));
        let drawn = drawn.map_err(|none| Refused::unreachable("no_route", none.to_string()))?;
        let server = connect(&holds, drawn).await?;
        let to = server.peer_addr().ok();
        let mut moved = (0, 0);
        let ended = {
            let by = (Goal::Backend(drawn), Some(&rule.origin));
            let mut denied =
                pin!(passage::denied(here, arrival, &ServerName::Unknown, by, version));
            let moving = self.copy(&server, client, datagrams, &mut moved);
            tokio::select! {
                biased;
                denial = &mut denied => Err(Refused::denied(denial)),
                moved = moving => moved.map_err(|error| {
                    let text = format!("the server cannot be reached: {error}");
                    Refused::unreachable("connect", text)
                }),
            }
        };
        (passage.endpoint, passage.bytes) = (to, moved);
        ended
    }

    /// Passes datagrams on, both ways, until none has come for long.
    async fn copy(
        &self,
        server: &UdpSocket,
        client: SocketAddr,
        datagrams: &mut mpsc::Receiver<Bytes>,
        moved: &mut (u64, u64),
    ) -> io::Result<()> {
        let mut idle = IDLE.0;
        let mut deadline = Instant::now() + idle;
        loop {
            tokio::select! {
                readable = server.readable() => {
                    readable?;
                    let mut buffer = self.buffer.borrow_mut();
                    match server.try_recv(&mut buffer) {
                        Ok(length) => {
                            idle = IDLE.1;
                            moved.1 += length as u64;
                            // A full queue drops it, as the network may.
                            drop(self.socket.try_send_to(&buffer[..length], client));
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                        Err(error) => return Err(error),
                    }
                }
                datagram = datagrams.recv() => match datagram {
                    Some(datagram) => moved.0 += server.send(&datagram).await? as u64,
                    None => return Ok(()),
                },
                () = sleep_until(deadline) => return Ok(()),
            }
            deadline = Instant::now() + idle;
        }
    }
}

/// A socket that sends to a Service's address.
async fn connect(holds: &Holds, to: &Destination) -> Result<UdpSocket, Refused> {
    let unreachable = |text: String| Refused::unreachable("connect", text);
    let (name, port) = match to {
        Destination::Service { name, port, .. } => (name, *port),
        Destination::Invalid(why) => return Err(Refused::unreachable("no_route", why.to_string())),
    };
    let address = address(holds, name).ok_or_else(|| {
        unreachable(format!("the Service {name} has no address of its own, which datagrams need"))
    })?;
    let own: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let connecting = async {
        let socket = UdpSocket::bind((own, 0)).await?;
        socket.connect((address, port)).await?;
        Ok::<_, io::Error>(socket)
    };
    connecting.await.map_err(|error| unreachable(format!("no socket to {address}:{port}: {error}")))
}

fn address(holds: &Holds, name: &ServiceName) -> Option<IpAddr> {
    let service = holds.service(name)?;
    service.addresses.iter().find(|it| it.prefix_len.is_none()).map(|it| it.address.ip)
}
