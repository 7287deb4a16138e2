//! Tests of sandboxes of every kind, from outside and by hostile programs within.

mod attacks;
mod conformance;
mod containers;
mod delegated;
mod image_templates;
mod modes;
mod node;
mod standby;
mod standby_environments;
mod standby_images;
mod support;
mod templates;
mod views;
mod weak;
