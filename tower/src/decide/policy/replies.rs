//! The replies to requests that a policy denies, for as long as it is in force.
//!
//! They are made when the layer is built. After a change of the policy, the first request that
//! needs the replies of the new one makes them, and all later ones read those.

use portcullis_policy::Policy;

use super::super::handle::PolicyHandle;
use crate::denial::{DenialSettings, Replies};

/// The replies of the policy in force.
pub(super) struct RepliesInForce {
    settings: DenialSettings,
    /// The replies of the policy of this generation, which was in force when the layer was built.
    /// A policy that is fixed needs no others.
    first: (u64, Replies),
    /// The replies of the policy of a later generation. `None` before the first change.
    #[cfg(feature = "live")]
    later: arc_swap::ArcSwapOption<(u64, Replies)>,
}

impl Default for RepliesInForce {
    fn default() -> Self {
        Self::made(0, Replies::default(), DenialSettings::new())
    }
}

impl RepliesInForce {
    /// Makes the replies of a policy.
    pub(super) fn of<P: PolicyHandle>(policy: &P::Loaded<'_>, settings: &DenialSettings) -> Self {
        let replies = Replies::of_policy(policy, settings);
        Self::made(P::generation(policy), replies, settings.clone())
    }

    fn made(generation: u64, replies: Replies, settings: DenialSettings) -> Self {
        Self {
            settings,
            first: (generation, replies),
            #[cfg(feature = "live")]
            later: arc_swap::ArcSwapOption::empty(),
        }
    }

    /// The replies that do not depend on rules.
    #[cfg(feature = "queue")]
    pub(super) fn of_any(&self) -> &Replies {
        &self.first.1
    }

    /// Reads the replies of a policy that was in force at this decision.
    #[inline]
    pub(super) fn read<P: PolicyHandle, T>(
        &self,
        policy: &P::Loaded<'_>,
        read: impl FnOnce(&Replies) -> T,
    ) -> T {
        let generation = P::generation(policy);
        if generation == self.first.0 {
            return read(&self.first.1);
        }
        self.read_later(generation, policy, read)
    }

    /// Reads the replies of the policy of a later generation, or makes them.
    #[cfg(feature = "live")]
    fn read_later<T>(
        &self,
        generation: u64,
        policy: &Policy,
        read: impl FnOnce(&Replies) -> T,
    ) -> T {
        let later = self.later.load();
        if let Some((of, replies)) = later.as_deref()
            && *of == generation
        {
            return read(replies);
        }
        let made = std::sync::Arc::new((generation, Replies::of_policy(policy, &self.settings)));
        let result = read(&made.1);
        self.later.store(Some(made));
        result
    }

    /// A policy that is fixed has no later generation.
    #[cfg(not(feature = "live"))]
    fn read_later<T>(&self, _: u64, policy: &Policy, read: impl FnOnce(&Replies) -> T) -> T {
        read(&Replies::of_policy(policy, &self.settings))
    }

    /// Reads the replies of a policy whose request has waited. If it is no longer in force, its
    /// replies are made for this request alone.
    #[cfg(feature = "queue")]
    pub(super) fn read_after_wait<P: PolicyHandle, T>(
        &self,
        handle: &P,
        policy: &Policy,
        read: impl FnOnce(&Replies) -> T,
    ) -> T {
        let in_force = handle.load();
        if core::ptr::eq::<Policy>(policy, &raw const *in_force) {
            return self.read::<P, _>(&in_force, read);
        }
        read(&Replies::of_policy(policy, &self.settings))
    }
}
