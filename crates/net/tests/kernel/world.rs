//! Network namespaces for tests: each test creates and removes its own, and never touches the
//! host's.
//!
//! Tests that need root and are started without it run again inside their own user namespace. Where
//! that is not allowed either they fail; they are never skipped.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use ambit_net::namespace::NetNs;
use ambit_net::netlink::RouteSocket;
use ambit_net::sys::mount::{self, MountOptions};
use ambit_net::sys::process::{self, Namespaces};

/// Set in the process that runs inside the user namespace.
const INSIDE: &str = "AMBIT_TEST_IN_USER_NAMESPACE";

/// No exchange over loopback takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Runs a test body with the rights of root over new network namespaces.
pub(crate) fn privileged(test: &str, body: impl FnOnce()) {
    if process::effective_uid() == 0 || std::env::var_os(INSIDE).is_some() {
        return body();
    }
    // "crate::module::name" without the crate.
    let name = test.split_once("::").unwrap().1;
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", name, "--nocapture"]).env(INSIDE, "1");
    process::start_in_namespaces(
        &mut again,
        Namespaces::USER | Namespaces::NET | Namespaces::MOUNT,
    );
    let output = again.output().expect("user namespaces, or root, are needed for this test");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "inside: {output:?}");
}

/// Whether this process is root of a user namespace that [`privileged`] made, and of nothing else.
pub(crate) fn is_in_a_user_namespace() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs `work` where `/proc/sys` is as containers see it.
pub(crate) fn where_proc_sys_is_read_only<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let thread = move || {
        process::unshare(Namespaces::MOUNT).unwrap();
        mount::make_private().unwrap();
        let path = Path::new("/proc/sys");
        mount::bind(path, path).unwrap();
        let options = MountOptions { read_only: true, no_suid: true, no_dev: true, no_exec: true };
        mount::remount_bind(path, options).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(thread).join().unwrap())
}

/// Declares tests that run [`privileged`].
macro_rules! privileged_tests {
    ($($(#[$meta:meta])* fn $name:ident() $body:block)*) => {
        $($(#[$meta])* #[test]
        fn $name() {
            $crate::world::privileged(concat!(module_path!(), "::", stringify!($name)), || $body);
        })*
    };
}
pub(crate) use privileged_tests;

/// A namespace with loopback only.
pub(crate) fn lonely() -> NetNs {
    let namespace = NetNs::create().unwrap();
    RouteSocket::open_in(&namespace).unwrap().set_up("lo").unwrap();
    namespace
}

/// A client and a server, joined by a cable.
pub(crate) struct Pair {
    pub(crate) client: NetNs,
    pub(crate) server: NetNs,
}

pub(crate) const CLIENT_V4: &str = "10.9.0.1";
pub(crate) const SERVER_V4: &str = "10.9.0.2";
pub(crate) const CLIENT_V6: &str = "fd09::1";
pub(crate) const SERVER_V6: &str = "fd09::2";

impl Pair {
    pub(crate) fn new() -> Self {
        let (client, server) = (lonely(), lonely());
        let mut here = RouteSocket::open_in(&client).unwrap();
        let mut there = RouteSocket::open_in(&server).unwrap();
        here.ensure_veth("eth0", "eth0", Some(&server)).unwrap();
        for (socket, v4, v6) in
            [(&mut here, CLIENT_V4, CLIENT_V6), (&mut there, SERVER_V4, SERVER_V6)]
        {
            socket.ensure_address("eth0", format!("{v4}/24").parse().unwrap()).unwrap();
            socket.ensure_address("eth0", format!("{v6}/64").parse().unwrap()).unwrap();
            socket.set_up("eth0").unwrap();
        }
        Self { client, server }
    }
}

/// Both address families of the server.
pub(crate) fn server_ips() -> [IpAddr; 2] {
    [SERVER_V4.parse().unwrap(), SERVER_V6.parse().unwrap()]
}

/// Accepts one connection and answers with `answer(stream)` as text.
pub(crate) fn serve_once(
    listener: TcpListener,
    answer: impl FnOnce(&TcpStream) -> String + Send + 'static,
) -> JoinHandle<()> {
    listener.set_nonblocking(false).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let text = answer(&stream);
        stream.write_all(text.as_bytes()).unwrap();
    })
}

/// Connects from a namespace and reads all that the server says.
pub(crate) fn ask(from: &NetNs, to: SocketAddr) -> std::io::Result<String> {
    let mut stream = from.run(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
