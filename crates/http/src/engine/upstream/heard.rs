//! What comes before a response's body, whatever the version.

use crate::h1::framing::ResponseFraming;
use crate::head::ResponseHead;

/// What a server sends before a response's body.
#[derive(Debug)]
pub(crate) enum Heard {
    /// 1xx but 101; the response is still to come.
    Informational(ResponseHead),
    /// The response.
    Final(ResponseHead, ResponseFraming),
}
