//! Joined sockets against the real kernel: order, bounds, ends, cuts.

use std::io::{ErrorKind, Read, Seek, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use ambit_net::copy::{CopyError, Flow, SocketEnd, copy};
use ambit_net::kernel_path::{KernelPath, KernelPathError, Sender};
use ambit_net::socket::set_linger_reset;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{sleep, timeout};

use crate::world::{PATIENCE, is_in_a_user_namespace, lonely, privileged_tests};

/// More than a sender may have under way to a reader that has stopped: the window, and the buffers
/// of two TCP connections.
const MAX_UNDER_WAY: usize = 32 << 20;
/// Room for many lanes.
const BUDGET_BYTES: u64 = 256 << 20;
/// Room for windows of 1 MiB and less.
const SMALL_BUDGET_BYTES: u64 = 48 << 20;
/// How often both applications say a byte first, so that both directions are joined.
const WARM_UP: u64 = 32;

/// What both applications have of a connection.
struct Applications {
    client: TcpStream,
    server: TcpStream,
}

/// How the proxy saw it end.
struct Carried {
    result: Result<(), CopyError>,
    to_server: u64,
    to_client: u64,
    past: u64,
}

/// Lets two applications talk while a proxy carries their connection, with a way past it.
/// `meanwhile` may cut it.
fn carry(
    path: &KernelPath,
    applications: impl AsyncFnOnce(Applications) + Send + 'static,
    meanwhile: impl AsyncFnOnce(&Flow),
) -> Carried {
    let (client, accepted) = pair();
    let (dialled, server) = pair();
    let way = |from: &std::net::TcpStream| {
        let (local, remote) = (from.local_addr().unwrap(), from.peer_addr().unwrap());
        Rc::new(path.shortcut(Sender { local, remote, netns: None }))
    };
    let (there, back) = (way(&client), way(&server));
    let talk = thread::spawn(move || {
        runtime().block_on(async {
            let (client, server) = (watched(client), watched(server));
            let talk = applications(Applications { client, server });
            timeout(2 * PATIENCE, talk).await.expect("the applications have finished");
        });
    });
    let carried = runtime().block_on(async {
        let flow = Flow::new();
        flow.count_past(there.clone(), back.clone());
        let mut client = SocketEnd::new(watched(accepted)).past(back.clone());
        let mut server = SocketEnd::new(watched(dialled)).past(there.clone());
        let carry = async {
            let result = copy(&mut client, &mut server, &flow).await;
            drop((client, server));
            result
        };
        let (result, ()) = tokio::join!(carry, meanwhile(&flow));
        let past = there.bytes() + back.bytes();
        Carried { result, to_server: flow.to_server(), to_client: flow.to_client(), past }
    });
    talk.join().unwrap();
    carried
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn watched(stream: std::net::TcpStream) -> TcpStream {
    TcpStream::from_std(stream).unwrap()
}

fn pair() -> (std::net::TcpStream, std::net::TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let dialled = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    for stream in [&dialled, &accepted] {
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
    }
    (dialled, accepted)
}

/// Runs a test in a namespace of its own; in a user namespace, the kernel must have refused.
fn alone(test: impl FnOnce(&KernelPath)) {
    alone_with(BUDGET_BYTES, test);
}

fn alone_with(budget_bytes: u64, test: impl FnOnce(&KernelPath)) {
    let test = || match KernelPath::open(budget_bytes) {
        Ok(path) => {
            test(&path);
            assert_eq!(path.joined(), 0, "every lane was closed");
        }
        Err(KernelPathError::Map { .. }) if is_in_a_user_namespace() => {}
        Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    };
    lonely().run(test).unwrap();
}

async fn warm_up(Applications { client, server }: &mut Applications) {
    for _ in 0..WARM_UP {
        client.write_all(b"?").await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'?');
        server.write_all(b"!").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'!');
    }
}

/// Bytes that differ from place to place.
fn pattern(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

/// Writes the pattern in pieces of changing size, some of them after a pause.
async fn say(mut stream: OwnedWriteHalf, length: usize, mut seed: u32) -> OwnedWriteHalf {
    let mut at = 0;
    while at < length {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let piece = (1 + (seed >> 8) as usize % 100_000).min(length - at);
        stream.write_all(&pattern(at, piece)).await.unwrap();
        at += piece;
        if seed.is_multiple_of(16) {
            sleep(Duration::from_millis(1)).await;
        }
    }
    stream
}

/// Reads the pattern, with a pause after every so many bytes.
async fn hear(mut stream: OwnedReadHalf, length: usize, pause_after: usize) -> OwnedReadHalf {
    let (mut at, mut room) = (0, vec![0; 70_000]);
    while at < length {
        let bytes = stream.read(&mut room).await.unwrap();
        assert_ne!(bytes, 0, "ended after {at} of {length}");
        assert!(room[..bytes] == pattern(at, bytes), "other bytes between {at} and {}", at + bytes);
        if at / pause_after != (at + bytes) / pause_after {
            sleep(Duration::from_millis(15)).await;
        }
        at += bytes;
    }
    stream
}

/// Both say so much at once. What went past the proxy.
fn exchange(path: &KernelPath, length: usize, pause_after: usize) -> u64 {
    let carried = carry(
        path,
        async move |mut both| {
            warm_up(&mut both).await;
            let (client_hears, client_says) = both.client.into_split();
            let (server_hears, server_says) = both.server.into_split();
            let _open = tokio::join!(
                say(client_says, length, 1),
                say(server_says, length, 2),
                hear(client_hears, length, pause_after),
                hear(server_hears, length, pause_after),
            );
        },
        nothing,
    );
    carried.result.unwrap();
    assert_eq!(carried.to_server, length as u64 + WARM_UP);
    assert_eq!(carried.to_client, length as u64 + WARM_UP);
    println!("past the proxy: {} of {}", carried.past, 2 * length);
    carried.past
}

async fn nothing(_: &Flow) {}

privileged_tests! {
    fn every_byte_arrives_once_and_in_order() {
        const BYTES: usize = 30 << 20;
        alone(|path| {
            let past = exchange(path, BYTES, usize::MAX);
            assert!(past > BYTES as u64 / 2, "{past} bytes went past");
        });
    }

    /// Readers that pause fill the window again and again: some bytes go over TCP, some past.
    fn bytes_over_tcp_and_past_the_proxy_keep_their_order() {
        const BYTES: usize = 30 << 20;
        alone_with(SMALL_BUDGET_BYTES, |path| {
            let past = exchange(path, BYTES, 2_500_000);
            assert!(past > 1 << 20, "{past} bytes went past");
            assert!(past < 2 * BYTES as u64 - (1 << 20), "{past} bytes went past, nearly all");
        });
    }

    /// Senders that never pause are joined in the middle of a message now and then.
    fn a_stream_that_is_joined_keeps_its_order() {
        const PIECE: usize = 100;
        const BYTES: usize = 2000 * PIECE;
        let applications = async |both: Applications| {
            let (mut client, server) = (both.client, both.server.into_split());
            let saying = async {
                for at in (0..BYTES).step_by(PIECE) {
                    client.write_all(&pattern(at, PIECE)).await.unwrap();
                }
            };
            let _open = tokio::join!(saying, hear(server.0, BYTES, usize::MAX));
        };
        alone(|path| {
            let mut past = 0;
            for _ in 0..200 {
                let carried = carry(path, applications, nothing);
                carried.result.unwrap();
                assert_eq!(carried.to_server, BYTES as u64);
                past += u64::from(carried.past > 0);
            }
            println!("{past} of 200 were joined");
        });
    }

    /// The kernel gives an error to whom it meets first, and that may be the sender.
    fn a_server_that_breaks_off_is_never_taken_for_one_that_ends() {
        let applications = async |mut both: Applications| {
            warm_up(&mut both).await;
            let Applications { client, server } = both;
            let (mut hears, mut says) = client.into_split();
            let breaking = async {
                sleep(Duration::from_millis(2)).await;
                set_linger_reset(&server).unwrap();
                drop(server);
            };
            let saying = async { while says.write_all(&[7; 100]).await.is_ok() {} };
            let hearing = hears.read_u8();
            let ((), (), heard) = tokio::join!(breaking, saying, hearing);
            heard.unwrap_err();
        };
        alone(|path| {
            for _ in 0..50 {
                carry(path, applications, nothing).result.unwrap_err();
            }
        });
    }

    fn a_reader_that_stops_makes_its_sender_wait_without_spinning() {
        let applications = async |mut both: Applications| {
            warm_up(&mut both).await;
            let Applications { mut client, mut server } = both;
            let (piece, mut sent, mut refused) = (vec![7; 16 << 10], 0, 0);
            let filling = async {
                loop {
                    client.writable().await.unwrap();
                    match client.try_write(&piece) {
                        Ok(bytes) => sent += bytes,
                        Err(error) if error.kind() == ErrorKind::WouldBlock => refused += 1,
                        Err(error) => panic!("{error}"),
                    }
                    assert!(sent < MAX_UNDER_WAY, "{sent} bytes wait for a silent reader");
                }
            };
            let full = timeout(Duration::from_millis(700), filling).await;
            full.expect_err("it waits in the end");
            assert!((1..200).contains(&refused), "refused {refused} times");
            let reading = async {
                let mut room = vec![0; 1 << 20];
                let mut heard = 0;
                while heard < sent + 4 {
                    heard += server.read(&mut room).await.unwrap();
                }
                server.write_all(b"done").await.unwrap();
            };
            let writing = async {
                client.write_all(b"last").await.unwrap();
                client.read_exact(&mut [0; 4]).await.unwrap();
            };
            tokio::join!(reading, writing);
        };
        alone(|path| carry(path, applications, nothing).result.unwrap());
    }

    /// `std::io::copy` calls sendfile(2) for these.
    fn files_are_sent_past_too() {
        const BYTES: usize = 50_000;
        let applications = async |mut both: Applications| {
            warm_up(&mut both).await;
            let Applications { client, mut server } = both;
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&pattern(0, BYTES)).unwrap();
            file.rewind().unwrap();
            let mut client = client.into_std().unwrap();
            assert_eq!(std::io::copy(&mut file, &mut client).unwrap(), BYTES as u64);
            let mut heard = vec![0; BYTES];
            server.read_exact(&mut heard).await.unwrap();
            assert!(heard == pattern(0, BYTES));
        };
        alone(|path| {
            let carried = carry(path, applications, nothing);
            carried.result.unwrap();
            assert!(carried.past > BYTES as u64, "{}", carried.past);
        });
    }

    fn a_side_that_has_closed_still_hears_the_other() {
        let applications = async |mut both: Applications| {
            warm_up(&mut both).await;
            let Applications { mut client, mut server } = both;
            client.write_all(b"question").await.unwrap();
            client.shutdown().await.unwrap();
            let mut heard = Vec::new();
            server.read_to_end(&mut heard).await.unwrap();
            assert_eq!(heard, b"question");
            for _ in 0..100 {
                server.write_all(b"answer").await.unwrap();
            }
            drop(server);
            let mut heard = Vec::new();
            client.read_to_end(&mut heard).await.unwrap();
            assert_eq!(heard, b"answer".repeat(100));
        };
        alone(|path| {
            let carried = carry(path, applications, nothing);
            carried.result.unwrap();
            assert_eq!(carried.to_client, WARM_UP + 600);
            assert!(carried.past > 600, "{}", carried.past);
        });
    }

    fn a_cut_ends_both_sides_at_once() {
        let applications = async |mut both: Applications| {
            warm_up(&mut both).await;
            let Applications { mut client, mut server } = both;
            // Until it is cut, everything goes past the proxy.
            loop {
                let said = client.write_all(b"?").await;
                if said.is_err() || server.read_u8().await.is_err() {
                    break;
                }
            }
            for mut side in [client, server] {
                let ended = side.read(&mut [0]).await.map_err(|error| error.kind());
                assert!(matches!(ended, Ok(0) | Err(ErrorKind::ConnectionReset)), "{ended:?}");
            }
        };
        alone(|path| {
            let carried = carry(path, applications, async |flow| {
                while flow.to_server() < 2000 {
                    sleep(Duration::from_millis(1)).await;
                }
                flow.cut();
            });
            assert!(matches!(carried.result, Err(CopyError::Cut)), "{:?}", carried.result);
            assert!(carried.past > 1000, "{}", carried.past);
        });
    }

    fn a_reset_is_passed_on() {
        let applications = async |mut both: Applications| {
            warm_up(&mut both).await;
            let Applications { client, mut server } = both;
            set_linger_reset(&client).unwrap();
            drop(client);
            let ended = server.read(&mut [0]).await.map_err(|error| error.kind());
            assert_eq!(ended, Err(ErrorKind::ConnectionReset));
        };
        alone(|path| {
            let carried = carry(path, applications, nothing);
            assert!(matches!(carried.result, Err(CopyError::Client(_))), "{:?}", carried.result);
        });
    }

    /// A joined socket could return EAGAIN to a call that waits.
    fn programs_whose_calls_wait_are_left_alone() {
        let applications = async |both: Applications| {
            let waiting = |stream: TcpStream| {
                let stream = stream.into_std().unwrap();
                stream.set_nonblocking(false).unwrap();
                stream
            };
            let (mut client, mut server) = (waiting(both.client), waiting(both.server));
            for _ in 0..WARM_UP {
                client.write_all(b"?").unwrap();
                server.read_exact(&mut [0]).unwrap();
                server.write_all(b"!").unwrap();
                client.read_exact(&mut [0]).unwrap();
            }
        };
        alone(|path| {
            let carried = carry(path, applications, nothing);
            carried.result.unwrap();
            assert_eq!((carried.past, carried.to_server), (0, WARM_UP));
        });
    }

    /// Lanes rest before they serve again, and there are never too few.
    fn lanes_serve_one_connection_after_the_other() {
        alone(|path| {
            for _ in 0..200 {
                let carried = carry(path, async |mut both| warm_up(&mut both).await, nothing);
                carried.result.unwrap();
                assert!(carried.past > 0);
                assert_eq!(carried.to_server, WARM_UP);
            }
        });
    }
}
