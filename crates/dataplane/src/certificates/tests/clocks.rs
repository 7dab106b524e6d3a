//! Clocks that differ: what is requested, used and reported, and how it ends.

use super::*;

const HOUR_S: i64 = 3600;
const HOUR: Duration = Duration::from_secs(3600);

/// The worst gaps that are tried, each way.
const GAPS_S: [i64; 4] = [HOUR_S, 25 * HOUR_S, -HOUR_S, -25 * HOUR_S];

fn serial(world: &World) -> Option<String> {
    let credentials = world.certificates.cached(&identity("cart"))?;
    Some(credentials.certificate.serial().to_string())
}

fn failure(world: &World) -> Option<String> {
    world.certificates.list()[0].failure.as_ref().map(ToString::to_string)
}

/// How the two clocks differ, as seconds that each is ahead.
async fn check_gap(world: &World, proxy: i64, signer: i64) {
    let asked_before = world.authority.asked(&identity("cart")).len();
    let own = serial(world).expect("in date before");
    world.proxy.set(proxy);
    world.signer.set(signer);
    // Longer than half of the life, so that a renewal falls into the gap.
    pass(HOUR.as_secs() * 3 / 4).await;
    let asked = world.authority.asked(&identity("cart")).len() - asked_before;
    // One at a retry's longest wait, and what growing waits add. The authority signs no more than
    // 64 for one holder at a time.
    let waits = HOUR.as_secs() * 3 / 4 / 150;
    assert!(asked <= 14 + waits as usize * 5 / 4, "{proxy} {signer}: {asked} requests");
    if proxy == 0 && failure(world).is_some() {
        assert_eq!(serial(world), Some(own), "{signer}: what is in date stays");
    }
    // By any clock, what is handed out has not ended.
    let handed = world.certificates.cached(&identity("cart"));
    let now = world.certificates.now();
    assert!(handed.is_none_or(|it| !it.certificate.is_expired(now)), "{proxy} {signer}");
}

async fn check_recovery(world: &World, context: &str) {
    world.proxy.set(0);
    world.signer.set(0);
    pass(200).await;
    let (at, credentials) =
        (world.certificates.now(), world.certificates.cached(&identity("cart")));
    let certificate = credentials.expect(context).certificate.clone();
    assert!(certificate.not_before() <= at && at < certificate.not_after(), "{context}");
    assert_eq!(failure(world), None, "{context}");
}

#[tokio::test(start_paused = true)]
async fn clocks_that_differ_cost_few_requests_and_end_with_the_gap() {
    for gap in GAPS_S {
        for (proxy, signer) in [(gap, 0), (0, gap)] {
            let name = format!("gap-{proxy}-{signer}");
            let world = World::new(&name, HOUR).start();
            world.certificates.hold(identity("cart")).await;
            world.certificates.of(&identity("cart")).await.expect("obtained");
            check_gap(&world, proxy, signer).await;
            check_recovery(&world, &name).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_certificate_of_tomorrow_replaces_none_of_today_and_the_reason_is_the_clock() {
    let world = World::new("tomorrow", HOUR * 2).start();
    world.certificates.hold(identity("cart")).await;
    world.certificates.of(&identity("cart")).await.expect("obtained");
    let own = serial(&world);
    world.signer.set(25 * HOUR_S);
    pass(3600 + 60).await;
    assert_eq!(serial(&world), own);
    let reason = failure(&world).expect("a reason");
    assert!(reason.contains("clock of this node or of the control plane is wrong"), "{reason}");
    world.signer.set(0);
    pass(300).await;
    assert_ne!(serial(&world), own, "asked again soon, not when tomorrow comes");
    assert_eq!(failure(&world), None);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_starts_in_the_future_asks_again_when_its_clock_is_right() {
    for ahead in [HOUR_S, 25 * HOUR_S, 10 * 365 * 24 * HOUR_S] {
        let world = World::new("future", HOUR).start();
        world.proxy.set(ahead);
        // By its clock the certificate of control's server has expired: nothing can be asked.
        world.authority.set_down(true);
        world.certificates.hold(identity("cart")).await;
        pass(600).await;
        assert!(serial(&world).is_none());
        world.proxy.set(0);
        world.authority.set_down(false);
        pass(31).await;
        assert!(serial(&world).is_some(), "{ahead}: the wait of the wrong clock is over");
    }
}

#[tokio::test(start_paused = true)]
async fn without_another_a_certificate_of_tomorrow_is_used() {
    // This node's clock is behind: peers whose clocks are right take its certificate.
    let world = World::new("behind", HOUR * 24).start();
    world.proxy.set(-HOUR_S);
    world.certificates.hold(identity("cart")).await;
    let credentials = world.certificates.of(&identity("cart")).await.expect("obtained");
    assert!(credentials.certificate.not_before() > world.certificates.now());
    assert!(failure(&world).expect("a reason").contains("clock"));
    pass(900).await;
    let asked = world.authority.asked(&identity("cart")).len();
    assert!(asked < 20, "{asked}");
    assert_eq!(serial(&world), Some(credentials.certificate.serial().to_string()));
    check_recovery(&world, "behind").await;
}

#[tokio::test(start_paused = true)]
async fn what_failed_is_asked_for_as_soon_as_the_control_plane_answers() {
    let world = World::new("answers", HOUR).start();
    world.authority.set_down(true);
    world.certificates.hold(identity("cart")).await;
    // The waits are long by now.
    pass(600).await;
    let asked = world.authority.asked(&identity("cart")).len();
    world.authority.set_down(false);
    world.certificates.retry();
    pass(1).await;
    assert_eq!(world.authority.asked(&identity("cart")).len(), asked + 1);
    assert!(serial(&world).is_some());
    world.certificates.retry();
    pass(1).await;
    assert_eq!(world.authority.asked(&identity("cart")).len(), asked + 1, "nothing failed");
    // An answer that does not fit this clock was still signed.
    world.signer.set(HOUR_S);
    pass(HOUR.as_secs() / 2 + 60).await;
    assert!(failure(&world).is_some());
    let asked = world.authority.asked(&identity("cart")).len();
    for _ in 0..20 {
        world.certificates.retry();
        pass(1).await;
    }
    assert!(world.authority.asked(&identity("cart")).len() <= asked + 2, "the waits go on");
}

#[tokio::test(start_paused = true)]
async fn a_long_gap_leaves_room_on_the_authoritys_account() {
    // Of a day's certificates the authority signs 64 for one holder, and all of them live on.
    for (proxy, signer) in [(0, 25 * HOUR_S), (-HOUR_S, 0)] {
        let world = World::new("long-gap", HOUR * 24).start();
        world.proxy.set(proxy);
        world.signer.set(signer);
        world.certificates.hold(identity("cart")).await;
        pass(HOUR.as_secs() * 23).await;
        let asked = world.authority.asked(&identity("cart")).len();
        assert!(asked < 48, "{proxy} {signer}: {asked}");
        // The wait that is left is over when the control plane answers anew.
        world.proxy.set(0);
        world.signer.set(0);
        pass(200).await;
        world.certificates.retry();
        pass(1).await;
        assert_eq!(failure(&world), None, "{proxy} {signer}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_has_just_begun_is_shortened_when_the_control_plane_answers() {
    let world = World::new("short-wait", HOUR * 24).start();
    world.signer.set(25 * HOUR_S);
    world.certificates.hold(identity("cart")).await;
    pass(HOUR.as_secs() * 23).await;
    // Right after an attempt: the next one would be up to an hour away.
    let asked = || world.authority.asked(&identity("cart")).len();
    let before = asked();
    for _ in 0..HOUR.as_secs() {
        if asked() > before {
            break;
        }
        pass(1).await;
    }
    assert!(asked() > before, "it asks at least once an hour");
    world.signer.set(0);
    pass(10).await;
    world.certificates.retry();
    pass(150).await;
    assert_eq!(failure(&world), None);
}

#[tokio::test(start_paused = true)]
async fn a_certificate_of_tomorrow_that_is_handed_over_is_no_reason_to_wait_for_tomorrow() {
    let mut world = World::new("handed-tomorrow", HOUR * 24);
    world.signer.set(25 * HOUR_S);
    let key = ambit_tls::WorkloadKey::generate().expect("a key");
    let csr = key.csr_pem(&identity("cart")).expect("a request");
    let chain = world.authority.sign(&identity("cart"), csr).await.expect("signed");
    let now = world.certificates.now();
    let handed = WorkloadCertificate::new(key, &chain, &identity("cart"), now).expect("whole");
    world.keeper.as_mut().expect("not started yet").hand(handed.clone());
    world.signer.set(0);
    let world = world.start();
    world.certificates.hold(identity("cart")).await;
    pass(1).await;
    assert_ne!(serial(&world).expect("one"), handed.serial().to_string());
    assert_eq!(failure(&world), None);
}
