//! Limits of how many requests come: asked when the policies have let a request pass, so that what
//! they deny costs nothing, and before it is sent anywhere. What the pod counts itself comes first;
//! if a service that counts refuses behind that, it is given back.

use std::time::Duration;

use ambit_model::http::authorize::{Asked, Token};
use ambit_model::http::rate_limit::RateLimitPolicy;
use ambit_wire::ext_authz::{Change, FieldChange};
use ambit_wire::rate_limit as wire;
use ambit_words::error_chain;
use bytes::Bytes;
use tokio::time::Instant;

use super::Exchange;
use super::changes::{change_request, change_response};
use super::counter::{self, Failure, Question};
use super::limited::Limited;
use super::watch::{self, Ended, for_model};
use crate::engine::answer::Answer;
use crate::engine::filters::client_ip;
use crate::engine::heads;
use crate::engine::piece::Source;
use crate::engine::position::{Position, Rules as _};
use crate::engine::rate_limit::{Left, Reached, Taking, fields, whole_seconds};
use crate::engine::record::{Flags, LimitOutcome, LimitReached};
use crate::engine::respond::Respond;
use crate::fields::{FieldLimits, Fields};

/// The status of gRPC for a limit that is reached. Not UNAVAILABLE, as Envoy's by default: clients
/// would try again at once.
const RESOURCE_EXHAUSTED: u32 = 8;
/// The status of gRPC for a field that says two things.
const INVALID_ARGUMENT: u32 = 3;
/// The body of a refusal for such a field.
const REPEATED: &str = "a field that tells who asks comes in lines that differ";
/// The body of a refusal that has no other.
const TOO_MANY: &str = "too many requests";

impl<P: Position, B: Source, R: Respond> Exchange<'_, P, B, R> {
    /// Asks the limits.
    pub(super) async fn limit(&mut self) -> Result<(), Ended> {
        let (service, limits) = self.rules.rate_limits();
        let origin = self.rule.as_ref().map(|(rule, _)| &rule.origin);
        let Some(policy) = limits.of(origin, service) else { return Ok(()) };
        let (policy, service) = (policy.clone(), service.clone());
        if let Some(problem) = &policy.problem {
            let details = format!("TrafficPolicy {}: {problem}", policy.name);
            let answer = Answer::new(500, Flags::NoRoute, "rate_limit_invalid", details);
            return Err(answer.into());
        }
        let buckets = self.engine.position.buckets();
        let counted = self.asked(|asked| {
            if let Some((index, field)) = policy.unclear(asked) {
                return Err((index, field.clone()));
            }
            let taking = Taking::local(&policy, &service, asked, (buckets, buckets.now()));
            Ok((taking, counter::questions(&policy, asked)))
        });
        let (taking, (questions, later)) = match counted {
            Ok(counted) => counted,
            Err((index, field)) => {
                self.note_limits(&policy, &[index], LimitOutcome::Refused);
                return Err(repeated(&policy, index, &field).into());
            }
        };
        let taking = match taking {
            Ok(taking) => taking,
            Err(Reached { index, wait, left }) => {
                self.note_limits(&policy, &[index], LimitOutcome::Refused);
                return Err(refused(&policy, index, Some(wait), &left).into());
            }
        };
        self.note_limits(&policy, &taking.shadows, LimitOutcome::Shadow);
        let charging = (!later.is_empty())
            .then(|| counter::charging(self.engine, self.arrival, &self.head, later));
        let mut limited = Limited { taking, fields: Vec::new(), charging };
        // Whatever is asked, the request waits no longer than for the slowest of them.
        let longest = questions.iter().map(|it| it.counter.timeout).max().unwrap_or_default();
        let until = Instant::now() + longest;
        for question in &questions {
            if let Err(ended) = self.ask_counter(&policy, question, until, &mut limited).await {
                limited.taking.give_back(buckets.now());
                return Err(ended);
            }
        }
        self.limited = Some(limited);
        Ok(())
    }

    fn asked<T>(&self, ask: impl FnOnce(&Asked<'_>) -> T) -> T {
        let host = heads::lower_case(self.head.authority().host()).into_owned();
        let head = for_model(&self.head, &host, self.arrival, self.token.as_ref());
        ask(&Asked {
            head: &head,
            source: &self.arrival.source,
            remote_ip: client_ip(&self.head.fields, self.arrival),
            destination: self.arrival.destination,
            service: None,
            server_name: self.arrival.server_name(),
            token: self.token.as_ref().map(|it| it as &dyn Token),
        })
    }

    fn note_limits(&mut self, policy: &RateLimitPolicy, limits: &[usize], outcome: LimitOutcome) {
        self.record.limits.extend(limits.iter().map(|index| LimitReached {
            policy: policy.name.clone(),
            limit: policy.limits[*index].name.clone(),
            outcome,
        }));
    }

    /// Asks a service that counts; an error is what the client is answered.
    async fn ask_counter(
        &mut self,
        policy: &RateLimitPolicy,
        question: &Question,
        until: Instant,
        limited: &mut Limited,
    ) -> Result<(), Ended> {
        let about = (&self.head, until);
        let asking = counter::ask(self.engine, self.arrival, &self.rules, question, about);
        let answered = watch::while_there(&mut self.body, &mut self.respond, asking).await?;
        let answered = answered.and_then(|answer| {
            if !question.is_shadow {
                let changes = added(&answer.request_fields);
                change_request(&mut self.head.fields, &[], &changes).map_err(Failure::Changes)?;
            }
            Ok(answer)
        });
        let answer = match answered {
            Ok(answer) => answer,
            Err(failure) => return self.without_answer(policy, question, &failure),
        };
        limited.taking.left.extend(counter::left(policy, question, &answer));
        if !question.is_shadow {
            limited.fields.extend(added(&answer.response_fields));
        }
        if !answer.is_over {
            return Ok(());
        }
        let over = question.over(&answer);
        if question.is_shadow {
            self.note_limits(policy, &over, LimitOutcome::Shadow);
            return Ok(());
        }
        self.note_limits(policy, &over, LimitOutcome::Refused);
        let wait = answer.limits.iter().filter(|it| it.is_over).filter_map(|it| it.reset).max();
        let refused = refused(policy, over[0], wait, &limited.taking.left);
        Err(refused.with_message(of_service(&limited.fields), body(answer)).into())
    }

    /// Without an answer the policy decides, and where it says nothing the request is refused.
    fn without_answer(
        &mut self,
        policy: &RateLimitPolicy,
        question: &Question,
        failure: &Failure,
    ) -> Result<(), Ended> {
        let counter = &question.counter;
        let limit = &policy.limits[question.limits[0]].name;
        let details = format!(
            "limit `{limit}` of TrafficPolicy {}: {}:{} does not count: {}",
            policy.name,
            counter.service,
            counter.port,
            error_chain(failure)
        );
        let passes = !counter.denies_without_answer && failure.is_silence();
        if passes || question.is_shadow {
            tracing::debug!(details, "a request passes that a service should have counted");
            self.note_limits(policy, &question.limits, LimitOutcome::FailedOpen);
            return Ok(());
        }
        self.note_limits(policy, &question.limits, LimitOutcome::Failed);
        Err(Answer::new(503, Flags::RateLimited, "rate_limit_no_answer", details).into())
    }
}

/// Whom a limit should count is not known: lines of the field name several senders.
fn repeated(policy: &RateLimitPolicy, index: usize, field: &str) -> Answer {
    let limit = &policy.limits[index].name;
    let details = format!(
        "limit `{limit}` of TrafficPolicy {} tells senders apart by the field `{field}`, which \
         comes in lines that differ",
        policy.name,
    );
    let answer = Answer::new(400, Flags::RateLimited, "rate_limit_repeated", details);
    let mut answer = answer.with_body(REPEATED);
    answer.grpc_status = Some(INVALID_ARGUMENT);
    answer
}

fn refused(
    policy: &RateLimitPolicy,
    index: usize,
    wait: Option<Duration>,
    left: &[Left],
) -> Answer {
    let limit = &policy.limits[index].name;
    let again = wait.map(whole_seconds);
    let told = again.map(|it| format!("; the request may come again in {it} s"));
    let details = format!(
        "limit `{limit}` of TrafficPolicy {} is reached{}",
        policy.name,
        told.unwrap_or_default()
    );
    let answer = Answer::new(429, Flags::RateLimited, "rate_limited", details);
    let mut answer = answer.with_body(TOO_MANY);
    answer.grpc_status = Some(RESOURCE_EXHAUSTED);
    if let Some(seconds) = again {
        answer = answer.with_field("retry-after", seconds.to_string());
    }
    if policy.says_what_is_left {
        for (name, value) in fields(left) {
            answer = answer.with_field(name, value);
        }
    }
    answer
}

/// Fields beside those that are there.
fn added(fields: &[(String, Bytes)]) -> Vec<FieldChange> {
    let change = |(name, value): &(String, Bytes)| FieldChange {
        name: name.clone(),
        value: value.clone(),
        how: Change::Append,
    };
    fields.iter().map(change).collect()
}

/// The fields of a refusal that a service asks for.
fn of_service(changes: &[FieldChange]) -> Fields {
    let mut fields = Fields::new(FieldLimits::default());
    for change in changes {
        if let Err(refused) = change_response(&mut fields, std::slice::from_ref(change)) {
            tracing::debug!(%refused, "a field of a service's answer is left out");
        }
    }
    fields
}

fn body(answer: wire::Answer) -> Bytes {
    match answer.body.is_empty() {
        true => Bytes::from_static(TOO_MANY.as_bytes()),
        false => answer.body,
    }
}
