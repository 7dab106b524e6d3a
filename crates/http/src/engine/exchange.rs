//! One request, from its head to its record.
//!
//! | step | function |
//! |---|---|
//! | the path is normalised, the client is named, the trace is continued | [`Exchange::prepare`] |
//! | a directory is given proof of a host | [`Exchange::prove_host`] |
//! | authorization services are asked | [`Exchange::consult`] |
//! | tokens are verified | [`Exchange::authenticate`] |
//! | a rule is found; CORS and redirects are answered | [`Exchange::route`] |
//! | policies judge | [`Exchange::judge`] |
//! | what it may be is bounded | `bounds.rs` |
//! | rate limits | [`Exchange::limit`] |
//! | faults, limits, backend, mirrors | [`Exchange::forward`] |
//! | an endpoint is chosen, reached and asked, maybe again | [`Exchange::attempts`] |
//! | both bodies move at once | `carry.rs` |
//! | the record is written, whatever happened | [`exchange`] |

mod attempt;
mod bounds;
mod call;
mod carry;
mod changes;
mod consult;
mod consulted;
mod counter;
mod given;
mod grpc;
mod limit;
mod limited;
mod mirror;
mod opening;
mod room;
mod session;
mod trace;
mod watch;

use consulted::Consulted;
use limited::Limited;
use watch::{Ended, Sent, denial, denied_there, for_model};

pub use opening::{Opened, open};
pub use session::hash_of;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ambit_model::authorize::Decision;
use ambit_model::http::authentication::JwtRule;
use ambit_model::http::authorize::{Custom, RequestDecision};
use ambit_model::http::head as model;
use ambit_model::http::rule::{
    Abort, Action, Backend, Fraction, HeaderChanges, Origin, Rewrite, Rule, Timeouts, draw,
};
use ambit_tls::jwt::Verified;
use tokio::time::{Instant, sleep, timeout};

use crate::engine::answer::{Answer, is_grpc};
use crate::engine::bounded::Bounded;
use crate::engine::compression::Wanted;
use crate::engine::loads::UnderWay;
use crate::engine::piece::Source;
use crate::engine::position::{Arrival, Goal, Position, Routed, Rules};
use crate::engine::record::{Flags, Protocol, Record};
use crate::engine::replay::Replay;
use crate::engine::respond::Respond;
use crate::engine::{Engine, Settings, authenticate, cors, filters, heads};
use crate::fields::Fields;
use crate::h1::framing::{RequestBody, RequestFraming, ResponseBody};
use crate::head::RequestHead;

/// A request without its body.
pub(crate) struct Request {
    pub(crate) head: RequestHead,
    pub(crate) framing: RequestFraming,
    pub(crate) protocol: Protocol,
}

impl Request {
    fn has_body(&self) -> bool {
        self.framing.upgrade.is_none()
            && !matches!(self.framing.body, RequestBody::Absent | RequestBody::Sized(0))
    }
}

/// A rule, and how much of the path its match has matched.
type Found = (Arc<Rule>, Option<usize>);

/// One request that is under way.
struct Exchange<'a, P: Position, B, R> {
    engine: &'a Rc<Engine<P>>,
    arrival: &'a Rc<Arrival>,
    rules: P::Rules,
    head: RequestHead,
    framing: RequestFraming,
    body: Replay<B>,
    respond: R,
    record: Record,
    /// What authorization services have said.
    consulted: Consulted,
    /// What was verified of its token.
    token: Option<Verified>,
    /// The rule that answers, and how much of the path its match has matched.
    rule: Option<Found>,
    /// The head that was judged, where what is behind an upgrade is to be judged again.
    judged: Option<RequestHead>,
    /// The status of gRPC in the head of the last response.
    head_grpc_status: Option<u32>,
    /// What it has taken of limits.
    limited: Option<Limited>,
    /// How its response may be compressed, if it may.
    compression: Option<Wanted>,
    /// By when all of it must have ended.
    deadline: Option<Instant>,
    /// How long nothing may move.
    idle: Duration,
    /// The place of a further attempt, taken before a response was given up for it.
    reserved: Option<UnderWay>,
}

/// Answers a request and records it.
pub(crate) async fn exchange<P: Position, B: Source, R: Respond>(
    engine: &Rc<Engine<P>>,
    arrival: &Rc<Arrival>,
    request: Request,
    body: B,
    mut respond: R,
) {
    let mut record = Record::new(request.protocol);
    record.is_grpc = is_grpc(&request.head.fields);
    let settings = &engine.settings;
    let _under_way = match engine.admit() {
        Ok(under_way) => under_way,
        Err(shed) => {
            let details = format!("this proxy has too much to do ({})", shed.as_str());
            let answer = Answer::new(503, Flags::Overflow, "overload", details);
            record.head = Some(request.head);
            give(&mut respond, &answer, record.is_grpc, settings, &mut record, None).await;
            return engine.position.record(arrival, &record);
        }
    };
    let Some(rules) = engine.position.rules(arrival).await else {
        let details = "the control plane has not described this destination yet".to_owned();
        let answer = Answer::new(503, Flags::NoRoute, "no_configuration", details);
        record.head = Some(request.head);
        give(&mut respond, &answer, record.is_grpc, settings, &mut record, None).await;
        return engine.position.record(arrival, &record);
    };
    let has_body = request.has_body();
    let mut exchange = Exchange {
        engine,
        arrival,
        rules,
        head: request.head,
        framing: request.framing,
        body: Replay::new(Bounded::new(body), engine.settings.replay_bytes, has_body),
        respond,
        record,
        consulted: Consulted::default(),
        token: None,
        rule: None,
        judged: None,
        head_grpc_status: None,
        limited: None,
        compression: None,
        deadline: None,
        idle: engine.settings.stream_idle_timeout,
        reserved: None,
    };
    let ended = exchange.run().await;
    // Nothing else is held while a client takes its time to read an answer.
    let (head, rule, mut respond, mut record) = exchange.end();
    match ended {
        Ok(()) => {}
        Err(Ended::Answered(answer)) => {
            let asked = rule.as_ref().map(|(rule, _)| (&**rule, &head.fields));
            give(&mut respond, &answer, record.is_grpc, settings, &mut record, asked).await;
        }
        Err(Ended::Cut(answer)) => {
            respond.abort();
            note(&mut record, &answer);
        }
    }
    record.head = Some(head);
    engine.position.record(arrival, &record);
}

/// Sends an answer of this proxy's own: as the rule that the request matches, with these fields,
/// says of its responses.
pub(crate) async fn give(
    respond: &mut impl Respond,
    answer: &Answer,
    is_grpc: bool,
    settings: &Settings,
    record: &mut Record,
    asked: Option<(&Rule, &Fields)>,
) {
    note(record, answer);
    let says_why = settings.says_why && answer.flags != Flags::None;
    let (mut head, body) = answer.message(is_grpc, says_why);
    if let Some((rule, fields)) = asked {
        given::change(&mut head, answer, rule, fields);
    }
    record.status = head.status.code();
    record.grpc_status = is_grpc.then(|| answer.grpc());
    record.sent_bytes = body.len() as u64;
    let length = body.len() as u64;
    let framing = match head.status.code() {
        204 | 304 => ResponseBody::Absent { length: None },
        _ if body.is_empty() => ResponseBody::Absent { length: Some(0) },
        _ => ResponseBody::Sized(length),
    };
    if respond.begin(&head, framing, None).is_err() {
        return;
    }
    if !body.is_empty() {
        respond.put(body);
    }
    respond.finish(None);
    match timeout(settings.stream_idle_timeout, respond.flush()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "the client was gone before its answer"),
        Err(_) => {
            respond.abort();
            tracing::debug!("the client did not read its answer");
        }
    }
}

/// Notes in a record why this proxy itself has answered.
pub(crate) fn note(record: &mut Record, answer: &Answer) {
    record.flags = answer.flags;
    record.reason = answer.reason;
    record.details.clone_from(&answer.details);
}

impl<P: Position, B: Source, R: Respond> Exchange<'_, P, B, R> {
    /// What is needed to answer and to record.
    fn end(self) -> (RequestHead, Option<Found>, R, Record) {
        (self.head, self.rule, self.respond, self.record)
    }

    async fn run(&mut self) -> Result<(), Ended> {
        self.prepare()?;
        self.prove_host()?;
        self.consult().await?;
        self.authenticate()?;
        self.route().await?;
        self.judge().await?;
        self.bound()?;
        self.limit().await?;
        self.faults().await?;
        self.forward().await
    }

    /// The path is normalised once; whatever reads it from here on reads what is sent on.
    fn prepare(&mut self) -> Result<(), Ended> {
        if self.head.method().is_connect() {
            let details = "CONNECT is not for this proxy".to_owned();
            return Err(Answer::new(405, Flags::Malformed, "method", details).into());
        }
        if let Some(path) = self.head.path_mut() {
            path.normalise(self.engine.settings.normalisation).map_err(malformed)?;
        }
        // Before routes and policies read what a client claims of itself.
        let id = || request_id(&self.engine.position);
        let own_name = self.engine.position.own_name();
        filters::identify(&mut self.head.fields, self.arrival, own_name, id).map_err(malformed)?;
        self.trace()
    }

    /// Answers a directory that asks for proof of a host. It has no token, is of no namespace, and
    /// must not be led elsewhere: so this comes before policies and routes.
    fn prove_host(&self) -> Result<(), Ended> {
        let host = heads::lower_case(self.head.authority().host());
        let path = self.head.path().map_or("", |it| it.path());
        let Some(proof) = self.rules.challenge(&host, path) else { return Ok(()) };
        let answer = Answer::new(200, Flags::None, "challenge", String::new());
        Err(answer.with_body(proof.to_string()).into())
    }

    /// Verifies the request's tokens, which routes and policies may then ask for.
    fn authenticate(&mut self) -> Result<(), Ended> {
        let (head, scheme) = (&mut self.head, self.arrival.scheme.as_str());
        let sets = &self.engine.key_sets;
        self.token = authenticate::authenticate(self.rules.authentication(), head, scheme, sets)?;
        Ok(())
    }

    /// Finds the rule.
    async fn route(&mut self) -> Result<(), Ended> {
        let host = heads::lower_case(self.head.authority().host()).into_owned();
        let head = self.for_model(&host);
        let found = match self.rules.route(&head) {
            Routed::Anyway => return Ok(()),
            Routed::To(found) => found,
            routed => return self.unrouted(matches!(routed, Routed::Misdirected)).await,
        };
        let (rule, prefix_len) = (found.rule.clone(), found.prefix_len());
        let answer = match &rule.action {
            Action::Redirect(redirect) => {
                let port = self.arrival.destination.port();
                let location = redirect.location(&head, prefix_len, port);
                let answer = Answer::new(redirect.status, Flags::None, "redirect", String::new());
                Some(answer.with_field("location", location))
            }
            Action::Respond { status, body } => {
                let answer = Answer::new(*status, Flags::None, "respond", String::new());
                Some(answer.with_body(body.to_string()))
            }
            Action::Forward { .. } => None,
        };
        self.record.route = Some(rule.origin.clone());
        self.deadline = rule.timeouts.request.map(|most| self.record.started + most);
        let preflight = rule.cors.as_ref().and_then(|cors| cors::preflight(cors, &self.head));
        self.rule = Some((rule, prefix_len));
        if let Some(answer) = preflight {
            return Err(answer.into());
        }
        let Some(answer) = answer else { return Ok(()) };
        // Who may not ask is not told where else to ask.
        self.judge().await?;
        Err(answer.into())
    }

    /// Answers what no rule answers.
    async fn unrouted(&mut self, is_misdirected: bool) -> Result<(), Ended> {
        // Who may not ask is not told which routes there are.
        self.judge().await?;
        let (status, reason, details) = match is_misdirected {
            false => (404, "no_route", "no rule of its routes matches the request"),
            true => {
                (421, "misdirected", "another listener has its host; connect anew with its name")
            }
        };
        Err(Answer::new(status, Flags::NoRoute, reason, details.to_owned()).into())
    }

    /// Asks the policies, and the services that they name and that were not asked yet.
    async fn judge(&mut self) -> Result<(), Ended> {
        let judgement = self.consulted_judgement().await?;
        self.try_out(&judgement.dry_run_providers);
        let denial = denial(&judgement.decision, |it| self.consulted.has_asked(it));
        if self.framing.upgrade.is_some() {
            self.judged = Some(self.head.clone());
        }
        if let RequestDecision::Allowed(by)
        | RequestDecision::Ask { then: Decision::Allow(by), .. } = judgement.decision
        {
            self.record.allowed_by = by;
        }
        self.record.audits = judgement.audits;
        self.record.dry_run = judgement.dry_run_denials;
        match denial {
            None => Ok(()),
            Some(details) => {
                let answer = Answer::new(403, Flags::Denied, "denied", details);
                Err(answer.with_body("RBAC: access denied").into())
            }
        }
    }

    /// Asks the policies of a destination that is not what the client asked for.
    fn judge_destination(&self, to: &Goal<'_>, by: &Rule) -> Result<(), Ended> {
        let sent = Sent { head: &self.head, to, by: Some(by) };
        let passes = |it: &Custom| self.consulted.has_asked(it);
        match denied_there(&self.rules, self.arrival, sent, self.token.as_ref(), passes) {
            None => Ok(()),
            Some(details) => {
                let answer = Answer::new(403, Flags::Denied, "denied", details);
                Err(answer.with_body("RBAC: access denied").into())
            }
        }
    }

    fn for_model<'h>(&'h self, host: &'h str) -> model::RequestHead<'h> {
        for_model(&self.head, host, self.arrival, self.token.as_ref())
    }

    /// Makes the faults that the route asks for.
    async fn faults(&mut self) -> Result<(), Ended> {
        let Some((rule, _)) = &self.rule else { return Ok(()) };
        let draws = |part: Fraction| part.draw(|bound| self.engine.position.random_below(bound));
        if let Some((part, time)) = rule.faults.delay
            && draws(part)
        {
            self.record.flags = Flags::Delay;
            watch::while_there(&mut self.body, &mut self.respond, sleep(time)).await?;
        }
        let Some((part, abort)) = rule.faults.abort.filter(|(part, _)| draws(*part)) else {
            return Ok(());
        };
        debug_assert!(part.denominator > 0);
        let details = "the route asks for this fault".to_owned();
        Err(match abort {
            Abort::Http(status) => {
                Answer::new(status, Flags::Fault, "fault", details).with_body("fault filter abort")
            }
            Abort::Grpc(status) => {
                self.record.is_grpc = true;
                let mut answer = Answer::new(200, Flags::Fault, "fault", details);
                answer.grpc_status = Some(status);
                answer
            }
        }
        .into())
    }

    /// Chooses the backend and sends the request to one of its endpoints.
    async fn forward(&mut self) -> Result<(), Ended> {
        let rule = self.rule.clone();
        let mut changes = Changes { rule: rule.as_ref().map(|(rule, _)| &**rule), backend: None };
        let mut goal = Goal::Original;
        if let Some((rule, prefix_len)) = &rule
            && let Action::Forward { backends, rewrite } = &rule.action
        {
            let named = session::backend(&self.head.fields, rule.session.as_ref(), backends);
            let random = |bound| self.engine.position.random_below(bound);
            let backend = named
                .map_or_else(|| draw(backends, random), Ok)
                .map_err(|none| Answer::new(500, Flags::NoRoute, "no_backend", none.to_string()))?;
            changes.backend = Some(backend);
            goal = Goal::Backend(&backend.destination);
            self.change_request(rule, rewrite, *prefix_len)?;
            // What is changed for one backend is not for those that are sent copies.
            let copied = (!rule.mirrors.is_empty()).then(|| self.head.clone());
            let keeps = keeps(&self.rules, &self.consulted, &rule.origin);
            filters::change_request(&mut self.head, &backend.request_headers, keeps)
                .map_err(no_request)?;
            self.judge_destination(&goal, rule)?;
            if let Some(head) = copied {
                self.mirror(rule, &head);
            }
        }
        self.attempts(goal, &changes).await
    }

    fn change_request(
        &mut self,
        rule: &Rule,
        rewrite: &Rewrite,
        prefix_len: Option<usize>,
    ) -> Result<(), Ended> {
        let head = &mut self.head;
        if rewrite.path.is_some() {
            self.record.original_path = head.path().map(|path| path.as_str().into());
        }
        let keeps = keeps(&self.rules, &self.consulted, &rule.origin);
        filters::rewrite(head, rewrite, prefix_len, self.engine.settings.normalisation)
            .and_then(|()| filters::change_request(head, &rule.request_headers, keeps))
            .map_err(no_request)
    }
}

/// The changes of a response.
struct Changes<'r> {
    rule: Option<&'r Rule>,
    backend: Option<&'r Backend>,
}

impl<'r> Changes<'r> {
    fn response(&self) -> impl Iterator<Item = &'r HeaderChanges> {
        let backend = self.backend.map(|it| &it.response_headers);
        backend.into_iter().chain(self.rule.map(|it| &it.response_headers))
    }

    /// The backend, if the rule has several.
    fn of_several(&self) -> Option<&'r Backend> {
        let Some(Action::Forward { backends, .. }) = self.rule.map(|it| &it.action) else {
            return None;
        };
        self.backend.filter(|_| backends.len() > 1)
    }

    fn timeouts(&self) -> Timeouts {
        self.rule.map(|it| it.timeouts).unwrap_or_default()
    }
}

/// Which fields a route must leave as they are: where clients have made it, those by which proxies
/// say who the client is and what it may, those that tokens come in, and what authorization
/// services have said.
fn keeps(rules: &impl Rules, consulted: &Consulted, route: &Origin) -> impl Fn(&str) -> bool {
    let is_own = rules.is_own(route);
    let tokens = || rules.authentication().rules.iter().flat_map(JwtRule::reserved_headers);
    move |name| {
        let is = |reserved: &str| reserved.eq_ignore_ascii_case(name);
        !is_own
            && (filters::is_of_proxies(name)
                || tokens().any(|it| is(it))
                || consulted.changed.iter().any(|it| is(it)))
    }
}

/// A route's changes have made a request that cannot be sent.
fn no_request(refused: crate::refused::Refused) -> Ended {
    let details = format!("the route makes a request that is none: {refused}");
    Answer::new(500, Flags::NoRoute, "route", details).into()
}

fn malformed(refused: crate::refused::Refused) -> Ended {
    let details = format!("{refused} ({})", refused.section());
    Answer::new(refused.status(), Flags::Malformed, refused.reason(), details).into()
}

/// A random UUID (RFC 9562, 5.4).
fn request_id(position: &impl Position) -> String {
    let half = || position.random_below(u64::MAX);
    let (high, low) = (half(), half());
    let high = high & !0xf000 | 0x4000;
    let low = low & !(0b11 << 62) | 0b10 << 62;
    let digits = u128::from(high) << 64 | u128::from(low);
    let mut text = String::with_capacity(36);
    // Not by the formatter, which takes ten times as long.
    for place in (0..32).rev() {
        if matches!(place, 23 | 19 | 15 | 11) {
            text.push('-');
        }
        let digit = (digits >> (4 * place) & 0xf) as u32;
        text.extend(char::from_digit(digit, 16));
    }
    text
}
