//! `ambit up --egress`: pods reach the outside when asked, only what they may, and never the host.
//!
//! Two namespaces play the host, where `ambit up` runs, and the outside, where a server and a
//! resolver are. The host's `resolv.conf` is one of a mount namespace of its own. Making them needs
//! root, also for the machine of a user without root.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ambit_machine::Record;
use ambit_net::namespace::NetNs;
use ambit_net::sys::process::{self, Signal};

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT, app, binary};

/// A pod that no mesh captures.
const PLAIN: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: outside}
spec:
  nodeName: node-2
  containers: [{name: app, image: \"ambit/sample:1\", args: [tcp-echo, --listen, \"[::]:9000\"]}]
";

const FENCE: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: \"outboundTrafficPolicy: {mode: REGISTRY_ONLY}\"}
";

/// The one host that the fence lets through, which the node's proxy looks up itself.
const ENTRY: &str = "\
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: named, namespace: client}
spec:
  hosts: [named.example]
  resolution: DNS
  endpoints: [{address: out.example}]
  ports: [{number: 7000, name: tcp, protocol: TCP}]
";

/// Makes the two namespaces and keeps them until its input closes. The host's resolver is outside,
/// and so are a network behind another and a cloud's metadata service.
const HOST: &str = r#"
set -e
echo "nameserver 192.0.2.7" > "$0"
mount --bind "$0" /etc/resolv.conf
ip link set lo up
unshare --net sleep infinity < /dev/null > /dev/null &
outside=$!
trap "kill $outside" EXIT
own=$(readlink /proc/self/ns/net)
while [ "$(readlink /proc/$outside/ns/net)" = "$own" ]; do sleep 0.01; done
ip link add host0 type veth peer name out0 netns $outside
ip addr add 192.0.2.1/24 dev host0
ip addr add 2001:db8::1/64 dev host0 nodad
ip link set host0 up
ip route add 198.51.100.0/24 via 192.0.2.7
ip route add 169.254.169.254 via 192.0.2.7
nsenter --net=/proc/$outside/ns/net bash -ec '
  ip link set lo up
  for ip in 198.51.100.7/32 169.254.169.254/32; do ip addr add $ip dev lo; done
  ip addr add 192.0.2.7/24 dev out0
  ip addr add 2001:db8::7/64 dev out0 nodad
  ip link set out0 up
'
echo $outside
cat > /dev/null
"#;

/// A user without privileges.
const NOBODY: u32 = 65_534;
const CAPTURED: &str = "client/load";
const UNCAPTURED: &str = "outside/plain";

/// The host and the outside; gone when dropped.
struct Scene {
    host: Child,
    outside: NetNs,
    /// What the host's resolvers are read from.
    _resolv_conf: tempfile::NamedTempFile,
}

impl Scene {
    fn new() -> Self {
        let resolv_conf = tempfile::NamedTempFile::new().expect("a file");
        fs::set_permissions(resolv_conf.path(), Permissions::from_mode(0o644)).expect("set");
        let mut host = Command::new("unshare")
            .args(["--net", "--mount", "bash", "-c", HOST])
            .arg(resolv_conf.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let mut line = String::new();
        let said = host.stdout.as_mut().expect("its output is a pipe");
        BufReader::new(said).read_line(&mut line).expect("it is text");
        let outside = NetNs::of_pid(line.trim().parse().expect("the host is made")).expect("there");
        let scene = Self { host, outside, _resolv_conf: resolv_conf };
        scene.serve();
        scene
    }

    fn host_netns(&self) -> NetNs {
        NetNs::of_pid(self.host.id().try_into().expect("process ids are positive")).expect("there")
    }

    /// Serves outside and on the host's loopback, until the test process ends.
    fn serve(&self) {
        let outside = self.outside.run(|| {
            greet("[::]:7000", "outside");
            resolve(UdpSocket::bind("0.0.0.0:53").expect("a resolver"));
        });
        outside.expect("the outside is there");
        self.host_netns().run(|| greet("127.0.0.1:7001", "loopback")).expect("the host is there");
    }

    /// Starts a program where the host is, when it gets its words.
    fn program(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.host.id().to_string(), "--net", "--mount"]).args(words);
        command
    }

    /// `ambit up` of the application where the host is.
    fn up(&self, name: &'static str, flags: &[&str]) -> Machine {
        let machine = Machine::none(name);
        let program = self.program(&[binary().to_str().expect("its path is text")]);
        let words = [&["up", "-", "--detach"], flags].concat();
        let said = machine.ambit_by(program, &words, &application());
        assert!(said.status.success(), "ambit up: {}", said.err);
        machine.wait_until_meshed();
        machine
    }

    /// The processes of the host that connect machines to the outside.
    fn carriers(&self) -> Vec<String> {
        let own = fs::read_link(format!("/proc/{}/ns/net", self.host.id())).expect("it lives");
        let all = fs::read_dir("/proc").expect("there is /proc").flatten().map(|it| it.path());
        let is_carrier = |path: &std::path::PathBuf| {
            fs::read(path.join("cmdline"))
                .is_ok_and(|words| words.split(|byte| *byte == 0).nth(1) == Some(b"lab-egress"))
                && fs::read_link(path.join("ns/net")).is_ok_and(|netns| netns == own)
        };
        all.filter(is_carrier).map(|path| path.display().to_string()).collect()
    }

    /// No machine has a process on the host any more, as soon as the kernel has closed its socket.
    fn is_left(&self) {
        let start = Instant::now();
        while !self.carriers().is_empty() {
            assert!(start.elapsed() < SETTLE_TIMEOUT, "left: {:?}", self.carriers());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        drop(self.host.stdin.take());
        let _ended = self.host.wait();
    }
}

/// The application, two of whose namespaces are in the mesh, and a pod that is in neither.
fn application() -> String {
    format!("{}\n---\n{PLAIN}", app(Mesh::On))
}

/// Says this to everybody who connects.
fn greet(address: &str, greeting: &'static str) {
    let listener = TcpListener::bind(address).expect("the address is there");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Who only looks whether somebody accepts is gone.
            let _gone = writeln!(&stream, "{greeting}");
        }
    });
}

/// Knows `out.example` and `far.example` alone.
fn resolve(socket: UdpSocket) {
    thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut buffer) {
            let name_end = 12 + buffer[12..length].iter().position(|it| *it == 0).expect("a name");
            let end = name_end + 5;
            let (name, kind) = (&buffer[12..name_end], buffer[name_end + 2]);
            let address = match name {
                b"\x03out\x07example" => Some([192, 0, 2, 7]),
                b"\x03far\x07example" => Some([198, 51, 100, 7]),
                _ => None,
            };
            let answered = address.filter(|_| kind == 1);
            let header = [&buffer[..2], &[0x81, 0x80 | if address.is_some() { 0 } else { 3 }]];
            let counts = [0, 1, 0, u8::from(answered.is_some()), 0, 0, 0, 0];
            let mut reply = [&header.concat()[..], &counts, &buffer[12..end]].concat();
            if let Some(ip) = answered {
                reply.extend([&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4][..], &ip].concat());
            }
            socket.send_to(&reply, client).expect("the client is there");
        }
    });
}

/// Has bash print what it hears at once when it connects there.
fn listening(to: &str) -> String {
    format!("exec 3<>/dev/tcp/{to} && timeout 5 head -n 1 <&3")
}

fn heard(machine: &Machine, pod: &str, to: &str) -> String {
    machine.bash(pod, &listening(to))
}

fn reaches(machine: &Machine, pod: &str, to: &str) {
    machine.wait(&format!("{pod} reaches {to}"), SETTLE_TIMEOUT, || {
        heard(machine, pod, to) == "outside\n"
    });
}

fn does_not_reach(machine: &Machine, pod: &str, to: &str) {
    let said = heard(machine, pod, to);
    assert!(!said.contains("outside") && !said.contains("loopback"), "{pod} to {to}: {said}");
}

#[test]
fn pods_reach_the_outside_when_asked() {
    let scene = Scene::new();
    let machine = scene.up("way-out", &["--egress"]);
    assert_eq!(scene.carriers().len(), 1);
    for pod in [CAPTURED, UNCAPTURED] {
        for to in ["192.0.2.7/7000", "2001:db8::7/7000", "198.51.100.7/7000", "out.example/7000"] {
            reaches(&machine, pod, to);
        }
        // Nobody listens, no such name, the host's loopback by another address, metadata.
        for to in ["192.0.2.7/7002", "none.example/7000", "192.0.2.1/7001", "169.254.169.254/7000"]
        {
            does_not_reach(&machine, pod, to);
        }
    }
    let status = machine.run(&["status"]);
    assert!(status.contains("pods reach the outside by TCP: 0.0.0.0/0,::/0"), "{status}");
    assert!(status.contains("left alone: to the outside: UDP"), "{status}");
    open_files(&scene, &machine);
    // What is in force within the mesh stays in force.
    machine.apply(FENCE);
    machine.wait("the fence holds", SETTLE_TIMEOUT, || {
        !heard(&machine, CAPTURED, "192.0.2.7/7000").contains("outside")
    });
    does_not_reach(&machine, CAPTURED, "out.example/7000");
    reaches(&machine, UNCAPTURED, "out.example/7000");
    machine.apply(ENTRY);
    reaches(&machine, CAPTURED, "named.example/7000");
    machine.down();
    scene.is_left();
}

/// What carries connections may open as many files as it can, and programs of pods as many as the
/// machine was started with.
fn open_files(scene: &Scene, machine: &Machine) {
    let limits = |process: &str| {
        let text = fs::read_to_string(format!("{process}/limits")).expect("it lives");
        let line = text.lines().find(|line| line.starts_with("Max open files"));
        let line = line.expect("a limit").trim_start_matches("Max open files");
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        (words[0].clone(), words[1].clone())
    };
    let [carrier] = &scene.carriers()[..] else { panic!("one connects it to the outside") };
    let record = Record::read(&machine.layout).expect("the machine is recorded");
    for process in [carrier.clone(), format!("/proc/{}", record.pid)] {
        let (soft, hard) = limits(&process);
        assert_eq!(soft, hard, "{process}");
    }
    let (own, _) = limits("/proc/self");
    assert_eq!(machine.bash(UNCAPTURED, "ulimit -Sn").trim(), own);
}

#[test]
fn only_what_is_named_is_reached_and_without_the_flag_nothing() {
    let scene = Scene::new();
    let machine = scene.up("way-out-some", &["--egress=198.51.100.0/24"]);
    for pod in [CAPTURED, UNCAPTURED] {
        reaches(&machine, pod, "far.example/7000");
        for to in ["192.0.2.7/7000", "2001:db8::7/7000", "out.example/7000"] {
            does_not_reach(&machine, pod, to);
        }
    }
    let log = fs::read_to_string(machine.layout.role_log("lab", None)).expect("there is a log");
    assert!(log.contains("192.0.2.7:7000") && log.contains("--egress does not name it"), "{log}");
    let [carrier] = &scene.carriers()[..] else { panic!("one connects it to the outside") };
    let status = fs::read_to_string(format!("{carrier}/stat")).expect("it lives");
    let fields: Vec<&str> = status.rsplit(") ").next().expect("fields").split(' ').collect();
    assert_eq!(carrier.rsplit('/').next(), Some(fields[3]), "it leads a session of its own");
    // A machine that is killed leaves no process on the host, either.
    let footprint = machine.footprint();
    let record = Record::read(&machine.layout).expect("the machine is recorded");
    process::kill(record.pid, Signal::Kill).expect("killed");
    scene.is_left();
    machine.run(&["down"]);
    machine.was_taken_down(&footprint);
    let machine = scene.up("way-out-none", &[]);
    assert_eq!(scene.carriers(), [""; 0]);
    for pod in [CAPTURED, UNCAPTURED] {
        for to in ["192.0.2.7/7000", "2001:db8::7/7000", "far.example/7000"] {
            does_not_reach(&machine, pod, to);
        }
    }
    machine.down();
}

#[test]
fn a_machine_of_a_user_without_root_has_a_way_out_too() {
    let scene = Scene::new();
    let machine = Machine::none("way-out-user");
    fs::create_dir(machine.layout.root()).expect("a directory");
    unix::fs::chown(machine.layout.root(), Some(NOBODY), Some(NOBODY)).expect("given");
    // Where the user can run it.
    let programs = tempfile::tempdir().expect("a directory");
    fs::set_permissions(programs.path(), Permissions::from_mode(0o755)).expect("set");
    let program = programs.path().join("ambit");
    fs::copy(binary(), &program).expect("copied");
    let (user, group) = (format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"));
    let as_user = ["setpriv", &user, &group, "--clear-groups", program.to_str().expect("text")];
    let by_user =
        |words: &[&str], input: &str| machine.ambit_by(scene.program(&as_user), words, input);
    let said = by_user(&["up", "-", "--detach", "--egress"], &application());
    assert!(said.status.success(), "ambit up: {}", said.err);
    let reaches = |(pod, to): &(&str, &str)| {
        let words = ["exec", pod, "--", "bash", "-c", &listening(to)];
        let start = Instant::now();
        std::iter::repeat_with(|| by_user(&words, ""))
            .take_while(|_| start.elapsed() < SETTLE_TIMEOUT)
            .any(|said| said.out == "outside\n")
    };
    let all = ["192.0.2.7/7000", "2001:db8::7/7000", "out.example/7000"];
    let all = [CAPTURED, UNCAPTURED].into_iter().flat_map(|pod| all.map(|to| (pod, to)));
    let failed: Vec<_> = all.filter(|it| !reaches(it)).collect();
    // Only the user can take it down.
    let said = by_user(&["down"], "");
    assert!(said.status.success(), "ambit down: {}", said.err);
    scene.is_left();
    assert_eq!(failed, []);
}
