use std::fs;

/// The processor time of the machine and of this program since they were started, in ticks.
pub(crate) struct Machine {
    all: u64,
    idle: u64,
    own: u64,
}

impl Machine {
    /// Returns `None` where the system does not tell.
    pub(crate) fn now() -> Option<Self> {
        let numbers = |text: &str| -> Vec<u64> {
            let numbers = text.split_whitespace();
            numbers.filter_map(|number| number.parse().ok()).collect()
        };
        let machine = fs::read_to_string("/proc/stat").ok()?;
        let times = numbers(machine.lines().next()?);
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        // The name of the program is in parentheses, and may have blanks. The state is a letter.
        let own = numbers(own.rsplit(')').next()?);
        Some(Self {
            all: times.get(..8)?.iter().sum(),
            idle: times.get(3..5)?.iter().sum(),
            own: own.get(10..12)?.iter().sum(),
        })
    }

    /// Returns the share of the machine that other programs have used since then. 0 if that is less
    /// than a quarter: they may have used it while this program slept.
    pub(crate) fn share_of_others(since: Option<Self>) -> f64 {
        let (Some(since), Some(now)) = (since, Self::now()) else {
            return 0.0;
        };
        let all = now.all.saturating_sub(since.all).max(1);
        let unused = (now.idle + now.own).saturating_sub(since.idle + since.own);
        let thousandths = all.saturating_sub(unused) * 1_000 / all;
        let share = u32::try_from(thousandths).map_or(0.0, |share| f64::from(share) / 1_000.0);
        if share < 0.25 { 0.0 } else { share }
    }
}
