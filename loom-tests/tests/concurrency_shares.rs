//! The shares of a concurrency limit: one word. A take acquires, a release releases.
#![cfg(portcullis_loom)]

use core::time::Duration;

use loom::sync::Arc;
use portcullis_core::state::Word;
use portcullis_core::{ConcurrencyShares, Limiter};
use portcullis_loom::{Witness, at, explore, join, on_both_widths, spawn, take, turn};

on_both_widths!(
    a_guarantee_is_granted_whatever_others_borrow_at_the_same_time,
    racing_borrowers_never_exceed_the_limit,
    a_release_of_one_share_during_a_take_of_another_loses_no_permit,
    a_recalled_guarantee_is_not_lent_again,
    a_share_that_lent_nothing_has_its_guarantee_while_another_returns,
    a_share_that_returns_gets_what_is_released_before_any_borrower,
    a_permit_guards_data_across_shares,
);

type Shares<const K: usize, W> = Arc<ConcurrencyShares<K, W>>;

fn shares<const K: usize, W: Word>(limit: u32, guarantees: [u32; K]) -> Shares<K, W> {
    let builder = ConcurrencyShares::builder(limit, guarantees);
    Arc::new(builder.build_on().unwrap())
}

/// All shares lend from the start: none has been used.
fn lending<const K: usize, W: Word>(limit: u32, guarantees: [u32; K]) -> Shares<K, W> {
    let builder = ConcurrencyShares::builder(limit, guarantees);
    let builder = builder.lend_after(Duration::from_secs(1));
    Arc::new(builder.build_on().unwrap())
}

fn a_guarantee_is_granted_whatever_others_borrow_at_the_same_time<W: Word>() {
    explore(|| {
        let shares = shares::<2, W>(3, [1, 1]);
        let borrower = spawn(&shares, |shares| take(&shares.share(0), at(0), 2));
        let other = spawn(&shares, |shares| take(&shares.share(0), at(0), 1));
        assert_eq!(take(&shares.share(1), at(0), 1), 1, "guaranteed");
        let borrowed = join(borrower) + join(other);
        assert!(borrowed == 1 || borrowed == 2);
        assert_eq!(u64::from(shares.in_use()), 1 + borrowed);
    });
}

fn racing_borrowers_never_exceed_the_limit<W: Word>() {
    explore(|| {
        let shares = lending::<3, W>(2, [1, 1, 0]);
        let a = spawn(&shares, |shares| take(&shares.share(0), at(9), 1));
        let b = spawn(&shares, |shares| take(&shares.share(1), at(9), 1));
        let c = take(&shares.share(2), at(9), 1);
        assert_eq!(join(a) + join(b) + c, 2);
        assert_eq!(shares.in_use(), 2);
    });
}

fn a_release_of_one_share_during_a_take_of_another_loses_no_permit<W: Word>() {
    explore(|| {
        let shares = lending::<2, W>(2, [1, 1]);
        assert_eq!(take(&shares.share(0), at(0), 2), 2);
        let a = spawn(&shares, |shares| take(&shares.share(1), at(9), 1));
        let b = spawn(&shares, |shares| shares.share(0).release(1));
        turn();
        shares.share(0).release(1);
        join(b);
        let taken = join(a);
        assert_eq!(u64::from(shares.in_use()), taken);
        assert_eq!(u64::from(shares.share(1).in_use()), taken);
        shares.share(1).release(u32::try_from(taken).unwrap());
        assert_eq!(take(&shares.share(0), at(9), 1), 1);
    });
}

fn a_recalled_guarantee_is_not_lent_again<W: Word>() {
    explore(|| {
        let shares = lending::<2, W>(2, [1, 0]);
        assert_eq!(take(&shares.share(1), at(0), 2), 2);
        // Once recalled, the permit that is released is not lent again.
        let owner = spawn(&shares, |shares| {
            shares.share(0).recall_at(at(0));
            shares.share(1).release(1);
            take(&shares.share(0), at(0), 1)
        });
        let borrowed = take(&shares.share(1), at(0), 1);
        assert_eq!((join(owner), borrowed), (1, 0));
        assert_eq!(shares.in_use(), 2);
    });
}

/// Three shares with a limit of 3. The first has lent 1 of its 2 permits to the second, which holds
/// 2. The third holds none, and is guaranteed 1.
fn lent_to_the_second<W: Word>() -> Shares<3, W> {
    let shares = lending::<3, W>(3, [2, 0, 1]);
    assert_eq!(take(&shares.share(2), at(9), 1), 1);
    assert_eq!(take(&shares.share(1), at(9), 2), 2);
    shares.share(2).release(1);
    shares
}

fn a_share_that_lent_nothing_has_its_guarantee_while_another_returns<W: Word>() {
    explore(|| {
        let shares = lent_to_the_second::<W>();
        let first = spawn(&shares, |shares| take(&shares.share(0), at(9), 1));
        let recall = spawn(&shares, |shares| shares.share(0).recall_at(at(9)));
        assert_eq!(take(&shares.share(2), at(9), 1), 1, "it has lent nothing");
        join(recall);
        assert_eq!(join(first), 0);
        shares.share(1).release(1);
        assert_eq!(take(&shares.share(0), at(9), 1), 1);
    });
}

fn a_share_that_returns_gets_what_is_released_before_any_borrower<W: Word>() {
    explore(|| {
        let shares = lent_to_the_second::<W>();
        shares.share(0).recall_at(at(9));
        // A grant of the third share does not change what the first one needs.
        let third = spawn(&shares, |shares| take(&shares.share(2), at(10), 1));
        let second = spawn(&shares, |shares| {
            shares.share(1).release(1);
            take(&shares.share(1), at(10), 1)
        });
        turn();
        assert_eq!((join(third), join(second)), (1, 0));
        assert_eq!(take(&shares.share(0), at(10), 2), 0);
        assert_eq!(take(&shares.share(0), at(10), 1), 1);
        assert_eq!(shares.in_use(), 3);
    });
}

fn a_permit_guards_data_across_shares<W: Word>() {
    explore(|| {
        let shares = ConcurrencyShares::builder(1, [0, 0]).build_on::<W>();
        let guard = Arc::new((shares.unwrap(), Witness::new()));
        let visit = |(shares, data): &(ConcurrencyShares<2, W>, Witness), index: usize| {
            let share = shares.share(index);
            let lease = share.try_acquire_at(at(0), 1);
            if lease.is_ok() {
                data.write();
            }
        };
        let a = spawn(&guard, move |guard| visit(guard, 0));
        let b = spawn(&guard, move |guard| visit(guard, 1));
        turn();
        visit(&guard, 0);
        join(a);
        join(b);
        assert_eq!(guard.0.in_use(), 0);
    });
}
