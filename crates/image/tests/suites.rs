//! Tests of images: made, pulled, imported, checked and unpacked.

mod hostile_layers;
mod imports;
mod layers;
mod making;
mod registries;
mod serving;
mod stores;
