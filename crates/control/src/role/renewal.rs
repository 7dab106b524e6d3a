//! The server certificate that proxies see, always one that is in date.
//!
//! It is renewed at half of its life and whenever the authority changes. The end of its life is one
//! of the wall clock, which a suspended machine or a corrected clock moves at once and a sleep does
//! not notice: so the clock is looked at again and again.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambit_net::drain::Guard;
use ambit_tls::service::ServiceAcceptor;
use ambit_words::error_chain;
use arc_swap::ArcSwap;

use super::RunError;
use crate::ca::{CertificateAuthority, SERVER_CERT_TTL};

/// How often the clock is looked at, and how long an expired certificate may be served at most.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// How far a clock may be set back before a certificate that was signed later is renewed. Proxies
/// refuse it only when it is dated two minutes ahead of theirs.
const SET_BACK_MAX: Duration = Duration::from_secs(60);

/// Keeps a server certificate in date.
pub(super) struct Renewal<C> {
    pub(super) authority: Arc<CertificateAuthority>,
    /// What it is for.
    pub(super) names: Vec<String>,
    /// What time it is.
    pub(super) clock: C,
}

impl<C: Fn() -> SystemTime + Send + 'static> Renewal<C> {
    /// The first certificate; in its place there is always the newest one.
    pub(super) fn start(self, guard: &Guard) -> Result<Arc<ArcSwap<ServiceAcceptor>>, RunError> {
        let signed_at = (self.clock)();
        let acceptor = Arc::new(ArcSwap::from_pointee(self.sign(signed_at)?));
        guard.spawn(self.run(acceptor.clone(), signed_at, guard.clone()));
        Ok(acceptor)
    }

    fn sign(&self, now: SystemTime) -> Result<ServiceAcceptor, RunError> {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let certificate = self.authority.issue_server(&names, now)?;
        Ok(ServiceAcceptor::new(&certificate, None)?)
    }

    async fn run(
        self,
        acceptor: Arc<ArcSwap<ServiceAcceptor>>,
        mut signed_at: SystemTime,
        mut guard: Guard,
    ) {
        let mut changes = self.authority.changes();
        loop {
            let has_changed = tokio::select! {
                _ = guard.draining() => return,
                changed = changes.changed() => match changed {
                    Ok(()) => true,
                    Err(_) => return,
                },
                () = tokio::time::sleep(LOOK_INTERVAL) => false,
            };
            let now = (self.clock)();
            if !has_changed && !is_due(signed_at, now) {
                continue;
            }
            match self.sign(now) {
                Ok(renewed) => {
                    acceptor.store(Arc::new(renewed));
                    signed_at = now;
                }
                Err(error) => {
                    tracing::error!(
                        error = error_chain(&error),
                        "the server certificate is not renewed"
                    );
                }
            }
        }
    }
}

/// Whether a certificate of then is to be renewed now.
fn is_due(signed_at: SystemTime, now: SystemTime) -> bool {
    match now.duration_since(signed_at) {
        Ok(age) => age >= SERVER_CERT_TTL / 2,
        Err(ahead) => ahead.duration() > SET_BACK_MAX,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use ambit_net::drain::Drain;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_jumps_is_noticed_at_the_next_look() {
        let name = format!("ambit-renewal-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let start = SystemTime::now();
        let authority = CertificateAuthority::open(&directory, None, "cluster.local", start);
        let time = Arc::new(Mutex::new(start));
        let set = |now: SystemTime| *time.lock().unwrap() = now;
        let clock = {
            let time = time.clone();
            move || *time.lock().unwrap()
        };
        let names = vec!["istiod".to_owned()];
        let renewal = Renewal { authority: Arc::new(authority.unwrap()), names, clock };
        let drain = Drain::new();
        let acceptor = renewal.start(&drain.guard()).unwrap();
        let mut known = acceptor.load_full();
        let mut is_renewed_within_a_look = async || {
            tokio::time::sleep(LOOK_INTERVAL + Duration::from_secs(1)).await;
            let before = std::mem::replace(&mut known, acceptor.load_full());
            !Arc::ptr_eq(&before, &known)
        };
        assert!(!is_renewed_within_a_look().await);
        set(start + SERVER_CERT_TTL / 2 - Duration::from_secs(1));
        assert!(!is_renewed_within_a_look().await, "not yet half of its life");
        set(start + Duration::from_secs(86_400 + 1));
        assert!(is_renewed_within_a_look().await, "a day was slept through");
        assert!(!is_renewed_within_a_look().await, "once");
        set(start);
        assert!(is_renewed_within_a_look().await, "it would be of tomorrow");
        set(start - SET_BACK_MAX);
        assert!(!is_renewed_within_a_look().await, "a correction");
        drain.start(None);
        drain.finished().await;
        std::fs::remove_dir_all(directory).unwrap();
    }
}
