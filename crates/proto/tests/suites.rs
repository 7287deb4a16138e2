//! Tests of packages and of modules of WebAssembly, as compilers make them.

mod module;
mod package;
