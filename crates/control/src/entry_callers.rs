//! Callers that are the computer of a WorkloadEntry, outside of the cluster.
//!
//! The API server says whose account a token is, and metadata of the call names the WorkloadEntry.
//! It must be of the token's namespace and have the token's account. The token proves the account
//! alone, so this is judged at each call and never remembered with the token. What was judged is
//! looked at again as long as the computer is served: a WorkloadEntry that is deleted takes its
//! computer out of the mesh. Nothing here reads a token.

use std::time::Duration;

use ambit_manifest::ObjectName;
use ambit_manifest::names::dns_subdomain;
use ambit_model::Text;
use ambit_words::names::WORKLOAD_ENTRY_METADATA;
use tokio::time::timeout;
use tonic::metadata::{Ascii, MetadataValue};

use crate::callers::{Caller, EntryClaim, SpeaksFor};
use crate::world::World;

/// How long a WorkloadEntry may be known to the API server and not yet to us.
const ENTRY_WAIT: Duration = Duration::from_secs(1);

/// Why a caller is not the computer of a WorkloadEntry, or is it no longer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EntryRefusal {
    /// What the call names has no name of an object.
    #[error(
        "the metadata {WORKLOAD_ENTRY_METADATA} does not hold a name of Kubernetes; write the name \
         of the WorkloadEntry there, without its namespace"
    )]
    NoName,
    /// The token is a pod's.
    #[error(
        "the token is bound to pod {pod}, and no pod is the computer of WorkloadEntry {entry}; \
         make a token with `ambit token create --kube -n {} {}`", .entry.namespace, .entry.name
    )]
    PodBound {
        /// The WorkloadEntry that the call names.
        entry: Named,
        /// The token's pod.
        pod: String,
    },
    /// The token is of the node proxies' account.
    #[error(
        "the token is of {account}, the account of node proxies (see --trusted-node-accounts), \
         which WorkloadEntry {entry} cannot have; give it another in spec.serviceAccount, and make \
         a token with `ambit token create --kube -n {} {}`", .entry.namespace, .entry.name
    )]
    NodeAccount {
        /// The WorkloadEntry that the call names.
        entry: Named,
        /// The token's account.
        account: String,
    },
    /// It is not there.
    #[error(
        "there is no WorkloadEntry {entry}; apply it, or name one of `kubectl get workloadentries \
         -n {}`, where the token's account is", .entry.namespace
    )]
    NoEntry {
        /// The WorkloadEntry that the call names.
        entry: Named,
    },
    /// Nobody knows what it says.
    #[error("WorkloadEntry {entry} cannot be read: {what}; correct it")]
    Unreadable {
        /// Which.
        entry: Named,
        /// What is wrong.
        what: String,
    },
    /// It has another account.
    #[error(
        "the serviceAccount of WorkloadEntry {entry} is {account}, the token's is {of_token}; make \
         a token with `ambit token create --kube -n {} {}`, or change spec.serviceAccount",
        .entry.namespace, .entry.name
    )]
    OtherAccount {
        /// Which.
        entry: Named,
        /// Its account.
        account: Text,
        /// The token's.
        of_token: String,
    },
    /// It is another of the same name.
    #[error("WorkloadEntry {entry} was deleted and made again; reconnect")]
    Replaced {
        /// Which.
        entry: Named,
    },
}

/// A WorkloadEntry's name, as messages show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    namespace: Text,
    name: Text,
}

impl std::fmt::Display for Named {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// A call that names a WorkloadEntry.
pub(crate) struct Call<'a> {
    /// Whom its token proves.
    pub(crate) caller: Caller,
    /// The name in its metadata.
    pub(crate) named: &'a MetadataValue<Ascii>,
    /// Whether its account is one of the node proxies'.
    pub(crate) is_node_account: bool,
}

impl Call<'_> {
    /// The caller as the WorkloadEntry's computer, now or in a moment.
    pub(crate) async fn judge(self, world: &World) -> Result<Caller, EntryRefusal> {
        let Self { caller, named, is_node_account } = self;
        let name = named.to_str().unwrap_or_default();
        if dns_subdomain(name).is_some() {
            return Err(EntryRefusal::NoName);
        }
        let entry = Named { namespace: caller.namespace.as_str().into(), name: name.into() };
        if let Some(pod) = &caller.pod {
            let pod = format!("{}/{}", caller.namespace, pod.name);
            return Err(EntryRefusal::PodBound { entry, pod });
        }
        if is_node_account {
            let account = caller.subject();
            return Err(EntryRefusal::NodeAccount { entry, account });
        }
        let mut objects = world.objects();
        let appears = async {
            loop {
                match claim(&caller, &entry, world) {
                    Err(EntryRefusal::NoEntry { .. }) if objects.changed().await.is_ok() => {}
                    judged => return judged,
                }
            }
        };
        let judged = timeout(ENTRY_WAIT, appears).await;
        let claim =
            judged.unwrap_or_else(|_| Err(EntryRefusal::NoEntry { entry: entry.clone() }))?;
        // A node that the token may be bound to is none of its business.
        Ok(Caller { node: String::new(), speaks_for: SpeaksFor::Entry(claim), ..caller })
    }
}

/// Whether a caller that was judged to be a WorkloadEntry's computer is it still. Of others nothing
/// is said.
pub(crate) fn still(caller: &Caller, world: &World) -> Result<(), EntryRefusal> {
    let SpeaksFor::Entry(judged) = &caller.speaks_for else { return Ok(()) };
    let name = judged.name.clone();
    let entry = Named { namespace: caller.namespace.as_str().into(), name };
    if claim(caller, &entry, world)? == *judged {
        return Ok(());
    }
    Err(EntryRefusal::Replaced { entry })
}

/// The WorkloadEntry as it is now, if it has the caller's account.
fn claim(caller: &Caller, entry: &Named, world: &World) -> Result<EntryClaim, EntryRefusal> {
    let owner = world.entry(&ObjectName::new(&entry.namespace, &entry.name));
    let entry = entry.clone();
    let Some(owner) = owner else { return Err(EntryRefusal::NoEntry { entry }) };
    if let Some(what) = owner.unreadable {
        return Err(EntryRefusal::Unreadable { entry, what });
    }
    if *owner.service_account != *caller.service_account {
        let of_token = caller.service_account.clone();
        return Err(EntryRefusal::OtherAccount { entry, account: owner.service_account, of_token });
    }
    Ok(EntryClaim { name: entry.name, uid: owner.uid })
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
