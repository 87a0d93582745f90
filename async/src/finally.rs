//! A function that runs when a scope ends, also by a panic.

/// Calls a function when it is dropped.
///
/// Code that calls `mem::forget` on the value once it has succeeded runs the function only if a
/// panic unwinds.
pub(crate) struct Finally<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for Finally<F> {
    #[inline]
    fn drop(&mut self) {
        self.0();
    }
}
