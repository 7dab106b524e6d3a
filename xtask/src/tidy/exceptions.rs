//! The exceptions to the bounds on functions and files, each with its reason.

/// `path` or `path::function`, and why it may be long.
pub(super) const LONG: &[(&str, &str)] = &[];

/// Whether `key` is listed; remembers that the exception was needed.
pub(super) fn allows(key: &str, used: &mut Vec<&'static str>) -> bool {
    let listed = LONG.iter().find(|(name, _)| *name == key);
    used.extend(listed.map(|(name, _)| *name));
    listed.is_some()
}

/// A circle of files that use one another: the first of them, how many there are, and why it stays.
/// One that grows or shrinks is looked at again.
pub(super) const CIRCLES: &[(&str, usize, &str)] = &[];
