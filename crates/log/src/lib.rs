//! How every role logs.
//!
//! [`LineFormat`] is the one form of a line, which is that of Istio's components. [`Throttle`]
//! bounds the lines that others can cause. Nothing here decides where lines go, or which levels are
//! logged: a role does.

mod line;
mod throttle;

pub use line::{LineFormat, LogFormat};
pub use throttle::{KNOWN, PODS, STRANGERS, Throttle};
