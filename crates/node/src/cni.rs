//! The CNI plugin's endpoint: `POST /cmdadd` announces a pod before its first process starts.
//!
//! The response is sent when the pod is captured, or at once if it does not belong in the mesh:
//! only then may its processes run, so none of their connections bypasses the mesh. The message is
//! istio-cni's, so that its plugin works with this agent. This module decides nothing about the
//! pod; it never reports success for a pod that should be captured and is not.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ambit_net::local_http;
use ambit_words::exposition::METRICS_PATH;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use serde::Deserialize;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};

use crate::monitor::Health;
use crate::pod::{NewPod, PodName, PodUid};

/// Path of istio-cni's announcement.
const ADD_PATH: &str = "/cmdadd";
/// Largest announcement.
const BODY_MAX_BYTES: usize = 64 * 1024;
/// How long a client may take to send the body of its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the socket cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("listen for the CNI plugin at {} (its directory must exist)", path.display())]
pub(crate) struct CniError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// An announcement and where its answer goes: `Err` is the reason why the pod must not start.
pub(crate) type Announced = (NewPod, oneshot::Sender<Result<(), String>>);

#[derive(Debug, Deserialize)]
struct AddEvent {
    #[serde(rename = "Netns", alias = "netns")]
    netns: Option<PathBuf>,
    /// Where plugins up to Istio 1.26 put the namespace.
    #[serde(rename = "CmdAddEvent")]
    command: Option<CommandArguments>,
    #[serde(rename = "PodName", alias = "podName")]
    pod_name: String,
    #[serde(rename = "PodNamespace", alias = "podNamespace")]
    pod_namespace: String,
    /// Only this project's plugin says it.
    #[serde(rename = "PodUID")]
    pod_uid: Option<String>,
    #[serde(rename = "IPs", alias = "ips", default)]
    ips: Option<Vec<IpConfig>>,
}

#[derive(Debug, Deserialize)]
struct CommandArguments {
    #[serde(rename = "Netns")]
    netns: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum IpConfig {
    Plain(IpAddr),
    Configured {
        #[serde(rename = "Address", alias = "address")]
        address: Address,
    },
}

/// An address with its subnet: as text, or as Go writes its `net.IPNet`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Address {
    Subnet(ipnet::IpNet),
    Parts {
        #[serde(rename = "IP")]
        ip: IpAddr,
    },
}

impl IpConfig {
    fn ip(&self) -> IpAddr {
        match self {
            Self::Plain(ip) => *ip,
            Self::Configured { address: Address::Subnet(subnet) } => subnet.addr(),
            Self::Configured { address: Address::Parts { ip } } => *ip,
        }
    }
}

/// Reads an announcement.
fn parse(body: &[u8]) -> Result<NewPod, String> {
    let event: AddEvent = serde_json::from_slice(body)
        .map_err(|error| format!("not an announcement of istio-cni: {error}"))?;
    let netns = event.netns.or(event.command.map(|command| command.netns));
    let netns = netns.filter(|path| !path.as_os_str().is_empty());
    Ok(NewPod {
        name: PodName::new(event.pod_namespace, event.pod_name),
        uid: event.pod_uid.filter(|uid| !uid.is_empty()).map(|uid| PodUid::new(&uid)),
        netns: netns.ok_or("the announcement has no Netns: the pod's network namespace")?,
        ips: event.ips.unwrap_or_default().iter().map(IpConfig::ip).collect(),
    })
}

/// The listening socket, mode 0600.
pub(crate) fn listen(path: &Path) -> Result<UnixListener, CniError> {
    let listen = || {
        // Made aside and moved: at its own path it never has a wider mode.
        let aside = path.with_extension("new");
        for stale in [path, &aside] {
            if fs::symlink_metadata(stale).is_ok_and(|found| found.file_type().is_socket()) {
                fs::remove_file(stale)?;
            }
        }
        let listener = UnixListener::bind(&aside)?;
        fs::set_permissions(&aside, fs::Permissions::from_mode(0o600))?;
        fs::rename(&aside, path)?;
        Ok(listener)
    };
    listen().map_err(|source| CniError { path: path.to_owned(), source })
}

/// Serves announcements until their receiver is gone.
pub(crate) async fn serve(
    listener: UnixListener,
    announced: mpsc::Sender<Announced>,
    health: Arc<Health>,
) {
    let taker = announced.clone();
    let serving = local_http::serve(
        listener,
        "CNI plugin",
        move |request| answer(request, announced.clone(), health.clone()),
        |connection| drop(tokio::spawn(connection)),
    );
    tokio::select! {
        () = serving => {}
        () = taker.closed() => {}
    }
}

async fn answer(
    request: Request<Incoming>,
    announced: mpsc::Sender<Announced>,
    health: Arc<Health>,
) -> Response<Full<Bytes>> {
    // For the user whose socket it is: on a machine nobody else reaches the agent's port.
    if request.method() == Method::GET && request.uri().path() == METRICS_PATH {
        return respond(StatusCode::OK, health.metrics.render());
    }
    if request.uri().path() != ADD_PATH {
        let served = format!("only {ADD_PATH} and {METRICS_PATH} are served here");
        return respond(StatusCode::NOT_FOUND, served);
    }
    if request.method() != Method::POST {
        return respond(StatusCode::METHOD_NOT_ALLOWED, "use POST".to_owned());
    }
    let body = Limited::new(request.into_body(), BODY_MAX_BYTES).collect();
    let new_pod = match tokio::time::timeout(REQUEST_TIMEOUT, body).await {
        Err(_) => Err("the announcement did not arrive in time".to_owned()),
        Ok(Err(error)) => Err(format!("the announcement could not be read: {error}")),
        Ok(Ok(body)) => parse(&body.to_bytes()),
    };
    let new_pod = match new_pod {
        Ok(new_pod) => new_pod,
        Err(reason) => return respond(StatusCode::BAD_REQUEST, reason),
    };
    let name = new_pod.name.clone();
    let (reply, replied) = oneshot::channel();
    let stopped = || "the node agent is stopping; try again".to_owned();
    let result = match announced.send((new_pod, reply)).await {
        Ok(()) => replied.await.unwrap_or_else(|_| Err(stopped())),
        Err(_) => Err(stopped()),
    };
    match result {
        Ok(()) => respond(StatusCode::OK, String::new()),
        Err(reason) => {
            tracing::warn!(pod = %name, %reason, "a new pod may not start");
            respond(StatusCode::INTERNAL_SERVER_ERROR, format!("pod {name}: {reason}"))
        }
    }
}

fn respond(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str, netns: &str, ips: &[&str]) {
        let expected = NewPod {
            name: PodName::new("shop", "web"),
            uid: None,
            netns: PathBuf::from(netns),
            ips: ips.iter().map(|ip| ip.parse().expect("literal")).collect(),
        };
        assert_eq!(parse(json.as_bytes()), Ok(expected), "{json}");
    }

    #[test]
    fn announcements_of_every_plugin_are_understood() {
        check(
            r#"{"Netns":"/var/run/netns/x","PodName":"web","PodNamespace":"shop","IPs":[
                {"Interface":0,"Address":{"IP":"10.244.1.5","Mask":"////AA=="},
                 "Gateway":"10.244.1.1"},
                {"Interface":0,"Address":{"IP":"fd00::5","Mask":"//////////8AAAAAAAAAAA=="},
                 "Gateway":""}]}"#,
            "/var/run/netns/x",
            &["10.244.1.5", "fd00::5"],
        );
        check(
            r#"{"CmdAddEvent":{"ContainerID":"c","Netns":"/n","IfName":"eth0"},
                "PodName":"web","PodNamespace":"shop","IPs":null}"#,
            "/n",
            &[],
        );
        check(
            r#"{"netns":"/n","podName":"web","podNamespace":"shop","ips":["10.0.0.1"]}"#,
            "/n",
            &["10.0.0.1"],
        );
        check(
            r#"{"Netns":"/n","PodName":"web","PodNamespace":"shop",
                "IPs":[{"Address":"10.0.0.1/24"}]}"#,
            "/n",
            &["10.0.0.1"],
        );
    }

    #[test]
    fn an_announcement_without_a_namespace_or_a_pod_is_refused_with_the_reason() {
        for (json, reason) in [
            (r#"{"PodName":"web","PodNamespace":"shop"}"#, "no Netns"),
            (r#"{"Netns":"","PodName":"web","PodNamespace":"shop"}"#, "no Netns"),
            (r#"{"Netns":"/n","PodNamespace":"shop"}"#, "PodName"),
            ("", "istio-cni"),
        ] {
            let error = parse(json.as_bytes()).expect_err("refused");
            assert!(error.contains(reason), "{json}: {error}");
        }
    }
}
