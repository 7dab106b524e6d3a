//! Finds the cargo that the chores run.

/// The cargo that started us, or the one in the path.
pub(crate) fn program() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}
