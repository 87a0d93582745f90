// Rate limiters for C. See bindings/c/README.md.
//
// Written by `cargo xtask c-bindings --bless` from bindings/c/src. Do not edit it.
//
// All times are nanoseconds since an origin of your choice. The functions that can fail return 0
// (PC_OK), an answer above 0, or the caller's mistake below 0. What a function needs of its pointers
// is under "Safety": what it cannot check has undefined behaviour.

#pragma once

#include <stddef.h>
#include <stdint.h>
// The widest word that the processor compares and exchanges: it must be the same for the library and
// for this file. Define it before this file is included if your compiler has no such macro.
#ifndef PC_WORD_BITS
#if defined(__GCC_ATOMIC_LLONG_LOCK_FREE)
#if __GCC_ATOMIC_LLONG_LOCK_FREE == 2
#define PC_WORD_BITS 64
#else
#define PC_WORD_BITS 32
#endif
#elif defined(_WIN64) || defined(__LP64__)
#define PC_WORD_BITS 64
#else
#define PC_WORD_BITS 32
#endif
#endif

#if PC_WORD_BITS == 64
#define PC_SIZE(name) PC_##name##_SIZE_64
#else
#define PC_SIZE(name) PC_##name##_SIZE_32
#endif
#define PC_TOKEN_BUCKET_SIZE PC_SIZE(TOKEN_BUCKET)
#define PC_FIXED_WINDOW_SIZE PC_SIZE(FIXED_WINDOW)
#define PC_SLIDING_WINDOW_SIZE PC_SIZE(SLIDING_WINDOW)
#define PC_CONCURRENCY_SIZE PC_SIZE(CONCURRENCY)
#define PC_LEASE_POOL_SIZE PC_SIZE(LEASE_POOL)
#define PC_BUCKET_TABLE_SIZE PC_SIZE(BUCKET_TABLE)
#define PC_WINDOW_TABLE_SIZE PC_SIZE(WINDOW_TABLE)

// Nanoseconds.
#define PC_MICROSECOND UINT64_C(1000)
#define PC_MILLISECOND UINT64_C(1000000)
#define PC_SECOND UINT64_C(1000000000)
#define PC_MINUTE UINT64_C(60000000000)
#define PC_HOUR UINT64_C(3600000000000)
#define PC_DAY UINT64_C(86400000000000)

#if defined(_MSC_VER) && !defined(__clang__)
#define PC_ALIGNED(bytes) __declspec(align(bytes))
#else
#define PC_ALIGNED(bytes) __attribute__((aligned(bytes)))
#endif


// The bytes of a concurrency limit with 64-bit words.
#define PC_CONCURRENCY_SIZE_64 16

// The bytes of a concurrency limit with 32-bit words.
#define PC_CONCURRENCY_SIZE_32 8

// The bytes of a fixed window with 64-bit words.
#define PC_FIXED_WINDOW_SIZE_64 88

// The bytes of a fixed window with 32-bit words.
#define PC_FIXED_WINDOW_SIZE_32 64

// The bytes of a pool of leases with 64-bit words.
#define PC_LEASE_POOL_SIZE_64 384

// The bytes of a pool of leases with 32-bit words.
#define PC_LEASE_POOL_SIZE_32 256

// The deadline of a lease without one.
#define PC_NO_DEADLINE UINT64_MAX

// The most segments of a sliding window.
#define PC_MAX_SEGMENTS 12

// The bytes of a sliding window with 64-bit words.
#define PC_SLIDING_WINDOW_SIZE_64 216

// The bytes of a sliding window with 32-bit words.
#define PC_SLIDING_WINDOW_SIZE_32 144

// Granted, or done.
#define PC_OK 0

// Denied: too few permits are available now. `..._retry` says when to ask again.
#define PC_DENIED 1

// Denied: more permits than the limiter can ever grant at once. Ask for fewer.
#define PC_TOO_MANY 2

// Denied: the table has no slot for the key, or another call is claiming one.
#define PC_CROWDED 3

// Denied: all slots of the pool hold leases.
#define PC_POOL_FULL 4

// The number names no lease of this pool: it was given back or swept before.
#define PC_STALE 5

// Permits return when they are given back, and no time for that is known.
#define PC_ON_RELEASE 6

// The permits asked for never become available.
#define PC_NEVER 7

// Mistake: a pointer is null that must not be.
#define PC_NULL -1

// Mistake: a pointer does not have the alignment of its type.
#define PC_MISALIGNED -2

// Mistake: the storage is smaller than its type, or there is no line or slot in the memory.
#define PC_TOO_SMALL -3

// Mistake: the storage has not been initialised, or as another type.
#define PC_NOT_INITIALISED -4

// Mistake: the storage has been initialised before, or is not zero. Set it to zero first, when no
// call uses it.
#define PC_INITIALISED -5

// Mistake: the receipt is from another limiter or key, or from no grant.
#define PC_WRONG_RECEIPT -6

// Mistake: more permits are given back than the receipt still covers.
#define PC_NOT_TAKEN -7

// Mistake: the key is longer than half of the address space.
#define PC_BAD_KEY -8

// Mistake: the `permits` of a rate are 0, or too many in a period for a word of 32 bits.
#define PC_BAD_PERMITS -20

// Mistake: the `period` of a rate is zero or too long.
#define PC_BAD_PERIOD -21

// Mistake: the `burst` is zero or too large.
#define PC_BAD_BURST -22

// Mistake: more permits are `taken` at the start than the burst has.
#define PC_BAD_TAKEN -23

// Mistake: the `limit` is zero or too large.
#define PC_BAD_LIMIT -24

// Mistake: the `window` is zero or too long.
#define PC_BAD_WINDOW -25

// Mistake: there are no `segments`, or more than `PC_MAX_SEGMENTS`, or than the window has ticks.
#define PC_BAD_SEGMENTS -26

// Mistake: the `tick` does not fit the other settings.
#define PC_BAD_TICK -27

// Mistake: the `staleness` is below one second, or too long for the word.
#define PC_BAD_STALENESS -28

// Mistake: another setting does not fit.
#define PC_BAD_SETTING -29

// The bytes of a table of token buckets with 64-bit words.
#define PC_BUCKET_TABLE_SIZE_64 160

// The bytes of a table of token buckets with 32-bit words.
#define PC_BUCKET_TABLE_SIZE_32 128

// The bytes of a table of fixed windows with 64-bit words.
#define PC_WINDOW_TABLE_SIZE_64 160

// The bytes of a table of fixed windows with 32-bit words.
#define PC_WINDOW_TABLE_SIZE_32 128

// The bytes of a token bucket with 64-bit words.
#define PC_TOKEN_BUCKET_SIZE_64 88

// The bytes of a token bucket with 32-bit words.
#define PC_TOKEN_BUCKET_SIZE_32 64

// A concurrency limit: at most `limit` permits in use at once. Permits return when they are
// given back, so `..._take` needs a receipt.
typedef struct PC_ALIGNED(8) pc_concurrency {
    // Opaque. All zero before `..._init`.
    uint8_t bytes[PC_CONCURRENCY_SIZE];
} pc_concurrency;

// The receipt of a grant, written by `..._take` and used up by `..._give_back`. Do not change or
// copy it: a copy could be given back a second time.
typedef struct pc_receipt {
    // Opaque.
    uint64_t note;
    // Opaque.
    uint64_t time;
    // Names the limiter or the key.
    size_t owner;
    // The permits of the grant that have not been given back.
    uint32_t permits;
} pc_receipt;

// What a limiter tells about a request: written by `..._explain`.
typedef struct pc_detail {
    // The permits that are available.
    uint64_t available;
    // The most permits that can be available at once.
    uint64_t capacity;
    // The time in which the whole capacity returns, in nanoseconds; 0 if permits do not return by
    // time.
    uint64_t time_to_fill;
    // When the request can be granted: a time if `retry` is `PC_OK`.
    uint64_t retry_at;
    // When the whole capacity is available again: a time if `full` is `PC_OK`.
    uint64_t full_at;
    // What `..._look` returns: `PC_OK`, or why the request is denied.
    int decision;
    // What `..._retry` returns: `PC_OK`, `PC_ON_RELEASE` or `PC_NEVER`.
    int retry;
    // `PC_OK`, `PC_ON_RELEASE` or `PC_NEVER`.
    int full;
} pc_detail;

// A fixed window: at most `limit` permits in each window.
typedef struct PC_ALIGNED(8) pc_fixed_window {
    // Opaque. All zero before `..._init`.
    uint8_t bytes[PC_FIXED_WINDOW_SIZE];
} pc_fixed_window;

// The settings of a fixed window. Those that are 0 have their defaults.
typedef struct pc_fixed_window_settings {
    // The permits in each window, at least 1.
    uint64_t limit;
    // The length of a window, in nanoseconds: 1 ns to 292 years.
    uint64_t window;
    // The time from which windows are counted, in nanoseconds.
    uint64_t origin;
    // The unit in which it counts time, in nanoseconds, if the first request starts a window; 0:
    // chosen.
    uint64_t tick;
    // How much older than the newest time another one may be, in nanoseconds, at least a second;
    // 0: chosen.
    uint64_t staleness;
    // Not 0: the first request after a window starts the next one.
    uint32_t from_first_request;
} pc_fixed_window_settings;

// A pool of leases: at most `limit` permits in use at once, by at most as many holders as it
// has slots.
typedef struct PC_ALIGNED(128) pc_lease_pool {
    // Opaque. All zero before `..._init`.
    uint8_t bytes[PC_LEASE_POOL_SIZE];
} pc_lease_pool;

// Memory for one lease of a pool.
typedef struct PC_ALIGNED(4) pc_lease_slot {
    // Opaque.
    uint8_t bytes[16];
} pc_lease_slot;

// The number of a lease. It names the lease until it is given back or swept; its slot must then be
// used 2^30 times before the number names another one. It does not say which pool it is of.
typedef uint64_t pc_lease;

// A sliding window: at most `limit` permits in any `segments` successive segments.
typedef struct PC_ALIGNED(8) pc_sliding_window {
    // Opaque. All zero before `..._init`.
    uint8_t bytes[PC_SLIDING_WINDOW_SIZE];
} pc_sliding_window;

// The settings of a sliding window. Those that are 0 have their defaults.
typedef struct pc_sliding_window_settings {
    // The permits in a window, at least 1.
    uint64_t limit;
    // The length of a window, in nanoseconds: 1 ns to 292 years.
    uint64_t window;
    // The time from which segments are counted, in nanoseconds.
    uint64_t origin;
    // How much older than the newest time another one may be, in nanoseconds, at least a second;
    // 0: chosen.
    uint64_t staleness;
    // The number of segments in a window: 1 to `PC_MAX_SEGMENTS`.
    uint32_t segments;
    // Not 0: the limit holds in any span of time as long as the window. A permit then returns one
    // segment later.
    uint32_t strict;
} pc_sliding_window_settings;

// A table with a token bucket for each key.
typedef struct PC_ALIGNED(8) pc_bucket_table {
    // Opaque. All zero before `..._init`.
    uint8_t bytes[PC_BUCKET_TABLE_SIZE];
} pc_bucket_table;

// Memory for the keys of a table: 7 keys with 64-bit words, 14 with 32-bit words. A table needs
// more memory than that: with 43 bytes for each key that is in use at once, 1 new key in 1,000,000
// finds no slot; with 16 bytes, 1 in 70.
typedef struct PC_ALIGNED(64) pc_line {
    // Opaque.
    uint8_t bytes[64];
} pc_line;

// The settings of a token bucket. Those that are 0 have their defaults.
typedef struct pc_token_bucket_settings {
    // The rate: `permits`, at least 1, return in each `period`, evenly.
    uint32_t permits;
    // Not 0: all permits of a period return at its end.
    uint32_t stepwise;
    // The period of the rate, in nanoseconds: 1 ns to 292 years.
    uint64_t period;
    // The permits that the bucket can hold, at least 1.
    uint64_t burst;
    // The permits that are missing at the origin; 0: it starts full. A bucket in a table starts
    // full.
    uint64_t taken;
    // The time at which the bucket starts, in nanoseconds.
    uint64_t origin;
    // The unit in which it counts time, in nanoseconds; 0: chosen.
    uint64_t tick;
    // How much older than the newest time another one may be, in nanoseconds, at least a second;
    // 0: chosen.
    uint64_t staleness;
} pc_token_bucket_settings;

// A table with a fixed window for each key.
typedef struct PC_ALIGNED(8) pc_window_table {
    // Opaque. All zero before `..._init`.
    uint8_t bytes[PC_WINDOW_TABLE_SIZE];
} pc_window_table;

// A token bucket: in any span of time `t`, at most `burst + permits / period * t` permits.
typedef struct PC_ALIGNED(8) pc_token_bucket {
    // Opaque. All zero before `..._init`.
    uint8_t bytes[PC_TOKEN_BUCKET_SIZE];
} pc_token_bucket;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Initialises a concurrency limit in the `size` bytes of `concurrency`, which are all zero: pass
// `sizeof`. The limit is 1 to 2^30 - 1, or 2^14 - 1 with 32-bit words.
//
// Returns `PC_OK`, or the mistake; then the storage is as it was.
//
// Interrupts: other calls with this limit may interrupt it, and return `PC_NOT_INITIALISED`. It
// must not interrupt them, nor run twice at once.
//
// # Safety
//
// `concurrency` is null, misaligned, or points to memory of that type for as long as it is used.
int pc_concurrency_init(struct pc_concurrency *concurrency, size_t size, uint32_t limit);

// Takes `permits` at the time `now`. With 0 permits it takes nothing, and returns what a
// request for 1 would.
//
// `receipt` is where the receipt of the grant goes, for `..._give_back`. It may be null if
// the permits return by time.
//
// Returns `PC_OK` if they were granted, or why not: then nothing has been taken.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It waits for none.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_concurrency_take(const struct pc_concurrency *concurrency,
                        uint64_t now,
                        uint32_t permits,
                        struct pc_receipt *receipt);

// Gives back `permits` of the grant that `receipt` is from, at the time `now`, and reduces
// the receipt by them.
//
// Where permits return by time, they count as never taken as far as that cannot exceed the
// limit; the others return by time. `returned` is where the number of the first goes; it
// may be null.
//
// Returns `PC_OK`, `PC_WRONG_RECEIPT`, or `PC_NOT_TAKEN`: then nothing has changed.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one, but not with the same receipt.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_concurrency_give_back(const struct pc_concurrency *concurrency,
                             uint64_t now,
                             uint32_t permits,
                             struct pc_receipt *receipt,
                             uint32_t *returned);

// Returns what `..._take` would return, and takes nothing.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It writes nothing.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_concurrency_look(const struct pc_concurrency *concurrency, uint64_t now, uint32_t permits);

// Writes the number of permits that are available at the time `now` to `available`.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_concurrency_available(const struct pc_concurrency *concurrency,
                             uint64_t now,
                             uint64_t *available);

// Writes to `at` when a request for `permits` can be granted: `now`, or the earliest time
// at which it is granted if no other call takes permits.
//
// Returns `PC_OK`, or `PC_ON_RELEASE` or `PC_NEVER` if no time is known; then `at` is not
// written.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter. It divides.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_concurrency_retry(const struct pc_concurrency *concurrency,
                         uint64_t now,
                         uint32_t permits,
                         uint64_t *at);

// Writes to `detail` what would happen to a request for `permits` at the time `now`, and
// the numbers of the limiter that go with that decision. Takes nothing.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter. It divides.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_concurrency_explain(const struct pc_concurrency *concurrency,
                           uint64_t now,
                           uint32_t permits,
                           struct pc_detail *detail);

// Initialises a fixed window in the `size` bytes of `window`, which are all zero: pass `sizeof`.
//
// Returns `PC_OK`, or the mistake; then the storage is as it was.
//
// Interrupts: other calls with this window may interrupt it, and return `PC_NOT_INITIALISED`. It
// must not interrupt them, nor run twice at once.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type, `window` for as long as it is
// used.
int pc_fixed_window_init(struct pc_fixed_window *window,
                         size_t size,
                         const struct pc_fixed_window_settings *settings);

// Takes `permits` at the time `now`. With 0 permits it takes nothing, and returns what a
// request for 1 would.
//
// `receipt` is where the receipt of the grant goes, for `..._give_back`. It may be null if
// the permits return by time.
//
// Returns `PC_OK` if they were granted, or why not: then nothing has been taken.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It waits for none.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_fixed_window_take(const struct pc_fixed_window *window,
                         uint64_t now,
                         uint32_t permits,
                         struct pc_receipt *receipt);

// Gives back `permits` of the grant that `receipt` is from, at the time `now`, and reduces
// the receipt by them.
//
// Where permits return by time, they count as never taken as far as that cannot exceed the
// limit; the others return by time. `returned` is where the number of the first goes; it
// may be null.
//
// Returns `PC_OK`, `PC_WRONG_RECEIPT`, or `PC_NOT_TAKEN`: then nothing has changed.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one, but not with the same receipt.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_fixed_window_give_back(const struct pc_fixed_window *window,
                              uint64_t now,
                              uint32_t permits,
                              struct pc_receipt *receipt,
                              uint32_t *returned);

// Returns what `..._take` would return, and takes nothing.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It writes nothing.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_fixed_window_look(const struct pc_fixed_window *window, uint64_t now, uint32_t permits);

// Writes the number of permits that are available at the time `now` to `available`.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_fixed_window_available(const struct pc_fixed_window *window,
                              uint64_t now,
                              uint64_t *available);

// Writes to `at` when a request for `permits` can be granted: `now`, or the earliest time
// at which it is granted if no other call takes permits.
//
// Returns `PC_OK`, or `PC_ON_RELEASE` or `PC_NEVER` if no time is known; then `at` is not
// written.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter. It divides.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_fixed_window_retry(const struct pc_fixed_window *window,
                          uint64_t now,
                          uint32_t permits,
                          uint64_t *at);

// Writes to `detail` what would happen to a request for `permits` at the time `now`, and
// the numbers of the limiter that go with that decision. Takes nothing.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter. It divides.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_fixed_window_explain(const struct pc_fixed_window *window,
                            uint64_t now,
                            uint32_t permits,
                            struct pc_detail *detail);

// Initialises a pool of leases in the `size` bytes of `pool`, which are all zero: pass `sizeof`.
// Its slots are in the `slots_size` bytes of `slots`, of which it uses at most 65,536 slots. The
// limit is as for `pc_concurrency_init`.
//
// Returns `PC_OK`, or the mistake; then the pool is as it was.
//
// Interrupts: other calls with this pool may interrupt it, and return `PC_NOT_INITIALISED`. It
// must not interrupt them, nor run twice at once.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type for as long as the pool is
// used. The slots are of no other pool.
int pc_lease_pool_init(struct pc_lease_pool *pool,
                       size_t size,
                       struct pc_lease_slot *slots,
                       size_t slots_size,
                       uint32_t limit);

// Takes `permits` at the time `now`, until they are given back, or swept at or after `deadline`,
// which may be `PC_NO_DEADLINE`. With 0 permits, the lease holds none.
//
// Returns `PC_OK`, and writes the number of the lease to `lease`; or `PC_DENIED`, `PC_TOO_MANY` or
// `PC_POOL_FULL`: then nothing has been taken.
//
// Interrupts: may interrupt any other call with the same pool, and be interrupted by one. It waits
// for none.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_lease_pool_take(const struct pc_lease_pool *pool,
                       uint64_t now,
                       uint32_t permits,
                       uint64_t deadline,
                       pc_lease *lease);

// Gives back all permits of a lease. `returned` is where their number goes; it may be null.
//
// Returns `PC_OK`, or `PC_STALE` if the number names no lease of this pool: then nothing has
// changed.
//
// Interrupts: may interrupt any other call with the same pool, and be interrupted by one, also
// with the same lease: one of the two gets `PC_STALE`.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_lease_pool_give_back(const struct pc_lease_pool *pool, pc_lease lease, uint32_t *returned);

// Takes back the permits of all leases whose deadline is at or before `now`. `returned` is where
// their number goes; it may be null. Reads all slots.
//
// Interrupts: may interrupt any other call with the same pool, and be interrupted by one.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_lease_pool_sweep(const struct pc_lease_pool *pool, uint64_t now, uint64_t *returned);

// Returns the index of a lease's slot in the memory of its pool. No two leases have the same slot
// at the same time, so it is an index into an array of buffers.
//
// Interrupts: may be called anywhere.
size_t pc_lease_slot_of(pc_lease lease);

// Returns what `..._take` would return, and takes nothing.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It writes nothing.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_lease_pool_look(const struct pc_lease_pool *pool, uint64_t now, uint32_t permits);

// Writes the number of permits that are available at the time `now` to `available`.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_lease_pool_available(const struct pc_lease_pool *pool, uint64_t now, uint64_t *available);

// Writes to `at` when a request for `permits` can be granted: `now`, or the earliest time
// at which it is granted if no other call takes permits.
//
// Returns `PC_OK`, or `PC_ON_RELEASE` or `PC_NEVER` if no time is known; then `at` is not
// written.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter. It divides.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_lease_pool_retry(const struct pc_lease_pool *pool,
                        uint64_t now,
                        uint32_t permits,
                        uint64_t *at);

// Writes to `detail` what would happen to a request for `permits` at the time `now`, and
// the numbers of the limiter that go with that decision. Takes nothing.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter. It divides.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_lease_pool_explain(const struct pc_lease_pool *pool,
                          uint64_t now,
                          uint32_t permits,
                          struct pc_detail *detail);

// Initialises a sliding window in the `size` bytes of `window`, which are all zero: pass `sizeof`.
//
// Returns `PC_OK`, or the mistake; then the storage is as it was.
//
// Interrupts: other calls with this window may interrupt it, and return `PC_NOT_INITIALISED`. It
// must not interrupt them, nor run twice at once.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type, `window` for as long as it is
// used.
int pc_sliding_window_init(struct pc_sliding_window *window,
                           size_t size,
                           const struct pc_sliding_window_settings *settings);

// Takes `permits` at the time `now`. With 0 permits it takes nothing, and returns what a
// request for 1 would.
//
// `receipt` is where the receipt of the grant goes, for `..._give_back`. It may be null if
// the permits return by time.
//
// Returns `PC_OK` if they were granted, or why not: then nothing has been taken.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It waits for none.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_sliding_window_take(const struct pc_sliding_window *window,
                           uint64_t now,
                           uint32_t permits,
                           struct pc_receipt *receipt);

// Gives back `permits` of the grant that `receipt` is from, at the time `now`, and reduces
// the receipt by them.
//
// Where permits return by time, they count as never taken as far as that cannot exceed the
// limit; the others return by time. `returned` is where the number of the first goes; it
// may be null.
//
// Returns `PC_OK`, `PC_WRONG_RECEIPT`, or `PC_NOT_TAKEN`: then nothing has changed.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one, but not with the same receipt.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_sliding_window_give_back(const struct pc_sliding_window *window,
                                uint64_t now,
                                uint32_t permits,
                                struct pc_receipt *receipt,
                                uint32_t *returned);

// Returns what `..._take` would return, and takes nothing.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It writes nothing.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_sliding_window_look(const struct pc_sliding_window *window, uint64_t now, uint32_t permits);

// Writes the number of permits that are available at the time `now` to `available`.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_sliding_window_available(const struct pc_sliding_window *window,
                                uint64_t now,
                                uint64_t *available);

// Writes to `at` when a request for `permits` can be granted: `now`, or the earliest time
// at which it is granted if no other call takes permits.
//
// Returns `PC_OK`, or `PC_ON_RELEASE` or `PC_NEVER` if no time is known; then `at` is not
// written.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter. It divides.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_sliding_window_retry(const struct pc_sliding_window *window,
                            uint64_t now,
                            uint32_t permits,
                            uint64_t *at);

// Writes to `detail` what would happen to a request for `permits` at the time `now`, and
// the numbers of the limiter that go with that decision. Takes nothing.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter. It divides.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_sliding_window_explain(const struct pc_sliding_window *window,
                              uint64_t now,
                              uint32_t permits,
                              struct pc_detail *detail);

// Returns a status in a few words, for a log. The text is a constant, and ends with a zero.
//
// Interrupts: may be called anywhere.
const char *pc_status_text(int status);

// Initialises a table of token buckets in the `size` bytes of `table`, which are all zero: pass
// `sizeof`. Its keys are in the `lines_size` bytes of `lines`. The two numbers of the seed should
// be random: who knows them can choose keys that fill all slots of another key.
//
// Returns `PC_OK`, or the mistake; then the table is as it was.
//
// Interrupts: other calls with this table may interrupt it, and return `PC_NOT_INITIALISED`. It
// must not interrupt them, nor run twice at once.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type, `table` and `lines` for as
// long as the table is used. The lines are of no other table.
int pc_bucket_table_init(struct pc_bucket_table *table,
                         size_t size,
                         struct pc_line *lines,
                         size_t lines_size,
                         const struct pc_token_bucket_settings *settings,
                         uint64_t seed,
                         uint64_t more_seed);

// Takes `permits` at the time `now`. With 0 permits it takes nothing, and returns what a
// request for 1 would.
//
// `receipt` is where the receipt of the grant goes, for `..._give_back`. It may be null if
// the permits return by time.
//
// Returns `PC_OK` if they were granted, or why not: then nothing has been taken.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It waits for none.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_bucket_table_take(const struct pc_bucket_table *table,
                         const void *key,
                         size_t length,
                         uint64_t now,
                         uint32_t permits,
                         struct pc_receipt *receipt);

// Gives back `permits` of the grant that `receipt` is from, at the time `now`, and reduces
// the receipt by them.
//
// Where permits return by time, they count as never taken as far as that cannot exceed the
// limit; the others return by time. `returned` is where the number of the first goes; it
// may be null.
//
// Returns `PC_OK`, `PC_WRONG_RECEIPT`, or `PC_NOT_TAKEN`: then nothing has changed.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one, but not with the same receipt.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_bucket_table_give_back(const struct pc_bucket_table *table,
                              const void *key,
                              size_t length,
                              uint64_t now,
                              uint32_t permits,
                              struct pc_receipt *receipt,
                              uint32_t *returned);

// Returns what `..._take` would return, and takes nothing.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It writes nothing.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_bucket_table_look(const struct pc_bucket_table *table,
                         const void *key,
                         size_t length,
                         uint64_t now,
                         uint32_t permits);

// Writes the number of permits that are available at the time `now` to `available`.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_bucket_table_available(const struct pc_bucket_table *table,
                              const void *key,
                              size_t length,
                              uint64_t now,
                              uint64_t *available);

// Writes to `at` when a request for `permits` can be granted: `now`, or the earliest time
// at which it is granted if no other call takes permits.
//
// Returns `PC_OK`, or `PC_ON_RELEASE` or `PC_NEVER` if no time is known; then `at` is not
// written.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter. It divides.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_bucket_table_retry(const struct pc_bucket_table *table,
                          const void *key,
                          size_t length,
                          uint64_t now,
                          uint32_t permits,
                          uint64_t *at);

// Writes to `detail` what would happen to a request for `permits` at the time `now`, and
// the numbers of the limiter that go with that decision. Takes nothing.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter. It divides.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_bucket_table_explain(const struct pc_bucket_table *table,
                            const void *key,
                            size_t length,
                            uint64_t now,
                            uint32_t permits,
                            struct pc_detail *detail);

// Initialises a table of fixed windows in the `size` bytes of `table`, which are all zero: pass
// `sizeof`. Its keys are in the `lines_size` bytes of `lines`. The two numbers of the seed should
// be random: who knows them can choose keys that fill all slots of another key.
//
// Returns `PC_OK`, or the mistake; then the table is as it was.
//
// Interrupts: other calls with this table may interrupt it, and return `PC_NOT_INITIALISED`. It
// must not interrupt them, nor run twice at once.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type, `table` and `lines` for as
// long as the table is used. The lines are of no other table.
int pc_window_table_init(struct pc_window_table *table,
                         size_t size,
                         struct pc_line *lines,
                         size_t lines_size,
                         const struct pc_fixed_window_settings *settings,
                         uint64_t seed,
                         uint64_t more_seed);

// Takes `permits` at the time `now`. With 0 permits it takes nothing, and returns what a
// request for 1 would.
//
// `receipt` is where the receipt of the grant goes, for `..._give_back`. It may be null if
// the permits return by time.
//
// Returns `PC_OK` if they were granted, or why not: then nothing has been taken.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It waits for none.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_window_table_take(const struct pc_window_table *table,
                         const void *key,
                         size_t length,
                         uint64_t now,
                         uint32_t permits,
                         struct pc_receipt *receipt);

// Gives back `permits` of the grant that `receipt` is from, at the time `now`, and reduces
// the receipt by them.
//
// Where permits return by time, they count as never taken as far as that cannot exceed the
// limit; the others return by time. `returned` is where the number of the first goes; it
// may be null.
//
// Returns `PC_OK`, `PC_WRONG_RECEIPT`, or `PC_NOT_TAKEN`: then nothing has changed.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one, but not with the same receipt.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_window_table_give_back(const struct pc_window_table *table,
                              const void *key,
                              size_t length,
                              uint64_t now,
                              uint32_t permits,
                              struct pc_receipt *receipt,
                              uint32_t *returned);

// Returns what `..._take` would return, and takes nothing.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It writes nothing.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_window_table_look(const struct pc_window_table *table,
                         const void *key,
                         size_t length,
                         uint64_t now,
                         uint32_t permits);

// Writes the number of permits that are available at the time `now` to `available`.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_window_table_available(const struct pc_window_table *table,
                              const void *key,
                              size_t length,
                              uint64_t now,
                              uint64_t *available);

// Writes to `at` when a request for `permits` can be granted: `now`, or the earliest time
// at which it is granted if no other call takes permits.
//
// Returns `PC_OK`, or `PC_ON_RELEASE` or `PC_NEVER` if no time is known; then `at` is not
// written.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter. It divides.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_window_table_retry(const struct pc_window_table *table,
                          const void *key,
                          size_t length,
                          uint64_t now,
                          uint32_t permits,
                          uint64_t *at);

// Writes to `detail` what would happen to a request for `permits` at the time `now`, and
// the numbers of the limiter that go with that decision. Takes nothing.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter. It divides.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_window_table_explain(const struct pc_window_table *table,
                            const void *key,
                            size_t length,
                            uint64_t now,
                            uint32_t permits,
                            struct pc_detail *detail);

// Returns the nanoseconds of `ticks` of a timer that counts `hertz` in a second, rounded down; at
// most `UINT64_MAX`. With 0 hertz, returns 0. Later ticks never give an earlier time.
//
// If a tick is a whole number of nanoseconds, multiply instead: this function divides.
//
// Interrupts: may be called anywhere.
uint64_t pc_nanos(uint64_t ticks, uint32_t hertz);

// Initialises a token bucket in the `size` bytes of `bucket`, which are all zero: pass `sizeof`.
//
// Returns `PC_OK`, or the mistake; then the storage is as it was.
//
// Interrupts: other calls with this bucket may interrupt it, and return `PC_NOT_INITIALISED`. It
// must not interrupt them, nor run twice at once.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type, `bucket` for as long as it is
// used.
int pc_token_bucket_init(struct pc_token_bucket *bucket,
                         size_t size,
                         const struct pc_token_bucket_settings *settings);

// Initialises a token bucket as `pc_token_bucket_init` does, and restores the state that
// `pc_token_bucket_state` wrote for a bucket with the same settings. The times must count from the
// same origin as those of the saved bucket.
//
// Any number is a state. With a damaged one, or one of other settings, the bucket may grant fewer
// permits at first, or more, but no more than a full one.
//
// Returns `PC_OK`, or the mistake; then the storage is as it was.
//
// Interrupts: as `pc_token_bucket_init`.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type, `bucket` for as long as it is
// used.
int pc_token_bucket_restore(struct pc_token_bucket *bucket,
                            size_t size,
                            const struct pc_token_bucket_settings *settings,
                            uint64_t state);

// Writes the state of a token bucket to `state`, to be saved for `pc_token_bucket_restore`. With
// 32-bit words it has 32 bits.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by one. A
// permit that is taken later is not in the state.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_token_bucket_state(const struct pc_token_bucket *bucket, uint64_t *state);

// Takes `permits` at the time `now`. With 0 permits it takes nothing, and returns what a
// request for 1 would.
//
// `receipt` is where the receipt of the grant goes, for `..._give_back`. It may be null if
// the permits return by time.
//
// Returns `PC_OK` if they were granted, or why not: then nothing has been taken.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It waits for none.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_token_bucket_take(const struct pc_token_bucket *bucket,
                         uint64_t now,
                         uint32_t permits,
                         struct pc_receipt *receipt);

// Gives back `permits` of the grant that `receipt` is from, at the time `now`, and reduces
// the receipt by them.
//
// Where permits return by time, they count as never taken as far as that cannot exceed the
// limit; the others return by time. `returned` is where the number of the first goes; it
// may be null.
//
// Returns `PC_OK`, `PC_WRONG_RECEIPT`, or `PC_NOT_TAKEN`: then nothing has changed.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one, but not with the same receipt.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_token_bucket_give_back(const struct pc_token_bucket *bucket,
                              uint64_t now,
                              uint32_t permits,
                              struct pc_receipt *receipt,
                              uint32_t *returned);

// Returns what `..._take` would return, and takes nothing.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It writes nothing.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_token_bucket_look(const struct pc_token_bucket *bucket, uint64_t now, uint32_t permits);

// Writes the number of permits that are available at the time `now` to `available`.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_token_bucket_available(const struct pc_token_bucket *bucket,
                              uint64_t now,
                              uint64_t *available);

// Writes to `at` when a request for `permits` can be granted: `now`, or the earliest time
// at which it is granted if no other call takes permits.
//
// Returns `PC_OK`, or `PC_ON_RELEASE` or `PC_NEVER` if no time is known; then `at` is not
// written.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter. It divides.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_token_bucket_retry(const struct pc_token_bucket *bucket,
                          uint64_t now,
                          uint32_t permits,
                          uint64_t *at);

// Writes to `detail` what would happen to a request for `permits` at the time `now`, and
// the numbers of the limiter that go with that decision. Takes nothing.
//
// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
// one. It changes nothing in the limiter. It divides.
//
// # Safety
//
// Each pointer is null, misaligned, or points to memory of its type.
int pc_token_bucket_explain(const struct pc_token_bucket *bucket,
                            uint64_t now,
                            uint32_t permits,
                            struct pc_detail *detail);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

// The compiler has laid out each storage as the library expects it.
#if defined(__cplusplus)
#define PC_ASSERT(condition) static_assert(condition, #condition)
#define PC_ALIGN_OF(type) alignof(type)
#else
#define PC_ASSERT(condition) _Static_assert(condition, #condition)
#define PC_ALIGN_OF(type) _Alignof(type)
#endif
#define PC_LAID_OUT(type, size, align)                                                             \
    PC_ASSERT(sizeof(type) == (size));                                                             \
    PC_ASSERT(PC_ALIGN_OF(type) == (align))

PC_LAID_OUT(pc_token_bucket, PC_TOKEN_BUCKET_SIZE, 8);
PC_LAID_OUT(pc_fixed_window, PC_FIXED_WINDOW_SIZE, 8);
PC_LAID_OUT(pc_sliding_window, PC_SLIDING_WINDOW_SIZE, 8);
PC_LAID_OUT(pc_concurrency, PC_CONCURRENCY_SIZE, 8);
PC_LAID_OUT(pc_lease_pool, PC_LEASE_POOL_SIZE, 128);
PC_LAID_OUT(pc_bucket_table, PC_BUCKET_TABLE_SIZE, 8);
PC_LAID_OUT(pc_window_table, PC_WINDOW_TABLE_SIZE, 8);
PC_LAID_OUT(pc_lease_slot, 16, 4);
PC_LAID_OUT(pc_line, 64, 64);

#undef PC_LAID_OUT
#undef PC_ALIGN_OF
#undef PC_ASSERT
