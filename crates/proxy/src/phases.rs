//! The two phases of a connection: it is set up, then carried.
//!
//! What the set-up needs is several times what carrying needs, and a connection is carried for as
//! long as it lives. So each phase has its memory to itself.

use std::future::Future;
use std::pin::Pin;

use ambit_dataplane::connections::Entered;
use ambit_dataplane::record::{Record, Tally};
use ambit_net::copy::End;
use futures::FutureExt;
use futures::future::OptionFuture;

/// What is left of a connection once it is set up: moving its bytes, and the end of its records.
pub(crate) type Carrying = Pin<Box<dyn Future<Output = ()>>>;

/// Sets a connection up, lets go of what that needed, and carries it; `None`: it came to nothing.
pub(crate) fn in_phases(
    set_up: impl Future<Output = Option<Carrying>>,
) -> impl Future<Output = ()> {
    Box::pin(set_up).then(OptionFuture::from).map(drop)
}

/// Carries a connection, and holds what it has to hold meanwhile.
pub(crate) fn carry<C: End, S: End, H>(
    entered: Entered,
    (client, server): (C, S),
    records: Vec<Record>,
    tally: &Tally,
    held: H,
) -> impl Future<Output = ()> + use<C, S, H> {
    entered.carry(client, server, records, tally).map(move |()| drop(held))
}
