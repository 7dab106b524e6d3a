//! UDP ports of the host: each client has a session, with a socket of its own towards one pod.
//!
//! UDP has no connections, so nothing says when a client is done. A session ends when it was silent
//! for long, when its pod takes no more traffic, or when another client needs its place: all ports
//! together have a bounded number of sessions. No datagram waits here. The kernel's buffers hold
//! them, and what does not fit there is lost, as UDP may be. Answers go to the address that has
//! asked, and are taken from the pod alone: a session's socket is connected.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ambit_log::Throttle;
use tokio::net::UdpSocket;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep, sleep_until};

use crate::accepting::ACCEPT_PAUSE;

/// Sessions of all ports together, if the process may open a socket for each.
const SESSIONS_MAX: usize = 1024;
/// Of the files that the process may open, one of so many is for a session.
const FILES_FOR_ONE: usize = 8;
/// After so long without a datagram in either direction a session ends.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// The same for at most one question with one answer, such as a query of DNS. The kernel's
/// connection tracking keeps those for half a minute too.
const BRIEF_IDLE_MAX: Duration = Duration::from_secs(30);
/// A client that sends nothing for so long may have gone: its session ends, whatever the pod sends.
const CLIENT_IDLE_MAX: Duration = Duration::from_secs(300);
/// After a failure to read answers, those of this session wait for so long.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);
/// The largest there are.
const DATAGRAM_MAX_BYTES: usize = 65_535;
/// Clients may send as much as they like.
static FAILURES: Throttle = Throttle::new("about datagrams from the host", 5);

/// The pods that take what comes to a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoints {
    /// Where they take it.
    pub(super) all: Vec<SocketAddr>,
    /// All sessions from one address have the same.
    pub(super) is_sticky: bool,
}

impl Endpoints {
    /// The one for a new session.
    fn choose(&self, client: IpAddr, turn: usize) -> Option<SocketAddr> {
        let chosen = match self.is_sticky {
            true => {
                let mut hasher = DefaultHasher::new();
                client.hash(&mut hasher);
                hasher.finish() as usize
            }
            false => turn,
        };
        self.all.get(chosen % self.all.len().max(1)).copied()
    }
}

/// Where a port leads now, or why nowhere.
pub(super) type Lead = Result<Endpoints, String>;

/// Carries what comes to a socket of the host to where the port leads, and the answers back, until
/// nobody says any more where it leads. `open` opens a socket that is connected to a pod.
pub(super) async fn carry(
    sessions: Arc<Sessions>,
    host: UdpSocket,
    mut lead: watch::Receiver<Lead>,
    open: impl Fn(SocketAddr) -> io::Result<std::net::UdpSocket>,
) -> io::Result<()> {
    let at = host.local_addr()?;
    let answer = Mutex::new(vec![0; DATAGRAM_MAX_BYTES].into());
    let port = Arc::new(Port { host, at, answer });
    let (mut buffer, mut turn) = (vec![0; DATAGRAM_MAX_BYTES], 0_usize);
    loop {
        let received = tokio::select! {
            biased;
            changed = lead.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                sessions.keep(at, &lead.borrow_and_update());
                continue;
            }
            received = port.host.recv_from(&mut buffer) => received,
        };
        let (length, client) = match received {
            // A client without a port cannot be answered.
            Ok((_, client)) if client.port() == 0 => continue,
            Ok(received) => received,
            Err(error) => {
                tracing::warn!(%error, %at, "cannot take datagrams; waiting");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let session = match sessions.of((at, client)) {
            Some(session) => Ok(session),
            None => {
                turn = turn.wrapping_add(1);
                let chosen = choose(&lead.borrow(), client.ip(), turn);
                sessions.start(&port, client, chosen, &open).await
            }
        };
        if let Err(why) = session.and_then(|it| it.send(&buffer[..length])) {
            tell(at, &why);
        }
    }
}

fn choose(lead: &Lead, client: IpAddr, turn: usize) -> Result<SocketAddr, String> {
    let endpoints = lead.as_ref().map_err(Clone::clone)?;
    endpoints.choose(client, turn).ok_or_else(|| "no pod is ready".to_owned())
}

/// Says that a datagram is lost.
fn tell(at: SocketAddr, why: &str) {
    if FAILURES.admits(std::time::Instant::now()) {
        tracing::warn!(why, %at, "a datagram from the host came to nothing");
    }
}

/// A port of the host.
struct Port {
    host: UdpSocket,
    at: SocketAddr,
    /// For one answer, on its way from one socket to the other.
    answer: Mutex<Box<[u8]>>,
}

impl Port {
    /// Passes on one answer that is there.
    fn pass_back(&self, from: &UdpSocket, client: SocketAddr) -> io::Result<()> {
        let mut buffer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let length = from.try_recv(&mut buffer)?;
        if let Err(error) = self.host.try_send_to(&buffer[..length], client) {
            tracing::debug!(%error, %client, "an answer is lost");
        }
        Ok(())
    }
}

/// The address of the port, and that of its client.
type Between = (SocketAddr, SocketAddr);

/// The sessions of all ports.
pub(super) struct Sessions {
    /// For the sockets that are open: tasks of sessions that were ended close them a little later.
    room: Arc<Semaphore>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    all: HashMap<Between, Entry>,
    /// In the order in which their clients were heard last.
    heard: BTreeMap<u64, Between>,
    latest: u64,
}

/// A session, whose task ends when this is dropped.
struct Entry {
    session: Arc<Session>,
    heard: u64,
    answering: AbortHandle,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.answering.abort();
    }
}

impl Table {
    fn next(&mut self) -> u64 {
        self.latest += 1;
        self.latest
    }

    fn remove(&mut self, between: Between) {
        if let Some(entry) = self.all.remove(&between) {
            self.heard.remove(&entry.heard);
        }
    }
}

impl Sessions {
    /// For a process that may open so many files.
    pub(super) fn new(files: usize) -> Arc<Self> {
        Self::of_at_most((files / FILES_FOR_ONE).clamp(1, SESSIONS_MAX))
    }

    fn of_at_most(max: usize) -> Arc<Self> {
        Arc::new(Self { room: Arc::new(Semaphore::new(max)), table: Mutex::default() })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session of a client that is heard now, if it has one.
    fn of(&self, between: Between) -> Option<Arc<Session>> {
        let table = &mut *self.table();
        let next = table.next();
        let entry = table.all.get_mut(&between)?;
        table.heard.remove(&entry.heard);
        table.heard.insert(next, between);
        entry.heard = next;
        Some(Arc::clone(&entry.session))
    }

    /// Starts one for a client that has none.
    async fn start(
        self: &Arc<Self>,
        port: &Arc<Port>,
        client: SocketAddr,
        endpoint: Result<SocketAddr, String>,
        open: impl Fn(SocketAddr) -> io::Result<std::net::UdpSocket>,
    ) -> Result<Arc<Session>, String> {
        let endpoint = endpoint?;
        let room = self.make_room().await.ok_or("there are too many sessions")?;
        let failed = |error: io::Error| format!("no socket towards {endpoint}: {error}");
        let socket = open(endpoint).and_then(UdpSocket::from_std).map_err(failed)?;
        // The runtime does not know it before.
        socket.writable().await.map_err(failed)?;
        let passed = Mutex::new(Passed::now());
        let session = Arc::new(Session { client, endpoint, socket, passed, _room: room });
        let (sessions, own, port_of) = (Arc::clone(self), Arc::clone(&session), Arc::clone(port));
        let answering = tokio::spawn(async move {
            own.answer(&port_of).await;
            sessions.forget(port_of.at, &own);
        });
        let between = (port.at, client);
        let table = &mut *self.table();
        let heard = table.next();
        let answering = answering.abort_handle();
        table.heard.insert(heard, between);
        table.all.insert(between, Entry { session: Arc::clone(&session), heard, answering });
        Ok(session)
    }

    /// Room for one more: if there is none, the client that was heard longest ago gives its own.
    async fn make_room(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(room) = Arc::clone(&self.room).try_acquire_owned() {
            return Some(room);
        }
        {
            let mut table = self.table();
            let (_, oldest) = table.heard.first_key_value()?;
            let oldest = *oldest;
            table.remove(oldest);
        }
        // As soon as its task is gone.
        Arc::clone(&self.room).acquire_owned().await.ok()
    }

    /// Ends the sessions of a port whose pods are not among these.
    fn keep(&self, at: SocketAddr, lead: &Lead) {
        let there =
            |endpoint: &SocketAddr| lead.as_ref().is_ok_and(|lead| lead.all.contains(endpoint));
        let table = &mut *self.table();
        let Table { all, heard, .. } = table;
        all.retain(|(port, _), entry| {
            let stays = *port != at || there(&entry.session.endpoint);
            if !stays {
                heard.remove(&entry.heard);
            }
            stays
        });
    }

    /// Removes a session that has ended.
    fn forget(&self, at: SocketAddr, session: &Arc<Session>) {
        let (mut table, between) = (self.table(), (at, session.client));
        let its = table.all.get(&between);
        if its.is_some_and(|it| Arc::ptr_eq(&it.session, session)) {
            table.remove(between);
        }
    }
}

/// What goes on between a client and a pod.
struct Session {
    client: SocketAddr,
    endpoint: SocketAddr,
    socket: UdpSocket,
    passed: Mutex<Passed>,
    _room: OwnedSemaphorePermit,
}

/// What has passed in a session.
#[derive(Clone, Copy)]
struct Passed {
    questions: u64,
    answers: u64,
    /// When the client was heard last.
    heard: Instant,
    /// When a datagram passed last, in either direction.
    last: Instant,
}

impl Passed {
    fn now() -> Self {
        let now = Instant::now();
        Self { questions: 0, answers: 0, heard: now, last: now }
    }

    /// When the session ends, if nothing more passes.
    fn end(&self) -> Instant {
        let is_brief = self.questions <= 1 && self.answers <= 1;
        let idle = if is_brief { BRIEF_IDLE_MAX } else { IDLE_MAX };
        (self.last + idle).min(self.heard + CLIENT_IDLE_MAX)
    }
}

impl Session {
    fn passed(&self) -> MutexGuard<'_, Passed> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a datagram to the pod.
    fn send(&self, datagram: &[u8]) -> Result<(), String> {
        {
            let (mut passed, now) = (self.passed(), Instant::now());
            passed.questions += 1;
            (passed.heard, passed.last) = (now, now);
        }
        let send = || self.socket.try_send(datagram);
        // The first may return what became of an earlier one.
        let sent = send().or_else(|_| send());
        sent.map(drop).map_err(|error| format!("sent to {}: {error}", self.endpoint))
    }

    /// Passes answers back until there is nothing for long.
    async fn answer(&self, port: &Port) {
        loop {
            // Reading a socket that is ready costs nothing of the task's budget. Without this, a
            // pod that floods would let nothing else run on this thread.
            consume_budget().await;
            let end = self.passed().end();
            if end <= Instant::now() {
                return;
            }
            let passed = tokio::select! {
                ready = self.socket.readable() => {
                    ready.and_then(|()| port.pass_back(&self.socket, self.client))
                }
                () = sleep_until(end) => continue,
            };
            match passed {
                Ok(()) => {
                    let mut passed = self.passed();
                    passed.answers += 1;
                    passed.last = Instant::now();
                }
                // The kernel has thrown away what it announced.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    tell(port.at, &format!("answers of {}: {error}", self.endpoint));
                    sleep(FAILURE_PAUSE).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU16, Ordering};

    use tokio::runtime::Handle;
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::*;

    thread_local! {
        /// An address of this test's own: another one would take a port that is closed here.
        static LOCAL: SocketAddr = {
            static USED: AtomicU16 = AtomicU16::new(1);
            let [high, low] = USED.fetch_add(1, Ordering::Relaxed).to_be_bytes();
            SocketAddr::from(([127, 77, high, low], 0))
        };
    }
    /// Longer than anything takes here.
    const LONG: Duration = Duration::from_secs(20);

    async fn socket() -> UdpSocket {
        UdpSocket::bind(LOCAL.with(|it| *it)).await.expect("a port")
    }

    fn open(to: SocketAddr) -> io::Result<std::net::UdpSocket> {
        let socket = std::net::UdpSocket::bind(LOCAL.with(|it| *it))?;
        socket.set_nonblocking(true)?;
        socket.connect(to)?;
        Ok(socket)
    }

    fn connected(to: SocketAddr) -> UdpSocket {
        UdpSocket::from_std(open(to).expect("a port")).expect("a runtime")
    }

    fn lead(all: &[&UdpSocket]) -> Lead {
        let all = all.iter().map(|it| it.local_addr().expect("it is bound")).collect();
        Ok(Endpoints { all, is_sticky: false })
    }

    async fn receive(socket: &UdpSocket) -> (String, SocketAddr) {
        let mut buffer = [0; 64];
        let received = timeout(LONG, socket.recv_from(&mut buffer)).await;
        let (length, from) = received.expect("it comes").expect("it is whole");
        (String::from_utf8_lossy(&buffer[..length]).into_owned(), from)
    }

    /// Whether a socket of a session is closed by now.
    fn is_closed(source: SocketAddr) -> bool {
        std::net::UdpSocket::bind(source).is_ok()
    }

    async fn wait(what: &str, is_so: impl Fn() -> bool) {
        let waiting = async {
            while !is_so() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LONG, waiting).await.expect(what);
    }

    /// A port that carries.
    struct Carrying {
        at: SocketAddr,
        lead: watch::Sender<Lead>,
        sessions: Arc<Sessions>,
        task: JoinHandle<io::Result<()>>,
    }

    impl Carrying {
        async fn to(first: Lead, max: usize) -> Self {
            let host = socket().await;
            let (at, sessions) = (host.local_addr().unwrap(), Sessions::of_at_most(max));
            let (lead, leads) = watch::channel(first);
            let task = tokio::spawn(carry(Arc::clone(&sessions), host, leads, open));
            Self { at, lead, sessions, task }
        }

        fn leads(&self, elsewhere: Lead) {
            drop(self.lead.send_replace(elsewhere));
        }
    }

    impl Drop for Carrying {
        fn drop(&mut self) {
            self.task.abort();
        }
    }

    #[tokio::test]
    async fn answers_come_back_to_the_client_that_has_asked() {
        let service = socket().await;
        let carrying = Carrying::to(lead(&[&service]), 8).await;
        let clients = [connected(carrying.at), connected(carrying.at)];
        let mut sources = Vec::new();
        for (client, said) in clients.iter().zip(["a", "b"]) {
            client.send(said.as_bytes()).await.unwrap();
            let (heard, source) = receive(&service).await;
            assert_eq!(heard, said);
            sources.push(source);
        }
        assert_ne!(sources[0], sources[1], "each has its own session");
        // A stranger guesses the port of a session.
        socket().await.send_to(b"forged", sources[0]).await.unwrap();
        for (source, said) in sources.iter().zip(["to a", "to b"]) {
            service.send_to(said.as_bytes(), source).await.unwrap();
        }
        for (client, expected) in clients.iter().zip(["to a", "to b"]) {
            assert_eq!(receive(client).await, (expected.to_owned(), carrying.at));
        }
        // Empty ones pass too.
        clients[0].send(b"").await.unwrap();
        assert_eq!(receive(&service).await, (String::new(), sources[0]), "the same session");
    }

    #[tokio::test]
    async fn a_session_stays_with_its_pod_and_ends_with_it() {
        let (first, second) = (socket().await, socket().await);
        let carrying = Carrying::to(lead(&[&first]), 8).await;
        let client = connected(carrying.at);
        client.send(b"a").await.unwrap();
        let (_, source) = receive(&first).await;
        carrying.leads(lead(&[&second, &first]));
        client.send(b"b").await.unwrap();
        assert_eq!(receive(&first).await, ("b".to_owned(), source), "it is still there");
        carrying.leads(lead(&[&second]));
        wait("it ends though nobody sends", || is_closed(source)).await;
        client.send(b"c").await.unwrap();
        let (heard, source) = receive(&second).await;
        assert_eq!(heard, "c");
        carrying.leads(Err("there is no Service shop/dns".to_owned()));
        wait("nothing is where the port leads", || is_closed(source)).await;
        carrying.leads(lead(&[&second]));
        client.send(b"d").await.unwrap();
        assert_eq!(receive(&second).await.0, "d");
    }

    #[tokio::test]
    async fn a_change_of_one_port_leaves_the_sessions_of_another() {
        let service = socket().await;
        let sessions = Sessions::of_at_most(8);
        let mut all = Vec::new();
        for host in [socket().await, socket().await] {
            let at = host.local_addr().unwrap();
            let answer = Mutex::new(vec![0; DATAGRAM_MAX_BYTES].into());
            let port = Arc::new(Port { host, at, answer });
            let endpoint = Ok(service.local_addr().unwrap());
            all.push(sessions.start(&port, at, endpoint, open).await.unwrap());
        }
        sessions.keep(all[0].client, &lead(&[]));
        let left: Vec<_> = sessions.table().all.keys().map(|(at, _)| *at).collect();
        assert_eq!(left, [all[1].client]);
        assert_eq!(sessions.table().heard.len(), 1);
    }

    #[tokio::test]
    async fn the_client_that_was_silent_longest_makes_room() {
        let service = socket().await;
        let carrying = Carrying::to(lead(&[&service]), 2).await;
        let clients = [(); 3].map(|()| connected(carrying.at));
        let ask = async |client: usize| {
            clients[client].send(b"a").await.unwrap();
            receive(&service).await.1
        };
        let (first, second) = (ask(0).await, ask(1).await);
        assert_eq!(ask(0).await, first);
        let third = ask(2).await;
        assert!(is_closed(second) && !is_closed(first) && !is_closed(third), "0 was heard after 1");
        // What a pod sends does not count: the client may be gone.
        service.send_to(b"b", first).await.unwrap();
        assert_eq!(receive(&clients[0]).await.0, "b");
        ask(1).await;
        assert!(is_closed(first) && !is_closed(third));
    }

    #[tokio::test]
    async fn sockets_and_tasks_are_bounded_whatever_clients_send() {
        const MAX: usize = 4;
        let service = socket().await;
        let carrying = Carrying::to(lead(&[&service]), MAX).await;
        let tasks_before = Handle::current().metrics().num_alive_tasks();
        let (mut clients, mut sources) = (Vec::new(), Vec::new());
        for _ in 0..10 * MAX {
            let client = connected(carrying.at);
            client.send(b"").await.unwrap();
            clients.push(client);
            sources.push(receive(&service).await.1);
            let tasks = Handle::current().metrics().num_alive_tasks() - tasks_before;
            assert!(tasks <= MAX, "{tasks} tasks");
        }
        let open = sources.iter().filter(|it| !is_closed(**it)).count();
        assert_eq!(open, MAX);
        assert_eq!(carrying.sessions.table().heard.len(), MAX);
    }

    #[test]
    fn sessions_leave_files_for_others() {
        let max = |files| Sessions::new(files).room.available_permits();
        assert_eq!([max(0), max(256), max(1024), max(1 << 20)], [1, 32, 128, SESSIONS_MAX]);
    }

    #[tokio::test]
    async fn a_pod_that_floods_leaves_time_for_others() {
        /// More than a task may do at a time, and less than a socket holds.
        const ANSWERS: u64 = 150;
        let service = socket().await;
        let carrying = Carrying::to(lead(&[&service]), 2).await;
        let client = connected(carrying.at);
        client.send(b"a").await.unwrap();
        let source = receive(&service).await.1;
        let session = carrying.sessions.of((carrying.at, client.local_addr().unwrap()));
        let session = session.expect("it goes on");
        // Its task does not run meanwhile: nothing here waits.
        (0..ANSWERS).for_each(|_| drop(service.try_send_to(b"b", source)));
        let passed = || session.passed().answers;
        while passed() == 0 {
            tokio::task::yield_now().await;
        }
        let before = passed();
        assert!(before < ANSWERS, "this task went on only after all of them");
        wait("the others follow", || passed() > before).await;
    }

    #[tokio::test]
    async fn a_refusal_costs_no_later_datagram() {
        let service = socket().await;
        let at = service.local_addr().unwrap();
        let carrying = Carrying::to(lead(&[&service]), 2).await;
        let client = connected(carrying.at);
        client.send(b"a").await.unwrap();
        let (_, source) = receive(&service).await;
        drop(service);
        let session = carrying.sessions.of((carrying.at, client.local_addr().unwrap()));
        let session = session.expect("it goes on");
        // Nobody reads the refusal in between.
        session.send(b"lost").unwrap();
        let service = UdpSocket::bind(at).await.unwrap();
        session.send(b"b").unwrap();
        assert_eq!(receive(&service).await, ("b".to_owned(), source));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_when_it_was_silent_for_long() {
        let service = socket().await;
        for (questions, expected) in [(1, BRIEF_IDLE_MAX), (2, IDLE_MAX)] {
            let (host, sessions) = (socket().await, Sessions::of_at_most(1));
            let at = host.local_addr().unwrap();
            let port = Arc::new(Port { host, at, answer: Mutex::new(vec![0; 64].into()) });
            let endpoint = Ok(service.local_addr().unwrap());
            let session = sessions.start(&port, at, endpoint, open).await.unwrap();
            // A pod that answers nothing is asked in the same session.
            sleep(BRIEF_IDLE_MAX - Duration::from_secs(1)).await;
            assert!(sessions.of((at, at)).is_some());
            (0..questions).for_each(|_| session.send(b"a").unwrap());
            drop(session);
            let start = Instant::now();
            while !sessions.table().all.is_empty() {
                sleep(Duration::from_secs(1)).await;
            }
            assert!((expected..=expected + Duration::from_secs(1)).contains(&start.elapsed()));
            assert_eq!(sessions.room.available_permits(), 1, "its socket is closed");
        }
    }

    #[tokio::test]
    async fn answers_to_a_client_that_has_gone_end() {
        let passed = Passed::now();
        let passed = Passed { questions: 2, answers: 99, ..passed };
        let at = |last: u64| Passed { last: passed.heard + Duration::from_secs(last), ..passed };
        assert_eq!(at(100).end(), passed.heard + Duration::from_secs(100) + IDLE_MAX);
        assert_eq!(at(299).end(), passed.heard + CLIENT_IDLE_MAX);
    }

    #[test]
    fn sessions_are_spread_unless_clients_stay_with_their_pod() {
        let pods: Vec<SocketAddr> = (1..=3).map(|it| ([10, 0, 0, it], 53).into()).collect();
        let chosen = |is_sticky: bool| -> Vec<SocketAddr> {
            let endpoints = Endpoints { all: pods.clone(), is_sticky };
            (0..3).filter_map(|turn| endpoints.choose([127, 0, 0, 1].into(), turn)).collect()
        };
        assert_eq!(chosen(false), pods);
        let sticky = chosen(true);
        assert!(sticky.iter().all(|it| *it == sticky[0]) && sticky.len() == 3);
        let none = Endpoints { all: Vec::new(), is_sticky: false };
        let client = [127, 0, 0, 1].into();
        assert_eq!(choose(&Ok(none), client, 1), Err("no pod is ready".to_owned()));
        let nowhere = "there is no Service shop/dns".to_owned();
        assert_eq!(choose(&Err(nowhere.clone()), client, 1), Err(nowhere));
    }
}
