//! Wire formats: protobuf messages, conversions and protocol state machines without I/O.
//!
//! This crate translates between the model, which decides, and the roles, which have sockets. It
//! converts bytes to values and back. Each protocol is a state machine that takes messages (and,
//! where it matters, the time) and returns messages. It must never open a socket, spawn a task,
//! read a clock or draw a random number, and it never lets a message through unchecked: a message
//! is converted, or refused with the name of the field.
//!
//! | module | holds |
//! |---|---|
//! | [`proto`] | the generated messages and gRPC stubs |
//! | [`convert`] | messages to model and back; policies with their strictest reading |
//! | [`xds::client`] | a proxy's end of delta discovery: `Client` |
//! | [`xds::server`] | a control plane's end: `Stream`, one per client |
//! | [`xds::resources`] | what is served: `Resources`, persistent, with a journal of changes |
//! | [`xds::retained`] | what a proxy keeps across restarts: `Retained`, `Snapshot`, `Delta` |
//! | [`xds::node`] | the client's introduction: `ProxyNode` |
//! | [`admin`] | the answers of control and proxies to their administrators, as JSON |
//! | [`access_log`] | JSON formats of the access log |
//! | [`ca`] | certificate requests |
//! | [`capture`] | why a pod is not captured |
//! | [`zds`] | pod enrolment: `proxy::Enrolment` and `agent::Agent` |
//! | [`kubernetes`] | lists of pods in the API server's own encoding |
//! | [`ext_authz`] | questions to authorization services, and their answers |
//! | [`rate_limit`] | questions to rate limit services, and their answers |
//! | [`hbone`] | `:authority`, `baggage`, `forwarded`, `traceparent`, PROXY protocol |
//! | [`http2`] | HTTP/2 for tunnels: `Session` |

pub mod access_log;
pub mod admin;
pub mod ca;
pub mod capture;
pub mod convert;
pub mod ext_authz;
pub mod hbone;
pub mod http2;
pub mod kubernetes;
pub mod proto;
pub mod rate_limit;
pub mod xds;
pub mod zds;
