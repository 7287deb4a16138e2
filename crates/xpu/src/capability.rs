//! Defines global ids, and the rights of a process to an object.

use std::fmt;
use std::ops::BitOr;
use std::str::FromStr;

use sublet_proto::{Code, Error};

/// Name of a process or a FIFO in a whole computer: the processing unit on which it is, and a number there (Molecule
/// 3.2: the ids are partitioned, so that a unit assigns one without asking another). As a number, the unit is in the
/// upper half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GlobalId {
    /// The processing unit's id, which is not 0.
    pub pu: u32,
    /// Number on the unit: not 0, and assigned once.
    pub local: u32,
}

impl GlobalId {
    /// Encodes the id as one number.
    pub fn to_bits(self) -> u64 {
        u64::from(self.pu) << 32 | u64::from(self.local)
    }

    /// Decodes a number from another process. The object need not exist.
    pub fn from_bits(bits: u64) -> GlobalId {
        GlobalId { pu: (bits >> 32) as u32, local: (bits & 0xffff_ffff) as u32 }
    }
}

/// Formats the id as `5f3a90c1:7`, both in hexadecimal digits.
impl fmt::Display for GlobalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{:x}", self.pu, self.local)
    }
}

impl FromStr for GlobalId {
    type Err = Error;

    fn from_str(text: &str) -> Result<GlobalId, Error> {
        let number = |digits: &str| u32::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'));
        let id = text
            .split_once(':')
            .and_then(|(pu, local)| Some(GlobalId { pu: number(pu)?, local: number(local)? }));
        id.ok_or_else(|| {
            Error::new(
                Code::InvalidArgument,
                format!("{text:?} is no global id: it is PU:NUMBER, in hexadecimal digits"),
            )
        })
    }
}

/// Rights of a process to a FIFO: any of reading, writing and owning, which is to grant and to revoke.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FifoRights(u32);

impl FifoRights {
    /// No right.
    pub const NONE: FifoRights = FifoRights(0);
    /// The right to connect to read.
    pub const READ: FifoRights = FifoRights(1);
    /// The right to connect to write.
    pub const WRITE: FifoRights = FifoRights(2);
    /// The right to grant and revoke rights to the object, the process's own included.
    pub const OWN: FifoRights = FifoRights(4);
    /// All rights.
    pub const ALL: FifoRights = FifoRights(7);

    /// Encodes the rights as a number: the sum of 1, 2 and 4.
    pub fn to_bits(self) -> u32 {
        self.0
    }

    /// Decodes a number from another process.
    pub fn from_bits(bits: u32) -> Result<FifoRights, Error> {
        match bits & !FifoRights::ALL.0 {
            0 => Ok(FifoRights(bits)),
            unknown => Err(Error::new(Code::InvalidArgument, format!("there are no rights {unknown:#x}"))),
        }
    }

    /// Returns whether these rights include all of `other`.
    pub fn contains(self, other: FifoRights) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns these rights without those of `other`.
    pub fn without(self, other: FifoRights) -> FifoRights {
        FifoRights(self.0 & !other.0)
    }

    /// Returns the rights that are in both.
    pub fn and(self, other: FifoRights) -> FifoRights {
        FifoRights(self.0 & other.0)
    }
}

impl BitOr for FifoRights {
    type Output = FifoRights;

    fn bitor(self, other: FifoRights) -> FifoRights {
        FifoRights(self.0 | other.0)
    }
}

/// Formats the rights as `read+write`, or as `none`.
impl fmt::Display for FifoRights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [(FifoRights::READ, "read"), (FifoRights::WRITE, "write"), (FifoRights::OWN, "own")];
        let mut names = all.iter().filter(|(right, _)| self.contains(*right)).map(|(_, name)| *name);
        f.write_str(names.next().unwrap_or("none"))?;
        names.try_for_each(|name| write!(f, "+{name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_convert_to_numbers_and_text_and_back() {
        let id = GlobalId { pu: 0x5f3a_90c1, local: 7 };
        assert_eq!((GlobalId::from_bits(id.to_bits()), id.to_string().as_str()), (id, "5f3a90c1:7"));
        assert_eq!(id.to_string().parse::<GlobalId>().unwrap(), id);
        for text in ["", "7", ":", "1:", "+1:2", "1:2:3", "100000000:1"] {
            assert!(text.parse::<GlobalId>().is_err(), "{text}");
        }
    }

    #[test]
    fn rights_are_sets() {
        let both = FifoRights::READ | FifoRights::WRITE;
        assert!(
            both.contains(FifoRights::READ)
                && both.contains(FifoRights::NONE)
                && !both.contains(FifoRights::ALL)
        );
        assert_eq!((both.without(FifoRights::READ), both.and(FifoRights::ALL)), (FifoRights::WRITE, both));
        assert_eq!(
            (both.to_string().as_str(), FifoRights::NONE.to_string().as_str()),
            ("read+write", "none")
        );
        assert_eq!(FifoRights::from_bits(7).unwrap(), FifoRights::ALL);
        assert!(FifoRights::from_bits(8).is_err());
    }
}
