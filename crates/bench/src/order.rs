//! The arguments of `ambit bench`, checked.

use std::collections::BTreeMap;

use super::bed::Place;
use super::experiment::Experiment;
use super::modes::Mode;
use super::record::Host;

/// What the words ask for, checked.
pub(super) struct Order {
    pub(super) experiment: Experiment,
    pub(super) modes: Vec<Mode>,
    pub(super) place: Place,
    pub(super) host: Host,
    /// What takes part, each with its version.
    pub(super) programs: BTreeMap<String, String>,
    /// Why not to trust it, known beforehand.
    pub(super) warnings: Vec<String>,
}
