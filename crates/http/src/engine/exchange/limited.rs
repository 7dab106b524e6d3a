//! What a request has taken of limits, and what its response is to say of them.

use ambit_model::http::rate_limit::bucket::Moment;
use ambit_wire::ext_authz::FieldChange;

use super::changes::change_response;
use crate::engine::piece::Broken;
use crate::engine::rate_limit::{Taking, fields};
use crate::fields::Fields;
use crate::head::ResponseHead;
use crate::refused::Refused;

/// Has services count what the response with these fields costs.
pub(super) type Charging = Box<dyn Fn(&Fields)>;

/// What a request has taken of limits.
pub(super) struct Limited {
    /// What of those that the pod counts itself.
    pub(super) taking: Taking,
    /// What services that count ask for.
    pub(super) fields: Vec<FieldChange>,
    /// What services that count are told of the response.
    pub(super) charging: Option<Charging>,
}

/// Says in a response what is left, and takes what it costs.
pub(super) fn respond(
    limited: Option<&Limited>,
    now: impl FnOnce() -> Moment,
    head: &mut ResponseHead,
) -> Result<(), Broken> {
    let Some(Limited { taking, fields: changes, charging }) = limited else { return Ok(()) };
    taking.charge(now(), |name| head.fields.first(name).map(<[u8]>::to_vec));
    if let Some(charge) = charging {
        charge(&head.fields);
    }
    change_response(&mut head.fields, changes)?;
    if !taking.policy().says_what_is_left {
        return Ok(());
    }
    for (name, value) in fields(&taking.left) {
        let put = head.fields.set(name, value.as_bytes());
        put.map_err(|_| Refused::HeadTooLarge)?;
    }
    Ok(())
}
