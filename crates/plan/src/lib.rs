//! What each mode of the mesh reserves, how many nodes that takes, and what they cost.
//!
//! [`plan`] is a pure function of [`Inputs`]: it reads no file and queries no cluster. Every mode
//! gets three estimates, two by division and one by placing whole pods; [`explain`] says why they
//! differ, [`chart`] and [`svg`] draw how full each node is.
//!
//! | module | holds |
//! |---|---|
//! | `modes` | the table of modes, and what their components reserve |
//! | `node_type` | the table of nodes |
//! | `pods` | pods as a scheduler sees them |
//! | `placement` | the scheduler |
//! | `estimate` | the three estimates |
//! | `published` | the tables of the published experiment, and where their arithmetic differs |
//! | `repeat` | copies one namespace's application into others |
//! | `quantity`, `measured` | exact amounts; CPU per request of a bench run |

mod chart;
mod estimate;
mod explain;
mod json;
mod measured;
mod modes;
mod node_type;
mod placement;
mod pods;
mod published;
mod quantity;
mod repeat;
mod svg;
#[cfg(test)]
mod tests;

pub use chart::chart;
pub use estimate::{Estimate, Inputs, ModePlan, PODS_MAX, Plan, PlanError, plan};
pub use explain::explain;
pub use json::json;
pub use measured::{Measured, RATE_MAX};
pub use modes::{Application, Component, MODES, Mode, Reservations};
pub use node_type::{DEFAULT_NODE_TYPE, NodeType, NodeTypeError};
pub use placement::{PlacedNode, Surroundings, Unplaceable};
pub use pods::{FieldNote, PodGroup, ReadPods};
pub use published::{Comparison, PublishedRow, compare, is_published, published_inputs};
pub use quantity::{AmountError, Price, Resources, parse_cpu, parse_memory};
pub use repeat::{RepeatError, repeat};
pub use svg::svg;
