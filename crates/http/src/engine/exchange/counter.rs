//! Limits that a service counts for all waypoints: Envoy's rate limit service.
//!
//! It is asked when what the pods count themselves has let the request pass, and its answer is
//! awaited for as long as the policy says. Limits that the same service counts, at the same cost,
//! are asked in one question.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ambit_model::http::authorize::Asked;
use ambit_model::http::rate_limit::{Cost, Counter, GlobalCounter, RateLimit, RateLimitPolicy};
use ambit_model::http::rule::Destination;
use ambit_wire::rate_limit::{self as wire, Answer, AnswerError, Descriptor, Limit};
use ambit_words::error_chain;
use tokio::time::Instant;

use crate::engine::Engine;
use crate::engine::exchange::call::{self, Call, CallError};
use crate::engine::exchange::grpc;
use crate::engine::exchange::limited::Charging;
use crate::engine::position::{Arrival, Position, Version};
use crate::engine::rate_limit::{Left, request_cost};
use crate::head::RequestHead;
use crate::refused::Refused;

/// Questions about what responses have cost that are under way at once on one thread; what is more
/// is not counted.
const MAX_CHARGES: usize = 256;
/// No service is asked in less time than this, however long others have taken before it.
const TIME_MIN: Duration = Duration::from_millis(1);

/// What is asked of one service at once: limits that it counts, at the same cost.
#[derive(Clone)]
pub(super) struct Question {
    pub(super) counter: Arc<GlobalCounter>,
    /// The places of the limits in their policy, one for each descriptor.
    pub(super) limits: Vec<usize>,
    descriptors: Vec<Descriptor>,
    hits: u32,
    /// Whether the answer is only reported.
    pub(super) is_shadow: bool,
}

/// What a response may cost at a service.
pub(super) struct LaterCost {
    question: Question,
    cost: Cost,
}

/// Why a service did not answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// There is no answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The answer is none of gRPC.
    #[error(transparent)]
    Unclear(#[from] grpc::Unclear),
    /// The answer says nothing.
    #[error("what it answers is unclear")]
    Answer(#[from] AnswerError),
    /// What it adds makes a request that is none.
    #[error("what it adds makes a request that is none")]
    Changes(#[source] Refused),
    /// The question cannot be written.
    #[error("it cannot be asked about this request")]
    Question(#[source] Refused),
}

impl Failure {
    /// Whether `failureMode: Allow` lets the request pass: only where the service did not answer.
    /// An answer that cannot be used is a mistake that must be seen.
    pub(super) fn is_silence(&self) -> bool {
        match self {
            Self::Call(error) => !matches!(error, CallError::Missing(_)),
            Self::Unclear(unclear) => unclear.is_silence(),
            Self::Answer(_) | Self::Changes(_) | Self::Question(_) => false,
        }
    }
}

impl Question {
    /// Whether another limit can be asked with it.
    fn is_like(&self, counter: &GlobalCounter, hits: u32, is_shadow: bool) -> bool {
        let (one, other) = (&*self.counter, counter);
        (&one.service, one.port, &one.domain) == (&other.service, other.port, &other.domain)
            && (self.hits, self.is_shadow) == (hits, is_shadow)
            && (one.timeout, one.denies_without_answer)
                == (other.timeout, other.denies_without_answer)
    }

    /// The limits that are reached by an answer that says so: one or more.
    pub(super) fn over(&self, answer: &Answer) -> Vec<usize> {
        let each = self.limits.iter().zip(&answer.limits);
        let over: Vec<usize> = each.filter(|(_, it)| it.is_over).map(|(index, _)| *index).collect();
        if over.is_empty() { self.limits.clone() } else { over }
    }
}

/// The questions about a request, and what its response may cost.
pub(super) fn questions(
    policy: &RateLimitPolicy,
    asked: &Asked<'_>,
) -> (Vec<Question>, Vec<LaterCost>) {
    let (mut questions, mut later) = (Vec::<Question>::new(), Vec::new());
    for (index, limit) in policy.limits.iter().enumerate() {
        let Counter::Global(counter) = &limit.counter else { continue };
        let Some(descriptor) = descriptor(limit, counter, asked) else { continue };
        let (hits, is_shadow) = (request_cost(limit, asked), limit.is_shadow);
        let question = Question {
            counter: counter.clone(),
            limits: vec![index],
            descriptors: vec![descriptor.clone()],
            hits,
            is_shadow,
        };
        if let Some(cost) = &limit.response_cost {
            later.push(LaterCost { question: question.clone(), cost: cost.clone() });
        }
        match questions.iter_mut().find(|it| it.is_like(counter, hits, is_shadow)) {
            Some(together) => {
                together.limits.push(index);
                together.descriptors.push(descriptor);
            }
            None => questions.push(question),
        }
    }
    (questions, later)
}

/// What a service counts a request by; nothing for one that does not count.
fn descriptor(limit: &RateLimit, counter: &GlobalCounter, asked: &Asked<'_>) -> Option<Descriptor> {
    let values = limit.counts(asked)?;
    let first = counter.descriptor.iter().map(|(key, value)| (key.to_string(), value.to_string()));
    let distinct = limit.distinct.iter().map(|it| it.key()).zip(values);
    let entries: Vec<(String, String)> = first.chain(distinct).collect();
    // The service takes no empty value.
    let is_whole = entries.iter().all(|(_, value)| !value.is_empty());
    is_whole.then_some(Descriptor { entries, quota: counter.quota })
}

/// Asks a service.
pub(super) async fn ask<P: Position>(
    engine: &Engine<P>,
    arrival: &Arrival,
    rules: &P::Rules,
    question: &Question,
    (about, until): (&RequestHead, Instant),
) -> Result<Answer, Failure> {
    let counter = &question.counter;
    let message = wire::encode(&counter.domain, &question.descriptors, question.hits);
    let place = (&*counter.service.hostname, wire::SHOULD_RATE_LIMIT);
    let (head, body) = grpc::question(place, about, &message).map_err(Failure::Question)?;
    let (name, port) = (counter.service.clone(), counter.port);
    let destination = Destination::Service { name, port, subset: None };
    let left = until.saturating_duration_since(Instant::now()).max(TIME_MIN);
    let call = Call {
        destination: &destination,
        version: Version::Http2,
        head: &head,
        body,
        timeout: counter.timeout.min(left),
    };
    let called = call::call(engine, arrival, rules, &call).await?;
    Ok(wire::decode(&grpc::answer(&called)?)?)
}

/// Has services count what the response to a request costs. Nobody waits for that.
pub(super) fn charging<P: Position>(
    engine: &Rc<Engine<P>>,
    arrival: &Rc<Arrival>,
    about: &RequestHead,
    later: Vec<LaterCost>,
) -> Charging {
    let (engine, arrival, about) = (engine.clone(), arrival.clone(), about.clone());
    Box::new(move |fields| {
        for LaterCost { question, cost } in &later {
            let hits = cost.of(0, |name| fields.first(name).map(<[u8]>::to_vec));
            if hits > 0 {
                charge(&engine, &arrival, &about, Question { hits, ..question.clone() });
            }
        }
    })
}

fn charge<P: Position>(
    engine: &Rc<Engine<P>>,
    arrival: &Rc<Arrival>,
    about: &RequestHead,
    question: Question,
) {
    if Rc::strong_count(&engine.charging) > MAX_CHARGES {
        tracing::debug!("the cost of a response is not counted: too many are under way");
        return;
    }
    let (engine, arrival, about) = (engine.clone(), arrival.clone(), about.clone());
    let held = engine.charging.clone();
    engine.guard.clone().spawn_local(async move {
        let _held_to_the_end = held;
        let Some(rules) = engine.position.rules(&arrival).await else { return };
        let until = Instant::now() + question.counter.timeout;
        if let Err(error) = ask(&engine, &arrival, &rules, &question, (&about, until)).await {
            let error = error_chain(&error);
            tracing::debug!(error, "the cost of a response is not counted");
        }
    });
}

/// What is left of the limits of a question, as far as the answer says so.
pub(super) fn left(policy: &RateLimitPolicy, question: &Question, answer: &Answer) -> Vec<Left> {
    let limits = question.limits.iter().zip(&answer.limits);
    let left = limits.filter_map(|(index, limit)| {
        let Limit { quota, remaining, reset, .. } = limit;
        let (requests, window) = (*quota)?;
        Some(Left {
            name: policy.limits[*index].name.to_string(),
            requests,
            window,
            burst: None,
            remaining: (*remaining).into(),
            reset: reset.unwrap_or(window),
        })
    });
    left.collect()
}
