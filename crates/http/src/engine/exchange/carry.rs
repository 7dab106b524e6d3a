//! An exchange with one endpoint: the request's body goes up while the response comes down.
//!
//! Nothing is sent to the client before the response's head is known not to be tried again. A
//! server may answer before it has read the whole request, or answer and not read it at all.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::engine::piece::{Broken, Sink, Source, Stopped, pump};
use crate::engine::replay::Replay;
use crate::engine::respond::Respond;
use crate::engine::upstream::heard::Heard;
use crate::engine::upstream::{Reading, Sending};
use crate::head::ResponseHead;

/// How an exchange with an endpoint ended.
#[derive(Debug)]
pub(super) enum Carried {
    /// The response was sent to its end. `is_uploaded`: so was the request.
    Done { is_uploaded: bool },
    /// The response's head is such that another attempt is made.
    Again(u16, Option<u32>),
    /// The client is gone.
    ClientGone(Broken),
    /// The endpoint's side broke.
    Broken(Broken),
    /// The time is up.
    Late,
    /// The time is up, and the client has not sent its whole request.
    SlowClient,
    /// A filter made a response that is none.
    Unsendable(Broken),
}

/// What is counted on the way.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) received: Cell<u64>,
    pub(super) sent: Cell<u64>,
    /// From the request's head to the response's.
    pub(super) upstream_time: Cell<Option<Duration>>,
}

/// What holds for one exchange.
#[derive(Debug, Default)]
pub(super) struct Terms {
    /// By when it must have ended.
    pub(super) until: Option<Instant>,
    /// Whether the client wants to switch to another protocol.
    pub(super) is_upgrade: bool,
    pub(super) counts: Counts,
}

/// Carries one exchange. `decide` looks at the response's head, changes it, and says whether it is
/// sent; if not, another attempt follows.
pub(super) async fn carry<B: Source, R: Respond>(
    body: &mut Replay<B>,
    respond: &mut R,
    sending: &mut Sending<'_>,
    reading: &mut Reading<'_>,
    terms: &Terms,
    decide: impl FnOnce(&mut ResponseHead) -> Result<bool, Broken>,
) -> Carried {
    let Terms { until, is_upgrade, counts } = terms;
    let started = Instant::now();
    let is_uploaded = Cell::new(false);
    {
        let mut upload = pin!(upload(body, sending, *is_upgrade, &counts.received));
        let (mut head, framing) = loop {
            tokio::select! {
                biased;
                heard = reading.head() => match heard {
                    Ok(Heard::Informational(head)) => {
                        respond.inform(&head);
                        if let Err(broken) = respond.flush().await {
                            return Carried::ClientGone(broken);
                        }
                    }
                    Ok(Heard::Final(head, framing)) => break (head, framing),
                    Err(broken) => return Carried::Broken(broken),
                },
                uploaded = &mut upload, if !is_uploaded.get() => match uploaded {
                    // An endpoint that reads no more may still say why.
                    Ok(()) | Err(Stopped::Sink(_)) => is_uploaded.set(true),
                    Err(Stopped::Source(broken)) => return Carried::ClientGone(broken),
                },
                () = wait_until(*until) => return late(is_uploaded.get()),
                () = respond.gone() => return Carried::ClientGone(Broken::Closed),
            }
        };
        counts.upstream_time.set(Some(started.elapsed()));
        match decide(&mut head) {
            Ok(true) => {}
            Ok(false) => return Carried::Again(head.status.code(), grpc_status(&head)),
            Err(broken) => return Carried::Unsendable(broken),
        }
        if let Err(broken) = respond.begin(&head, framing.body, framing.upgrade) {
            return Carried::ClientGone(broken);
        }
        if framing.upgrade.is_none() {
            let download = pump(reading, respond, &counts.sent);
            return both(upload, &is_uploaded, download, *until).await;
        }
    }
    body.become_tunnel();
    let up = pump(body, sending, &counts.received);
    let down = pump(reading, respond, &counts.sent);
    match tokio::try_join!(up, down) {
        Ok(_) => Carried::Done { is_uploaded: false },
        Err(Stopped::Source(broken) | Stopped::Sink(broken)) => Carried::ClientGone(broken),
    }
}

/// Moves the response's body to its end, and what is left of the request's meanwhile.
async fn both(
    mut upload: Pin<&mut impl Future<Output = Result<(), Stopped>>>,
    is_uploaded: &Cell<bool>,
    download: impl Future<Output = Result<(), Stopped>>,
    until: Option<Instant>,
) -> Carried {
    let mut download = pin!(download);
    loop {
        tokio::select! {
            biased;
            down = &mut download => return match down {
                Ok(()) => Carried::Done { is_uploaded: is_uploaded.get() },
                Err(Stopped::Source(broken)) => Carried::Broken(broken),
                Err(Stopped::Sink(broken)) => Carried::ClientGone(broken),
            },
            uploaded = &mut upload, if !is_uploaded.get() => match uploaded {
                Ok(()) | Err(Stopped::Sink(_)) => is_uploaded.set(true),
                Err(Stopped::Source(broken)) => return Carried::ClientGone(broken),
            },
            () = wait_until(until) => return late(is_uploaded.get()),
        }
    }
}

/// The status of gRPC that a head has, where it is also the end.
pub(super) fn grpc_status(head: &ResponseHead) -> Option<u32> {
    let status = head.fields.first("grpc-status")?;
    std::str::from_utf8(status).ok()?.parse().ok()
}

/// Sends the request's body. Before an upgrade there is none, and the direction stays open.
async fn upload<B: Source>(
    body: &mut Replay<B>,
    sending: &mut Sending<'_>,
    is_upgrade: bool,
    received: &Cell<u64>,
) -> Result<(), Stopped> {
    if is_upgrade {
        return sending.flush().await.map_err(Stopped::Sink);
    }
    pump(body, sending, received).await
}

fn late(is_uploaded: bool) -> Carried {
    if is_uploaded { Carried::Late } else { Carried::SlowClient }
}

async fn wait_until(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}
