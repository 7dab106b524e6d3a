//! How soon a change of one of many routes is obeyed: from the answer to whoever made the change to
//! the first request that follows it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ambit_load::SeenResult;

/// Services, each with routes of its own.
const SERVICES: usize = 100;
const ROUTES_OF_EACH: usize = 50;
/// The time between two changes: 40 per second, if they are answered so fast.
const CHANGE_EVERY: Duration = Duration::from_millis(25);
/// For how long there are changes.
const CHANGING: Duration = Duration::from_secs(10);
/// How long the load runs around them.
pub(crate) const LOAD_S: u32 = 20;
/// Before the first of them.
const CALM: Duration = Duration::from_secs(3);

/// Where the routes are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Routes {
    /// In this namespace, the route `measured` is the one of the service `web`.
    pub(crate) namespace: &'static str,
    /// The port of every service.
    pub(crate) port: u16,
}

impl Routes {
    /// Services with routes that nobody asks for, a manifest for each service.
    pub(crate) fn others(self) -> Vec<String> {
        let Self { namespace, port } = self;
        let with_routes = |service| {
            let mut text = format!(
                "---\napiVersion: v1\nkind: Service\nmetadata: {{name: other-{service}, \
                 namespace: {namespace}}}\nspec: {{ports: [{{name: http, port: {port}}}]}}\n"
            );
            for number in 0..ROUTES_OF_EACH {
                let rules = format!(
                    "[{{matches: [{{path: {{type: PathPrefix, value: /path-{number}}}}}], \
                     backendRefs: [{{name: web, port: {port}}}]}}]"
                );
                let (name, service) = (format!("r-{service}-{number}"), format!("other-{service}"));
                text.push_str(&self.route(&name, &service, &rules));
            }
            text
        };
        (0..SERVICES).map(with_routes).collect()
    }

    /// The route that changes.
    pub(crate) fn measured(self, edition: u64) -> String {
        self.route("measured", "web", &self.rules(edition))
    }

    /// Its rules, as JSON. Answers say the edition.
    pub(crate) fn rules(self, edition: u64) -> String {
        format!(
            "[{{\"filters\": [{{\"type\": \"ResponseHeaderModifier\", \
             \"responseHeaderModifier\": {{\"set\": [{{\"name\": \"x-edition\", \"value\": \
             \"{edition}\"}}]}}}}], \"backendRefs\": [{{\"name\": \"web\", \"port\": {}}}]}}]",
            self.port
        )
    }

    fn route(self, name: &str, service: &str, rules: &str) -> String {
        let Self { namespace, port } = self;
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: \
             {name}, namespace: {namespace}}}\nspec:\n  parentRefs: [{{group: '', kind: Service, \
             name: {service}, port: {port}}}]\n  rules: {rules}\n"
        )
    }
}

/// The words of `ambit lab-load` that ask all the time, on one connection.
pub(crate) fn asking(url: &str) -> String {
    format!("seen {url} --field x-edition --pause 0 --seconds {}", LOAD_S - 2)
}

/// Makes all changes at their rate; `change` returns when its change was answered, and says when.
pub(crate) fn change_all(mut change: impl FnMut(u64) -> Duration) -> Vec<Duration> {
    std::thread::sleep(CALM);
    let start = Instant::now();
    let mut answered = Vec::new();
    for edition in 1.. {
        if start.elapsed() >= CHANGING {
            break;
        }
        answered.push(change(edition));
        let next = CHANGE_EVERY * u32::try_from(edition).expect("there are few");
        std::thread::sleep((start + next).saturating_duration_since(Instant::now()));
    }
    let rate = answered.len() as f64 / start.elapsed().as_secs_f64();
    eprintln!("drill | a route changes | {rate:.1} times per second");
    answered
}

/// The time, as `seen` knows it.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970")
}

/// Says how soon the changes were followed, every one of them.
pub(crate) fn tell(answered: &[Duration], seen: &SeenResult) {
    assert!(seen.failed == 0 && !seen.values.is_empty(), "{seen:?}");
    let followed = |(answered, edition): (&Duration, u64)| {
        let is_it = |value: &str| value.parse::<u64>().is_ok_and(|value| value >= edition);
        let first = seen.values.iter().find(|seen| is_it(&seen.value));
        let at = Duration::from_micros(first.expect("every change is obeyed").at_us);
        // An answer may be overtaken by what it answers.
        at.saturating_sub(*answered)
    };
    let mut all: Vec<Duration> = answered.iter().zip(1..).map(followed).collect();
    all.sort();
    let at = |percent: usize| all[(all.len() * percent / 100).min(all.len() - 1)];
    eprintln!(
        "drill | a route changes | one of {}: first request that follows p50 {:?}, p90 {:?}, p99 \
         {:?}, max {:?}",
        SERVICES * ROUTES_OF_EACH + 1,
        at(50),
        at(90),
        at(99),
        at(100)
    );
}
