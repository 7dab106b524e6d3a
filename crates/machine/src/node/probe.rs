//! Probes from the node: TCP, HTTP, HTTPS and gRPC, like the kubelet's.
//!
//! They come from the node's network, not from inside the pod, so the rules of a captured pod see
//! the same packets as in a cluster. The node's address opens captured pods to it, so a probe asks
//! its own pod and nobody else, whatever `host` says. Probes that are commands run inside the pod,
//! by its init. Here answers are only counted: the init acts on what they come to.

mod grpc;
mod http2;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ambit_tls::container_probe::{self, HttpVersion};
use http::{HeaderName, HeaderValue};
use k8s_openapi::api::core::v1::{Container, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::pod::{
    Asked, ProbeKind, ProbeNews, ProbePlan, ProbeRecord, ProbeReport, ProbeTiming, Probes,
};
use crate::registry::ContainerStatus;

/// Until a container is ready for the first time it is asked this often: nobody waits a period for
/// nothing.
const EAGER_INTERVAL: Duration = Duration::from_millis(200);
/// As much of an HTTP answer as its status needs: `HTTP/1.1 200`. To wait for more would be to wait
/// for the end of a connection that a server may keep.
const STATUS_SIZE_BYTES: usize = 12;
/// What a request says unless the probe says it. An empty value leaves the header out.
const HEADERS: [(&str, &str); 2] = [("User-Agent", "kube-probe/1.36"), ("Accept", "*/*")];

/// The probes of a container that have an effect.
pub(crate) fn probes(container: &Container) -> Probes {
    let plan = |probe: &Option<Probe>| {
        let probe = probe.as_ref()?;
        let asked = match &probe.exec {
            Some(exec) => Asked::Command(exec.command.clone().unwrap_or_default()),
            None => port(container, probe).map(|_| Asked::Port)?,
        };
        let grace = probe.termination_grace_period_seconds;
        let grace_seconds = grace.and_then(|seconds| u64::try_from(seconds).ok());
        Some(ProbePlan { asked, timing: timing(probe), grace_seconds })
    };
    Probes {
        startup: plan(&container.startup_probe),
        liveness: plan(&container.liveness_probe),
        readiness: plan(&container.readiness_probe),
    }
}

/// The port that a probe asks, if the node can ask it.
fn port(container: &Container, probe: &Probe) -> Option<u16> {
    let port = match (&probe.tcp_socket, &probe.http_get, &probe.grpc) {
        (Some(tcp), ..) => &tcp.port,
        (None, Some(get), _) => &get.port,
        (None, None, Some(grpc)) => return u16::try_from(grpc.port).ok(),
        _ => return None,
    };
    match port {
        IntOrString::Int(number) => u16::try_from(*number).ok(),
        IntOrString::String(name) => {
            let ports = container.ports.iter().flatten();
            let named = ports.into_iter().find(|port| port.name.as_deref() == Some(name))?;
            u16::try_from(named.container_port).ok()
        }
    }
}

/// A probe's timing with Kubernetes' defaults, which 0 stands for too.
fn timing(probe: &Probe) -> ProbeTiming {
    let or = |value: Option<i32>, default: u32| {
        let value = value.and_then(|value| u32::try_from(value).ok());
        value.filter(|value| *value != 0).unwrap_or(default)
    };
    ProbeTiming {
        initial_delay_seconds: or(probe.initial_delay_seconds, 0),
        period_seconds: or(probe.period_seconds, 10),
        timeout_seconds: or(probe.timeout_seconds, 1),
        success_threshold: or(probe.success_threshold, 1),
        failure_threshold: or(probe.failure_threshold, 3),
    }
}

/// What to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Question {
    Connect,
    Get {
        scheme: Scheme,
        path: String,
        host: String,
        headers: Vec<(String, String)>,
    },
    Health {
        service: String,
    },
    /// Not asked, and this is why.
    Unknown(String),
}

/// What carries a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    /// TCP.
    Http,
    /// TLS, of which nothing is checked.
    Https,
}

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// A probe of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeProbe {
    kind: ProbeKind,
    address: SocketAddr,
    question: Question,
    timing: ProbeTiming,
}

impl NodeProbe {
    /// The probe of a kind of a container, if it has one that is asked from the node.
    pub(crate) fn of(container: &Container, kind: ProbeKind, pod_ip: IpAddr) -> Option<Self> {
        let probe = match kind {
            ProbeKind::Startup => container.startup_probe.as_ref()?,
            ProbeKind::Liveness => container.liveness_probe.as_ref()?,
            ProbeKind::Readiness => container.readiness_probe.as_ref()?,
        };
        let port = port(container, probe)?;
        let address = SocketAddr::new(pod_ip, port);
        let question = match (&probe.tcp_socket, &probe.http_get, &probe.grpc) {
            (Some(_), ..) => Question::Connect,
            (None, Some(get), _) => {
                let headers = get.http_headers.iter().flatten();
                let headers = headers.map(|header| (header.name.clone(), header.value.clone()));
                let path = get.path.clone().filter(|path| !path.is_empty());
                let question = |scheme| Question::Get {
                    scheme,
                    path: path.unwrap_or_else(|| "/".to_owned()),
                    host: address.to_string(),
                    headers: headers.collect(),
                };
                match get.scheme.as_deref() {
                    None | Some("HTTP") => question(Scheme::Http),
                    Some("HTTPS") => question(Scheme::Https),
                    Some(other) => {
                        Question::Unknown(format!("scheme {other:?} is neither HTTP nor HTTPS"))
                    }
                }
            }
            (None, None, Some(grpc)) => {
                Question::Health { service: grpc.service.clone().unwrap_or_default() }
            }
            (None, None, None) => return None,
        };
        Some(Self { kind, address, question, timing: timing(probe) })
    }

    /// Asks for ever, sending what is new since the container had this status. It could be asked
    /// since `since`.
    pub(crate) async fn run(
        self,
        status: ContainerStatus,
        since: Instant,
        reports: mpsc::Sender<ProbeReport>,
    ) {
        let kind = self.kind;
        let ContainerStatus { name, restarts, ready, .. } = status;
        let mut record = ProbeRecord::new(kind, self.timing, ready);
        let mut is_eager = kind == ProbeKind::Readiness && !ready;
        sleep_until(since + self.timing.initial_delay()).await;
        loop {
            if let Some(news) = record.answer(self.ask().await) {
                is_eager &= news != ProbeNews::Success;
                let report = ProbeReport { container: name.clone(), restarts, kind, news };
                if reports.send(report).await.is_err() {
                    return;
                }
            }
            let period = self.timing.period();
            sleep(if is_eager { period.min(EAGER_INTERVAL) } else { period }).await;
        }
    }

    /// Asks once; the error says what is wrong, as the kubelet does.
    async fn ask(&self) -> Result<(), String> {
        let what = match &self.question {
            Question::Unknown(why) => return Err(why.clone()),
            Question::Connect | Question::Health { .. } => format!("dial tcp {}", self.address),
            Question::Get { scheme, path, .. } => {
                format!("Get \"{}://{}{path}\"", scheme.name(), self.address)
            }
        };
        let connect = async {
            let stream = TcpStream::connect(self.address).await;
            stream.map_err(|error| format!("{what}: {error}"))
        };
        let limit = self.timing.limit();
        let answer = async {
            let stream = connect.await?;
            match &self.question {
                Question::Unknown(why) => Err(why.clone()),
                Question::Connect => Ok(()),
                Question::Health { service } => grpc::check(stream, self.address, service).await,
                Question::Get { scheme, path, host, headers } => {
                    check_path(path)?;
                    let headers = headers_of(host, headers)?;
                    let status = self.status(*scheme, stream, path, &headers).await;
                    check(status.map_err(|error| format!("{what}: {error}"))?)
                }
            }
        };
        let late = |_| Err(format!("{what}: no answer within {}s", limit.as_secs()));
        timeout(limit, answer).await.unwrap_or_else(late)
    }

    /// The status of the answer to a request; none, if the answer is not HTTP.
    async fn status(
        &self,
        scheme: Scheme,
        stream: TcpStream,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<Option<u16>, String> {
        let by_http1 = request(path, headers);
        let told = |error: std::io::Error| error.to_string();
        match scheme {
            Scheme::Http => http1_status(stream, &by_http1).await.map_err(told),
            Scheme::Https => {
                let connected = container_probe::connect(self.address.ip(), stream).await;
                match connected.map_err(told)? {
                    (stream, HttpVersion::Http1) => {
                        http1_status(stream, &by_http1).await.map_err(told)
                    }
                    (stream, HttpVersion::Http2) => {
                        http2::status(stream, path, headers).await.map(Some)
                    }
                }
            }
        }
    }
}

fn check_path(path: &str) -> Result<(), String> {
    if !path.starts_with('/') || path.contains(|c: char| c.is_control() || c == ' ') {
        return Err(format!("the path {path:?} cannot be asked for"));
    }
    Ok(())
}

/// The headers of a request: the probe's own, each in place of one that is sent otherwise.
fn headers_of<'a>(
    host: &'a str,
    own: &'a [(String, String)],
) -> Result<Vec<(&'a str, &'a str)>, String> {
    let others = [("Host", host), ("Connection", "close")].into_iter().chain(HEADERS);
    let is_own = |name: &str| own.iter().any(|(it, _)| it.eq_ignore_ascii_case(name));
    let others = others.filter(|(name, _)| !is_own(name));
    let own = own.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let all: Vec<_> = others.chain(own).filter(|(_, value)| !value.is_empty()).collect();
    let is_wrong = |(name, value): &&(&str, &str)| {
        name.parse::<HeaderName>().is_err() || HeaderValue::from_str(value).is_err()
    };
    match all.iter().find(is_wrong) {
        Some((name, _)) => Err(format!("the header {name:?} cannot be sent")),
        None => Ok(all),
    }
}

/// A request of HTTP/1.1.
fn request(path: &str, headers: &[(&str, &str)]) -> String {
    let mut request = format!("GET {path} HTTP/1.1\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request + "\r\n"
}

/// The status of the answer to a request of HTTP/1.1.
async fn http1_status<IO>(mut stream: IO, request: &str) -> std::io::Result<Option<u16>>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    stream.take(STATUS_SIZE_BYTES as u64).read_to_end(&mut answer).await?;
    Ok(status_of(&answer))
}

/// The status at the beginning of an answer of HTTP/1.1.
fn status_of(answer: &[u8]) -> Option<u16> {
    let mut words = answer.split(|byte| *byte == b' ');
    words.next().filter(|word| word.starts_with(b"HTTP/1."))?;
    std::str::from_utf8(words.next()?.get(..3)?).ok()?.parse().ok()
}

/// Whether the status of an HTTP answer counts as success: 200 to 399.
fn check(status: Option<u16>) -> Result<(), String> {
    match status {
        Some(200..400) => Ok(()),
        Some(status) => Err(format!("HTTP probe failed with statuscode: {status}")),
        None => Err("the answer is not HTTP".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn statuses_below_400_are_success() {
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\n", ""),
            ("HTTP/1.0 302\r\n", ""),
            ("HTTP/1.1 404 Not Found\r\n", "HTTP probe failed with statuscode: 404"),
            ("HTTP/1.1 500\r\n", "HTTP probe failed with statuscode: 500"),
            ("SSH-2.0-x 200 \r\n", "the answer is not HTTP"),
            ("", "the answer is not HTTP"),
        ] {
            assert_eq!(
                check(status_of(answer.as_bytes())).err().unwrap_or_default(),
                expected,
                "{answer:?}"
            );
        }
    }

    #[test]
    fn headers_of_a_probe_replace_the_usual_ones() {
        let own = |all: &[(&str, &str)]| -> Vec<(String, String)> {
            all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let lines = |all: &[(&str, &str)]| {
            let own = own(all);
            headers_of("10.0.0.1:80", &own).map(|headers| request("/a?b", &headers))
        };
        assert_eq!(
            lines(&[]).unwrap(),
            "GET /a?b HTTP/1.1\r\nHost: 10.0.0.1:80\r\nConnection: close\r\n\
             User-Agent: kube-probe/1.36\r\nAccept: */*\r\n\r\n"
        );
        assert_eq!(
            lines(&[("host", "web"), ("Accept", ""), ("X-A", "1")]).unwrap(),
            "GET /a?b HTTP/1.1\r\nConnection: close\r\nUser-Agent: kube-probe/1.36\r\n\
             host: web\r\nX-A: 1\r\n\r\n"
        );
        for (bad, name) in [(("X-A", "1\r\nx: y"), "X-A"), (("a b", "1"), "a b")] {
            let expected = format!("the header {name:?} cannot be sent");
            assert_eq!(lines(&[bad]).unwrap_err(), expected);
        }
        for bad in ["/a b", "/\r\n", "a"] {
            assert!(check_path(bad).unwrap_err().contains("cannot be asked for"), "{bad}");
        }
    }

    fn container(probe: Value) -> Container {
        serde_json::from_value(json!({
            "name": "c", "ports": [{"name": "web", "containerPort": 8080}],
            "livenessProbe": probe,
        }))
        .unwrap()
    }

    #[test]
    fn probes_are_asked_where_they_say() {
        let address = |probe: Value| {
            let container = container(probe);
            let pod_ip = "10.0.0.1".parse().unwrap();
            let planned = probes(&container).liveness.map(|plan| plan.asked);
            let probe = NodeProbe::of(&container, ProbeKind::Liveness, pod_ip);
            assert_eq!(planned == Some(Asked::Port), probe.is_some());
            probe.map(|probe| probe.address.to_string())
        };
        for (probe, expected) in [
            (json!({"tcpSocket": {"port": 80}}), Some("10.0.0.1:80")),
            (json!({"tcpSocket": {"port": "web"}}), Some("10.0.0.1:8080")),
            (json!({"httpGet": {"port": "web", "host": "10.0.0.2"}}), Some("10.0.0.1:8080")),
            (json!({"tcpSocket": {"port": 80, "host": "127.0.0.1"}}), Some("10.0.0.1:80")),
            (json!({"httpGet": {"port": "other"}}), None),
            (json!({"httpGet": {"port": 80, "scheme": "HTTPS"}}), Some("10.0.0.1:80")),
            (json!({"grpc": {"port": 80}}), Some("10.0.0.1:80")),
            (json!({"grpc": {"port": 65536}}), None),
            (json!({"exec": {"command": ["a"]}}), None),
        ] {
            assert_eq!(address(probe.clone()).as_deref(), expected, "{probe}");
        }
    }

    #[test]
    fn timing_is_as_written_or_kubernetes_own() {
        let plan = |more: Value| {
            let mut probe = json!({"exec": {"command": ["a"]}});
            probe.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            probes(&container(probe)).liveness.unwrap()
        };
        let usual = plan(json!({}));
        assert_eq!(usual.asked, Asked::Command(vec!["a".to_owned()]));
        assert_eq!(usual.grace_seconds, None);
        let ProbeTiming { initial_delay_seconds, period_seconds, timeout_seconds, .. } =
            usual.timing;
        assert_eq!([initial_delay_seconds, period_seconds, timeout_seconds], [0, 10, 1]);
        let ProbeTiming { success_threshold, failure_threshold, .. } = usual.timing;
        assert_eq!([success_threshold, failure_threshold], [1, 3]);
        let written = plan(json!({"periodSeconds": 2, "terminationGracePeriodSeconds": 4}));
        assert_eq!((written.timing.period_seconds, written.grace_seconds), (2, Some(4)));
        let zero = json!({
            "initialDelaySeconds": 0, "periodSeconds": 0, "timeoutSeconds": 0,
            "successThreshold": 0, "failureThreshold": 0,
        });
        assert_eq!(plan(zero), usual);
    }

    #[tokio::test]
    async fn https_is_asked_through_tls_alone() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut first = [0; 1];
            stream.read_exact(&mut first).await.unwrap();
            assert_eq!(first, [22], "a handshake");
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        });
        let get = json!({"port": address.port(), "path": "/a", "scheme": "HTTPS"});
        let probe = json!({"httpGet": get, "timeoutSeconds": 60});
        let probe = NodeProbe::of(&container(probe), ProbeKind::Liveness, address.ip()).unwrap();
        let expected = format!("Get \"https://{address}/a\": the server does not speak TLS");
        assert_eq!(probe.ask().await, Err(expected));
        server.await.unwrap();
    }

    #[tokio::test]
    async fn an_answer_may_be_short_and_its_connection_stay_open() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
            std::future::pending::<()>().await;
        });
        let probe = json!({
            "httpGet": {"port": address.port()}, "timeoutSeconds": 60,
        });
        let probe = NodeProbe::of(&container(probe), ProbeKind::Liveness, address.ip()).unwrap();
        assert_eq!(probe.ask().await, Ok(()));
        server.abort();
    }
}
