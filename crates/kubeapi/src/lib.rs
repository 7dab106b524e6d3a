//! The Kubernetes API, over any set of objects.
//!
//! kubectl and client-go ask a server for discovery documents, lists, single objects, watches and
//! logs, for commands in pods and for connections to their ports, and to write objects. This crate
//! reads such a request into a [`Call`], makes the object that is to be written, and writes the
//! answer that Kubernetes would give. It is pure: requests, objects and frames in, JSON and frames
//! out, and the time is handed in. It never opens a socket, checks who asks, knows where objects
//! come from, or decides whether one is valid.
//!
//! | module | holds |
//! |---|---|
//! | `resource` | [`Resource`]: a kind of object as the API names it |
//! | `call` | [`Api`]: from a request to a [`Call`], or to the refusal of it |
//! | `write` | [`Write`]: a change that is asked for, and the object that it makes |
//! | `defaults` | fields that Kubernetes fills in, in answers alone |
//! | `deletion` | [`Deletion`]: what a deletion depends on |
//! | `depth` | how deep objects may be nested |
//! | `patch` | patches: how a body says what changes |
//! | `protobuf` | bodies in the form that typed clients send |
//! | `apply` | server-side apply: which fields are whose |
//! | `last_applied` | client-side apply: what a manifest makes of an object that is there |
//! | `scale` | the number of an object's replicas, as a kind of its own |
//! | `autoscalers` | HorizontalPodAutoscalers in their older version |
//! | `review` | [`Review`]: what a client asks of itself |
//! | `access` | what a client may do, before it does it, and who it is |
//! | `request` | [`Request`], and the objects that it names |
//! | `query` | the parameters of a request |
//! | `selector` | label selectors and field selectors |
//! | `discovery` | which groups, versions and kinds there are |
//! | `openapi` | which requests a server takes, for clients that look before they write |
//! | `form` | which form of an answer the client asks for |
//! | `answer` | objects, lists and the events of a watch, in that form |
//! | `table` | the columns that kubectl prints |
//! | `history` | [`History`]: objects with their versions, and the latest changes |
//! | `streams` | commands in pods, and connections to their ports: what is asked, and channels |
//! | `spdy` | the frames of connections to ports, and of older clients' commands |
//! | `status` | [`Status`]: a refusal, in Kubernetes' words |

mod access;
mod answer;
mod apply;
mod autoscalers;
mod call;
mod defaults;
mod deletion;
mod depth;
mod discovery;
mod form;
mod history;
mod last_applied;
mod openapi;
mod patch;
mod protobuf;
mod query;
mod request;
mod resource;
mod review;
mod scale;
mod selector;
pub mod spdy;
mod status;
pub mod streams;
mod table;
mod write;

pub use answer::{bookmark, event, initial_end, list, object, scale};
pub use call::{Api, Call, Log, Watch};
pub use defaults::forget_defaults;
pub use deletion::Deletion;
pub use history::{Change, ChangeKind, History, Key};
pub use last_applied::{Memory, MergeError, Merged, merge_manifest};
pub use patch::PatchKind;
pub use protobuf::{ProtobufError, protobuf};
pub use request::{Listing, Request, Single};
pub use resource::Resource;
pub use review::Review;
pub use status::{Cause, Status, deleted};
pub use table::autoscaler_targets;
pub use write::{Action, GENERATED_LEN, Syntax, UnknownFields, Write};
