//! Joins the pure core to the store: what the core wants saved is written, what was deployed is found.
//!
//! A [`Shell`] is called by one thread at a time and never waits for anything but the store. It promises:
//! a lease is in the store before its client hears of it, a package is in the store with all its parts before its
//! name is known, and usage that the store cannot take stays in the core and is tried again with each tick.

use prost::Message;
use sublet_proto::limits::MAX_TIMEOUT_MS;
use sublet_proto::package::{self, Checked};
use sublet_proto::ticket::Signing;
use sublet_proto::v1::{
    BillReply, DeployReply, Lease, LeaseGrant, LeaseList, LeaseRequest, LeaseState, NodeDescription,
    NodeList, NodeRegistration, NodeReport, NodeReportReply, PackageInfo, PackageList, Price, Ticket,
};
use sublet_proto::{Code, Error, decode, price};

use crate::core::{Action, Core, Event, REMEMBER_MS, Request, Version};
use crate::store::{Batch, BlobPart, Store, keys};

/// Largest list in one reply, in bytes: what does not fit is left out, the oldest first.
const MAX_REPLY_BYTES: usize = 3 << 20;
/// How many records are read from the store at a time.
const PAGE_RECORDS: usize = 1000;
/// Starts of a manager that may race for an epoch on one store.
const EPOCH_ATTEMPTS: u32 = 16;
const SEED_BYTES: usize = 32;
const ID_RANDOM_BYTES: usize = 10;

/// The core and its store.
pub(crate) struct Shell {
    core: Core,
    store: Box<dyn Store>,
    signing: Signing,
    epoch: u64,
    is_store_failing: bool,
}

impl Shell {
    /// Begins a new epoch on the store and takes up the leases in it.
    pub(crate) fn open(mut store: Box<dyn Store>, price: Price, now_ms: u64) -> Result<Shell, Error> {
        let epoch = next_epoch(&mut *store)?;
        let signing = Signing::from_seed(&signing_seed(&mut *store)?);
        let mut shell = Shell { core: Core::new(price), store, signing, epoch, is_store_failing: false };
        shell.restore(now_ms)?;
        Ok(shell)
    }

    pub(crate) fn register(&mut self, now_ms: u64, node: NodeDescription) -> Result<NodeRegistration, Error> {
        for action in self.handle(now_ms, Event::Register(node)) {
            if let Action::NotRegistered(error) = action {
                return Err(error);
            }
        }
        Ok(NodeRegistration { verifying_key: self.signing.verifying_key().to_vec(), epoch: self.epoch })
    }

    pub(crate) fn report(&mut self, now_ms: u64, report: NodeReport) -> Result<NodeReportReply, Error> {
        let node = report.node.clone();
        let mut reply = NodeReportReply::default();
        for action in self.handle(now_ms, Event::Report(report)) {
            match action {
                Action::EndOnNode(lease) => reply.end.push(lease),
                Action::RegisterAgain => {
                    let message = format!("node {node:?} is not registered; it has to register first");
                    return Err(Error::new(Code::Protocol, message));
                }
                _ => {}
            }
        }
        Ok(reply)
    }

    pub(crate) fn request_lease(
        &mut self,
        now_ms: u64,
        tenant: String,
        asked: LeaseRequest,
    ) -> Result<LeaseGrant, Error> {
        let package = self.resolve(&asked.package)?;
        let request = Request { lease: new_lease_id(now_ms)?, tenant, package: package.clone(), asked };
        let answer = self.handle(now_ms, Event::Request(Box::new(request))).pop();
        match answer {
            Some(Action::Granted { lease, agent }) => Ok(self.grant(now_ms, *lease, agent, package)),
            Some(Action::Refused { error, .. }) => Err(error),
            other => Err(Error::new(Code::Internal, format!("a request was answered by {other:?}"))),
        }
    }

    fn grant(&self, now_ms: u64, lease: Lease, agent: String, package: PackageInfo) -> LeaseGrant {
        let ticket = Ticket { lease: Some(lease.clone()), epoch: self.epoch, issued_unix_ms: now_ms };
        LeaseGrant { ticket: self.signing.sign(&ticket), agent, lease: Some(lease), package: Some(package) }
    }

    pub(crate) fn tick(&mut self, now_ms: u64) {
        self.handle(now_ms, Event::Tick);
    }

    /// Writes what the store has not taken so far.
    pub(crate) fn flush(&mut self, now_ms: u64) -> Result<(), Error> {
        self.handle(now_ms, Event::Flush);
        if self.is_store_failing {
            let message = "the usage of some leases could not be stored before the manager stopped";
            return Err(Error::new(Code::StoreFull, message));
        }
        Ok(())
    }

    pub(crate) fn nodes(&self) -> NodeList {
        NodeList { nodes: within_reply(self.core.nodes()) }
    }

    pub(crate) fn leases(&self) -> LeaseList {
        let active = self.core.leases().filter(|lease| lease.state() != LeaseState::Ended);
        LeaseList { leases: within_reply(active.cloned()) }
    }

    pub(crate) fn leases_with_ended(&self) -> Result<LeaseList, Error> {
        let mut list = ReplyList::default();
        self.each_page(|page| list.add_all(page))?;
        Ok(LeaseList { leases: list.items })
    }

    pub(crate) fn bill(&self, id: &str) -> Result<BillReply, Error> {
        if id.is_empty() {
            return self.bill_all();
        }
        let line = price::bill(&self.lease(id)?);
        Ok(BillReply { total: Some(price::total(std::slice::from_ref(&line))), lines: vec![line] })
    }

    /// The total is of all leases, however many lines fit.
    fn bill_all(&self) -> Result<BillReply, Error> {
        let mut lines = ReplyList::default();
        let mut total = price::total(&[]);
        self.each_page(|page| {
            let page: Vec<_> = page.iter().map(price::bill).collect();
            total = price::total(&[std::mem::take(&mut total), price::total(&page)]);
            lines.add_all(page);
            true
        })?;
        Ok(BillReply { lines: lines.items, total: Some(total) })
    }

    fn lease(&self, id: &str) -> Result<Lease, Error> {
        if let Some(lease) = self.core.lease(id) {
            return Ok(lease.clone());
        }
        match self.store.get(&format!("{}{id}", keys::LEASE))? {
            Some(found) => decode("a stored lease", &found.value),
            None => Err(Error::new(Code::UnknownLease, format!("there is no lease {id:?}"))),
        }
    }

    /// Shows every lease, the newest first, until the visitor has enough.
    fn each_page(&self, mut visit: impl FnMut(Vec<Lease>) -> bool) -> Result<(), Error> {
        let mut before = None;
        loop {
            let records = self.store.scan_back(keys::LEASE, before.as_deref(), PAGE_RECORDS)?;
            let Some(last) = records.last() else { return Ok(()) };
            before = Some(last.key.clone());
            let stored = records.iter().map(|record| decode::<Lease>("a stored lease", &record.value));
            // What the core has is newer than what is stored, if the store has failed.
            let current = stored.map(|lease| lease.map(|l| self.core.lease(&l.id).cloned().unwrap_or(l)));
            if !visit(current.collect::<Result<_, _>>()?) {
                return Ok(());
            }
        }
    }

    /// A package by "name", "name/function" or digest.
    pub(crate) fn resolve(&self, address: &str) -> Result<PackageInfo, Error> {
        let (package, function) = package::split_address(address);
        let unknown = || Error::new(Code::UnknownPackage, format!("no package {package:?} is deployed"));
        let digest = if package::is_digest(package) {
            package.to_owned()
        } else {
            self.digest_of(package)?.ok_or_else(unknown)?
        };
        let info = self.known(&digest)?.ok_or_else(unknown)?;
        match function {
            Some(function) if !info.functions.iter().any(|known| known.name == function) => {
                Err(unknown_function(&info, function))
            }
            _ => Ok(info),
        }
    }

    fn digest_of(&self, name: &str) -> Result<Option<String>, Error> {
        let found = self.store.get(&format!("{}{name}", keys::NAME))?;
        Ok(found.map(|found| String::from_utf8_lossy(&found.value).into_owned()))
    }

    /// The package of this digest, if all of it is in the store.
    pub(crate) fn known(&self, digest: &str) -> Result<Option<PackageInfo>, Error> {
        let found = self.store.get(&format!("{}{digest}", keys::PACKAGE))?;
        found.map(|found| decode("a stored package", &found.value)).transpose()
    }

    /// The packages that names stand for.
    pub(crate) fn packages(&self) -> Result<PackageList, Error> {
        let mut list = ReplyList::default();
        let mut before = None;
        loop {
            let names = self.store.scan_back(keys::NAME, before.as_deref(), PAGE_RECORDS)?;
            let Some(last) = names.last() else { break };
            before = Some(last.key.clone());
            for name in &names {
                list.add_all(self.known(&String::from_utf8_lossy(&name.value))?);
            }
        }
        list.items.reverse();
        Ok(PackageList { packages: list.items })
    }

    /// Refuses a package that no node could run.
    pub(crate) fn check_architecture(&self, package: &Checked) -> Result<(), Error> {
        let mut nodes: Vec<String> =
            self.core.nodes().filter_map(|node| Some(node.description?.architecture)).collect();
        nodes.sort();
        nodes.dedup();
        if nodes.iter().any(|node| node == package.architecture) {
            return Ok(());
        }
        let nodes = if nodes.is_empty() {
            "there are no nodes".into()
        } else {
            format!("nodes are {}", nodes.join(", "))
        };
        Err(Error::new(
            Code::WrongArchitecture,
            format!("package {} is for {}, but {nodes}", package.name, package.architecture),
        ))
    }

    pub(crate) fn put_part(&mut self, part: BlobPart<'_>, data: &[u8]) -> Result<(), Error> {
        self.store.put_blob_part(part, data)
    }

    pub(crate) fn part(&self, part: BlobPart<'_>) -> Result<Option<Vec<u8>>, Error> {
        self.store.blob_part(part)
    }

    /// Takes back the parts of a package that could not be stored whole.
    pub(crate) fn remove_parts(&mut self, digest: &str) -> Result<(), Error> {
        match self.known(digest)? {
            Some(_) => Ok(()),
            None => self.store.remove_blob(digest),
        }
    }

    /// Points the package's name at it. All of its parts are in the store.
    pub(crate) fn publish(&mut self, now_ms: u64, package: &Checked) -> Result<DeployReply, Error> {
        let known = self.known(&package.digest)?;
        let info = PackageInfo { deployed_unix_ms: now_ms, ..package.info() };
        let mut batch = Batch::default();
        batch.put(format!("{}{}", keys::PACKAGE, info.digest), info.encode_to_vec());
        batch.put(format!("{}{}", keys::NAME, info.name), info.digest.clone().into_bytes());
        batch.append(keys::DEPLOYMENTS, info.encode_to_vec());
        self.store.commit(&batch)?;
        Ok(DeployReply { package: Some(info), known: known.is_some() })
    }

    /// Lets the core take an event in, saves what it wants saved, and gives back the rest of its actions.
    fn handle(&mut self, now_ms: u64, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        self.core.on_event(now_ms, event, &mut out);
        let mut batch = Batch::default();
        let mut versions = Vec::new();
        out.retain(|action| match action {
            Action::Save { lease, revision } => {
                add_lease(&mut batch, lease);
                versions.push(Version { lease: lease.id.clone(), revision: *revision });
                false
            }
            _ => true,
        });
        if !versions.is_empty() {
            let saved = self.save(&batch);
            for version in versions {
                let event = match &saved {
                    Ok(()) => Event::Saved(version),
                    Err(error) => Event::SaveFailed(version, error.clone()),
                };
                self.core.on_event(now_ms, event, &mut out);
            }
        }
        out
    }

    /// Logs when the store begins to fail and when it works again, not each time in between.
    fn save(&mut self, batch: &Batch) -> Result<(), Error> {
        let saved = self.store.commit(batch);
        match &saved {
            Err(error) if !self.is_store_failing => tracing::error!(%error, "leases cannot be stored"),
            Ok(()) if self.is_store_failing => tracing::info!("leases can be stored again"),
            _ => {}
        }
        self.is_store_failing = saved.is_err();
        saved
    }

    /// Brings back the leases that may still run, and those whose last report may be on its way.
    fn restore(&mut self, now_ms: u64) -> Result<(), Error> {
        let oldest = lease_id(now_ms.saturating_sub(MAX_TIMEOUT_MS + REMEMBER_MS), [0; ID_RANDOM_BYTES]);
        let mut leases = Vec::new();
        self.each_page(|page| {
            let is_last = page.iter().any(|lease| lease.id < oldest);
            leases.extend(page.into_iter().filter(|lease| {
                lease.state() != LeaseState::Ended || lease.ended_unix_ms.saturating_add(REMEMBER_MS) > now_ms
            }));
            !is_last
        })?;
        for lease in leases {
            self.handle(now_ms, Event::Restored(Box::new(lease)));
        }
        Ok(())
    }
}

fn add_lease(batch: &mut Batch, lease: &Lease) {
    batch.put(format!("{}{}", keys::LEASE, lease.id), lease.encode_to_vec());
    if lease.state() == LeaseState::Ended {
        batch.append(keys::ENDED_LEASES, lease.encode_to_vec());
    }
}

fn unknown_function(info: &PackageInfo, function: &str) -> Error {
    const SHOWN: usize = 8;
    let mut names: Vec<_> = info.functions.iter().take(SHOWN).map(|known| known.name.as_str()).collect();
    if info.functions.len() > SHOWN {
        names.push("...");
    }
    Error::new(
        Code::UnknownFunction,
        format!("package {} has no function {function:?}; it has {}", info.name, names.join(", ")),
    )
}

fn next_epoch(store: &mut dyn Store) -> Result<u64, Error> {
    for _ in 0..EPOCH_ATTEMPTS {
        let known = store.get(keys::EPOCH)?;
        let version = known.as_ref().map_or(0, |known| known.version);
        let last = match known {
            Some(known) => u64::from_le_bytes(stored_array(keys::EPOCH, &known.value)?),
            None => 0,
        };
        if store.compare_and_swap(keys::EPOCH, version, &(last + 1).to_le_bytes())? {
            return Ok(last + 1);
        }
    }
    Err(Error::new(Code::System, "other managers keep changing the store's epoch"))
}

fn signing_seed(store: &mut dyn Store) -> Result<[u8; SEED_BYTES], Error> {
    if store.get(keys::SIGNING_SEED)?.is_none() {
        store.compare_and_swap(keys::SIGNING_SEED, 0, &random::<SEED_BYTES>()?)?;
    }
    let known = store.get(keys::SIGNING_SEED)?;
    stored_array(keys::SIGNING_SEED, &known.map(|known| known.value).unwrap_or_default())
}

fn stored_array<const N: usize>(key: &str, value: &[u8]) -> Result<[u8; N], Error> {
    value.try_into().map_err(|_| {
        Error::new(Code::System, format!("the store's {key} has {} bytes instead of {N}", value.len()))
    })
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(Code::System, format!("no random bytes from the system: {error}")))?;
    Ok(bytes)
}

fn new_lease_id(now_ms: u64) -> Result<String, Error> {
    Ok(lease_id(now_ms, random()?))
}

/// 32 hexadecimal digits: 12 of the time, so that identifiers sort by it, and 20 of chance.
fn lease_id(now_ms: u64, random: [u8; ID_RANDOM_BYTES]) -> String {
    const TIME_MASK: u64 = (1 << 48) - 1;
    let mut id = format!("{:012x}", now_ms & TIME_MASK);
    id.extend(random.iter().flat_map(|byte| {
        [byte >> 4, byte & 0xf].map(|nibble| char::from_digit(nibble.into(), 16).unwrap_or('0'))
    }));
    id
}

/// Items that fit into one reply.
struct ReplyList<T> {
    items: Vec<T>,
    left_bytes: usize,
}

impl<T> Default for ReplyList<T> {
    fn default() -> ReplyList<T> {
        ReplyList { items: Vec::new(), left_bytes: MAX_REPLY_BYTES }
    }
}

impl<T: Message> ReplyList<T> {
    /// Adds items while they fit; whether there is still room.
    fn add_all(&mut self, items: impl IntoIterator<Item = T>) -> bool {
        /// What a field's key and length add to an item.
        const OVERHEAD_BYTES: usize = 8;
        for item in items {
            let Some(left) = self.left_bytes.checked_sub(item.encoded_len() + OVERHEAD_BYTES) else {
                self.left_bytes = 0;
                return false;
            };
            self.left_bytes = left;
            self.items.push(item);
        }
        true
    }
}

fn within_reply<T: Message>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut list = ReplyList::default();
    list.add_all(items);
    list.items
}

#[cfg(test)]
mod tests;
