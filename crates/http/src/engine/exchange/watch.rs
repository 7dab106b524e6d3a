//! What may end a request from outside while something else is waited for: its client, who is gone,
//! and policies that do not allow it any more. What an authorization service has let pass goes on
//! as long as the same policies ask the same service.

use std::future::pending;
use std::pin::pin;

use ambit_model::authorize::Decision;
use ambit_model::http::authorize::{Asked, Custom, RequestDecision, RequestJudgement, Token};
use ambit_model::http::head::{self as model, Claims, Client};
use ambit_model::http::rule::{Action, HeaderChanges, Rewrite, Rule};
use ambit_model::names::ServiceName;
use ambit_tls::jwt::Verified;

use crate::engine::answer::Answer;
use crate::engine::filters::client_ip;
use crate::engine::heads;
use crate::engine::piece::{Broken, Source};
use crate::engine::position::{Arrival, Goal, Position, Rules};
use crate::engine::record::Flags;
use crate::engine::replay::Replay;
use crate::engine::respond::Respond;
use crate::head::RequestHead;

/// Why a request was not answered by an endpoint.
pub(super) enum Ended {
    /// This is the answer.
    Answered(Box<Answer>),
    /// The response cannot be finished: its head was sent.
    Cut(Box<Answer>),
}

impl From<Answer> for Ended {
    fn from(answer: Answer) -> Self {
        Self::Answered(Box::new(answer))
    }
}

/// Waits for something as long as the client is there.
pub(super) async fn while_there<T>(
    body: &mut Replay<impl Source>,
    respond: &mut impl Respond,
    work: impl Future<Output = T>,
) -> Result<T, Ended> {
    tokio::select! {
        biased;
        done = work => Ok(done),
        () = respond.gone() => Err(client_gone(&Broken::Closed)),
        broken = body.gone() => Err(client_gone(&broken)),
    }
}

/// The end of a request whose client is gone: there is nobody to answer.
pub(super) fn client_gone(broken: &Broken) -> Ended {
    let details = ambit_words::error_chain(broken);
    Ended::Cut(Box::new(Answer::new(499, Flags::DownstreamClosed, "client_gone", details)))
}

/// Waits until the policies deny the request that was judged by this version of them, with what its
/// token said then: those of its destination, and those of where it was sent on to. Without a head
/// it waits for ever: a request that ends by itself is judged once.
pub(super) async fn denied<P: Position>(
    position: &P,
    arrival: &Arrival,
    (head, token): (Option<&RequestHead>, Option<&Verified>),
    sent: Sent<'_>,
    mut version: u64,
    still_passes: impl Fn(&Custom, &P::Rules) -> bool,
) -> String {
    let Some(head) = head else { return pending().await };
    let (mut withdrawn, mut deserted) =
        (pin!(position.withdrawn(arrival)), pin!(position.deserted(arrival)));
    let mut is_withdrawn = false;
    loop {
        tokio::select! {
            biased;
            () = &mut deserted => return "this proxy was withdrawn from its destination".to_owned(),
            () = &mut withdrawn, if !is_withdrawn => {
                is_withdrawn = true;
                continue;
            }
            now = position.policies_changed(version) => version = now,
        }
        let Some(rules) = position.rules(arrival).await else {
            // Nothing here holds any more for a destination that this position was withdrawn from.
            if is_withdrawn {
                continue;
            }
            return "the control plane does not describe this destination any more".to_owned();
        };
        let decision = judgement(&rules, arrival, head, token).decision;
        if let Some(denial) = denial(&decision, |custom| still_passes(custom, &rules)) {
            return denial;
        }
        if let Some(denial) =
            denied_there(&rules, arrival, sent, token, |it| still_passes(it, &rules))
        {
            return denial;
        }
    }
}

pub(super) fn for_model<'h>(
    head: &'h RequestHead,
    host: &'h str,
    arrival: &'h Arrival,
    token: Option<&'h Verified>,
) -> model::RequestHead<'h> {
    let namespace = arrival.source.identity().map(|it| &it.namespace);
    let claims = token.map(|it| it as &dyn Claims);
    heads::for_model(head, host, arrival.scheme.as_str(), Client { namespace, claims })
}

/// Asks the policies about a request.
pub(super) fn judgement(
    rules: &impl Rules,
    arrival: &Arrival,
    head: &RequestHead,
    token: Option<&Verified>,
) -> RequestJudgement {
    ask(arrival, head, token, |asked| rules.judge(asked))
}

/// A request as it is sent on.
#[derive(Clone, Copy)]
pub(super) struct Sent<'a> {
    pub(super) head: &'a RequestHead,
    pub(super) to: &'a Goal<'a>,
    /// The rule that sends it there.
    pub(super) by: Option<&'a Rule>,
}

impl Sent<'_> {
    /// Whether what authorization services were asked about is what is sent on, to the same
    /// service.
    fn is_as_asked(&self, own: &ServiceName) -> bool {
        let (Goal::Backend(to), Some(rule)) = (self.to, self.by) else { return false };
        let Action::Forward { backends, rewrite } = &rule.action else { return false };
        let none = HeaderChanges::default();
        to.service() == Some(own)
            && *rewrite == Rewrite::default()
            && rule.request_headers == none
            && backends.iter().all(|it| it.request_headers == none)
    }
}

/// Why a request may not be sent to a destination by the policies that hold there, if it may not.
/// `passes`: the authorization services that have let it pass.
pub(super) fn denied_there(
    rules: &impl Rules,
    arrival: &Arrival,
    sent: Sent<'_>,
    token: Option<&Verified>,
    passes: impl Fn(&Custom) -> bool,
) -> Option<String> {
    let by = &sent.by?.origin;
    let judge = |asked: &Asked<'_>| rules.judge_destination(sent.to, by, asked);
    let judged = ask(arrival, sent.head, token, judge)?;
    // What other services ask there, nobody asks here.
    let is_as_asked = || sent.is_as_asked(rules.rate_limits().0);
    denial(&judged.decision, |custom| is_as_asked() && passes(custom))
}

fn ask<T>(
    arrival: &Arrival,
    head: &RequestHead,
    token: Option<&Verified>,
    judge: impl FnOnce(&Asked<'_>) -> T,
) -> T {
    let host = heads::lower_case(head.authority().host()).into_owned();
    let remote_ip = client_ip(&head.fields, arrival);
    let head = for_model(head, &host, arrival, token);
    judge(&Asked {
        head: &head,
        source: &arrival.source,
        remote_ip,
        destination: arrival.destination,
        service: None,
        server_name: arrival.server_name(),
        token: token.map(|it| it as &dyn Token),
    })
}

/// Why a request may not pass, if it may not. The services that policies name are not asked here:
/// `passes` says which of them let it pass.
pub(super) fn denial(
    decision: &RequestDecision,
    passes: impl Fn(&Custom) -> bool,
) -> Option<String> {
    match decision {
        RequestDecision::Allowed(_) => None,
        RequestDecision::Denied(denial) => Some(denial.to_string()),
        RequestDecision::Ask { providers, then } => {
            if let Some(it) = providers.iter().find(|it| !passes(it)) {
                let Custom { provider, rule } = it;
                return Some(format!(
                    "CUSTOM policy {rule} asks the provider {provider}, which has not let it pass"
                ));
            }
            match then {
                Decision::Allow(_) => None,
                Decision::Deny(denial) => Some(denial.to_string()),
            }
        }
    }
}
