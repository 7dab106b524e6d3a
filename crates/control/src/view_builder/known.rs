//! What is known of a pod, with what pods have in common kept once.

use std::net::IpAddr;

use ambit_model::Text;
use ambit_model::intern::Pool;

use super::records::{NamedPorts, PodRecord};
use super::selectors::Labels;
use super::workloads::PodState;

/// A pod's object, and what is known beside it; either may come first.
#[derive(Debug, Default, PartialEq)]
pub(super) struct KnownPod {
    /// What its object says.
    pub(super) object: Option<PodRecord>,
    /// What its status and its node say.
    pub(super) state: PodState,
}

impl KnownPod {
    /// The addresses at which this pod alone is reached.
    pub(super) fn own_addresses(&self) -> &[IpAddr] {
        self.object.as_ref().map_or(&[], |object| self.state.own_addresses(object))
    }
}

/// What pods have in common, kept once.
#[derive(Debug, Default)]
pub(super) struct Repeated {
    texts: Pool<str>,
    labels: Pool<Labels>,
    named_ports: Pool<NamedPorts>,
}

impl Repeated {
    /// Puts the text that others have too in place of `text`.
    pub(super) fn share_text(&mut self, text: &mut Text) {
        self.texts.share(text);
    }

    /// Puts what other pods have too in place of what `pod` has of its own.
    pub(super) fn share(&mut self, pod: &mut KnownPod) {
        let KnownPod { object, state } = pod;
        let statuses = object.as_mut().and_then(|object| object.own_status.as_mut());
        for status in statuses.into_iter().chain(&mut state.status) {
            self.texts.share(&mut status.phase);
            status.reason.iter_mut().for_each(|reason| self.texts.share(reason));
            status.pod_ips.shrink_to_fit();
        }
        let Some(object) = object else { return };
        for text in [&mut object.service_account, &mut object.node, &mut object.owner] {
            self.texts.share(text);
        }
        self.labels.share(&mut object.labels);
        self.named_ports.share(&mut object.named_ports);
        let told = state.status.as_mut().map(|status| &mut status.uid);
        let own = object.own_status.as_mut().map(|status| &mut status.uid);
        let uids = [told, own, state.captured.as_mut()].into_iter().flatten();
        uids.filter(|uid| **uid == object.uid).for_each(|uid| *uid = object.uid.clone());
    }
}
