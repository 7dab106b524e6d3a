//! How much a request may be, and how long it may take: what its route or service says, and the
//! settings where these say nothing. And whether its response may be compressed.

use ambit_model::http::limits::RequestLimits;

use super::watch::Ended;
use super::{Exchange, malformed};
use crate::engine::answer::Answer;
use crate::engine::compression::Wanted;
use crate::engine::piece::{BodyBounds, Source};
use crate::engine::position::{Position, Rules as _};
use crate::engine::record::Flags;
use crate::engine::respond::Respond;
use crate::h1::framing::RequestBody;
use crate::refused::Refused;

impl<P: Position, B: Source, R: Respond> Exchange<'_, P, B, R> {
    /// Holds the request to its limits. A body that says that it is larger is refused before
    /// anybody is asked to read it.
    pub(super) fn bound(&mut self) -> Result<(), Ended> {
        let settings = &self.engine.settings;
        let origin = self.rule.as_ref().map(|(rule, _)| &rule.origin);
        let service = self.rules.rate_limits().0;
        let compression = self.rules.compression().of(origin, service);
        self.compression = compression.map(|it| Wanted::of(it, &self.head));
        let limits = self.rules.limits().of(origin, service);
        if let Some(limits) = limits {
            self.bound_head(limits)?;
        }
        let bytes = limits.and_then(|it| it.body_bytes).or(settings.max_body_bytes);
        let by = limits.and_then(|it| it.body_timeout).or(settings.body_timeout);
        let by = by.map(|limit| self.record.started + limit);
        if let (RequestBody::Sized(size), Some(most)) = (self.framing.body, bytes)
            && size > most
        {
            return Err(malformed(Refused::BodyTooLarge));
        }
        self.body.bound(BodyBounds { bytes, by });
        if let Some(idle) = limits.and_then(|it| it.idle_timeout) {
            self.idle = idle;
        }
        Ok(())
    }

    /// The proxy's own limits held while the head was read; these are known only now.
    fn bound_head(&self, limits: &RequestLimits) -> Result<(), Ended> {
        if let Some(problem) = &limits.problem {
            let details = format!("the limits of this request: {problem}");
            return Err(Answer::new(500, Flags::NoRoute, "limits", details).into());
        }
        let (mut number, mut head_bytes) = (0_u64, 0_u64);
        for field in self.head.fields.iter() {
            number += 1;
            head_bytes += (field.name.len() + field.value.len()) as u64;
        }
        if limits.fields.is_some_and(|most| number > most.into()) {
            return Err(malformed(Refused::TooManyFields));
        }
        if limits.head_bytes.is_some_and(|most| head_bytes > most.into()) {
            return Err(malformed(Refused::HeadTooLarge));
        }
        Ok(())
    }
}
