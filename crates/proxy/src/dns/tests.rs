//! Queries through real sockets, with a scripted resolver behind them.

use std::sync::atomic::{AtomicBool, Ordering};

use ambit_dataplane::certificates::{Certificates, Clock};
use ambit_dataplane::demand::Demand;
use ambit_dataplane::descriptors::Shares;
use ambit_model::identity::Identity;
use ambit_model::names::{NetworkAddress, WorkloadName};
use ambit_model::service::{Service, VirtualAddress};
use ambit_model::view::{Change, View};
use ambit_net::namespace::NetNs;
use ambit_net::socket::tcp_listener;
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use tokio::task::LocalSet;

use super::message::tests::{LAST_POINTER, chains_of_pointers};
use super::*;
use crate::config;

/// A pod's DNS server, and where it and its resolver are.
struct World {
    udp: SocketAddr,
    tcp: SocketAddr,
    upstream: UdpSocket,
    upstream_tcp: TcpListener,
    commands: mpsc::Sender<Command>,
    shared: Arc<Shared>,
}

impl World {
    async fn new() -> Self {
        let upstream_tcp = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = upstream_tcp.local_addr().expect("an address");
        let upstream = UdpSocket::bind(address).await.expect("the same port");
        let flag = format!("--dns-upstream={address}");
        let config = config::tests::config(&[&flag], &[]).expect("valid");
        let (certificates, _asks) = Certificates::new(Clock::system());
        let shared = Arc::new(Shared::new(config, certificates, Demand::nothing(), None));
        let mut view = View::default();
        let mut cart = Service::named("shop", "cart.shop.svc.cluster.local");
        let ip = "10.96.0.1".parse().expect("an address");
        let vip = VirtualAddress { address: NetworkAddress::new("", ip), prefix_len: None };
        cart.addresses = vec![vip];
        view.apply(Change::Service(cart));
        shared.mesh.publish(view);
        let (commands, receiver) = mpsc::channel(4);
        tokio::task::spawn_local(run(shared.clone(), receiver));
        let nowhere = address;
        let mut world =
            Self { udp: nowhere, tcp: nowhere, upstream, upstream_tcp, commands, shared };
        (world.udp, world.tcp) = world.add("1", "web").await;
        world
    }

    /// One more pod, and where it is served.
    async fn add(&self, uid: &str, name: &str) -> (SocketAddr, SocketAddr) {
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        let tcp = tcp_listener("127.0.0.1:0".parse().expect("an address"), &Default::default());
        let tcp = tcp.expect("a port");
        let (at_udp, at_tcp) = (udp.local_addr(), tcp.local_addr());
        let name = WorkloadName::new("shop", name);
        let pod = Arc::new(Pod {
            uid: uid.into(),
            shares: Shares::new(&self.shared.mesh.descriptors, &name),
            netns: Some(Arc::new(NetNs::current().expect("this namespace"))),
            outside: None,
            identity: Identity::new("cluster.local", "shop", &*name.name),
            name,
        });
        let sockets = Sockets { udp: vec![udp], tcp: vec![tcp] };
        let add = self.commands.send(Command::Add { pod, sockets }).await;
        assert!(add.is_ok());
        (at_udp.expect("an address"), at_tcp.expect("an address"))
    }

    /// How many queries were served so far.
    fn asked(&self) -> u64 {
        let metrics = self.shared.mesh.metrics.encode().expect("metrics");
        let line = metrics.lines().find_map(|it| it.strip_prefix("istio_dns_requests_total "));
        line.map_or(0, |count| count.parse().expect("a number"))
    }

    async fn ask_udp(&self, query: &[u8]) -> Message {
        let client = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        client.send_to(query, self.udp).await.expect("sent");
        let mut buffer = [0; 4096];
        let received = timeout(Duration::from_secs(10), client.recv(&mut buffer)).await;
        let length = received.expect("in time").expect("an answer");
        Message::from_vec(&buffer[..length]).expect("a message")
    }

    async fn ask_tcp(&self, queries: &[Vec<u8>]) -> Vec<Message> {
        let mut client = TcpStream::connect(self.tcp).await.expect("connected");
        let mut answers = Vec::new();
        for query in queries {
            client.write_u16(query.len() as u16).await.expect("sent");
            client.write_all(query).await.expect("sent");
            let mut answer = vec![0; client.read_u16().await.expect("an answer").into()];
            client.read_exact(&mut answer).await.expect("whole");
            answers.push(Message::from_vec(&answer).expect("a message"));
        }
        answers
    }
}

fn query(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.id = 77;
    message.add_query(Query::query(Name::from_ascii(name).expect("a name"), kind));
    message.to_vec().expect("encoded")
}

/// What a resolver says to a query: no such name.
fn no_such_name(query: &[u8]) -> Vec<u8> {
    message::refusal(query, 3)
}

async fn in_thread<T>(test: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(test).await
}

#[tokio::test]
async fn names_of_the_mesh_are_answered_and_others_handed_on() {
    in_thread(async {
        let world = World::new().await;
        let answer = world.ask_udp(&query("cart.shop.svc.cluster.local.", RecordType::A)).await;
        assert_eq!((answer.metadata.id, answer.answers.len()), (77, 1));
        let asked = query("elsewhere.example.", RecordType::A);
        let resolver = async {
            let mut buffer = [0; 512];
            let (length, peer) = world.upstream.recv_from(&mut buffer).await.expect("asked");
            assert_ne!(buffer[..2], asked[..2], "under another number");
            assert_eq!(buffer[2..length], asked[2..], "otherwise as it came");
            // What answers something else, or nobody asked, does not count.
            let mut wrong = no_such_name(&buffer[..length]);
            wrong[0] = !wrong[0];
            world.upstream.send_to(&wrong, peer).await.expect("sent");
            let right = no_such_name(&buffer[..length]);
            world.upstream.send_to(&right, peer).await.expect("sent");
        };
        let (answer, ()) = tokio::join!(world.ask_udp(&asked), resolver);
        assert_eq!(answer.metadata.id, 77);
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
    })
    .await;
}

#[tokio::test]
async fn made_up_answers_do_not_count() {
    in_thread(async {
        let world = World::new().await;
        let asked = query("elsewhere.example.", RecordType::A);
        let resolver = async {
            let mut buffer = [0; 512];
            let (length, peer) = world.upstream.recv_from(&mut buffer).await.expect("asked");
            let right = no_such_name(&buffer[..length]);
            let send = async |answer: &[u8]| {
                world.upstream.send_to(answer, peer).await.expect("sent");
            };
            // Somebody else knows number and question, and is not whom was asked.
            let other = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
            other.send_to(&message::refusal(&buffer[..length], 5), peer).await.expect("sent");
            let mut others_question = query("bank.example.", RecordType::A);
            others_question[..2].copy_from_slice(&buffer[..2]);
            send(&message::refusal(&others_question, 5)).await;
            let mut of_another_type = query("elsewhere.example.", RecordType::AAAA);
            of_another_type[..2].copy_from_slice(&buffer[..2]);
            send(&message::refusal(&of_another_type, 5)).await;
            // A query, a header that is cut, a question that is cut, nothing, very much of nothing.
            for made_up in [&buffer[..length], &right[..11], &right[..20], b"", &[0xff; 60_000]] {
                send(made_up).await;
            }
            let mut two_questions = right.clone();
            two_questions[5] = 2;
            send(&two_questions).await;
            send(&right).await;
        };
        let (answer, ()) = tokio::join!(world.ask_udp(&asked), resolver);
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
    })
    .await;
}

#[tokio::test]
async fn connections_carry_several_queries() {
    in_thread(async {
        let world = World::new().await;
        let known = query("cart.", RecordType::A);
        let unknown = query("_x._tcp.cart.", RecordType::SRV);
        let resolver = async {
            let (mut stream, _) = world.upstream_tcp.accept().await.expect("asked over TCP");
            let mut asked = vec![0; stream.read_u16().await.expect("a query").into()];
            stream.read_exact(&mut asked).await.expect("whole");
            let answer = no_such_name(&asked);
            stream.write_u16(answer.len() as u16).await.expect("sent");
            stream.write_all(&answer).await.expect("sent");
        };
        let queries = [known.clone(), unknown, known];
        let (answers, ()) = tokio::join!(world.ask_tcp(&queries), resolver);
        let codes: Vec<_> = answers.iter().map(|it| it.metadata.response_code).collect();
        assert_eq!(codes, [ResponseCode::NoError, ResponseCode::NXDomain, ResponseCode::NoError]);
        assert_eq!(answers[0].answers.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_silent_resolver_is_a_failure_in_time() {
    in_thread(async {
        let world = World::new().await;
        let start = Instant::now();
        let answer = world.ask_udp(&query("elsewhere.example.", RecordType::A)).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
        assert!(start.elapsed() < Duration::from_secs(5), "before clients give up");
    })
    .await;
}

#[tokio::test]
async fn too_many_queries_under_way_are_refused_and_the_mesh_is_still_answered() {
    in_thread(async {
        let world = World::new().await;
        let client = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let elsewhere = query("elsewhere.example.", RecordType::A);
        let mut buffer = [0; 4096];
        for _ in 0..MAX_FORWARDED {
            client.send_to(&elsewhere, world.udp).await.expect("sent");
            // Each is under way before the next comes, so that no socket's queue overflows.
            world.upstream.recv_from(&mut buffer).await.expect("asked");
        }
        let answer = world.ask_udp(&elsewhere).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::Refused);
        let answer = world.ask_udp(&query("cart.", RecordType::A)).await;
        assert_eq!(answer.answers.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_is_gone_is_no_longer_served() {
    in_thread(async {
        let world = World::new().await;
        world.ask_udp(&query("cart.", RecordType::A)).await;
        assert!(world.commands.send(Command::Remove { uid: "1".into() }).await.is_ok());
        assert!(world.commands.send(Command::Stop).await.is_ok());
        world.commands.closed().await;
        assert!(TcpStream::connect(world.tcp).await.is_err());
    })
    .await;
}

#[tokio::test]
async fn what_waits_when_the_thread_is_to_stop_is_answered() {
    in_thread(async {
        let world = World::new().await;
        let known = query("cart.", RecordType::A);
        let (udp, mut tcp) = std::net::UdpSocket::bind("127.0.0.1:0")
            .and_then(|udp| Ok((udp, std::net::TcpStream::connect(world.tcp)?)))
            .expect("sockets");
        let length = (known.len() as u16).to_be_bytes();
        std::io::Write::write_all(&mut tcp, &[&length[..], &known].concat()).expect("sent");
        udp.send_to(&known, world.udp).expect("sent");
        // The thread has had no chance to read any of it.
        assert!(world.commands.try_send(Command::Stop).is_ok());
        for socket in [udp.set_nonblocking(true), tcp.set_nonblocking(true)] {
            socket.expect("non-blocking");
        }
        let udp = UdpSocket::from_std(udp).expect("a socket");
        let mut tcp = TcpStream::from_std(tcp).expect("a socket");
        let patience = Duration::from_secs(10);
        let answered = timeout(patience, udp.recv(&mut [0; 512])).await;
        answered.expect("in time").expect("over UDP");
        let answered = timeout(patience, tcp.read_u16()).await;
        answered.expect("in time").expect("over TCP");
    })
    .await;
}

#[tokio::test]
async fn a_socket_that_is_still_to_give_an_answer_takes_queries() {
    in_thread(async {
        let world = World::new().await;
        let elsewhere = query("elsewhere.example.", RecordType::A);
        let resolver = async {
            let mut buffer = [0; 512];
            let (length, peer) = world.upstream.recv_from(&mut buffer).await.expect("asked");
            assert!(world.commands.try_send(Command::Stop).is_ok());
            while world.commands.capacity() < world.commands.max_capacity() {
                tokio::task::yield_now().await;
            }
            let late = world.ask_udp(&query("cart.", RecordType::A)).await;
            assert_eq!(late.answers.len(), 1);
            let answer = no_such_name(&buffer[..length]);
            world.upstream.send_to(&answer, peer).await.expect("sent");
        };
        let (answer, ()) = tokio::join!(world.ask_udp(&elsewhere), resolver);
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
    })
    .await;
}

/// Bytes as they are sent over TCP.
fn framed(query: &[u8]) -> Vec<u8> {
    [&(query.len() as u16).to_be_bytes()[..], query].concat()
}

/// Sends this again and again by one connection after the other, in a thread.
fn flood(
    server: SocketAddr,
    bytes: Vec<u8>,
    is_over: Arc<AtomicBool>,
) -> std::thread::JoinHandle<()> {
    use std::io::{Read as _, Write as _};

    let moment = Some(Duration::from_millis(2));
    std::thread::spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            let Ok(mut client) = std::net::TcpStream::connect(server) else { continue };
            client.set_read_timeout(moment).expect("a limit");
            client.set_write_timeout(Some(Duration::from_millis(500))).expect("a limit");
            while !is_over.load(Ordering::Relaxed) && client.write_all(&bytes).is_ok() {
                // Answers are thrown away.
                if matches!(client.read(&mut [0; 4096]), Ok(0)) {
                    break;
                }
            }
        }
    })
}

#[tokio::test]
async fn a_pod_whose_queries_are_made_to_cost_keeps_no_neighbour_waiting() {
    in_thread(async {
        let world = World::new().await;
        let (_, greedy) = world.add("2", "greedy").await;
        let is_over = Arc::new(AtomicBool::new(false));
        let long = chains_of_pointers(LAST_POINTER, usize::from(u16::MAX));
        let short = chains_of_pointers(MAX_TCP_QUERY_BYTES / 2, MAX_TCP_QUERY_BYTES);
        let floods: Vec<_> = (0..32)
            .map(|at| {
                let kind = if at % 2 == 0 { &long } else { &short };
                flood(greedy, framed(&kind[at / 2 % kind.len()]), is_over.clone())
            })
            .collect();
        let known = query("cart.", RecordType::A);
        // All of them are under way.
        while world.asked() < 32 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut slowest = Duration::ZERO;
        for _ in 0..30 {
            let start = Instant::now();
            assert_eq!(world.ask_udp(&known).await.answers.len(), 1);
            assert_eq!(world.ask_tcp(std::slice::from_ref(&known)).await[0].answers.len(), 1);
            slowest = slowest.max(start.elapsed());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        println!("{} queries beside, slowest exchange {slowest:?}", world.asked());
        assert!(slowest < Duration::from_secs(1), "{slowest:?}");
        is_over.store(true, Ordering::Relaxed);
        floods.into_iter().for_each(|it| it.join().expect("it ends"));
    })
    .await;
}

#[tokio::test]
async fn pods_take_turns_however_many_connections_each_has() {
    in_thread(async {
        let world = World::new().await;
        let (_, greedy) = world.add("2", "greedy").await;
        let known = query("cart.", RecordType::A);
        let mut connections = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            let client = TcpStream::connect(greedy).await.expect("connected");
            connections.push(client.into_std().expect("a socket"));
        }
        let before = world.asked();
        for client in &mut connections {
            // Not to wait is not to let the thread begin.
            std::io::Write::write_all(client, &framed(&known).repeat(100)).expect("sent");
        }
        for _ in 0..50 {
            assert_eq!(world.ask_udp(&known).await.answers.len(), 1);
        }
        let beside = world.asked() - before - 50;
        println!("{beside} queries of the other pod");
        // A few rounds for each exchange; the other pod has one turn in each.
        assert!(beside < 50 * 6, "{beside}");
        // And the other pod is still answered.
        for client in connections {
            let mut client = TcpStream::from_std(client).expect("a socket");
            for _ in 0..100 {
                let length = client.read_u16().await.expect("an answer");
                client.read_exact(&mut vec![0; length.into()]).await.expect("whole");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn silent_connections_are_bounded_and_concern_their_own_pod_alone() {
    in_thread(async {
        let world = World::new().await;
        let (udp, silent) = world.add("2", "silent").await;
        let mut connections = Vec::new();
        for _ in 0..100 {
            connections.push(TcpStream::connect(silent).await.expect("connected"));
        }
        let mut closed = 0;
        for client in &mut connections {
            let heard = timeout(Duration::from_millis(20), client.read_u8()).await;
            closed += usize::from(heard.is_ok_and(|it| it.is_err()));
        }
        assert_eq!((connections.len() - closed, closed), (MAX_CONNECTIONS, 36));
        let (used, _) = world.shared.mesh.descriptors.used();
        assert_eq!(used, 2 * MAX_CONNECTIONS, "one for each, and one for the resolver's");
        let known = query("cart.", RecordType::A);
        assert_eq!(world.ask_tcp(std::slice::from_ref(&known)).await.len(), 1);
        assert_eq!(World { udp, ..world }.ask_udp(&known).await.answers.len(), 1);
        let last = connections.iter_mut().rfind(|it| it.try_read(&mut [0]).is_err());
        tokio::time::pause();
        let ended = timeout(IDLE_LIMIT + Duration::from_secs(5), last.expect("open").read_u8());
        assert!(ended.await.expect("in time").is_err(), "silence ends");
    })
    .await;
}

#[tokio::test]
async fn a_query_that_is_too_long_ends_its_connection() {
    in_thread(async {
        let world = World::new().await;
        let known = query("cart.", RecordType::A);
        for (padding, is_answered) in [(MAX_TCP_QUERY_BYTES - known.len(), true), (4096, false)] {
            let mut client = TcpStream::connect(world.tcp).await.expect("connected");
            let padded = [&known[..], &vec![0; padding]].concat();
            client.write_all(&framed(&padded)).await.expect("sent");
            let heard = timeout(Duration::from_secs(5), client.read_u16()).await;
            assert_eq!(heard.expect("in time").is_ok(), is_answered);
        }
    })
    .await;
}

#[test]
fn the_fuzzer_takes_what_clients_send() {
    for kind in [RecordType::A, RecordType::AAAA, RecordType::TXT] {
        let bytes = query("cart.shop.svc.cluster.local.shop.svc.cluster.local.", kind);
        (0..=bytes.len()).for_each(|end| fuzz(&bytes[..end]));
    }
}
