//! The example bookinfo behind a waypoint: what its steps say becomes of requests, counted.

use std::time::Duration;

use crate::machine::{Machine, SETTLE_TIMEOUT, sum};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/");
const ALICE: &str = include_str!("../../../../examples/bookinfo-steps/alice.jwt");
const BOB: &str = include_str!("../../../../examples/bookinfo-steps/bob.jwt");
const CLIENT: &str = "bookinfo/fortio";
const REVIEWS: &str = "http://reviews.bookinfo:9080/reviews/0";
const RATINGS: &str = "http://ratings.bookinfo:9080/ratings/0";
const DETAILS: &str = "http://details.bookinfo:9080/details/0";
const PRODUCTS: &str = "http://productpage.bookinfo:9080/api/v1/products";
/// Twelve pods start, on a machine that may be busy.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn bookinfo_behind_a_waypoint_does_what_its_steps_say() {
    let machine = Machine::none("bookinfo-requests");
    machine.run(&["up", &format!("{EXAMPLE}bookinfo"), "--nodes", "2", "--detach"]);
    step(&machine, "mesh-on");
    machine.wait_until_meshed();
    step(&machine, "waypoint");
    machine.wait("requests pass the waypoint", READY_TIMEOUT, || {
        get(&machine, REVIEWS, "", 1).contains(" 200\n") && passed(&machine, &[]) > 0
    });
    canary(&machine);
    by_user(&machine);
    mirrored(&machine);
    failing(&machine);
    breaking(&machine);
    limited(&machine);
    guarded(&machine);
    retried(&machine);
    machine.down();
}

fn step(machine: &Machine, name: &str) {
    machine.run(&["apply", &format!("{EXAMPLE}bookinfo-steps/{name}.yaml")]);
}

/// The answers to some requests over one connection, each with its status behind it.
fn get(machine: &Machine, url: &str, fields: &str, times: u32) -> String {
    let script = format!("curl -s -m 30 -w ' %{{http_code}}\\n' {fields} '{url}?[1-{times}]'");
    machine.bash(CLIENT, &script)
}

/// How many answers come from pods whose names begin so.
fn from(answers: &str, pods: &str) -> usize {
    answers.lines().filter(|line| line.contains(pods)).count()
}

fn status(answers: &str, status: u16) -> usize {
    answers.lines().filter(|line| line.ends_with(&format!(" {status}"))).count()
}

/// What the waypoint has counted with these labels.
fn passed(machine: &Machine, labels: &[&str]) -> u64 {
    let script = "curl -s http://127.0.0.1:15020/metrics";
    sum(&machine.bash("bookinfo/waypoint", script), "istio_requests_total", labels)
}

/// Shares are drawn by lot: five standard deviations around the mean are allowed, which a right
/// share misses once in a million runs.
fn assert_share(count: usize, of: u32, share: f64) {
    let (all, count) = (f64::from(of), count as f64);
    let (mean, deviation) = (all * share, (all * share * (1.0 - share)).sqrt());
    let is_near = (count - mean).abs() <= 5.0 * deviation;
    assert!(is_near, "{count} of {of}, where {mean} are expected");
}

fn canary(machine: &Machine) {
    step(machine, "canary");
    machine.wait("v3 is left out", SETTLE_TIMEOUT, || {
        let answers = get(machine, REVIEWS, "", 30);
        status(&answers, 200) == 30 && from(&answers, "reviews-v3") == 0
    });
    let answers = get(machine, REVIEWS, "", 400);
    let (v1, v2) = (from(&answers, "reviews-v1"), from(&answers, "reviews-v2"));
    println!("90/10: v1 {v1}, v2 {v2} of 400");
    assert_eq!(v1 + v2, 400, "{answers}");
    assert_share(v2, 400, 0.1);
}

fn by_user(machine: &Machine) {
    step(machine, "by-user");
    let jason = "-H 'end-user: jason'";
    machine.wait("jason sees v3", SETTLE_TIMEOUT, || {
        from(&get(machine, REVIEWS, jason, 1), "reviews-v3") == 1
    });
    let others = ["", "-H 'end-user: jasons'", "-H 'end-user: Jason'"];
    for (fields, version) in
        others.map(|it| (it, "reviews-v1")).into_iter().chain([(jason, "reviews-v3")])
    {
        let answers = get(machine, REVIEWS, fields, 100);
        println!("{fields:?}: {version} {} of 100", from(&answers, version));
        assert_eq!(from(&answers, version), 100, "{fields}: {answers}");
    }
}

fn mirrored(machine: &Machine) {
    // v3 asks for ratings and v1 does not, so what v3 gets can be counted there.
    let copies = || {
        let labels = ["source_workload=\"reviews-v3\"", "destination_service_name=\"ratings\""];
        passed(machine, &labels)
    };
    step(machine, "mirror");
    machine.wait("v1 answers jason too", SETTLE_TIMEOUT, || {
        from(&get(machine, REVIEWS, "-H 'end-user: jason'", 1), "reviews-v1") == 1
    });
    let before = copies();
    let answers = get(machine, REVIEWS, "", 200);
    assert_eq!(from(&answers, "reviews-v1"), 200, "{answers}");
    let mut seen = 0;
    machine.wait("the copies have arrived", SETTLE_TIMEOUT, || {
        let last = std::mem::replace(&mut seen, copies() - before);
        std::thread::sleep(Duration::from_millis(200));
        last == seen && seen > 0
    });
    println!("mirror: v1 200 of 200, copies to v3 {seen}");
    assert_share(usize::try_from(seen).expect("a count"), 200, 0.5);
}

fn failing(machine: &Machine) {
    step(machine, "fault");
    let jason = "-H 'end-user: jason'";
    machine.wait("ratings fail for jason", SETTLE_TIMEOUT, || {
        status(&get(machine, RATINGS, jason, 1), 500) == 1
    });
    assert_eq!(status(&get(machine, RATINGS, jason, 100), 500), 100);
    let late = || passed(machine, &["response_flags=\"DI\"", "response_code=\"200\""]);
    let before = late();
    assert_eq!(status(&get(machine, RATINGS, "", 100), 200), 100);
    let late = late() - before;
    println!("fault: jason 500 100 of 100; others 200 100 of 100, {late} of them late");
    assert_share(usize::try_from(late).expect("a count"), 100, 0.5);
}

fn breaking(machine: &Machine) {
    step(machine, "breaker");
    let load = format!("load {DETAILS} --rate max -c 16 -n 400");
    let mut seen = (0, 0, 0, 0);
    machine.wait("the circuit breaker trips", SETTLE_TIMEOUT, || {
        let overflows = || passed(machine, &["response_flags=\"UO\"", "response_code=\"503\""]);
        let before = overflows();
        let report = machine.load(CLIENT, &load).http();
        let of = |status: u16| report.status_codes.get(&status).copied().unwrap_or_default();
        seen = (of(200), of(503), overflows() - before, report.requests);
        seen.1 > 0
    });
    println!("breaker: 200 {}, 503 {}, counted UO {}, of {}", seen.0, seen.1, seen.2, seen.3);
    assert_eq!((seen.0 + seen.1, seen.1), (seen.3, seen.2), "everything else is answered");
    assert!(seen.0 > 0, "what is within the limits passes");
}

fn limited(machine: &Machine) {
    step(machine, "rate-limit");
    machine.wait("a user is limited", SETTLE_TIMEOUT, || {
        status(&get(machine, REVIEWS, "-H 'end-user: first'", 6), 429) == 1
    });
    for (fields, expected) in
        [("-H 'end-user: ann'", (5, 15)), ("-H 'end-user: bob'", (5, 15)), ("", (20, 0))]
    {
        let answers = get(machine, REVIEWS, fields, 20);
        let seen = (status(&answers, 200), status(&answers, 429));
        println!("rate limit: {fields:?}: 200 {}, 429 {} of 20", seen.0, seen.1);
        assert_eq!(seen, expected, "{fields}: {answers}");
    }
}

fn guarded(machine: &Machine) {
    step(machine, "admin");
    machine.wait("who has no token is refused", SETTLE_TIMEOUT, || {
        status(&get(machine, PRODUCTS, "", 1), 403) == 1
    });
    let bearer = |token: &str| format!("-H 'Authorization: Bearer {token}'");
    let (alice, bob) = (ALICE.trim(), BOB.trim());
    // The signature of another.
    let forged = format!("{}.{}", alice.rsplit_once('.').expect("a token").0, "AAAA");
    for (fields, expected) in
        [(bearer(alice), 200), (bearer(bob), 403), (bearer(&forged), 401), (String::new(), 403)]
    {
        let answers = get(machine, PRODUCTS, &fields, 20);
        assert_eq!(status(&answers, expected), 20, "{fields}: {answers}");
    }
    let page = "http://productpage.bookinfo:9080/health";
    assert_eq!(status(&get(machine, page, "", 1), 200), 1, "other paths need no token");
    println!("admin path: staff 200, guest 403, forged 401, none 403");
}

fn retried(machine: &Machine) {
    // The log's lines of requests that were made more than once.
    let repeated = || {
        let log = machine.run(&["logs", "bookinfo/waypoint"]);
        log.lines().filter(|line| line.contains("/ratings/0") && is_repeated(line)).count()
    };
    step(machine, "retries");
    machine.wait("the faulty ratings are there", READY_TIMEOUT, || {
        let answers = get(machine, RATINGS, "", 20);
        status(&answers, 200) == 20 && repeated() > 0
    });
    let before = repeated();
    let answers = get(machine, RATINGS, "", 200);
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
