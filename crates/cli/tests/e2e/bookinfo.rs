//! The example bookinfo: a page of four services, its two releases, and who may call whom.

use std::time::Duration;

use crate::machine::{Machine, SETTLE_TIMEOUT};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/");
const CLIENT: &str = "bookinfo/fortio";
const PAGE: &str = "http://productpage.bookinfo:9080/productpage";
const DETAILS: &str = "http://details.bookinfo:9080/details/0";
/// Twelve pods start, on a machine that may be busy.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Status and body.
fn page(machine: &Machine, url: &str) -> (String, String) {
    let words = ["exec", CLIENT, "--", "curl", "-s", "-m", "5", "-w", "\n%{http_code}", url];
    let said = machine.ambit(&words).out;
    let (body, status) = said.rsplit_once('\n').unwrap_or_default();
    (status.to_owned(), body.to_owned())
}

/// Load on details, below the rate at which Linux delays its acknowledgements: what failed, and how
/// often the client read for each answer.
fn details(machine: &Machine) -> (u64, f64) {
    let load = machine.load(CLIENT, &format!("load {DETAILS} --rate 100/s -c 10 --duration 1s"));
    let report = load.http();
    (report.failed, report.reads_per_response)
}

#[test]
fn bookinfo_works_in_both_releases_with_and_without_a_mesh() {
    let machine = Machine::none("bookinfo");
    let file = |name: &str| format!("{EXAMPLE}{name}");
    machine.run(&["up", &file("bookinfo"), "--nodes", "2", "--detach"]);
    machine.wait("the page is whole", READY_TIMEOUT, || page(&machine, PAGE).0 == "200");

    let (_, html) = page(&machine, PAGE);
    assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"), "{html}");
    for part in ["The Comedy of Errors", "<td>William Shakespeare</td>", "Reviews served by: "] {
        assert!(html.contains(part), "{part}: {html}");
    }
    assert!((3_000..8_000).contains(&html.len()), "{} bytes", html.len());
    // While pods are replaced calls may fail. A client that is late reads both writes at once, on a
    // busy machine nearly always; an answer of one write is never read twice.
    let two_reads = || {
        let (failed, reads) = details(&machine);
        failed == 0 && reads > 1.0
    };
    machine.wait("two writes are two reads", READY_TIMEOUT, two_reads);
    machine.run(&["apply", &file("bookinfo-steps/old.yaml")]);
    machine.wait("they are in the old release too", READY_TIMEOUT, two_reads);

    machine.run(&["apply", &file("bookinfo-steps/mesh-on.yaml")]);
    machine.wait_until_meshed();
    machine.run(&["apply", &file("bookinfo-steps/policies.yaml")]);
    machine
        .wait("the policies are in force", SETTLE_TIMEOUT, || page(&machine, DETAILS).0 != "200");
    let (status, html) = page(&machine, PAGE);
    assert_eq!(status, "200", "{html}");
    let front = machine.load(CLIENT, &format!("load {PAGE} --rate 50/s -c 10 --duration 2s"));
    let front = front.http();
    assert_eq!((front.failed, front.connections_lost_idle), (0, 0), "{front:?}");
    machine.down();
}
