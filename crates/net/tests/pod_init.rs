//! What a pod's init does, step by step, in a separate process with one thread.
//!
//! Without the test harness, whose threads would be in the way of `fork`. The program starts itself
//! again: as the machine (in new namespaces), which forks the init (process 1 of them).
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ambit_net::netlink::RouteSocket;
use ambit_net::sys::mount::{self, MountOptions};
use ambit_net::sys::process::{self, Exit, Fork, Namespaces, Reaped, Signal};
use ambit_net::sys::{capability, process::unshare};

const INIT_SAYS: i32 = 42;
const ROOT: &str = "AMBIT_TEST_POD_ROOT";

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("--as-machine") => machine(),
        Some("--as-anyone") => of_anyone(),
        // As the harness would: a list, and filters by name.
        Some("--list") => println!("pod_init: test"),
        Some(filter) if !filter.starts_with('-') && !"pod_init".contains(filter) => {}
        _ => {
            a_process_with_threads_does_not_fork();
            children_are_waited_for_and_signalled();
            a_pod_has_namespaces_a_root_and_few_rights();
            anybody_is_root_in_a_user_namespace();
            println!("test result: ok. 4 passed");
        }
    }
}

fn a_process_with_threads_does_not_fork() {
    let (hold, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || wait.recv());
    let error = process::fork().unwrap_err();
    assert!(error.to_string().contains("one thread"), "{error}");
    drop(hold);
    thread.join().unwrap().unwrap_err();
}

fn children_are_waited_for_and_signalled() {
    let Fork::Parent(pid) = fork() else { sleep_forever() };
    let pidfd = process::pidfd_open(pid).unwrap();
    assert_eq!(process::wait_any().unwrap(), None);
    process::send_signal(&pidfd, Signal::Term).unwrap();
    assert_eq!(process::wait(pid).unwrap(), Exit::Signal(15));
    let gone = process::send_signal(&pidfd, Signal::Kill).unwrap_err();
    assert_eq!(gone.raw_os_error(), Some(3));
    let Fork::Parent(pid) = fork() else { std::process::exit(INIT_SAYS) };
    let reaped = process::wait_any_blocking().unwrap();
    assert_eq!(reaped, Some(Reaped { pid, exit: Exit::Code(INIT_SAYS) }));
    assert_eq!(process::wait_any_blocking().unwrap(), None);
    assert_eq!(process::wait_any().unwrap(), None);
    process::set_child_subreaper().unwrap();
    // An orphan comes to us.
    let Fork::Parent(middle) = fork() else {
        fork();
        std::process::exit(0)
    };
    let mut reaped = 0;
    while process::wait_any_blocking().unwrap().is_some() {
        reaped += 1;
    }
    assert_eq!(reaped, 2, "{middle} and its child");
}

fn fork() -> Fork {
    process::fork().unwrap()
}

fn sleep_forever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn again(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(role);
    command
}

fn a_pod_has_namespaces_a_root_and_few_rights() {
    let root = std::env::temp_dir().join(format!("ambit-pod-{}", std::process::id()));
    fs::create_dir_all(&root).unwrap();
    let mut wanted = Namespaces::MOUNT | Namespaces::NET;
    if process::effective_uid() != 0 {
        wanted = wanted | Namespaces::USER;
    }
    let mut machine = again("--as-machine");
    process::start_in_namespaces(machine.env(ROOT, &root), wanted);
    let status = machine.status().expect("root or user namespaces are needed for this test");
    assert_eq!(status.code(), Some(INIT_SAYS));
    // Mounts of the pod never showed up here.
    fs::remove_dir(&root).unwrap();
}

fn machine() -> ! {
    let parent = process::parent_pid();
    process::set_parent_death_signal(Signal::Kill).unwrap();
    assert_eq!(process::parent_pid(), parent);
    unshare(Namespaces::PID | Namespaces::IPC | Namespaces::UTS).unwrap();
    let root = PathBuf::from(std::env::var_os(ROOT).unwrap());
    match fork() {
        Fork::Child => init(&root),
        Fork::Parent(pid) => match process::wait(pid).unwrap() {
            Exit::Code(code) => std::process::exit(code),
            Exit::Signal(signal) => panic!("the init was killed by signal {signal}"),
        },
    }
}

fn init(root: &Path) -> ! {
    assert_eq!(std::process::id(), 1);
    process::set_hostname("pod-1").unwrap();
    RouteSocket::open().unwrap().set_up("lo").unwrap();
    mount::make_private().unwrap();
    let data = MountOptions { no_suid: true, no_dev: true, ..MountOptions::default() };
    mount::tmpfs(root, 1 << 20, 0o755, data).unwrap();
    for directory in ["proc", "etc", "data"] {
        fs::create_dir(root.join(directory)).unwrap();
    }
    mount::proc(&root.join("proc")).unwrap();
    mount::bind(Path::new("/etc"), &root.join("etc")).unwrap();
    mount::tmpfs(&root.join("data"), 4096, 0o700, data).unwrap();
    mount::remount_bind(&root.join("data"), MountOptions { read_only: true, ..data }).unwrap();
    mount::pivot_root(root).unwrap();
    assert_eq!(fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim(), "pod-1");
    let mut found: Vec<String> = fs::read_dir("/")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(found, ["data", "etc", "proc"]);
    assert!(fs::write("/data/file", "x").is_err(), "read-only");
    assert_eq!(fs::metadata("/data").unwrap().permissions().mode() & 0o777, 0o700);
    mount::unmount(Path::new("/data")).unwrap();
    assert!(fs::write("/big", vec![0; 2 << 20]).is_err(), "over the size limit");
    rights();
    std::process::exit(INIT_SAYS)
}

fn rights() {
    const NET_BIND_SERVICE: u64 = 1 << 10;
    const NET_ADMIN: u64 = 1 << 12;
    const NET_RAW: u64 = 1 << 13;
    assert_ne!(capability::effective().unwrap() & NET_RAW, 0);
    process::set_no_new_privileges().unwrap();
    process::set_not_dumpable().unwrap();
    capability::keep_pod_defaults().unwrap();
    let kept = capability::effective().unwrap();
    assert_eq!(kept & (NET_ADMIN | NET_RAW), 0);
    assert_ne!(kept & NET_BIND_SERVICE, 0);
    assert!(unshare(Namespaces::UTS).is_err());
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(line("NoNewPrivs:"), "1");
    assert_eq!(u64::from_str_radix(&line("CapBnd:"), 16).unwrap(), kept);
    assert_eq!(u64::from_str_radix(&line("CapInh:"), 16).unwrap(), 0);
    // In a user namespace that maps one user, nobody else can be become.
    if fs::read_to_string("/proc/self/setgroups").unwrap().trim() == "allow" {
        process::become_user(1000, 1001, &[1001]).unwrap();
        assert_eq!(process::effective_uid(), 1000);
        assert_eq!(capability::effective().unwrap(), 0);
    }
    capability::drop_all().unwrap_or_else(|error| {
        // Dropping from the bounding set takes SETPCAP, which a plain user no longer has.
        assert_eq!(error.raw_os_error(), Some(1), "{error}");
    });
}

fn anybody_is_root_in_a_user_namespace() {
    let mut command = again("--as-anyone");
    process::start_in_namespaces(&mut command, Namespaces::USER | Namespaces::NET);
    assert_eq!(command.status().unwrap().code(), Some(INIT_SAYS));
}

fn of_anyone() -> ! {
    assert_eq!(process::effective_uid(), 0);
    RouteSocket::open().unwrap().set_up("lo").unwrap();
    std::process::exit(INIT_SAYS)
}
