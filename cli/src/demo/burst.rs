//! A burst of 30 requests at a queue, all at once: some are served at once; the others wait, in
//! order, for the time that the rate implies.

use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;
use std::thread::{self, Thread};

use portcullis_async::{Acquire, Queue, ThreadTimer};
use portcullis_core::{Clock, Rate, Timestamp, TokenBucket};

use super::bound::Verdict;

/// The number of requests that arrive at once.
const REQUESTS: usize = 30;
/// The number of permits that are available when they arrive.
const BURST: usize = 5;
/// The number of requests that can wait.
const QUEUED: usize = REQUESTS - BURST;

/// The interval at which the display is updated.
const FRAME: Duration = Duration::from_millis(25);

/// The trial.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burst {
    /// The rate in permits per second.
    pub(crate) rate: u32,
    /// How late the last request may be served, as a fraction of the expected time. What the
    /// machine is late for other threads counts besides: see [`Timeline::late`].
    pub(crate) tolerance: f64,
}

type Waits = Pin<Box<Acquire<Arc<Queue<TokenBucket, ThreadTimer>>>>>;

/// The grants so far with their times, and the thread to wake on a grant.
struct Told {
    queue: Arc<Queue<TokenBucket, ThreadTimer>>,
    granted: Mutex<Vec<(usize, Timestamp)>>,
    thread: Thread,
}

struct Request {
    number: usize,
    told: Arc<Told>,
}

impl Wake for Request {
    fn wake(self: Arc<Self>) {
        let at = self.told.queue.clock().now();
        self.told
            .granted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((self.number, at));
        self.told.thread.unpark();
    }
}

impl Burst {
    /// Returns the trial of the demo, at `rate` permits per second.
    pub(crate) fn at(rate: u32) -> Self {
        Self {
            rate,
            tolerance: 0.03,
        }
    }

    /// Returns the time from one permit to the next.
    fn interval(self) -> Duration {
        Duration::from_secs(1) / self.rate
    }

    /// Returns the time after which the last request is due.
    fn length(self) -> Duration {
        Duration::from_secs(QUEUED as u64) / self.rate
    }

    /// Sends the requests, and calls `show` with their state until all are served or the time limit
    /// has passed.
    pub(crate) fn run(self, mut show: impl FnMut(&Timeline)) -> Timeline {
        let bucket = TokenBucket::new(Rate::per_second(self.rate), BURST as u64);
        let queue = Queue::new(bucket, ThreadTimer::new(), QUEUED as u64).shared();
        let told = Arc::new(Told {
            queue: Arc::clone(&queue),
            granted: Mutex::default(),
            thread: thread::current(),
        });
        let mut waits: Vec<Option<Waits>> = (0..REQUESTS)
            .map(|_| Some(Box::pin(Acquire::new(Arc::clone(&queue), 1))))
            .collect();
        let begin = queue.clock().now();
        let mut timeline = Timeline {
            burst: self,
            now: Duration::ZERO,
            late: Duration::ZERO,
            served: [None; REQUESTS],
            order: Vec::new(),
        };
        let mut look = |timeline: &mut Timeline, number: usize, at: Timestamp| {
            let waker = Waker::from(Arc::new(Request {
                number,
                told: Arc::clone(&told),
            }));
            let outcome = waits[number]
                .as_mut()
                .map(|wait| wait.as_mut().poll(&mut Context::from_waker(&waker)));
            if let Some(Poll::Ready(outcome)) = outcome {
                waits[number] = None;
                if outcome.is_ok() {
                    timeline.served[number] = Some(at.saturating_since(begin));
                    timeline.order.push(number);
                }
            }
        };
        for number in 0..REQUESTS {
            look(&mut timeline, number, queue.clock().now());
        }
        let most = self.length() * 2 + Duration::from_secs(1);
        while timeline.waiting() > 0 && timeline.now < most {
            let parked = queue.clock().now();
            thread::park_timeout(FRAME);
            let slept = queue.clock().now().saturating_since(parked);
            timeline.late = timeline.late.max(slept.saturating_sub(FRAME));
            let granted =
                core::mem::take(&mut *told.granted.lock().unwrap_or_else(PoisonError::into_inner));
            for (number, at) in granted {
                look(&mut timeline, number, at);
            }
            timeline.now = queue.clock().now().saturating_since(begin);
            show(&timeline);
        }
        timeline
    }
}

/// The state of the requests.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    burst: Burst,
    now: Duration,
    /// How late the machine has woken this thread at most, after a sleep of a frame. A busy machine
    /// wakes the timer of the queue late too.
    late: Duration,
    /// The time from the arrival of the burst until each request was served.
    served: [Option<Duration>; REQUESTS],
    /// The served requests, in the order in which they were served.
    order: Vec<usize>,
}

/// The number of columns in a line of the picture: one per replenished permit, and one for the
/// start.
const PLACES: usize = QUEUED + 1;

impl Timeline {
    /// Returns a description of the burst.
    pub(crate) fn heading() -> String {
        format!("{REQUESTS} requests came at once to a queue in front of a token bucket")
    }

    /// Returns the settings of the queue.
    pub(crate) fn configured(&self) -> String {
        format!("{}/s, burst {BURST}, {QUEUED} may wait", self.burst.rate)
    }

    /// Returns the expected result.
    pub(crate) fn bound(&self) -> String {
        format!("{REQUESTS} in order, in {:?}", self.burst.length())
    }

    fn waiting(&self) -> usize {
        REQUESTS - self.order.len()
    }

    /// Returns whether all requests were served, in order and in time.
    pub(crate) fn verdict(&self) -> Verdict {
        let length = self.burst.length();
        // The thread of the timer may be woken later than this one.
        let in_time = length.as_secs_f64() * (1.0 + self.burst.tolerance);
        let latest = in_time + 2.0 * self.late.as_secs_f64();
        let (Some(last), 0) = (self.served.iter().flatten().max(), self.waiting()) else {
            return Verdict::Broken(format!("{} served", self.order.len()));
        };
        let text = format!("{REQUESTS} in {:.3}s", last.as_secs_f64());
        if *last < length || last.as_secs_f64() > latest {
            return Verdict::Broken(text);
        }
        Verdict::Held(text).and(self.order.is_sorted(), "not in order")
    }

    /// Returns the picture: how each request waited and was served, in two columns, and how many
    /// were waiting.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{:.2}s: {} of {REQUESTS} served, {} wait",
            self.now.as_secs_f64(),
            self.order.len(),
            self.waiting()
        )];
        let rows = REQUESTS / 2;
        lines.extend((0..rows).map(|row| {
            let both = format!("{}   {}", self.line(row), self.line(row + rows));
            both.trim_end().to_owned()
        }));
        lines.push(format!("   {}  waiting, of {QUEUED}", self.lengths()));
        lines
    }

    /// Returns the column for an instant.
    fn place(&self, at: Duration) -> usize {
        let place = at.as_nanos() / self.burst.interval().as_nanos().max(1);
        usize::try_from(place).unwrap_or(PLACES).min(PLACES - 1)
    }

    /// Returns the line of a request.
    fn line(&self, number: usize) -> String {
        let (line, end) = match self.served[number] {
            Some(at) => (
                "·".repeat(self.place(at)) + "■",
                format!("{:.2}s", at.as_secs_f64()),
            ),
            None => ("·".repeat(self.place(self.now) + 1), String::new()),
        };
        format!("{:>2} {line:<PLACES$} {end:>6}", number + 1)
    }

    /// Returns the number of waiting requests at the end of each column, up to now.
    fn lengths(&self) -> String {
        const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let waited = |place: usize| {
            let served = self
                .served
                .iter()
                .flatten()
                .filter(|at| self.place(**at) <= place)
                .count();
            REQUESTS - served
        };
        let level = |place: usize| LEVELS[(waited(place) * 8).div_ceil(QUEUED).min(8)];
        let known = self.place(self.now) + 1;
        let text: String = (0..known).map(level).collect();
        format!("{text:<PLACES$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A timeline in which each request was served in time.
    fn served() -> Timeline {
        let every = Duration::from_millis(200);
        let at =
            |number: usize| Some(every * u32::try_from(number.saturating_sub(BURST - 1)).unwrap());
        Timeline {
            burst: Burst::at(5),
            now: Duration::from_secs(5),
            late: Duration::ZERO,
            served: core::array::from_fn(at),
            order: (0..REQUESTS).collect(),
        }
    }

    #[test]
    fn the_bound_holds_if_all_are_served_in_order_and_in_time() {
        assert_eq!(served().verdict(), Verdict::Held("30 in 5.000s".into()));
        assert_eq!(served().bound(), "30 in order, in 5s");
        assert_eq!(served().configured(), "5/s, burst 5, 25 may wait");
    }

    #[test]
    fn the_bound_is_broken_by_late_early_unordered_and_missing_requests() {
        let with = |change: fn(&mut Timeline)| {
            let mut timeline = served();
            change(&mut timeline);
            timeline.verdict()
        };
        let last =
            |timeline: &mut Timeline, at| timeline.served[29] = Some(Duration::from_millis(at));
        let mut timeline = served();
        for (at, held) in [(4_999, false), (5_000, true), (5_149, true), (5_151, false)] {
            last(&mut timeline, at);
            assert_eq!(timeline.verdict().held(), held, "{at}");
        }
        // A machine that wakes its threads late is no fault of the queue.
        timeline.late = Duration::from_millis(100);
        for (at, held) in [(4_999, false), (5_349, true), (5_351, false)] {
            last(&mut timeline, at);
            assert_eq!(timeline.verdict().held(), held, "{at}");
        }
        assert!(!with(|timeline| timeline.order.swap(10, 11)).held());
        let lost = with(|timeline| {
            timeline.order.pop();
            timeline.served[29] = None;
        });
        assert_eq!(lost, Verdict::Broken("29 served".into()));
    }

    #[test]
    fn the_picture_shows_how_long_requests_wait_and_how_many() {
        let mut timeline = served();
        let lines = timeline.lines();
        assert_eq!(lines[0], "5.00s: 30 of 30 served, 0 wait");
        assert_eq!(
            lines[1],
            format!(
                " 1 ■{}  0.00s   16 {}■{}  2.20s",
                " ".repeat(25),
                "·".repeat(11),
                " ".repeat(14)
            )
        );
        assert_eq!(
            lines[15],
            format!(
                "15 {}■{}  2.00s   30 {}■  5.00s",
                "·".repeat(10),
                " ".repeat(15),
                "·".repeat(25)
            )
        );
        assert!(lines[16].contains("█") && lines[16].contains("▁ ") && lines.len() == 17);
        assert!(
            lines.iter().all(|line| line.chars().count() < 80),
            "{lines:?}"
        );

        timeline.now = Duration::from_secs(1);
        timeline.order.truncate(10);
        timeline.served[10..].fill(None);
        let lines = timeline.lines();
        assert_eq!(lines[0], "1.00s: 10 of 30 served, 20 wait");
        assert_eq!(
            lines[1].trim_start_matches(" 1 ■").trim_start(),
            "0.00s   16 ······"
        );
    }

    #[test]
    fn a_burst_is_served_in_order_and_not_early() {
        let mut frames = 0;
        let timeline = Burst {
            rate: 100,
            tolerance: 10.0,
        }
        .run(|timeline| {
            frames += 1;
            assert!(timeline.order.len() >= BURST);
        });
        assert!(frames > 1);
        assert!(timeline.verdict().held(), "{timeline:?}");
        for (number, at) in timeline.served.iter().flatten().enumerate() {
            let due = Duration::from_millis(10)
                * u32::try_from(number.saturating_sub(BURST - 1)).unwrap();
            assert!(*at >= due, "{number}: {timeline:?}");
        }
    }
}
