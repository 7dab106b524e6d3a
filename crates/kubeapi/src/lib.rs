//! The part of the Kubernetes API that reads, over any set of objects.
//!
//! kubectl and client-go ask a server for discovery documents, lists, single objects, watches and
//! logs, for commands in pods, and for connections to their ports. This crate reads such a request
//! into a [`Call`], and writes the answer that Kubernetes would give. It is pure: requests, objects
//! and frames in, JSON and frames out, and the time is handed in. It never opens a socket, checks
//! who asks, or knows where objects come from.
//!
//! | module | holds |
//! |---|---|
//! | `resource` | [`Resource`]: a kind of object as the API names it |
//! | `call` | [`Api`]: from a request to a [`Call`], or to the refusal of it |
//! | `query` | the parameters of a request |
//! | `selector` | label selectors and field selectors |
//! | `discovery` | which groups, versions and kinds there are |
//! | `form` | which form of an answer the client asks for |
//! | `answer` | objects, lists and the events of a watch, in that form |
//! | `table` | the columns that kubectl prints |
//! | `history` | [`History`]: objects with their versions, and the latest changes |
//! | `streams` | commands in pods, and connections to their ports: what is asked, and channels |
//! | `spdy` | the frames of connections to ports, and of older clients' commands |
//! | `status` | [`Status`]: a refusal, in Kubernetes' words |

mod answer;
mod call;
mod discovery;
mod form;
mod history;
mod query;
mod resource;
mod selector;
pub mod spdy;
mod status;
pub mod streams;
mod table;

pub use answer::{bookmark, event, initial_end, list, object};
pub use call::{Api, Call, Listing, Log, Request, Single, Watch};
pub use history::{Change, ChangeKind, History, Key};
pub use resource::Resource;
pub use status::Status;
