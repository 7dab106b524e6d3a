//! An address moves from one pod to another while the proxies' view still names the first.
//!
//! A client that may reach the first pod must not thereby reach the second, and the second must not
//! pass for the first. Each second pod here would answer any client that reached its application:
//! the client reads the name of the pod that it has reached.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout};
use std::time::Duration;

use ambit_machine::PodInfo;

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};
use crate::policy::{from, logged};
use crate::size::sized;

/// The address that goes from hand to hand, on the servers' node.
const ADDRESSES: [&str; 2] = ["10.244.2.77", "fd00:10:244:2::4d"];
const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;
/// How long clients keep asking while the address changes hands.
const ASKING: Duration = Duration::from_secs(3);
/// Deaths of control while the address changes hands, for each successor, at full size.
const FULL_ROUNDS: u32 = 5;

/// A pod that has the address for a while.
#[derive(Clone, Copy)]
struct Holder {
    namespace: &'static str,
    name: &'static str,
    account: &'static str,
}

/// The first, which both clients may reach, and which alone gets the banner.
const VAULT: Holder = Holder { namespace: "app", name: "vault", account: "vault" };
/// Of another namespace, and of an identity whose certificate the proxy has at hand.
const THIEF: Holder = Holder { namespace: "client", name: "thief", account: "other" };
/// Of the same name.
const USURPER: Holder = Holder { namespace: "app", name: "vault", account: "usurper" };
/// Not in the mesh.
const OUTSIDER: Holder = Holder { namespace: "outside", name: "outsider", account: "default" };

/// What each pod of the address says, and who may connect to it.
const ALL: &str = "\
apiVersion: v1
kind: ServiceAccount
metadata: {name: vault, namespace: app}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: usurper, namespace: app}
---
apiVersion: v1
kind: Service
metadata: {name: vault, namespace: app}
spec: {selector: {app: vault}, ports: [{name: tcp, port: 9001}]}
";

/// In order: nobody but the vault gets the banner; `near` may not reach the successors.
fn policies() -> String {
    let policy = |name: &str, namespace: &str, spec: &str| {
        format!(
            "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
             metadata: {{name: {name}, namespace: {namespace}}}\nspec: {{action: DENY, {spec}}}\n"
        )
    };
    let banner = "selector: {matchLabels: {app: server}}, rules: [{from: [{source: \
                  {notPrincipals: [cluster.local/ns/app/sa/vault]}}], \
                  to: [{operation: {ports: [\"9001\"]}}]}]";
    let selected = |label: &str| {
        format!("selector: {{matchLabels: {{{label}}}}}, rules: [{{{}}}]", from("other"))
    };
    [
        policy("banner", "app", banner),
        policy("no-near", "client", &selected("account: other")),
        policy("no-near", "app", &selected("account: usurper")),
    ]
    .concat()
}

impl Holder {
    fn manifest(self) -> String {
        let Self { namespace, name, account } = self;
        let [address, _] = ADDRESSES;
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: {namespace}\n  \
             labels: {{app: {name}, account: {account}}}\n  \
             annotations: {{ambit.io/pod-ip: {address}}}\nspec:\n  \
             serviceAccountName: {account}\n  nodeName: node-2\n  containers:\n  \
             - name: banner\n    image: ambit/sample:1\n    \
             args: [banner, --listen, \"[::]:9001\", --line, \"{self}\"]\n    \
             readinessProbe: {{tcpSocket: {{port: 9001}}}}\n"
        )
    }

    fn pod(self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    fn is_in_mesh(self) -> bool {
        self.namespace != OUTSIDER.namespace
    }
}

impl std::fmt::Display for Holder {
    /// What it sends to every client that reaches it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "I am {}/{} as {}", self.namespace, self.name, self.account)
    }
}

#[test]
fn who_inherits_an_address_inherits_nothing_else() {
    let machine = Machine::up("reuse", Mesh::On, &[]);
    machine.apply(&format!("{ALL}{}", policies()));
    for successor in [THIEF, USURPER, OUTSIDER] {
        while_control_is_away(&machine, successor);
        for _ in 0..sized(FULL_ROUNDS, 1) {
            while_control_dies(&machine, successor);
        }
    }
    machine.down();
}

/// The view is stale for as long as the test wants.
fn while_control_is_away(machine: &Machine, successor: Holder) {
    first_holder(machine);
    machine.signal("control", SIGSTOP);
    hand_over(machine, successor);
    assert_eq!(hear(machine, &successor.pod(), "127.0.0.1"), successor.to_string(), "it serves");
    std::thread::scope(|scope| {
        // A refusal may take seconds: all at once.
        for (client, host) in every_way() {
            scope.spawn(move || {
                assert_eq!(hear(machine, client, host), "", "{client} to {host}, now {successor}");
            });
        }
    });
    let refused = ["connection failed", "direction=outbound", "src.workload=near", "error="];
    logged(machine, "node-2", &[&refused[..], &[ADDRESSES[0]]].concat());
    // Nor is it taken for the one whose address it has.
    assert_eq!(hear(machine, &successor.pod(), "banner.app"), "");

    machine.signal("control", SIGCONT);
    judged_as_itself(machine, successor);
    leave(machine, successor);
}

/// The view is stale for as long as the control plane takes to come back; clients ask all the time.
fn while_control_dies(machine: &Machine, successor: Holder) {
    first_holder(machine);
    let asking = ["client/near", "client/load"].map(|client| Asking::start(machine, client));
    let before = machine.restarts("control");
    machine.signal("control", SIGKILL);
    hand_over(machine, successor);
    machine.wait("control is back", SETTLE_TIMEOUT, || machine.restarts("control") == before + 1);
    judged_as_itself(machine, successor);
    for asking in asking {
        let (client, heard) = asking.end();
        let of = |holder: Holder| heard.lines().filter(|it| *it == holder.to_string()).count();
        let (first, second) = (of(VAULT), of(successor));
        eprintln!("{client} heard {first} times \"{VAULT}\", {second} times \"{successor}\"");
        assert_eq!(first + second, heard.lines().count(), "{client} heard {heard}");
        if client == "client/near" && successor.is_in_mesh() {
            assert_eq!(second, 0, "{client} may not talk to {successor}");
        }
    }
    leave(machine, successor);
}

/// The first pod of the address, which the clients may talk to.
fn first_holder(machine: &Machine) {
    machine.apply(&VAULT.manifest());
    for (client, host) in every_way() {
        machine.wait(&format!("{client} reaches the vault at {host}"), SETTLE_TIMEOUT, || {
            hear(machine, client, host) == VAULT.to_string()
        });
    }
    machine.wait("the vault is told the banner", SETTLE_TIMEOUT, || {
        hear(machine, &VAULT.pod(), "banner.app") == "220 speaks first"
    });
    assert_eq!(machine.why("client/near", "app/vault:9001")["plan"], "local", "they are joined");
}

/// Each client, and each way to the vault.
fn every_way() -> impl Iterator<Item = (&'static str, &'static str)> {
    let hosts = ADDRESSES.into_iter().chain(["vault.app"]);
    hosts.flat_map(|host| ["client/near", "client/load"].map(|client| (client, host)))
}

/// Deletes the first holder and gives its address to another, without notice to control.
fn hand_over(machine: &Machine, successor: Holder) {
    leave(machine, VAULT);
    change(machine, "apply", successor);
    machine.wait("the successor has the address", SETTLE_TIMEOUT, || {
        let holders = holders(machine);
        holders.len() == 1 && holders.iter().all(|pod| pod.ready && pod.name == successor.name)
    });
}

/// Deletes a holder and waits until its address is free.
fn leave(machine: &Machine, holder: Holder) {
    change(machine, "delete", holder);
    machine.wait("the address is free", SETTLE_TIMEOUT, || holders(machine).is_empty());
}

/// Changes the registry and does not wait for control.
fn change(machine: &Machine, verb: &str, holder: Holder) {
    let said = machine.ambit_with(&[verb, "--no-wait", "-"], &holder.manifest());
    assert!(said.status.success(), "ambit {verb}: {}", said.err);
}

/// The pods that have the address.
fn holders(machine: &Machine) -> Vec<PodInfo> {
    let mut pods = machine.pods();
    pods.retain(|pod| pod.pod_ips.iter().any(|ip| ip.to_string() == ADDRESSES[0]));
    pods
}

/// Once the view is right, the policies hold for the pod that is there.
fn judged_as_itself(machine: &Machine, successor: Holder) {
    let [address, _] = ADDRESSES;
    machine.wait("client/load is let in to the successor", SETTLE_TIMEOUT, || {
        hear(machine, "client/load", address) == successor.to_string()
    });
    if !successor.is_in_mesh() {
        // The proxy of another node may learn of it later.
        machine.wait("client/near is let in to the successor", SETTLE_TIMEOUT, || {
            hear(machine, "client/near", address) == successor.to_string()
        });
    } else {
        assert_eq!(hear(machine, "client/near", address), "", "{successor}");
        let policy = format!("{}/no-near", successor.namespace);
        logged(machine, "node-2", &["connection failed", "src.workload=near", &policy]);
    }
    assert_eq!(hear(machine, &successor.pod(), "banner.app"), "", "it is not the vault");
}

/// What a pod reads from the server that answers at this host.
fn hear(machine: &Machine, pod: &str, host: &str) -> String {
    let script = format!(
        "exec 2>/dev/null; timeout 4 bash -c \
         'exec 3<>/dev/tcp/{host}/9001 && read -r -t 3 line <&3 && echo \"$line\"'"
    );
    machine.bash(pod, &script).trim().to_owned()
}

/// A client that queries the holder of the address again and again.
struct Asking {
    client: &'static str,
    child: Child,
    answers: BufReader<ChildStdout>,
    first: String,
}

impl Asking {
    /// Starts it, and returns when the vault has answered.
    fn start(machine: &Machine, client: &'static str) -> Self {
        let (seconds, [address, _]) = (ASKING.as_secs(), ADDRESSES);
        let script = format!(
            "exec 2>/dev/null; while [ $SECONDS -lt {seconds} ]; do \
             (exec 3<>/dev/tcp/{address}/9001 && read -r -t 1 line <&3 && echo \"${{line%?}}\"); \
             sleep 0.02; done"
        );
        let mut child = machine.spawn(&["exec", client, "--", "bash", "-c", &script]);
        let mut answers = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let mut first = String::new();
        answers.read_line(&mut first).expect("the answers are text");
        assert_eq!(first.trim_end(), VAULT.to_string(), "{client}");
        Self { client, child, answers, first }
    }

    /// Waits for its end: who asked, and all answers.
    fn end(mut self) -> (&'static str, String) {
        self.answers.read_to_string(&mut self.first).expect("the answers are text");
        assert!(self.child.wait().expect("it ends").success(), "{}", self.client);
        (self.client, self.first)
    }
}
