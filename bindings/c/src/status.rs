//! The statuses that functions return: 0, an answer above it, or a mistake of the caller below it.

use core::ffi::{CStr, c_char, c_int};

use portcullis_core::builder::Setting;
use portcullis_core::leases::ClaimError;
use portcullis_core::{Denied, SettingsError};

/// Granted, or done.
pub const PC_OK: c_int = 0;
/// Denied: too few permits are available now. `..._retry` says when to ask again.
pub const PC_DENIED: c_int = 1;
/// Denied: more permits than the limiter can ever grant at once. Ask for fewer.
pub const PC_TOO_MANY: c_int = 2;
/// Denied: the table has no slot for the key, or another call is claiming one.
pub const PC_CROWDED: c_int = 3;
/// Denied: all slots of the pool hold leases.
pub const PC_POOL_FULL: c_int = 4;
/// The number names no lease of this pool: it was given back or swept before.
pub const PC_STALE: c_int = 5;
/// Permits return when they are given back, and no time for that is known.
pub const PC_ON_RELEASE: c_int = 6;
/// The permits asked for never become available.
pub const PC_NEVER: c_int = 7;

/// Mistake: a pointer is null that must not be.
pub const PC_NULL: c_int = -1;
/// Mistake: a pointer does not have the alignment of its type.
pub const PC_MISALIGNED: c_int = -2;
/// Mistake: the storage is smaller than its type, or there is no line or slot in the memory.
pub const PC_TOO_SMALL: c_int = -3;
/// Mistake: the storage has not been initialised, or as another type.
pub const PC_NOT_INITIALISED: c_int = -4;
/// Mistake: the storage has been initialised before, or is not zero. Set it to zero first, when no
/// call uses it.
pub const PC_INITIALISED: c_int = -5;
/// Mistake: the receipt is from another limiter or key, or from no grant.
pub const PC_WRONG_RECEIPT: c_int = -6;
/// Mistake: more permits are given back than the receipt still covers.
pub const PC_NOT_TAKEN: c_int = -7;
/// Mistake: the key is longer than half of the address space.
pub const PC_BAD_KEY: c_int = -8;
/// Mistake: the `permits` of a rate are 0, or too many in a period for a word of 32 bits.
pub const PC_BAD_PERMITS: c_int = -20;
/// Mistake: the `period` of a rate is zero or too long.
pub const PC_BAD_PERIOD: c_int = -21;
/// Mistake: the `burst` is zero or too large.
pub const PC_BAD_BURST: c_int = -22;
/// Mistake: more permits are `taken` at the start than the burst has.
pub const PC_BAD_TAKEN: c_int = -23;
/// Mistake: the `limit` is zero or too large.
pub const PC_BAD_LIMIT: c_int = -24;
/// Mistake: the `window` is zero or too long.
pub const PC_BAD_WINDOW: c_int = -25;
/// Mistake: there are no `segments`, or more than `PC_MAX_SEGMENTS`, or than the window has ticks.
pub const PC_BAD_SEGMENTS: c_int = -26;
/// Mistake: the `tick` does not fit the other settings.
pub const PC_BAD_TICK: c_int = -27;
/// Mistake: the `staleness` is below one second, or too long for the word.
pub const PC_BAD_STALENESS: c_int = -28;
/// Mistake: another setting does not fit.
pub const PC_BAD_SETTING: c_int = -29;

/// The status of a mistake, or of an answer other than success.
#[derive(Clone, Copy)]
pub(crate) struct Status(pub(crate) c_int);

impl Status {
    /// Returns the status of a result.
    pub(crate) fn of(result: Result<(), Self>) -> c_int {
        match result {
            Ok(()) => PC_OK,
            Err(Self(status)) => status,
        }
    }
}

impl From<Denied> for Status {
    fn from(denied: Denied) -> Self {
        Self(match denied {
            Denied::ExceedsCapacity { .. } => PC_TOO_MANY,
            Denied::Crowded { .. } => PC_CROWDED,
            _ => PC_DENIED,
        })
    }
}

impl From<ClaimError> for Status {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::Denied(denied) => denied.into(),
            _ => Self(PC_POOL_FULL),
        }
    }
}

impl From<SettingsError> for Status {
    fn from(error: SettingsError) -> Self {
        let (SettingsError::Zero { setting }
        | SettingsError::TooLarge { setting, .. }
        | SettingsError::TooSmall { setting, .. }) = error
        else {
            return Self(PC_BAD_SETTING);
        };
        Self(match setting {
            Setting::Rate => PC_BAD_PERMITS,
            Setting::Period => PC_BAD_PERIOD,
            Setting::Burst => PC_BAD_BURST,
            Setting::Limit => PC_BAD_LIMIT,
            Setting::Window => PC_BAD_WINDOW,
            Setting::Segments => PC_BAD_SEGMENTS,
            Setting::Tick => PC_BAD_TICK,
            Setting::Staleness => PC_BAD_STALENESS,
            _ => PC_BAD_SETTING,
        })
    }
}

/// Returns a status in a few words, for a log. The text is a constant, and ends with a zero.
///
/// Interrupts: may be called anywhere.
#[unsafe(no_mangle)]
pub extern "C" fn pc_status_text(status: c_int) -> *const c_char {
    text(status).as_ptr()
}

const fn text(status: c_int) -> &'static CStr {
    match status {
        PC_OK => c"done",
        PC_DENIED => c"too few permits available",
        PC_TOO_MANY => c"more permits than the limiter can hold",
        PC_CROWDED => c"no slot for the key",
        PC_POOL_FULL => c"all slots of the pool hold leases",
        PC_STALE => c"the lease has been given back or swept before",
        PC_ON_RELEASE => c"when permits are given back",
        PC_NEVER => c"never",
        PC_NULL => c"a pointer is null",
        PC_MISALIGNED => c"a pointer is misaligned",
        PC_TOO_SMALL => c"the storage is too small",
        PC_NOT_INITIALISED => c"the storage is not initialised",
        PC_INITIALISED => c"the storage is already initialised",
        PC_WRONG_RECEIPT => c"the receipt is from another limiter",
        PC_NOT_TAKEN => c"more permits than the receipt covers",
        PC_BAD_KEY => c"the key is too long",
        PC_BAD_PERMITS => c"the permits of the rate do not fit",
        PC_BAD_PERIOD => c"the period does not fit",
        PC_BAD_BURST => c"the burst does not fit",
        PC_BAD_TAKEN => c"more permits taken than the burst has",
        PC_BAD_LIMIT => c"the limit does not fit",
        PC_BAD_WINDOW => c"the window does not fit",
        PC_BAD_SEGMENTS => c"the segments do not fit",
        PC_BAD_TICK => c"the tick does not fit",
        PC_BAD_STALENESS => c"the staleness does not fit",
        PC_BAD_SETTING => c"a setting does not fit",
        _ => c"no status of this library",
    }
}
