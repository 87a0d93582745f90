//! [`Latest`]: a value that is replaced while threads use it, and whose former values remain.
#![allow(unsafe_code)]

use core::fmt;
use core::ptr;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// A list of values that only grows, of which readers use the newest.
///
/// ```text
/// newest --> item --before--> item --before--> ... the first
/// ```
///
/// Invariant: an item that was ever the newest is not changed, and not freed before the list is
/// dropped. So a reference to a value lasts as long as one to the list.
pub(crate) struct Latest<T> {
    newest: AtomicPtr<Item<T>>,
}

struct Item<T> {
    value: T,
    before: *mut Self,
}

// SAFETY: the list owns its values, and hands out shared references to them.
unsafe impl<T: Send + Sync> Send for Latest<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Latest<T> {}

impl<T> Latest<T> {
    pub(crate) fn new(value: T) -> Self {
        let before = ptr::null_mut();
        Self {
            newest: AtomicPtr::new(Box::into_raw(Box::new(Item { value, before }))),
        }
    }

    /// Returns the newest value.
    #[inline(always)]
    pub(crate) fn get(&self) -> &T {
        // SAFETY: by the invariant. The pointer is never null. Acquire pairs with the release of
        // `push`: the item is complete.
        unsafe { &(*self.newest.load(Acquire)).value }
    }

    /// Adds a value, which is the newest from then on.
    pub(crate) fn push(&self, value: T) -> &T {
        let before = self.newest.load(Relaxed);
        let item = Box::into_raw(Box::new(Item { value, before }));
        let mut seen = before;
        // Release: pairs with the acquire of `get`.
        while let Err(newer) = self.newest.compare_exchange(seen, item, AcqRel, Relaxed) {
            // SAFETY: the item is not in the list yet, so no other thread accesses it.
            unsafe { (*item).before = newer };
            seen = newer;
        }
        // SAFETY: by the invariant.
        unsafe { &(*item).value }
    }
}

impl<T> Drop for Latest<T> {
    fn drop(&mut self) {
        let mut item = *self.newest.get_mut();
        while !item.is_null() {
            // SAFETY: it came from `Box::into_raw`, is freed once, and no reference to it is left.
            item = unsafe { Box::from_raw(item) }.before;
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Latest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicUsize;
    use std::sync::Arc;

    use super::*;

    struct Counted(usize, Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn former_values_remain_until_the_list_is_dropped() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let latest = Latest::new(Counted(0, Arc::clone(&dropped)));
        let first = latest.get();
        std::thread::scope(|scope| {
            for thread in 1..4 {
                let (latest, dropped) = (&latest, &dropped);
                scope.spawn(move || {
                    for nth in 0..50 {
                        let pushed = latest.push(Counted(100 * thread + nth, Arc::clone(dropped)));
                        assert_eq!(pushed.0, 100 * thread + nth);
                        assert!(latest.get().0 >= 100);
                    }
                });
            }
        });
        assert_eq!((first.0, dropped.load(Relaxed)), (0, 0));
        drop(latest);
        assert_eq!(dropped.load(Relaxed), 151);
    }
}
