//! Packets with descriptors and sealed files between processes.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::time::Duration;

use ambit_net::memfd::Sealed;
use ambit_net::seqpacket::{BlockingConnection, Connection, Listener, PacketError};

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("ambit-{name}-{}.sock", std::process::id()))
}

#[tokio::test]
async fn a_packet_brings_its_descriptors() {
    let path = path("packets");
    let listener = Listener::bind(&path).unwrap();
    // A second owner replaces what the first left behind.
    drop(listener);
    let listener = Listener::bind(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let client = Connection::connect(&path).unwrap();
    let server = listener.accept().await.unwrap();
    let me = std::process::id().cast_signed();
    assert_eq!(server.peer_credentials().unwrap().pid, me);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let null = File::open("/dev/null").unwrap();
    client.send(b"add", &[writer.as_fd(), null.as_fd()]).await.unwrap();
    client.send(b"del", &[]).await.unwrap();
    drop(writer);
    let mut buffer = [0; 16];
    let packet = server.receive(&mut buffer).await.unwrap();
    assert_eq!((&buffer[..packet.length], packet.fds.len()), (&b"add"[..], 2));
    let mut received = packet.fds.into_iter();
    let mut pipe = File::from(received.next().unwrap());
    drop(received);
    pipe.write_all(b"through the received end").unwrap();
    drop(pipe);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "through the received end");
    let packet = server.receive(&mut buffer).await.unwrap();
    assert_eq!((&buffer[..packet.length], packet.fds.len()), (&b"del"[..], 0));
    drop(client);
    assert!(!server.peek().await.unwrap());
    assert!(matches!(server.receive(&mut buffer).await, Err(PacketError::Closed)));
    assert!(matches!(server.send(b"x", &[]).await, Err(PacketError::Closed)));
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn a_packet_that_does_not_fit_is_an_error_and_leaks_nothing() {
    let (one, other) = Connection::pair().unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    one.send(&[7; 17], &[writer.as_fd()]).await.unwrap();
    drop(writer);
    one.send(b"next", &[]).await.unwrap();
    let mut buffer = [0; 16];
    let error = other.receive(&mut buffer).await.unwrap_err();
    assert!(matches!(error, PacketError::Truncated { limit_bytes: 16 }), "{error}");
    // Ends only when the descriptor of the bad packet is closed, too.
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    assert!(other.peek().await.unwrap());
    let packet = other.receive(&mut buffer).await.unwrap();
    assert_eq!(&buffer[..packet.length], b"next");
    assert!(matches!(one.send(b"", &[]).await, Err(PacketError::Empty)));
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_waited_for() {
    let (one, _other) = Connection::pair().unwrap();
    let silence = tokio::time::timeout(Duration::from_secs(60), one.peek()).await;
    assert!(silence.is_err());
}

#[tokio::test]
async fn something_else_in_the_way_is_not_removed() {
    let path = path("file");
    std::fs::write(&path, "precious").unwrap();
    assert_eq!(Listener::bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn blocking_ends_speak_the_same() {
    let (one, other) = BlockingConnection::pair().unwrap();
    let file = File::open("/dev/null").unwrap();
    let many = vec![file.as_fd(); 253];
    one.send(b"many", &many).unwrap();
    let mut buffer = [0; 16];
    assert_eq!(other.receive(&mut buffer).unwrap().fds.len(), 253);
    let too_many = vec![file.as_fd(); 254];
    assert!(matches!(one.send(b"too many", &too_many), Err(PacketError::Send(_))));
    other.set_receive_timeout(Some(Duration::from_millis(10))).unwrap();
    let Err(PacketError::Receive(error)) = other.receive(&mut buffer) else {
        panic!("nothing sent")
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    drop(one);
    assert!(matches!(other.receive(&mut buffer), Err(PacketError::Closed)));
}

#[test]
fn a_sealed_file_is_read_often_and_never_written() {
    let sealed = Sealed::create("keys", b"private").unwrap();
    let copy = File::from(OwnedFd::from(sealed.try_clone().unwrap()));
    assert_eq!(copy.write_at(b"X", 0).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(copy.set_len(0).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(copy.set_len(100).unwrap_err().kind(), ErrorKind::PermissionDenied);
    let received = Sealed::from_fd(copy.into()).unwrap();
    for reader in [&sealed, &received] {
        assert_eq!(&*reader.read().unwrap(), b"private");
    }
    assert_eq!(format!("{:?}", sealed.read().unwrap()), "Secret(7 bytes)");
    assert_eq!(Sealed::create("empty", b"").unwrap().read().unwrap().len(), 0);
}

#[test]
fn a_file_that_may_still_change_is_not_taken() {
    let path = std::env::temp_dir().join(format!("ambit-unsealed-{}", std::process::id()));
    std::fs::write(&path, "changeable").unwrap();
    let (_, pipe) = std::io::pipe().unwrap();
    for fd in [File::open(&path).unwrap().into(), pipe.into()] {
        assert_eq!(Sealed::from_fd(fd).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    std::fs::remove_file(path).unwrap();
}
