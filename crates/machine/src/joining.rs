//! What process 1 of home does for machines that join: tokens, nodes, and the ways to them.
//!
//! `join` has who may join; here is what follows from it for objects and networks. It never opens
//! a connection: the link is another process.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::addresses::NodeNetwork;
use crate::command::{NoteLink, Seated};
use crate::fabric::{self, FabricError};
use crate::join::{JoinRefused, JoinToken, LinkInfo, Moment, Proof, Taken, TokenRefused};
use crate::objects::{Kind, ObjectRef, StoreError, joined_node_object, node_readiness};
use crate::registry::timestamp;
use crate::state::{Machine, Position};

/// Most characters of a reason that are kept: the other end may have written it.
const REASON_LENGTH_MAX: usize = 256;
/// The longest that a token can be used.
const TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Why a machine cannot join.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoiningError {
    /// Nobody listens for it.
    #[error(
        "this machine does not listen for others; start it with `ambit up --join-address IP:PORT`"
    )]
    NotHome,
    /// A token without time.
    #[error("a token can be used for 1 second to 24 hours; correct --ttl")]
    Ttl,
    /// Nobody can connect to such an address.
    #[error(
        "this machine listens at {0}, to which nobody can connect; name an address of this \
         computer with --address IP:PORT"
    )]
    Address(SocketAddr),
    /// No token.
    #[error(transparent)]
    Token(#[from] TokenRefused),
    /// No machine.
    #[error(transparent)]
    Join(#[from] JoinRefused),
    /// The node's object cannot be kept.
    #[error("cannot keep the node's object")]
    Store(#[from] StoreError),
    /// The way to it cannot be made.
    #[error("cannot make the way to the node")]
    Fabric(#[from] FabricError),
}

/// Makes a token.
pub(super) fn create_token(
    machine: &Machine,
    node: Option<&str>,
    ttl_seconds: u64,
    address: Option<SocketAddr>,
) -> Result<JoinToken, JoiningError> {
    let Position::Home { address: listens, root } = &machine.position else {
        return Err(JoiningError::NotHome);
    };
    let ttl = Duration::from_secs(ttl_seconds);
    if ttl.is_zero() || ttl > TTL_MAX {
        return Err(JoiningError::Ttl);
    }
    let address = address.unwrap_or(*listens);
    if address.ip().is_unspecified() || address.port() == 0 {
        return Err(JoiningError::Address(address));
    }
    machine.forget_deleted_nodes();
    let own = machine.record.nodes.len();
    let (node, secret) = machine.joins().open(node, own, ttl, Moment::now())?;
    tracing::info!(node = node.name(), ttl_seconds, "a token is made");
    Ok(JoinToken::new(node, machine.record.mesh, address, root.clone(), secret))
}

/// Takes a machine that proves itself.
pub(super) fn admit(machine: &Machine, proof: &Proof) -> Result<Seated, JoiningError> {
    if !proof.is_whole() {
        return Err(JoinRefused::Unknown.into());
    }
    machine.forget_deleted_nodes();
    let mut objects = machine.objects();
    let Taken { node, number, token } = machine.joins().admit(proof, Moment::now())?;
    if let Some(token) = token {
        if let Err(error) = add(machine, &mut objects, node) {
            machine.joins().give_back(node, token);
            lead_no_more(machine, node);
            return Err(error);
        }
        machine.changed.notify_one();
        tracing::info!(node = node.name(), "a machine joined");
    }
    Ok(Seated { node: node.name(), number })
}

/// Whether a machine that was taken still has its node.
pub(super) fn holds(machine: &Machine, Seated { node, number }: &Seated) -> bool {
    machine.forget_deleted_nodes();
    NodeNetwork::of_name(node).is_some_and(|node| machine.joins().holds(node, *number))
}

fn add(
    machine: &Machine,
    objects: &mut crate::state::Objects,
    node: NodeNetwork,
) -> Result<(), JoiningError> {
    fabric::lead_to_joined(&machine.members, node)?;
    let (object, value) = joined_node_object(node);
    objects.store.write(object, value, &timestamp())?;
    Ok(())
}

/// Notes how the link of a node is, here and in its object.
pub(super) fn note(machine: &Machine, note: NoteLink) -> Result<(), JoiningError> {
    let NoteLink { node, number, peer, reason } = note;
    let connected = reason.is_none();
    let reason = reason.unwrap_or_default().chars().take(REASON_LENGTH_MAX).collect();
    let link = LinkInfo { connected, peer, since: timestamp(), reason };
    if let Position::Joined { link: own, .. } = &machine.position {
        *own.lock().expect("nothing panics while it holds the lock") = Some(link);
        return Ok(());
    }
    let Some(network) = NodeNetwork::of_name(&node) else { return Ok(()) };
    if let Some(number) = number
        && !holds(machine, &Seated { node: node.clone(), number })
    {
        return Err(JoinRefused::Unknown.into());
    }
    let mut objects = machine.objects();
    let why_not = Some(link.reason.clone()).filter(|_| !link.connected);
    if !machine.joins().note(network, link) {
        return Ok(());
    }
    let object = ObjectRef::new(Kind::Node, None, &node);
    let Some(mut value) = objects.store.object(&object).cloned() else { return Ok(()) };
    value["status"]["conditions"] = serde_json::json!([node_readiness(why_not.as_deref())]);
    objects.store.write(object, value, &timestamp())?;
    drop(objects);
    machine.changed.notify_one();
    Ok(())
}

fn lead_no_more(machine: &Machine, node: NodeNetwork) {
    if let Err(error) = fabric::lead_no_more(&machine.members, node) {
        let error = format!("{:#}", anyhow::Error::new(error));
        tracing::error!(error, "the way to a deleted node stays");
    }
}

impl Machine {
    /// Forgets the machines whose Node objects were deleted, with all that they said of pods.
    pub(super) fn forget_deleted_nodes(&self) {
        let objects = self.objects();
        let mut joins = self.joins();
        let is_gone = |node: &NodeNetwork| {
            let object = ObjectRef::new(Kind::Node, None, &node.name());
            objects.store.object(&object).is_none()
        };
        let gone: Vec<NodeNetwork> = joins.nodes().map(|(node, _)| node).filter(is_gone).collect();
        for node in gone {
            joins.forget(node);
            tracing::info!(node = node.name(), "a node that joined was deleted");
            lead_no_more(self, node);
            // The next computer with this name is another one.
            if let Err(error) = fs::remove_dir_all(self.layout.node(&node.name()))
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::error!(%error, node = node.name(), "credentials of a node stay");
            }
            let statuses = objects.reported.statuses();
            for ((namespace, name), _) in statuses.filter(|(_, it)| it.node == node.name()) {
                for path in [
                    self.layout.pod_status(namespace, name),
                    self.layout.captured(namespace, name),
                    self.layout.uncaptured(namespace, name),
                ] {
                    // One that is gone is fine; one that stays is of a pod that there is not.
                    let _gone = fs::remove_file(path);
                }
            }
        }
    }
}
