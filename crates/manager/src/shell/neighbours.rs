//! Tells neighbours each other's addresses, and the secret that only the two have.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use sublet_proto::Error;
use sublet_proto::pu::{self, PROCESSOR};
use sublet_proto::v1::{Neighbour, Neighbours};

use crate::chance;
use crate::core::{Neighbourhood, NeighbourhoodNode};

const KEY_BYTES: usize = 32;

/// Source of the links' secrets: a key that only this start of the manager has. A link's secret is the same for both of
/// its ends, and changes when either registers anew.
pub(super) struct Secrets([u8; KEY_BYTES]);

/// One end of a link: a node and its registration.
type End<'name> = (&'name str, u64);

impl Secrets {
    pub(super) fn new() -> Result<Secrets, Error> {
        Ok(Secrets(chance::secret()?))
    }

    /// Returns the neighbours of a node, for its agent.
    pub(super) fn tell(&self, neighbourhood: &Neighbourhood) -> Neighbours {
        let Neighbourhood { own: (own, registration), version, all } = neighbourhood;
        let neighbour = |marked: &NeighbourhoodNode| Neighbour {
            node: marked.node.to_string(),
            unit: pu::id(&marked.node, PROCESSOR),
            network: marked.reach.network.clone(),
            secret: self.of((own, *registration), (&marked.node, marked.registration)).to_vec(),
            registration: marked.registration,
            host: marked.reach.host.clone(),
            agent: marked.reach.agent.clone(),
            bridge: marked.bridge.as_deref().unwrap_or_default().to_owned(),
        };
        Neighbours { version: *version, all: all.iter().map(neighbour).collect() }
    }

    fn of(&self, one: End<'_>, other: End<'_>) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length will do");
        for (name, registration) in [one.min(other), one.max(other)] {
            mac.update(&(name.len() as u64).to_be_bytes());
            mac.update(name.as_bytes());
            mac.update(&registration.to_be_bytes());
        }
        mac.finalize().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_depends_on_both_registrations_and_on_the_manager() {
        let secrets = Secrets([7; KEY_BYTES]);
        let secret = secrets.of(("a", 1), ("b", 2));
        assert_eq!(secrets.of(("b", 2), ("a", 1)), secret, "both ends have the same");
        let others = [
            secrets.of(("a", 3), ("b", 2)),
            secrets.of(("a", 1), ("b", 3)),
            secrets.of(("a", 2), ("b", 1)),
            secrets.of(("a", 1), ("c", 2)),
            secrets.of(("ab", 1), ("", 2)),
            Secrets([8; KEY_BYTES]).of(("a", 1), ("b", 2)),
        ];
        assert!(!others.contains(&secret));
        assert_ne!(Secrets::new().unwrap().0, Secrets::new().unwrap().0);
    }
}
