//! What a request is answered on, whatever version its client speaks.

use crate::engine::piece::{Broken, Sink};
use crate::h1::framing::ResponseBody;
use crate::h1::options::Protocol;
use crate::head::ResponseHead;

/// The client's side of an exchange.
pub(crate) trait Respond: Sink {
    /// Sends a 1xx answer; the response follows.
    fn inform(&mut self, head: &ResponseHead);

    /// Sends the response's head; its body follows.
    fn begin(
        &mut self,
        head: &ResponseHead,
        body: ResponseBody,
        upgrade: Option<Protocol>,
    ) -> Result<(), Broken>;

    /// Whether the response's head was sent, so that nothing else can be answered.
    fn has_begun(&self) -> bool;

    /// Ends what cannot be finished so that the client sees that it is not whole.
    fn abort(&mut self);
}
