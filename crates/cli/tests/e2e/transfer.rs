//! Bytes of every kind through the mesh, across nodes: much, both ways at once, server first, IPv6,
//! many.

use std::path::Path;
use std::time::Duration;

use ambit_net::sys::capability;

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};
use crate::size::sized;

/// Bytes each way of the bulk transfer, and at full size.
const BULK_BYTES: u64 = 256 << 20;
const FULL_BULK_BYTES: u64 = 1 << 30;
/// See capabilities(7).
const CAP_SYS_ADMIN: u64 = 1 << 21;
/// Connections at once, half of them idle.
const MANY: usize = 2000;

#[test]
fn bytes_of_every_kind_pass_faithfully() {
    let machine = Machine::up("bytes", Mesh::On, &[]);
    bulk(&machine);
    server_first(&machine);
    source_address_is_kept(&machine);
    ipv6(&machine);
    many(&machine);
    same_node(&machine);
    machine.down();
}

/// Much each way, with checksums; the client half-closes and still gets everything back.
fn bulk(machine: &Machine) {
    let bytes = sized(FULL_BULK_BYTES, BULK_BYTES);
    let words = format!("bulk echo.app:9000 --bytes {bytes}");
    let result = machine.load("client/load", &words).bulk();
    assert!(result.matching && result.bytes_each_way == bytes, "{result:?}");
    let mebibytes = bytes >> 20;
    let gigabits = result.gigabits_per_second_each_way;
    eprintln!("bulk: {mebibytes} MiB and {gigabits:.2} Gbit/s each way");
    let labels = ["reporter=\"destination\"", "security_policy=\"mutual_tls\""];
    machine.wait("the server's proxy has counted the bytes", SETTLE_TIMEOUT, || {
        machine.counted("node-2", "istio_tcp_received_bytes_total", &labels) >= bytes
            && machine.counted("node-2", "istio_tcp_sent_bytes_total", &labels) >= bytes
    });
}

/// The server speaks before the client has sent a byte.
fn server_first(machine: &Machine) {
    let script = "exec 3<>/dev/tcp/banner.app/9001; read -t 10 line <&3; echo \"$line\"";
    assert_eq!(machine.bash("client/load", script).trim(), "220 speaks first");
}

/// The application sees its client's own address, not a proxy's.
fn source_address_is_kept(machine: &Machine) {
    let client = machine.pod_ip("client", "load", false);
    let server = machine.pod_ip("app", "server", false);
    let answer = machine.bash("client/load", &get(&server, 8080));
    assert!(answer.contains(&format!("\"client\": \"{client}:")), "{answer}");
}

/// To the pod's address, and to a service that has only an AAAA record.
fn ipv6(machine: &Machine) {
    let (client, server) =
        (machine.pod_ip("client", "load", true), machine.pod_ip("app", "server", true));
    let answer = machine.bash("client/load", &get(&server, 8080));
    assert!(answer.contains(&format!("\"client\": \"[{client}]:")), "{answer}");
    let names = machine.bash("client/load", "getent ahosts web6.app");
    assert!(names.starts_with("fd00:"), "{names}");
    for target in [format!("[{server}]:9000"), "web6.app:9000".to_owned()] {
        let words = format!("long {target} --connections 3 --seconds 1.5");
        let load = machine.load("client/load", &words);
        machine.wait("the connections are tunnelled", Duration::from_secs(2), || {
            let there = machine.connections(9000);
            let expected = format!("[{server}]:9000");
            there.len() == 3
                && there.iter().all(|it| {
                    it["plan"] == "tunnel" && it["destinationAddress"].as_str() == Some(&expected)
                })
        });
        let result = load.long();
        assert_eq!((result.opened, result.cut), (3, 0), "{target}: {result:?}");
    }
}

fn many(machine: &Machine) {
    let words = format!(
        "long echo.app:9000 --connections {MANY} --idle {} --seconds 6 --interval 1",
        MANY / 2
    );
    let load = machine.load("client/load", &words);
    machine
        .wait("all connections stand", SETTLE_TIMEOUT, || machine.connections(9000).len() == MANY);
    let groups = machine.connections(9000);
    assert!(groups.iter().all(|it| it["tlsGroup"] == "X25519MLKEM768"), "{:?}", groups.first());
    let result = load.long();
    assert_eq!(
        (result.opened, result.failed_to_open, result.cut),
        (MANY as u64, 0, 0),
        "{result:?}"
    );
    let seconds = result.slowest_ping_us as f64 / 1e6;
    eprintln!("{MANY} connections: {} pings, the slowest took {seconds:.2} s", result.pings);
    machine.wait("none is left", SETTLE_TIMEOUT, || machine.connections(9000).is_empty());
}

/// Between pods of one node, joined without TLS.
fn same_node(machine: &Machine) {
    let load = machine
        .load("client/near", "long echo.app:9000 --connections 2 --seconds 1.5 --interval 0.02");
    machine.wait("the connections are joined", Duration::from_secs(2), || {
        let there = machine.connections(9000);
        there.len() == 2 && there.iter().all(|it| it["plan"] == "local")
    });
    let result = load.long();
    assert_eq!((result.opened, result.cut), (2, 0), "{result:?}");
    let result = machine.load("client/near", "bulk echo.app:9000 --bytes 33554432").bulk();
    assert!(result.matching, "{result:?}");
    // Nobody has asked for it (`--kernel-path auto`).
    let counted = |metric: &str| machine.counted("node-2", metric, &[]);
    assert_eq!(counted("ambit_kernel_path"), u64::from(may_join_in_the_kernel()));
    if may_join_in_the_kernel() {
        machine.wait("bytes that went past the proxy are counted", SETTLE_TIMEOUT, || {
            counted("ambit_kernel_path_connections_total") > 0
                && counted("ambit_kernel_path_bytes_total") > 0
        });
    }
}

/// Whether this computer lets a proxy join sockets in the kernel.
fn may_join_in_the_kernel() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux");
    let mut numbers = release.split(['.', '-']).map_while(|it| it.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let is_admin = capability::effective().expect("Linux") & CAP_SYS_ADMIN != 0;
    is_admin && version >= (6, 13) && Path::new("/sys/kernel/btf/vmlinux").exists()
}

/// A script that prints what a server answers.
pub(crate) fn get(host: &str, port: u16) -> String {
    format!(
        "exec 3<>/dev/tcp/{host}/{port} && \
         printf 'GET / HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n' >&3 && \
         timeout 10 cat <&3"
    )
}
