//! Authorization services: those that CUSTOM policies name are asked before other policies judge.
//!
//! They are asked before tokens are verified, as in Istio, so that a service may put in a token
//! that is verified then. A policy that asks for a token's claims is judged again behind that. What
//! a service has changed is what all later steps see. Each is asked once for a request, one after
//! the other in the order of their policies; one that does not answer denies.

mod answer;
mod question;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ambit_model::http::authentication::JwtRule;
use ambit_model::http::authorize::{Custom, RequestDecision, RequestJudgement};
use ambit_model::http::authorizer::{Authorizer, BodyCheck, Call};
use ambit_wire::ext_authz::{Allowed, Denied, Verdict};
use ambit_words::error_chain;
use bytes::Bytes;
use tokio::time::timeout;

use self::answer::Unclear;
use self::question::{Judged, Shown};
use super::call::{self, CallError};
use super::changes::{change_query, change_request, change_response};
use super::watch::{self, Ended, client_gone, judgement};
use super::{Exchange, malformed};
use crate::engine::answer::Answer;
use crate::engine::piece::{Broken, Source};
use crate::engine::position::{Goal, Position, Routed, Rules, Trial, Version};
use crate::engine::record::{Checked, CheckedAs, Flags};
use crate::engine::replay::Ahead;
use crate::engine::respond::Respond;
use crate::engine::{Engine, cors, heads};
use crate::fields::{FieldLimits, Fields, known::Known};
use crate::h1::framing::RequestBody;
use crate::head::{Reason, ResponseHead, Status, Version as HeadVersion};
use crate::refused::Refused;

/// How long the part of a body may take that a service is shown.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Services that are asked on trial at once on one thread; more questions are left out.
const MAX_TRIALS: usize = 256;
/// The status of a denial that names none.
const FORBIDDEN: u16 = 403;
/// PERMISSION_DENIED of gRPC.
const PERMISSION_DENIED: u32 = 7;

/// Why a service did not answer a question.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// There is no answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The answer says nothing.
    #[error(transparent)]
    Unclear(#[from] Unclear),
    /// What it changes makes a request that is none.
    #[error("what it changes makes a request that is none")]
    Changes(#[source] Refused),
    /// The question cannot be written.
    #[error("it cannot be asked about this request")]
    Question(#[source] Refused),
}

impl Failure {
    /// Whether `failOpen` lets the request pass: only where the service did not answer. A provider
    /// that does not exist, and an answer that cannot be used, are mistakes that must be seen.
    fn is_silence(&self) -> bool {
        match self {
            Self::Call(error) => !matches!(error, CallError::Missing(_)),
            Self::Unclear(Unclear::Status(_)) => true,
            Self::Unclear(Unclear::Grpc(unclear)) => unclear.is_silence(),
            Self::Unclear(Unclear::Message(_)) | Self::Changes(_) | Self::Question(_) => false,
        }
    }
}

impl<P: Position, B: Source, R: Respond> Exchange<'_, P, B, R> {
    /// Asks the services that policies name whatever the request's token says.
    pub(super) async fn consult(&mut self) -> Result<(), Ended> {
        if self.rules.authorizers().is_empty() || self.is_preflight() {
            return Ok(());
        }
        // What only a verified token may say is not for a client to tell a service.
        let rules = self.rules.authentication().rules.iter();
        for name in rules.flat_map(JwtRule::written_headers) {
            self.head.fields.remove_alike(name);
        }
        self.consulted_judgement().await.map(drop)
    }

    /// What the policies say once all services that they name have let the request pass.
    pub(super) async fn consulted_judgement(&mut self) -> Result<RequestJudgement, Ended> {
        loop {
            let judgement = judgement(&self.rules, self.arrival, &self.head, self.token.as_ref());
            let RequestDecision::Ask { providers, .. } = &judgement.decision else {
                return Ok(judgement);
            };
            let next = providers.iter().find(|it| !self.consulted.has_asked(it)).cloned();
            let Some(next) = next else { return Ok(judgement) };
            self.ask(&next).await?;
        }
    }

    /// Whether a route answers the request by itself, as a browser's question that carries no
    /// credentials.
    fn is_preflight(&self) -> bool {
        if self.head.method().as_str() != "OPTIONS" {
            return false;
        }
        let host = heads::lower_case(self.head.authority().host()).into_owned();
        let head = self.for_model(&host);
        let Routed::To(found) = self.rules.route(&head) else { return false };
        let cors = found.rule.cors.as_ref();
        cors.is_some_and(|cors| cors::preflight(cors, &self.head).is_some())
    }

    /// Asks one service; an error is what the client is answered.
    async fn ask(&mut self, custom: &Custom) -> Result<(), Ended> {
        let name = &custom.provider;
        let provider = provider(&self.rules, custom);
        let shown = match provider.check.body {
            Some(check) => Some(self.show(check).await?),
            None => None,
        };
        let judged = Judged {
            arrival: self.arrival,
            head: &self.head,
            protocol: self.record.protocol,
            size_bytes: size(self.framing.body),
            shown,
        };
        let asking = ask(self.engine, &self.rules, &judged, &provider);
        let answered = watch::while_there(&mut self.body, &mut self.respond, asking).await?;
        let (outcome, failure) = match answered {
            Ok(Verdict::Denied(denied)) => {
                self.note(custom, CheckedAs::Denied);
                return Err(denial(custom, denied).into());
            }
            Ok(Verdict::Allowed(allowed)) => match self.change(&allowed) {
                Ok(()) => (CheckedAs::Allowed, None),
                Err(refused) => (CheckedAs::Failed, Some(Failure::Changes(refused))),
            },
            Err(failure) if provider.check.fail_open && failure.is_silence() => {
                (CheckedAs::FailedOpen, None)
            }
            Err(failure) => (CheckedAs::Failed, Some(failure)),
        };
        self.note(custom, outcome);
        if let Some(failure) = failure {
            let details = said(custom, &error_chain(&failure));
            let status = provider.check.status_on_error;
            return Err(Answer::new(status, Flags::Unauthorized, "ext_authz", details).into());
        }
        self.consulted.pass(name.clone(), provider);
        Ok(())
    }

    fn note(&mut self, custom: &Custom, outcome: CheckedAs) {
        self.record.checks.push(Checked { provider: custom.provider.clone(), outcome });
    }

    /// Makes the changes that a service asks for.
    fn change(&mut self, allowed: &Allowed) -> Result<(), Refused> {
        change_request(&mut self.head.fields, &allowed.remove, &allowed.request)?;
        change_query(&mut self.head, &allowed.remove_parameters, &allowed.parameters)?;
        let changed = allowed.request.iter().map(|it| &it.name).chain(&allowed.remove);
        self.consulted.changed.extend(changed.cloned());
        self.consulted.response.extend(allowed.response.iter().cloned());
        Ok(())
    }

    /// Reads what of the body a service is shown. It is read from its beginning again.
    async fn show(&mut self, check: BodyCheck) -> Result<Shown, Ended> {
        let size = size(self.framing.body);
        if self.framing.upgrade.is_some() || size == Some(0) {
            return Ok(Shown { check, bytes: Bytes::new(), is_partial: false });
        }
        let most = usize::try_from(check.max_bytes).unwrap_or(usize::MAX);
        if !check.allow_partial && size.is_some_and(|size| size > u64::from(check.max_bytes)) {
            return Err(too_large(check));
        }
        self.invite_body().await?;
        let room = &self.engine.held;
        let reading = timeout(BODY_TIMEOUT, self.body.read_ahead(most, room));
        let read = tokio::select! {
            biased;
            read = reading => read,
            () = self.respond.gone() => return Err(client_gone(&Broken::Closed)),
        };
        let is_whole = match read {
            Ok(Ok(Ahead::NoRoom)) => {
                let details = "no room is left for bodies that authorization services are shown";
                let answer = Answer::new(503, Flags::Overflow, "overflow", details.to_owned());
                return Err(answer.into());
            }
            Ok(Ok(ahead)) => ahead == Ahead::Whole,
            Ok(Err(Broken::Refused(refused))) => return Err(malformed(refused)),
            Ok(Err(broken)) => return Err(client_gone(&broken)),
            Err(_) => {
                let details = "the body that an authorization service is shown did not come";
                let answer = Answer::new(408, Flags::Timeout, "slow_client", details.to_owned());
                return Err(answer.into());
            }
        };
        match is_whole || check.allow_partial {
            true => Ok(Shown { check, bytes: self.body.ahead(most), is_partial: !is_whole }),
            false => Err(too_large(check)),
        }
    }

    /// Tells a client that waits for it to send its body. The endpoint is not asked again.
    async fn invite_body(&mut self) -> Result<(), Ended> {
        if !std::mem::take(&mut self.framing.expects_continue) {
            return Ok(());
        }
        self.head.fields.remove(Known::Expect);
        let head = ResponseHead {
            status: Status::new(100).expect("three digits"),
            reason: Reason::new(b"Continue").expect("letters"),
            version: HeadVersion::Http11,
            fields: Fields::new(FieldLimits::default()),
        };
        self.respond.inform(&head);
        let limit = self.engine.settings.stream_idle_timeout;
        let invited = timeout(limit, self.respond.flush()).await;
        invited.unwrap_or(Err(Broken::Silent(limit))).map_err(|broken| client_gone(&broken))
    }

    /// Asks the services of policies on trial. The request does not wait, and what they answer is
    /// counted alone.
    pub(super) fn try_out(&self, customs: &[Custom]) {
        for custom in customs {
            if Rc::strong_count(&self.engine.trials) > MAX_TRIALS {
                tracing::debug!("a question on trial is left out: too many are under way");
                return;
            }
            let (engine, arrival) = (self.engine.clone(), self.arrival.clone());
            let (head, protocol, custom) =
                (self.head.clone(), self.record.protocol, custom.clone());
            let (size_bytes, held) = (size(self.framing.body), self.engine.trials.clone());
            self.engine.guard.spawn_local(async move {
                let _held_to_the_end = held;
                let Some(rules) = engine.position.rules(&arrival).await else { return };
                let provider = provider(&rules, &custom);
                let judged =
                    Judged { arrival: &arrival, head: &head, protocol, size_bytes, shown: None };
                let (outcome, details) = match ask(&engine, &rules, &judged, &provider).await {
                    Ok(Verdict::Allowed(_)) => (CheckedAs::Allowed, String::new()),
                    Ok(Verdict::Denied(it)) => (CheckedAs::Denied, status_of(&it)),
                    Err(failure) => (CheckedAs::Failed, error_chain(&failure)),
                };
                let trial = Trial { custom: &custom, head: &head, outcome, details };
                engine.position.trial(&arrival, &trial);
            });
        }
    }
}

/// The provider of a policy; without one, one that denies.
fn provider(rules: &impl Rules, custom: &Custom) -> Arc<Authorizer> {
    let missing = || Arc::new(Authorizer::missing("the control plane has not described it"));
    rules.authorizers().get(&custom.provider).cloned().unwrap_or_else(missing)
}

/// The length of a body, if it is known.
fn size(body: RequestBody) -> Option<u64> {
    match body {
        RequestBody::Absent => Some(0),
        RequestBody::Sized(size) => Some(size),
        RequestBody::Chunked => None,
    }
}

/// Asks a service.
async fn ask<P: Position>(
    engine: &Engine<P>,
    rules: &P::Rules,
    judged: &Judged<'_>,
    provider: &Authorizer,
) -> Result<Verdict, Failure> {
    let Authorizer { destination, check } = provider;
    let version = match check.call {
        Call::Grpc => Version::Http2,
        Call::Http(_) => rules.version(&Goal::Backend(destination)).unwrap_or(Version::Http1),
    };
    let (head, body) = match &check.call {
        Call::Grpc => {
            let host = destination.service().map_or("ext-authz", |name| &*name.hostname);
            judged.grpc(host).map_err(Failure::Question)?
        }
        Call::Http(it) => judged.http(it).map_err(Failure::Question)?,
    };
    let call = call::Call { destination, version, head: &head, body, timeout: check.timeout };
    let called = call::call(engine, judged.arrival, rules, &call).await?;
    Ok(match &check.call {
        Call::Grpc => answer::grpc(&called)?,
        Call::Http(it) => answer::http(it, &judged.head.fields, &called)?,
    })
}

/// The answer of a service that denies.
fn denial(custom: &Custom, denied: Denied) -> Answer {
    let status = denied.status.unwrap_or(FORBIDDEN);
    let mut fields = Fields::new(FieldLimits::default());
    for change in denied.fields {
        if let Err(refused) = change_response(&mut fields, &[change]) {
            tracing::debug!(%refused, "a field of a service's answer is left out");
        }
    }
    let details = said(custom, &format!("it denies with {status}"));
    let mut answer = Answer::new(status, Flags::Unauthorized, "ext_authz", details);
    // To a client of gRPC, whatever says no must not look like a yes.
    answer.grpc_status = (status < 400).then_some(PERMISSION_DENIED);
    answer.with_message(fields, denied.body)
}

fn status_of(denied: &Denied) -> String {
    format!("it would deny with {}", denied.status.unwrap_or(FORBIDDEN))
}

fn said(custom: &Custom, what: &str) -> String {
    format!("the provider {} of CUSTOM policy {}: {what}", custom.provider, custom.rule)
}

fn too_large(check: BodyCheck) -> Ended {
    let details = format!("an authorization service is shown {} bytes at most", check.max_bytes);
    Answer::new(413, Flags::Unauthorized, "ext_authz", details).into()
}
