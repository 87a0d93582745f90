//! A custom limiter that watches the machine instead of counting permits: it denies while the CPU
//! load is above 90 %.
//!
//! `cargo run --example cpu_load` puts the machine under load for a moment, and shows which
//! requests are granted in the meantime.

use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use core::time::Duration;
use std::time::Instant;

use portcullis_core::limiter::{Answer, Ask, Back, Idle, Read, Reading, Receipt, Returned};
use portcullis_core::metadata::{self, Name, REASON_PHRASE, USED_SHARE, Used};
use portcullis_core::{Denied, Limiter, LimiterExt, Retry, Timestamp};

/// The load at each denial, in percent.
const CPU_LOAD: Name<u8> = Name::new("CPU_LOAD");

/// Returns the load of the machine in percent, as last measured. Called for every decision, so it
/// must be fast and must not block.
trait Load {
    fn percent(&self) -> u8;
}

impl<F: Fn() -> u8> Load for F {
    fn percent(&self) -> u8 {
        self()
    }
}

/// Denies while the load is above `most` percent.
///
/// It holds no permits: grants return by themselves when the load falls. It cannot predict when
/// that will be, so a denial says how long to wait before asking again.
struct LoadLimit<L> {
    load: L,
    most: u8,
    ask_again: Duration,
}

impl<L: Load> LoadLimit<L> {
    fn has_room(&self) -> bool {
        self.load.percent() <= self.most
    }
}

impl<L: Load> Limiter for LoadLimit<L> {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if ask.is_look() {
            return ask.looked(self.available_at(now), || u64::MAX);
        }
        Answer::from(if self.has_room() {
            Ok(Receipt::NONE)
        } else {
            Err(Denied::Refused { now, permits: n })
        })
    }

    fn give_back(&self, _: Back<'_>) -> Returned {
        Returned::NOTHING
    }

    fn read(&self, mut read: Read<'_>) -> Reading {
        let denied = read.denied();
        if let Some(denied) = denied {
            read.offer(metadata::RETRY_AFTER, || self.retry(denied));
            read.offer(REASON_PHRASE, || "the machine is too busy");
            read.offer(CPU_LOAD, || self.load.percent());
        }
        read.offer(USED_SHARE, || Used {
            permits: self.load.percent().into(),
            capacity: 100,
        });
        Reading {
            available: if self.has_room() { u64::MAX } else { 0 },
            capacity: u64::MAX,
            idle: Idle::InUse,
            held: 0,
        }
    }

    fn retry(&self, _: Denied) -> Retry {
        Retry::After(self.ask_again)
    }
}

/// The time that all processors together have spent since the boot, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CpuTime {
    idle: u64,
    total: u64,
}

impl CpuTime {
    /// Parses the text of Linux' `/proc/stat`, whose first line is `cpu user nice system idle
    /// iowait irq ...`.
    fn parse(stat: &str) -> Option<Self> {
        let mut fields = stat.lines().next()?.split_whitespace();
        if fields.next()? != "cpu" {
            return None;
        }
        // The fields after the first eight are guest time, which the host's fields already include.
        let ticks: Vec<u64> = fields
            .take(8)
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        let idle = ticks.get(3)?.saturating_add(*ticks.get(4)?);
        Some(Self {
            idle,
            total: ticks.iter().fold(0, |sum, tick| sum.saturating_add(*tick)),
        })
    }

    fn read() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// Returns the share of time that was not idle since `earlier`; `None` if no time has passed.
    fn percent_since(self, earlier: Self) -> Option<u8> {
        let total = self.total.saturating_sub(earlier.total);
        let idle = self.idle.saturating_sub(earlier.idle).min(total);
        u8::try_from((100 * (total - idle)).checked_div(total)?).ok()
    }
}

/// The last measured load: written by the sampler, read by the limiter.
static MEASURED: AtomicU8 = AtomicU8::new(0);

static LIMIT: LoadLimit<fn() -> u8> = LoadLimit {
    load: || MEASURED.load(Relaxed),
    most: 90,
    ask_again: Duration::from_millis(500),
};

fn main() {
    let Some(mut earlier) = CpuTime::read() else {
        println!("this system has no /proc/stat to read the load from");
        return;
    };
    let started = Instant::now();
    let busy = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while started.elapsed() < Duration::from_secs(3) {
                    if busy.load(Relaxed) {
                        core::hint::spin_loop();
                    } else {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                }
            });
        }
        for sample in 0..9 {
            busy.store((3..6).contains(&sample), Relaxed);
            std::thread::sleep(Duration::from_millis(300));
            if let Some(later) = CpuTime::read() {
                MEASURED.store(later.percent_since(earlier).unwrap_or(0), Relaxed);
                earlier = later;
            }
            let now = Timestamp::ZERO.saturating_add(started.elapsed());
            let load = MEASURED.load(Relaxed);
            match LIMIT.try_acquire_at(now, 1) {
                Ok(_) => println!("{now}  load {load:3} %  granted"),
                Err(denied) => {
                    let reason = REASON_PHRASE
                        .of_denied(&LIMIT, now, denied)
                        .unwrap_or(denied.reason());
                    println!(
                        "{now}  load {load:3} %  denied: {reason}, {:?}",
                        denied.retry(&LIMIT)
                    );
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use portcullis_core::Counted;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1);

    fn limit<L: Load>(load: L) -> LoadLimit<L> {
        LoadLimit {
            load,
            most: 90,
            ask_again: Duration::from_millis(500),
        }
    }

    #[test]
    fn it_denies_while_the_load_is_above_the_limit() {
        let load = Cell::new(0);
        let limit = limit(|| load.get());
        for (percent, granted) in [
            (0, true),
            (89, true),
            (90, true),
            (91, false),
            (100, false),
            (90, true),
        ] {
            load.set(percent);
            for n in [0, 1, u32::MAX] {
                assert_eq!(
                    limit.try_acquire_at(NOW, n).is_ok(),
                    granted,
                    "{n} at {percent} %"
                );
            }
            assert_eq!(limit.available_at(NOW) > 0, granted);
        }
    }

    #[test]
    fn a_denial_carries_a_retry_time_and_a_reason() {
        let limit = limit(|| 95);
        let denied = limit.try_acquire_at(NOW, 3).unwrap_err();
        assert_eq!(
            denied,
            Denied::Refused {
                now: NOW,
                permits: 3
            }
        );
        let retry = denied.retry(&limit);
        assert_eq!(retry, Retry::After(Duration::from_millis(500)));
        assert_eq!(
            retry.wait_from(Timestamp::MAX),
            Some(Duration::from_millis(500)),
            "independent of the time"
        );
        assert_eq!(
            metadata::RETRY_AFTER.of_denied(&limit, NOW, denied),
            Some(retry)
        );
        assert_eq!(
            REASON_PHRASE.of_denied(&limit, NOW, denied),
            Some("the machine is too busy")
        );
        assert_eq!(CPU_LOAD.of_denied(&limit, NOW, denied), Some(95));
        assert_eq!(CPU_LOAD.of_granted(&limit, NOW), None);
        assert_eq!(
            USED_SHARE.of_granted(&limit, NOW),
            Some(Used {
                permits: 95,
                capacity: 100
            })
        );
    }

    #[test]
    fn it_works_inside_a_wrapper_and_as_a_trait_object() {
        let load = Cell::new(99);
        let counted = Counted::new(limit(|| load.get()));
        let limiter: &dyn Limiter = &counted;
        assert!(limiter.try_acquire_at(NOW, 1).is_err());
        load.set(10);
        assert!(limiter.try_acquire_at(NOW, 1).is_ok());
        let counts = counted.counts();
        assert_eq!((counts.granted.requests, counts.refused.requests), (1, 1));
    }

    #[test]
    fn the_load_is_the_share_of_time_that_was_not_idle() {
        let before = CpuTime::parse("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3 4\n").unwrap();
        assert_eq!(
            before,
            CpuTime {
                idle: 850,
                total: 1_000
            }
        );
        let after = CpuTime::parse("cpu 190 0 50 806 54 0 0 0 77 0").unwrap();
        assert_eq!(after.percent_since(before), Some(90));
        assert_eq!(before.percent_since(before), None, "no time has passed");
        assert_eq!(before.percent_since(after), None, "time went back");
    }

    #[test]
    fn malformed_text_parses_to_none() {
        for text in [
            "",
            "cpu",
            "cpu 1 2 3 4",
            "cpu0 1 2 3 4 5",
            "cpu 1 2 3 four 5",
            "intr 1 2 3 4 5",
        ] {
            assert_eq!(CpuTime::parse(text), None, "{text:?}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_load_of_this_machine_can_be_read() {
        let reading = CpuTime::read().unwrap();
        assert!(reading.idle <= reading.total);
        let later = CpuTime {
            idle: reading.idle,
            total: reading.total + 7,
        };
        assert_eq!(later.percent_since(reading), Some(100));
    }
}
