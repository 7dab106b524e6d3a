//! The request's place in a trace: read from what came, written into what is sent on.
//!
//! A trace that has begun is recorded if whoever began it records it. What a client says in W3C's
//! form counts before B3. What it said in B3 is answered in B3 as well, so that applications of
//! either kind see one trace. A context that cannot be read is replaced.

use std::sync::Arc;

use ambit_model::http::telemetry::Spans;
use ambit_model::trace::{B3, TraceParent};

use super::{Ended, Exchange, malformed};
use crate::engine::piece::Source;
use crate::engine::position::{Position, Rules as _};
use crate::engine::record::Traced;
use crate::engine::respond::Respond;
use crate::fields::Fields;
use crate::refused::Refused;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
const B3_SINGLE: &str = "b3";
const B3_TRACE: &str = "x-b3-traceid";
const B3_SPAN: &str = "x-b3-spanid";
const B3_PARENT: &str = "x-b3-parentspanid";
const B3_SAMPLED: &str = "x-b3-sampled";
const B3_FLAGS: &str = "x-b3-flags";

impl<P: Position, B: Source, R: Respond> Exchange<'_, P, B, R> {
    /// Makes this request a span, where that is asked for.
    pub(super) fn trace(&mut self) -> Result<(), Ended> {
        let Some(spans) = self.rules.spans() else { return Ok(()) };
        let random = |bound| self.engine.position.random_below(bound);
        let traced = traced(&self.head.fields, spans, random);
        if spans.is_passed_on {
            pass_on(&mut self.head.fields, &traced).map_err(malformed)?;
        }
        self.record.traced = Some(traced);
        Ok(())
    }
}

/// The span of a request.
fn traced(fields: &Fields, spans: &Arc<Spans>, random_below: impl Fn(u64) -> u64) -> Traced {
    let text = |name| fields.first(name).and_then(|value| std::str::from_utf8(value).ok());
    // Two contexts contradict each other: the trace begins anew.
    let only = |name| text(name).filter(|_| fields.all(name).nth(1).is_none());
    let w3c = only(TRACEPARENT).and_then(|it| it.parse::<TraceParent>().ok());
    let b3 = only(B3_SINGLE)
        .and_then(B3::single)
        .or_else(|| B3::several(text(B3_TRACE), text(B3_SPAN), text(B3_SAMPLED), text(B3_FLAGS)));
    let random = || random_below(u64::MAX) + 1;
    let (parent, decision) = match (w3c, b3) {
        (Some(parent), _) => (Some(parent), Some(parent.is_sampled())),
        (None, Some(b3)) => (b3.parent, b3.decision),
        (None, None) => (None, None),
    };
    let is_sampled = decision.unwrap_or_else(|| spans.sampling.draw(&random_below));
    let within = parent.unwrap_or_else(|| {
        let mut bytes = [0; 24];
        for part in bytes.chunks_exact_mut(8) {
            part.copy_from_slice(&random().to_be_bytes());
        }
        TraceParent::from_random(bytes)
    });
    let own = within.child(random()).sampled(is_sampled);
    Traced { own, parent: parent.map(TraceParent::span_id), spans: spans.clone() }
}

/// Writes the context of the span in W3C's form, and in B3's where it came so.
fn pass_on(fields: &mut Fields, traced: &Traced) -> Result<(), Refused> {
    let own = traced.own;
    // What belongs to a context that nobody can read belongs to nobody.
    let is_continued = fields.first(TRACEPARENT).is_some_and(|value| {
        let read = std::str::from_utf8(value).ok().and_then(|it| it.parse::<TraceParent>().ok());
        read.is_some_and(|it| it.trace_id() == own.trace_id())
    });
    if !is_continued {
        fields.remove(TRACESTATE);
    }
    let (trace, span) = (format!("{:032x}", own.trace_id()), format!("{:016x}", own.span_id()));
    let parent = traced.parent.map(|it| format!("{it:016x}"));
    let sampled = if own.is_sampled() { "1" } else { "0" };
    let is_single = fields.first(B3_SINGLE).is_some();
    let are_several = [B3_TRACE, B3_SAMPLED].iter().any(|name| fields.first(*name).is_some());
    let mut set = |name: &str, value: &str| {
        fields.set(name, value.as_bytes()).map_err(|_| Refused::HeadTooLarge)
    };
    set(TRACEPARENT, &own.to_string())?;
    if is_single {
        let parent = parent.as_ref().map_or_else(String::new, |parent| format!("-{parent}"));
        set(B3_SINGLE, &format!("{trace}-{span}-{sampled}{parent}"))?;
    }
    if are_several {
        set(B3_TRACE, &trace)?;
        set(B3_SPAN, &span)?;
        set(B3_SAMPLED, sampled)?;
        if let Some(parent) = &parent {
            set(B3_PARENT, parent)?;
        }
    }
    Ok(())
}
