//! The CNI plugin: announces each new pod to the agent of its node and lets it start only when the
//! agent agrees.
//!
//! It runs at the end of the chain of plugins, once per pod, started by the container runtime; it
//! has no runtime of its own, reads its configuration from standard input and answers on standard
//! output, as the CNI specification says (versions 0.3.0 to 1.1.0). It changes nothing itself: it
//! passes on the result of the plugin before it. While the agent is away no pod starts, except the
//! mesh's own (pods of its namespace with the names of its parts): without them a node would never
//! come back, nor the mesh leave it.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use socket2::{Domain, SockAddr, Socket, Type};

/// Versions of the specification that are spoken, oldest first.
pub(crate) const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The first version without `version` beside each address.
const WITHOUT_ADDRESS_VERSION: &str = "1.0.0";
/// Where the agent listens, if the configuration does not say.
const AGENT_SOCKET: &str = "/var/run/istio-cni/pluginevent.sock";
/// How long the agent is waited for, if the configuration does not say.
pub(crate) const AGENT_TIMEOUT_SECONDS: u64 = 20;
/// Longest that the configuration may have the agent waited for: runtimes give up after minutes.
const AGENT_TIMEOUT_SECONDS_MAX: u64 = 120;
/// How the names of the mesh's own pods begin, in the namespace of the mesh.
const OWN_PODS: [&str; 3] = ["istiod-", "ztunnel-", "ambit-uninstall-"];
/// How long the agent is waited for when the pod is the mesh's own.
const OWN_PATIENCE: Duration = Duration::from_secs(1);
/// Wait before the agent is asked again; doubles.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// Longest wait before the agent is asked again.
const RETRY_MAX: Duration = Duration::from_secs(1);
/// Longest configuration that is read.
const INPUT_MAX_BYTES: u64 = 4 * 1024 * 1024;
/// Longest answer of the agent that is read.
const ANSWER_MAX_BYTES: u64 = 64 * 1024;

/// An error as the specification has it: code, what happened, and details.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum PluginError {
    #[error(
        "incompatible CNI version {0:?}; this plugin speaks {known}",
        known = VERSIONS.join(", ")
    )]
    Version(String),
    #[error("{0} in the environment is missing or wrong")]
    Environment(&'static str),
    #[error("the network configuration cannot be read: {0}")]
    Configuration(String),
    #[error("{0}")]
    Chain(&'static str),
    #[error("the pod may not start before the mesh's node agent has seen it: {0}")]
    TryAgain(String),
    #[error("the mesh's node agent does not listen at {path}: {1}", path = .0.display())]
    Unavailable(PathBuf, String),
}

impl PluginError {
    /// The specification's number.
    fn code(&self) -> u32 {
        match self {
            Self::Version(_) => 1,
            Self::Environment(_) => 4,
            Self::Configuration(_) => 6,
            Self::Chain(_) => 7,
            Self::TryAgain(_) => 11,
            Self::Unavailable(..) => 50,
        }
    }
}

/// What the runtime says in the environment.
#[derive(Debug, Clone, Default)]
struct Environment {
    command: String,
    netns: Option<PathBuf>,
    arguments: String,
}

impl Environment {
    fn read() -> Self {
        let text = |name| std::env::var(name).unwrap_or_default();
        Self {
            command: text("CNI_COMMAND"),
            netns: std::env::var_os("CNI_NETNS").filter(|p| !p.is_empty()).map(PathBuf::from),
            arguments: text("CNI_ARGS"),
        }
    }

    /// One of the `;`-separated arguments.
    fn argument(&self, name: &str) -> Option<&str> {
        let mut pairs = self.arguments.split(';').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value).filter(|v| !v.is_empty())
    }
}

/// The plugin's part of the network configuration.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configuration {
    cni_version: Option<String>,
    prev_result: Option<Value>,
    agent_socket: Option<PathBuf>,
    /// In seconds.
    agent_timeout: Option<u64>,
    mesh_namespace: Option<String>,
}

impl Configuration {
    fn version(&self) -> &str {
        self.cni_version.as_deref().unwrap_or_default()
    }

    fn socket(&self) -> &Path {
        self.agent_socket.as_deref().unwrap_or(Path::new(AGENT_SOCKET))
    }

    fn timeout(&self) -> Duration {
        let seconds = self.agent_timeout.unwrap_or(AGENT_TIMEOUT_SECONDS);
        Duration::from_secs(seconds.min(AGENT_TIMEOUT_SECONDS_MAX))
    }

    fn is_own(&self, namespace: &str, pod: &str) -> bool {
        self.mesh_namespace.as_deref() == Some(namespace)
            && OWN_PODS.iter().any(|name| pod.starts_with(name))
    }
}

/// The agent's answer about a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    /// It may start.
    Start,
    /// Not now.
    NotYet(String),
}

/// The way to the agent, and time.
trait Surroundings {
    /// Announces a pod and waits for the answer, at most this long.
    fn announce(&mut self, socket: &Path, body: &str, patience: Duration) -> Answer;
    /// Whether somebody listens.
    fn listens(&mut self, socket: &Path) -> io::Result<()>;
    fn now(&self) -> Instant;
    fn sleep(&mut self, wait: Duration);
}

/// Does what the container runtime asks in the environment and on standard input.
pub fn cni_plugin() -> ExitCode {
    let mut input = Vec::new();
    let read = io::stdin().take(INPUT_MAX_BYTES).read_to_end(&mut input);
    let environment = Environment::read();
    let done = match read {
        Ok(_) => run(&environment, &input, &mut Node),
        Err(error) => Err((String::new(), PluginError::Configuration(error.to_string()))),
    };
    let (output, code) = match done {
        Ok(output) => (output, ExitCode::SUCCESS),
        Err((version, error)) => (Some(error_output(&version, &error)), ExitCode::FAILURE),
    };
    if let Some(output) = output
        && let Err(error) = writeln!(io::stdout(), "{output}")
    {
        eprintln!("ambit-cni: cannot answer the container runtime: {error}");
        return ExitCode::FAILURE;
    }
    code
}

fn error_output(version: &str, error: &PluginError) -> Value {
    let version = if VERSIONS.contains(&version) { version } else { VERSIONS[VERSIONS.len() - 1] };
    json!({"cniVersion": version, "code": error.code(), "msg": error.to_string(), "details": ""})
}

/// What goes to standard output; an error comes with the version in which to report it.
fn run(
    environment: &Environment,
    input: &[u8],
    surroundings: &mut impl Surroundings,
) -> Result<Option<Value>, (String, PluginError)> {
    let configuration: Configuration = serde_json::from_slice(input)
        .map_err(|error| (String::new(), PluginError::Configuration(error.to_string())))?;
    let version = configuration.version().to_owned();
    let done = command(environment, configuration, surroundings);
    done.map_err(|error| (version, error))
}

fn command(
    environment: &Environment,
    configuration: Configuration,
    surroundings: &mut impl Surroundings,
) -> Result<Option<Value>, PluginError> {
    let version = configuration.version().to_owned();
    let since = match environment.command.as_str() {
        "VERSION" => {
            return Ok(Some(json!({"cniVersion": version, "supportedVersions": VERSIONS})));
        }
        "ADD" | "DEL" => "0.3.0",
        "CHECK" => "0.4.0",
        "GC" | "STATUS" => "1.1.0",
        _ => return Err(PluginError::Environment("CNI_COMMAND")),
    };
    let position = |version: &str| VERSIONS.iter().position(|known| *known == version);
    if position(&version).is_none_or(|found| Some(found) < position(since)) {
        return Err(PluginError::Version(version));
    }
    match environment.command.as_str() {
        "ADD" => add(environment, configuration, surroundings).map(Some),
        // Not ready would hold back the mesh's own pods too; others are refused one by one.
        "STATUS" if configuration.mesh_namespace.is_some() => Ok(None),
        "STATUS" => {
            let socket = configuration.socket();
            let unavailable =
                |error: io::Error| PluginError::Unavailable(socket.to_owned(), error.to_string());
            surroundings.listens(socket).map_err(unavailable)?;
            Ok(None)
        }
        // Nothing is the plugin's own that could be removed or checked.
        _ => Ok(None),
    }
}

/// Announces the pod until the agent lets it start; answers with the result so far.
fn add(
    environment: &Environment,
    mut configuration: Configuration,
    surroundings: &mut impl Surroundings,
) -> Result<Value, PluginError> {
    let version = configuration.version().to_owned();
    let result = configuration.prev_result.take().filter(Value::is_object);
    let result = result.ok_or(PluginError::Chain(
        "there is no prevResult: this plugin only follows others, in a list of plugins",
    ))?;
    let netns = environment.netns.as_deref().ok_or(PluginError::Environment("CNI_NETNS"))?;
    let name = environment.argument("K8S_POD_NAME");
    let namespace = environment.argument("K8S_POD_NAMESPACE");
    if let (Some(name), Some(namespace)) = (name, namespace) {
        let addresses = result["ips"].as_array().into_iter().flatten();
        let addresses = addresses.filter_map(|ip| ip["address"].as_str());
        let addresses: Vec<_> = addresses.map(|address| json!({"Address": address})).collect();
        let announcement = json!({
            "Netns": netns, "PodName": name, "PodNamespace": namespace,
            "PodUID": environment.argument("K8S_POD_UID"), "IPs": addresses,
        });
        let body = announcement.to_string();
        if configuration.is_own(namespace, name) {
            // The agent is notified, but the pod does not wait for it.
            surroundings.announce(configuration.socket(), &body, OWN_PATIENCE);
        } else {
            insist(&configuration, &body, surroundings)?;
        }
    }
    Ok(in_version(result, &version))
}

/// Asks until the agent agrees, or time is up.
fn insist(
    configuration: &Configuration,
    body: &str,
    surroundings: &mut impl Surroundings,
) -> Result<(), PluginError> {
    let deadline = surroundings.now() + configuration.timeout();
    let mut wait = RETRY_MIN;
    loop {
        let left = deadline.saturating_duration_since(surroundings.now());
        let reason = match surroundings.announce(configuration.socket(), body, left) {
            Answer::Start => return Ok(()),
            Answer::NotYet(reason) => reason,
        };
        if surroundings.now() + wait >= deadline {
            return Err(PluginError::TryAgain(reason));
        }
        surroundings.sleep(wait);
        wait = (2 * wait).min(RETRY_MAX);
    }
}

/// The result as that version of the specification writes it.
fn in_version(mut result: Value, version: &str) -> Value {
    result["cniVersion"] = version.into();
    let numbered = VERSIONS.iter().position(|known| *known == version);
    let numbered = numbered < VERSIONS.iter().position(|known| *known == WITHOUT_ADDRESS_VERSION);
    for ip in result["ips"].as_array_mut().into_iter().flatten() {
        let Some(ip) = ip.as_object_mut() else { continue };
        if numbered {
            let is_v6 = ip.get("address").and_then(Value::as_str).is_some_and(|a| a.contains(':'));
            ip.entry("version").or_insert(if is_v6 { "6" } else { "4" }.into());
        } else {
            ip.remove("version");
        }
    }
    result
}

/// The node that the plugin runs on.
struct Node;

impl Surroundings for Node {
    fn announce(&mut self, socket: &Path, body: &str, patience: Duration) -> Answer {
        post(socket, body, patience).unwrap_or_else(|error| {
            let socket = socket.display();
            Answer::NotYet(format!("it cannot be asked at {socket}: {error}"))
        })
    }

    fn listens(&mut self, socket: &Path) -> io::Result<()> {
        UnixStream::connect(socket).map(drop)
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&mut self, wait: Duration) {
        std::thread::sleep(wait);
    }
}

fn post(socket: &Path, body: &str, patience: Duration) -> io::Result<Answer> {
    // Zero would mean for ever.
    let patience = Some(patience.max(Duration::from_millis(1)));
    let connecting = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // It bounds the connecting too, where many others wait for an agent that does not answer.
    connecting.set_write_timeout(patience)?;
    connecting.connect(&SockAddr::unix(socket)?)?;
    let mut stream = UnixStream::from(OwnedFd::from(connecting));
    stream.set_read_timeout(patience)?;
    let length = body.len();
    write!(
        stream,
        "POST /cmdadd HTTP/1.1\r\nhost: ambit\r\ncontent-type: application/json\r\n\
        connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX_BYTES).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, text) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    Ok(match head.split(' ').nth(1) {
        Some("200") => Answer::Start,
        Some(_) if !text.is_empty() => Answer::NotYet(text.trim().to_owned()),
        Some(status) => Answer::NotYet(format!("it answers with status {status}")),
        None => Answer::NotYet("it ended without an answer".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::Directory;

    /// An agent that gives these answers, the last one for ever; `None` is one that is away.
    struct Agent {
        answers: Vec<Answer>,
        announced: Vec<Value>,
        away: bool,
        now: Instant,
        began: Instant,
    }

    impl Agent {
        fn new(answers: &[Answer]) -> Self {
            let now = Instant::now();
            let answers = answers.iter().rev().cloned().collect();
            Self { answers, announced: Vec::new(), away: false, now, began: now }
        }
    }

    impl Surroundings for Agent {
        fn announce(&mut self, _: &Path, body: &str, _: Duration) -> Answer {
            self.announced.push(serde_json::from_str(body).expect("JSON"));
            let last = self.answers.len() == 1;
            if last { self.answers[0].clone() } else { self.answers.pop().expect("an answer") }
        }

        fn listens(&mut self, _: &Path) -> io::Result<()> {
            if self.away { Err(io::ErrorKind::NotFound.into()) } else { Ok(()) }
        }

        fn now(&self) -> Instant {
            self.now
        }

        fn sleep(&mut self, wait: Duration) {
            self.now += wait;
        }
    }

    const ARGUMENTS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=u";

    fn environment(command: &str) -> Environment {
        Environment {
            command: command.to_owned(),
            netns: Some("/var/run/netns/x".into()),
            arguments: ARGUMENTS.to_owned(),
        }
    }

    fn configuration(version: &str) -> Value {
        json!({"cniVersion": version, "name": "net", "type": "ambit-cni", "prevResult": {
            "cniVersion": version, "interfaces": [{"name": "eth0", "sandbox": "/n"}],
            "ips": [{"address": "10.244.1.5/24", "interface": 0}, {"address": "fd00::5/64"}],
            "dns": {}}})
    }

    /// The output, or the error's code.
    fn check(
        command: &str,
        configuration: &Value,
        agent: &mut Agent,
    ) -> Result<Option<Value>, u32> {
        let done = run(&environment(command), configuration.to_string().as_bytes(), agent);
        done.map_err(|(_, error)| error.code())
    }

    #[test]
    fn every_command_is_answered_in_every_version_that_has_it() {
        for (command, since) in [("DEL", 0), ("CHECK", 2), ("GC", 4), ("STATUS", 4)] {
            for (position, version) in VERSIONS.iter().enumerate() {
                let expected = if position >= since { Ok(None) } else { Err(1) };
                let found = check(command, &configuration(version), &mut Agent::new(&[]));
                assert_eq!(found, expected, "{command} {version}");
            }
        }
        for version in ["", "0.2.0", "2.0.0"] {
            for command in ["ADD", "DEL", "STATUS"] {
                let found = check(command, &configuration(version), &mut Agent::new(&[]));
                assert_eq!(found, Err(1), "{command} {version}");
            }
        }
        let known = check("VERSION", &json!({"cniVersion": "1.0.0"}), &mut Agent::new(&[]));
        let expected = json!({"cniVersion": "1.0.0", "supportedVersions": VERSIONS});
        assert_eq!(known, Ok(Some(expected)));
        assert_eq!(check("FLY", &configuration("1.0.0"), &mut Agent::new(&[])), Err(4));
        let mut away = Agent { away: true, ..Agent::new(&[]) };
        assert_eq!(check("STATUS", &configuration("1.1.0"), &mut away), Err(50));
        let mut of_mesh = configuration("1.1.0");
        of_mesh["meshNamespace"] = "istio-system".into();
        assert_eq!(check("STATUS", &of_mesh, &mut away), Ok(None));
        assert_eq!(check("DEL", &configuration("1.1.0"), &mut away), Ok(None));
    }

    #[test]
    fn the_result_before_is_passed_on_as_the_version_writes_it() {
        for version in VERSIONS {
            let mut agent = Agent::new(&[Answer::Start]);
            let result = check("ADD", &configuration(version), &mut agent);
            let mut expected = configuration(version)["prevResult"].clone();
            if ["0.3.0", "0.3.1", "0.4.0"].contains(&version) {
                expected["ips"][0]["version"] = "4".into();
                expected["ips"][1]["version"] = "6".into();
            }
            assert_eq!(result, Ok(Some(expected)), "{version}");
            let announcement = json!({
                "Netns": "/var/run/netns/x", "PodName": "web", "PodNamespace": "shop",
                "PodUID": "u",
                "IPs": [{"Address": "10.244.1.5/24"}, {"Address": "fd00::5/64"}],
            });
            assert_eq!(agent.announced, [announcement]);
        }
    }

    #[test]
    fn what_is_no_pod_or_has_no_place_in_a_chain_is_not_announced() {
        let mut agent = Agent::new(&[Answer::Start]);
        let mut alone = configuration("1.0.0");
        alone.as_object_mut().expect("an object").remove("prevResult");
        assert_eq!(check("ADD", &alone, &mut agent), Err(7));
        let mut container = environment("ADD");
        container.arguments = String::new();
        let input = configuration("1.0.0").to_string();
        assert!(run(&container, input.as_bytes(), &mut agent).expect("passed on").is_some());
        container.netns = None;
        let (_, error) = run(&container, input.as_bytes(), &mut agent).expect_err("refused");
        assert_eq!(error.code(), 4);
        let (_, error) = run(&environment("ADD"), b"{", &mut agent).expect_err("refused");
        assert_eq!(error.code(), 6);
        assert_eq!(agent.announced, Vec::<Value>::new());
    }

    #[test]
    fn the_agent_is_waited_for_and_in_the_end_the_pod_is_refused() {
        let away = Answer::NotYet("away".to_owned());
        let mut agent = Agent::new(&[away.clone(), away.clone(), Answer::Start]);
        assert!(check("ADD", &configuration("1.1.0"), &mut agent).is_ok());
        assert_eq!(agent.now - agent.began, 3 * RETRY_MIN);

        let mut agent = Agent::new(std::slice::from_ref(&away));
        let mut configuration = configuration("1.1.0");
        let input = configuration.to_string();
        let (version, error) =
            run(&environment("ADD"), input.as_bytes(), &mut agent).expect_err("refused");
        let output = error_output(&version, &error);
        assert_eq!((&output["cniVersion"], &output["code"]), (&"1.1.0".into(), &11.into()));
        assert!(output["msg"].as_str().is_some_and(|text| text.ends_with("away")), "{output}");
        let waited = agent.now - agent.began;
        let limit = Duration::from_secs(AGENT_TIMEOUT_SECONDS);
        assert!(waited <= limit && waited + RETRY_MAX >= limit, "{waited:?}");

        configuration["agentTimeout"] = 2.into();
        let mut agent = Agent::new(&[away]);
        assert_eq!(check("ADD", &configuration, &mut agent), Err(11));
        assert!(agent.now - agent.began <= Duration::from_secs(2));
    }

    #[test]
    fn the_meshs_own_pods_do_not_wait_for_the_agent() {
        for (namespace, pod, starts) in [
            ("istio-system", "ztunnel-x7k2p", true),
            ("istio-system", "istiod-5d8f-abcde", true),
            ("istio-system", "ambit-uninstall-k4x9z", true),
            ("istio-system", "ambit-uninstaller", false),
            ("istio-system", "web", false),
            ("istio-system", "gateway-ztunnel-x", false),
            ("shop", "ztunnel-x7k2p", false),
            ("shop", "ambit-uninstall-k4x9z", false),
        ] {
            let mut environment = environment("ADD");
            environment.arguments = format!("K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod}");
            let mut configuration = configuration("1.1.0");
            let mut check = |expected: bool| {
                let mut agent = Agent::new(&[Answer::NotYet("away".to_owned())]);
                let input = configuration.to_string();
                let started = run(&environment, input.as_bytes(), &mut agent).is_ok();
                assert_eq!(started, expected, "{namespace}/{pod}");
                assert!(!agent.announced.is_empty(), "{namespace}/{pod}");
                configuration["meshNamespace"] = "istio-system".into();
            };
            check(false);
            check(starts);
        }
    }

    #[test]
    fn an_agent_that_is_not_there_or_says_nothing_is_no_agreement() {
        let directory = Directory::new("plugin-socket");
        let socket = directory.path("agent.sock");
        let ask = || Node.announce(&socket, "{}", Duration::from_millis(50));
        assert!(matches!(ask(), Answer::NotYet(reason) if reason.contains("agent.sock")));
        let listener = std::os::unix::net::UnixListener::bind(&socket).expect("bind");
        assert!(matches!(ask(), Answer::NotYet(_)), "nobody answers");
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", Answer::Start),
            ("HTTP/1.1 500 x\r\n\r\nnot yet\n", Answer::NotYet("not yet".to_owned())),
            ("HTTP/1.1 404 x\r\n\r\n", Answer::NotYet("it answers with status 404".to_owned())),
            ("", Answer::NotYet("it ended without an answer".to_owned())),
        ] {
            let listener = listener.try_clone().expect("a descriptor");
            let serving = std::thread::spawn(move || {
                // The connection of the question that nobody answered is still queued first.
                loop {
                    let (mut stream, _) = listener.accept().expect("accept");
                    let mut request = [0; 4096];
                    let length = stream.read(&mut request).expect("read");
                    let alive = stream.write_all(answer.as_bytes()).is_ok();
                    if alive && length > 0 && request.starts_with(b"POST /cmdadd HTTP/1.1\r\n") {
                        return;
                    }
                }
            });
            let found = Node.announce(&socket, "{}", Duration::from_secs(5));
            assert_eq!(found, expected, "{answer:?}");
            drop(serving);
        }
    }
}
