//! What is known of a request when it has ended: access log, metrics, span and the field
//! `x-ambit-reason` are all made from this.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ambit_model::Text;
use ambit_model::authorize::{Denial, RuleName};
use ambit_model::http::rule::Origin;
use ambit_model::http::telemetry::Spans;
use ambit_model::names::PolicyName;
use ambit_model::trace::TraceParent;
use ambit_model::workload::Workload;
use tokio::time::Instant;

use crate::fields::Fields;
use crate::head::RequestHead;

/// Istio's letters for what went wrong, as far as a proxy says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flags {
    /// Nothing did.
    #[default]
    None,
    /// No connection to an endpoint.
    ConnectFailure,
    /// No endpoint.
    NoHealthyUpstream,
    /// A limit is reached.
    Overflow,
    /// No route.
    NoRoute,
    /// All retries failed.
    RetryLimit,
    /// No answer in time.
    Timeout,
    /// Nothing has moved for too long.
    StreamIdle,
    /// The endpoint's connection ended.
    UpstreamClosed,
    /// The client's connection ended.
    DownstreamClosed,
    /// A policy denies it.
    Denied,
    /// An authorization service denies it, or does not answer.
    Unauthorized,
    /// A fault that was asked for.
    Fault,
    /// A delay that was asked for.
    Delay,
    /// More requests than allowed.
    RateLimited,
    /// The request is no HTTP.
    Malformed,
    /// The endpoint's answer is no HTTP.
    UpstreamMalformed,
}

impl Flags {
    /// As the access log and the metrics write it.
    pub fn letters(self) -> &'static str {
        match self {
            Self::None => "-",
            Self::ConnectFailure => "UF",
            Self::NoHealthyUpstream => "UH",
            Self::Overflow => "UO",
            Self::NoRoute => "NR",
            Self::RetryLimit => "URX",
            Self::Timeout => "UT",
            Self::StreamIdle => "SI",
            Self::UpstreamClosed => "UC",
            Self::DownstreamClosed => "DC",
            Self::Denied | Self::Unauthorized => "UAEX",
            Self::Fault => "FI",
            Self::Delay => "DI",
            Self::RateLimited => "RL",
            Self::Malformed => "DPE",
            Self::UpstreamMalformed => "UPE",
        }
    }
}

/// The version that a client spoke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
    /// HTTP/2.
    Http2,
}

impl Protocol {
    /// As the access log writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
        }
    }
}

/// The endpoint that answered, or was tried last.
#[derive(Clone, Debug)]
pub struct Tried {
    /// Its address.
    pub address: SocketAddr,
    /// What the mesh knows of it.
    pub workload: Option<Arc<Workload>>,
}

/// An authorization service that was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The provider's name.
    pub provider: Text,
    /// What it has answered.
    pub outcome: CheckedAs,
}

/// What an authorization service has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckedAs {
    /// The request may pass.
    Allowed,
    /// It may not.
    Denied,
    /// Nothing that can be used, which denies.
    Failed,
    /// Nothing, which lets the request pass, because `failOpen` says so.
    FailedOpen,
}

impl CheckedAs {
    /// As the access log and the metrics write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Failed => "failed",
            Self::FailedOpen => "failed_open",
        }
    }
}

/// The span that a request is.
#[derive(Clone, Debug)]
pub struct Traced {
    /// Its trace, its own id, and whether it is recorded.
    pub own: TraceParent,
    /// The span that it is a part of, unless it begins the trace.
    pub parent: Option<u64>,
    /// How it is traced.
    pub spans: Arc<Spans>,
}

/// A limit of requests that was reached, or that nobody has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitReached {
    /// The TrafficPolicy.
    pub policy: PolicyName,
    /// The name of the limit.
    pub limit: Text,
    /// What became of the request there.
    pub outcome: LimitOutcome,
}

/// What became of a request at a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitOutcome {
    /// It was refused.
    Refused,
    /// It would have been refused, if the limit were enforced.
    Shadow,
    /// The service that counts gave no answer that can be used, which refuses.
    Failed,
    /// The service that counts gave no answer, which lets the request pass, because `failureMode`
    /// says so or the limit is not enforced.
    FailedOpen,
}

impl LimitOutcome {
    /// As the access log and the metrics write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Shadow => "shadow",
            Self::Failed => "failed",
            Self::FailedOpen => "failed_open",
        }
    }
}

/// The facts about one request.
#[derive(Clone, Debug)]
pub struct Record {
    /// When its head was read.
    pub started: Instant,
    /// The version that the client spoke.
    pub protocol: Protocol,
    /// The request as it was sent on; `None` for one that is no HTTP.
    pub head: Option<RequestHead>,
    /// Whether it is gRPC.
    pub is_grpc: bool,
    /// The rule that answered.
    pub route: Option<Origin>,
    /// The rule of the policy that let it pass.
    pub allowed_by: Option<RuleName>,
    /// The status that the client saw; 0 if it saw none.
    pub status: u16,
    /// The status of gRPC, if one was sent.
    pub grpc_status: Option<u32>,
    /// What went wrong.
    pub flags: Flags,
    /// Why, in a word.
    pub reason: &'static str,
    /// Why, in a sentence; empty if nothing went wrong.
    pub details: String,
    /// The endpoint.
    pub endpoint: Option<Tried>,
    /// The service that the endpoint was chosen of, where a route names one.
    pub service: Option<ambit_model::names::ServiceName>,
    /// Attempts that were made.
    pub attempts: u32,
    /// Bytes of the request's body.
    pub received_bytes: u64,
    /// Bytes of the response's body.
    pub sent_bytes: u64,
    /// Messages of gRPC in the request and in the response.
    pub messages: (u64, u64),
    /// From the last attempt to the response's head.
    pub upstream_time: Option<Duration>,
    /// The authorization services that were asked, in order.
    pub checks: Vec<Checked>,
    /// Limits that were reached, or that nobody has counted.
    pub limits: Vec<LimitReached>,
    /// AUDIT policies that match.
    pub audits: Vec<RuleName>,
    /// What policies on trial would deny.
    pub dry_run: Vec<Denial>,
    /// The path as it came, if the route has changed it.
    pub original_path: Option<Text>,
    /// The fields of the response, where [`crate::engine::position::Rules`] asks for them.
    pub response: Option<Fields>,
    /// The span, where requests are traced.
    pub traced: Option<Traced>,
}

impl Record {
    /// A request whose head has just been read.
    pub fn new(protocol: Protocol) -> Self {
        Self {
            started: Instant::now(),
            protocol,
            head: None,
            is_grpc: false,
            route: None,
            allowed_by: None,
            status: 0,
            grpc_status: None,
            flags: Flags::None,
            reason: "ok",
            details: String::new(),
            endpoint: None,
            service: None,
            attempts: 0,
            received_bytes: 0,
            sent_bytes: 0,
            messages: (0, 0),
            upstream_time: None,
            checks: Vec::new(),
            limits: Vec::new(),
            audits: Vec::new(),
            dry_run: Vec::new(),
            original_path: None,
            response: None,
            traced: None,
        }
    }
}
