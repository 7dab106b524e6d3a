//! Readiness probes from the node: TCP and HTTP, like the kubelet's.
//!
//! They come from the node's network, not from inside the pod, so the rules of a captured pod see
//! the same packets as in a cluster. Probes that are commands run inside the pod, by its init.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::plan::timing;
use crate::pod::{ProbeRecord, ProbeTiming};

/// Until a container is ready for the first time it is asked this often: nobody waits a period for
/// nothing.
const EAGER_INTERVAL: Duration = Duration::from_millis(200);
/// As much of an HTTP answer as its status needs.
const STATUS_LINE_SIZE_BYTES: usize = 64;

/// What to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Question {
    Connect,
    Get { path: String, host: String, headers: Vec<(String, String)> },
}

/// A probe of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeProbe {
    address: SocketAddr,
    question: Question,
    timing: ProbeTiming,
}

/// The answer of a probe: which container, and whether it is ready now.
pub(crate) type Answer = (String, bool);

impl NodeProbe {
    /// The probe of a container, if it has one that is asked from the node.
    pub(crate) fn of(container: &Container, pod_ip: IpAddr) -> Option<Self> {
        let probe = container.readiness_probe.as_ref()?;
        let port = |port: &IntOrString| match port {
            IntOrString::Int(number) => u16::try_from(*number).ok(),
            IntOrString::String(name) => {
                let ports = container.ports.iter().flatten();
                let named = ports.into_iter().find(|port| port.name.as_deref() == Some(name))?;
                u16::try_from(named.container_port).ok()
            }
        };
        let (port, host, question) = match (&probe.tcp_socket, &probe.http_get) {
            (Some(tcp), _) => (port(&tcp.port)?, tcp.host.clone(), Question::Connect),
            (None, Some(get)) => {
                let headers = get.http_headers.iter().flatten();
                let headers = headers.map(|header| (header.name.clone(), header.value.clone()));
                let port = port(&get.port)?;
                let question = Question::Get {
                    path: get.path.clone().unwrap_or_else(|| "/".to_owned()),
                    host: SocketAddr::new(pod_ip, port).to_string(),
                    headers: headers.collect(),
                };
                (port, get.host.clone(), question)
            }
            (None, None) => return None,
        };
        let ip = host.and_then(|host| host.parse().ok()).unwrap_or(pod_ip);
        Some(Self { address: SocketAddr::new(ip, port), question, timing: timing(probe) })
    }

    /// Asks for ever, sending each change of the answer.
    pub(crate) async fn run(self, container: String, answers: mpsc::Sender<Answer>) {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let limit = seconds(self.timing.timeout_seconds.max(1));
        let period = seconds(self.timing.period_seconds.max(1));
        let mut record = ProbeRecord::new(self.timing);
        let mut ready = false;
        let mut was_ready = false;
        sleep(seconds(self.timing.initial_delay_seconds)).await;
        loop {
            let success = timeout(limit, self.ask()).await.unwrap_or(false);
            let now = record.answer(success);
            if now != ready {
                ready = now;
                was_ready |= ready;
                if answers.send((container.clone(), ready)).await.is_err() {
                    return;
                }
            }
            sleep(if was_ready { period } else { period.min(EAGER_INTERVAL) }).await;
        }
    }

    async fn ask(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(self.address).await else { return false };
        match &self.question {
            Question::Connect => true,
            Question::Get { path, host, headers } => {
                let mut request = format!(
                    "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: kube-probe/1.36\r\n\
                     Accept: */*\r\nConnection: close\r\n"
                );
                for (name, value) in headers {
                    request += &format!("{name}: {value}\r\n");
                }
                request += "\r\n";
                if stream.write_all(request.as_bytes()).await.is_err() {
                    return false;
                }
                let mut answer = Vec::new();
                let mut start = stream.take(STATUS_LINE_SIZE_BYTES as u64);
                start.read_to_end(&mut answer).await.is_ok() && is_success(&answer)
            }
        }
    }
}

/// Whether the status of an HTTP answer counts as success: 200 to 399.
fn is_success(answer: &[u8]) -> bool {
    let mut words = answer.split(|byte| *byte == b' ');
    let version = words.next().is_some_and(|word| word.starts_with(b"HTTP/1."));
    let status = words.next().and_then(|word| word.get(..3));
    let status = status.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u16>().ok());
    version && status.is_some_and(|status| (200..400).contains(&status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_below_400_are_success() {
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\n", true),
            ("HTTP/1.0 302\r\n", true),
            ("HTTP/1.1 404 Not Found\r\n", false),
            ("HTTP/1.1 500\r\n", false),
            ("SSH-2.0-x 200 \r\n", false),
            ("", false),
        ] {
            assert_eq!(is_success(answer.as_bytes()), expected, "{answer:?}");
        }
    }
}
