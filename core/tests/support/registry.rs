//! Every limiter, once.
//!
//! All suites that test all limiters alike take them from here: those of the core and of the queue,
//! the hot paths and `cargo xtask hot-paths`, the instruction counts, and the programs for
//! microcontrollers. `cargo test -p xtask` fails if a limiter of the core is missing.

/// Hands all rows to `$callback!`. Each row is
///
/// ```text
/// name: Type<W> {
///     on: [instance: word, ...],
///     new: (|limit, time| result),
///     on_board: (|limit, time| result),
///     back: by_time | by_release | always,
///     denial: writes_nothing | learns | acts,
///     refunds: [|limiter, time| duration],
///     saves: [builder, ...],
///     hot_path: { writes: n, cold: [function, ...] },
///     counted: { allow: [instance, ...], deny: [..], roll: [..], retry: [..], refund: [..] },
///     cost: [feature],
/// }
/// ```
///
/// - `W` is the word, which the callback has to define, as a type or as a parameter.
/// - `on` names the words whose hot paths are read. An instance's path is `instance_acquire`,
///   its benches are `instance.allow` and so on.
/// - `new` makes a typical limiter: `limit` permits, which return within `time` if they return by
///   time. It becomes the body of a `const fn` for every word `W`, because each limiter can be in a
///   `static`. So it calls only functions that are `const` and generic over the word, such as
///   `build_on`, and drops nothing that has a destructor. `on_board` makes the same on 32 bits, in
///   ticks of a millisecond where ticks can be chosen.
/// - `back` is how permits return:
///   - `by_time`: by time alone. `Back::Release` does nothing, and a retry time is `Retry::At`.
///   - `by_release`: by `Back::Release` alone, such as the drop of a lease. A retry time is
///     `Retry::OnRelease`, and nothing depends on the time.
///   - `always`: none is ever taken, so none returns, and nothing is denied.
/// - `denial` is what a denial does to the state:
///   - `writes_nothing`: nothing at all, so it may lie on a read-only page.
///   - `learns`: it notes what makes later denials cheaper. No later call is told of it.
///   - `acts`: it may change what later requests are told, as a denial that starts a wait does.
///     Name the type under "A denial writes nothing" at the head of `core/src/lib.rs`.
/// - `refunds` is empty if nothing can be refunded. Otherwise it returns the age at which a receipt
///   is worth nothing, because the word may have wrapped.
/// - `saves` has builders of limiters whose state can be saved while memory is lost.
/// - `hot_path` bounds a grant: the successful atomic writes, and the core's functions for rare
///   cases.
/// - `counted` names the instances whose instructions are counted: of a grant, a denial, a grant
///   after an idle time, a retry time, and a refund.
/// - `cost` names what is measured on a Cortex-M3.
macro_rules! for_each_limiter {
    ($callback:ident) => {
        $callback! {
            token_bucket: portcullis_core::TokenBucket<W> {
                on: [token_bucket: portcullis_core::state::NativeWord, token_bucket_32: u32],
                new: (|limit, time| portcullis_core::TokenBucket::builder(
                    portcullis_core::Rate::new(limit as u32, time),
                    limit,
                )
                .build_on()),
                on_board: (|limit, time| portcullis_core::TokenBucket::builder(
                    portcullis_core::Rate::new(limit as u32, time),
                    limit,
                )
                .tick(core::time::Duration::from_millis(1))
                .build_on()),
                back: by_time,
                denial: writes_nothing,
                refunds: [|limiter, _time| limiter.timing().horizon],
                saves: [
                    portcullis_core::TokenBucket::builder(portcullis_core::Rate::per_second(3), 7),
                    portcullis_core::TokenBucket::builder(portcullis_core::Rate::per_second(3), 7)
                        .debt(5)
                        .tick(core::time::Duration::from_millis(1)),
                ],
                hot_path: { writes: 1, cold: [] },
                counted: {
                    allow: [token_bucket, token_bucket_32],
                    deny: [token_bucket, token_bucket_32],
                    roll: [token_bucket, token_bucket_32],
                    retry: [token_bucket, token_bucket_32],
                    refund: [token_bucket],
                },
                cost: ["token-bucket"],
            }
            fixed_window: portcullis_core::FixedWindow<W> {
                on: [fixed_window: portcullis_core::state::NativeWord, fixed_window_32: u32],
                new: (|limit, time| portcullis_core::FixedWindow::builder(limit, time).build_on()),
                on_board: (|limit, time| portcullis_core::FixedWindow::builder(limit, time)
                    .build_on()),
                back: by_time,
                denial: writes_nothing,
                refunds: [|limiter, time| limiter.timing().horizon + time],
                saves: [
                    portcullis_core::FixedWindow::builder(3, core::time::Duration::from_secs(1)),
                    portcullis_core::FixedWindow::builder(3, core::time::Duration::from_secs(1))
                        .started_by_first_request(),
                ],
                hot_path: { writes: 1, cold: ["elsewhere"] },
                counted: {
                    allow: [fixed_window, fixed_window_32],
                    deny: [fixed_window, fixed_window_32],
                    roll: [fixed_window, fixed_window_32],
                    retry: [fixed_window, fixed_window_32],
                    refund: [fixed_window],
                },
                cost: ["fixed-window"],
            }
            sliding_window: portcullis_core::SlidingWindow<8, W> {
                on: [sliding_window: portcullis_core::state::NativeWord, sliding_window_32: u32],
                new: (|limit, time| portcullis_core::SlidingWindow::builder(limit, time, 8)
                    .build_on()),
                on_board: (|limit, time| portcullis_core::SlidingWindow::builder(limit, time, 8)
                    .build_on()),
                back: by_time,
                denial: writes_nothing,
                refunds: [|limiter, time| limiter.timing().horizon + time / 8],
                saves: [],
                // It also counts in its ring.
                hot_path: { writes: 2, cold: ["expired", "roll"] },
                counted: {
                    allow: [sliding_window, sliding_window_32],
                    deny: [sliding_window, sliding_window_32],
                    roll: [sliding_window, sliding_window_32],
                    retry: [sliding_window, sliding_window_32],
                    refund: [sliding_window],
                },
                cost: ["sliding-window"],
            }
            concurrency: portcullis_core::Concurrency<W> {
                on: [concurrency: portcullis_core::state::NativeWord, concurrency_32: u32],
                new: (|limit, _time| portcullis_core::Concurrency::builder(limit as u32).build_on()),
                on_board: (|limit, _time| portcullis_core::Concurrency::builder(limit as u32).build_on()),
                back: by_release,
                denial: writes_nothing,
                refunds: [],
                saves: [],
                hot_path: { writes: 1, cold: [] },
                counted: {
                    allow: [concurrency, concurrency_32],
                    deny: [concurrency, concurrency_32],
                    roll: [],
                    retry: [],
                    refund: [],
                },
                cost: ["concurrency"],
            }
            unlimited: portcullis_core::Unlimited {
                on: [unlimited: portcullis_core::state::NativeWord],
                new: (|_limit, _time| Ok(portcullis_core::Unlimited)),
                on_board: (|_limit, _time| Ok(portcullis_core::Unlimited)),
                back: always,
                denial: writes_nothing,
                refunds: [],
                saves: [],
                hot_path: { writes: 0, cold: [] },
                counted: { allow: [unlimited], deny: [], roll: [], retry: [], refund: [] },
                cost: [],
            }
            adjustable_bucket: portcullis_core::AdjustableBucket<W> {
                on: [adjustable_bucket: portcullis_core::state::NativeWord, adjustable_bucket_32: u32],
                new: (|limit, time| portcullis_core::AdjustableBucket::builder(
                    portcullis_core::Rate::new(limit as u32, time),
                    limit,
                )
                .debt(limit)
                .build_on()),
                on_board: (|limit, time| portcullis_core::AdjustableBucket::builder(
                    portcullis_core::Rate::new(limit as u32, time),
                    limit,
                )
                .tick(core::time::Duration::from_millis(1))
                .build_on()),
                back: by_time,
                denial: writes_nothing,
                refunds: [|limiter, _time| limiter.timing().horizon],
                saves: [],
                // A new tick, frequent changes of settings, a debt.
                hot_path: {
                    writes: 1,
                    cold: ["note_newer", "take_slowly", "count_in", "is_unstarted"]
                },
                counted: {
                    allow: [adjustable_bucket, adjustable_bucket_32],
                    deny: [adjustable_bucket, adjustable_bucket_32],
                    roll: [],
                    retry: [adjustable_bucket],
                    refund: [adjustable_bucket],
                },
                cost: ["adjustable-bucket"],
            }
            adjustable_window: portcullis_core::AdjustableWindow<W> {
                on: [adjustable_window: portcullis_core::state::NativeWord, adjustable_window_32: u32],
                new: (|limit, time| portcullis_core::AdjustableWindow::builder(limit, time)
                    .build_on()),
                on_board: (|limit, time| portcullis_core::AdjustableWindow::builder(limit, time)
                    .build_on()),
                back: by_time,
                denial: writes_nothing,
                refunds: [|limiter, time| limiter.timing().horizon + time],
                saves: [],
                // The same, or a window that was refunded completely.
                hot_path: {
                    writes: 1,
                    cold: ["note_newer", "take_slowly", "count_in", "is_unstarted"]
                },
                counted: {
                    allow: [adjustable_window],
                    deny: [adjustable_window],
                    roll: [],
                    retry: [],
                    refund: [],
                },
                cost: ["adjustable-window"],
            }
            cooldown_window: portcullis_core::CooldownWindow<W> {
                on: [cooldown_window: portcullis_core::state::NativeWord, cooldown_window_32: u32],
                new: (|limit, time| portcullis_core::CooldownWindow::builder(limit, time)
                    .wait(time)
                    .build_on()),
                on_board: (|limit, time| portcullis_core::CooldownWindow::builder(limit, time)
                    .tick(core::time::Duration::from_millis(1))
                    .build_on()),
                back: by_time,
                denial: acts,
                refunds: [|limiter, _time| limiter.timing().horizon],
                saves: [
                    portcullis_core::CooldownWindow::builder(4, core::time::Duration::from_secs(2))
                        .wait(core::time::Duration::from_secs(1)),
                ],
                hot_path: { writes: 1, cold: ["started_again", "take_slowly"] },
                counted: {
                    allow: [cooldown_window],
                    deny: [cooldown_window],
                    roll: [],
                    retry: [],
                    refund: [],
                },
                cost: ["cooldown-window"],
            }
            sliced_bucket: portcullis_core::SlicedBucket<W> {
                on: [sliced_bucket: portcullis_core::state::NativeWord, sliced_bucket_32: u32],
                new: (|limit, time| portcullis_core::SlicedBucket::builder(
                    portcullis_core::Rate::new(limit as u32, time),
                    limit,
                )
                .build_on()),
                on_board: (|limit, time| portcullis_core::SlicedBucket::builder(
                    portcullis_core::Rate::new(limit as u32, time),
                    limit,
                )
                .tick(core::time::Duration::from_millis(1))
                .build_on()),
                back: by_time,
                denial: writes_nothing,
                refunds: [|limiter, _time| limiter.timing().horizon],
                saves: [],
                hot_path: { writes: 1, cold: [] },
                counted: { allow: [], deny: [], roll: [], retry: [], refund: [] },
                cost: ["sliced-bucket"],
            }
            striped_bucket: portcullis_core::StripedBucket<8, W> {
                on: [striped_bucket: portcullis_core::state::NativeWord, striped_bucket_32: u32],
                new: (|limit, time| portcullis_core::StripedBucket::builder(
                    portcullis_core::Rate::new(limit as u32, time),
                    limit,
                )
                .build_on()),
                on_board: (|limit, time| portcullis_core::StripedBucket::builder(
                    portcullis_core::Rate::new(limit as u32, time),
                    limit,
                )
                .tick(core::time::Duration::from_millis(1))
                .build_on()),
                back: by_time,
                denial: learns,
                refunds: [|limiter, _time| limiter.timing().horizon],
                saves: [],
                hot_path: { writes: 1, cold: ["take_slowly", "trade", "look", "first"] },
                counted: {
                    allow: [striped_bucket],
                    deny: [striped_bucket],
                    roll: [],
                    retry: [],
                    refund: [],
                },
                cost: [],
            }
            striped_concurrency: portcullis_core::StripedConcurrency<8, W> {
                on: [striped_concurrency: portcullis_core::state::NativeWord, striped_concurrency_32: u32],
                new: (|limit, _time| portcullis_core::StripedConcurrency::builder(limit as u32)
                    .build_on()),
                on_board: (|limit, _time| portcullis_core::StripedConcurrency::builder(limit as u32)
                    .build_on()),
                back: by_release,
                denial: writes_nothing,
                refunds: [],
                saves: [],
                hot_path: { writes: 1, cold: ["take_slowly", "finish", "first"] },
                counted: {
                    allow: [striped_concurrency],
                    deny: [striped_concurrency],
                    roll: [],
                    retry: [],
                    refund: [],
                },
                cost: [],
            }
            warming_bucket: portcullis_core::WarmingBucket<W> {
                on: [warming_bucket: portcullis_core::state::NativeWord, warming_bucket_32: u32],
                // A cold one is full again in that time. The fewer the permits, the longer the
                // warm-up, so that the first permit of many is not much earlier.
                new: (|limit, time| portcullis_core::WarmingBucket::builder(
                    portcullis_core::Rate::new(2 * limit as u32, time),
                    limit,
                    time.saturating_mul(1 + 256 / limit as u32),
                )
                .cold_factor(2)
                .build_on()),
                on_board: (|limit, time| portcullis_core::WarmingBucket::builder(
                    portcullis_core::Rate::new(2 * limit as u32, time),
                    limit,
                    time.saturating_mul(1 + 256 / limit as u32),
                )
                .cold_factor(2)
                .tick(core::time::Duration::from_millis(1))
                .build_on()),
                back: by_time,
                denial: writes_nothing,
                refunds: [|limiter, _time| limiter.timing().horizon],
                saves: [
                    portcullis_core::WarmingBucket::builder(
                        portcullis_core::Rate::per_second(3),
                        7,
                        core::time::Duration::from_secs(5),
                    ),
                ],
                hot_path: { writes: 1, cold: [] },
                counted: {
                    allow: [warming_bucket, warming_bucket_32],
                    deny: [warming_bucket, warming_bucket_32],
                    roll: [],
                    retry: [warming_bucket],
                    refund: [warming_bucket],
                },
                cost: ["warming-bucket"],
            }
        }
    };
}
