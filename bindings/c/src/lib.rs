//! Rate limiters for C: `portcullis-core` behind `include/portcullis.h`.
//!
//! # The shape of the interface
//!
//! *Storage.* Each limiter lives in a `struct` of the caller's, usually a static:
//! `pc_token_bucket`, `pc_fixed_window`, `pc_sliding_window`, `pc_concurrency`, `pc_lease_pool`,
//! `pc_bucket_table`, `pc_window_table`. It is opaque bytes of a fixed size and alignment, all zero
//! before `..._init`. Its first four bytes are a mark, different for each type and written last by
//! `init`:
//!
//! ```text
//! offset 0      4        8 or more
//!        +------+--------+---------------------------+
//!        | mark | unused | the limiter of the core   |   mark 0: not initialised
//!        +------+--------+---------------------------+
//! ```
//!
//! So a call that comes too early, for example from an interrupt, or with the storage of another
//! type, returns a status. The sizes differ between targets whose widest atomic has 64 bits and 32
//! bits. Both are in the header; `storage.rs` compares that of the target with the size of the
//! limiter, and the header asserts that the C compiler agrees.
//!
//! *Verbs.* Every limiter has the same six, with the same arguments. They are the four functions of
//! [`Limiter`](portcullis_core::Limiter), so `verbs.rs` writes them once, for any limiter:
//!
//! | function | of `Limiter` | question |
//! |---|---|---|
//! | `..._take(limiter, now, permits, receipt)` | `decide` | may I? |
//! | `..._look(limiter, now, permits)` | `decide`, a look | might I? |
//! | `..._give_back(limiter, now, permits, receipt, returned)` | `give_back` | I did not use them |
//! | `..._available(limiter, now, available)` | `read` | how many are left? |
//! | `..._retry(limiter, now, permits, at)` | `retry` | when may I? |
//! | `..._explain(limiter, now, permits, detail)` | all | all of it at once |
//!
//! A table takes a key after the limiter. A pool of leases gives a number in place of a receipt,
//! and can sweep. A verb that a program does not call is not linked.
//!
//! *Statuses.* Every function that can fail returns an `int`: 0 is success, a positive number is an
//! answer of the limiter (denied, never, full, stale), and a negative one is a mistake of the
//! caller: see `status.rs`. Results come through pointers, which are written only on success.
//!
//! *Time.* Every call has the time as its argument: nanoseconds since an origin of the caller's,
//! in 64 bits. [`pc_nanos`] converts the ticks of a timer.
//!
//! *Receipts.* A grant can be given back by its receipt, a small `struct` that holds what is left
//! of the grant and which limiter it is from. So no limiter gets back more than was taken from it.
//!
//! # Rules of this package
//!
//! No allocation, no `std`, and no panic that crosses the border: a panic would be a defect, and
//! calls `abort`. Nothing is read through a pointer before it was compared with null and its
//! alignment checked. What cannot be checked is named in the header and in the README: a pointer to
//! memory that is not there or has other contents, and two calls of which one is an `init`.
#![no_std]
#![allow(
    non_camel_case_types,
    unsafe_code,
    reason = "C's names, and C's pointers"
)]

mod concurrency;
mod fixed_window;
mod lease_pool;
mod mark;
#[cfg(panic = "abort")]
mod panic;
mod receipt;
mod sliding_window;
mod status;
mod storage;
mod table;
mod time;
mod token_bucket;
mod verbs;

pub use concurrency::*;
pub use fixed_window::*;
pub use lease_pool::*;
pub use receipt::*;
pub use sliding_window::*;
pub use status::*;
pub use table::*;
pub use time::*;
pub use token_bucket::*;
pub use verbs::*;
