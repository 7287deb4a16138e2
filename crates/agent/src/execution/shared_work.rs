//! Slow work of the node that several leases need: executed once for all calls of the same key, with bounds for each
//! tenant and for the node, turns among tenants, and bounded waits.
//!
//! The work of a start is a question to an image, a build of kernels, a fetch or an installation. A tenant can make such
//! work slow, and name a lot of it. Behind one lock of the node it would delay every other tenant. [`SharedWork`] executes
//! it, and [`KnownResults`] remembers what it found.
//!
//! Work on the cores of a lease is given up when that lease ends. Then another call that waits for it begins it anew.
//!
//! An outcome serves the calls of all tenants. So its key holds everything on which the outcome depends, and neither the
//! outcome nor its error names anything of one tenant.
//!
//! Work may need other work only of another `SharedWork`, and these are used in one order: environments, then packages
//! or layers. Work of the same `SharedWork` could wait for its own turn.

mod known;
mod queue;
mod work;

pub(crate) use known::KnownResults;
pub(crate) use queue::WorkBounds;
pub(crate) use work::{SharedWork, WorkEnd, WorkRefusal};
