//! Tests of a manager over its gRPC interface, and of its stores.

mod access;
mod common;
mod manager;
mod packages;
mod quotas;
mod store;
