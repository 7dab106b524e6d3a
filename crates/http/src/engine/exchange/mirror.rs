//! Copies of a request, for destinations whose answers nobody waits for.

use std::rc::Rc;
use std::time::Duration;

use ambit_model::http::rule::{Destination, Rule};
use tokio::time::timeout;

use super::Exchange;
use super::watch::denied_there;
use crate::engine::Engine;
use crate::engine::piece::{Broken, Sink as _, Source, Stopped, Tally, pump};
use crate::engine::position::{Arrival, EndpointAsk, Goal, Position, Rules as _, Version};
use crate::engine::replay::Copy;
use crate::engine::respond::Respond;
use crate::engine::upstream::h1::Connection;
use crate::engine::upstream::heard::Heard;
use crate::engine::upstream::{Reading, Sending};
use crate::h1::framing::RequestFraming;
use crate::head::RequestHead;

/// Copies at once on one thread; more are left out.
const MAX_MIRRORED: usize = 256;
/// How long a copy may take.
const LONGEST: Duration = Duration::from_secs(60);

impl<P: Position, B: Source, R: Respond> Exchange<'_, P, B, R> {
    /// Sends the copies that the route asks for.
    pub(super) fn mirror(&mut self, rule: &Rule) {
        for mirror in &rule.mirrors {
            let engine = self.engine;
            let is_drawn = mirror.fraction.draw(|bound| engine.position.random_below(bound));
            let goal = Goal::Backend(&mirror.destination);
            // A copy of an upgrade would be half of a conversation.
            if !is_drawn || self.framing.upgrade.is_some() {
                continue;
            }
            let token = self.token.as_ref();
            let denial = denied_there(&self.rules, self.arrival, &self.head, token, &goal);
            if let Some(reason) = denial {
                tracing::debug!(reason, "a copy of a request is left out");
                continue;
            }
            if Rc::strong_count(&engine.mirroring) > MAX_MIRRORED {
                tracing::debug!("a copy of a request is left out: too many are under way");
                continue;
            }
            if self.rules.version(&goal) == Some(Version::Http2) {
                tracing::debug!("a copy of a request is sent over HTTP/1.1 to a port of HTTP/2");
            }
            let copy = One {
                engine: engine.clone(),
                arrival: self.arrival.clone(),
                destination: mirror.destination.clone(),
                head: self.head.clone(),
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
    head: RequestHead,
    framing: RequestFraming,
    body: Copy,
}

impl<P: Position> One<P> {
    async fn send(mut self) -> Result<(), String> {
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
        let mut connection = Connection::new(stream, self.engine.settings.limits, None);
        connection.send(&self.head, &self.framing);
        let (outbox, reading) = connection.sides();
        let (mut sending, mut reading) = (Sending::Http1(outbox), Reading::Http1(reading));
        let moved = Tally::default();
        let up = pump(&mut self.body, &mut sending, &moved);
        let down = async {
            while let Heard::Informational(_) = reading.head().await.map_err(Stopped::Source)? {}
            while reading.piece().await.map_err(Stopped::Source)?.is_some() {}
            Ok(())
        };
        let broken = |stopped| match stopped {
            Stopped::Source(broken) | Stopped::Sink(broken) => describe(&broken),
        };
        tokio::try_join!(up, down).map_err(broken)?;
        debug_assert!(!sending.is_pending());
        Ok(())
    }
}

fn describe(broken: &Broken) -> String {
    ambit_words::error_chain(broken)
}
