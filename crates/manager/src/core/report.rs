//! Processes the reports of agents, and their silence.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use sublet_proto::package::MAX_BUILDS;
use sublet_proto::pool::Pool;
use sublet_proto::ticket::ATTACH_GRACE_MS;
use sublet_proto::v1::{self, PackageInfo};
use sublet_proto::{Code, Error};

use super::ids::{LeaseId, NodeKey};
use super::lease::{Lease, LeaseEnd, LeasePhase, Marks};
use super::messages::{AgentLease, AgentReport, CoreAction, Joining, LeaseReport, ReportAnswer, ReportedEnd};
use super::nodes::ManagedNode;
use super::resources::{LeaseResources, LendingState};
use super::tenants::{CONTENTION_MS, application_name};
use super::terms::DEFAULT_OPTIONS;
use super::{Core, EXPIRY_SLACK_MS, description};

/// Time for which a grant without an attached client holds its resources until it has lapsed, even if it was given back
/// then.
const LAPSE_MS: u64 = 3_000;

impl Core {
    /// Registers a node, with exactly the leases that its agent lists. Other grants on the node are void, since their
    /// tickets are of an earlier registration.
    pub(super) fn register(&mut self, now_ms: u64, joining: Joining, out: &mut Vec<CoreAction>) {
        let Joining { description, instance, generation, leases } = joining;
        let checked = description::check(&description)
            .and_then(|()| self.nodes.check_class(&description))
            .and_then(|()| self.nodes.check_name(&description.name, instance, generation));
        if let Err(error) = checked {
            return out.push(CoreAction::NotRegistered(error));
        }
        let key = self.nodes.describe(description);
        self.registration += 1;
        let registration = self.registration;
        debug_assert!(
            self.nodes.get(key).is_some_and(|node| node.registration < registration),
            "registration {registration} is not later than that of {:?}",
            self.nodes.get(key)
        );
        self.nodes.change(key, |node| {
            node.instance = instance;
            node.connected = None;
            node.generation = generation;
            node.registration = registration;
            node.sequence = 0;
            node.silent_ticks = 0;
            node.is_missed = false;
            node.last_report_ms = now_ms;
            node.lending = LendingState::Open;
        });
        self.void_unlisted(now_ms, key, &leases, out);
        for running in leases {
            self.take_over(now_ms, key, running, out);
        }
        let neighbours = self.nodes.neighbourhood(key);
        out.push(CoreAction::Registered { node: key, registration, neighbours });
        self.serve_waiting(now_ms, out);
    }

    fn void_unlisted(
        &mut self,
        now_ms: u64,
        node: NodeKey,
        listed: &[AgentLease],
        out: &mut Vec<CoreAction>,
    ) {
        let listed: HashSet<LeaseId> = listed.iter().map(|running| running.report.lease).collect();
        for key in self.leases_of(node) {
            let Some(lease) = self.leases.get_mut(key).filter(|lease| !listed.contains(&lease.id)) else {
                continue;
            };
            lease.marks.is_settled = true;
            match lease.state {
                LeasePhase::Ended | LeasePhase::Moved if lease.is_stored() => self.forget(key, out),
                LeasePhase::Ended | LeasePhase::Moved => {}
                _ => self.end(
                    key,
                    LeaseEnd::because(Code::AgentUnreachable, "its agent was started anew", now_ms),
                    out,
                ),
            }
        }
    }

    fn take_over(&mut self, now_ms: u64, node: NodeKey, running: AgentLease, out: &mut Vec<CoreAction>) {
        let AgentLease { lease: from_ticket, report, remaining_ms } = running;
        let expires_ms = now_ms.saturating_add(remaining_ms);
        // Another manager's clock may differ, so the time of the grant is at least as long ago as the usage shows.
        let granted_ms = now_ms.saturating_sub(report.usage.allocated_ns / 1_000_000);
        match self.leases.find(report.lease) {
            Some(key) => {
                self.take_back(key);
                if let Some(lease) = self.leases.get_mut(key) {
                    lease.granted_ms = lease.granted_ms.min(granted_ms);
                    lease.marks.has_come = true;
                    if lease.is_active() {
                        lease.expires_ms = expires_ms;
                    }
                }
            }
            None => {
                let mut lease = self.lease_from(&from_ticket, report.lease, node);
                (lease.granted_ms, lease.issued_ms) = (granted_ms, granted_ms);
                lease.expires_ms = expires_ms;
                lease.marks.has_come = true;
                // Its cost in the store was spent with the manager that it comes from.
                self.begin(lease.paid_so_far());
            }
        }
        let mut reply = ReportAnswer::default();
        self.report_lease(now_ms, node, 0, report, &mut reply, out);
        // Further answers about it go out with the answer to its next report, which comes within a second.
    }

    fn lease_from(&mut self, lease: &v1::Lease, id: LeaseId, node: NodeKey) -> Lease {
        let package = PackageInfo {
            name: lease.package_name.clone(),
            owner: lease.package_owner.clone(),
            digest: lease.package.clone(),
            functions: vec![v1::FunctionInfo::default(); lease.functions.min(MAX_FUNCTIONS) as usize],
            builds: builds_in(&lease.environment, lease.build),
            ..PackageInfo::default()
        };
        let application = Some(&lease.application).filter(|name| !name.is_empty());
        let application = application.map(|name| self.tenants.key(&application_name(&lease.tenant, name)));
        // A lease of an earlier version does not name its pool.
        let pool = lease.pool.parse().ok().or_else(|| self.nodes.get(node).map(|node| node.pool));
        let pool = pool.unwrap_or(Pool::Balanced);
        Lease {
            id,
            request: None,
            tenant: self.tenants.key(&lease.tenant),
            application,
            run: None,
            node,
            package: Arc::new(package),
            class: self.nodes.classes.key(&lease.pu, ""),
            build: lease.build,
            choice: lease.choice.as_str().into(),
            amount: LeaseResources {
                workers: lease.cores,
                shared: lease.shared,
                memory_bytes: lease.memory_bytes,
                pool,
            },
            granted_ms: lease.granted_unix_ms,
            issued_ms: lease.granted_unix_ms,
            expires_ms: lease.expires_unix_ms,
            idle_timeout_ms: lease.idle_timeout_ms,
            options: lease.options.unwrap_or(DEFAULT_OPTIONS),
            needs: Arc::new(lease.needs.clone().unwrap_or_default()),
            price: lease.price.unwrap_or_default(),
            state: LeasePhase::Attached,
            provisional: false,
            usage: lease.usage.unwrap_or_default(),
            functions: lease.function_usage.clone(),
            cold_imports: lease.cold_imports.clone().map(Box::new),
            end: None,
            revision: 0,
            marks: Marks::default(),
        }
    }

    /// Restores a stored lease. Leases are restored before their nodes register; a lease whose node does not register
    /// ends when its time is over. The clock that set its grant and expiry may have jumped since, so the rest of its
    /// time follows from the usage that was stored.
    pub(super) fn restore(&mut self, now_ms: u64, stored: &v1::Lease) {
        let Ok(id) = stored.id.parse::<LeaseId>() else { return };
        if self.leases.find(id).is_some() {
            return;
        }
        let node = self.nodes.find(&stored.node).unwrap_or_else(|| self.nodes.add(&stored.node));
        let mut lease = self.lease_from(stored, id, node);
        let used_ms = lease.usage.allocated_ns / 1_000_000;
        let left_ms = lease.expires_ms.saturating_sub(lease.granted_ms).saturating_sub(used_ms);
        lease.granted_ms = now_ms.saturating_sub(used_ms);
        lease.issued_ms = lease.granted_ms;
        lease.expires_ms = now_ms.saturating_add(left_ms);
        // Its cost so far was spent before this manager started.
        self.begin(lease.paid_so_far());
    }

    pub(super) fn report(&mut self, now_ms: u64, report: AgentReport, out: &mut Vec<CoreAction>) {
        let AgentReport {
            node: key,
            registration,
            sequence,
            answered,
            clock_ms,
            lending,
            leases,
            neighbours,
        } = report;
        let is_known = |node: &&mut ManagedNode| node.registration != 0 && node.registration == registration;
        let Some(node) = self.nodes.get_mut(key).filter(is_known) else {
            return out.push(CoreAction::RegisterAgain);
        };
        if sequence <= node.sequence {
            return out.push(CoreAction::Reported(ReportAnswer::default()));
        }
        let was_away = node.is_lost() || node.is_missed;
        node.sequence = sequence;
        node.silent_ticks = 0;
        node.is_missed = false;
        node.last_report_ms = now_ms;
        let is_back = was_away || (node.lending != lending && lending == LendingState::Open);
        if was_away || node.lending != lending {
            self.nodes.change(key, |node| node.lending = lending);
        }
        let mut reply = ReportAnswer { sequence, ..ReportAnswer::default() };
        let freed = self.report_leases(
            now_ms,
            key,
            &ReportHeader { sequence, answered, clock_ms },
            leases,
            &mut reply,
            out,
        );
        reply.neighbours = self.nodes.news_of_neighbours(key, neighbours);
        out.push(CoreAction::Reported(reply));
        if freed || is_back {
            self.serve_waiting(now_ms, out);
        }
    }

    /// Handles the leases of a report, and tells whether any resources became free.
    fn report_leases(
        &mut self,
        now_ms: u64,
        key: NodeKey,
        told: &ReportHeader,
        leases: Vec<LeaseReport>,
        reply: &mut ReportAnswer,
        out: &mut Vec<CoreAction>,
    ) -> bool {
        let Some(node) = self.nodes.get(key) else { return false };
        let (sequence, leased) = (told.sequence, node.leased);
        if leases.is_empty() && node.leases.is_empty() {
            return false;
        }
        let mut attached = 0;
        for report in leases {
            attached += u32::from(self.report_lease(now_ms, key, sequence, report, reply, out));
        }
        let Some(node) = self.nodes.get(key) else { return false };
        if node.attached > attached {
            self.end_missing(now_ms, key, sequence, out);
        }
        if self.nodes.get(key).is_some_and(|node| node.unattached > 0) {
            self.end_unattached(now_ms, key, told, reply, out);
        }
        let lists_too_few = |node: &ManagedNode| {
            node.leases.len() as u64 > u64::from(node.attached) + u64::from(node.unattached)
        };
        if self.nodes.get(key).is_some_and(lists_too_few) {
            self.settle_unlisted(key, sequence, told.clock_ms, out);
        }
        self.nodes.get(key).is_some_and(|node| node.leased != leased)
    }

    /// Settles ended leases that the agent does not list, as no report will list them again: the agent has forgotten
    /// them, or never had them. The latter is certain only when their tickets were too old when the report was put
    /// together.
    fn settle_unlisted(&mut self, node: NodeKey, sequence: u64, clock_ms: u64, out: &mut Vec<CoreAction>) {
        for key in self.leases_of(node) {
            let Some(lease) = self.leases.get_mut(key) else { continue };
            let may_come =
                lease.marks.heard == 0 && lease.issued_ms.saturating_add(ATTACH_GRACE_MS) >= clock_ms;
            if lease.is_active() || lease.marks.heard == sequence || may_come {
                continue;
            }
            lease.marks.is_settled = true;
            if lease.is_stored() {
                self.forget(key, out);
            }
        }
    }

    /// Says whether it is attached, by both accounts.
    fn report_lease(
        &mut self,
        now_ms: u64,
        node: NodeKey,
        sequence: u64,
        report: LeaseReport,
        reply: &mut ReportAnswer,
        out: &mut Vec<CoreAction>,
    ) -> bool {
        let LeaseReport { lease: id, usage, functions, cold_imports, ended } = report;
        let found = self.leases.find(id).and_then(|key| Some((key, self.leases.get_mut(key)?)));
        let Some((key, lease)) = found.filter(|(_, lease)| lease.node == node) else {
            match ended {
                // The lease was forgotten when its end was stored.
                Some(_) => reply.acknowledged.push(id),
                None => reply
                    .end
                    .push((id, Error::new(Code::UnknownLease, format!("the manager has no lease {id}")))),
            }
            return false;
        };
        lease.marks.heard = sequence;
        let is_new = lease.state == LeasePhase::Granted;
        if is_new {
            lease.state = LeasePhase::Attached;
            self.tenants.get_mut(lease.tenant).attach();
        }
        let cold_imports = cold_imports.map(Box::new);
        let is_told = lease.cold_imports != cold_imports;
        lease.cold_imports = cold_imports;
        if lease.grow(now_ms, &usage, functions) || is_new || is_told {
            self.leases.touch(key);
            self.account(key);
        }
        if is_new && let Some(node) = self.nodes.get_mut(node) {
            debug_assert!(node.unattached > 0, "lease {id} was not counted as unattached on {}", node.name);
            node.unattached -= 1;
            node.attached += 1;
        }
        match ended {
            Some(ended) => {
                self.end_reported(now_ms, key, ended, reply, out);
                false
            }
            None => self.still_runs(now_ms, key, reply),
        }
    }

    fn end_reported(
        &mut self,
        now_ms: u64,
        key: u32,
        ended: ReportedEnd,
        reply: &mut ReportAnswer,
        out: &mut Vec<CoreAction>,
    ) {
        let code = (ended.code != 0).then(|| Code::from_number(ended.code));
        self.end(key, LeaseEnd { code, reason: Cow::Owned(ended.reason), at_ms: now_ms }, out);
        let Some(lease) = self.leases.get_mut(key) else { return };
        lease.marks.over_ms.get_or_insert(now_ms);
        if lease.is_stored() {
            reply.acknowledged.push(lease.id);
            self.forget(key, out);
        }
    }

    /// Orders the agent to end the lease if it should not run any more. Tells whether the lease is active.
    fn still_runs(&mut self, now_ms: u64, key: u32, reply: &mut ReportAnswer) -> bool {
        let Some(lease) = self.leases.get_mut(key) else { return false };
        let id = lease.id;
        if let Some(end) = &lease.end {
            let error = Error::new(end.code.unwrap_or(Code::LeaseEnded), end.reason.to_string());
            reply.end.push((id, error));
            return false;
        }
        if lease.marks.ordered.is_none() && lease.expires_ms.saturating_add(EXPIRY_SLACK_MS) <= now_ms {
            lease.marks.ordered = Some(Error::new(Code::LeaseExpired, format!("lease {id} has expired")));
        }
        let tenant = self.tenants.get(lease.tenant);
        if lease.marks.ordered.is_none() && tenant.is_spent() {
            let limit = tenant.quota.spend_nano.unwrap_or_default();
            let message = format!("tenant {} has spent its {limit} nano-units", tenant.name);
            lease.marks.ordered = Some(Error::new(Code::QuotaExceeded, message));
        }
        if let Some(error) = &lease.marks.ordered {
            reply.end.push((id, error.clone()));
        }
        true
    }

    /// Ends leases that the agent does not list: it does not have them.
    fn end_missing(&mut self, now_ms: u64, node: NodeKey, sequence: u64, out: &mut Vec<CoreAction>) {
        for key in self.leases_of(node) {
            let missing =
                |lease: &&mut Lease| lease.state == LeasePhase::Attached && lease.marks.heard != sequence;
            let Some(lease) = self.leases.get_mut(key).filter(missing) else { continue };
            lease.marks.is_settled = true;
            self.end(
                key,
                LeaseEnd::because(Code::AgentUnreachable, "its node no longer has it", now_ms),
                out,
            );
        }
    }

    /// Takes back the grants to which no client can attach any more: the agent does not list them, and either their
    /// tickets were too old when the report was put together, or the agent had received the order to end them.
    fn end_unattached(
        &mut self,
        now_ms: u64,
        node: NodeKey,
        told: &ReportHeader,
        reply: &mut ReportAnswer,
        out: &mut Vec<CoreAction>,
    ) {
        for key in self.leases_of(node) {
            let granted = |lease: &&mut Lease| lease.state == LeasePhase::Granted;
            let Some(lease) = self.leases.get_mut(key).filter(granted) else { continue };
            let is_void = lease.marks.voided_by != 0 && lease.marks.voided_by <= told.answered;
            let has_lapsed = now_ms.saturating_sub(lease.granted_ms) >= LAPSE_MS;
            // The tenant of a provisional lease is not verified yet.
            let costs_turn = has_lapsed && !lease.provisional;
            if is_void || lease.issued_ms.saturating_add(ATTACH_GRACE_MS) < told.clock_ms {
                let end = match lease.marks.ordered.take() {
                    Some(error) => {
                        LeaseEnd { code: Some(error.code), reason: error.message.into(), at_ms: now_ms }
                    }
                    None => LeaseEnd::because(Code::LeaseEnded, "no client attached to it in time", now_ms),
                };
                if costs_turn {
                    self.tenants.get_mut(lease.tenant).lapse(now_ms);
                }
                self.end(key, end, out);
            } else if let Some(error) = &lease.marks.ordered {
                reply.end.push((lease.id, error.clone()));
                if lease.marks.voided_by == 0 {
                    lease.marks.voided_by = told.sequence;
                }
            }
        }
    }

    pub(super) fn leases_of(&self, node: NodeKey) -> Vec<u32> {
        self.nodes.get(node).map(|node| node.leases.clone()).unwrap_or_default()
    }

    pub(super) fn saved(&mut self, id: LeaseId, revision: u64, out: &mut Vec<CoreAction>) {
        let Some(key) = self.leases.find(id) else { return };
        let Some(lease) = self.leases.get_mut(key) else { return };
        // A write may be answered after the lease was forgotten and came back with its agent. Its revision is then
        // older than all that changed since.
        lease.marks.saved_revision = lease.marks.saved_revision.max(revision);
        if !lease.is_active() && lease.marks.is_settled && lease.is_stored() {
            self.forget(key, out);
        }
    }

    pub(super) fn save_failed(&mut self, id: LeaseId) {
        if let Some(key) = self.leases.find(id) {
            self.leases.mark(key);
        }
    }

    pub(super) fn tick(&mut self, now_ms: u64, out: &mut Vec<CoreAction>) {
        let forgotten = self.nodes.tick();
        self.end_on_lost_nodes(now_ms, out);
        for node in forgotten {
            self.forget_node(node, out);
        }
        // Nodes move between virtual pools also by their leased resources. Tenants that are held back may have their
        // turn again.
        if self.nodes.has_virtual_pools()
            || self.tenants.are_any_held_back(now_ms.saturating_sub(CONTENTION_MS))
        {
            self.serve_waiting(now_ms, out);
        }
        self.end_waits(now_ms, out);
        if let Some(global) = self.global.as_deref_mut() {
            global.tick(now_ms);
        }
        for (lease, revision) in self.leases.take_dirty() {
            debug_assert!(revision > 0, "lease {lease} is to be stored, and nothing of it has changed");
            out.push(CoreAction::Save { lease, revision });
        }
    }

    /// Ends leases on lost nodes when their time is over. A lost node's agent, if it runs, also ends them, and reports
    /// that later.
    fn end_on_lost_nodes(&mut self, now_ms: u64, out: &mut Vec<CoreAction>) {
        let lost = self.nodes.iter().filter(|(_, node)| node.is_lost());
        let keys: Vec<u32> = lost.flat_map(|(_, node)| node.leases.iter().copied()).collect();
        for key in keys {
            let Some(lease) = self.leases.get_mut(key) else { continue };
            if lease.is_active() && lease.expires_ms.saturating_add(EXPIRY_SLACK_MS) <= now_ms {
                // It counts as attached, as far as is known; its usage will be reported when the node is back.
                let was_granted =
                    std::mem::replace(&mut lease.state, LeasePhase::Attached) == LeasePhase::Granted;
                if was_granted && let Some(node) = self.nodes.get_mut(lease.node) {
                    debug_assert!(node.unattached > 0, "an unattached lease is not counted on {}", node.name);
                    node.unattached -= 1;
                    node.attached += 1;
                }
                self.end(key, LeaseEnd::because(Code::LeaseExpired, "its time is over", now_ms), out);
            }
        }
    }

    /// Settles the leases of a node that will report no more; if its agent comes back, it brings them with their
    /// tickets.
    fn forget_node(&mut self, node: NodeKey, out: &mut Vec<CoreAction>) {
        for key in self.leases_of(node) {
            let Some(lease) = self.leases.get_mut(key).filter(|lease| !lease.is_active()) else { continue };
            lease.marks.is_settled = true;
            if lease.is_stored() {
                self.forget(key, out);
            }
        }
        if self.nodes.get(node).is_some_and(|node| node.leases.is_empty()) {
            self.nodes.remove(node);
        }
    }
}

/// Fields of a report that concern the report itself.
struct ReportHeader {
    sequence: u64,
    answered: u64,
    clock_ms: u64,
}

/// Most functions of a package that a ticket may speak of.
const MAX_FUNCTIONS: u32 = 1024;

/// Builds of which the one of an index runs in an environment; none if there is no environment.
fn builds_in(environment: &str, index: u32) -> Vec<v1::PackageBuild> {
    if environment.is_empty() {
        return Vec::new();
    }
    let build = v1::PackageBuild { environment: environment.to_owned(), ..v1::PackageBuild::default() };
    vec![build; (index as usize).min(MAX_BUILDS) + 1]
}
