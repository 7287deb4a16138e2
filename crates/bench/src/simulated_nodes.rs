//! Simulated nodes: they register and report to a manager like agents, and have no workers.
//!
//! Each node reports every second, spread evenly over it, like a thousand agents that were started at random times. No
//! client attaches to their leases, so a report without leases is true.

use std::time::Duration;

use sublet_proto::v1::nodes_client::NodesClient;
use sublet_proto::v1::{NodeDescription, NodeReport, NodeState, Registration};
use sublet_proto::{Code, Error};
use sublet_runtime::Access;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tonic::transport::Channel;

/// Time between two reports of a node.
const PERIOD: Duration = Duration::from_secs(1);
const MEMORY_OF_A_CORE: u64 = 4 << 30;

/// Number and size of the nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimulationSize {
    pub(super) nodes: u32,
    pub(super) cores: u32,
    /// Connections that the nodes share.
    pub(super) connections: u32,
}

/// Registered nodes, which report until they are dropped.
pub(super) struct SimulatedNodes {
    reporters: JoinSet<Error>,
}

impl SimulatedNodes {
    /// Registers all nodes.
    pub(super) async fn register(access: &Access, size: SimulationSize) -> Result<SimulatedNodes, Error> {
        let mut registering = JoinSet::new();
        for connection in 0..size.connections {
            let numbers = (connection..size.nodes).step_by(size.connections as usize);
            let reporter = NodesReporter { access: access.clone(), nodes: Vec::new(), stub: stub(access)? };
            registering.spawn(reporter.register(numbers.collect(), size.cores));
        }
        let mut reporters = JoinSet::new();
        while let Some(registered) = registering.join_next().await {
            let reporter = registered.map_err(|error| failed(&error))??;
            if !reporter.nodes.is_empty() {
                reporters.spawn(reporter.report());
            }
        }
        Ok(SimulatedNodes { reporters })
    }

    /// Checks that every node's reports have succeeded until now.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        match self.reporters.try_join_next() {
            None => Ok(()),
            Some(Ok(error)) => Err(error),
            Some(Err(error)) => Err(failed(&error)),
        }
    }
}

struct SimulatedNode {
    name: String,
    registration: u64,
    sequence: u64,
    /// The manager's clock in its last answer.
    clock_unix_ms: u64,
}

/// Some of the nodes, on one connection.
struct NodesReporter {
    access: Access,
    stub: NodesClient<Channel>,
    nodes: Vec<SimulatedNode>,
}

impl NodesReporter {
    async fn register(mut self, numbers: Vec<u32>, cores: u32) -> Result<NodesReporter, Error> {
        for number in numbers {
            let name = format!("bench-{number}");
            let description = NodeDescription {
                name: name.clone(),
                agent: format!("unix:/nonexistent/{name}.sock"),
                architecture: std::env::consts::ARCH.to_owned(),
                cores,
                memory_bytes: u64::from(cores) * MEMORY_OF_A_CORE,
                ..NodeDescription::default()
            };
            let instance = format!("{:032x}", u128::from(number) + 1);
            let registration = Registration { node: Some(description), instance, ..Registration::default() };
            let request = self.access.authorize(tonic::Request::new(registration));
            let answer = self.stub.register(request).await;
            let answer = answer.map_err(|status| Error::from_status(&status))?.into_inner();
            self.nodes.push(SimulatedNode {
                name,
                registration: answer.registration,
                sequence: 0,
                clock_unix_ms: answer.now_unix_ms,
            });
        }
        Ok(self)
    }

    /// Reports for each of the nodes in turn, without end. Returns the error of a report.
    async fn report(mut self) -> Error {
        debug_assert!(!self.nodes.is_empty(), "{} nodes share {PERIOD:?}", self.nodes.len());
        let mut turn = interval(PERIOD / u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        turn.set_missed_tick_behavior(MissedTickBehavior::Burst);
        loop {
            for node in &mut self.nodes {
                turn.tick().await;
                node.sequence += 1;
                let report = NodeReport {
                    node: node.name.clone(),
                    leases: Vec::new(),
                    registration: node.registration,
                    sequence: node.sequence,
                    clock_unix_ms: node.clock_unix_ms,
                    state: NodeState::Lending.into(),
                    // One report at a time is pending: the previous one was answered.
                    answered: node.sequence - 1,
                    ..NodeReport::default()
                };
                let request = self.access.authorize(tonic::Request::new(report));
                match self.stub.report(request).await {
                    Ok(answer) => node.clock_unix_ms = answer.into_inner().now_unix_ms,
                    Err(status) => return Error::from_status(&status),
                }
            }
        }
    }
}

fn stub(access: &Access) -> Result<NodesClient<Channel>, Error> {
    access.channel(0).map(NodesClient::new)
}

fn failed(error: &tokio::task::JoinError) -> Error {
    Error::new(Code::Internal, format!("a part of the measurement failed: {error}"))
}
