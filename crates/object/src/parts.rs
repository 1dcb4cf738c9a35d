//! The parts of a large interface: its methods by role, each role a type of its own.

/// Declares the parts of `$whole`. A part is a reference to it, and leads to all that it has, the
/// other parts too. A method that lends something of the whole's lends it for `'w`.
macro_rules! parts {
    ($whole:ident $field:ident: $($(#[$doc:meta])* $vis:vis $name:ident $part:ident)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy)]
            $vis struct $part<'w> {
                pub(crate) $field: &'w $whole,
            }

            impl std::ops::Deref for $part<'_> {
                type Target = $whole;

                fn deref(&self) -> &$whole {
                    self.$field
                }
            }
        )*

        impl $whole {
            $(
                $(#[$doc])*
                $vis fn $name(&self) -> $part<'_> {
                    $part { $field: self }
                }
            )*
        }
    };
}

pub(crate) use parts;
