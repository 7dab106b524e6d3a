//! How many of the tests a run includes.

/// Which tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Those that every change must pass.
    Change,
    /// All.
    Release,
}
