//! Pools of nodes (Scad, section 4), by the resource that a node mainly lends.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Code, Error, v1};

/// Pool that a node belongs to, or that a lease has to be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pool {
    /// Nodes of cores, with little memory.
    Compute,
    /// Nodes of memory, with few cores.
    Memory,
    /// Nodes of cores and memory.
    Balanced,
    /// Nodes that lend part of a disk, for segments that are requested on one.
    Flash,
}

impl Pool {
    /// Every pool. The pool of disks is the last one.
    pub const ALL: [Pool; 4] = [Pool::Compute, Pool::Memory, Pool::Balanced, Pool::Flash];

    /// Returns the name under which it is sent and shown.
    pub fn name(self) -> &'static str {
        match self {
            Pool::Compute => "compute",
            Pool::Memory => "memory",
            Pool::Balanced => "balanced",
            Pool::Flash => "flash",
        }
    }

    /// Parses the pool of a message: an empty text is no pool.
    ///
    /// # Errors
    /// `invalid_argument` if no such pool exists.
    pub fn said(text: &str) -> Result<Option<Pool>, Error> {
        if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
    }
}

impl v1::Quota {
    /// Returns the most memory in a pool, in bytes; `None`: it is not limited.
    pub fn pool_bytes(&self, pool: Pool) -> Option<u64> {
        match pool {
            Pool::Compute => self.compute_pool_bytes,
            Pool::Memory => self.memory_pool_bytes,
            Pool::Balanced => self.balanced_pool_bytes,
            Pool::Flash => self.flash_pool_bytes,
        }
    }

    /// Returns the field of a pool's limit.
    pub fn pool_bytes_mut(&mut self, pool: Pool) -> &mut Option<u64> {
        match pool {
            Pool::Compute => &mut self.compute_pool_bytes,
            Pool::Memory => &mut self.memory_pool_bytes,
            Pool::Balanced => &mut self.balanced_pool_bytes,
            Pool::Flash => &mut self.flash_pool_bytes,
        }
    }
}

impl v1::TenantUse {
    /// Returns the memory in a pool, in bytes.
    pub fn pool_bytes(&self, pool: Pool) -> u64 {
        match pool {
            Pool::Compute => self.compute_pool_bytes,
            Pool::Memory => self.memory_pool_bytes,
            Pool::Balanced => self.balanced_pool_bytes,
            Pool::Flash => self.flash_pool_bytes,
        }
    }

    /// Returns the field of a pool's memory.
    pub fn pool_bytes_mut(&mut self, pool: Pool) -> &mut u64 {
        match pool {
            Pool::Compute => &mut self.compute_pool_bytes,
            Pool::Memory => &mut self.memory_pool_bytes,
            Pool::Balanced => &mut self.balanced_pool_bytes,
            Pool::Flash => &mut self.flash_pool_bytes,
        }
    }

    /// Adds other use, but no spending.
    pub fn add_resources(&mut self, other: &v1::TenantUse) {
        self.cores = self.cores.saturating_add(other.cores);
        self.memory_bytes = self.memory_bytes.saturating_add(other.memory_bytes);
        self.leases = self.leases.saturating_add(other.leases);
        for pool in Pool::ALL {
            let bytes = self.pool_bytes_mut(pool);
            *bytes = bytes.saturating_add(other.pool_bytes(pool));
        }
    }
}

impl FromStr for Pool {
    type Err = Error;

    fn from_str(text: &str) -> Result<Pool, Error> {
        Pool::ALL.into_iter().find(|pool| pool.name() == text).ok_or_else(|| {
            let message = format!("{text:.40?} is no pool: there are compute, memory, balanced and flash");
            Error::new(Code::InvalidArgument, message)
        })
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_its_name() {
        for pool in Pool::ALL {
            assert_eq!(pool.to_string().parse(), Ok(pool));
            assert_eq!(serde_json::to_string(&pool).unwrap(), format!("{:?}", pool.name()));
        }
        assert_eq!((Pool::said(""), Pool::said("memory")), (Ok(None), Ok(Some(Pool::Memory))));
        let error = Pool::said("Memory").unwrap_err();
        assert!(error.code == Code::InvalidArgument && error.message.contains("Memory"), "{error}");
    }
}
