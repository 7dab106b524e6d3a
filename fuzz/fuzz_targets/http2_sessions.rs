//! HTTP/2 of tunnels: a peer's bytes in any pieces, between what our side does meanwhile.
#![no_main]

use ambit_wire::http2::{Event, Limits, Reason, Role, Session};
use bytes::BytesMut;
use http::{HeaderMap, StatusCode};
use libfuzzer_sys::fuzz_target;

const LIMITS: Limits =
    Limits { streams: 8, frame_bytes: 16_384, field_bytes: 4096, stream_window_bytes: 65_535 };
const BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fuzz_target!(|data: &[u8]| {
    let Some((first, mut rest)) = data.split_first() else { return };
    let role = if first & 1 == 0 { Role::Server } else { Role::Client };
    let mut session = Session::new(role, LIMITS);
    let mut input = BytesMut::from(if role == Role::Server { BEGIN } else { &BEGIN[24..] });
    if role == Role::Client {
        for _ in 0..3 {
            session.connect("10.0.0.1:80", &HeaderMap::new());
        }
    }
    // What tunnels have got and not handed on.
    let mut held = Vec::new();
    while let Some((size, after)) = rest.split_first() {
        let (now, later) = after.split_at(usize::from(*size).min(after.len()));
        input.extend_from_slice(now);
        rest = later;
        loop {
            match session.next(&mut input) {
                Ok(Some(event)) => act(&mut session, event, *size, &mut held),
                Ok(None) => break,
                Err(fault) => return session.fail(fault),
            }
        }
        assert!(session.streams() <= 16);
        meanwhile(&mut session, *size, &mut held);
        session.announce();
        if size % 4 == 0 {
            assert!(session.take_output().len() < 512 * 1024);
        }
    }
});

/// What our side might do by itself.
fn meanwhile(session: &mut Session, choice: u8, held: &mut Vec<(u32, usize)>) {
    let bytes = u32::from(choice) << 10;
    match choice % 11 {
        0 => held.drain(..).for_each(|(stream, bytes)| session.release(stream, bytes)),
        // Of a stream that may be gone by now.
        1 => held.pop().into_iter().for_each(|(stream, bytes)| session.release(stream, bytes)),
        2 | 3 => session.set_window(65_535.max(bytes)),
        4 | 5 => {
            session.set_stream_window(bytes);
        }
        6 => session.ping([choice; 8]),
        7 => session.reset(u32::from(choice) / 11, Reason::CANCEL),
        8 if choice > 200 => session.leave(),
        _ => {}
    }
}

/// What a tunnel might do.
fn act(session: &mut Session, event: Event, choice: u8, held: &mut Vec<(u32, usize)>) {
    match event {
        Event::Request { stream, .. } if choice & 1 == 0 => {
            session.respond(stream, StatusCode::OK, &HeaderMap::new(), choice & 2 == 0);
        }
        Event::Request { stream, .. } | Event::Reset { stream, .. } => session.close(stream),
        Event::Data { stream, bytes, .. } => {
            if choice & 8 == 0 {
                session.release(stream, bytes.len());
            } else {
                held.push((stream, bytes.len()));
            }
            let room = session.sendable(stream).min(session.frame_bytes()).min(100);
            if room > 0 {
                let _head = session.data(stream, room, choice & 4 == 0);
            }
        }
        Event::Leaving { .. } => session.leave(),
        _ => {}
    }
}
