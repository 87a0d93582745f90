//! States that are kept while memory is lost.

/// `state` and `with_state` of a limiter of one word, whose constructor has these `settings`.
/// `fitting` makes of any word one that this limiter can have written.
macro_rules! saves {
    ($limiter:ident, $settings:literal, $field:ident, $fitting:expr) => {
        impl<W: Word> $limiter<W> {
            /// The state alone: to be kept through a deep sleep in which memory is lost, in a
            /// backup register or in flash, for [`with_state`](Self::with_state). It has as many
            /// bits as the word. What is taken after this is forgotten.
            ///
            /// # Cost
            ///
            /// A load.
            ///
            /// ```
            /// # use core::time::Duration;
            #[doc = concat!("# use portcullis_core::{Rate, Timestamp, ", stringify!($limiter), "};")]
            #[doc = concat!("let limit = ", stringify!($limiter), "::new(", $settings, ");")]
            /// assert!(limit.try_acquire_at(Timestamp::from_secs(60), 3).is_ok());
            /// let saved = limit.state();
            ///
            /// // Awake again, 50 ms later.
            #[doc = concat!("let limit = ", stringify!($limiter), "::new(", $settings, ").with_state(saved);")]
            /// assert!(limit.try_acquire_at(Timestamp::from_millis(60_050), 1).is_err());
            /// ```
            pub fn state(&self) -> u64 {
                self.$field.load(Relaxed)
            }

            /// This limiter, in the [`state`](Self::state) that one with the same settings was in.
            /// Time has to go on from the same origin: by a clock that runs through the sleep.
            ///
            /// Any number is a state: one from other settings, or damaged, grants at first less or
            /// more than the one that was saved, but no more than a limiter of which nothing is
            /// taken. (A bucket that is built with fewer
            /// [initial](crate::TokenBucketBuilder::initial) permits than its burst is full with
            /// some numbers.)
            ///
            /// ```
            /// # use core::time::Duration;
            #[doc = concat!("# use portcullis_core::{Rate, Timestamp, ", stringify!($limiter), "};")]
            #[doc = concat!("let saved = ", stringify!($limiter), "::new(", $settings, ").state();")]
            #[doc = concat!("let limit = ", stringify!($limiter), "::new(", $settings, ").with_state(saved);")]
            /// assert_eq!(limit.available_at(Timestamp::ZERO), 3);
            /// ```
            #[must_use]
            pub fn with_state(mut self, state: u64) -> Self {
                let fitting: fn(&Self, u64) -> u64 = $fitting;
                self.$field = AtomicWord::new(fitting(&self, state & W::MASK));
                self
            }
        }
    };
}
pub(crate) use saves;
