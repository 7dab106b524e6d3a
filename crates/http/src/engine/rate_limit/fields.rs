//! What responses say of limits: `x-ratelimit-limit`, `x-ratelimit-remaining` and
//! `x-ratelimit-reset`, in the form that Envoy calls DRAFT_VERSION_03 (the third draft of
//! "RateLimit Fields for HTTP").

use std::time::Duration;

/// What is left of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// The limit.
    pub(crate) name: String,
    /// So many requests ...
    pub(crate) requests: u32,
    /// ... in this time.
    pub(crate) window: Duration,
    /// So many at once, where that is another number.
    pub(crate) burst: Option<u32>,
    /// What may come now.
    pub(crate) remaining: u64,
    /// Until all may come again.
    pub(crate) reset: Duration,
}

/// The fields: those of the limit of which the least is left, and the quotas of all.
pub(crate) fn fields(left: &[Left]) -> Vec<(&'static str, String)> {
    let Some(least) = left.iter().min_by_key(|it| it.remaining) else { return Vec::new() };
    let quota = |it: &Left| {
        let burst = it.burst.map(|burst| format!(";burst={burst}")).unwrap_or_default();
        let (requests, window) = (it.requests, it.window.as_secs());
        format!("{requests};w={window}{burst};name=\"{}\"", it.name)
    };
    let quotas: Vec<String> = left.iter().map(quota).collect();
    vec![
        ("x-ratelimit-limit", format!("{}, {}", least.requests, quotas.join(", "))),
        ("x-ratelimit-remaining", least.remaining.to_string()),
        ("x-ratelimit-reset", seconds(least.reset).to_string()),
    ]
}

/// Whole seconds, rounded up: who comes then is not too early.
pub(crate) fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_which_the_least_is_left_is_said_with_the_quotas_of_all() {
        let left = |name: &str, requests, burst, remaining, reset| Left {
            name: name.to_owned(),
            requests,
            window: Duration::from_secs(60),
            burst,
            remaining,
            reset: Duration::from_millis(reset),
        };
        assert_eq!(fields(&[]), []);
        let two = [left("all", 100, None, 7, 1_000), left("user", 10, Some(20), 3, 2_001)];
        let quotas = r#"10, 100;w=60;name="all", 10;w=60;burst=20;name="user""#;
        let expected = [
            ("x-ratelimit-limit", quotas.to_owned()),
            ("x-ratelimit-remaining", "3".to_owned()),
            ("x-ratelimit-reset", "3".to_owned()),
        ];
        assert_eq!(fields(&two), expected);
    }
}
