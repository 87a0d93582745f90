//! The client's throttle: what is sent to a service that refuses, is slow, or does not answer.

use core::time::Duration;
use portcullis_adaptive::{Outcome, Sent, Throttle, ThrottleBuilder};
use portcullis_core::Timestamp;
use std::collections::BTreeMap;
use std::sync::{Arc, Barrier};
use std::thread;

const MINUTE: u64 = 60_000;

fn builder() -> ThrottleBuilder {
    let window = Duration::from_millis(MINUTE);
    Throttle::builder().window(window).patience(window / 4)
}

/// Sends a request each millisecond, whose reply comes after `latency`. In each second the service
/// accepts the first `accepts` that it gets. Returns how many are sent in each second.
fn sends(
    throttle: &Throttle,
    seconds: u64,
    latency: u64,
    accepts: impl Fn(u64) -> u64,
) -> Vec<u32> {
    let mut replies = BTreeMap::<_, Vec<_>>::new();
    let mut sent = vec![0; seconds as usize];
    for millis in 0..seconds * 1_000 {
        let now = Timestamp::from_millis(1_000 + millis);
        for (request, outcome) in replies.remove(&millis).unwrap_or_default() {
            let request: Sent<_> = request;
            request.end_at(now, outcome);
        }
        let Ok(request) = throttle.try_send_at(now) else {
            continue;
        };
        let second = millis / 1_000;
        let count = &mut sent[second as usize];
        *count += 1;
        let outcome = if u64::from(*count) <= accepts(second) {
            Outcome::Succeeded
        } else {
            Outcome::PushedBack
        };
        replies
            .entry(millis + latency + 1)
            .or_default()
            .push((request, outcome));
    }
    sent
}

fn mean(of: &[u32]) -> f64 {
    of.iter().copied().map(f64::from).sum::<f64>() / f64::from(u32::try_from(of.len()).unwrap())
}

#[test]
fn a_service_that_refuses_gets_k_times_what_it_accepts() {
    for (k, accepts) in [(2.0, 100_u32), (1.5, 200), (3.0, 50)] {
        let throttle = builder().multiplier(k).build().unwrap();
        let sent = sends(&throttle, 240, 20, |_| accepts.into());
        let (sent, expected) = (mean(&sent[120..]), f64::from(k) * f64::from(accepts));
        assert!(
            (sent / expected - 1.0).abs() < 0.05,
            "{sent} a second, with K = {k} and {accepts} accepted"
        );
    }
}

#[test]
fn a_service_that_accepts_everything_gets_everything() {
    let throttle = builder().multiplier(1.0).build().unwrap();
    let sent = sends(&throttle, 200, 10_000, |_| u64::MAX);
    assert_eq!(sent, [1_000; 200]);
}

#[test]
fn a_burst_after_silence_is_sent_although_nothing_has_ended() {
    let throttle = builder().build().unwrap();
    let now = Timestamp::from_secs(9);
    let sent: Vec<_> = (0..1_000).map(|_| throttle.try_send_at(now)).collect();
    assert!(sent.iter().all(Result::is_ok));
}

#[test]
fn a_service_that_never_answers_is_noticed_after_the_patience() {
    let throttle = builder().build().unwrap();
    let sent = sends(&throttle, 180, u64::MAX / 2, |_| u64::MAX);
    assert!(
        sent[..15].iter().all(|&of| of == 1_000),
        "it may still answer"
    );
    assert!((mean(&sent[60..]) - 100.0).abs() < 5.0, "{sent:?}");
}

#[test]
fn a_service_that_answers_after_the_window_is_not_given_up() {
    let throttle = builder().build().unwrap();
    let sent = sends(&throttle, 1_500, 2 * MINUTE, |_| u64::MAX);
    assert!(sent[1_400..].iter().all(|&of| of == 1_000), "{sent:?}");
}

#[test]
fn the_end_of_an_outage_is_over_after_two_windows() {
    let throttle = builder().build().unwrap();
    let accepts = |second| if second < 120 { 0 } else { u64::MAX };
    let sent = sends(&throttle, 240, 20, accepts);
    assert!((mean(&sent[60..120]) - 100.0).abs() < 5.0, "{sent:?}");
    assert!(sent[235..].iter().all(|&of| of == 1_000), "{sent:?}");
}

#[test]
fn a_request_that_is_dropped_counts_as_not_made() {
    let throttle = builder().build().unwrap();
    for millis in 0..MINUTE / 2 {
        drop(
            throttle
                .try_send_at(Timestamp::from_millis(millis))
                .unwrap(),
        );
    }
    let later = Timestamp::from_millis(MINUTE);
    assert!(throttle.probability_at(later) <= 0.0);
}

#[test]
fn a_rejected_request_counts_at_once() {
    let throttle = builder().build().unwrap();
    let now = Timestamp::from_secs(9);
    let request = throttle.try_send_at(now).unwrap();
    request.end_at(now, Outcome::PushedBack);
    let mut last = throttle.probability_at(now);
    let mut rejected = 0;
    for _ in 0..20 {
        let is_rejected = throttle.try_send_at(now).is_err();
        rejected += u32::from(is_rejected);
        let next = throttle.probability_at(now);
        assert_eq!(next > last, is_rejected && last < 0.9, "{last} to {next}");
        last = next;
    }
    assert!(rejected > 5, "{rejected}");
}

#[test]
fn years_of_silence_and_a_clock_that_is_set_back_forget() {
    let throttle = builder().build().unwrap();
    let refuse = |now| {
        for _ in 0..100 {
            if let Ok(request) = throttle.try_send_at(now) {
                request.end_at(now, Outcome::PushedBack);
            }
        }
    };
    let year = 365 * 24 * 60 * MINUTE;
    let now = Timestamp::from_millis(year);
    refuse(now);
    assert!(throttle.probability_at(now) > 0.5);
    for millis in [year + 2 * MINUTE, year * 11, year / 2, 0] {
        let other = Timestamp::from_millis(millis);
        assert!(throttle.probability_at(other) <= 0.0, "at {millis} ms");
        let sent = throttle.try_send_at(other).unwrap();
        sent.end_at(now, Outcome::PushedBack);
    }
}

/// Half of the requests are accepted: with K = 2 that is just enough, and one more refusal is too
/// many. The threads count one outcome only, because a count that is lost of each would not show.
#[test]
fn no_count_is_lost_between_threads() {
    const THREADS: usize = 4;
    const EACH: usize = 100_000;
    let now = Timestamp::from_secs(9);
    let send = |throttle: &Arc<Throttle>, outcome, n| {
        for _ in 0..n {
            let sent = Sent::try_send_at(Arc::clone(throttle), now).unwrap();
            sent.end_at(now, outcome);
        }
    };
    let send_in_threads = |throttle: &Arc<Throttle>, outcome| {
        let begin = Barrier::new(THREADS);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    begin.wait();
                    send(throttle, outcome, EACH);
                });
            }
        });
    };
    for in_threads in [Outcome::Succeeded, Outcome::PushedBack] {
        let throttle = Arc::new(builder().build().unwrap());
        if in_threads == Outcome::Succeeded {
            send_in_threads(&throttle, Outcome::Succeeded);
            send(&throttle, Outcome::PushedBack, THREADS * EACH);
        } else {
            send(&throttle, Outcome::Succeeded, THREADS * EACH);
            send_in_threads(&throttle, Outcome::PushedBack);
        }
        assert!(throttle.probability_at(now) <= 0.0, "{in_threads:?}");
        send(&throttle, Outcome::PushedBack, 1);
        assert!(throttle.probability_at(now) > 0.0, "{in_threads:?}");
    }
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    for builder in [
        builder().window(Duration::ZERO).patience(Duration::ZERO),
        builder().patience(Duration::from_secs(31)),
        builder().multiplier(0.9),
        builder().multiplier(f32::NAN),
        builder().most(1.0),
        builder().most(-0.1),
    ] {
        assert!(builder.build().is_err(), "{builder:?}");
    }
}
