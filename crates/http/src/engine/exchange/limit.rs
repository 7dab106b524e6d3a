//! Limits of how many requests come: asked when the policies have let a request pass, so that what
//! they deny costs nothing, and before it is sent anywhere.

use std::sync::Arc;
use std::time::Duration;

use ambit_model::http::authorize::{Asked, Token};
use ambit_model::http::rate_limit::RateLimitPolicy;
use ambit_model::http::rate_limit::bucket::Moment;

use super::Exchange;
use super::watch::{Ended, for_model};
use crate::engine::answer::Answer;
use crate::engine::heads;
use crate::engine::piece::{Broken, Source};
use crate::engine::position::{Position, Rules as _};
use crate::engine::rate_limit::{Left, Reached, Taking, fields, whole_seconds};
use crate::engine::record::{Flags, LimitReached};
use crate::engine::respond::Respond;
use crate::head::ResponseHead;

/// The status of gRPC for a limit that is reached. Not UNAVAILABLE, as Envoy's by default: clients
/// would try again at once.
const RESOURCE_EXHAUSTED: u32 = 8;

impl<P: Position, B: Source, R: Respond> Exchange<'_, P, B, R> {
    /// Asks the limits.
    pub(super) fn limit(&mut self) -> Result<(), Ended> {
        let (service, limits) = self.rules.rate_limits();
        let Some(policy) = limits.of(self.rule.as_ref().map(|(rule, _)| &rule.origin)) else {
            return Ok(());
        };
        let (policy, service) = (policy.clone(), service.clone());
        if let Some(problem) = &policy.problem {
            let details = format!("TrafficPolicy {}: {problem}", policy.name);
            let answer = Answer::new(500, Flags::NoRoute, "rate_limit_invalid", details);
            return Err(answer.into());
        }
        let host = heads::lower_case(self.head.authority().host()).into_owned();
        let head = for_model(&self.head, &host, self.arrival);
        let asked = Asked {
            head: &head,
            source: &self.arrival.source,
            remote_ip: self.arrival.source.ip(),
            destination: self.arrival.destination,
            service: None,
            server_name: None,
            token: self.token.as_ref().map(|it| it as &dyn Token),
        };
        let buckets = self.engine.position.buckets();
        let taking = Taking::local(&policy, &service, &asked, (buckets, buckets.now()));
        match taking {
            Ok(taking) => {
                let shadows = taking.shadows.iter();
                let shadows = shadows.map(|index| reached(&policy, *index, false));
                self.record.limits.extend(shadows);
                self.limited = Some(taking);
                Ok(())
            }
            Err(Reached { index, wait, left }) => {
                self.record.limits.push(reached(&policy, index, true));
                Err(refused(&policy, index, wait, &left).into())
            }
        }
    }
}

/// Says in a response what is left, and takes what it costs.
pub(super) fn respond(
    limited: Option<&Taking>,
    now: impl FnOnce() -> Moment,
    head: &mut ResponseHead,
) -> Result<(), Broken> {
    let Some(taking) = limited else { return Ok(()) };
    taking.charge(now(), |name| head.fields.first(name).map(<[u8]>::to_vec));
    if !taking.policy().says_what_is_left {
        return Ok(());
    }
    for (name, value) in fields(&taking.left) {
        let put = head.fields.set(name, value.as_bytes());
        put.map_err(|_| crate::refused::Refused::HeadTooLarge)?;
    }
    Ok(())
}

fn refused(policy: &RateLimitPolicy, index: usize, wait: Duration, left: &[Left]) -> Answer {
    let seconds = whole_seconds(wait);
    let limit = &policy.limits[index].name;
    let details = format!(
        "limit `{limit}` of TrafficPolicy {} is reached; the request may come again in {seconds} s",
        policy.name
    );
    let answer = Answer::new(429, Flags::RateLimited, "rate_limited", details);
    let mut answer = answer.with_body("too many requests");
    answer.grpc_status = Some(RESOURCE_EXHAUSTED);
    answer = answer.with_field("retry-after", seconds.to_string());
    if policy.says_what_is_left {
        for (name, value) in fields(left) {
            answer = answer.with_field(name, value);
        }
    }
    answer
}

fn reached(policy: &Arc<RateLimitPolicy>, index: usize, is_enforced: bool) -> LimitReached {
    let limit = policy.limits[index].name.clone();
    LimitReached { policy: policy.name.clone(), limit, is_enforced }
}
