//! Whether a client may still be served.
//!
//! A caller is judged when its stream begins, and a stream lives for hours. So what was judged is
//! looked at again before each response and at each request, and whenever objects change: also
//! while the stream waits for a client that does not read. It is judged from the world as it is,
//! never from what a watch has seen: that others have looked at a change hides nothing here.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

use crate::callers::{Caller, SpeaksFor};
use crate::entry_callers;
use crate::world::World;

/// What a client is served by.
pub(super) struct Standing {
    world: Arc<World>,
    objects: watch::Receiver<u64>,
    /// None where nobody proves anything.
    caller: Option<Caller>,
    /// When its token ends, by the clock that cannot be set.
    ends_at: Option<Instant>,
}

impl Standing {
    /// That of a client whose stream begins.
    pub(super) fn new(caller: Option<Caller>, world: Arc<World>) -> Self {
        let left = caller
            .as_ref()
            .map(|caller| caller.expires_at.duration_since(SystemTime::now()).unwrap_or_default());
        let ends_at = left.and_then(|left| Instant::now().checked_add(left));
        Self { objects: world.objects(), world, caller, ends_at }
    }

    /// Who it is.
    pub(super) fn caller(&self) -> Option<&Caller> {
        self.caller.as_ref()
    }

    /// Whether it is the computer of a WorkloadEntry.
    pub(super) fn is_entry(&self) -> bool {
        matches!(&self.caller, Some(Caller { speaks_for: SpeaksFor::Entry(_), .. }))
    }

    /// An error says why nothing more may be sent.
    pub(super) fn check(&self) -> Result<(), Status> {
        let Some(caller) = &self.caller else { return Ok(()) };
        let is_over = self.ends_at.is_some_and(|end| end <= Instant::now());
        if is_over || caller.expires_at <= SystemTime::now() {
            let what = "the token has expired; reconnect with a fresh one";
            return Err(Status::unauthenticated(what));
        }
        match &caller.speaks_for {
            SpeaksFor::Node => Ok(()),
            // As long as its Gateway is there, and its pod is the Gateway's.
            SpeaksFor::Waypoint if caller.is_waypoint(&self.world) => Ok(()),
            SpeaksFor::Waypoint => {
                Err(Status::permission_denied("this pod is no longer a waypoint's"))
            }
            SpeaksFor::Entry(_) => entry_callers::still(caller, &self.world)
                .map_err(|why| Status::permission_denied(why.to_string())),
        }
    }

    /// Ends with the reason once nothing more may be sent.
    pub(super) async fn lost(&mut self) -> Status {
        // No object takes anything from a node's proxy, and there may be thousands of them.
        let depends_on_objects = matches!(
            &self.caller,
            Some(Caller { speaks_for: SpeaksFor::Waypoint | SpeaksFor::Entry(_), .. })
        );
        loop {
            if let Err(status) = self.check() {
                return status;
            }
            let changes = async {
                match depends_on_objects {
                    true => self.objects.changed().await,
                    false => std::future::pending().await,
                }
            };
            let end = async {
                match self.ends_at {
                    Some(end) => tokio::time::sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = changes => if changed.is_err() {
                    return Status::unavailable("the control plane stops");
                },
                () = end => {}
            }
        }
    }
}
