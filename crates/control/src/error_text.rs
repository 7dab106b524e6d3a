//! An error and its causes in one line.
//!
//! Errors here never repeat their source, so code that shows one must show the chain.

use std::error::Error;
use std::fmt::Write as _;

/// Writes `error: cause: cause`.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        write!(text, ": {cause}").expect("writing to a String does not fail");
        source = cause.source();
    }
    text
}
