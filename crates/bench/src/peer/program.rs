//! One proxy: started in its pod's network, watched, ended.
//!
//! It starts in the machine's PID namespace and ends with it. It is reaped as soon as it ends,
//! because the machine cannot end before. Its configuration, which holds keys, comes as a sealed
//! file in memory on its standard input, so no key is ever in a file on disk.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use ambit_machine::Record;
use ambit_machine::logs::LogFile;
use ambit_net::memfd::Sealed;
use ambit_net::namespace::NetNs;
use ambit_net::sys::process::{self, Namespaces, Pid, Signal};
use tokio::runtime::{self, Handle, Runtime};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{SidecarError, SidecarKind, topology};

/// How long a killed proxy may take to be gone.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How long tasks may take to be dropped.
const SHUT_DOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long what a dead proxy wrote last may take to be in its log.
const LOG_TIMEOUT: Duration = Duration::from_secs(1);
/// How many of a dead proxy's last lines are reported, how much of each, from how much of its log.
const LAST_LINES: usize = 3;
const LINE_LENGTH_MAX: usize = 240;
const LAST_WORDS_SIZE_MAX_BYTES: u64 = 2 << 10;
/// How many names for a private directory are tried; others are left from runs that were killed.
const NAMES_MAX: u32 = 10_000;
/// How long a program may take to say its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// The thread that collects logs and reaps.
pub(super) fn runtime() -> io::Result<Runtime> {
    runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("sidecars")
        .enable_all()
        .build()
}

/// Ends what runs there, so that its ports are free again for the next.
pub(super) fn shut_down(runtime: Runtime) {
    // On a thread of its own: waiting is not allowed on one that drives another runtime.
    let ending = std::thread::spawn(move || runtime.shutdown_timeout(SHUT_DOWN_TIMEOUT));
    ending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// The version that a program reports; its first line.
pub async fn version(kind: SidecarKind, program: &Path) -> Result<String, SidecarError> {
    let refused = |source| SidecarError::NotAProgram {
        program: program.to_owned(),
        user: kind.user(),
        source,
    };
    let mut command = tokio::process::Command::new(program);
    command.stdin(Stdio::null()).kill_on_drop(true);
    match kind {
        SidecarKind::Envoy => command.arg("--version"),
        // Its log begins with it, and it ends because it has no configuration.
        SidecarKind::Linkerd => command.env_clear().env("LINKERD2_PROXY_LOG", "info"),
    };
    let output = timeout(VERSION_TIMEOUT, command.output()).await;
    let silent = |_elapsed| refused(io::Error::other("it does not tell its version"));
    let output = output.map_err(silent)?.map_err(refused)?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let line = said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    // Envoy repeats the path that it was called by.
    let path = program.display().to_string();
    let line = line.strip_prefix(&path).unwrap_or(line);
    Ok(line.split_once("linkerd2_proxy: ").map_or(line, |(_, rest)| rest).trim().to_owned())
}

/// Where proxies live.
pub(super) struct Home {
    pid_namespace: File,
    logs: PathBuf,
}

impl Home {
    /// In this machine, with their logs in this directory.
    pub(super) fn of_machine(record: &Record, logs: &Path) -> io::Result<Self> {
        let pid_namespace = File::open(format!("/proc/{}/ns/pid", record.pid))?;
        Ok(Self { pid_namespace, logs: logs.to_owned() })
    }
}

/// A proxy to be started.
pub(super) struct Launch {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) environment: BTreeMap<String, String>,
    /// Who it runs as.
    pub(super) user: u32,
    /// What it reads from its standard input.
    pub(super) input: Vec<u8>,
    /// What it reads while it starts.
    pub(super) files: Option<PrivateDirectory>,
}

/// Files for one user alone, in memory where the system has such a place, gone when dropped.
#[derive(Debug)]
pub(super) struct PrivateDirectory(PathBuf);

impl PrivateDirectory {
    /// Writes files that only this user, and root, can read.
    pub(super) fn create(user: u32, files: &[(&str, &[u8])]) -> io::Result<Self> {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let made = (0..NAMES_MAX).find_map(|number| {
            let path = parent.join(format!("ambit-sidecar-{}-{number}", std::process::id()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
                outcome => Some(outcome.map(|()| Self(path))),
            }
        });
        let directory = made.unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()))?;
        for (name, content) in files {
            let path = directory.0.join(name);
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(content)?;
            chown(&path, Some(user), Some(user))?;
        }
        chown(&directory.0, Some(user), Some(user))?;
        Ok(directory)
    }

    /// Where they are.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "a sidecar's files are still there");
        }
    }
}

impl Launch {
    /// Starts it beside a pod.
    pub(super) fn start(
        self,
        pod: &topology::Pod,
        home: &Home,
        handle: &Handle,
    ) -> Result<Running, SidecarError> {
        let system = |operation: &str| {
            let operation = format!("{operation} the sidecar of {pod}");
            move |source| SidecarError::System { operation, source }
        };
        let log = home.logs.join(format!("{}.{}.log", pod.namespace, pod.name));
        let netns = pod.netns.try_clone().map_err(system("enter the network of"))?;
        let (output, errors, collecting) = {
            let _on_the_runtime = handle.enter();
            let failed = |source| system("write the log of")(source);
            let (errors, log) = collect(&log).map_err(failed)?;
            (errors.try_clone().map_err(failed)?, errors, log)
        };
        let input = Sealed::create("sidecar", &self.input).map_err(system("configure"))?;
        let mut command = self.command();
        command.stdin(OwnedFd::from(input)).stdout(output).stderr(errors);
        let child = spawn(&mut command, &netns, &home.pid_namespace);
        let mut child = child.map_err(|source| SidecarError::NotAProgram {
            program: self.program,
            user: self.user,
            source,
        })?;
        // Their other ends are the child's alone, so that its end is theirs.
        drop(command);
        let pid = Pid::try_from(child.id()).expect("process ids are positive");
        let pidfds = process::pidfd_open(pid).and_then(|pidfd| Ok((pidfd.try_clone()?, pidfd)));
        let (watched, pidfd) = pidfds.map_err(|source| {
            // Nobody would watch it.
            let _ended = child.kill().and_then(|()| child.wait());
            system("watch")(source)
        })?;
        let ending = Arc::new(Ending::default());
        handle.spawn(watch(watched, child, collecting, log.clone(), Arc::clone(&ending)));
        Ok(Running { pod: pod.to_string(), pid, pidfd, netns, log, ending, files: self.files })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .env_clear()
            .envs(&self.environment)
            .current_dir("/")
            .uid(self.user)
            .gid(self.user)
            // Ctrl-C is for their parent, which ends them in good order.
            .process_group(0);
        command
    }
}

fn collect(path: &Path) -> io::Result<(OwnedFd, JoinHandle<()>)> {
    // What an earlier run left is not this one's.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    LogFile::open(path)?.collect_until_closed()
}

/// Starts a command inside of namespaces: by a thread that moves there and ends.
fn spawn(command: &mut Command, netns: &NetNs, pid_namespace: &File) -> io::Result<Child> {
    std::thread::scope(|scope| {
        let starting = scope.spawn(|| {
            process::enter(pid_namespace, Namespaces::PID)?;
            netns.enter()?;
            command.spawn()
        });
        starting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A proxy that was started.
#[derive(Debug)]
pub(super) struct Running {
    pod: String,
    pid: Pid,
    /// Stands for the process, also after its end.
    pidfd: OwnedFd,
    netns: NetNs,
    log: PathBuf,
    ending: Arc<Ending>,
    files: Option<PrivateDirectory>,
}

/// How a proxy ended, once it has.
#[derive(Debug, Default)]
struct Ending {
    end: Mutex<Option<String>>,
    told: Condvar,
}

impl Running {
    /// Namespace and name of its pod.
    pub(super) fn pod(&self) -> &str {
        &self.pod
    }

    /// Its number on the host.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Its pod's network.
    pub(super) fn netns(&self) -> &NetNs {
        &self.netns
    }

    /// The file of its log.
    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    /// Its exit and its last words, once it has ended.
    pub(super) fn end(&self) -> Option<String> {
        self.ending.end.lock().expect("nothing panics while it holds the lock").clone()
    }

    /// It is ready: removes the files that it read at its start.
    pub(super) fn has_started(&mut self) {
        self.files = None;
    }

    /// Makes it end.
    pub(super) fn kill(&self) {
        // It may have ended by itself, which is as good.
        let _gone = process::send_signal(&self.pidfd, Signal::Kill);
    }

    /// Waits until it is gone and reaped.
    pub(super) fn wait_for_end(&self) -> io::Result<()> {
        let end = self.ending.end.lock().expect("nothing panics while it holds the lock");
        let (_end, waited) = self
            .ending
            .told
            .wait_timeout_while(end, END_TIMEOUT, |end| end.is_none())
            .expect("nothing panics while it holds the lock");
        if waited.timed_out() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

/// Reaps a proxy when it ends, together with its children, and reports how it ended.
async fn watch(
    pidfd: OwnedFd,
    mut child: Child,
    collecting: JoinHandle<()>,
    log: PathBuf,
    ending: Arc<Ending>,
) {
    let ended = process::ended(pidfd).await;
    // Its number is its group's too, and nobody else's until it is reaped.
    let group = -Pid::try_from(child.id()).expect("process ids are positive");
    let _alone = process::kill(group, Signal::Kill);
    let end = match ended.and_then(|()| child.wait()) {
        Ok(status) => {
            let _logged = timeout(LOG_TIMEOUT, collecting).await;
            match last_words(&log) {
                words if words.is_empty() => format!("{status} and without a word"),
                words => format!("{status}: {words}"),
            }
        }
        Err(error) => format!("an unknown status: {error}"),
    };
    *ending.end.lock().expect("nothing panics while it holds the lock") = Some(end);
    ending.told.notify_all();
}

/// The last lines of a log, in one.
fn last_words(log: &Path) -> String {
    let read = || {
        let mut file = File::open(log)?;
        let size_bytes = file.metadata()?.len();
        file.seek(SeekFrom::Start(size_bytes.saturating_sub(LAST_WORDS_SIZE_MAX_BYTES)))?;
        let mut tail = Vec::new();
        file.take(LAST_WORDS_SIZE_MAX_BYTES).read_to_end(&mut tail)?;
        io::Result::Ok(tail)
    };
    let tail = read().unwrap_or_default();
    let tail = String::from_utf8_lossy(&tail);
    let lines = tail.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<String> =
        lines.map(|line| line.chars().take(LINE_LENGTH_MAX).collect()).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("; ")
}
