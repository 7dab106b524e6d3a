//! Authentication: whether a call comes from a node's proxy, or from a waypoint's pod.
//!
//! The token is checked before the body of a call is read, and no other caller is served. The first
//! such call proves the connection: see [`crate::listener`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use ambit_log::{KNOWN, STRANGERS, Throttle};
use ambit_model::Text;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::callers::{Caller, CallerError, Callers, SpeaksFor};
use crate::listener::Remote;
use crate::world::World;

/// Knows the proxies of nodes and the pods of waypoints.
#[derive(Clone)]
pub(crate) struct Authentication {
    pub(crate) callers: Callers,
    pub(crate) world: Arc<World>,
    /// Namespace and name of the accounts that node proxies have.
    pub(crate) trusted_accounts: Vec<(Text, Text)>,
}

/// Why a call is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// Nobody can say whose it is.
    #[error(transparent)]
    Caller(#[from] CallerError),
    /// The token belongs to another account, and its pod is no waypoint's.
    #[error(
        "{0} is neither the account of a node proxy (see --trusted-node-accounts) nor that of a \
         waypoint whose pod this is"
    )]
    Untrusted(String),
}

impl Refusal {
    /// The status that the caller gets.
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Caller(error) => error.status(),
            Self::Untrusted(_) => Status::permission_denied(self.to_string()),
        }
    }

    /// Which lines of the log this counts with: those about strangers, or about a caller whose
    /// token is good, or may be. The second must not be hidden by the first.
    pub(crate) fn lines(&self) -> &'static Throttle {
        match self {
            Self::Caller(CallerError::NoToken | CallerError::Own(_) | CallerError::Refused(_)) => {
                &STRANGERS
            }
            _ => &KNOWN,
        }
    }

    /// A word for metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Caller(CallerError::Unknown(_)) => "unavailable",
            Self::Caller(_) => "unauthenticated",
            Self::Untrusted(_) => "denied",
        }
    }
}

impl Authentication {
    /// The proxy that calls, and with it the proof of its connection.
    pub(crate) async fn caller(
        &self,
        metadata: &MetadataMap,
        remote: Option<&Remote>,
    ) -> Result<Caller, Refusal> {
        let _one_at_a_time = match remote {
            Some(remote) => remote.turn().await,
            None => None,
        };
        let caller = self.judge(metadata, remote.map(|remote| remote.address)).await;
        match (&caller, remote) {
            (Ok(caller), Some(remote)) => remote.prove(&caller.account_holder()),
            // The token could not be verified: that is not the client's fault.
            (Err(Refusal::Caller(CallerError::Unknown(_))), _) | (_, None) => {}
            (Err(_), Some(remote)) => remote.refuse(),
        }
        caller
    }

    async fn judge(
        &self,
        metadata: &MetadataMap,
        from: Option<SocketAddr>,
    ) -> Result<Caller, Refusal> {
        let now = SystemTime::now();
        let caller = self.callers.caller(metadata, from, &self.world, now).await?;
        // Before the account is looked at: a waypoint never speaks for its node, whatever its name.
        if self.world.is_waypoint(&caller) {
            return Ok(Caller { speaks_for: SpeaksFor::Waypoint, ..caller });
        }
        let is_trusted = |(namespace, name): &(Text, Text)| {
            **namespace == *caller.namespace && **name == *caller.service_account
        };
        let is_node = caller.speaks_for == SpeaksFor::Node;
        if is_node && self.trusted_accounts.iter().any(is_trusted) {
            return Ok(caller);
        }
        Err(Refusal::Untrusted(caller.subject()))
    }
}
