//! Rotation, failures and revocation, in simulated time with a scripted authority.

mod clocks;

use std::sync::Mutex;
use std::sync::atomic::AtomicI64;

use ambit_tls::{Authority as Signer, AuthorityBundle};
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::authority::{Authority, SignError};
use super::*;
use crate::learned::{Learned, Successor};
use crate::metrics::Metrics;

/// An authority that answers as the test wants, and remembers when it was asked.
struct Scripted {
    bundle: Mutex<AuthorityBundle>,
    ttl: Duration,
    clock: Clock,
    start: Instant,
    asked: Mutex<Vec<(Identity, Duration)>>,
    is_down: Mutex<bool>,
}

impl Scripted {
    /// When it was asked for an identity, counted from the start.
    fn asked(&self, identity: &Identity) -> Vec<Duration> {
        let asked = self.asked.lock().expect("unbroken");
        asked.iter().filter(|(who, _)| who == identity).map(|(_, when)| *when).collect()
    }

    fn set_down(&self, is_down: bool) {
        *self.is_down.lock().expect("unbroken") = is_down;
    }
}

impl Authority for Arc<Scripted> {
    fn sign(
        &self,
        identity: &Identity,
        csr_pem: String,
    ) -> BoxFuture<'static, Result<Vec<String>, SignError>> {
        let (scripted, identity) = (self.clone(), identity.clone());
        Box::pin(async move {
            let when = scripted.start.elapsed();
            scripted.asked.lock().expect("unbroken").push((identity.clone(), when));
            if *scripted.is_down.lock().expect("unbroken") {
                let message = "try later".to_owned();
                return Err(SignError::Refused { code: tonic::Code::Unavailable, message });
            }
            let bundle = scripted.bundle.lock().expect("unbroken");
            let signed = bundle.sign(&csr_pem, &identity, scripted.ttl, scripted.clock.now());
            Ok(signed.expect("the request is right"))
        })
    }
}

/// How many seconds a clock is ahead of the time of the test.
#[derive(Clone, Default)]
struct Ahead(Arc<AtomicI64>);

impl Ahead {
    fn set(&self, seconds: i64) {
        self.0.store(seconds, Ordering::Relaxed);
    }

    fn clock(&self, epoch: SystemTime, start: Instant) -> Clock {
        let ahead = self.0.clone();
        Clock::of(move || {
            let seconds = ahead.load(Ordering::Relaxed);
            let by = Duration::from_secs(seconds.unsigned_abs());
            let now = epoch + start.elapsed();
            if seconds < 0 { now - by } else { now + by }
        })
    }
}

struct World {
    /// The clocks of the proxy and of the authority.
    proxy: Ahead,
    signer: Ahead,
    certificates: Certificates,
    authority: Arc<Scripted>,
    said: mpsc::Receiver<Learned>,
    crl_path: std::path::PathBuf,
    keeper: Option<Keeper<Arc<Scripted>>>,
}

impl World {
    /// A keeper in simulated time; it works once [`World::start`] was called.
    fn new(name: &str, ttl: Duration) -> Self {
        let start = Instant::now();
        let epoch = SystemTime::now();
        let (proxy, signer) = (Ahead::default(), Ahead::default());
        let root = Signer::generate("cluster.local", epoch).expect("a root");
        let authority = Arc::new(Scripted {
            bundle: Mutex::new(AuthorityBundle::new(root)),
            ttl,
            clock: signer.clock(epoch, start),
            start,
            asked: Mutex::default(),
            is_down: Mutex::new(false),
        });
        let (certificates, asks) = Certificates::new(proxy.clock(epoch, start));
        let (successor, said) = Successor::new();
        let crl_path = std::env::temp_dir().join(format!("ambit-{name}-{}", std::process::id()));
        let metrics = Metrics::new("ambit-proxy");
        let keeper = Keeper::new(
            certificates.clone(),
            asks,
            authority.clone(),
            successor,
            metrics,
            crl_path.clone(),
        );
        Self { proxy, signer, certificates, authority, said, crl_path, keeper: Some(keeper) }
    }

    fn start(mut self) -> Self {
        tokio::spawn(self.keeper.take().expect("not started yet").run());
        self
    }

    /// What a successor received since, in one word each.
    fn said(&mut self) -> Vec<&'static str> {
        let mut words = Vec::new();
        while let Ok(learned) = self.said.try_recv() {
            words.push(match learned {
                Learned::Certificate(_) => "certificate",
                Learned::Forgotten(_) => "forget",
                Learned::Revocations(_) => "revocations",
                Learned::View { .. } => panic!("{learned:?}"),
            });
        }
        words
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Most tests wrote none.
        drop(std::fs::remove_file(&self.crl_path));
    }
}

fn identity(name: &str) -> Identity {
    Identity::new("cluster.local", "shop", name)
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn certificates_are_renewed_at_half_life() {
    let mut world = World::new("half-life", MINUTE).start();
    world.certificates.hold(identity("cart")).await;
    let first = world.certificates.of(&identity("cart")).await.expect("obtained");
    let mut last = first.certificate.serial().clone();
    let mut changes = 0;
    for _ in 0..300 {
        pass(1).await;
        let now = world.certificates.cached(&identity("cart")).expect("always in date");
        if *now.certificate.serial() != last {
            changes += 1;
            last = now.certificate.serial().clone();
        }
    }
    let asked = world.authority.asked(&identity("cart"));
    assert_eq!(asked.len(), changes + 1);
    for pair in asked.windows(2) {
        // Half of a minute, up to a fifth of it earlier; of 59 s at worst, as the end of a
        // certificate is a whole second.
        let gap = (pair[1] - pair[0]).as_secs_f64();
        assert!((23.6..=30.1).contains(&gap), "{gap}");
    }
    assert!(world.said().iter().all(|word| *word == "certificate"));
}

#[tokio::test(start_paused = true)]
async fn pods_of_one_identity_share_one_request() {
    let mut world = World::new("share", MINUTE).start();
    for _ in 0..3 {
        world.certificates.hold(identity("cart")).await;
    }
    world.certificates.hold(identity("bank")).await;
    world.certificates.of(&identity("cart")).await.expect("obtained");
    world.certificates.of(&identity("bank")).await.expect("obtained");
    assert_eq!(world.authority.asked(&identity("cart")).len(), 1);
    for _ in 0..2 {
        world.certificates.release(identity("cart")).await;
    }
    pass(1).await;
    assert!(world.certificates.cached(&identity("cart")).is_some());
    world.certificates.release(identity("cart")).await;
    pass(1).await;
    assert!(world.certificates.cached(&identity("cart")).is_none());
    assert_eq!(world.said(), ["certificate", "certificate", "forget"]);
    assert_eq!(world.certificates.list().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn failures_are_tried_again_with_growing_waits() {
    let world = World::new("failures", MINUTE).start();
    world.authority.set_down(true);
    world.certificates.hold(identity("cart")).await;
    let error = world.certificates.of(&identity("cart")).await.err().expect("refused");
    assert!(matches!(error, CertificateError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("try later"), "{error}");
    pass(1800).await;
    let asked = world.authority.asked(&identity("cart"));
    let mut expected = 0.25_f64;
    for pair in asked.windows(2) {
        let gap = (pair[1] - pair[0]).as_secs_f64();
        assert!((0.79 * expected..=1.01 * expected).contains(&gap), "{gap} {expected}");
        expected = (2.0 * expected).min(150.0);
    }
    assert!(expected >= 150.0, "the cap was reached");
    world.authority.set_down(false);
    pass(151).await;
    world.certificates.of(&identity("cart")).await.expect("obtained in the end");
    assert!(world.certificates.list()[0].failure.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_expired_certificate_is_not_handed_out() {
    let world = World::new("expired", MINUTE).start();
    world.certificates.hold(identity("cart")).await;
    world.certificates.of(&identity("cart")).await.expect("obtained");
    world.authority.set_down(true);
    pass(58).await;
    assert!(world.certificates.cached(&identity("cart")).is_some(), "in date to the end");
    pass(3).await;
    assert!(world.certificates.cached(&identity("cart")).is_none());
    let tried = world.authority.asked(&identity("cart")).len();
    assert!(tried > 5, "{tried}: while in date, it is tried more often than every 150 s");
    world.authority.set_down(false);
    pass(151).await;
    assert!(world.certificates.cached(&identity("cart")).is_some());
}

#[tokio::test(start_paused = true)]
async fn nobody_asks_for_an_identity_of_no_pod() {
    let world = World::new("nobody", MINUTE).start();
    let error = world.certificates.of(&identity("ghost")).await.err().expect("refused");
    assert!(matches!(error, CertificateError::NotEnrolled(_)), "{error}");
    assert!(world.authority.asked(&identity("ghost")).is_empty());
}

#[tokio::test(start_paused = true)]
async fn handed_certificates_are_used_until_their_half_life() {
    let before = World::new("handed-before", MINUTE).start();
    before.certificates.hold(identity("cart")).await;
    let old = before.certificates.of(&identity("cart")).await.expect("obtained");
    let bytes = old.certificate.to_bytes();
    let mut world = World::new("handed", MINUTE);
    let keeper = world.keeper.as_mut().expect("not started yet");
    keeper.hand(WorkloadCertificate::from_bytes(&bytes).expect("whole"));
    let world = world.start();
    world.authority.set_down(true);
    world.certificates.hold(identity("cart")).await;
    let now = world.certificates.of(&identity("cart")).await.expect("handed");
    assert_eq!(now.certificate.serial(), old.certificate.serial());
    pass(20).await;
    assert!(world.authority.asked(&identity("cart")).is_empty());
    pass(20).await;
    assert!(!world.authority.asked(&identity("cart")).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_revocation_list_comes_into_force_when_its_file_changes() {
    let mut world = World::new("crl", MINUTE * 60).start();
    world.certificates.hold(identity("cart")).await;
    let credentials = world.certificates.of(&identity("cart")).await.expect("obtained");
    let mut trust = world.certificates.trust_changed();
    trust.mark_unchanged();
    let revoke = |world: &World, serials: &[ambit_tls::certificate::Serial]| {
        let now = world.authority.clock.now();
        let bundle = world.authority.bundle.lock().expect("unbroken");
        bundle.revoke(serials, now, MINUTE * 60).expect("signed")
    };
    // Of a certificate that is not its own, so that its own stays in use.
    let serial: ambit_tls::certificate::Serial = "0a0b".parse().expect("a serial");
    std::fs::write(&world.crl_path, revoke(&world, std::slice::from_ref(&serial)))
        .expect("written");
    pass(1).await;
    assert_eq!(world.certificates.revocations().len(), 1);
    assert!(trust.has_changed().expect("alive"));
    let renewed = world.certificates.cached(&identity("cart")).expect("in date");
    assert!(!Arc::ptr_eq(&renewed, &credentials), "acceptors know the list");
    assert_eq!(world.said(), ["certificate", "revocations"]);
    // Damage and a vanished file leave it in force; an empty file withdraws it.
    std::fs::write(&world.crl_path, "damage").expect("written");
    pass(1).await;
    assert_eq!(world.certificates.revocations().len(), 1);
    std::fs::remove_file(&world.crl_path).expect("removed");
    pass(1).await;
    assert_eq!(world.certificates.revocations().len(), 1);
    std::fs::write(&world.crl_path, "\n").expect("written");
    pass(1).await;
    assert_eq!(world.certificates.revocations().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_revoked_certificate_of_its_own_is_replaced_at_once() {
    let world = World::new("own-revoked", MINUTE * 60).start();
    world.certificates.hold(identity("cart")).await;
    world.certificates.hold(identity("bank")).await;
    let revoked = world.certificates.of(&identity("cart")).await.expect("obtained");
    let other = world.certificates.of(&identity("bank")).await.expect("obtained");
    let revoke = |serial: &ambit_tls::certificate::Serial| {
        let bundle = world.authority.bundle.lock().expect("unbroken");
        let now = world.authority.clock.now();
        let pem = bundle.revoke(std::slice::from_ref(serial), now, MINUTE * 60).expect("signed");
        std::fs::write(&world.crl_path, pem).expect("written");
    };
    // While the authority is away nobody is handed what is revoked, and the list says why.
    world.authority.set_down(true);
    revoke(revoked.certificate.serial());
    pass(1).await;
    assert!(world.certificates.cached(&identity("cart")).is_none());
    let listed = world.certificates.list().into_iter().find(|it| it.identity == identity("cart"));
    let listed = listed.expect("listed");
    assert!(listed.credentials.expect("there is one").is_revoked && listed.failure.is_some());
    pass(20).await;
    let tried = world.authority.asked(&identity("cart")).len();
    assert!((5..=9).contains(&tried), "{tried}: with growing waits");
    world.authority.set_down(false);
    pass(40).await;
    let first = world.certificates.of(&identity("cart")).await.expect("obtained");
    assert_ne!(first.certificate.serial(), revoked.certificate.serial());
    assert!(world.certificates.list().iter().all(|it| it.failure.is_none()));
    // With the authority there it takes as long as it takes to see the list.
    revoke(first.certificate.serial());
    pass(1).await;
    let second = world.certificates.cached(&identity("cart")).expect("obtained");
    assert_ne!(second.certificate.serial(), first.certificate.serial());
    let same = world.certificates.cached(&identity("bank")).expect("in date");
    assert_eq!(same.certificate.serial(), other.certificate.serial());
    assert_eq!(world.authority.asked(&identity("bank")).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_handed_certificate_that_is_revoked_is_replaced_at_once() {
    let mut world = World::new("handed-revoked", MINUTE * 60);
    let key = ambit_tls::WorkloadKey::generate().expect("a key");
    let csr = key.csr_pem(&identity("cart")).expect("a request");
    let chain = world.authority.sign(&identity("cart"), csr).await.expect("signed");
    let now = world.authority.clock.now();
    let old = WorkloadCertificate::new(key, &chain, &identity("cart"), now).expect("whole");
    let crl = {
        let bundle = world.authority.bundle.lock().expect("unbroken");
        bundle.revoke(std::slice::from_ref(old.serial()), now, MINUTE * 60).expect("signed")
    };
    let keeper = world.keeper.as_mut().expect("not started yet");
    keeper.hand(old.clone());
    keeper.hand_revocations(crl);
    let world = world.start();
    world.certificates.hold(identity("cart")).await;
    let now = world.certificates.of(&identity("cart")).await.expect("obtained");
    assert_ne!(now.certificate.serial(), old.serial());
}

#[tokio::test(start_paused = true)]
async fn no_two_credentials_have_one_generation() {
    let world = World::new("generation", MINUTE).start();
    world.certificates.hold(identity("cart")).await;
    let certificate =
        world.certificates.of(&identity("cart")).await.expect("obtained").certificate.clone();
    let none = Arc::new(RevocationList::none());
    // Each is gone before the next is made, which then lies at its address.
    let generations: std::collections::BTreeSet<u128> = (0..64)
        .map(|_| world.certificates.generation(&Credentials::new(certificate.clone(), &none)))
        .collect();
    assert_eq!(generations.len(), 64);
}

#[tokio::test(start_paused = true)]
async fn a_handed_revocation_list_is_in_force_before_the_first_handshake() {
    let mut world = World::new("crl-handed", MINUTE * 60);
    let now = world.authority.clock.now();
    let serial = "0a0b".parse().expect("a serial");
    let crl = {
        let bundle = world.authority.bundle.lock().expect("unbroken");
        bundle.revoke(&[serial], now, MINUTE * 60).expect("signed")
    };
    world.keeper.as_mut().expect("not started yet").hand_revocations(crl);
    let world = world.start();
    world.certificates.hold(identity("cart")).await;
    world.certificates.of(&identity("cart")).await.expect("obtained");
    assert_eq!(world.certificates.revocations().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn another_root_is_news_for_live_connections() {
    let world = World::new("roots", MINUTE).start();
    world.certificates.hold(identity("cart")).await;
    world.certificates.of(&identity("cart")).await.expect("obtained");
    let mut trust = world.certificates.trust_changed();
    trust.mark_unchanged();
    pass(31).await;
    assert!(!trust.has_changed().expect("alive"), "a renewal alone changes no trust");
    let other = Signer::generate("cluster.local", world.authority.clock.now()).expect("a root");
    let roots = other.roots_pem();
    world.authority.bundle.lock().expect("unbroken").trust(&roots).expect("trusted");
    pass(31).await;
    assert!(trust.has_changed().expect("alive"));
}
