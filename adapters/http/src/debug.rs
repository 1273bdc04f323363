//! `Debug` for types that show a few values, and not all of their fields.

/// Implements `Debug` for `[generics] Type, |it| name: value of it, ...`.
macro_rules! debug_fields {
    ([$($generics:tt)*] $type:ident $(<$($arg:tt),*>)?, |$it:ident|
        $($name:ident: $value:expr),*
    ) => {
        impl<$($generics)*> std::fmt::Debug for $type $(<$($arg),*>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $it = self;
                let mut debug = f.debug_struct(stringify!($type));
                $(debug.field(stringify!($name), &$value);)*
                debug.finish_non_exhaustive()
            }
        }
    };
}
