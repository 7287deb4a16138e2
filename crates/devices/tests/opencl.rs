//! The suite of all devices, on OpenCL.

#![allow(clippy::unwrap_used)]

mod suite;
mod support;

use support::OpenClHouse;

conformance!(OpenClHouse);
