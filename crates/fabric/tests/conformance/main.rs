//! What every provider must do, written once and run over all of them.

#![allow(clippy::unwrap_used, unsafe_code)]

mod ends;
mod large;
mod lent;
mod libfabric;
mod operations;
mod pairs;
mod passive;
mod refusals;
mod sides;
mod threads;
mod transfers;
