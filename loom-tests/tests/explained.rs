//! Explained takes: each tells of the word that its own decision wrote or read, with the settings
//! that belong to that word.
#![cfg(portcullis_loom)]

use core::hash::BuildHasherDefault;
use core::time::Duration;

use loom::sync::Arc;
use portcullis_core::keyed::{ConcurrencyRules, Line};
use portcullis_core::state::{Carry, Word};
use portcullis_core::{
    AdjustableBucket, AdjustableWindow, AllOf, Concurrency, CooldownWindow, FixedWindow, Keyed,
    Limiter, LimiterExt, Rate, SlicedBucket, SlidingWindow, TokenBucket,
};
use portcullis_loom::{
    Itself, at, explore, explore_briefly, join, on_both_widths, spawn, take, turn,
};

on_both_widths!(
    no_two_grants_of_a_token_bucket_tell_the_same_remainder,
    no_two_grants_of_a_fixed_window_tell_the_same_remainder,
    no_two_grants_of_a_sliding_window_tell_the_same_remainder,
    no_two_grants_of_a_cooldown_window_tell_the_same_remainder,
    no_two_grants_of_a_concurrency_limit_tell_the_same_remainder,
    no_two_grants_of_a_sliced_bucket_tell_the_same_remainder,
    no_two_grants_of_an_adjustable_bucket_tell_the_same_remainder,
    no_two_grants_of_an_adjustable_window_tell_the_same_remainder,
    a_denial_tells_what_a_concurrent_grant_left,
);

const MINUTE: Duration = Duration::from_secs(60);

/// Takes one permit, and returns what the decision told: the permits left, and the capacity.
fn told(limiter: &impl Limiter) -> (u64, u64) {
    turn();
    let (taken, detail) = limiter.take_explained_at(at(5), 1);
    assert!(taken.is_ok());
    (detail.available, detail.capacity)
}

/// Two threads take one of three permits each, and the main thread the third.
fn no_two_grants_tell_the_same<L: Limiter + 'static>(new: fn() -> L) {
    explore_briefly(2, 3, move || {
        let limit = Arc::new(new());
        let a = spawn(&limit, |limit| told(limit));
        let b = spawn(&limit, |limit| told(limit));
        let c = told(&*limit);
        let mut all = [join(a), join(b), c];
        all.sort_unstable();
        assert_eq!(all, [(0, 3), (1, 3), (2, 3)]);
    });
}

fn no_two_grants_of_a_token_bucket_tell_the_same_remainder<W: Word>() {
    no_two_grants_tell_the_same(|| {
        let builder = TokenBucket::builder(Rate::per_second(1), 3);
        builder.build_on::<W>().unwrap()
    });
}

fn no_two_grants_of_a_fixed_window_tell_the_same_remainder<W: Word>() {
    no_two_grants_tell_the_same(|| FixedWindow::builder(3, MINUTE).build_on::<W>().unwrap());
}

fn no_two_grants_of_a_sliding_window_tell_the_same_remainder<W: Word>() {
    explore_briefly(1, 2, || {
        let builder = SlidingWindow::<2>::builder(3, MINUTE, 2);
        let limit = Arc::new(builder.build_on::<W>().unwrap());
        // No segment is left in this time, so no total is too high.
        assert_eq!(told(&*limit), (2, 3));
        let a = spawn(&limit, |limit| told(limit));
        let mut all = [told(&*limit), join(a)];
        all.sort_unstable();
        assert_eq!(all, [(0, 3), (1, 3)]);
    });
}

fn no_two_grants_of_a_cooldown_window_tell_the_same_remainder<W: Word>() {
    no_two_grants_tell_the_same(|| {
        let builder = CooldownWindow::builder(3, MINUTE);
        builder.build_on::<W>().unwrap()
    });
}

fn no_two_grants_of_a_concurrency_limit_tell_the_same_remainder<W: Word>() {
    no_two_grants_tell_the_same(|| Concurrency::builder(3).build_on::<W>().unwrap());
}

fn no_two_grants_of_a_sliced_bucket_tell_the_same_remainder<W: Word>() {
    no_two_grants_tell_the_same(|| {
        let builder = SlicedBucket::builder(Rate::per_minute(1), 3);
        builder.build_on::<W>().unwrap()
    });
}

fn adjustable_bucket<W: Word>(burst: u64) -> AdjustableBucket<W> {
    let builder = AdjustableBucket::builder(Rate::per_second(1), burst);
    builder.tick(Duration::from_secs(1)).build_on().unwrap()
}

fn no_two_grants_of_an_adjustable_bucket_tell_the_same_remainder<W: Word>() {
    no_two_grants_tell_the_same(|| adjustable_bucket::<W>(3));
}

fn adjustable_window<W: Word>(limit: u64) -> AdjustableWindow<W> {
    AdjustableWindow::builder(limit, MINUTE)
        .max_limit(9)
        .build_on()
        .unwrap()
}

fn no_two_grants_of_an_adjustable_window_tell_the_same_remainder<W: Word>() {
    no_two_grants_tell_the_same(|| adjustable_window::<W>(3));
}

fn a_denial_tells_what_a_concurrent_grant_left<W: Word>() {
    explore(|| {
        let limit = Arc::new(Concurrency::builder(3).build_on::<W>().unwrap());
        let grant = spawn(&limit, |limit| take(limit, at(5), 2));
        turn();
        let (taken, detail) = limit.take_explained_at(at(5), 2);
        // The other takes before this call or after it, but is never seen in part.
        assert_eq!(detail.available, 1);
        assert_eq!(detail.is_allowed(), taken.is_ok());
        assert_eq!(join(grant) == 0, taken.is_ok());
    });
}

/// Each change from 3 permits to 5, and to 7, adds the 2 that the capacity grows by. So a take of
/// one leaves 2 of 3, 4 of 5, or 6 of 7. The second change writes its settings over the first ones.
fn tells_the_settings_that_decided<L: Limiter + 'static>(new: fn() -> L, change: fn(&L, u64)) {
    explore_briefly(2, 3, move || {
        let limit = Arc::new(new());
        let taken = spawn(&limit, |limit| told(limit));
        change(&limit, 5);
        change(&limit, 7);
        let told = join(taken);
        assert!([(2, 3), (4, 5), (6, 7)].contains(&told), "{told:?}");
    });
}

#[test]
fn a_take_during_changes_of_a_bucket_tells_the_settings_that_decided() {
    tells_the_settings_that_decided(
        || adjustable_bucket::<u64>(3),
        |limit, burst| {
            let changed = limit.adjust_at(at(5), Rate::per_second(1), burst, Carry::Additive);
            assert_eq!(changed, Ok(()));
        },
    );
}

#[test]
fn a_take_during_changes_of_a_window_tells_the_settings_that_decided() {
    tells_the_settings_that_decided(
        || adjustable_window::<u64>(3),
        |limit, permits| {
            let changed = limit.adjust_at(at(5), permits, MINUTE, Carry::Additive);
            assert_eq!(changed, Ok(()));
        },
    );
}

#[test]
fn no_two_grants_to_a_key_tell_the_same_remainder() {
    explore_briefly(1, 2, || {
        let lines: Vec<Line> = (0..1).map(|_| Line::new()).collect();
        let table = Keyed::new(
            ConcurrencyRules::new(3),
            lines,
            BuildHasherDefault::<Itself>::default(),
        );
        let table = Arc::new(table);
        // The key has a slot.
        assert_eq!(told(&table.key(&1_u64)), (2, 3));
        let a = spawn(&table, |table| told(&table.key(&1_u64)));
        let mut all = [told(&table.key(&1_u64)), join(a)];
        all.sort_unstable();
        assert_eq!(all, [(0, 3), (1, 3)]);
    });
}

#[test]
fn no_two_grants_of_a_composition_tell_the_same_remainder_of_a_limit() {
    explore_briefly(2, 3, || {
        let limits = (Concurrency::new(9), Concurrency::new(2));
        let all = Arc::new(AllOf::new(limits));
        let a = spawn(&all, |all| told(all));
        let mut both = [told(&*all), join(a)];
        both.sort_unstable();
        // After both takes, a look would find no permit.
        assert_eq!(both, [(0, 2), (1, 2)]);
    });
}
