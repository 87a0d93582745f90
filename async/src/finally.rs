/// Calls a function as it is dropped: whatever happens before, or, forgotten, only if something
/// panics.
pub(crate) struct Finally<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for Finally<F> {
    #[inline]
    fn drop(&mut self) {
        self.0();
    }
}
