//! Two ends of a connection, and peers that break the rules.

use bytes::{BufMut, BytesMut};
use http::{HeaderMap, HeaderValue, StatusCode};
use proptest::prelude::*;

use super::frame::{Head, PREFACE, flag, kind, put_block, put_settings, setting};
use super::*;

const LIMITS: Limits =
    Limits { streams: 3, frame_bytes: 16_384, field_bytes: 4096, stream_window_bytes: 65_535 };

/// One end, and what it has got.
struct End {
    session: Session,
    input: BytesMut,
    got: Vec<Event>,
    fault: Option<Fault>,
}

impl End {
    fn new(role: Role) -> Self {
        let session = Session::new(role, LIMITS);
        Self { session, input: BytesMut::new(), got: Vec::new(), fault: None }
    }

    fn read(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        while self.fault.is_none() {
            match self.session.next(&mut self.input) {
                Ok(Some(event)) => self.got.push(event),
                Ok(None) => return,
                Err(fault) => self.fault = Some(fault),
            }
        }
    }

    /// The events since the last call, in short.
    fn heard(&mut self) -> Vec<String> {
        self.got.drain(..).map(|event| short(&event)).collect()
    }
}

fn short(event: &Event) -> String {
    let end = |is_last: &bool| if *is_last { "." } else { "" };
    match event {
        Event::Request { stream, head, is_last } => {
            format!("{stream} {} {}{}", head.method, head.uri, end(is_last))
        }
        Event::Response { stream, head, is_last } => {
            format!("{stream} {}{}", head.status.as_u16(), end(is_last))
        }
        Event::Data { stream, bytes, is_last } => {
            format!("{stream} {}{}", bytes.escape_ascii(), end(is_last))
        }
        Event::Reset { stream, reason } => format!("{stream} {reason}"),
        Event::Window { stream } => format!("{stream:?} window"),
        Event::Leaving { last, reason } => format!("leaving {last} {reason}"),
        Event::Pong(opaque) => format!("pong {}", opaque.escape_ascii()),
    }
}

/// A client and a server, past their first words.
fn pair() -> (End, End) {
    let (mut client, mut server) = (End::new(Role::Client), End::new(Role::Server));
    exchange(&mut client, &mut server);
    client.got.clear();
    server.got.clear();
    (client, server)
}

/// Carries what both have to say until neither says more.
fn exchange(one: &mut End, other: &mut End) {
    for end in [&mut *one, other] {
        end.session.announce();
    }
    while one.session.has_output() || other.session.has_output() {
        let said = one.session.take_output();
        other.read(&said);
        let said = other.session.take_output();
        one.read(&said);
    }
}

/// A frame of DATA from one to the other, with what was said before it.
fn send(from: &mut End, to: &mut End, stream: u32, payload: &[u8], is_last: bool) {
    assert!(from.session.sendable(stream) >= payload.len());
    let mut said = from.session.take_output();
    said.extend_from_slice(&from.session.data(stream, payload.len(), is_last));
    said.extend_from_slice(payload);
    to.read(&said);
}

fn opened() -> (End, End, u32) {
    let (mut client, mut server) = pair();
    let stream = client.session.connect("10.0.0.1:80", &HeaderMap::new()).expect("room");
    exchange(&mut client, &mut server);
    assert_eq!(server.heard(), [format!("{stream} CONNECT 10.0.0.1:80")]);
    server.session.respond(stream, StatusCode::OK, &HeaderMap::new(), false);
    exchange(&mut client, &mut server);
    assert_eq!(client.heard(), [format!("{stream} 200")]);
    (client, server, stream)
}

#[test]
fn a_tunnel_carries_bytes_both_ways_and_each_direction_ends_on_its_own() {
    let (mut client, mut server, stream) = opened();
    send(&mut client, &mut server, stream, b"ask", true);
    assert_eq!(server.heard(), ["1 ask."]);
    assert_eq!(client.session.sendable(stream), 0);
    send(&mut server, &mut client, stream, b"answer", false);
    send(&mut server, &mut client, stream, b"", true);
    assert_eq!(client.heard(), ["1 answer", "1 ."]);
    client.session.close(stream);
    server.session.close(stream);
    assert!(!client.session.has_output() && !server.session.has_output());
}

#[test]
fn fields_pass_and_a_large_block_is_continued() {
    let (mut client, mut server) = pair();
    let mut headers = HeaderMap::new();
    headers.insert("baggage", HeaderValue::from_str(&"x".repeat(3000)).expect("ASCII"));
    let block = encode_connect("a:1", &headers);
    let mut said = BytesMut::new();
    put_block(1, &block, false, 100, &mut said);
    server.read(&said);
    let [Event::Request { head, .. }] = &server.got[..] else { panic!("{:?}", server.got) };
    assert_eq!(head.headers["baggage"].len(), 3000);
    // More than is allowed is answered, and its stream is gone.
    headers.insert("baggage", HeaderValue::from_str(&"x".repeat(4090)).expect("ASCII"));
    client.session.next_is(3);
    let stream = client.session.connect("a:1", &headers).expect("room");
    exchange(&mut client, &mut server);
    assert_eq!(client.heard(), [format!("{stream} 431."), format!("{stream} NO_ERROR")]);
    assert_eq!(server.session.streams(), 1);
}

#[test]
fn windows_hold_a_sender_until_its_bytes_were_taken() {
    let (mut client, mut server, stream) = opened();
    let chunk = [7; 16_384];
    let mut sent = 0;
    while client.session.sendable(stream) > 0 {
        let bytes = client.session.sendable(stream).min(chunk.len());
        send(&mut client, &mut server, stream, &chunk[..bytes], false);
        sent += bytes;
    }
    assert_eq!(sent, 65_535);
    server.session.release(stream, 20_000);
    exchange(&mut client, &mut server);
    assert_eq!(client.session.sendable(stream), 20_000);
    // The connection's window is larger; the stream's by SETTINGS.
    server.session.set_window(1 << 20);
    assert!(server.session.set_stream_window(100_000));
    assert!(!server.session.set_stream_window(200_000));
    exchange(&mut client, &mut server);
    assert_eq!(client.session.sendable(stream), 20_000 + 100_000 - 65_535);
    assert!(server.session.set_stream_window(10));
    exchange(&mut client, &mut server);
    assert_eq!(client.session.sendable(stream), 0);
}

/// A window that shrinks leaves a stream neither without credit for what was taken, nor without the
/// possibility to end.
#[test]
fn a_stream_goes_on_behind_a_window_that_shrinks() {
    let (mut client, mut server, stream) = opened();
    send(&mut client, &mut server, stream, &[7; 16_000], false);
    server.session.release(stream, 16_000);
    assert!(!server.session.has_output(), "less than half is used");
    assert!(server.session.set_stream_window(10_000));
    let said = server.session.take_output();
    client.read(&said);
    // All that its old window allows is under way, and more than the new one.
    assert_eq!(client.session.sendable(stream), 0);
    exchange(&mut client, &mut server);
    assert_eq!(client.session.sendable(stream), 10_000);
    assert!(server.session.set_stream_window(0));
    exchange(&mut client, &mut server);
    assert!(server.session.set_stream_window(10));
    send(&mut client, &mut server, stream, &[], true);
    assert_eq!((server.fault, server.heard().last().map(|it| &**it)), (None, Some("1 .")));
}

/// RFC 7541 section 4.2: it has to be said that the table is smaller, though we use none.
#[test]
fn a_smaller_table_is_acknowledged_in_the_next_block() {
    let mut client = End::new(Role::Client);
    client.read(&raw(kind::SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0]));
    client.session.take_output();
    for first in [0x20, 0x02] {
        client.session.connect("a:1", &HeaderMap::new()).expect("room");
        assert_eq!(client.session.take_output()[9], first);
    }
}

#[test]
fn who_leaves_takes_what_is_under_way_and_nothing_more() {
    let (mut client, mut server, stream) = opened();
    server.session.leave();
    let said = server.session.take_output();
    // Under way before the client knows.
    let late = client.session.connect("b:1", &HeaderMap::new()).expect("room");
    client.read(&said);
    exchange(&mut client, &mut server);
    assert_eq!(server.heard(), ["3 CONNECT b:1"]);
    assert_eq!(client.heard(), ["leaving 2147483647 NO_ERROR", "leaving 3 NO_ERROR"]);
    assert_eq!(client.session.connect("c:1", &HeaderMap::new()), None);
    for it in [stream, late] {
        assert!(!server.session.has_left());
        server.session.close(it);
    }
    assert!(server.session.has_left());
}

/// The client knows that it may open none, and one that is open keeps the connection. So what it
/// opens nevertheless is taken for a flood, as what comes for streams that are no more is.
#[test]
fn streams_for_who_has_left_are_a_flood() {
    let (mut client, mut server, _stream) = opened();
    server.session.leave();
    exchange(&mut client, &mut server);
    exchange(&mut client, &mut server);
    let block = encode_connect("a:1", &HeaderMap::new());
    let open = |number: u32| raw(kind::HEADERS, flag::END_HEADERS, 2 * number + 1, &block);
    server.read(&(10..1010).flat_map(open).collect::<Vec<u8>>());
    assert_eq!((server.heard().len(), server.fault), (0, None));
    server.read(&open(1010));
    assert_eq!(server.fault.map(|it| it.reason), Some(Reason::ENHANCE_YOUR_CALM));
}

/// Eight are forgiven for each request that is as it should be, and no more: else a request of a
/// few bytes would have a thousand blocks forgiven that cost far more than it.
#[test]
fn a_good_request_now_and_then_hides_no_flood() {
    let block = encode_connect("a:1", &HeaderMap::new());
    for (useless, is_flood) in [(8, false), (9, true)] {
        let mut server = served(&[]);
        let mut number = 1;
        for _ in 0..1100 {
            number += 2;
            server.read(&raw(kind::HEADERS, flag::END_HEADERS, number, &block));
            server.session.close(number);
            server.read(&raw(kind::HEADERS, flag::END_HEADERS, number, &[0x86]).repeat(useless));
            server.session.take_output();
        }
        let reason = server.fault.map(|it| it.reason);
        assert_eq!(reason, is_flood.then_some(Reason::ENHANCE_YOUR_CALM), "{useless}");
    }
}

#[test]
fn streams_count_until_our_side_has_let_go_of_them() {
    let (mut client, mut server) = pair();
    for number in [1, 3, 5, 7, 9, 11, 13, 15] {
        // The peer's own count says that there is room: it resets each at once.
        client.session.next_is(number);
        client.session.connect("a:1", &HeaderMap::new()).expect("room");
        client.session.close(number);
        exchange(&mut client, &mut server);
    }
    let heard = server.heard();
    assert_eq!(heard.iter().filter(|it| it.contains("CONNECT")).count(), 6, "{heard:?}");
    assert_eq!(server.session.streams(), 6);
    server.session.close(3);
    client.session.connect("a:1", &HeaderMap::new()).expect("room");
    exchange(&mut client, &mut server);
    assert_eq!(server.heard(), ["17 CONNECT a:1"]);
}

/// A client at its limit may open a stream in the same breath with which another ends.
#[test]
fn a_stream_that_both_sides_have_ended_makes_room_at_once() {
    let (mut client, mut server) = pair();
    for _ in 0..3 {
        client.session.connect("a:1", &HeaderMap::new()).expect("room");
    }
    exchange(&mut client, &mut server);
    server.session.respond(1, StatusCode::OK, &HeaderMap::new(), true);
    exchange(&mut client, &mut server);
    server.got.clear();
    send(&mut client, &mut server, 1, b"", true);
    client.session.close(1);
    client.session.connect("b:1", &HeaderMap::new()).expect("room");
    exchange(&mut client, &mut server);
    assert_eq!(server.heard(), ["1 .", "7 CONNECT b:1"]);
}

/// What was held when the connection's window was made smaller brings no credit beyond it.
#[test]
fn credit_that_a_smaller_window_withholds_is_not_given() {
    let (mut client, mut server, stream) = opened();
    server.session.set_window(200_000);
    assert!(server.session.set_stream_window(200_000));
    exchange(&mut client, &mut server);
    for _ in 0..9 {
        send(&mut client, &mut server, stream, &[7; 16_000], false);
    }
    server.session.release(stream, 9 * 16_000);
    assert!(server.session.is_credit_due() && client.session.sendable(stream) == 56_000);
    server.session.set_window(65_535);
    exchange(&mut client, &mut server);
    assert_eq!(client.session.sendable(stream), 56_000, "9,535 of 144,000 are owed");
}

/// The block of a CONNECT.
fn encode_connect(authority: &str, headers: &HeaderMap) -> BytesMut {
    let mut block = BytesMut::new();
    super::head::encode_connect(authority, headers, &mut block);
    block
}

/// A frame by hand.
fn raw(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let head = Head { bytes: payload.len(), kind, flags, stream }.bytes();
    [&head[..], payload].concat()
}

/// A server past the preface, with stream 1 open, reads these bytes.
fn served(bytes: &[u8]) -> End {
    let mut server = End::new(Role::Server);
    let mut first = BytesMut::from(&PREFACE[..]);
    put_settings(&[], &mut first);
    put_block(1, &encode_connect("a:1", &HeaderMap::new()), false, 16_384, &mut first);
    server.read(&first);
    assert_eq!(server.heard(), ["1 CONNECT a:1"]);
    server.read(bytes);
    server
}

#[test]
fn who_breaks_the_protocol_loses_the_connection() {
    let block = encode_connect("a:1", &HeaderMap::new());
    let huge = vec![0; 16_385];
    let cases = [
        (raw(kind::DATA, 0, 0, b"x"), Reason::PROTOCOL_ERROR),
        (raw(kind::DATA, 0, 3, b"x"), Reason::PROTOCOL_ERROR),
        (raw(kind::DATA, flag::PADDED, 1, &[1]), Reason::PROTOCOL_ERROR),
        (raw(kind::DATA, 0, 1, &huge), Reason::FRAME_SIZE_ERROR),
        (raw(kind::HEADERS, flag::END_HEADERS, 0, &block), Reason::PROTOCOL_ERROR),
        (raw(kind::HEADERS, flag::END_HEADERS, 2, &block), Reason::PROTOCOL_ERROR),
        (raw(kind::HEADERS, flag::END_HEADERS, 3, &[0xff; 9]), Reason::COMPRESSION_ERROR),
        (raw(kind::HEADERS, flag::END_HEADERS | flag::PADDED, 3, &[9, 0]), Reason::PROTOCOL_ERROR),
        (raw(kind::HEADERS, flag::END_HEADERS | flag::PRIORITY, 3, &[0]), Reason::FRAME_SIZE_ERROR),
        (
            [raw(kind::HEADERS, 0, 3, &block), raw(kind::PING, 0, 0, &[0; 8])].concat(),
            Reason::PROTOCOL_ERROR,
        ),
        (
            [raw(kind::HEADERS, 0, 3, &block), raw(kind::CONTINUATION, 0, 5, &[])].concat(),
            Reason::PROTOCOL_ERROR,
        ),
        (
            [5, 3].map(|it| raw(kind::HEADERS, flag::END_HEADERS, it, &block)).concat(),
            Reason::PROTOCOL_ERROR,
        ),
        (raw(kind::CONTINUATION, flag::END_HEADERS, 1, &[]), Reason::PROTOCOL_ERROR),
        (raw(kind::PUSH_PROMISE, flag::END_HEADERS, 1, &block), Reason::PROTOCOL_ERROR),
        (raw(kind::RST_STREAM, 0, 0, &[0; 4]), Reason::PROTOCOL_ERROR),
        (raw(kind::RST_STREAM, 0, 3, &[0; 4]), Reason::PROTOCOL_ERROR),
        (raw(kind::RST_STREAM, 0, 1, &[0; 3]), Reason::FRAME_SIZE_ERROR),
        (raw(kind::PRIORITY, 0, 1, &[0; 4]), Reason::FRAME_SIZE_ERROR),
        (raw(kind::SETTINGS, 0, 1, &[]), Reason::PROTOCOL_ERROR),
        (raw(kind::SETTINGS, 0, 0, &[0; 5]), Reason::FRAME_SIZE_ERROR),
        (raw(kind::SETTINGS, flag::ACK, 0, &[0; 6]), Reason::FRAME_SIZE_ERROR),
        (raw(kind::SETTINGS, 0, 0, &[0, 4, 0xff, 0, 0, 0]), Reason::FLOW_CONTROL_ERROR),
        (raw(kind::SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1]), Reason::PROTOCOL_ERROR),
        (raw(kind::SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2]), Reason::PROTOCOL_ERROR),
        (raw(kind::SETTINGS, flag::ACK, 0, &[]).repeat(2), Reason::PROTOCOL_ERROR),
        (raw(kind::PING, 0, 1, &[0; 8]), Reason::PROTOCOL_ERROR),
        (raw(kind::PING, 0, 0, &[0; 7]), Reason::FRAME_SIZE_ERROR),
        (raw(kind::GOAWAY, 0, 0, &[0; 7]), Reason::FRAME_SIZE_ERROR),
        (raw(kind::GOAWAY, 0, 1, &[0; 8]), Reason::PROTOCOL_ERROR),
        (raw(kind::WINDOW_UPDATE, 0, 0, &[0; 4]), Reason::PROTOCOL_ERROR),
        (raw(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]), Reason::FLOW_CONTROL_ERROR),
        (raw(kind::WINDOW_UPDATE, 0, 3, &[0, 0, 0, 1]), Reason::PROTOCOL_ERROR),
        (raw(kind::WINDOW_UPDATE, 0, 1, &[0; 3]), Reason::FRAME_SIZE_ERROR),
    ];
    for (bytes, reason) in cases {
        let server = served(&bytes);
        assert_eq!(server.fault.map(|it| it.reason), Some(reason), "{:?} {bytes:?}", server.fault);
    }
    for first in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r"] {
        let mut server = End::new(Role::Server);
        server.read(first);
        assert!(server.fault.is_some());
    }
    let mut server = End::new(Role::Server);
    server.read(&[&PREFACE[..], &raw(kind::PING, 0, 0, &[0; 8])].concat());
    assert_eq!(server.fault.map(|it| it.what), Some("its first frame is not SETTINGS"));
}

#[test]
fn who_breaks_a_stream_loses_the_stream() {
    let trailers = [0, 1, b'a', 1, b'b'];
    let cases = [
        (raw(kind::WINDOW_UPDATE, 0, 1, &[0; 4]), "1 PROTOCOL_ERROR"),
        (raw(kind::WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff]), "1 FLOW_CONTROL_ERROR"),
        (raw(kind::HEADERS, flag::END_HEADERS, 1, &trailers), "1 PROTOCOL_ERROR"),
        (raw(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &trailers), "1 ."),
        (raw(kind::RST_STREAM, 0, 1, &[0, 0, 0, 8]), "1 CANCEL"),
        (raw(kind::DATA, flag::PADDED | flag::END_STREAM, 1, b"\x03xy\0\0\0"), "1 xy."),
        (raw(kind::PRIORITY, 0, 1, &[0; 5]), ""),
        (raw(99, 0xff, 7, b"unknown"), ""),
    ];
    for (bytes, heard) in cases {
        let mut server = served(&bytes);
        assert_eq!((server.heard().join(" "), server.fault), (heard.to_owned(), None));
    }
    let ended = raw(kind::DATA, flag::END_STREAM, 1, b"");
    let mut server = served(&[ended, raw(kind::DATA, 0, 1, b"x")].concat());
    assert_eq!(server.heard(), ["1 .", "1 STREAM_CLOSED"]);
}

/// A new size of windows holds for open streams too, beside what they have spent or were given
/// (RFC 9113 section 6.9.2).
#[test]
fn a_size_of_windows_is_that_of_each_stream() {
    let sizes = |sizes: &[u32]| {
        let name = [0, setting::INITIAL_WINDOW_SIZE as u8];
        let settings = sizes.iter().flat_map(|size| [&name[..], &size.to_be_bytes()].concat());
        raw(kind::SETTINGS, 0, 0, &settings.collect::<Vec<u8>>())
    };
    let more = |bytes: u32| raw(kind::WINDOW_UPDATE, 0, 1, &bytes.to_be_bytes());
    let all = raw(kind::WINDOW_UPDATE, 0, 0, &[0, 1, 0, 0]);
    let cases = [
        ([sizes(&[100])].concat(), Ok(100)),
        // The last of one frame holds, and each has to be one.
        ([sizes(&[100, 200])].concat(), Ok(200)),
        ([sizes(&[1 << 31, 200])].concat(), Err(Reason::FLOW_CONTROL_ERROR)),
        ([more(50), sizes(&[100]), all.clone(), sizes(&[70_000])].concat(), Ok(70_050)),
        ([sizes(&[(1 << 31) - 1]), all.clone()].concat(), Ok(65_535 + 65_536)),
        // A stream's window becomes too large, and a stream that has gone does not matter.
        ([more(50), sizes(&[(1 << 31) - 50])].concat(), Err(Reason::FLOW_CONTROL_ERROR)),
        (
            [more(1 << 30), raw(kind::RST_STREAM, 0, 1, &[0; 4]), sizes(&[(1 << 31) - 50])]
                .concat(),
            Ok(0),
        ),
    ];
    for (bytes, expected) in cases {
        let mut server = served(&[]);
        server.read(&bytes[..]);
        let sendable = server.session.sendable(1);
        let got = server.fault.map_or(Ok(sendable), |fault| Err(fault.reason));
        assert_eq!(got, expected, "{bytes:x?}");
    }
}

/// What is refused now and then, between answers, is no flood.
#[test]
fn a_client_counts_what_is_refused_in_a_row() {
    let mut client = End::new(Role::Client);
    client.read(&raw(kind::SETTINGS, 0, 0, &[]));
    let answer = |stream, block: &[u8]| raw(kind::HEADERS, flag::END_HEADERS, stream, block);
    for number in 0..1500 {
        let stream = client.session.connect("a:1", &HeaderMap::new()).expect("room");
        // Of more fields than are taken, or as it should be.
        let block: &[u8] = if number % 2 == 0 { &[0x88; 1000] } else { &[0x88] };
        client.read(&answer(stream, block));
        client.session.close(stream);
        client.session.take_output();
    }
    assert_eq!(client.fault, None);
    for _ in 0..1001 {
        client.read(&answer(1, &[0x88; 1000]));
    }
    assert_eq!(client.fault.map(|it| it.reason), Some(Reason::ENHANCE_YOUR_CALM));
}

/// Answers that are none yet (1xx, of which a tunnel has no use), and fields for a stream that is
/// no more.
#[test]
fn a_client_counts_what_is_of_no_use_in_a_row() {
    let answer = |block: &[u8]| raw(kind::HEADERS, flag::END_HEADERS, 1, block);
    // 1xx, as a literal with the name of `:status` (RFC 7541 section 6.2.2).
    let early = answer(&[&[0x08, 3][..], b"103"].concat());
    for (is_open, block) in [(true, early), (false, answer(&[0x88]))] {
        let mut client = End::new(Role::Client);
        client.read(&raw(kind::SETTINGS, 0, 0, &[]));
        let stream = client.session.connect("a:1", &HeaderMap::new()).expect("room");
        if !is_open {
            client.session.close(stream);
        }
        client.read(&block.repeat(1000));
        assert_eq!(client.fault, None);
        client.read(&block);
        assert_eq!(client.fault.map(|it| it.reason), Some(Reason::ENHANCE_YOUR_CALM));
    }
}

/// Each of them costs the side that reads it more than the one that sends it. A flood of what is
/// cheap to read is taken, and what it costs is measured by a benchmark.
#[test]
fn floods_end_a_connection_before_they_cost_memory() {
    let block = encode_connect("a:1", &HeaderMap::new());
    let open = |flags| raw(kind::HEADERS, flags, 3, &block);
    let floods = [
        raw(kind::PING, 0, 0, &[0; 8]).repeat(10_000),
        raw(kind::SETTINGS, 0, 0, &[]).repeat(10_000),
        raw(kind::DATA, 0, 1, &[]).repeat(200),
        [open(0), raw(kind::CONTINUATION, 0, 3, &[]).repeat(100)].concat(),
        [open(0), raw(kind::CONTINUATION, 0, 3, &[0; 1000]).repeat(10)].concat(),
        // A stream that is refused, again and again.
        (0..10_000u32)
            .flat_map(|it| raw(kind::HEADERS, flag::END_HEADERS, 2 * it + 3, &block))
            .collect(),
        // A stream that is malformed.
        (0..10_000u32)
            .flat_map(|it| raw(kind::HEADERS, flag::END_HEADERS, 2 * it + 3, &[0x82]))
            .collect(),
        // More fields than are taken, behind a stream that our side has let go of.
        [
            raw(kind::HEADERS, flag::END_HEADERS, 3, &[0x82]),
            raw(kind::HEADERS, flag::END_HEADERS, 3, &[0x82; 1000]).repeat(10_000),
        ]
        .concat(),
        // Fields behind such a stream.
        [
            raw(kind::HEADERS, flag::END_HEADERS, 3, &[0x82]),
            raw(kind::HEADERS, flag::END_HEADERS, 3, &[0x86]).repeat(10_000),
        ]
        .concat(),
    ];
    for flood in floods {
        let mut server = served(&flood);
        assert_eq!(server.fault.map(|it| it.reason), Some(Reason::ENHANCE_YOUR_CALM));
        assert!(server.session.take_output().len() < 100 * 1024);
        assert!(server.session.streams() <= 2 * LIMITS.streams as usize);
    }
}

#[test]
fn a_client_takes_answers_to_its_own_streams_alone() {
    let ok = |stream, flags| raw(kind::HEADERS, flags | flag::END_HEADERS, stream, &[0x88]);
    let early = raw(kind::HEADERS, flag::END_HEADERS, 1, &[8, 3, b'1', b'0', b'3']);
    let cases = [
        (ok(3, 0), Err(Reason::PROTOCOL_ERROR)),
        (ok(2, 0), Err(Reason::PROTOCOL_ERROR)),
        (raw(kind::SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 1]), Err(Reason::PROTOCOL_ERROR)),
        (raw(kind::DATA, 0, 1, b"x"), Ok("1 PROTOCOL_ERROR")),
        (raw(kind::HEADERS, flag::END_HEADERS, 1, &[0x82]), Ok("1 PROTOCOL_ERROR")),
        ([early, ok(1, flag::END_STREAM)].concat(), Ok("1 200.")),
    ];
    for (bytes, expected) in cases {
        let mut client = End::new(Role::Client);
        client.read(&raw(kind::SETTINGS, 0, 0, &[]));
        client.session.connect("a:1", &HeaderMap::new()).expect("room");
        client.got.clear();
        client.read(&bytes);
        let heard = client.heard().join(" ");
        let got = client.fault.map_or(Ok(&*heard), |fault| Err(fault.reason));
        assert_eq!(got, expected);
    }
    let mut client = End::new(Role::Client);
    let most = [0, setting::MAX_CONCURRENT_STREAMS as u8, 0, 0, 0, 1];
    client.read(&raw(kind::SETTINGS, 0, 0, &most));
    assert!(client.session.connect("a:1", &HeaderMap::new()).is_some());
    assert!(client.session.connect("a:1", &HeaderMap::new()).is_none());
}

proptest! {
    /// However the bytes are cut, the same is read.
    #[test]
    fn cuts_change_nothing(cuts in prop::collection::vec(1usize..40, 1..200)) {
        let mut bytes = BytesMut::new();
        for (number, end) in [(3, false), (5, true)] {
            put_block(number, &encode_connect("b:1", &HeaderMap::new()), end, 7, &mut bytes);
        }
        bytes.put_slice(&raw(kind::DATA, flag::PADDED, 1, b"\x04hello\0\0\0\0"));
        bytes.put_slice(&raw(kind::PING, 0, 0, b"question"));
        bytes.put_slice(&raw(kind::DATA, flag::END_STREAM, 3, b"the end"));
        bytes.put_slice(&raw(kind::RST_STREAM, 0, 1, &[0, 0, 0, 8]));
        let mut whole = served(&bytes);
        let mut cut = served(&[]);
        let mut rest = &bytes[..];
        for size in cuts.iter().cycle() {
            let (now, later) = rest.split_at((*size).min(rest.len()));
            cut.read(now);
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!((whole.fault, cut.fault), (None, None));
        prop_assert_eq!(joined(whole.got), joined(cut.got));
        prop_assert_eq!(whole.session.take_output(), cut.session.take_output());
    }

    /// Frames without sense never panic, and what they make is bounded.
    #[test]
    fn nonsense_is_survived(
        frames in prop::collection::vec(
            (0u8..11, any::<u8>(), 0u32..8, prop::collection::vec(any::<u8>(), 0..40)),
            0..60,
        ),
        noise in prop::collection::vec(any::<u8>(), 0..30),
    ) {
        let frames: Vec<_> =
            frames.iter().map(|(kind, flags, on, it)| raw(*kind, *flags, *on, it)).collect();
        let mut server = served(&[frames.concat(), noise].concat());
        prop_assert!(server.session.take_output().len() < 100 * 1024);
        prop_assert!(server.session.streams() <= 2 * LIMITS.streams as usize);
    }
}

/// Events, in which the pieces of one stream that follow each other are put together.
fn joined(events: Vec<Event>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut open = None;
    for event in events {
        match event {
            Event::Data { stream, bytes, is_last } => {
                let piece = format!("{}{}", bytes.escape_ascii(), if is_last { "." } else { "" });
                match all.last_mut() {
                    Some(last) if open == Some(stream) => last.push_str(&piece),
                    _ => all.push(format!("{stream} {piece}")),
                }
                open = Some(stream);
            }
            other => {
                all.push(short(&other));
                open = None;
            }
        }
    }
    all
}
