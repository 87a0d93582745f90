//! When and where wakers run, and releases while another context holds the lock.

mod support;

use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::Poll;
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex};

use portcullis_async::{Acquire, Next, Order, Queue, Rejected};
use portcullis_core::{Concurrency, Lease, Limiter};
use support::{
    FreesOnDenial, Hand, START, Shared, Task, Watched, available, now, permits, queue, waker,
};

mod polled {
    use super::*;

    fn held(permits: u32) -> (Shared, Lease<Shared>) {
        let queue = Arc::new(queue(Concurrency::new(permits), 999));
        let lease = Lease::try_acquire_at(Arc::clone(&queue), START, permits).unwrap();
        (queue, lease)
    }

    fn wait(queue: &Shared, n: u32) -> Task<Acquire<Shared>> {
        Task::new(Acquire::new(Arc::clone(queue), n))
    }

    #[test]
    fn one_release_grants_any_number_of_waiters() {
        for many in [1, 15, 16, 17, 31, 32, 33, 500] {
            let (queue, lease) = held(many);
            let waits: Vec<_> = (0..many).map(|_| Task::waiting(queue.acquire(1))).collect();
            drop(lease);
            assert!(waits.iter().all(|wait| wait.wakes() == 1), "{many}");
            assert_eq!(
                (queue.counts().granted, queue.counts().waiters),
                (many.into(), 0)
            );
            let leases: Vec<_> = waits
                .into_iter()
                .map(|wait| wait.outcome().unwrap())
                .collect();
            assert_eq!(available(&queue), 0);
            drop(leases);
            assert_eq!(available(&queue), u64::from(many));
        }
    }

    #[test]
    fn wakers_run_in_the_order_of_the_grants() {
        let (queue, lease) = held(40);
        let woken = Arc::new(Mutex::new(Vec::new()));
        let _waits: Vec<_> = (0..40)
            .map(|place| {
                let woken = Arc::clone(&woken);
                let mut task = wait(&queue, 1);
                assert!(
                    task.poll_with(&waker(move || woken.lock().unwrap().push(place)))
                        .is_pending()
                );
                task
            })
            .collect();
        drop(lease);
        assert_eq!(*woken.lock().unwrap(), (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn only_the_newest_is_woken() {
        let (queue, lease) = held(1);
        let calls: Arc<[AtomicUsize; 3]> = Arc::default();
        let mut task = wait(&queue, 1);
        for number in 0..3 {
            let calls = Arc::clone(&calls);
            let waker = waker(move || {
                calls[number].fetch_add(1, Ordering::Relaxed);
            });
            assert!(task.poll_with(&waker).is_pending());
        }
        drop(lease);
        assert_eq!(
            calls.each_ref().map(|calls| calls.load(Ordering::Relaxed)),
            [0, 0, 1]
        );
        assert!(task.poll().is_ready());
    }

    #[test]
    fn no_waker_runs_after_its_wait_was_dropped() {
        let (queue, lease) = held(1);
        let woken = Arc::new(AtomicUsize::new(0));
        let counting = Arc::clone(&woken);
        let waker = waker(move || {
            counting.fetch_add(1, Ordering::Relaxed);
        });
        let mut task = wait(&queue, 1);
        assert!(task.poll_with(&waker).is_pending());
        drop(task);
        drop(waker);
        assert_eq!(Arc::strong_count(&woken), 1, "and its waker is dropped");
        drop(lease);
        assert_eq!(woken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn wakers_are_dropped_once_they_have_run() {
        let (queue, lease) = held(1);
        let here = Arc::new(());
        let captured = Arc::clone(&here);
        let mut task = wait(&queue, 1);
        assert!(
            task.poll_with(&waker(move || drop(Arc::clone(&captured))))
                .is_pending()
        );
        drop(lease);
        assert_eq!(Arc::strong_count(&here), 1);
        assert!(task.poll().is_ready());
    }

    #[test]
    fn a_waker_that_panics_keeps_no_other_from_being_granted_and_woken() {
        let (queue, lease) = held(4);
        let mut first = wait(&queue, 1);
        assert!(first.poll_with(&waker(|| panic!("a waker"))).is_pending());
        let rest: Vec<_> = (0..3).map(|_| Task::waiting(queue.acquire(1))).collect();
        assert!(
            catch_unwind(AssertUnwindSafe(|| drop(lease))).is_err(),
            "the releaser gets the panic"
        );
        assert!(rest.iter().all(|wait| wait.wakes() == 1));
        assert!(first.poll().is_ready());
        drop((first, rest));
        assert_eq!((available(&queue), queue.counts().waiters), (4, 0));
    }

    #[test]
    fn a_waker_may_acquire() {
        let (queue, lease) = held(2);
        let inside = Arc::new(Mutex::new(None));
        let acquires = {
            let (inside, queue) = (Arc::clone(&inside), Arc::clone(&queue));
            waker(move || {
                *inside.lock().unwrap() = Some(now(Acquire::new(Arc::clone(&queue), 1)).unwrap());
            })
        };
        let mut head = wait(&queue, 1);
        assert!(head.poll_with(&acquires).is_pending());
        drop(lease);
        assert_eq!(inside.lock().unwrap().take().unwrap().permits(), 1);
        assert_eq!(permits(head.outcome()), Ok(1));
        assert_eq!(available(&queue), 2);
    }

    #[test]
    fn a_waker_may_release() {
        let (queue, mut lease) = held(2);
        let other = Mutex::new(Some(lease.split(1).unwrap()));
        let mut head = wait(&queue, 1);
        assert!(
            head.poll_with(&waker(move || drop(other.lock().unwrap().take())))
                .is_pending()
        );
        let next = Task::waiting(queue.acquire(1));
        drop(lease);
        assert_eq!((next.wakes(), permits(next.outcome())), (1, Ok(1)));
        assert!(head.outcome().is_ok());
    }

    #[test]
    fn a_waker_may_close() {
        let (queue, lease) = held(1);
        let mut head = wait(&queue, 1);
        let closes = {
            let queue = Arc::clone(&queue);
            waker(move || queue.close())
        };
        assert!(head.poll_with(&closes).is_pending());
        let next = Task::waiting(queue.acquire(1));
        drop(lease);
        assert_eq!(
            permits(next.outcome()),
            Err(Rejected::Closed { permits: 1 })
        );
        assert_eq!(permits(head.outcome()), Ok(1), "granted before the close");
        assert_eq!(available(&queue), 1);
    }

    #[test]
    fn a_waker_may_cancel() {
        let (queue, lease) = held(2);
        let large = Arc::new(Mutex::new(None));
        let mut head = wait(&queue, 1);
        let cancels = {
            let large = Arc::clone(&large);
            waker(move || drop(large.lock().unwrap().take()))
        };
        assert!(head.poll_with(&cancels).is_pending());
        *large.lock().unwrap() = Some(Task::waiting(Acquire::new(Arc::clone(&queue), 2)));
        let behind = Task::waiting(queue.acquire(1));
        drop(lease);
        assert_eq!((behind.wakes(), queue.counts().cancelled), (1, 1));
        assert!(head.outcome().is_ok());
    }

    #[test]
    fn a_waker_may_poll_the_wait_and_drop_the_lease_in_a_chain() {
        type Slot = Mutex<Option<Task<Acquire<Shared>>>>;
        let (queue, lease) = held(1);
        let slots: Arc<Vec<Slot>> =
            Arc::new((0..50).map(|_| Mutex::new(Some(wait(&queue, 1)))).collect());
        for number in 0..slots.len() {
            let all = Arc::clone(&slots);
            let runs = waker(move || {
                let Some(mut task) = all[number].lock().unwrap().take() else {
                    return;
                };
                match task.poll() {
                    // The lease is dropped in the waker, and so grants the next waiter from there.
                    Poll::Ready(lease) => drop(lease.unwrap()),
                    Poll::Pending => *all[number].lock().unwrap() = Some(task),
                }
            });
            assert!(
                slots[number]
                    .lock()
                    .unwrap()
                    .as_mut()
                    .unwrap()
                    .poll_with(&runs)
                    .is_pending()
            );
        }
        drop(lease);
        assert!(slots.iter().all(|slot| slot.lock().unwrap().is_none()));
        assert_eq!((available(&queue), queue.counts().granted), (1, 50));
    }

    /// Dropped inside the lock, it would wait for itself; this lock reports that.
    #[test]
    fn a_replaced_or_cancelled_waker_may_use_the_queue_in_its_drop() {
        type Locked = Queue<Concurrency, Hand, Watched>;
        struct Uses(Arc<Locked>, Arc<AtomicUsize>);
        impl Drop for Uses {
            fn drop(&mut self) {
                drop(Task::new(self.0.acquire(1)).poll());
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }
        let queue: Arc<Locked> = Arc::new(Queue::with_lock(
            Concurrency::new(1),
            Hand::new(),
            9,
            Watched::new(),
        ));
        let dropped = Arc::new(AtomicUsize::new(0));
        let uses = || {
            let uses = Uses(Arc::clone(&queue), Arc::clone(&dropped));
            waker(move || assert!(!uses.0.is_closed()))
        };
        let held = now(queue.acquire(1)).unwrap();
        let mut task = Task::new(queue.acquire(1));
        assert!(task.poll_with(&uses()).is_pending());
        assert!(task.poll_with(&uses()).is_pending());
        assert_eq!(dropped.load(Ordering::Relaxed), 1, "replaced");
        drop(task);
        assert_eq!(dropped.load(Ordering::Relaxed), 2, "cancelled");
        let mut task = Task::new(queue.acquire(1));
        assert!(task.poll_with(&uses()).is_pending());
        drop(held);
        assert_eq!(dropped.load(Ordering::Relaxed), 3, "woken");
    }

    #[test]
    fn no_waker_runs_inside_the_lock() {
        let queue: Arc<Queue<_, _, Watched>> = Arc::new(
            Queue::with_lock(Concurrency::new(1), Hand::new(), 2, Watched::new())
                .with_order(Order::NewestFirst),
        );
        let ran = Arc::new(AtomicUsize::new(0));
        let careful = || {
            let ran = Arc::clone(&ran);
            waker(move || {
                assert!(!Watched::is_held());
                ran.fetch_add(1, Ordering::Relaxed);
            })
        };
        let held = now(queue.acquire(1)).unwrap();
        let mut tasks: Vec<_> = (0..4).map(|_| Task::new(queue.acquire(1))).collect();
        for task in &mut tasks {
            assert!(task.poll_with(&careful()).is_pending());
        }
        assert_eq!(ran.load(Ordering::Relaxed), 2, "evicted");
        drop(held);
        assert_eq!(ran.load(Ordering::Relaxed), 3, "granted");
        let mut driver = Task::new(queue.drive());
        assert!(driver.poll_with(&careful()).is_pending());
        queue.close();
        assert_eq!(ran.load(Ordering::Relaxed), 5, "closed, and the driver");
    }
}

mod marks {
    use super::*;

    /// A release never waits for the lock: it sets the pending-release bit, and the holder of the
    /// lock grants.
    #[test]
    fn a_release_while_another_holds_the_lock_is_granted_by_the_holder() {
        type Locked = Queue<Concurrency, Hand, Watched>;
        static QUEUE: Locked =
            Queue::with_lock(Concurrency::new(2), Hand::new(), 99, Watched::new());
        type Release = Lease<&'static Locked>;
        let works: [fn(Release); 6] = [
            |held| {
                Watched::before_unlock(move || drop(held));
                drop(Task::waiting(QUEUE.acquire(2)));
            },
            |held| {
                let mut polled = Task::waiting(QUEUE.acquire(2));
                Watched::before_unlock(move || drop(held));
                assert!(polled.is_pending());
            },
            |held| {
                let cancelled = Task::waiting(QUEUE.acquire(2));
                Watched::before_unlock(move || drop(held));
                drop(cancelled);
            },
            |held| {
                Watched::before_unlock(move || drop(held));
                assert_eq!(
                    QUEUE.advance(),
                    Next::OnRelease,
                    "as it was at the time of its look"
                );
            },
            |held| {
                Watched::before_unlock(move || drop(held));
                QUEUE.change(|limit| limit.set_limit(2)).unwrap();
            },
            |held| {
                Watched::before_unlock(move || drop(held));
                assert!(Task::new(QUEUE.drive()).is_pending());
            },
        ];
        for (number, work) in works.into_iter().enumerate() {
            let held = now(QUEUE.acquire(2)).unwrap();
            let wait = Task::waiting(QUEUE.acquire(1));
            work(held);
            assert_eq!(wait.wakes(), 1, "work {number}");
            drop(wait.outcome().unwrap());
        }
        assert_eq!((QUEUE.available_at(START), QUEUE.counts().waiters), (2, 0));
    }

    #[test]
    fn a_release_between_the_first_look_and_the_lock_is_found_by_the_second_look() {
        for order in [Order::OldestFirst, Order::NewestFirst] {
            let queue = queue(FreesOnDenial::new(1, true), 9).with_order(order);
            let held = now(queue.acquire(1)).unwrap().forget();
            assert_eq!(held, 1);
            assert_eq!(permits(now(queue.acquire(1))), Ok(1));
        }
    }
}

#[test]
fn a_release_loses_nothing_if_the_waker_of_a_granted_waiter_panics() {
    let queue = queue(Concurrency::new(3), 99);
    let [a, b, c] = [(); 3].map(|()| queue.try_acquire(1).unwrap());
    let mut loud = Task::new(queue.acquire(2));
    assert!(loud.poll_with(&waker(|| panic!("a waker"))).is_pending());
    Queue::release_later(a);
    Queue::release_later(b);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(c))).is_err());
    assert_eq!(permits(loud.outcome()), Ok(2));
    assert_eq!(available(&queue), 3);
}

#[test]
fn permits_released_while_a_waker_panics_go_to_waiters() {
    let queue = queue(Concurrency::new(3), 99);
    let [a, b, c] = [(); 3].map(|()| queue.try_acquire(1).unwrap());
    let mut loud = Task::new(queue.acquire(2));
    assert!(loud.poll_with(&waker(|| panic!("a waker"))).is_pending());
    let quiet = Task::waiting(queue.acquire(1));
    Queue::release_later(a);
    Queue::release_later(b);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(c))).is_err());
    assert_eq!((quiet.wakes(), available(&queue)), (1, 0));
}
