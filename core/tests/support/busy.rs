use core::time::Duration;
use std::sync::LazyLock;
use std::time::Instant;

/// Returns for how long this thread has computed: other programs do not make it longer. Where the
/// system does not tell, returns for how long this program has run.
pub(crate) fn busy() -> Duration {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let times = std::fs::read_to_string("/proc/thread-self/schedstat");
    let nanos = times.ok().and_then(|times| {
        let first = times.split_whitespace().next()?;
        first.parse().ok().map(Duration::from_nanos)
    });
    nanos.unwrap_or_else(|| BEGUN.elapsed())
}
