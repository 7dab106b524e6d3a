//! The streams of a machine's Kubernetes API: commands in pods and connections to their ports, as
//! kubectl 1.32 asks for them, and as older clients do.
//!
//! No kubectl is needed: the requests, messages and frames are those that it sends.

use std::time::Duration;

use ambit_tls::ClientStream;
use futures::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::kubectl::Api;
use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};

type Socket = WebSocketStream<ClientStream<TcpStream>>;

/// The pod of all this: its containers are `web`, which listens at 8080, `echo` and more.
const POD: &str = "/api/v1/namespaces/app/pods/server";
const CHANNELS: &str = "v5.channel.k8s.io";
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
/// How long a stream may take in all.
const STREAM_TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn kubectl_runs_commands_and_connects_to_ports() {
    let machine = Machine::up("kubectl-streams", Mesh::On, &["--kubernetes-api"]);
    let api = Api::of(&machine);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let streams = async {
        a_command_has_outputs_and_a_code(&api).await;
        a_command_reads_to_the_end(&api).await;
        a_terminal_controls_its_command(&api).await;
        an_older_client_is_served(&api).await;
        what_cannot_be_streamed_is_refused(&api).await;
        ports_are_connected_to(&api).await;
        a_command_ends_with_its_client(&api).await;
    };
    let in_time = async { tokio::time::timeout(STREAM_TIMEOUT, streams).await };
    runtime.block_on(in_time).expect("the streams end in time");
    machine.wait("the command has ended", SETTLE_TIMEOUT, || {
        let words = ["exec", "-n", "app", "server", "-c", "web", "--", "cat", "/dev/shm/gone"];
        machine.ambit(&words).out == "gone\n"
    });
    let idle = async {
        let target = format!("{POD}/portforward");
        let mut socket = open(&api, &target, TUNNEL).await.expect("a tunnel");
        machine.run(&["delete", "pod/server", "-n", "app"]);
        while let Some(Ok(_)) = socket.next().await {}
    };
    let in_time = async { tokio::time::timeout(STREAM_TIMEOUT, idle).await };
    runtime.block_on(in_time).expect("one that carries nothing ends with its pod");
    machine.down();
}

/// The query for a command that a shell runs in container `web`.
fn shell(script: &str, more: &str) -> String {
    let script: String = script.bytes().map(|byte| format!("%{byte:02x}")).collect();
    format!("{POD}/exec?container=web&command=sh&command=-c&command={script}&stdout=true{more}")
}

/// Opens a WebSocket; the error is the status of an answer that opens none, and what it says.
async fn open(api: &Api, target: &str, protocol: &str) -> Result<Socket, (u16, Value)> {
    let url = format!("wss://{}{target}", api.address);
    let mut request = url.into_client_request().expect("a request");
    let mut add = |name, value: &str| {
        request.headers_mut().insert(name, value.parse().expect("a header"));
    };
    add("authorization", &api.bearer());
    add("sec-websocket-protocol", protocol);
    match client_async(request, api.connect().await).await {
        Ok((socket, answer)) => {
            assert_eq!(answer.headers()["sec-websocket-protocol"], protocol);
            Ok(socket)
        }
        Err(Error::Http(answer)) => {
            let said = answer.body().as_deref().unwrap_or_default();
            let said = serde_json::from_slice(said).unwrap_or_default();
            Err((answer.status().as_u16(), said))
        }
        Err(error) => panic!("{target}: {error}"),
    }
}

async fn send(socket: &mut Socket, channel: u8, bytes: &[u8]) {
    let message = [&[channel], bytes].concat();
    socket.send(Message::binary(message)).await.expect("it is sent");
}

/// The next message with data: its channel, and its text.
async fn next(socket: &mut Socket) -> Option<(u8, Vec<u8>)> {
    loop {
        match socket.next().await?.expect("the connection is whole") {
            Message::Binary(message) => {
                let (channel, bytes) = message.split_first().expect("a channel");
                return Some((*channel, bytes.to_vec()));
            }
            Message::Close(frame) => assert_eq!(frame.map(|it| it.code.into()), Some(1000_u16)),
            _ => {}
        }
    }
}

/// All that comes: output, errors, and how it ended.
async fn all(socket: &mut Socket) -> (Vec<u8>, Vec<u8>, Value) {
    let (mut output, mut errors, mut status) = (Vec::new(), Vec::new(), Value::Null);
    while let Some((channel, bytes)) = next(socket).await {
        match channel {
            1 => output.extend(bytes),
            2 => errors.extend(bytes),
            3 => status = serde_json::from_slice(&bytes).expect("a status"),
            other => panic!("channel {other}"),
        }
    }
    (output, errors, status)
}

async fn a_command_has_outputs_and_a_code(api: &Api) {
    let target = shell("echo out; echo err >&2; exit 3", "&stderr=true");
    let mut socket = open(api, &target, CHANNELS).await.expect("a command");
    let (output, errors, status) = all(&mut socket).await;
    assert_eq!((&output[..], &errors[..]), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!(status["reason"], "NonZeroExitCode", "{status}");
    assert_eq!(status["details"]["causes"][0]["message"], "3", "{status}");
    let mut socket = open(api, &shell("true", ""), CHANNELS).await.expect("a command");
    assert_eq!(all(&mut socket).await.2["status"], "Success");
}

async fn a_command_reads_to_the_end(api: &Api) {
    let target = shell("wc -c; echo more", "&stdin=true");
    let mut socket = open(api, &target, CHANNELS).await.expect("a command");
    let piece = vec![b'x'; 32 << 10];
    for _ in 0..64 {
        send(&mut socket, 0, &piece).await;
    }
    send(&mut socket, 255, &[0]).await;
    let (output, _, status) = all(&mut socket).await;
    assert_eq!(String::from_utf8_lossy(&output), "2097152\nmore\n");
    assert_eq!(status["status"], "Success");
}

/// A terminal has a size that changes, an echo, and Ctrl-C.
async fn a_terminal_controls_its_command(api: &Api) {
    let target = shell("read line; stty size; exec sleep 1000", "&stdin=true&tty=true");
    let mut socket = open(api, &target, CHANNELS).await.expect("a command");
    send(&mut socket, 4, b"{\"Width\":101,\"Height\":33}\n").await;
    send(&mut socket, 0, b"hello\r").await;
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("33 101") {
        let (channel, bytes) = next(&mut socket).await.expect("more output");
        assert_eq!(channel, 1, "a terminal has one output");
        seen.extend(bytes);
    }
    assert!(seen.starts_with(b"hello\r\n"), "{}", String::from_utf8_lossy(&seen));
    send(&mut socket, 0, b"\x03").await;
    let (_, _, status) = all(&mut socket).await;
    assert_eq!(status["details"]["causes"][0]["message"], "130", "{status}");
}

async fn what_cannot_be_streamed_is_refused(api: &Api) {
    let pods = "/api/v1/namespaces/app/pods";
    for (target, protocol, code, part) in [
        (format!("{pods}/none/exec?command=ls&stdout=1"), CHANNELS, 404, "pods \"none\" not found"),
        (format!("{pods}/none/portforward"), TUNNEL, 404, "pods \"none\" not found"),
        (format!("{POD}/exec?command=ls&stdout=1"), CHANNELS, 400, "choose one of: [web echo"),
        (
            format!("{POD}/exec?command=ls&stdout=1&container=x"),
            CHANNELS,
            400,
            "container x is not",
        ),
        (format!("{POD}/exec?container=web&stdout=1"), CHANNELS, 400, "name a command"),
        (shell("true", ""), "channel.k8s.io", 400, "no protocol is known to both"),
        (format!("{POD}/portforward"), CHANNELS, 400, "no protocol is known to both"),
        (format!("{POD}/attach?stdout=1"), CHANNELS, 501, "kubectl logs -f"),
    ] {
        let (status, said) = open(api, &target, protocol).await.expect_err(&target);
        let message = said["message"].as_str().unwrap_or_default();
        assert!(status == code && message.contains(part), "{target}: {status} {said}");
    }
    let mut socket = open(api, &shell("true", ""), CHANNELS).await.expect("a command");
    send(&mut socket, 9, b"").await;
    while let Some(message) = socket.next().await {
        match message.expect("the connection is whole") {
            Message::Close(frame) => {
                assert_eq!(frame.expect("a reason").code, 1002_u16.into());
                return;
            }
            // It may have ended before.
            message => assert!(message.is_binary() || message.is_ping(), "{message}"),
        }
    }
    panic!("no channel 9 is an error");
}

/// What opens a SPDY stream. Its headers are not compressed: a stored block, and an empty one.
fn syn_stream(stream: u32, headers: &[(&str, &str)]) -> Vec<u8> {
    let number = |it: usize| u32::try_from(it).expect("short").to_be_bytes();
    let mut text = number(headers.len()).to_vec();
    for word in headers.iter().flat_map(|(name, value)| [name, value]) {
        text.extend_from_slice(&number(word.len()));
        text.extend_from_slice(word.as_bytes());
    }
    let length = u16::try_from(text.len()).expect("short");
    let mut block = if stream == 1 { b"\x78\xbb\xe3\xc6\xa7\xc2\0".to_vec() } else { vec![0] };
    block.extend_from_slice(&length.to_le_bytes());
    block.extend_from_slice(&(!length).to_le_bytes());
    block.extend_from_slice(&text);
    block.extend_from_slice(b"\0\0\0\xff\xff");
    let head = [0x8003_0001, u32::try_from(10 + block.len()).expect("short"), stream, 0];
    let head: Vec<u8> = head.iter().flat_map(|it: &u32| it.to_be_bytes()).collect();
    [head, vec![0; 2], block].concat()
}

fn data(stream: u32, bytes: &[u8], is_last: bool) -> Vec<u8> {
    let flags = if is_last { 1 << 24 } else { 0 };
    let length = flags | u32::try_from(bytes.len()).expect("short");
    [&stream.to_be_bytes()[..], &length.to_be_bytes(), bytes].concat()
}

/// Takes the first frame off what has come: its first word, whether it is the last, its payload.
fn frame(come: &mut Vec<u8>) -> Option<(u32, bool, Vec<u8>)> {
    let (head, rest) = come.split_first_chunk::<8>()?;
    let first = u32::from_be_bytes(head[..4].try_into().expect("four bytes"));
    let length = usize::from(head[5]) << 16 | usize::from(head[6]) << 8 | usize::from(head[7]);
    let payload = rest.get(..length)?.to_vec();
    let is_last = head[4] & 1 != 0;
    come.drain(..8 + length);
    Some((first, is_last, payload))
}

const SYN_REPLY: u32 = 0x8003_0002;
const PING: u32 = 0x8003_0006;

/// Opens two connections to a port by their streams: 1 and 3, and 5 and 7.
fn connections(ports: [&str; 2]) -> Vec<u8> {
    let mut frames = Vec::new();
    for (request, port) in ["0", "1"].into_iter().zip(ports) {
        let first = if request == "0" { 1 } else { 5 };
        for (stream, kind) in [(first, "error"), (first + 2, "data")] {
            let headers = [("port", port), ("requestid", request), ("streamtype", kind)];
            frames.extend(syn_stream(stream, &headers));
        }
        frames.extend(data(first, b"", true));
    }
    frames
}

/// A connection is carried each way to its end, and one that cannot be made says why.
async fn ports_are_connected_to(api: &Api) {
    let target = format!("{POD}/portforward");
    let mut socket = open(api, &target, TUNNEL).await.expect("a tunnel");
    let hello = [data(3, b"hello ", false), data(3, b"world", true)].concat();
    let frames =
        [connections(["9000", "9"]), hello, b"\x80\x03\0\x06\0\0\0\x04\0\0\0\x01".to_vec()];
    // Frames may come in pieces.
    for piece in frames.concat().chunks(100) {
        socket.send(Message::binary(piece.to_vec())).await.expect("it is sent");
    }
    let (mut come, mut replies, mut pings) = (Vec::new(), 0, 0);
    let mut streams = [1, 3, 5, 7].map(|stream| (stream, Vec::new(), false));
    while streams.iter().any(|(.., is_over)| !is_over) || pings == 0 {
        let message = socket.next().await.expect("more").expect("the connection is whole");
        come.extend_from_slice(&message.into_data());
        while let Some((first, is_last, payload)) = frame(&mut come) {
            match first {
                SYN_REPLY => replies += 1,
                PING => pings += 1,
                stream => {
                    let stream = streams.iter_mut().find(|(it, ..)| *it == stream);
                    let (_, bytes, is_over) = stream.expect("one of these streams");
                    assert!(!*is_over, "nothing follows the end");
                    bytes.extend(payload);
                    *is_over = is_last;
                }
            }
        }
    }
    assert_eq!((replies, pings), (4, 1));
    let [error, echoed, refused, nothing] = streams.map(|(_, bytes, _)| bytes);
    assert_eq!((&error[..], &echoed[..]), (&b""[..], &b"hello world"[..]));
    let refused = String::from_utf8_lossy(&refused);
    assert!(
        refused.contains("error forwarding port 9 of pod server: nothing accepts"),
        "{refused}"
    );
    assert!(nothing.is_empty());
}

/// One that knows no WebSocket upgrades to SPDY, and has a stream for each channel.
async fn an_older_client_is_served(api: &Api) {
    let target = shell("cat; exit 4", "&stdin=true");
    let head = format!(
        "POST {target} HTTP/1.1\r\nhost: {}\r\nauthorization: {}\r\nconnection: Upgrade\r\n\
         upgrade: SPDY/3.1\r\nx-stream-protocol-version: v4.channel.k8s.io\r\n\
         content-length: 0\r\n\r\n",
        api.address,
        api.bearer()
    );
    let mut stream = api.connect().await;
    stream.write_all(head.as_bytes()).await.expect("it is sent");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.expect("an answer"));
    }
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    let named = |stream, kind| syn_stream(stream, &[("streamtype", kind)]);
    let frames = [
        named(1, "error"),
        named(3, "stdin"),
        named(5, "stdout"),
        data(3, b"hello", false),
        data(3, b"", true),
    ];
    stream.write_all(&frames.concat()).await.expect("it is sent");
    let (mut come, mut part) = (Vec::new(), [0; 4096]);
    let (mut output, mut status) = (Vec::new(), Value::Null);
    while status.is_null() {
        let length = stream.read(&mut part).await.expect("the connection is whole");
        assert_ne!(length, 0, "the status comes before the end");
        come.extend_from_slice(&part[..length]);
        while let Some((first, _, payload)) = frame(&mut come) {
            match first {
                1 => status = serde_json::from_slice(&payload).expect("a status"),
                5 => output.extend(payload),
                _ => {}
            }
        }
    }
    assert_eq!(output, b"hello");
    assert_eq!(status["details"]["causes"][0]["message"], "4", "{status}");
}

async fn a_command_ends_with_its_client(api: &Api) {
    let script = "trap 'echo gone > /dev/shm/gone; exit' HUP TERM; echo here; sleep 1000 & wait";
    let mut socket = open(api, &shell(script, ""), CHANNELS).await.expect("a command");
    assert_eq!(next(&mut socket).await, Some((1, b"here\n".to_vec())));
}
