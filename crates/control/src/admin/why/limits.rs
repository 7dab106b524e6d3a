//! Which limits count a request. How much of them is left only the waypoint's pods know.

use ambit_model::http::authorize::Asked;
use ambit_model::http::rate_limit::bucket::Quota;
use ambit_model::http::rate_limit::{Attribute, Counter, RateLimit, RateLimitPolicy};
use ambit_wire::admin;

/// The limits of a policy that count a request.
pub(super) fn counting(policy: &RateLimitPolicy, asked: &Asked<'_>) -> Vec<admin::RequestLimit> {
    let counting = policy.limits.iter().filter_map(|limit| {
        let values = limit.counts(asked)?;
        let sender = limit.distinct.iter().map(Attribute::key).zip(values);
        let sender: Vec<String> = sender.map(|(key, value)| format!("{key}={value}")).collect();
        let field = |name: &str| asked.head.fields.value(name).map(|it| it.into_owned());
        Some(admin::RequestLimit {
            policy: policy.name.to_string(),
            limit: limit.name.to_string(),
            quota: quota(limit),
            sender: sender.join(", "),
            cost: limit.request_cost.of(1, field),
            enforced: !limit.is_shadow,
        })
    });
    counting.collect()
}

/// Refuses a request whose sender a limit cannot tell.
pub(super) fn refuses(
    policy: &RateLimitPolicy,
    asked: &Asked<'_>,
    into: &mut admin::Explanation,
) -> bool {
    let Some((index, field)) = policy.unclear(asked) else { return false };
    let (limit, policy) = (&policy.limits[index].name, &policy.name);
    into.decision = admin::Decision::Deny;
    into.reason = format!(
        "400: limit `{limit}` of TrafficPolicy {policy} tells senders apart by `{field}`, which \
         comes in lines that differ"
    );
    into.remedy = Some("send the field in one line".to_owned());
    true
}

/// How many requests may come, in words.
fn quota(limit: &RateLimit) -> String {
    let words = |quota: &Quota| {
        let Quota { requests, unit, burst } = quota;
        let burst = if burst == requests { String::new() } else { format!(", burst {burst}") };
        format!("{requests} per {}{burst}", unit.name())
    };
    match &limit.counter {
        Counter::Local(quota) => format!("{}, in each waypoint pod", words(quota)),
        Counter::Global(counter) => {
            let own = counter.quota.as_ref().map_or("what it is configured with".to_owned(), words);
            format!("{own}, counted by {}:{}", counter.service, counter.port)
        }
    }
}
