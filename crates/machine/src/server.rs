//! `machine.sock`: the user's commands, as HTTP/1.1 with JSON.
//!
//! One user's socket, mode 0600. A refused command changes nothing; its response gives the reason.

use std::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ambit_net::capture::Capture;
use ambit_net::local_http;
use anyhow::Context;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::UnixListener;

use super::client::{MachineStatus, RoleInfo};
use super::command::{
    Apply, Captured, CreateToken, Delete, Kill, NoteLink, Refusal, Restart, Scale, StartCapture,
};
use super::fabric;
use super::joining::{self, JoiningError};
use super::state::{Machine, Objects, Position};
use crate::cluster;
use crate::join::CarriedWorkload;
use crate::objects::{ApplyError, Changes, Kind};
use crate::registry::timestamp;

/// Largest command: manifests of a large test.
const BODY_SIZE_MAX_BYTES: usize = 256 << 20;

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error("there is no command {0}")]
    NoCommand(String),
    #[error("the command could not be read")]
    Body(#[source] Box<dyn Error + Send + Sync>),
    #[error("the command is not of its form")]
    Form(#[from] serde_json::Error),
    #[error("there are no objects of kind {0:?} on a machine")]
    NoKind(String),
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error("there is no program {0:?}, or it does not run just now; see `ambit status`")]
    NoRole(String),
    #[error("cannot signal {0}")]
    Signal(String, #[source] std::io::Error),
    #[error("a capture runs already; stop it first")]
    CaptureRuns,
    #[error("no capture runs")]
    NoCapture,
    #[error(transparent)]
    Joining(#[from] JoiningError),
    #[error(
        "this machine is a node of the one at {home}, whose objects it has; run the command there"
    )]
    Elsewhere { home: std::net::SocketAddr },
    #[error(
        "this machine carries WorkloadEntry {entry} of a cluster and nothing else; change objects \
         of the cluster with kubectl, or start another machine with `ambit up`"
    )]
    OfCluster { entry: String },
    #[error("the capture failed")]
    Capture(#[source] std::io::Error),
}

/// Starts to serve commands.
pub(super) fn listen(machine: &Arc<Machine>) -> anyhow::Result<()> {
    let path = machine.layout.socket();
    let failed = || format!("listen at {}", path.display());
    // The directory is the user's alone, so that the socket's mode is never too wide.
    let listener = UnixListener::bind(&path).with_context(failed)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).with_context(failed)?;
    let machine = Arc::clone(machine);
    let answer = move |request| {
        let machine = Arc::clone(&machine);
        async move { answer(request, &machine).await }
    };
    let spawn = |connection| drop(tokio::spawn(connection));
    tokio::spawn(local_http::serve(listener, "commands", answer, spawn));
    Ok(())
}

async fn answer(request: Request<Incoming>, machine: &Machine) -> Response<Full<Bytes>> {
    let (status, body) = match carry_out(request, machine).await {
        Ok(value) => (StatusCode::OK, value.to_string()),
        Err(error) => {
            let status = match &error {
                CommandError::NoCommand(_) | CommandError::NoKind(_) => StatusCode::NOT_FOUND,
                CommandError::Apply(ApplyError::Store(_)) | CommandError::Capture(_) => {
                    StatusCode::INTERNAL_SERVER_ERROR
                }
                _ => StatusCode::BAD_REQUEST,
            };
            let refusal = Refusal { error: format!("{:#}", anyhow::Error::new(error)) };
            (status, serde_json::to_string(&refusal).expect("a text can be written as JSON"))
        }
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response
}

async fn carry_out(request: Request<Incoming>, machine: &Machine) -> Result<Value, CommandError> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    if head.method == Method::GET {
        return match path.as_str() {
            "/status" => to_json(&status(machine).await),
            "/pods" => to_json(&machine.objects().pods(&machine.layout)),
            "/events" => Ok(machine.objects().events.to_json().into()),
            _ => match path.strip_prefix("/objects/") {
                Some(plural) => objects(machine, plural),
                None => Err(CommandError::NoCommand(path)),
            },
        };
    }
    let body =
        Limited::new(body, BODY_SIZE_MAX_BYTES).collect().await.map_err(CommandError::Body)?;
    let body = body.to_bytes();
    match &machine.position {
        Position::Joined { home, .. } if changes_objects(&path) => {
            return Err(CommandError::Elsewhere { home: *home });
        }
        Position::Cluster { workload } if changes_objects(&path) => {
            let CarriedWorkload { namespace, entry, .. } = workload;
            return Err(CommandError::OfCluster { entry: format!("{namespace}/{entry}") });
        }
        _ => {}
    }
    match path.as_str() {
        "/apply" => apply(machine, parse(&body)?),
        "/delete" => delete(machine, parse(&body)?),
        "/diff" => to_json(&machine.objects().differences(parse(&body)?, &timestamp())?),
        "/scale" => {
            let Scale { object, replicas } = parse(&body)?;
            change(machine, |all, now| all.store.scale(&object, replicas, now))
        }
        "/restart" => {
            let Restart { object } = parse(&body)?;
            change(machine, |all, now| all.store.restart(&object, now))
        }
        "/token/create" => {
            let CreateToken { node, ttl_seconds, address } = parse(&body)?;
            to_json(&joining::create_token(machine, node.as_deref(), ttl_seconds, address)?)
        }
        "/link/admit" => to_json(&joining::admit(machine, &parse(&body)?)?),
        "/link/holds" => to_json(&joining::holds(machine, &parse(&body)?)),
        "/link/note" => to_json(&joining::note(machine, parse::<NoteLink>(&body)?)?),
        "/kill" => kill(machine, &parse(&body)?),
        "/capture/start" => start_capture(machine, &parse(&body)?),
        "/capture/stop" => stop_capture(machine),
        "/down" => {
            machine.end.notify_one();
            Ok(Value::Null)
        }
        _ => Err(CommandError::NoCommand(path)),
    }
}

/// Whether a command is about the objects, which a joined machine has from home.
fn changes_objects(path: &str) -> bool {
    ["/apply", "/delete", "/diff", "/scale", "/restart", "/token/create"].contains(&path)
}

fn to_json(value: &impl Serialize) -> Result<Value, CommandError> {
    Ok(serde_json::to_value(value)?)
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, CommandError> {
    Ok(serde_json::from_slice(body)?)
}

/// Changes objects, and has the controllers go on.
fn change(
    machine: &Machine,
    change: impl FnOnce(&mut Objects, &str) -> Result<Changes, ApplyError>,
) -> Result<Value, CommandError> {
    let changes = machine.objects().change(change)?;
    machine.changed.notify_one();
    to_json(&changes)
}

fn apply(machine: &Machine, command: Apply) -> Result<Value, CommandError> {
    change(machine, |all, now| all.apply(&machine.layout, command, now))
}

fn delete(machine: &Machine, command: Delete) -> Result<Value, CommandError> {
    let Delete { objects, ignore_absent, dry_run } = command;
    change(machine, |all, now| {
        if dry_run {
            all.store.would_delete(&objects, ignore_absent, now)
        } else {
            all.store.delete(&objects, ignore_absent, now)
        }
    })
}

fn objects(machine: &Machine, plural: &str) -> Result<Value, CommandError> {
    if Kind::from_plural(plural).is_none() {
        return Err(CommandError::NoKind(plural.to_owned()));
    }
    let objects = machine.objects();
    Ok(objects.store.of_plural(plural).map(|(_, value)| value.clone()).collect())
}

fn kill(machine: &Machine, command: &Kill) -> Result<Value, CommandError> {
    let Kill { role, signal } = command;
    let outcome = machine.roles.signal(role, *signal);
    outcome
        .ok_or_else(|| CommandError::NoRole(role.clone()))?
        .map_err(|source| CommandError::Signal(role.clone(), source))?;
    Ok(Value::Null)
}

fn start_capture(machine: &Machine, command: &StartCapture) -> Result<Value, CommandError> {
    let mut capture = machine.capture.lock().expect("nothing panics while it holds the lock");
    if capture.is_some() {
        return Err(CommandError::CaptureRuns);
    }
    let StartCapture { path, limit_bytes } = command;
    let started = Capture::start(&machine.fabric, fabric::BRIDGE, path, *limit_bytes);
    *capture = Some(started.map_err(CommandError::Capture)?);
    Ok(Value::Null)
}

fn stop_capture(machine: &Machine) -> Result<Value, CommandError> {
    let mut capture = machine.capture.lock().expect("nothing panics while it holds the lock");
    let running = capture.take().ok_or(CommandError::NoCapture)?;
    let summary = running.stop().map_err(CommandError::Capture)?;
    to_json(&Captured::from(summary))
}

async fn status(machine: &Machine) -> MachineStatus {
    let asks = machine.role_list.iter().map(|role| async {
        let mut info = machine.roles.info(role);
        info.waiting_for = role.check.ask(machine.place(role)).await.err();
        info
    });
    let mut roles = futures::future::join_all(asks).await;
    roles.extend(lost_egress(machine));
    let mut nodes = machine.nodes();
    if let Position::Cluster { workload } = &machine.position {
        for node in &mut nodes {
            let socket = machine.layout.proxy_admin_socket(&node.name);
            node.link = Some(cluster::link(&socket, workload).await);
        }
    }
    MachineStatus {
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        pid: machine.record.pid,
        started_at: machine.record.started_at.clone(),
        rootless: machine.record.rootless,
        mesh: machine.record.mesh,
        joined: match &machine.position {
            Position::Joined { home, .. } => Some(*home),
            Position::Alone | Position::Home { .. } | Position::Cluster { .. } => None,
        },
        workload: machine.record.workload.clone(),
        egress: machine.record.egress.clone(),
        nodes,
        left_alone: left_alone(machine),
        roles,
    }
}

/// What the mesh does not carry, for users who expect it to carry everything.
fn left_alone(machine: &Machine) -> Vec<String> {
    if !machine.record.mesh {
        let all = "everything: the machine was started without the mesh".to_owned();
        return std::iter::once(all).chain(of_egress(machine)).collect();
    }
    let mut left_alone = vec!["UDP, except DNS of captured pods".to_owned()];
    left_alone.extend(of_egress(machine));
    let objects = machine.objects();
    for (object, value) in objects.store.of_plural("pods") {
        if value.pointer("/spec/hostNetwork") == Some(&Value::Bool(true)) {
            left_alone.push(format!("{object}: hostNetwork"));
        }
    }
    left_alone
}

/// What of the outside pods do not reach.
fn of_egress(machine: &Machine) -> Vec<String> {
    let said = "to the outside: UDP, except DNS, and ICMP; both are refused";
    machine.record.egress.iter().map(|_| said.to_owned()).collect()
}

/// The process on the host, once it has ended: nothing starts it again.
fn lost_egress(machine: &Machine) -> Option<RoleInfo> {
    machine.has_lost_egress.load(Ordering::Relaxed).then(|| RoleInfo {
        name: "egress".to_owned(),
        pid: None,
        restarts: 0,
        last_exit: None,
        waiting_for: Some("it has ended; take the machine down and start it again".to_owned()),
        log: machine.layout.role_log("lab", None),
    })
}
