//! A fixed window decides as an index that never wraps.

mod support;

use support::oracle::agrees;

#[test]
fn a_fixed_window_decides_as_an_index_that_never_wraps_does() {
    for subject in ["fixed window, 64 bits", "fixed window, 32 bits"] {
        let tally = agrees(subject);
        assert!(tally.retried > 1_000 && tally.late > 1_000 && tally.void > 0);
        assert_eq!(
            tally.late_and_less, 0,
            "a stale timestamp counts in the newest window"
        );
    }
}
