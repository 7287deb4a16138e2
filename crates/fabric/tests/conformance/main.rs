//! Tests that every provider must pass, written once.

#![allow(clippy::unwrap_used, unsafe_code)]

mod ends;
mod large;
mod lent_regions;
mod libfabric;
mod operations;
mod pairs;
mod passive;
mod refusals;
mod sides;
mod threads;
mod transfers;
