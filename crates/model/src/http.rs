//! Layer 7: decisions about one request.
//!
//! Which rule of a route answers a request ([`table::RouteTable::find`]) and which of its backends
//! takes it ([`rule::draw`]) are pure functions, like those about connections. Nothing here
//! parses a head, knows a protocol version or reads a body: the caller passes in a
//! [`head::RequestHead`] whose path is normalised.
//!
//! | module | holds |
//! |---|---|
//! | [`head`] | a request's head, as decisions read it |
//! | [`matching`] | what a match compares |
//! | [`rule`] | what a rule does with a request: filters, backends, limits |
//! | `precedence` | the order among rules of several routes |
//! | [`table`] | the rules of one port, compiled for look-up |
//! | [`bytes`] | routes of connections that are no HTTP |
//! | `attached` | which rules hold at which port, and for whose clients |
//! | [`service`] | all of it for one service, as a waypoint gets it |
//! | [`needs`] | what of it a waypoint or a gateway needs |
//! | [`traffic`], [`ejection`], [`health`] | how requests are spread, and where none go |
//! | [`origination`] | TLS that is spoken with endpoints |
//! | [`normal`] | which form of a path is compared |
//! | [`nearness`], [`warmup`] | which endpoints are near, and which are new |
//! | [`limits`] | how much a request may be |
//! | [`compression`] | which responses are compressed |
//! | [`policy`] | policies that read requests |
//! | [`authentication`] | which tokens of requests are accepted |
//! | [`rate_limit`] | how many requests may come |
//! | [`condition`] | what CEL expressions know of a request |
//! | [`authorize`] | whether a request may pass, and why |
//! | [`elsewhere`] | the same, where a route sends it on to another namespace |
//! | [`passing`] | whether a connection that is no HTTP may pass |
//! | [`authorizer`] | the services that CUSTOM policies ask |
//! | [`access_log`], [`telemetry`] | what is told of requests, and to whom |

pub mod access_log;
mod attached;
pub mod authentication;
pub mod authorize;
pub mod authorizer;
pub mod bytes;
pub mod certificate;
pub mod compression;
pub mod condition;
pub mod ejection;
pub mod elsewhere;
pub mod gateway;
pub mod head;
pub mod health;
pub mod limits;
pub mod matching;
pub mod nearness;
pub mod needs;
pub mod normal;
pub mod origination;
pub mod passing;
pub mod policy;
mod precedence;
pub mod rate_limit;
pub mod rule;
pub mod service;
pub mod table;
pub mod telemetry;
pub mod traffic;
pub mod warmup;
