//! Copies of a request, for destinations whose answers nobody waits for.
//!
//! They have connections of their own, which are kept as those of requests are.

use std::rc::Rc;
use std::time::Duration;

use ambit_model::Text;
use ambit_model::http::rule::{Destination, Rule};
use ambit_model::http::traffic::TrafficPolicy;
use tokio::time::timeout;

use super::Exchange;
use super::attempt::{self, key, opened, shared};
use super::room::{self, Bounded, bounded_by};
use super::watch::{Sent, denied_there};
use crate::engine::Engine;
use crate::engine::copies::{Copy, Cut};
use crate::engine::piece::{Broken, Piece, Source, Stopped, Tally, pump};
use crate::engine::position::{
    Arrival, Endpoint, EndpointAsk, Goal, Position, Rules as _, Version,
};
use crate::engine::respond::Respond;
use crate::engine::upstream::heard::Heard;
use crate::engine::upstream::pool::Key;
use crate::engine::upstream::{Reading, Sending, h2};
use crate::h1::framing::{RequestBody, RequestFraming};
use crate::head::RequestHead;

/// Copies at once on one thread; more are left out.
const MAX_MIRRORED: usize = 256;
/// How long a copy may take.
const LONGEST: Duration = Duration::from_secs(60);
/// How much of an answer is read; the connection of a longer one is closed.
const MAX_ANSWER_BYTES: usize = 16 << 20;

impl<P: Position, B: Source, R: Respond> Exchange<'_, P, B, R> {
    /// Sends the copies that the route asks for.
    ///
    /// `head` is the request's without the changes that the route makes for one backend alone.
    pub(super) fn mirror(&mut self, rule: &Rule, head: &RequestHead) {
        for mirror in &rule.mirrors {
            let engine = self.engine;
            let is_drawn = mirror.fraction.draw(|bound| engine.position.random_below(bound));
            // A copy of an upgrade would be half of a conversation.
            if !is_drawn || self.framing.upgrade.is_some() {
                continue;
            }
            let copy = match self.copied(&mirror.destination, rule, head) {
                Ok(copy) => copy,
                Err(failed) => {
                    failed.note(engine);
                    continue;
                }
            };
            let held = engine.mirroring.clone();
            engine.guard.spawn_local(async move {
                let _held_to_the_end = held;
                let engine = copy.engine.clone();
                let late = Failed { why: Cut::Timeout, text: "it took too long".to_owned() };
                let sent = timeout(LONGEST, copy.send()).await.unwrap_or(Err(late));
                if let Err(failed) = sent {
                    failed.note(&engine);
                }
            });
        }
    }

    /// One copy, which takes the body from here on.
    fn copied(
        &mut self,
        destination: &Destination,
        rule: &Rule,
        head: &RequestHead,
    ) -> Result<One<P>, Failed> {
        let engine = self.engine;
        let (goal, token) = (Goal::Backend(destination), self.token.as_ref());
        let sent = Sent { head, to: &goal, by: Some(rule) };
        if let Some(text) = denied_there(&self.rules, self.arrival, sent, token, |_| false) {
            return Err(Failed { why: Cut::Denied, text });
        }
        if Rc::strong_count(&engine.mirroring) > MAX_MIRRORED {
            let text = "too many are under way".to_owned();
            return Err(Failed { why: Cut::Crowded, text });
        }
        Ok(One {
            engine: engine.clone(),
            arrival: self.arrival.clone(),
            destination: destination.clone(),
            // Limits hold for them too, and are counted apart.
            service: format!("copies for {}", bounded_by(&goal, self.arrival)).into(),
            traffic: self.rules.traffic(&goal).clone(),
            version: self.version(&goal),
            head: head.clone(),
            framing: self.framing.clone(),
            body: self.body.copy(engine.settings.pressure.copies()),
        })
    }
}

/// Why a copy was not sent, or not as a whole.
struct Failed {
    why: Cut,
    text: String,
}

impl Failed {
    fn note<P: Position>(&self, engine: &Engine<P>) {
        engine.settings.pressure.copies().count(self.why);
        let (why, reason) = (self.why.as_str(), &self.text);
        tracing::debug!(why, reason, "a copy of a request is cut");
    }
}

impl From<Broken> for Failed {
    fn from(broken: Broken) -> Self {
        Self { why: Cut::Broken, text: ambit_words::error_chain(&broken) }
    }
}

/// One copy.
struct One<P: Position> {
    engine: Rc<Engine<P>>,
    arrival: Rc<Arrival>,
    destination: Destination,
    service: Text,
    traffic: TrafficPolicy,
    version: Version,
    head: RequestHead,
    framing: RequestFraming,
    body: Copy,
}

impl<P: Position> One<P> {
    /// Sends it. What is under way when the body is cut is dropped, so that its server sees a
    /// message that breaks off.
    async fn send(mut self) -> Result<(), Failed> {
        let cut = self.body.cut();
        tokio::select! {
            biased;
            why = cut => Err(Failed { why, text: "its body was cut".to_owned() }),
            sent = self.carry() => sent,
        }
    }

    async fn carry(&mut self) -> Result<(), Failed> {
        let engine = self.engine.clone();
        let Some(_under_way) = engine.loads.begin(&self.service, &self.traffic) else {
            let text = format!("{} are as many as there may be", self.service);
            return Err(Failed { why: Cut::Limits, text });
        };
        let unreachable = |text| Failed { why: Cut::Unreachable, text };
        let endpoint = {
            let ask = EndpointAsk {
                arrival: &self.arrival,
                goal: Goal::Backend(&self.destination),
                host: None,
                hash: None,
                pinned: None,
                tried: &[],
                is_ejected: &|_| false,
            };
            engine.position.choose(&ask).map_err(|none| unreachable(none.text))?
        };
        let key = Key { is_for_copies: true, ..key(&endpoint) };
        match self.version {
            Version::Http1 => self.over_http1(&endpoint, &key).await,
            Version::Http2 => self.over_http2(&endpoint, &key).await,
        }
    }

    async fn over_http1(&mut self, endpoint: &Endpoint<P::Way>, key: &Key) -> Result<(), Failed> {
        let (engine, limits) = (&self.engine, &self.traffic.limits);
        let bounded = Bounded { service: &self.service, limits };
        let mut connection = match engine.pool.idle(key) {
            Some(connection) => connection,
            None => opened(engine, &self.arrival, bounded, endpoint, key, None)
                .await
                .map_err(|failed| unopened(*failed))?,
        };
        connection.send(&self.head, &self.framing);
        let (outbox, reading) = connection.sides();
        let (sending, reading) = (Sending::Http1(outbox), Reading::Http1(reading));
        exchange(&mut self.body, sending, reading).await?;
        engine.pool.keep(key, connection, limits);
        room::freed(engine, bounded);
        Ok(())
    }

    async fn over_http2(&mut self, endpoint: &Endpoint<P::Way>, key: &Key) -> Result<(), Failed> {
        let (engine, limits) = (&self.engine, &self.traffic.limits);
        let bounded = Bounded { service: &self.service, limits };
        let shared = shared(engine, &self.arrival, bounded, endpoint, key, None)
            .await
            .map_err(|failed| unopened(*failed))?;
        let exchanged = async {
            let mut sender = shared.sender.clone().ready().await?;
            let (scheme, limits) = (self.arrival.scheme.as_str(), engine.settings.limits.fields);
            let has_body = self.framing.body != RequestBody::Absent;
            let (mut up, mut down) = h2::open(&mut sender, &self.head, scheme, has_body, limits)?;
            exchange(&mut self.body, Sending::Http2(&mut up), Reading::Http2(&mut down)).await
        };
        let exchanged = exchanged.await;
        if exchanged.is_err() {
            engine.pool.retire(key, &shared);
        }
        drop(shared);
        room::freed(engine, bounded);
        Ok(exchanged?)
    }
}

fn unopened(failed: attempt::Failed) -> Failed {
    let why = if failed.is_full() { Cut::Limits } else { Cut::Unreachable };
    Failed { why, text: failed.answer.details }
}

/// Sends a copy's body, and reads the answer to its end, which the server may send before it has
/// read all.
async fn exchange(
    body: &mut Copy,
    mut sending: Sending<'_>,
    mut reading: Reading<'_>,
) -> Result<(), Broken> {
    let moved = Tally::default();
    let up = pump(body, &mut sending, &moved);
    let down = async {
        while let Heard::Informational(_) = reading.head().await.map_err(Stopped::Source)? {}
        let mut bytes = 0;
        while let Some(piece) = reading.piece().await.map_err(Stopped::Source)? {
            if let Piece::Data(data) = piece {
                bytes += data.len();
            }
            if bytes > MAX_ANSWER_BYTES {
                return Ok(());
            }
        }
        Ok(())
    };
    match tokio::try_join!(up, down) {
        Ok(_) => Ok(()),
        Err(Stopped::Source(broken) | Stopped::Sink(broken)) => Err(broken),
    }
}
