//! Where a policy is read: it may be fixed, or swapped at any time.
//!
//! This is the one place that tells a fixed policy from a live one. All else judges by a
//! [`PolicyHandle`].

use core::ops::Deref;
use std::sync::Arc;

use portcullis_policy::Policy;
#[cfg(feature = "live")]
use portcullis_policy::{LivePolicy, LoadedPolicy, SharedPolicy};

/// Where a policy that judges requests is read: an [`Arc`] of a [`Policy`], or a `LivePolicy`,
/// whose policy may be swapped. Sealed.
pub trait PolicyHandle: sealed::Handle {}

/// What [`ByPolicy::new`](super::ByPolicy::new) takes: a [`Policy`], or a [`PolicyHandle`]. Sealed.
pub trait IntoHandle: sealed::Into {}

impl<T: sealed::Handle> PolicyHandle for T {}
impl<T: sealed::Into> IntoHandle for T {}

pub(super) mod sealed {
    use super::{Arc, Deref, Policy};

    pub trait Handle: Clone + Send + Sync + Unpin + 'static {
        /// The policy that is in force, for one decision.
        type Loaded<'h>: Deref<Target = Policy>;

        /// A pointer to a policy, which a request keeps.
        type Shared: Deref<Target = Policy> + Send + Sync + 'static;

        /// Reads the policy that is in force.
        fn load(&self) -> Self::Loaded<'_>;

        /// Makes a pointer to a policy that was read.
        fn share(loaded: &Self::Loaded<'_>) -> Self::Shared;

        /// How often the policy was swapped before this one. What was made for one policy serves
        /// all decisions of the same generation.
        fn generation(loaded: &Self::Loaded<'_>) -> u64;
    }

    pub trait Into {
        type Handle: Handle;

        fn into_handle(self) -> Self::Handle;
    }

    impl<H: Handle> Into for H {
        type Handle = H;

        fn into_handle(self) -> H {
            self
        }
    }

    impl Into for Policy {
        type Handle = Arc<Self>;

        fn into_handle(self) -> Arc<Self> {
            Arc::new(self)
        }
    }
}

/// A policy that is fixed.
#[derive(Debug)]
pub struct Fixed<'h>(&'h Arc<Policy>);

impl Deref for Fixed<'_> {
    type Target = Policy;

    #[inline]
    fn deref(&self) -> &Policy {
        self.0
    }
}

impl sealed::Handle for Arc<Policy> {
    type Loaded<'h> = Fixed<'h>;
    type Shared = Self;

    #[inline]
    fn load(&self) -> Fixed<'_> {
        Fixed(self)
    }

    #[inline]
    fn share(loaded: &Fixed<'_>) -> Self {
        Self::clone(loaded.0)
    }

    #[inline]
    fn generation(_: &Fixed<'_>) -> u64 {
        0
    }
}

#[cfg(feature = "live")]
impl sealed::Handle for LivePolicy {
    type Loaded<'h> = LoadedPolicy;
    type Shared = SharedPolicy;

    #[inline]
    fn load(&self) -> LoadedPolicy {
        self.load()
    }

    fn share(loaded: &LoadedPolicy) -> SharedPolicy {
        loaded.share()
    }

    fn generation(loaded: &LoadedPolicy) -> u64 {
        loaded.generation()
    }
}
