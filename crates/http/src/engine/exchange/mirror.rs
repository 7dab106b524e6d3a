//! Copies of a request, for destinations whose answers nobody waits for.

use std::rc::Rc;
use std::time::Duration;

use ambit_model::http::rule::{Destination, Rule};
use bytes::Bytes;
use tokio::time::timeout;

use super::Exchange;
use super::watch::{Sent, denied_there};
use crate::engine::Engine;
use crate::engine::halves::BoxStream;
use crate::engine::piece::{Broken, Source, Stopped, Tally, pump};
use crate::engine::position::{Arrival, EndpointAsk, Goal, Position, Version};
use crate::engine::replay::Copy;
use crate::engine::respond::Respond;
use crate::engine::upstream::h1::Connection;
use crate::engine::upstream::heard::Heard;
use crate::engine::upstream::pool::builder;
use crate::engine::upstream::{Reading, Sending, h2};
use crate::h1::framing::{RequestBody, RequestFraming};
use crate::head::RequestHead;

/// Copies at once on one thread; more are left out.
const MAX_MIRRORED: usize = 256;
/// How long a copy may take.
const LONGEST: Duration = Duration::from_secs(60);

impl<P: Position, B: Source, R: Respond> Exchange<'_, P, B, R> {
    /// Sends the copies that the route asks for.
    ///
    /// `head` is the request's without the changes that the route makes for one backend alone.
    pub(super) fn mirror(&mut self, rule: &Rule, head: &RequestHead) {
        for mirror in &rule.mirrors {
            let engine = self.engine;
            let is_drawn = mirror.fraction.draw(|bound| engine.position.random_below(bound));
            let goal = Goal::Backend(&mirror.destination);
            // A copy of an upgrade would be half of a conversation.
            if !is_drawn || self.framing.upgrade.is_some() {
                continue;
            }
            let token = self.token.as_ref();
            let sent = Sent { head, to: &goal, by: Some(rule) };
            let denial = denied_there(&self.rules, self.arrival, sent, token, |_| false);
            if let Some(reason) = denial {
                tracing::debug!(reason, "a copy of a request is left out");
                continue;
            }
            if Rc::strong_count(&engine.mirroring) > MAX_MIRRORED {
                tracing::debug!("a copy of a request is left out: too many are under way");
                continue;
            }
            let copy = One {
                engine: engine.clone(),
                arrival: self.arrival.clone(),
                destination: mirror.destination.clone(),
                version: self.version(&goal),
                head: head.clone(),
                framing: self.framing.clone(),
                body: Copy(self.body.copy()),
            };
            let held = engine.mirroring.clone();
            engine.guard.spawn_local(async move {
                let _held_to_the_end = held;
                match timeout(LONGEST, copy.send()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(reason)) => tracing::debug!(reason, "a copy of a request failed"),
                    Err(_) => tracing::debug!("a copy of a request took too long"),
                }
            });
        }
    }
}

/// One copy.
struct One<P: Position> {
    engine: Rc<Engine<P>>,
    arrival: Rc<Arrival>,
    destination: Destination,
    version: Version,
    head: RequestHead,
    framing: RequestFraming,
    body: Copy,
}

impl<P: Position> One<P> {
    async fn send(self) -> Result<(), String> {
        let ask = EndpointAsk {
            arrival: &self.arrival,
            goal: Goal::Backend(&self.destination),
            hash: None,
            pinned: None,
            tried: &[],
            is_ejected: &|_| false,
        };
        let position = &self.engine.position;
        let endpoint = position.choose(&ask).map_err(|none| none.text)?;
        let stream = position.connect(&self.arrival, &endpoint).await.map_err(|none| none.text)?;
        let sent = match self.version {
            Version::Http1 => self.over_http1(stream).await,
            Version::Http2 => self.over_http2(stream).await,
        };
        sent.map_err(|broken| ambit_words::error_chain(&broken))
    }

    async fn over_http1(mut self, stream: BoxStream) -> Result<(), Broken> {
        let mut connection = Connection::new(stream, self.engine.settings.limits, None);
        connection.send(&self.head, &self.framing);
        let (outbox, reading) = connection.sides();
        exchange(&mut self.body, Sending::Http1(outbox), Reading::Http1(reading)).await
    }

    async fn over_http2(mut self, stream: BoxStream) -> Result<(), Broken> {
        let limits = self.engine.settings.limits.fields;
        let opening = builder(limits.bytes).handshake::<_, Bytes>(stream);
        let (sender, connection) = opening.await?;
        let exchanging = async {
            let mut sender = sender.ready().await?;
            let scheme = self.arrival.scheme.as_str();
            let has_body = self.framing.body != RequestBody::Absent;
            let (mut up, mut down) = h2::open(&mut sender, &self.head, scheme, has_body, limits)?;
            exchange(&mut self.body, Sending::Http2(&mut up), Reading::Http2(&mut down)).await
        };
        tokio::select! {
            biased;
            exchanged = exchanging => exchanged,
            ended = connection => Err(ended.err().map_or(Broken::Closed, Broken::from)),
        }
    }
}

/// Sends a copy's body, and reads the answer to its end.
async fn exchange(
    body: &mut Copy,
    mut sending: Sending<'_>,
    mut reading: Reading<'_>,
) -> Result<(), Broken> {
    let moved = Tally::default();
    let up = pump(body, &mut sending, &moved);
    let down = async {
        while let Heard::Informational(_) = reading.head().await.map_err(Stopped::Source)? {}
        while reading.piece().await.map_err(Stopped::Source)?.is_some() {}
        Ok(())
    };
    match tokio::try_join!(up, down) {
        Ok(_) => Ok(()),
        Err(Stopped::Source(broken) | Stopped::Sink(broken)) => Err(broken),
    }
}
