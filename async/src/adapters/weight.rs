//! How many permits an item takes.

/// The number of permits that an item takes: [`PerItem`], or a function of the item, for example
/// its size. Implement it for a type of your own whose name a struct can contain.
///
/// ```
/// use portcullis_async::{PerItem, Weight};
/// let bytes = |line: &String| u32::try_from(line.len()).unwrap_or(u32::MAX);
/// let line = "twelve bytes".to_owned();
/// assert_eq!((bytes.permits(&line), PerItem.permits(&line)), (12, 1));
/// ```
pub trait Weight<T: ?Sized> {
    /// Returns the number of permits that `item` takes. An item that takes 0 passes without asking
    /// the limiter.
    ///
    /// ```
    /// # use portcullis_async::{PerItem, Weight};
    /// assert_eq!(PerItem.permits(&"an item"), 1);
    /// ```
    fn permits(&self, item: &T) -> u32;
}

/// A weight of one permit for each item.
///
/// ```
/// # use portcullis_async::{PerItem, Weight};
/// assert_eq!(PerItem.permits("of any size"), 1);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "it has no settings")]
pub struct PerItem;

impl<T: ?Sized> Weight<T> for PerItem {
    #[inline]
    fn permits(&self, _item: &T) -> u32 {
        1
    }
}

impl<T: ?Sized, F: Fn(&T) -> u32> Weight<T> for F {
    #[inline]
    fn permits(&self, item: &T) -> u32 {
        self(item)
    }
}
