//! Since when the endpoints of services are there, as one thread sees it.
//!
//! Only of services whose endpoints warm up. A view is looked at once, whatever number of requests
//! it serves.

use std::cell::{Ref, RefCell};
use std::sync::{Arc, Weak};
use std::time::Instant;

use ambit_model::http::warmup::Arrivals;
use ambit_model::names::ServiceName;
use ambit_model::service::Service;
use ambit_model::view::View;
use rustc_hash::FxHashMap;

/// Services that are remembered. Beyond it those that are gone are forgotten.
const SERVICES_MAX: usize = 1024;

/// The arrivals of endpoints.
#[derive(Default)]
pub(crate) struct Newcomers(RefCell<FxHashMap<ServiceName, Seen>>);

#[derive(Default)]
struct Seen {
    arrivals: Arrivals,
    /// The view that was looked at last. As long as this is held, no other can be in its place.
    view: Weak<View>,
}

impl Newcomers {
    /// When the endpoints of a service came.
    pub(crate) fn of(&self, view: &Arc<View>, service: &Service) -> Ref<'_, Arrivals> {
        let name = &service.key;
        {
            let mut all = self.0.borrow_mut();
            if all.len() >= SERVICES_MAX && !all.contains_key(name) {
                all.retain(|name, _| view.service(name).is_some());
            }
            let seen = all.entry(name.clone()).or_default();
            if seen.view.as_ptr() != Arc::as_ptr(view) {
                let endpoints = view.endpoints(name).into_iter().flat_map(|all| all.iter());
                // One that becomes ready again is as cold as a new one.
                let ready = endpoints.filter(|it| it.healthy).map(|it| &it.uid);
                seen.arrivals.observe(ready, Instant::now());
                seen.view = Arc::downgrade(view);
            }
        }
        Ref::map(self.0.borrow(), |all| &all[name].arrivals)
    }
}
