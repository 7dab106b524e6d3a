//! What became of a Gateway's objects, as whoever makes them knows it.

use std::collections::BTreeMap;

use crate::gateway::listeners::Fault;

/// What became of a Gateway's objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Made {
    /// The addresses of its Service.
    pub addresses: Vec<String>,
    /// How many of its pods take traffic.
    pub ready: usize,
    /// How many it should have.
    pub wanted: usize,
    /// Why they could not be made, as a sentence.
    pub problem: Option<String>,
    /// What is wrong with the patches that the Gateway, or its class, names. The objects then stay
    /// as they are.
    pub wrong_parameters: Option<String>,
    /// What is known of the listeners of a gateway at the edge, and of its ListenerSets, by their
    /// full names.
    pub listeners: BTreeMap<String, ListenerMade>,
    /// How many ListenerSets of a gateway at the edge have a listener that is served.
    pub sets: usize,
    /// What is wrong with the certificate by which a gateway at the edge proves itself to backends.
    pub unresolved: Option<Fault>,
}

/// What is known of a listener besides what it says itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListenerMade {
    /// How many routes are attached; what was told before stays where nobody counts.
    pub attached_routes: Option<usize>,
    /// What is wrong with objects that it names: a Secret that is not there, no grant.
    pub unresolved: Option<Fault>,
    /// Why it is not served though it says nothing wrong.
    pub refused: Option<Fault>,
}

impl ListenerMade {
    /// What keeps it from taking all that it should.
    pub fn fault(&self) -> Option<&Fault> {
        self.refused.as_ref().or(self.unresolved.as_ref())
    }
}
