//! Passes messages of agents to the core: registrations, reports, and questions about tokens.

use std::sync::Arc;
use std::time::Duration;

use sublet_proto::package::MAX_FUNCTIONS;
use sublet_proto::v1::{
    self, ConfirmReply, EndOrder, LeaseState, NodeDescription, NodeRegistration, NodeReport, NodeReportReply,
    NodeState, Registration, RunningLease, Ticket,
};
use sublet_proto::{Code, Error};

use super::{Shell, State, lease_of_agent, parse_lease, unknown_lease};
use crate::auth::{CallerIdentity, LendingLimits};
use crate::core::{
    AgentLease, AgentReport, CoreAction, CoreEvent, Joining, LeaseId, LeaseReport, LendingState, Level,
    ReportedEnd,
};
use crate::database::blocking;
use crate::lease_records::{self, LeaseRecord};
use crate::listen::ConnectionSlot;
use crate::names::{self, UNVERIFIED};
use crate::tokens::TokenId;

/// Leases that an agent may bring when it registers.
const MAX_RUNNING: usize = 65_536;
/// Longest reason for a lease's end that is kept, in characters.
const MAX_REASON_CHARS: usize = 512;
/// Maximum number of sets of modules on standby that a node reports.
const MAX_STANDBY: usize = 128;
/// Time for which an agent waits for a token to be verified.
const CONFIRMATION: Duration = Duration::from_secs(5);

/// A lease that an agent brings, and the token behind it.
struct Brought {
    running: AgentLease,
    token: Option<TokenId>,
}

impl Shell {
    /// Registers a node with the leases that run on it.
    pub(crate) async fn register(
        self: &Arc<Shell>,
        registration: Registration,
        (caller, place): (&CallerIdentity, Option<&ConnectionSlot>),
        managers: Vec<String>,
    ) -> Result<NodeRegistration, Error> {
        if self.level == Level::Global {
            let message =
                "this manager is the global one, which has no nodes: an agent names its rack's manager";
            return Err(invalid(message.into()));
        }
        let Registration { node, instance, leases, generation } = registration;
        let description = node.ok_or_else(|| invalid("a registration describes no node".into()))?;
        check_lending(&description, caller)?;
        let instance = instance.parse()?;
        if leases.len() > MAX_RUNNING {
            return Err(invalid(format!(
                "{} leases on one node, at most {MAX_RUNNING} are possible",
                leases.len()
            )));
        }
        let brought = self.verify(description.name.clone(), leases).await?;
        let (brought, stored) = self.with_records(brought).await?;
        let mut state = self.lock()?;
        for record in stored {
            self.handle(&mut state, CoreEvent::Restored(Box::new(record.lease)));
        }
        let tokens: Vec<_> =
            brought.iter().map(|brought| (brought.running.report.lease, brought.token)).collect();
        let leases = brought.into_iter().map(|brought| brought.running).collect();
        let joining = Joining { description, instance, generation, leases };
        let registered = self.handle(&mut state, CoreEvent::Register(Box::new(joining)));
        let (registration, neighbours) = match registered {
            Some(CoreAction::Registered { node, registration, neighbours }) => {
                self.reports_by(&mut state, node, place);
                (registration, neighbours)
            }
            Some(CoreAction::NotRegistered(error)) => return Err(error),
            other => {
                return Err(Error::new(Code::Internal, format!("a registration was answered by {other:?}")));
            }
        };
        state.take_over(&tokens);
        drop(state);
        Ok(NodeRegistration {
            verifying_key: self.signing.verifying_key().to_vec(),
            registration,
            now_unix_ms: self.clock.now_ms(),
            managers,
            neighbours: Some(self.secrets.tell(&neighbours)),
        })
    }

    /// Returns the leases that managers of this store have granted on the node; the agent has to end the others.
    async fn verify(
        self: &Arc<Shell>,
        node: String,
        leases: Vec<RunningLease>,
    ) -> Result<Vec<Brought>, Error> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let shell = Arc::clone(self);
        blocking(move || {
            let brought = leases.into_iter().filter_map(|running| match shell.bring(&node, running) {
                Ok(brought) => Some(brought),
                Err(error) => {
                    tracing::warn!(%node, %error, "an agent lists a lease that is not valid");
                    None
                }
            });
            Ok(brought.collect())
        })
        .await
    }

    fn bring(&self, node: &str, running: RunningLease) -> Result<Brought, Error> {
        let RunningLease { ticket, report, remaining_ms } = running;
        let Ticket { lease, token, .. } = self.verifying.open(&ticket)?;
        let lease = lease.unwrap_or_default();
        let report = lease_report(report.unwrap_or_default())?;
        if lease.node != node || lease.id != report.lease.to_string() {
            let message = format!("the ticket is for lease {} on node {:?}", lease.id, lease.node);
            return Err(Error::new(Code::PermissionDenied, message));
        }
        let token = token.parse().ok();
        Ok(Brought { running: AgentLease { lease: Box::new(lease), report, remaining_ms }, token })
    }

    /// Reads the stored records of leases that are new to this manager, so that their cost is not counted twice, and so
    /// that leases get their tenant whose tickets are from before its verification.
    async fn with_records(
        &self,
        mut brought: Vec<Brought>,
    ) -> Result<(Vec<Brought>, Vec<LeaseRecord>), Error> {
        let new: Vec<LeaseId> = self.look(|core| {
            let leases = brought.iter().map(|brought| brought.running.report.lease);
            leases.filter(|&lease| core.lease(lease).is_none()).collect()
        })?;
        if new.is_empty() {
            return Ok((brought, Vec::new()));
        }
        let read = self.database.with(move |store| {
            let records = new.iter().map(|lease| lease_records::stored(store, &lease.to_string()));
            Ok(records.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
        });
        let records: Vec<LeaseRecord> = match read.await {
            Ok(records) => records,
            Err(error) => {
                // Nodes join even while the store is away; usage is in their reports.
                tracing::warn!(%error, "a node joins without what the store has of its leases");
                Vec::new()
            }
        };
        for record in &records {
            let known = brought.iter_mut().find(|brought| brought.running.lease.id == record.lease.id);
            let Some(known) = known else { continue };
            if known.running.lease.tenant == UNVERIFIED {
                known.running.lease.tenant.clone_from(&record.lease.tenant);
            }
            known.token = known.token.or_else(|| record.token.parse().ok());
        }
        // Leases that still have no tenant were never verified.
        brought.retain(|brought| brought.running.lease.tenant != UNVERIFIED);
        let records = records.into_iter().filter(|record| record.lease.tenant != UNVERIFIED).collect();
        Ok((brought, records))
    }

    /// Takes a report in.
    pub(crate) fn report(
        self: &Arc<Shell>,
        report: NodeReport,
        (caller, place): (&CallerIdentity, Option<&ConnectionSlot>),
        managers: Vec<String>,
    ) -> Result<NodeReportReply, Error> {
        caller.check_node(&report.node)?;
        let lending = lending(report.state());
        let NodeReport { node, leases, registration, sequence, clock_unix_ms: clock_ms, answered, .. } =
            report;
        let (neighbours, cache, connected) = (report.neighbours, report.cache, report.connected);
        let standby = report.standby.into_iter().take(MAX_STANDBY).map(standby_report).collect();
        let leases = leases.into_iter().map(lease_report).collect::<Result<_, _>>()?;
        let again = || {
            let message =
                format!("node {node:?} is not registered with this manager; it has to register first");
            Error::new(Code::Protocol, message)
        };
        let mut state = self.lock()?;
        let node = state.core.node_key(&node).ok_or_else(again)?;
        let report =
            AgentReport { node, registration, sequence, answered, clock_ms, lending, leases, neighbours };
        let reported = match self.handle(&mut state, CoreEvent::Report(report)) {
            Some(CoreAction::Reported(reported)) => reported,
            Some(CoreAction::RegisterAgain) => return Err(again()),
            other => return Err(Error::new(Code::Internal, format!("a report was answered by {other:?}"))),
        };
        state.core.note_cache(node, cache);
        state.core.note_connected(node, connected);
        state.core.note_standby(node, standby);
        self.reports_by(&mut state, node, place);
        drop(state);
        let order = |(lease, error): (LeaseId, Error)| EndOrder {
            lease: lease.to_string(),
            code: error.code.number(),
            reason: error.message,
        };
        Ok(NodeReportReply {
            end: reported.end.into_iter().map(order).collect(),
            acknowledged: reported.acknowledged.iter().map(LeaseId::to_string).collect(),
            now_unix_ms: self.clock.now_ms(),
            managers,
            sequence: reported.sequence,
            neighbours: reported.neighbours.map(|neighbours| self.secrets.tell(&neighbours)),
        })
    }

    /// Waits until a provisional lease's token has been verified.
    pub(crate) async fn confirm(&self, lease: &str, caller: &CallerIdentity) -> Result<ConfirmReply, Error> {
        let lease = parse_lease(lease)?;
        let mut decided = self.decided.subscribe();
        let wait = async {
            loop {
                decided.mark_unchanged();
                if let Some(reply) = self.confirmed(lease, caller)? {
                    return Ok(reply);
                }
                let stops = |_| Error::new(Code::Internal, "the manager stops");
                decided.changed().await.map_err(stops)?;
            }
        };
        tokio::time::timeout(CONFIRMATION, wait).await.unwrap_or_else(|_| {
            let message =
                format!("the token of lease {lease} was not verified within {} s", CONFIRMATION.as_secs());
            Err(Error::new(Code::StoreUnreachable, message))
        })
    }

    /// Returns the confirmation of a lease; `None` while its token is not verified.
    fn confirmed(&self, id: LeaseId, caller: &CallerIdentity) -> Result<Option<ConfirmReply>, Error> {
        let state = self.lock()?;
        if let Some((_, error)) = state.rejected.iter().find(|(rejected, _)| *rejected == id) {
            return Err(error.clone());
        }
        let (lease, _) = lease_of_agent(&state.core, id, caller)?;
        if let Some(end) = &lease.end {
            let message = format!("lease {id} has ended: {}", end.reason);
            return Err(Error::new(end.code.unwrap_or(Code::LeaseEnded), message));
        }
        if lease.provisional {
            return Ok(None);
        }
        let granted = state.describe(id).ok_or_else(|| unknown_lease(id))?;
        drop(state);
        Ok(Some(ConfirmReply { ticket: self.signing.sign(&granted.ticket) }))
    }
}

impl State {
    /// Notes the tokens of leases that have come with their node.
    fn take_over(&mut self, tokens: &[(LeaseId, Option<TokenId>)]) {
        for &(lease, token) in tokens {
            if let Some(token) = token.filter(|_| self.core.lease(lease).is_some()) {
                self.taken.insert(lease, token);
            }
        }
    }
}

/// Checks that an agent may lend the node with this description.
fn check_lending(node: &NodeDescription, caller: &CallerIdentity) -> Result<(), Error> {
    names::check_node(&node.name)?;
    caller.check_node(&node.name)?;
    let Some(LendingLimits { max_cores, max_memory_bytes, .. }) = caller.lending.as_deref() else {
        return Ok(());
    };
    let cores = u64::from(node.cores) + u64::from(node.shared_cores);
    within("cores", cores, u64::from(*max_cores))?;
    within("bytes of memory", node.memory_bytes, *max_memory_bytes)
}

fn within(what: &str, lent: u64, most: u64) -> Result<(), Error> {
    if most == 0 || lent <= most {
        return Ok(());
    }
    Err(Error::new(
        Code::PermissionDenied,
        format!("{lent} {what} are to be lent, the access token allows {most}"),
    ))
}

fn lending(state: NodeState) -> LendingState {
    match state {
        NodeState::Draining => LendingState::Draining,
        NodeState::Reclaimed => LendingState::Reclaimed,
        NodeState::Unspecified | NodeState::Lending | NodeState::Lost => LendingState::Open,
    }
}

fn lease_report(report: v1::LeaseReport) -> Result<LeaseReport, Error> {
    let is_over = report.state() == LeaseState::Ended;
    let v1::LeaseReport { lease, usage, end_reason, end_code, mut functions, cold_imports, .. } = report;
    let shortened = |text: &str| text.chars().take(MAX_REASON_CHARS).collect::<String>();
    let cold_imports = cold_imports.map(|cold| v1::ColdImports {
        module: shortened(&cold.module),
        reason: shortened(&cold.reason),
        import_ms: cold.import_ms,
    });
    functions.truncate(MAX_FUNCTIONS);
    Ok(LeaseReport {
        lease: parse_lease(&lease)?,
        usage: usage.unwrap_or_default(),
        functions,
        cold_imports,
        ended: is_over.then(|| ReportedEnd { code: end_code, reason: shortened(&end_reason) }),
    })
}

fn standby_report(standby: v1::StandbyProcesses) -> v1::StandbyProcesses {
    let shortened = |text: &str| text.chars().take(MAX_REASON_CHARS).collect::<String>();
    let (modules, tenant) = (shortened(&standby.modules), shortened(&standby.tenant));
    v1::StandbyProcesses { modules, tenant, ..standby }
}

fn invalid(message: String) -> Error {
    Error::new(Code::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_an_agents_report_is_shortened() {
        let long = || "x".repeat(10 * MAX_REASON_CHARS);
        let cold = v1::ColdImports { module: long(), reason: long(), import_ms: 1 };
        let mut report = v1::LeaseReport {
            lease: format!("{:032x}", 7),
            cold_imports: Some(cold),
            end_reason: long(),
            ..Default::default()
        };
        report.set_state(LeaseState::Ended);
        let report = lease_report(report).unwrap();
        let cold = report.cold_imports.unwrap();
        assert_eq!(
            [cold.module.len(), cold.reason.len(), report.ended.unwrap().reason.len()],
            [MAX_REASON_CHARS; 3]
        );
    }
}
