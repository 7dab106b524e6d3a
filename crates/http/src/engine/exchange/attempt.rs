//! Attempts: an endpoint is chosen, reached and asked; if that fails, maybe another one.

use ambit_model::Text;
use ambit_model::http::authorize::Custom;
use ambit_model::http::ejection::Outcome;
use ambit_model::http::rule::{Destination, Retry};
use ambit_model::http::traffic::TrafficPolicy;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::carry::{Carried, Counts, Decided, Terms, Until, carry};
use super::changes::change_response;
use super::limited;
use super::room::{self, Bounded, CONNECT_TIMEOUT, Full, Room, bounded_by};
use super::session::{self, Sticky};
use super::watch::{self, Ended, Sent};
use super::{Changes, Exchange, malformed};
use crate::engine::again::{Why, longest_pause, may_try_again, pause};
use crate::engine::answer::{self, Answer};
use crate::engine::halves::BoxStream;
use crate::engine::loads::UnderWay;
use crate::engine::piece::{Broken, Source, grpc_status as grpc_status_of};
use crate::engine::position::{
    Arrival, Endpoint, EndpointAsk, Goal, Position, Rules as _, Unreachable, Version,
};
use crate::engine::record::{Flags, Protocol, Tried};
use crate::engine::respond::Respond;
use crate::engine::upstream::h1::Connection;
use crate::engine::upstream::pool::{Key, Shared};
use crate::engine::upstream::{Reading, Sending, h2};
use crate::engine::{Engine, cors, filters};
use crate::fields::Fields;
use crate::h1::framing::ResponseBody;
use crate::head::ResponseHead;
use crate::refused::Refused;

/// An attempt that failed, and what the client is told if it is the last.
pub(super) struct Failed {
    why: Why,
    pub(super) answer: Answer,
}

impl Failed {
    /// Whether it failed because of a limit of the service.
    pub(super) fn is_full(&self) -> bool {
        matches!(self.why, Why::Full)
    }
}

/// What became of an attempt.
enum Attempted {
    Done,
    Failed(Box<Failed>),
}

/// What stays the same for all attempts.
struct Plan<'p> {
    goal: Goal<'p>,
    changes: &'p Changes<'p>,
    service: Text,
    traffic: TrafficPolicy,
    version: Version,
    sticky: Sticky,
}

impl Plan<'_> {
    fn bounded(&self) -> Bounded<'_> {
        Bounded { service: &self.service, limits: &self.traffic.limits }
    }

    /// Has the client keep to the endpoint that has answered, where its session asks for that.
    fn keep_session(&self, endpoint: &Text, fields: &mut Fields) -> Result<(), Refused> {
        let (sticky, backend) = (&self.sticky, self.changes.of_several());
        let session = self.changes.rule.and_then(|it| it.session.as_ref());
        let kept = session.and_then(|it| session::answer(it, sticky, backend, endpoint));
        let cookie = sticky.new_cookie.clone().map(|it| ("set-cookie".to_owned(), it));
        for (name, value) in kept.into_iter().chain(cookie) {
            let put = fields.append(name.as_str(), value.as_bytes());
            put.map_err(|_| Refused::HeadTooLarge)?;
        }
        Ok(())
    }
}

/// A limit of connections is reached.
fn full(full: Full) -> Box<Failed> {
    let answer = Answer::new(503, Flags::Overflow, "overflow", full.to_string());
    Box::new(Failed { why: Why::Full, answer })
}

impl<P: Position, B: Source, R: Respond> Exchange<'_, P, B, R> {
    /// Sends the request until it is answered, as often as that is allowed.
    pub(super) async fn attempts(
        &mut self,
        goal: Goal<'_>,
        changes: &Changes<'_>,
    ) -> Result<(), Ended> {
        let plan = self.plan(goal, changes);
        if let Goal::Backend(Destination::Service { name, .. }) = goal {
            self.record.service = Some(name.clone());
        }
        let Some(_under_way) = self.engine.loads.begin(&plan.service, &plan.traffic) else {
            let details = format!("{} has as many requests as it may have", plan.service);
            return Err(Answer::new(503, Flags::Overflow, "overflow", details).into());
        };
        let retry = changes.rule.and_then(|it| it.retry.as_ref());
        if retry.is_some_and(|it| it.attempts == 0) {
            self.body.keep_nothing();
        }
        let mut tried: Vec<Text> = Vec::new();
        let mut retrying: Option<UnderWay> = None;
        loop {
            self.record.attempts += 1;
            let attempted = self.attempt(&plan, &mut tried).await?;
            drop(retrying.take());
            let reserved = self.reserved.take();
            let Attempted::Failed(failed) = attempted else { return Ok(()) };
            let last = |failed: Box<Failed>, flags: Option<Flags>| {
                let mut answer = failed.answer;
                answer.flags = flags.unwrap_or(answer.flags);
                Err(Ended::Answered(Box::new(answer)))
            };
            if !self.may_retry(retry, failed.why) {
                let is_last = self.record.attempts > 1;
                return last(failed, is_last.then_some(Flags::RetryLimit));
            }
            retrying = reserved.or_else(|| self.engine.loads.retry(&plan.service, &plan.traffic));
            if retrying.is_none() {
                return last(failed, Some(Flags::Overflow));
            }
            let random = |bound| self.engine.position.random_below(bound);
            let pause = pause(retry, self.record.attempts, random);
            if self.deadline.is_some_and(|at| Instant::now() + pause >= at) {
                return last(failed, Some(Flags::Timeout));
            }
            watch::while_there(&mut self.body, &mut self.respond, sleep(pause)).await?;
            self.body.rewind();
        }
    }

    fn plan<'p>(&self, goal: Goal<'p>, changes: &'p Changes<'p>) -> Plan<'p> {
        let service = bounded_by(&goal, self.arrival);
        let traffic = self.rules.traffic(&goal).clone();
        let version = self.version(&goal);
        let session = changes.rule.and_then(|it| it.session.as_ref());
        let random = || self.engine.position.random_below(u64::MAX);
        let balancing = &traffic.balancing;
        let sticky = session::sticky(&self.head, self.arrival, session, balancing, random);
        Plan { goal, changes, service, traffic, version, sticky }
    }

    /// The version of HTTP in which the request is sent to a destination.
    pub(super) fn version(&self, to: &Goal<'_>) -> Version {
        match self.rules.version(to) {
            // Behind an upgrade is no HTTP/2.
            _ if self.framing.upgrade.is_some() => Version::Http1,
            Some(version) => version,
            // Clients of a gateway speak HTTP/2 with it, whatever is behind it.
            None if self.arrival.outside.is_some() && !self.record.is_grpc => Version::Http1,
            None if self.record.protocol == Protocol::Http2 => Version::Http2,
            None => Version::Http1,
        }
    }

    /// Whether another attempt is allowed, and possible.
    fn may_retry(&self, retry: Option<&Retry>, why: Why) -> bool {
        self.body.can_rewind()
            && !self.respond.has_begun()
            && may_try_again(retry, why, self.head.method(), self.record.attempts)
    }

    async fn attempt(
        &mut self,
        plan: &Plan<'_>,
        tried: &mut Vec<Text>,
    ) -> Result<Attempted, Ended> {
        let loads = self.engine.loads.clone();
        let is_ejected = |uid: &str| loads.is_ejected(&plan.service, uid);
        let ask = EndpointAsk {
            arrival: self.arrival,
            goal: plan.goal,
            host: Some(self.head.authority().host()),
            hash: plan.sticky.hash,
            pinned: plan.sticky.pinned,
            tried,
            is_ejected: &is_ejected,
        };
        let endpoint =
            self.engine.position.choose(&ask).map_err(|none| {
                Answer::new(503, Flags::NoHealthyUpstream, none.reason, none.text)
            })?;
        tried.push(endpoint.uid.clone());
        self.record.endpoint =
            Some(Tried { address: endpoint.address, workload: endpoint.workload.clone() });
        let until = Until::from_now(self.deadline, plan.changes.timeouts());
        let attempted = match plan.version {
            Version::Http1 => self.over_http1(plan, &endpoint, until).await,
            Version::Http2 => self.over_http2(plan, &endpoint, until).await,
        };
        let outcome = match &attempted {
            Ok(Attempted::Done) => Some(self.answered(self.record.status, self.head_grpc_status)),
            Ok(Attempted::Failed(failed)) => match failed.why {
                Why::Status(status, grpc) => Some(self.answered(status, grpc)),
                Why::Full | Why::Denied => None,
                _ => Some(Outcome::LocalError),
            },
            Err(_) => None,
        };
        if let Some(outcome) = outcome {
            let (uid, among) = (&endpoint.uid, endpoint.alternatives);
            loads.report(&plan.service, &plan.traffic, uid, among, outcome);
        }
        attempted
    }

    /// What an answer says of its endpoint: to a request of gRPC the status of gRPC in its head, as
    /// the other one is 200 then. One in trailers comes too late, as in Envoy.
    fn answered(&self, status: u16, grpc: Option<u32>) -> Outcome {
        let grpc = grpc.filter(|_| self.record.is_grpc);
        Outcome::Status(grpc.map_or(status, answer::http_status))
    }

    async fn over_http1(
        &mut self,
        plan: &Plan<'_>,
        endpoint: &Endpoint<P::Way>,
        until: Until,
    ) -> Result<Attempted, Ended> {
        let key = key(endpoint);
        let (engine, arrival) = (self.engine, self.arrival);
        let pool = engine.pool.clone();
        let mut connection = match pool.idle(&key) {
            Some(connection) => connection,
            None => {
                let opening = opened(engine, arrival, plan.bounded(), endpoint, &key, until.head);
                let opened = watch::while_there(&mut self.body, &mut self.respond, opening);
                match opened.await? {
                    Ok(connection) => connection,
                    Err(failed) => return Ok(Attempted::Failed(failed)),
                }
            }
        };
        connection.send(&self.head, &self.framing);
        let (outbox, reading) = connection.sides();
        let (sending, reading) = (Sending::Http1(outbox), Reading::Http1(reading));
        let carried = self.carry(plan, endpoint, sending, reading, until).await;
        let is_stale = connection.is_used && !connection.has_answered();
        match &carried {
            Carried::Done { is_uploaded: true } => {
                pool.keep(&key, connection, &plan.traffic.limits);
                room::freed(engine, plan.bounded());
            }
            // Its answer was not read to the end, or it was upgraded; it is closed here.
            _ => drop(connection),
        }
        self.judge_carried(carried, if is_stale { Why::Stale } else { Why::Reset })
    }

    async fn over_http2(
        &mut self,
        plan: &Plan<'_>,
        endpoint: &Endpoint<P::Way>,
        until: Until,
    ) -> Result<Attempted, Ended> {
        let key = key(endpoint);
        // Others may be opening a connection, and its peer may take no more streams for now.
        let limit = plan.traffic.limits.connect_timeout.unwrap_or(CONNECT_TIMEOUT);
        let by = Instant::now() + limit;
        let by = until.head.map_or(by, |until| until.min(by));
        let (engine, arrival) = (self.engine, self.arrival);
        let ready = timeout_at(by, async {
            let (bounded, until) = (plan.bounded(), until.head);
            let shared = shared(engine, arrival, bounded, endpoint, &key, until).await?;
            let ready = shared.sender.clone().ready().await;
            Ok((shared, ready))
        });
        let ready = watch::while_there(&mut self.body, &mut self.respond, ready).await?;
        let (shared, ready) = match ready {
            Ok(Ok(ready)) => ready,
            Ok(Err(failed)) => return Ok(Attempted::Failed(failed)),
            Err(_) => {
                let text = format!("{} took no request in time", endpoint.address);
                let answer = Answer::new(503, Flags::ConnectFailure, "connect_timeout", text);
                let failed = Failed { why: Why::NoConnection, answer };
                return Ok(Attempted::Failed(Box::new(failed)));
            }
        };
        let (scheme, limits) = (self.arrival.scheme.as_str(), self.engine.settings.limits.fields);
        let has_body = self.framing.body != crate::h1::framing::RequestBody::Absent;
        let opened = match ready {
            Ok(mut sender) => h2::open(&mut sender, &self.head, scheme, has_body, limits)
                .map_err(|broken| (is_unsendable(&broken), broken)),
            // The connection has ended, or has no numbers for streams left.
            Err(error) => Err((false, Broken::from(error))),
        };
        let started = Instant::now();
        let (mut sending, mut reading) = match opened {
            Ok(opened) => opened,
            // What cannot be sent says nothing of the endpoint, nor of the connection.
            Err((true, broken)) => {
                return self.judge_carried(Carried::Unsendable(broken), Why::Reset);
            }
            Err((false, broken)) => {
                self.engine.pool.retire(&key, &shared);
                return Ok(failed(Why::NotRead, Flags::UpstreamClosed, "closed", &broken));
            }
        };
        let (up, down) = (Sending::Http2(&mut sending), Reading::Http2(&mut reading));
        let carried = self.carry(plan, endpoint, up, down, until).await;
        let is_unread = matches!(&carried, Carried::Broken(Broken::H2(error)) if is_unread(error));
        if matches!(carried, Carried::Done { .. } | Carried::Again(..)) {
            shared.hear();
        }
        // One that answers nobody may be dead; a request that takes long alone says nothing of it.
        if is_unread || matches!(carried, Carried::Late) && shared.is_mute_since(started) {
            self.engine.pool.retire(&key, &shared);
        }
        if !matches!(carried, Carried::Done { is_uploaded: true }) {
            sending.reset(::h2::Reason::CANCEL);
        }
        drop(shared);
        room::freed(engine, plan.bounded());
        self.judge_carried(carried, if is_unread { Why::NotRead } else { Why::Reset })
    }

    async fn carry(
        &mut self,
        plan: &Plan<'_>,
        endpoint: &Endpoint<P::Way>,
        mut sending: Sending<'_>,
        mut reading: Reading<'_>,
        until: Until,
    ) -> Carried {
        let (is_upgrade, counts) =
            (self.framing.upgrade.is_some(), Counts::new(self.record.is_grpc));
        let terms = Terms { until, idle: self.idle, is_upgrade, counts };
        let judged = (self.judged.as_ref(), self.token.as_ref());
        let version = self.rules.policies_version();
        let passes = |it: &Custom, rules: &P::Rules| self.consulted.still_passes(it, rules);
        let sent = Sent { head: &self.head, to: &plan.goal, by: plan.changes.rule };
        let position = &self.engine.position;
        let denied = watch::denied(position, self.arrival, judged, sent, version, passes);
        let retry = plan.changes.rule.and_then(|it| it.retry.as_ref());
        let (read, loads) = (self.body.kept(), self.engine.loads.clone());
        let (reserved, deadline) = (std::cell::RefCell::new(None), self.deadline);
        let (method, attempts) = (self.head.method().clone(), self.record.attempts);
        let origin = plan.changes.rule.and_then(|rule| {
            let cors = rule.cors.as_ref()?;
            Some((cors, cors::allowed_origin(cors, &self.head.fields)?))
        });
        let (compression, asked) = (self.compression.as_ref(), &self.head.fields);
        let room = self.engine.settings.pressure.encoders();
        let (limited, keeps_response) = (self.limited.as_ref(), self.rules.keeps_response());
        let heard = std::cell::RefCell::new((0, None, None));
        let decide = |head: &mut ResponseHead, body: ResponseBody| {
            let grpc = grpc_status_of(&head.fields);
            let why = Why::Status(head.status.code(), grpc);
            // What is not sent is lost: only if another attempt is sure to follow.
            if read.is_whole()
                && may_try_again(retry, why, &method, attempts)
                && deadline.is_none_or(|at| Instant::now() + longest_pause(retry, attempts) < at)
                && let Some(held) = loads.retry(&plan.service, &plan.traffic)
            {
                reserved.replace(Some(held));
                return Ok(Decided::Again);
            }
            for changes in plan.changes.response() {
                filters::change_response(head, changes)?;
            }
            change_response(&mut head.fields, &self.consulted.response)?;
            limited::respond(limited, || position.buckets().now(), head)?;
            if let Some((cors, origin)) = origin {
                cors::share(&mut head.fields, cors, origin)?;
            }
            plan.keep_session(&endpoint.uid, &mut head.fields)?;
            let encoder = compression.and_then(|it| it.decide(asked, head, body, room));
            let fields = keeps_response.then(|| head.fields.clone());
            heard.replace((head.status.code(), grpc, fields));
            // There is no other attempt: nothing more is kept for one.
            read.give_up();
            Ok(Decided::Sent(encoder))
        };
        let (body, respond) = (&mut self.body, &mut self.respond);
        let (up, down, counts) = (&mut sending, &mut reading, &terms.counts);
        let carried = carry(body, respond, up, down, &terms, decide, denied).await;
        self.reserved = reserved.into_inner();
        (self.record.status, self.head_grpc_status, self.record.response) = heard.into_inner();
        self.record.grpc_status = self.head_grpc_status.or(counts.sent.grpc_status.get());
        counts.note(&mut self.record);
        carried
    }

    /// The same, or a cut if half of an answer was sent.
    fn cut_or(&self, ended: Ended) -> Ended {
        match ended {
            Ended::Answered(answer) if self.respond.has_begun() => Ended::Cut(answer),
            ended => ended,
        }
    }

    /// What the end of an exchange means; `if_broken`: what it means that the connection broke.
    fn judge_carried(&mut self, carried: Carried, if_broken: Why) -> Result<Attempted, Ended> {
        let attempted = match carried {
            Carried::Done { .. } => return Ok(Attempted::Done),
            Carried::Again(status, grpc) => {
                let details = format!("the endpoint has answered {status}");
                let mut answer = Answer::new(status, Flags::RetryLimit, "retries", details);
                answer.grpc_status = grpc;
                Attempted::Failed(Box::new(Failed { why: Why::Status(status, grpc), answer }))
            }
            Carried::ClientGone(broken) => return Err(watch::client_gone(&broken)),
            Carried::Malformed(refused) => return Err(self.cut_or(malformed(refused))),
            Carried::Denied(denial) => {
                let answer = Answer::new(403, Flags::Denied, "denied", denial);
                return Err(Ended::Cut(Box::new(answer)));
            }
            Carried::Unsendable(broken) => {
                let details = ambit_words::error_chain(&broken);
                return Err(Answer::new(500, Flags::NoRoute, "route", details).into());
            }
            Carried::SlowClient => {
                let details = "the request did not come in the time that the route allows";
                let answer = Answer::new(408, Flags::Timeout, "slow_client", details.to_owned());
                return Err(self.cut_or(answer.into()));
            }
            Carried::Silent { broken, is_uploaded: false } => {
                let details = ambit_words::error_chain(&broken);
                let answer = Answer::new(408, Flags::StreamIdle, "stream_idle", details);
                return Err(self.cut_or(answer.into()));
            }
            Carried::Silent { broken, is_uploaded: true } => {
                let details = ambit_words::error_chain(&broken);
                let answer = Answer::new(504, Flags::StreamIdle, "stream_idle", details);
                Attempted::Failed(Box::new(Failed { why: Why::Timeout, answer }))
            }
            Carried::Late => {
                let details = "no answer in the time that the route allows".to_owned();
                let answer = Answer::new(504, Flags::Timeout, "timeout", details);
                Attempted::Failed(Box::new(Failed { why: Why::Timeout, answer }))
            }
            Carried::Broken(broken @ Broken::Refused(_)) => {
                let flags = Flags::UpstreamMalformed;
                let mut all = failed(Why::Reset, flags, "upstream_malformed", &broken);
                if let Attempted::Failed(failed) = &mut all {
                    failed.answer.status = 502;
                }
                all
            }
            Carried::Broken(broken) => failed(if_broken, Flags::UpstreamClosed, "closed", &broken),
        };
        match attempted {
            // Half of it was sent.
            Attempted::Failed(failed) if self.respond.has_begun() => {
                Err(Ended::Cut(Box::new(failed.answer)))
            }
            attempted => Ok(attempted),
        }
    }
}

/// A connection of HTTP/2 with room, or a new one; only one is opened at a time.
pub(super) async fn shared<P: Position>(
    engine: &Engine<P>,
    arrival: &Arrival,
    bounded: Bounded<'_>,
    endpoint: &Endpoint<P::Way>,
    key: &Key,
    until: Option<Instant>,
) -> Result<Shared, Box<Failed>> {
    let pool = engine.pool.clone();
    if let Some(shared) = pool.shared(key) {
        return Ok(shared);
    }
    let _waits = room::wait(engine, bounded).map_err(full)?;
    let opening = pool.opening(key);
    let _turn = opening.lock().await;
    let place = match room::room(engine, bounded, until, || pool.shared(key)).await.map_err(full)? {
        Room::Kept(shared) => return Ok(shared),
        Room::Free(place) => place,
    };
    let stream = connect(engine, arrival, bounded, endpoint, until).await?;
    pool.share(key, stream, place, bounded.limits).await.map_err(|broken| {
        let Attempted::Failed(failed) =
            failed(Why::NoConnection, Flags::ConnectFailure, "connect", &broken)
        else {
            unreachable!("it has failed")
        };
        failed
    })
}

/// A connection of HTTP/1.1: a new one, or one that another request has left meanwhile.
pub(super) async fn opened<P: Position>(
    engine: &Engine<P>,
    arrival: &Arrival,
    bounded: Bounded<'_>,
    endpoint: &Endpoint<P::Way>,
    key: &Key,
    until: Option<Instant>,
) -> Result<Connection, Box<Failed>> {
    let _waits = room::wait(engine, bounded).map_err(full)?;
    let place =
        match room::room(engine, bounded, until, || engine.pool.idle(key)).await.map_err(full)? {
            Room::Kept(connection) => return Ok(connection),
            Room::Free(place) => place,
        };
    let stream = connect(engine, arrival, bounded, endpoint, until).await?;
    Ok(Connection::new(stream, engine.settings.limits, Some(place)))
}

/// Opens a connection to an endpoint.
async fn connect<P: Position>(
    engine: &Engine<P>,
    arrival: &Arrival,
    bounded: Bounded<'_>,
    endpoint: &Endpoint<P::Way>,
    until: Option<Instant>,
) -> Result<BoxStream, Box<Failed>> {
    let limit = bounded.limits.connect_timeout.unwrap_or(CONNECT_TIMEOUT);
    let left = until.map_or(limit, |at| at.duration_since(Instant::now()).min(limit));
    let connecting = engine.position.connect(arrival, endpoint);
    let none = match timeout(left, connecting).await {
        Ok(Ok(stream)) => return Ok(stream),
        Ok(Err(none)) => none,
        Err(_) => {
            let text = format!("{} did not answer in time", endpoint.address);
            Unreachable { reason: "connect_timeout", text }
        }
    };
    let why = if none.is_denial() { Why::Denied } else { Why::NoConnection };
    let answer = Answer::new(503, Flags::ConnectFailure, none.reason, none.text);
    Err(Box::new(Failed { why, answer }))
}

pub(super) fn key<W>(endpoint: &Endpoint<W>) -> Key {
    let Endpoint { uid, address, kind, .. } = endpoint;
    Key { uid: uid.clone(), address: *address, kind: *kind, is_for_copies: false }
}

fn failed(why: Why, flags: Flags, reason: &'static str, broken: &Broken) -> Attempted {
    let answer = Answer::new(503, flags, reason, ambit_words::error_chain(broken));
    Attempted::Failed(Box::new(Failed { why, answer }))
}

/// Whether a request is such that HTTP/2 does not take it. Errors of that kind alone have no reason
/// of the protocol's.
fn is_unsendable(broken: &Broken) -> bool {
    match broken {
        Broken::Refused(_) => true,
        Broken::H2(error) => !error.is_io() && error.reason().is_none(),
        Broken::Io(_) | Broken::Closed | Broken::Silent(_) => false,
    }
}

/// Whether the peer says that it has not looked at the request (RFC 9113, 8.7), or the connection
/// took no more streams.
fn is_unread(error: &::h2::Error) -> bool {
    error.reason() == Some(::h2::Reason::REFUSED_STREAM)
        || error.is_go_away() && error.reason() == Some(::h2::Reason::NO_ERROR)
}
