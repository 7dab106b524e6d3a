//! One exchange on an HTTP/1.1 connection of control's own, with a server that it asks.

use std::future::Future;
use std::pin::pin;

/// The answer to a request; its connection is driven until the answer is there.
pub(crate) async fn driven<T, E>(
    answer: impl Future<Output = Result<T, E>>,
    connection: impl Future<Output = hyper::Result<()>>,
    broken: impl FnOnce(hyper::Error) -> E,
) -> Result<T, E> {
    let mut answer = pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        closed = connection => match closed {
            Ok(()) => answer.await,
            Err(error) => Err(broken(error)),
        },
    }
}
