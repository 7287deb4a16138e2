//! Declares tables of a shared library's functions, and finds them at run time.

/// Declares a structure of function pointers and `find`, which takes them from a library that is loaded.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $($field:ident = $symbol:literal ($($argument:ty),*) -> $answer:ty;)* }) => {
        $(#[$doc])*
        pub(super) struct $table {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> $answer,)*
        }

        impl $table {
            fn find(library: &libloading::Library) -> Result<$table, libloading::Error> {
                Ok($table {
                    // SAFETY: the symbol is the library's function of this name, whose type its documentation gives.
                    $($field: *unsafe { library.get($symbol)? },)*
                })
            }
        }
    };
}

pub(crate) use functions;
