//! Clocks that have an offset and run too fast or too slow.

use portcullis_core::Timestamp;

const BILLION: i128 = 1_000_000_000;

/// A clock that shows `offset` at time 0, and runs faster than time by `drift` billionths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriftingClock {
    pub(crate) offset: u64,
    pub(crate) drift: i64,
}

impl DriftingClock {
    /// What the clock shows at the true time `at`.
    pub(crate) fn shows(self, at: u64) -> Timestamp {
        let passed = i128::from(at) * (BILLION + i128::from(self.drift)) / BILLION;
        Timestamp::from_nanos(self.offset + passed as u64)
    }

    /// The earliest true time at which the clock shows `time`.
    pub(crate) fn when(self, time: Timestamp) -> u64 {
        let passed = i128::from(time.as_nanos().saturating_sub(self.offset)) * BILLION;
        let speed = BILLION + i128::from(self.drift);
        u64::try_from((passed + speed - 1).div_euclid(speed)).unwrap_or(u64::MAX)
    }
}
