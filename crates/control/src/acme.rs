//! The conversation with a directory that issues certificates (ACME, RFC 8555).
//!
//! An order is made in two steps: [`Account::order`] says what a gateway must answer, and
//! [`Order::finish`] has the directory look. In between the caller makes the answers known. Nothing
//! here knows Gateways or Secrets; when something is tried again is said in [`renewal`]. Keys are
//! never logged, and errors hold none. In a cluster control itself is the caller; on one machine,
//! whose networks have no way out of their own, it is the user's command.

pub mod renewal;
mod web;

use std::time::{Duration, SystemTime};

use ambit_model::http::gateway::Challenge;
use ambit_tls::WorkloadKey;
use ambit_tls::certificate::CertificateSummary;
use ambit_tls::edge::EdgeCertificate;
use ambit_tls::key::KeyError;
use ambit_tls::service::ServerCertificate;
use ambit_words::error_chain;
use instant_acme::{
    AuthorizationStatus, ChallengeType, Identifier, NewAccount, NewOrder, OrderStatus, Problem,
    RetryPolicy,
};
use serde::Deserialize;
use zeroize::Zeroizing;

pub use self::web::Way;
use self::web::Web;

/// How the state of an order is asked for, until it is known.
const POLLING: RetryPolicy =
    RetryPolicy::new().initial_delay(Duration::from_millis(500)).timeout(Duration::from_secs(60));
/// Longest token that is answered with; 43 letters have the bits that are asked for.
const TOKEN_BYTES_MAX: usize = 256;
/// How much of an error is told.
const TOLD_CHARS: usize = 400;
/// The error of a directory that has had enough (RFC 8555, 6.7).
const RATE_LIMITED: &str = "urn:ietf:params:acme:error:rateLimited";
/// The error of a directory that does not know an account any more.
const NO_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum AcmeError {
    /// The directory cannot be asked, or says no.
    #[error("{doing} failed")]
    Directory {
        /// What it was asked for.
        doing: &'static str,
        /// Why not.
        source: instant_acme::Error,
    },
    /// It proves this host in other ways alone.
    #[error("the directory does not offer HTTP-01 for {0}")]
    NoHttp01(String),
    /// It has looked, and does not believe.
    #[error("{host} is not proven: {what}")]
    NotProven {
        /// The host.
        host: String,
        /// What the directory says.
        what: String,
    },
    /// The account that is kept cannot be read.
    #[error("the account in its Secret cannot be read; delete the Secret to make another one")]
    Account,
    /// It asks for a proof of something else than was ordered, or in no form of a proof.
    #[error("it asks for a proof that was not ordered, for {0:?}")]
    Strange(String),
    /// No key.
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl AcmeError {
    /// Whether the directory asks to be left alone for a while.
    pub fn is_rate_limit(&self) -> bool {
        self.is(RATE_LIMITED)
    }

    /// Whether it does not know the account, which was made at another time.
    pub fn is_no_account(&self) -> bool {
        self.is(NO_ACCOUNT)
    }

    fn is(&self, kind: &str) -> bool {
        let Self::Directory { source: instant_acme::Error::Api(problem), .. } = self else {
            return false;
        };
        problem.r#type.as_deref() == Some(kind)
    }
}

fn failed(doing: &'static str) -> impl Fn(instant_acme::Error) -> AcmeError {
    move |source| {
        // What cannot be read is not told: it may be the answer of a server that is no directory.
        let source = match source {
            instant_acme::Error::Json(_) => instant_acme::Error::Str("its answer is not ACME's"),
            source => source,
        };
        AcmeError::Directory { doing, source }
    }
}

/// Whether a text has the form of a token (RFC 8555, 8.3), and no more than one ever has.
fn is_token(text: &str) -> bool {
    let is_plain = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'_');
    (1..=TOKEN_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

/// An error in one line: what of it are a directory's words commands no terminal, and is cut.
pub fn told(error: &dyn std::error::Error) -> String {
    let plain = |it: char| if it.is_control() { ' ' } else { it };
    error_chain(error).chars().map(plain).take(TOLD_CHARS).collect()
}

/// From when to when a pair is good, if it is whole and for all of these hosts.
pub fn good_until(pair: &ServerCertificate, hosts: &[String]) -> Option<(SystemTime, SystemTime)> {
    let certificate = EdgeCertificate::new("acme".into(), pair).ok()?;
    let names: Vec<&str> = certificate.dns_names().collect();
    let summary = CertificateSummary::from_pem(&pair.chain_pem).ok()?;
    let is_for_all = hosts.iter().all(|host| names.contains(&host.as_str()));
    is_for_all.then_some((summary.not_before, summary.not_after))
}

/// An account at a directory.
pub struct Account(instant_acme::Account);

/// What a kept account says besides its key.
#[derive(Deserialize)]
struct Kept {
    directory: Option<String>,
}

impl Account {
    /// Whether an account that was kept is one at this directory.
    pub fn is_at(kept: &str, directory: &str) -> bool {
        let kept = serde_json::from_str::<Kept>(kept).ok().and_then(|it| it.directory);
        kept.as_deref() == Some(directory)
    }

    /// The account that was kept.
    ///
    /// # Errors
    /// What was kept is none, or the directory cannot be read.
    pub async fn known(way: Way, kept: &str) -> Result<Self, AcmeError> {
        let credentials = serde_json::from_str(kept).map_err(|_| AcmeError::Account)?;
        let builder = instant_acme::Account::builder_with_http(Box::new(Web::new(way)));
        let account = builder.from_credentials(credentials).await;
        account.map(Self).map_err(failed("reading the directory"))
    }

    /// A new account, and what is to be kept of it: its key is in there.
    ///
    /// # Errors
    /// The directory makes none.
    pub async fn new(
        way: Way,
        directory: &str,
        email: Option<&str>,
    ) -> Result<(Self, Zeroizing<String>), AcmeError> {
        let contact = email.map(|email| format!("mailto:{email}"));
        let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
        let asked = NewAccount {
            contact: &contact,
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let builder = instant_acme::Account::builder_with_http(Box::new(Web::new(way)));
        let made = builder.create(&asked, directory.to_owned(), None).await;
        let (account, credentials) = made.map_err(failed("making an account"))?;
        let kept = serde_json::to_string(&credentials).map_err(|_| AcmeError::Account)?;
        Ok((Self(account), Zeroizing::new(kept)))
    }

    /// Orders a certificate for these hosts.
    ///
    /// # Errors
    /// The directory says no, or asks for a proof that cannot be given.
    pub async fn order(&self, hosts: &[String]) -> Result<Order, AcmeError> {
        let asked: Vec<Identifier> = hosts.iter().cloned().map(Identifier::Dns).collect();
        let order = self.0.new_order(&NewOrder::new(&asked)).await;
        let mut order = order.map_err(failed("ordering a certificate"))?;
        let mut challenges = Vec::new();
        let mut all = order.authorizations();
        while let Some(authorization) = all.next().await {
            let mut authorization = authorization.map_err(failed("reading an order"))?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            let host = authorization.identifier().to_string();
            let challenge = authorization.challenge(ChallengeType::Http01);
            let challenge = challenge.ok_or_else(|| AcmeError::NoHttp01(host.clone()))?;
            // What it says becomes lines of an annotation; no other host may be proven by them.
            let is_asked = hosts.iter().any(|it| it.eq_ignore_ascii_case(&host));
            if !is_asked || !is_token(&challenge.token) || challenges.len() == hosts.len() {
                return Err(AcmeError::Strange(host));
            }
            challenges.push(Challenge {
                host: host.to_ascii_lowercase().into(),
                token: challenge.token.as_str().into(),
                answer: challenge.key_authorization().as_str().into(),
            });
        }
        Ok(Order { order, hosts: hosts.to_vec(), challenges })
    }
}

/// An order that is under way.
pub struct Order {
    order: instant_acme::Order,
    hosts: Vec<String>,
    challenges: Vec<Challenge>,
}

impl Order {
    /// What must be answered before it is finished; nothing for hosts that the directory still
    /// believes from before.
    pub fn challenges(&self) -> &[Challenge] {
        &self.challenges
    }

    /// Has the directory look, and issue.
    ///
    /// # Errors
    /// It does not believe, or does not issue.
    pub async fn finish(mut self) -> Result<ServerCertificate, AcmeError> {
        let mut all = self.order.authorizations();
        while let Some(authorization) = all.next().await {
            let mut authorization = authorization.map_err(failed("reading an order"))?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            let host = authorization.identifier().to_string();
            let challenge = authorization.challenge(ChallengeType::Http01);
            let mut challenge = challenge.ok_or(AcmeError::NoHttp01(host))?;
            challenge.set_ready().await.map_err(failed("asking for a validation"))?;
        }
        match self.order.poll_ready(&POLLING).await {
            Ok(OrderStatus::Ready) => {}
            judged => return Err(self.why(judged.err()).await),
        }
        let key = WorkloadKey::generate()?;
        let request = key.server_csr_der(&self.hosts)?;
        self.order.finalize_csr(&request).await.map_err(failed("sending the request"))?;
        let chain_pem = self.order.poll_certificate(&POLLING).await;
        let chain_pem = chain_pem.map_err(failed("fetching the certificate"))?;
        Ok(ServerCertificate { chain_pem, key_pem: key.to_pkcs8_pem() })
    }

    /// Why the directory does not believe: it says so of each host.
    async fn why(&mut self, error: Option<instant_acme::Error>) -> AcmeError {
        let mut all = self.order.authorizations();
        while let Some(Ok(mut authorization)) = all.next().await {
            let host = authorization.identifier().to_string();
            let Ok(state) = authorization.refresh().await else { continue };
            if let Some(problem) = state.challenges.iter().find_map(|it| it.error.as_ref()) {
                return AcmeError::NotProven { host, what: detail(problem) };
            }
        }
        let source = error.unwrap_or(instant_acme::Error::Str("the order is invalid"));
        AcmeError::Directory { doing: "the validation", source }
    }
}

fn detail(problem: &Problem) -> String {
    problem.detail.clone().unwrap_or_else(|| problem.to_string())
}

#[cfg(test)]
mod tests {
    use ambit_tls::authority::{Authority, AuthorityBundle};

    use super::*;

    #[test]
    fn a_token_is_one_word_of_a_few_letters() {
        for (text, expected) in
            [("aZ0-_", true), ("", false), ("a b", false), ("a\nb", false), ("a.b", false)]
        {
            assert_eq!(is_token(text), expected, "{text:?}");
        }
        assert!(is_token(&"a".repeat(256)) && !is_token(&"a".repeat(257)));
    }

    #[test]
    fn the_words_of_a_directory_are_one_short_line() {
        let what = format!("\u{1b}[2J\nGateway edge/in: issued{}", "!".repeat(1000));
        let text = told(&AcmeError::NotProven { host: "a.example".to_owned(), what });
        assert!(!text.contains(char::is_control) && text.chars().count() == 400, "{text:?}");
        assert!(text.starts_with("a.example is not proven:  [2J Gateway"), "{text:?}");
    }

    #[test]
    fn a_pair_is_good_for_the_hosts_in_it() {
        let now = SystemTime::now();
        let authority = Authority::generate("cluster.local", now).expect("a root");
        let authority = AuthorityBundle::new(authority);
        let hour = Duration::from_secs(3600);
        let issue = |names: &[&str]| authority.issue_server(names, hour, now).expect("it issues");
        let check = |pair: &ServerCertificate, hosts: &[&str], expected: bool| {
            let hosts: Vec<String> = hosts.iter().map(|it| (*it).to_owned()).collect();
            assert_eq!(good_until(pair, &hosts).is_some(), expected, "{hosts:?}");
        };
        let pair = issue(&["a.example", "b.example"]);
        check(&pair, &["a.example"], true);
        check(&pair, &["b.example", "a.example"], true);
        check(&pair, &["a.example", "c.example"], false);
        let key_pem = issue(&["a.example"]).key_pem;
        check(&ServerCertificate { chain_pem: pair.chain_pem, key_pem }, &["a.example"], false);
        let empty = ServerCertificate { chain_pem: String::new(), key_pem: String::new().into() };
        check(&empty, &["a.example"], false);
    }
}
