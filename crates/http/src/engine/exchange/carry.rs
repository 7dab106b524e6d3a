//! An exchange with one endpoint: the request's body goes up while the response comes down.
//!
//! Nothing is sent to the client before the response's head is known not to be tried again. A
//! server may answer before it has read the whole request, or answer and not read it at all.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::time::Duration;

use ambit_model::http::rule::Timeouts;
use tokio::time::{Instant, sleep_until};

use crate::engine::compression::{Coded, Encoder};
use crate::engine::piece::{Broken, Sink, Source, Stopped, Tally, grpc_status, pump, settle};
use crate::engine::quiet::quiet;
use crate::engine::record::Record;
use crate::engine::replay::Replay;
use crate::engine::respond::Respond;
use crate::engine::upstream::heard::Heard;
use crate::engine::upstream::{Reading, Sending};
use crate::fields::Field;
use crate::h1::framing::ResponseBody;
use crate::head::ResponseHead;
use crate::refused::Refused;

/// Answers 1xx before a response. A server may send one every few seconds while it works.
const MAX_INFORMATIONAL: usize = 1_000;
/// The fields of all of them.
const MAX_INFORMATIONAL_BYTES: usize = 256 * 1024;

/// How an exchange with an endpoint ended.
#[derive(Debug)]
pub(super) enum Carried {
    /// The response was sent to its end. `is_uploaded`: so was the request.
    Done { is_uploaded: bool },
    /// The response's head is such that another attempt is made.
    Again(u16, Option<u32>),
    /// The client is gone.
    ClientGone(Broken),
    /// The client's body is no HTTP.
    Malformed(Refused),
    /// The endpoint's side broke.
    Broken(Broken),
    /// The time is up.
    Late,
    /// The time is up, and the client has not sent its whole request.
    SlowClient,
    /// Nothing has moved for too long. `is_uploaded`: the endpoint was to move.
    Silent { broken: Broken, is_uploaded: bool },
    /// What the connection was upgraded for is not allowed any more.
    Denied(String),
    /// A filter made a response that is none.
    Unsendable(Broken),
}

/// What becomes of a response whose head has come.
pub(super) enum Decided {
    /// Another attempt is made.
    Again,
    /// It is sent to the client, through an encoder if there is one.
    Sent(Option<Box<Encoder>>),
}

/// What is counted on the way.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) received: Tally,
    pub(super) sent: Tally,
    /// Bytes of a response that was compressed, as they are sent.
    coded: Cell<Option<u64>>,
    /// From the request's head to the response's.
    pub(super) upstream_time: Cell<Option<Duration>>,
}

impl Counts {
    pub(super) fn new(is_grpc: bool) -> Self {
        let (received, sent) = (Tally::new(is_grpc), Tally::new(is_grpc));
        Self { received, sent, coded: Cell::default(), upstream_time: Cell::default() }
    }

    /// Notes them in the record.
    pub(super) fn note(&self, record: &mut Record) {
        record.received_bytes = self.received.bytes.get();
        record.sent_bytes = self.coded.get().unwrap_or(self.sent.bytes.get());
        record.messages = (self.received.messages(), self.sent.messages());
        record.upstream_time = self.upstream_time.get();
    }

    fn bytes(&self) -> u64 {
        self.received.bytes.get() + self.sent.bytes.get()
    }
}

/// By when an attempt must have come how far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until {
    /// The head of its response.
    pub(super) head: Option<Instant>,
    /// Its end.
    pub(super) end: Option<Instant>,
}

impl Until {
    /// What a route allows an attempt that begins now, of a request with this deadline.
    pub(super) fn from_now(deadline: Option<Instant>, timeouts: Timeouts) -> Self {
        let now = Instant::now();
        let of_attempt = timeouts.backend.map(|limit| now + limit);
        let of_head = timeouts.response_head.map(|limit| now + limit);
        let end = [deadline, of_attempt].into_iter().flatten().min();
        Self { head: [end, of_head].into_iter().flatten().min(), end }
    }
}

/// What holds for one exchange.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) until: Until,
    /// How long nothing may move.
    pub(super) idle: Duration,
    /// Whether the client wants to switch to another protocol.
    pub(super) is_upgrade: bool,
    pub(super) counts: Counts,
}

/// Carries one exchange. `decide` looks at the response's head, changes it, and says what becomes
/// of the response. `denied` waits until the policies do not allow the request any more, which
/// concerns what is behind an upgrade.
pub(super) async fn carry<B: Source, R: Respond>(
    body: &mut Replay<B>,
    respond: &mut R,
    sending: &mut Sending<'_>,
    reading: &mut Reading<'_>,
    terms: &Terms,
    decide: impl FnOnce(&mut ResponseHead, ResponseBody) -> Result<Decided, Broken>,
    denied: impl Future<Output = String>,
) -> Carried {
    let counts = &terms.counts;
    let started = Instant::now();
    let is_uploaded = Cell::new(false);
    let mut silent = pin!(quiet(terms.idle, || counts.bytes()));
    {
        let mut upload = pin!(upload(body, sending, terms.is_upgrade, counts, &is_uploaded));
        let mut informed = Informed::default();
        let (mut head, framing) = loop {
            tokio::select! {
                biased;
                heard = reading.head() => match heard {
                    Ok(Heard::Informational(head)) => {
                        if let Err(refused) = informed.count(&head) {
                            return Carried::Broken(refused.into());
                        }
                        respond.inform(&head);
                    }
                    Ok(Heard::Final(head, framing)) => break (head, framing),
                    Err(broken) => return Carried::Broken(broken),
                },
                broken = &mut upload => return client_broke(broken),
                () = wait_until(terms.until.head) => return late(is_uploaded.get()),
                broken = &mut silent => {
                    return Carried::Silent { broken, is_uploaded: is_uploaded.get() };
                }
                // A client that does not read them does not keep the response from being read.
                settled = settle(respond) => if let Err(broken) = settled {
                    return Carried::ClientGone(broken);
                },
            }
        };
        counts.upstream_time.set(Some(started.elapsed()));
        let encoder = match decide(&mut head, framing.body) {
            Ok(Decided::Sent(encoder)) => encoder,
            Ok(Decided::Again) => {
                return Carried::Again(head.status.code(), grpc_status(&head.fields));
            }
            Err(broken) => return Carried::Unsendable(broken),
        };
        // Nobody knows how long it is when it is compressed.
        let body = encoder.as_ref().map_or(framing.body, |_| ResponseBody::Chunked);
        if let Err(broken) = respond.begin(&head, body, framing.upgrade) {
            return Carried::ClientGone(broken);
        }
        if framing.upgrade.is_none() {
            let mut coded = Coded::new(respond, encoder, &counts.coded);
            let download = pump(reading, &mut coded, &counts.sent);
            return both(upload, &is_uploaded, download, terms, silent).await;
        }
    }
    body.become_tunnel();
    tunnel(body, respond, sending, reading, counts, denied, silent).await
}

/// What came before a response's head, which a client may not read for now.
#[derive(Default)]
struct Informed {
    number: usize,
    bytes: usize,
}

impl Informed {
    fn count(&mut self, head: &ResponseHead) -> Result<(), Refused> {
        let of_field = |field: Field<'_>| field.name.len() + field.value.len();
        self.number += 1;
        self.bytes += head.fields.iter().map(of_field).sum::<usize>();
        if self.number > MAX_INFORMATIONAL || self.bytes > MAX_INFORMATIONAL_BYTES {
            return Err(Refused::TooManyInformational);
        }
        Ok(())
    }
}

/// Moves the bytes behind an upgrade.
async fn tunnel<B: Source, R: Respond>(
    body: &mut Replay<B>,
    respond: &mut R,
    sending: &mut Sending<'_>,
    reading: &mut Reading<'_>,
    counts: &Counts,
    denied: impl Future<Output = String>,
    silent: Pin<&mut impl Future<Output = Broken>>,
) -> Carried {
    let up = pump(body, sending, &counts.received);
    let down = pump(reading, respond, &counts.sent);
    let moving = async {
        let up = async { up.await.map_err(|stopped| (true, stopped)) };
        let down = async { down.await.map_err(|stopped| (false, stopped)) };
        tokio::try_join!(up, down)
    };
    tokio::select! {
        biased;
        moved = moving => match moved {
            Ok(_) => Carried::Done { is_uploaded: false },
            Err((true, Stopped::Source(broken)) | (false, Stopped::Sink(broken))) => {
                Carried::ClientGone(broken)
            }
            Err((_, Stopped::Source(broken) | Stopped::Sink(broken))) => Carried::Broken(broken),
        },
        denial = denied => Carried::Denied(denial),
        broken = silent => Carried::Silent { broken, is_uploaded: true },
    }
}

/// Moves the response's body to its end, and what is left of the request's meanwhile.
async fn both(
    mut upload: Pin<&mut impl Future<Output = Broken>>,
    is_uploaded: &Cell<bool>,
    download: impl Future<Output = Result<(), Stopped>>,
    terms: &Terms,
    mut silent: Pin<&mut impl Future<Output = Broken>>,
) -> Carried {
    let mut download = pin!(download);
    let mut is_there = true;
    loop {
        tokio::select! {
            biased;
            down = &mut download => return match down {
                Ok(()) => Carried::Done { is_uploaded: is_uploaded.get() },
                Err(Stopped::Source(broken)) => Carried::Broken(broken),
                Err(Stopped::Sink(broken)) => Carried::ClientGone(broken),
            },
            broken = &mut upload, if is_there => match broken {
                // A client that has said all may close its direction and read on.
                Broken::Closed if is_uploaded.get() => is_there = false,
                broken => return client_broke(broken),
            },
            () = wait_until(terms.until.end) => return late(is_uploaded.get()),
            broken = &mut silent => {
                return Carried::Silent { broken, is_uploaded: is_uploaded.get() };
            }
        }
    }
}

/// Sends the request's body, and then waits until the client is gone: ends only with the client.
/// Before an upgrade there is no body, and the direction stays open.
async fn upload<B: Source>(
    body: &mut Replay<B>,
    sending: &mut Sending<'_>,
    is_upgrade: bool,
    counts: &Counts,
    is_uploaded: &Cell<bool>,
) -> Broken {
    let uploaded = if is_upgrade {
        sending.flush().await.map_err(Stopped::Sink)
    } else {
        pump(body, sending, &counts.received).await
    };
    match uploaded {
        Err(Stopped::Source(broken)) => return broken,
        // An endpoint that reads no more may still say why.
        Ok(()) | Err(Stopped::Sink(_)) => is_uploaded.set(true),
    }
    body.gone().await
}

fn client_broke(broken: Broken) -> Carried {
    match broken {
        Broken::Refused(refused) => Carried::Malformed(refused),
        broken => Carried::ClientGone(broken),
    }
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
