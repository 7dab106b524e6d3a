//! The kernel parameters that capture sets in a pod's namespace.
//!
//! A parameter that cannot be set never keeps a pod out of the mesh. The log says once what is lost
//! then, because the cause is the same for all pods and every check. The caller is in the pod's
//! namespace.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Once;

use ambit_net::namespace;

use super::rules::{LOOSE_PARAMETER, MIGRATE_PARAMETER};

/// A parameter and what it should be.
#[derive(Debug)]
struct Parameter {
    name: &'static str,
    wanted: &'static str,
    /// What is lost without.
    loss: &'static str,
    told: Once,
}

static PARAMETERS: [Parameter; 2] = [
    Parameter {
        name: LOOSE_PARAMETER,
        wanted: "0",
        loss: "a stray packet may make an entry of connection tracking; the filter behind the \
            redirects alone keeps it from the application",
        told: Once::new(),
    },
    Parameter {
        name: MIGRATE_PARAMETER,
        wanted: "1",
        loss: "a proxy that restarts may reset connections that wait to be accepted",
        told: Once::new(),
    },
];

/// The names of those that can be set and are not as wanted. One that does not exist is not among
/// them: older kernels lack some, and that of connection tracking comes with its first rule.
pub(crate) fn altered() -> Vec<&'static str> {
    let is_altered = |it: &&Parameter| it.value().is_some_and(|value| value != it.wanted);
    let altered = PARAMETERS.iter().filter(is_altered);
    altered
        .filter(|it| it.report(namespace::open_sysctl(it.name)).is_ok())
        .map(|it| it.name)
        .collect()
}

/// Sets all that are not as wanted.
pub(crate) fn set() {
    for name in altered() {
        if let Some(it) = PARAMETERS.iter().find(|it| it.name == name) {
            let _ = it.report(namespace::set_sysctl(it.name, it.wanted));
        }
    }
}

/// Whether connection tracking begins with first packets alone.
pub(crate) fn is_strict() -> bool {
    let loose = PARAMETERS.iter().find(|it| it.name == LOOSE_PARAMETER);
    loose.and_then(Parameter::value).is_some_and(|value| value == "0")
}

impl Parameter {
    fn value(&self) -> Option<String> {
        let value = fs::read_to_string(Path::new("/proc/sys").join(self.name)).ok()?;
        Some(value.trim().to_owned())
    }

    /// Says once why it cannot be set.
    fn report<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result {
            let (name, wanted, loss) = (self.name, self.wanted, self.loss);
            self.told.call_once(|| {
                tracing::warn!(%error, "{name} cannot be set to {wanted}: {loss}");
            });
        }
        result
    }
}
