//! A queue in front of a partner's API that lets as many calls begin as an adaptive limit allows.

use core::time::Duration;
use std::sync::{Arc, Mutex};

use portcullis_adaptive::{Adaptive, Outcome};
use portcullis_async::{Queue, Rejected, TokioTimer};
use portcullis_core::{Clock, Concurrency};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

/// Calls that wait in a queue, as many at once as the limit finds.
struct Calls {
    queue: Queue<Concurrency, TokioTimer>,
    limit: Adaptive,
}

impl Calls {
    async fn call<T>(&self, request: impl Future<Output = T>) -> Result<T, Rejected> {
        let _place = self.queue.acquire(1).await?;
        let clock = self.queue.clock();
        let held = self.limit.try_acquire_at(clock.now(), 1);
        if self.queue.counts().waiters > 0 {
            // Others wait. One more than the limit is denied, and so the controller knows.
            drop(self.limit.try_acquire_at(clock.now(), 1));
        }
        let reply = request.await;
        if let Ok(held) = held {
            // Of a status: `portcullis_tower::adaptive::outcome_of`.
            held.end_at(clock.now(), Outcome::Succeeded);
        }
        let limit = self.limit.limit();
        // Denied only above the ceiling, which fits.
        let _ = self.queue.change(|places| places.set_limit(limit));
        Ok(reply)
    }
}

/// Lets 20 callers call 6 workers of 300 ms for two minutes, and measures the second one. Returns
/// the calls per second, their mean time without the wait in the queue, and the limit.
async fn measured(calls: Option<Calls>) -> (f64, f64, u32) {
    let (calls, workers) = (Arc::new(calls), Arc::new(Semaphore::new(6)));
    let (start, times) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let mut callers = JoinSet::new();
    for _ in 0..20 {
        let (calls, workers, times) = (calls.clone(), workers.clone(), times.clone());
        callers.spawn(async move {
            while start.elapsed() < 120 * SECOND {
                let request = async {
                    let begun = Instant::now();
                    let _worker = workers.acquire().await.unwrap();
                    sleep(SECOND * 3 / 10).await;
                    begun.elapsed()
                };
                let took = match &*calls {
                    Some(calls) => calls.call(request).await.unwrap(),
                    None => request.await,
                };
                if start.elapsed() > 60 * SECOND {
                    times.lock().unwrap().push(took.as_secs_f64());
                }
            }
        });
    }
    callers.join_all().await;
    let times = times.lock().unwrap();
    let number = f64::from(u32::try_from(times.len()).unwrap());
    let limit = (*calls).as_ref().map_or(0, |calls| calls.limit.limit());
    let mean = times.iter().sum::<f64>() / number;
    (number / 60.0, mean, limit)
}

#[tokio::test(start_paused = true)]
async fn a_queue_follows_an_adaptive_limit() {
    let limit = Adaptive::builder(4).ceiling(100).build().unwrap();
    let places = Concurrency::new(limit.limit());
    let queue = Queue::new(places, TokioTimer::new(), 1_000);
    let with = measured(Some(Calls { queue, limit })).await;
    let without = measured(None).await;
    println!("with {with:?}, without {without:?}");
    assert!(with.0 > 0.99 * without.0, "{with:?} {without:?}");
    assert!(with.1 < 0.6 * without.1, "{with:?} {without:?}");
}
