//! Clients that give up while their server reads nothing give everything back.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use ambit_net::socket::set_linger_reset;

use super::greed::keep;
use super::slow_readers::{fill, narrow};
use super::world::{self, PodBox, World};
use super::{PLACES, Pair, Place, at, wait_until};

/// Attempts of one client.
const ATTEMPTS: usize = 60;

/// What the proxies have lent: connections, and descriptors for them.
fn lent(pair: &Pair) -> (usize, usize) {
    let proxies = pair.proxies();
    let open = proxies.iter().map(|it| it.list().len()).sum();
    (open, proxies.iter().map(|it| it.shared.mesh.descriptors.used().0).sum())
}

/// Fills connections, resets them, and waits until nothing of theirs is left.
fn check(what: &str, pair: &Pair, client: &PodBox, to: SocketAddr) {
    // What stays, such as a pooled connection, is there from now on.
    let mut first = client.connect(to).unwrap();
    first.write_all(b"first").unwrap();
    wait_until("the first one stands", || lent(pair).0 > 0);
    set_linger_reset(&first).unwrap();
    drop(first);
    wait_until("the first one is gone", || lent(pair).0 == 0);
    let (_, base) = lent(pair);

    let mut streams: Vec<TcpStream> = (0..ATTEMPTS).map(|_| client.connect(to).unwrap()).collect();
    streams.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
    fill(&mut streams);
    let (open, used) = lent(pair);
    println!("{what}: {open} connections, {used} descriptors, {base} before");
    assert!(open >= ATTEMPTS && used >= base + ATTEMPTS, "{what}: {open} {used} {base}");
    streams.iter().for_each(|stream| set_linger_reset(stream).unwrap());
    drop(streams);
    wait_until(what, || {
        let (open, used) = lent(pair);
        open == 0 && used <= base
    });
}

in_namespaces! {
    fn who_gives_up_before_a_server_that_reads_nothing_gives_everything_back() {
        for place in PLACES {
            let world = World::new();
            let pair = Pair::new(&world, place);
            [&pair.client, &pair.server].into_iter().for_each(narrow);
            keep(&pair.server, 9000);
            let to = at(pair.server.v4, 9000);
            check(&format!("{place:?}"), &pair, &pair.client, to);
        }
    }

    fn who_gives_up_in_plain_text_gives_everything_back() {
        let world = World::new();
        let pair = Pair::new(&world, Place::Apart);
        let stranger = world.pod("stranger", "stranger");
        [&pair.client, &pair.server, &stranger].into_iter().for_each(narrow);
        keep(&pair.server, 9000);
        keep(&stranger, 9000);
        check("plain, inbound", &pair, &stranger, at(pair.server.v4, 9000));
        check("plain, outbound", &pair, &pair.client, at(stranger.v4, 9000));
    }
}
