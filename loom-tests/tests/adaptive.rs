//! A concurrency limit that finds itself: which end of a request closes a window, and what the
//! window holds. A client that sends less: whether all replies count.
#![cfg(portcullis_loom)]

use core::sync::atomic::AtomicU32 as Count;
use core::sync::atomic::Ordering::SeqCst;
use std::sync::Arc as Shared;

use loom::sync::Arc;
use portcullis_adaptive::{Adaptive, Controller, Decision, Outcome, Throttle, Window};
use portcullis_loom::{at, explore_briefly, join, spawn, turn};

/// Halves the limit, and tells how long its last window lasted. (Loom does not know the count, so
/// it orders nothing.)
#[derive(Clone, Default)]
struct Halving(Shared<Count>);

impl Controller for Halving {
    fn begin(&mut self, initial: u32) -> Decision {
        Decision::limit(initial).after(2, 0.0)
    }

    fn decide(&mut self, window: &Window<'_>) -> Decision {
        self.0.store((window.seconds * 1e3) as u32, SeqCst);
        Decision::limit(window.limit / 2).after(2, 0.0)
    }
}

/// A limit of 2, and the requests in flight.
struct Service {
    limit: Adaptive<Halving>,
    in_flight: Count,
    lasted: Shared<Count>,
}

impl Service {
    /// Serves the two requests that do not count in the first window.
    fn new() -> Self {
        let halving = Halving::default();
        let lasted = Shared::clone(&halving.0);
        let builder = Adaptive::builder(2).ceiling(2).controller(halving);
        let service = Self {
            limit: builder.build().unwrap(),
            in_flight: Count::new(0),
            lasted,
        };
        assert!(service.serve(1) && service.serve(1));
        service
    }

    /// Begins the first window at `seconds`: it is due with the next request that ends.
    fn begun(seconds: u64) -> Arc<Self> {
        let service = Self::new();
        assert!(service.serve(seconds));
        assert_eq!(service.limit.explain().windows, 0);
        Arc::new(service)
    }

    /// Returns whether the request was admitted.
    fn serve(&self, seconds: u64) -> bool {
        turn();
        // Each limit since this moment is at most this.
        let most = self.limit.limiter().limit();
        let Ok(held) = self.limit.try_acquire_at(at(seconds), 1) else {
            return false;
        };
        let before = self.in_flight.fetch_add(1, SeqCst);
        assert!(before < most, "{before} of {most}");
        turn();
        self.in_flight.fetch_sub(1, SeqCst);
        held.end_at(at(seconds), Outcome::Succeeded);
        true
    }
}

#[test]
fn of_two_ends_that_find_a_window_due_one_closes_it_and_the_limit_holds_meanwhile() {
    explore_briefly(2, 3, || {
        let service = Service::begun(1);
        let other = spawn(&service, |service| service.serve(2));
        let own = service.serve(2);
        assert!(join(other) || own);
        let told = service.limit.explain();
        assert_eq!((told.windows, told.limit, told.in_use), (1, 1, 0));
        assert_eq!(service.lasted.load(SeqCst), 1_000);
    });
}

#[test]
fn a_window_is_closed_only_when_its_beginning_is_known() {
    explore_briefly(2, 3, || {
        let service = Arc::new(Service::new());
        let other = spawn(&service, |service| service.serve(5));
        let own = service.serve(7);
        assert!(join(other) || own);
        let told = service.limit.explain();
        if told.windows > 0 {
            assert_eq!((told.windows, service.lasted.load(SeqCst)), (1, 2_000));
        }
        // Whoever began it, the next one closes it.
        assert!(service.serve(9) && service.serve(9));
        assert_ne!(service.limit.explain().windows, 0);
    });
}

#[test]
fn a_window_that_began_far_ahead_restarts_once() {
    explore_briefly(2, 3, || {
        let service = Service::begun(100);
        let other = spawn(&service, |service| service.serve(2));
        let own = service.serve(2);
        assert!(join(other) && own);
        assert_eq!(service.limit.explain().windows, 0);
        assert!(service.serve(3));
        let told = service.limit.explain();
        assert_eq!((told.windows, told.limit, told.in_use), (1, 1, 0));
        assert_eq!(service.lasted.load(SeqCst), 1_000);
    });
}

/// Half of the requests are accepted: that is just enough, and one more refusal is too many. The
/// threads count one outcome only, because a count that is lost of each would not show.
#[test]
fn a_throttle_loses_no_count_between_threads() {
    for in_threads in [Outcome::Succeeded, Outcome::PushedBack] {
        explore_briefly(1, 2, move || {
            let throttle = Arc::new(Throttle::builder().build().unwrap());
            let send = move |throttle: &Throttle, outcome| {
                turn();
                throttle.try_send_at(at(9)).unwrap().end_at(at(9), outcome);
            };
            let send_alone = |outcome| {
                send(&throttle, outcome);
                send(&throttle, outcome);
            };
            let send_together = |outcome| {
                let other = spawn(&throttle, move |throttle| send(throttle, outcome));
                send(&throttle, outcome);
                join(other);
            };
            if in_threads == Outcome::PushedBack {
                send_alone(Outcome::Succeeded);
                send_together(Outcome::PushedBack);
            } else {
                send_together(Outcome::Succeeded);
                send_alone(Outcome::PushedBack);
            }
            assert!(throttle.probability_at(at(9)) <= 0.0);
            send(&throttle, Outcome::PushedBack);
            assert!(throttle.probability_at(at(9)) > 0.0);
        });
    }
}
