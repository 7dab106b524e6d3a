//! A pod without rights opens as many connections as it can: what others notice.

use http::Method;
use serde_json::Value;

use crate::machine::{Machine, SETTLE_TIMEOUT};

/// Files that a process of this machine may open, so that the attack is over soon. The proxy may
/// use some 950 for connections.
const OPEN_FILES: usize = 1_500;
/// Connections that the attacker tries to have at a time.
const CONNECTIONS: usize = 900;
/// A request to the server, by bash alone.
const ASK: &str = "exec 3<>/dev/tcp/web.app/80; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; \
                   IFS= read -r -t 5 line <&3; echo \"$line\"";

#[test]
fn a_greedy_pod_stalls_itself_and_status_says_so() {
    let machine = Machine::up_with_open_files("greed", OPEN_FILES);
    let shares = || -> Value {
        serde_json::from_str(&machine.admin("node-2", Method::GET, "/shares")).unwrap_or_default()
    };
    assert!(machine.ambit(&["status"]).status.success(), "all is well");
    let server = machine.pod_ip("app", "server", false);
    let open = format!(
        "echo $$ > /tmp/greedy; for i in $(seq {CONNECTIONS}); do \
         exec {{fd}}<>/dev/tcp/{server}/9000; done; sleep 60"
    );
    let mut attack = machine.spawn(&["exec", "client/load", "--", "bash", "-c", &open]);
    drop((attack.stdin.take(), attack.stdout.take(), attack.stderr.take()));
    machine.wait("the attacker has all it can get", SETTLE_TIMEOUT, || {
        machine.established("client/load", 9000) > CONNECTIONS / 10
            && !machine.ambit(&["status"]).status.success()
    });
    let status = machine.ambit(&["status"]);
    println!("{}{}", status.out, shares());
    let line = status.out.lines().find(|it| it.starts_with("share used up on node-2: "));
    let line = line.unwrap_or_else(|| panic!("{}", status.out));
    for word in ["pod app/server, inbound", "spiffe://cluster.local/ns/client/sa/load at "] {
        assert!(line.contains(word), "{line}");
    }
    assert!(machine.is_ready("node-1") && machine.is_ready("node-2"), "both nodes go on");
    // A neighbour of the attacker, one of the victim, and one outside the mesh.
    for pod in ["client/other", "client/near", "outside/stranger"] {
        for _ in 0..3 {
            let said = machine.bash(pod, ASK);
            assert!(said.contains("200 OK"), "{pod}: {said}");
        }
    }
    attack.kill().expect("it runs");
    attack.wait().expect("it ends");
    machine.bash("client/load", "kill $(cat /tmp/greedy)");
    machine
        .wait("all is well again", SETTLE_TIMEOUT, || machine.ambit(&["status"]).status.success());
    machine.down();
}
