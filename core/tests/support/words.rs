//! Tests on both words.

/// Makes two tests of each generic function, one for each word: `wide::name` and `narrow::name`.
/// The functions are those of the file, or of the module that is named first.
macro_rules! on_both_words {
    ($module:ident: $($check:ident),* $(,)?) => {
        mod wide { $(#[test] fn $check() { super::$module::$check::<u64>(); })* }
        mod narrow { $(#[test] fn $check() { super::$module::$check::<u32>(); })* }
    };
    ($($check:ident),* $(,)?) => {
        mod wide { $(#[test] fn $check() { super::$check::<u64>(); })* }
        mod narrow { $(#[test] fn $check() { super::$check::<u32>(); })* }
    };
}
