//! The state word of a limiter: its width, its place, and changes of its settings.

pub use crate::rules::attached::{Attached, Detach, StateWord};
pub use crate::word::live::{Carry, ChangeError};
pub use crate::word::{KeyedWord, NativeWord, Word};
