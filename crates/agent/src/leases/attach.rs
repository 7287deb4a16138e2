//! The step from a ticket to an attached lease: checks the ticket's lease, and collects the resources that the lease
//! holds.

use std::sync::Arc;
use std::time::Instant;

use sublet_fabric::connection::Connection;
use sublet_fabric::region::{PAGE_BYTES, Region, bar_writers, take_pages};
use sublet_proto::needs::check_variables;
use sublet_proto::package::{check_path, is_digest};
use sublet_proto::v1::{Attach, Lease, Needs, Program, Ticket, Variable, WorkerOptions};
use sublet_proto::{Code, Error, version};
use sublet_runtime::SwapPlan;
use sublet_runtime::wire::InboxLayout;
use sublet_runtime::wire::usage::UsageLayout;

use crate::leases::book::BookedEnd;
use crate::leases::confirm::Confirmation;
use crate::leases::ledger::{EnrolledLease, Enrolment};
use crate::leases::usage::LeaseMeter;
use crate::listener::transport::{self, NetworkTransport};
use crate::machine::capacity::check_available;
use crate::machine::devices::DeviceReservation;
use crate::machine::flash::FlashFile;
use crate::machine::numa::NumaNodes;
use crate::machine::resources::{ResourceRequest, ResourceReservation};
use crate::machine::sizes::{local_bytes, rings_bytes};
use crate::node::Node;
use crate::shim::{ProcessIdentity, ReservedPid};
use crate::signal::EndRequest;

/// Everything that a lease holds on this node. Whatever is dropped of it is given back; the fields stand in the
/// order in which that has to happen.
pub(crate) struct AttachedLease {
    pub(crate) lease: Lease,
    pub(crate) options: WorkerOptions,
    /// The client wants a worker at once.
    pub(crate) start: bool,
    /// The program to execute in place of calls, if any.
    pub(crate) one_shot_program: Option<OneShotProgram>,
    /// Between nodes: what the calls travel by.
    pub(crate) network_transport: Option<NetworkTransport>,
    /// Asked if the ticket is provisional: until it is answered, nothing is handed to the client.
    pub(crate) confirmation: Option<Confirmation>,
    /// Shared by the client and the workers, or, of a segment, all of its memory; the agent does not look into it. A
    /// segment on a disk has a page here that no process uses.
    pub(crate) inbox: Region,
    /// The bytes of a segment on a disk.
    pub(crate) flash: Option<Arc<FlashFile>>,
    pub(crate) meter: Arc<LeaseMeter>,
    pub(crate) end: Arc<EndRequest>,
    pub(crate) expires: Instant,
    /// Environment variables of the client and of the lease's secrets. Only the worker process gets them.
    pub(crate) variables: Vec<Variable>,
    pub(crate) reservation: ResourceReservation,
    pub(crate) enrolment: Enrolment,
}

/// A program that is executed once, and the global process that it will be from now until the lease ends.
pub(crate) struct OneShotProgram {
    /// Until it is started.
    pub(crate) program: Option<Program>,
    pub(crate) process: ReservedPid,
}

/// Resources of a lease beside its entry in the ledger.
struct Holdings {
    options: WorkerOptions,
    one_shot_program: Option<OneShotProgram>,
    network_transport: Option<NetworkTransport>,
    confirmation: Option<Confirmation>,
    inbox: Region,
    flash: Option<Arc<FlashFile>>,
    meter: Arc<LeaseMeter>,
    variables: Vec<Variable>,
    reservation: ResourceReservation,
}

/// Takes up the lease of a ticket, which the client on this connection has shown.
pub(crate) fn attach(node: &Node, connection: &Connection, request: &Attach) -> Result<AttachedLease, Error> {
    version::check_calls("the client", request.calls)?;
    let wanted = transport::TransportRequest::by(node.clients.listener_state.as_ref(), connection, request)?;
    let end = Arc::new(EndRequest::new()?);
    let EnrolledLease { enrolment, ticket, expires } =
        node.leases.ledger.enrol(&request.ticket, end.clone())?;
    let held = match hold(node, &ticket, wanted, (request, &end)) {
        Ok(held) => held,
        Err(error) => {
            let reason = format!("the node could not take it up: {error}");
            enrolment.finish(BookedEnd { code: error.code.number(), reason });
            return Err(error);
        }
    };
    if held.confirmation.is_none() {
        enrolment.bill(held.meter.clone());
    }
    let Holdings {
        options,
        one_shot_program,
        network_transport,
        confirmation,
        inbox,
        flash,
        meter,
        variables,
        reservation,
    } = held;
    let lease = ticket.lease.unwrap_or_default();
    let start = request.start;
    Ok(AttachedLease {
        lease,
        options,
        start,
        one_shot_program,
        network_transport,
        confirmation,
        inbox,
        flash,
        meter,
        end,
        expires,
        variables,
        reservation,
        enrolment,
    })
}

/// Lets a program, or without a path an executor, be a global process of the lease's processing unit.
fn reserve(node: &Node, lease: &Lease, program: &Program) -> Result<OneShotProgram, Error> {
    check_program(lease, program)?;
    let who = ProcessIdentity {
        lease: lease.id.clone(),
        tenant: lease.tenant.clone(),
        pu: node.unit(&lease.pu),
        capacity_bytes: rings_bytes(lease),
    };
    Ok(OneShotProgram { program: Some(program.clone()), process: node.links.shim.reserve(&who)? })
}

/// Checks the program that a client wants to execute. A ticket holder is not always the shim of a parent process, which
/// checks the program itself.
fn check_program(lease: &Lease, program: &Program) -> Result<(), Error> {
    if lease.is_segment() || lease.cores != 1 {
        let message = format!("lease {} is of {} cores: a program has one", lease.id, lease.cores);
        return Err(Error::new(Code::InvalidArgument, message));
    }
    if program.path.is_empty() { Ok(()) } else { check_path(&program.path) }
}

fn hold(
    node: &Node,
    ticket: &Ticket,
    wanted_transport: transport::TransportRequest,
    (request, end): (&Attach, &Arc<EndRequest>),
) -> Result<Holdings, Error> {
    let program = request.program.as_ref();
    let nothing = || Error::new(Code::PermissionDenied, "the ticket names no lease");
    let lease = ticket.lease.as_ref().ok_or_else(nothing)?;
    let (options, inbox_bytes) = if lease.is_segment() { check_segment(lease)? } else { check_lease(lease)? };
    let wanted =
        ResourceRequest { cores: lease.cores, memory_bytes: lease.memory_bytes, shared: lease.shared };
    let mut reservation = node.pool.reserve(&wanted)?;
    reservation.devices = devices(node, lease)?;
    node.execution.standby.cores_are_taken();
    let usage = UsageLayout::new(lease.workers(), lease.functions);
    let meter = Arc::new(LeaseMeter::open((usage, lease.cores_each()), node.calibration)?);
    let (inbox, flash) = match (lease.is_segment(), &node.flash) {
        (true, Some(disk)) => {
            (Region::create("sublet-flash", PAGE_BYTES)?, Some(disk.allocate(inbox_bytes, end)?))
        }
        (true, None) => (segment(&node.numa, inbox_bytes)?, None),
        (false, _) => (Region::create("sublet-inbox", inbox_bytes)?, None),
    };
    let variables = variables(node, ticket, lease, &request.variables)?;
    let ask = || Confirmation::ask(node.leases.managers.connect()?, &lease.id);
    let confirmation = ticket.provisional.then(ask).transpose()?;
    let network_transport = wanted_transport.network_transport(&lease.id)?;
    if lease.is_segment() {
        check_path_to_segment(lease, network_transport.as_ref(), flash.is_some())?;
    }
    if program.is_some() && ticket.provisional {
        let message = format!(
            "lease {} has no verified owner yet: start programs after its token is verified",
            lease.id
        );
        return Err(Error::new(Code::PermissionDenied, message));
    }
    let one_shot_program = program.map(|program| reserve(node, lease, program)).transpose()?;
    Ok(Holdings {
        options,
        one_shot_program,
        network_transport,
        confirmation,
        inbox,
        flash,
        meter,
        variables,
        reservation,
    })
}

/// Reserves the devices of a lease. The manager has named their kinds as this node does.
fn devices(node: &Node, lease: &Lease) -> Result<DeviceReservation, Error> {
    let Some(needs) = lease.needs.as_ref().filter(|needs| !needs.devices.is_empty()) else {
        return Ok(DeviceReservation::default());
    };
    needs.check()?;
    node.execution.devices.reserve(&needs.devices)
}

/// Checks that the client reaches the bytes of a segment in a way that there is.
fn check_path_to_segment(
    lease: &Lease,
    network_transport: Option<&NetworkTransport>,
    is_on_disk: bool,
) -> Result<(), Error> {
    let message = match network_transport {
        None if is_on_disk => {
            format!("segment {} is on a disk: it is reached over tcp, and not mapped", lease.id)
        }
        Some(NetworkTransport { secret: None, .. }) if is_on_disk => {
            format!("segment {} is on a disk: it is reached over tcp only", lease.id)
        }
        Some(NetworkTransport { secret: None, .. }) => {
            format!("the memory of segment {} is reached over tcp, or by sharing it", lease.id)
        }
        _ => return Ok(()),
    };
    Err(Error::new(Code::FabricUnavailable, message))
}

/// The environment variables of a client, and over them those of the lease's secrets, which the manager has. Checks what
/// the lease needs of this node.
fn variables(
    node: &Node,
    ticket: &Ticket,
    lease: &Lease,
    of_client: &[Variable],
) -> Result<Vec<Variable>, Error> {
    check_variables(of_client)?;
    let Some(needs) = &lease.needs else { return Ok(of_client.to_vec()) };
    needs.check()?;
    if ticket.provisional && needs.are_of_tenant() {
        let message =
            format!("lease {} has no tenant yet, to which its secrets and folders belong", lease.id);
        return Err(Error::new(Code::PermissionDenied, message));
    }
    if let Some(what) = needs.lacking(&node.description) {
        let message = format!("node {} does not offer {what}", node.description.name);
        return Err(Error::new(Code::InsufficientResources, message));
    }
    if needs.temporary_bytes > lease.memory_bytes {
        let message = format!(
            "{} bytes of temporary space asked, which is part of the memory of each worker process, {} bytes: ask for more \
             memory",
            needs.temporary_bytes, lease.memory_bytes
        );
        return Err(Error::new(Code::InvalidArgument, message));
    }
    if needs.secrets.is_empty() {
        return Ok(of_client.to_vec());
    }
    let secrets = node.leases.managers.connect()?.fetch_secrets(&lease.id)?;
    let own = Needs { variables: of_client.to_vec(), ..Needs::default() };
    Ok(own.with(&Needs { variables: secrets, ..Needs::default() }).variables)
}

/// Creates the memory of a segment. Its pages are allocated now and count as the agent's, whichever process writes
/// them. So the node never lends memory that it does not have, and no process is killed for writing to memory that it
/// has leased.
fn segment(numa: &NumaNodes, len_bytes: u64) -> Result<Region, Error> {
    check_available(len_bytes)?;
    let region = Region::create("sublet-segment", len_bytes)?;
    // Its client hands it on, and to some to read alone.
    bar_writers(region.fd())?;
    numa.place(&region)?;
    take_pages(region.fd(), 0, len_bytes).map_err(|error| {
        Error::new(
            Code::InsufficientResources,
            format!("the node does not have the memory that it lends: {error}"),
        )
    })?;
    Ok(region)
}

/// Checks the lease of a segment, like [`check_lease`]: a segment has memory only, and all of it is the client's.
fn check_segment(lease: &Lease) -> Result<(WorkerOptions, u64), Error> {
    let Lease { id, memory_bytes, .. } = lease;
    if *memory_bytes == 0 || !memory_bytes.is_multiple_of(PAGE_BYTES) {
        let message = format!("segment {id} has {memory_bytes} bytes, which are no whole pages");
        return Err(Error::new(Code::Protocol, message));
    }
    Ok((WorkerOptions::default(), *memory_bytes))
}

/// The manager's signature makes a lease genuine, not possible. Answers with the size of its inbox, too.
fn check_lease(lease: &Lease) -> Result<(WorkerOptions, u64), Error> {
    let protocol = |message: String| Error::new(Code::Protocol, message);
    if !is_digest(&lease.package) {
        return Err(protocol(format!("lease {} is for {:?}, which is no digest", lease.id, lease.package)));
    }
    let mut options =
        lease.options.ok_or_else(|| protocol(format!("lease {} has no worker options", lease.id)))?;
    let (workers, each) = (lease.workers(), lease.cores_each());
    if each > 1 && (lease.shared || workers.checked_mul(each) != Some(lease.cores)) {
        let (id, cores) = (&lease.id, lease.cores);
        let kind = if lease.shared { "shared cores" } else { "cores" };
        return Err(protocol(format!("lease {id} has {cores} {kind} for workers of {each} cores")));
    }
    let inbox_bytes = InboxLayout::new(workers, options.slots, options.slot_bytes)?.len_bytes();
    if inbox_bytes > lease.memory_bytes {
        let message = format!(
            "{workers} workers with {} slots of {} bytes need an inbox of {inbox_bytes} bytes, and lease {} has {} bytes",
            options.slots, options.slot_bytes, lease.id, lease.memory_bytes
        );
        return Err(Error::new(Code::InsufficientResources, message));
    }
    match check_swap(lease, &options, lease.memory_bytes - inbox_bytes) {
        Err(_) if options.swap_if_possible => options.swap_bytes = 0,
        checked => checked?,
    }
    Ok((options, inbox_bytes))
}

/// Checks the swap options of a lease. Without this check the worker process would find the same fault and end.
fn check_swap(lease: &Lease, options: &WorkerOptions, lent_bytes: u64) -> Result<(), Error> {
    let swap_bytes = options.swap_bytes.saturating_mul(lease.workers().into());
    if swap_bytes == 0 {
        return Ok(());
    }
    let plan = SwapPlan::new(swap_bytes, local_bytes(lent_bytes));
    let refused = |Error { code, message }| Error::new(code, format!("lease {} swaps: {message}", lease.id));
    plan.check().map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> Lease {
        Lease {
            id: "l".into(),
            package: format!("sha256:{}", "0".repeat(64)),
            cores: 1,
            memory_bytes: 1 << 20,
            options: Some(WorkerOptions { slots: 4, slot_bytes: 4096, ..WorkerOptions::default() }),
            ..Lease::default()
        }
    }

    #[test]
    fn a_lease_must_be_possible() {
        assert!(check_lease(&lease()).is_ok());
        let impossible = [
            (Lease { package: "../x".into(), ..lease() }, Code::Protocol),
            (Lease { options: None, ..lease() }, Code::Protocol),
            (Lease { cores: 0, ..lease() }, Code::InvalidArgument),
            (Lease { memory_bytes: 4096, ..lease() }, Code::InsufficientResources),
        ];
        for (lease, code) in impossible {
            assert_eq!(check_lease(&lease).unwrap_err().code, code, "{lease:?}");
        }
    }

    #[test]
    fn a_segment_is_memory_alone() {
        let segment = Lease { package: String::new(), cores: 0, ..lease() };
        assert!(segment.is_segment() && !lease().is_segment());
        assert!(!Lease { package: lease().package, ..segment.clone() }.is_segment());
        assert_eq!(check_segment(&segment).unwrap().1, 1 << 20);
        for impossible in
            [Lease { memory_bytes: 0, ..segment.clone() }, Lease { memory_bytes: 4097, ..segment.clone() }]
        {
            assert_eq!(check_segment(&impossible).unwrap_err().code, Code::Protocol, "{impossible:?}");
        }
    }

    #[test]
    fn checks_the_path_and_core_count_of_a_program() {
        let program = |path: &str| Program { path: path.into(), ..Program::default() };
        for path in ["", "bin/child", "child.py"] {
            check_program(&lease(), &program(path)).unwrap();
        }
        for path in ["../child", "/bin/sh", "bin/../../sh"] {
            let refused = check_program(&lease(), &program(path)).unwrap_err();
            assert!(refused.message.contains(path), "{refused}");
        }
        let segment = Lease { package: String::new(), cores: 0, ..lease() };
        for wrong in [segment, Lease { cores: 2, ..lease() }] {
            let refused = check_program(&wrong, &program("bin/child")).unwrap_err();
            assert_eq!(refused.code, Code::InvalidArgument, "{wrong:?}");
        }
    }

    #[test]
    fn allocates_the_pages_of_a_segment_before_any_write() {
        let region = super::segment(&NumaNodes::default(), 1 << 20).unwrap();
        let taken = rustix::fs::fstat(region.fd()).unwrap().st_blocks * 512;
        assert_eq!(taken, 1 << 20);
        sublet_fabric::region::punch_hole(region.fd(), 0, 1 << 20).unwrap();
        assert_eq!(rustix::fs::fstat(region.fd()).unwrap().st_blocks, 0);
    }

    #[test]
    fn allocates_the_pages_of_a_segment_on_the_named_nodes() {
        let region = super::segment(&NumaNodes::find(&[0]).unwrap(), 1 << 20).unwrap();
        let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
        let is_bound = |line: &str| line.contains("/memfd:sublet-segment") && line.contains(" bind:0 ");
        assert!(maps.lines().any(is_bound), "{} bytes are not bound: {maps}", region.len_bytes());
    }
}
