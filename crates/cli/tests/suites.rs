//! Tests of the command as a user starts it.

mod command;
mod configuration;
mod packaging;
