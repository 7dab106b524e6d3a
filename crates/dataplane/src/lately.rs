//! The views that were in force until a moment ago.
//!
//! A change reaches the proxies of a mesh one after the other. Where a destination gets a waypoint
//! or loses it, its own proxy, the waypoint and the client's proxy disagree for that long, and to
//! believe the newest of them alone would refuse connections that are nobody's mistake. So what a
//! change of waypoint forbids is also asked of the views before it, for a few seconds: whether a
//! connection may come past a waypoint, or through one that was withdrawn. What goes on after that
//! has an end too. Policies of a destination are always those of now.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ambit_model::view::View;
use tokio::time::Instant;

/// How long what came through a waypoint goes on after the waypoint was withdrawn from before its
/// destination: policies that it would be sent are not sent to it any more.
pub const WITHDRAWN_MAX: Duration = Duration::from_secs(30);
/// How long a connection goes on past a waypoint that its destination has got since. It carries
/// requests that the policies of the waypoint do not see.
pub(crate) const PAST_WAYPOINT_MAX: Duration = Duration::from_secs(300);
/// How long the proxies of a mesh may disagree about who has which waypoint.
pub const DISAGREEMENT: Duration = Duration::from_secs(5);
/// Most views that are kept. Of more, those stay that were in force longest. A connection that is
/// denied is judged by each of them.
const VIEWS_MAX: usize = 64;

/// Views, the oldest first, with the moment at which each was replaced.
#[derive(Debug, Default)]
pub struct Lately(Mutex<VecDeque<(Instant, Arc<View>)>>);

impl Lately {
    /// Keeps a view that was replaced just now.
    pub(crate) fn keep(&self, view: Arc<View>) {
        let now = Instant::now();
        // Let go of outside of the lock: there may be much to free.
        let mut gone = Vec::new();
        let mut views = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while views.front().is_some_and(|(at, _)| *at + DISAGREEMENT <= now) {
            gone.extend(views.pop_front());
        }
        views.push_back((now, view));
        if views.len() > VIEWS_MAX {
            // A view comes into force when the one before it is replaced. So the oldest has no
            // known beginning; the newest is what a change has just taken away.
            let stood = |at: &usize| views[*at].0.duration_since(views[*at - 1].0);
            if let Some(shortest) = (1..views.len() - 1).min_by_key(stood) {
                gone.extend(views.remove(shortest));
            }
        }
        drop(views);
    }

    /// What is found in the newest view in which it is, of those that were in force until a moment
    /// ago.
    pub fn find<T>(&self, look: impl FnMut(&Arc<View>) -> Option<T>) -> Option<T> {
        let now = Instant::now();
        // Asked outside of the lock: the control thread publishes without waiting for us.
        let views: Vec<_> = {
            let views = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let recent = views.iter().rev().take_while(|(at, _)| now < *at + DISAGREEMENT);
            recent.map(|(_, view)| view.clone()).collect()
        };
        views.iter().find_map(look)
    }
}

#[cfg(test)]
mod tests {
    use ambit_model::service::Service;
    use ambit_model::view::Change;

    use super::*;

    /// A view that can be told from others.
    fn view(number: usize) -> Arc<View> {
        let mut view = View::default();
        for number in 0..number {
            view.apply(Change::Service(Service::named("a", format!("{number}.a.svc").as_str())));
        }
        Arc::new(view)
    }

    fn newest(lately: &Lately) -> Option<usize> {
        lately.find(|view| Some(view.services().count()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_view_is_found_for_as_long_as_proxies_may_disagree() {
        let lately = Lately::default();
        assert_eq!(newest(&lately), None);
        lately.keep(view(1));
        tokio::time::advance(DISAGREEMENT - Duration::from_millis(1)).await;
        assert_eq!(newest(&lately), Some(1));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(newest(&lately), None);
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_views_those_are_kept_that_were_in_force_longest() {
        let (lately, longest) = (Lately::default(), 250);
        for number in 1..=300 {
            let stood_ms = if number == longest { 100 } else { 10 };
            tokio::time::advance(Duration::from_millis(stood_ms)).await;
            lately.keep(view(number));
        }
        assert_eq!(newest(&lately), Some(300));
        assert_eq!(lately.0.lock().expect("nobody panics").len(), VIEWS_MAX);
        let is_kept = |it: &Arc<View>| (it.services().count() == longest).then_some(());
        assert!(lately.find(is_kept).is_some());
    }

    /// A waypoint that is attached and at once withdrawn: both views are found.
    #[tokio::test(start_paused = true)]
    async fn views_that_follow_one_another_fast_are_all_kept() {
        let lately = Lately::default();
        for number in 1..=20 {
            lately.keep(view(number));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        for number in 1..=20 {
            let found = lately.find(|it| (it.services().count() == number).then_some(()));
            assert!(found.is_some(), "{number}");
        }
    }
}
