use core::time::Duration;
use std::time::{Instant, UNIX_EPOCH};

/// Numbers for the rounds of a long run, which no other run has used: for two minutes, or for
/// `PORTCULLIS_SOAK_SECONDS`. Prints how many rounds there were.
pub(crate) fn rounds(name: &'static str) -> impl Iterator<Item = u64> {
    let seconds = std::env::var("PORTCULLIS_SOAK_SECONDS");
    let seconds = seconds.map_or(120, |seconds| seconds.parse().expect("a number"));
    let (begin, epoch) = (Instant::now(), UNIX_EPOCH.elapsed());
    let first = epoch.map_or(0, |since| since.as_secs()) << 24;
    (first..).take_while(move |round| {
        let goes_on = begin.elapsed() < Duration::from_secs(seconds);
        if !goes_on {
            println!("{name}: {} rounds", round - first);
        }
        goes_on
    })
}
