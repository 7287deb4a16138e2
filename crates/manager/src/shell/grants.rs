//! Signs the tickets of granted leases, and tells clients how they reach the nodes.

use sublet_proto::network::Fabric;
use sublet_proto::package::is_interpreter;
use sublet_proto::v1::{self, LeaseGrant, LeaseGrants, NodeNetwork, PackageInfo};

use super::{GrantedLease, RequestOutcome, Shell};
use crate::core::Reach;

impl Shell {
    /// Signs the tickets of granted leases, or returns the manager that is to be asked for them.
    pub(crate) fn sign(&self, given: RequestOutcome) -> LeaseGrants {
        match given {
            RequestOutcome::Leases(granted) => LeaseGrants {
                grants: granted.into_iter().map(|granted| self.sign_one(granted)).collect(),
                manager: String::new(),
            },
            RequestOutcome::Handed(manager) => {
                LeaseGrants { grants: Vec::new(), manager: manager.to_string() }
            }
        }
    }

    pub(crate) fn sign_one(&self, granted: GrantedLease) -> LeaseGrant {
        let GrantedLease { ticket, reach, package, .. } = granted;
        let Reach { agent, host, network } = &*reach;
        let build = ticket.lease.as_ref().and_then(|lease| package.builds.get(lease.build as usize));
        let is_segment = ticket.lease.as_ref().is_some_and(v1::Lease::is_segment);
        let by_tcp = is_segment || build.is_some_and(|build| is_interpreter(&build.architecture));
        LeaseGrant {
            ticket: self.signing.sign(&ticket),
            agent: agent.clone(),
            host: host.clone(),
            network: if by_tcp { handed_connections(network.as_ref()) } else { network.clone() },
            lease: ticket.lease,
            package: Some(PackageInfo::clone(&package)),
        }
    }
}

/// Reduces a node's network to TCP; `None` without TCP. Workers that cannot connect by themselves, as copies of
/// interpreters, are handed their connections, and agents serve memory only over TCP.
fn handed_connections(network: Option<&NodeNetwork>) -> Option<NodeNetwork> {
    let network = network?;
    let is_handed = |fabric: &&String| fabric.parse() == Ok(Fabric::Tcp);
    let fabrics: Vec<_> = network.fabrics.iter().filter(is_handed).cloned().collect();
    (!fabrics.is_empty()).then(|| NodeNetwork { fabrics, ..network.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_that_cannot_connect_get_handed_connections_only() {
        let offered = |fabrics: &[&str]| NodeNetwork {
            address: "n:1".into(),
            fabrics: fabrics.iter().map(ToString::to_string).collect(),
            ..NodeNetwork::default()
        };
        let network = handed_connections(Some(&offered(&["ofi:verbs", "tcp"]))).unwrap();
        assert_eq!((network.address.as_str(), network.fabrics), ("n:1", vec!["tcp".to_owned()]));
        assert_eq!(handed_connections(Some(&offered(&["ofi:verbs"]))), None);
        assert_eq!(handed_connections(None), None);
    }
}
