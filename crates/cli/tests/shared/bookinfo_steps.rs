//! The example bookinfo behind a waypoint: what its steps say becomes of requests, counted. Where
//! it runs, on one machine or in a cluster, is for a [`Place`] to say.

use std::time::Duration;

use ambit_load::Report;

const ALICE: &str = include_str!("../../../../examples/bookinfo-steps/alice.jwt");
const BOB: &str = include_str!("../../../../examples/bookinfo-steps/bob.jwt");
const REVIEWS: &str = "http://reviews.bookinfo:9080/reviews/0";
const RATINGS: &str = "http://ratings.bookinfo:9080/ratings/0";
const DETAILS: &str = "http://details.bookinfo:9080/details/0";
const PRODUCTS: &str = "http://productpage.bookinfo:9080/api/v1/products";

/// Where bookinfo runs.
pub(crate) trait Place {
    /// Applies a file of `examples/bookinfo-steps`.
    fn step(&self, name: &str);
    /// What curl in the pod `fortio` writes with these words.
    fn curl(&self, words: &str) -> String;
    /// What became of the load that `ambit load` makes with these words in the pod `fortio`.
    fn load(&self, words: &str) -> Report;
    /// The metrics of the waypoint's pod.
    fn metrics(&self) -> String;
    /// The log of the waypoint's pod.
    fn log(&self) -> String;
    /// Looks again until it is so; fails when it takes too long.
    fn wait(&self, what: &str, is_so: impl FnMut() -> bool);
}

/// Attaches the waypoint to bookinfo, which is in the mesh, and takes one step after the other.
pub(crate) fn run(place: &impl Place) {
    place.step("waypoint");
    place.wait("requests pass the waypoint", || {
        get(place, REVIEWS, "", 1).contains(" 200\n") && passed(place, &[]) > 0
    });
    canary(place);
    by_user(place);
    mirrored(place);
    failing(place);
    breaking(place);
    limited(place);
    guarded(place);
    retried(place);
}

/// The answers to some requests over one connection, each with its status behind it.
fn get(place: &impl Place, url: &str, fields: &str, times: u32) -> String {
    place.curl(&format!("-s -m 30 -w ' %{{http_code}}\\n' {fields} '{url}?[1-{times}]'"))
}

/// How many answers come from pods whose names begin so.
fn from(answers: &str, pods: &str) -> usize {
    answers.lines().filter(|line| line.contains(pods)).count()
}

fn status(answers: &str, status: u16) -> usize {
    answers.lines().filter(|line| line.ends_with(&format!(" {status}"))).count()
}

/// What the waypoint has counted with these labels.
fn passed(place: &impl Place, labels: &[&str]) -> u64 {
    let metrics = place.metrics();
    let samples = metrics.lines().filter(|line| {
        line.starts_with("istio_requests_total{") && labels.iter().all(|label| line.contains(label))
    });
    let value = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
    samples.filter_map(value).sum::<f64>() as u64
}

/// Shares are drawn by lot: five standard deviations around the mean are allowed, which a right
/// share misses once in a million runs.
fn assert_share(count: usize, of: u32, share: f64) {
    let (all, count) = (f64::from(of), count as f64);
    let (mean, deviation) = (all * share, (all * share * (1.0 - share)).sqrt());
    let is_near = (count - mean).abs() <= 5.0 * deviation;
    assert!(is_near, "{count} of {of}, where {mean} are expected");
}

fn canary(place: &impl Place) {
    place.step("canary");
    place.wait("v3 is left out", || {
        let answers = get(place, REVIEWS, "", 30);
        status(&answers, 200) == 30 && from(&answers, "reviews-v3") == 0
    });
    let answers = get(place, REVIEWS, "", 400);
    let (v1, v2) = (from(&answers, "reviews-v1"), from(&answers, "reviews-v2"));
    println!("90/10: v1 {v1}, v2 {v2} of 400");
    assert_eq!(v1 + v2, 400, "{answers}");
    assert_share(v2, 400, 0.1);
}

fn by_user(place: &impl Place) {
    place.step("by-user");
    let jason = "-H 'end-user: jason'";
    place.wait("jason sees v3", || from(&get(place, REVIEWS, jason, 1), "reviews-v3") == 1);
    let others = ["", "-H 'end-user: jasons'", "-H 'end-user: Jason'"];
    for (fields, version) in
        others.map(|it| (it, "reviews-v1")).into_iter().chain([(jason, "reviews-v3")])
    {
        let answers = get(place, REVIEWS, fields, 100);
        println!("{fields:?}: {version} {} of 100", from(&answers, version));
        assert_eq!(from(&answers, version), 100, "{fields}: {answers}");
    }
}

fn mirrored(place: &impl Place) {
    // v3 asks for ratings and v1 does not, so what v3 gets can be counted there.
    let copies = || {
        let labels = ["source_workload=\"reviews-v3\"", "destination_service_name=\"ratings\""];
        passed(place, &labels)
    };
    place.step("mirror");
    place.wait("v1 answers jason too", || {
        from(&get(place, REVIEWS, "-H 'end-user: jason'", 1), "reviews-v1") == 1
    });
    let before = copies();
    let answers = get(place, REVIEWS, "", 200);
    assert_eq!(from(&answers, "reviews-v1"), 200, "{answers}");
    let mut seen = 0;
    place.wait("the copies have arrived", || {
        let last = std::mem::replace(&mut seen, copies() - before);
        std::thread::sleep(Duration::from_millis(200));
        last == seen && seen > 0
    });
    println!("mirror: v1 200 of 200, copies to v3 {seen}");
    assert_share(usize::try_from(seen).expect("a count"), 200, 0.5);
}

fn failing(place: &impl Place) {
    place.step("fault");
    let jason = "-H 'end-user: jason'";
    place.wait("ratings fail for jason", || status(&get(place, RATINGS, jason, 1), 500) == 1);
    assert_eq!(status(&get(place, RATINGS, jason, 100), 500), 100);
    let late = || passed(place, &["response_flags=\"DI\"", "response_code=\"200\""]);
    let before = late();
    assert_eq!(status(&get(place, RATINGS, "", 100), 200), 100);
    let late = late() - before;
    println!("fault: jason 500 100 of 100; others 200 100 of 100, {late} of them late");
    assert_share(usize::try_from(late).expect("a count"), 100, 0.5);
}

fn breaking(place: &impl Place) {
    place.step("breaker");
    let load = format!("load {DETAILS} --rate max -c 16 -n 400");
    let mut seen = (0, 0, 0, 0);
    place.wait("the circuit breaker trips", || {
        let overflows = || passed(place, &["response_flags=\"UO\"", "response_code=\"503\""]);
        let before = overflows();
        let report = place.load(&load);
        let of = |status: u16| report.status_codes.get(&status).copied().unwrap_or_default();
        seen = (of(200), of(503), overflows() - before, report.requests);
        seen.1 > 0
    });
    println!("breaker: 200 {}, 503 {}, counted UO {}, of {}", seen.0, seen.1, seen.2, seen.3);
    assert_eq!((seen.0 + seen.1, seen.1), (seen.3, seen.2), "everything else is answered");
    assert!(seen.0 > 0, "what is within the limits passes");
}

fn limited(place: &impl Place) {
    place.step("rate-limit");
    place.wait("a user is limited", || {
        status(&get(place, REVIEWS, "-H 'end-user: first'", 6), 429) == 1
    });
    for (fields, expected) in
        [("-H 'end-user: ann'", (5, 15)), ("-H 'end-user: bob'", (5, 15)), ("", (20, 0))]
    {
        let answers = get(place, REVIEWS, fields, 20);
        let seen = (status(&answers, 200), status(&answers, 429));
        println!("rate limit: {fields:?}: 200 {}, 429 {} of 20", seen.0, seen.1);
        assert_eq!(seen, expected, "{fields}: {answers}");
    }
}

fn guarded(place: &impl Place) {
    place.step("admin");
    place.wait("who has no token is refused", || status(&get(place, PRODUCTS, "", 1), 403) == 1);
    let bearer = |token: &str| format!("-H 'Authorization: Bearer {token}'");
    let (alice, bob) = (ALICE.trim(), BOB.trim());
    // The signature of another.
    let forged = format!("{}.{}", alice.rsplit_once('.').expect("a token").0, "AAAA");
    for (fields, expected) in
        [(bearer(alice), 200), (bearer(bob), 403), (bearer(&forged), 401), (String::new(), 403)]
    {
        let answers = get(place, PRODUCTS, &fields, 20);
        assert_eq!(status(&answers, expected), 20, "{fields}: {answers}");
    }
    let page = "http://productpage.bookinfo:9080/health";
    assert_eq!(status(&get(place, page, "", 1), 200), 1, "other paths need no token");
    println!("admin path: staff 200, guest 403, forged 401, none 403");
}

fn retried(place: &impl Place) {
    // The log's lines of requests that were made more than once.
    let repeated = || {
        let log = place.log();
        log.lines().filter(|line| line.contains("/ratings/0") && is_repeated(line)).count()
    };
    place.step("retries");
    place.wait("the faulty ratings are there", || {
        let answers = get(place, RATINGS, "", 20);
        status(&answers, 200) == 20 && repeated() > 0
    });
    let before = repeated();
    let answers = get(place, RATINGS, "", 200);
    assert_eq!(status(&answers, 200), 200, "{answers}");
    let repeated = repeated() - before;
    println!("retries: 200 200 of 200, {repeated} of them after another attempt");
    assert!(repeated > 0, "every other request fails the first time");
}

fn is_repeated(line: &str) -> bool {
    let attempts = line.split_once("attempts").map_or("", |(_, rest)| rest);
    let number = attempts.trim_start_matches(['"', ':', '=', ' ']);
    number.starts_with(['2', '3', '4'])
}
