//! The `Debug` of a type that is no plain record: its name, some of its fields, and that it has
//! others.

/// Implements `Debug`. The generic parameters come first, then the type and its name, then what is
/// shown of `self`.
macro_rules! shows {
    ([$($generic:tt)*] $type:ty, $name:literal) => {
        shows!([$($generic)*] $type, $name, self:);
    };
    ([$($generic:tt)*] $type:ty, $name:literal, $self:ident:
        $($field:literal => $value:expr),*
    ) => {
        impl<$($generic)*> core::fmt::Debug for $type {
            fn fmt(&$self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct($name)$(.field($field, &$value))*.finish_non_exhaustive()
            }
        }
    };
}
