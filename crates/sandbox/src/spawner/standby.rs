//! Processes on standby for one set of modules: copies of a template without modules, which have imported them and wait.
//!
//! A template has one thread and no open files. Modules that need more are imported by each program, or ahead of time by
//! a process that is forked no more. Such a process is in a sandbox of its own, with all restrictions of a program; it
//! becomes one program, and no other. It lacks only what depends on that: mounts of its files, limits, and its log.
//!
//! Modules see the environment and the number of cores that the program will have. A program that differs in
//! that gets no process on standby, nor does one that needs a filter of system calls, Landlock rules or users of its own
//! ([`StandbyTerms::of`]).
//!
//! A process for an image is no copy of a template: it is the image's interpreter, started in a container.
//!
//! The modules of a template with an owner are code of that tenant. Its process imports them in the same walls, has a few
//! duties more ([`StandbyProcess::look`]), and is the only one of its set. Its tenant pays for no import, so no program's
//! request leads to more than [`MAX_ATTEMPTS`] imports.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::net::RecvFlags;

use super::cgroups::Cgroup;
use super::means::SpawnMeans;
use super::root;
use super::sandbox::Sandbox;
use crate::inside::{CreationPlan, MountPoint, SandboxReport};
use crate::language::{ADAPTER, CONTAINED_STANDBY, ModuleSource};
use crate::{
    Devices, IsolationKind, LOADED, Language, NetworkAccess, SandboxError, SandboxId, SandboxLimits,
    SandboxProgram, SandboxStatus, Spec, Template,
};

/// Maximum number of processes of one set of modules.
const MAX_PROCESSES: usize = 2;
/// The same of a set that is a tenant's.
const MAX_PROCESSES_OF_TENANT: usize = 1;
/// Maximum number of imports of a tenant's set after a program has asked for it, should processes end while they import or
/// wait.
const MAX_ATTEMPTS: u32 = 2;
/// Memory that is free when a process begins to import modules of which none has been on standby, in bytes.
const LEAST_BYTES: u64 = 64 << 20;
/// Memory that a waiting process may take beyond what it has when its modules are imported, in bytes.
const MARGIN_BYTES: u64 = 16 << 20;
/// Files that modules can write while they are imported, in each of the sandbox's folders, in bytes.
const FILES_BYTES: u64 = 4 << 20;
/// Processes and threads while modules are imported.
const MAX_THREADS: u32 = 512;
/// Maximum time to import modules.
const LONGEST_IMPORT: Duration = Duration::from_secs(120);
/// The same for modules of a tenant, for which others wait meanwhile.
const LONGEST_IMPORT_OF_TENANT: Duration = Duration::from_secs(30);
/// Maximum time for each step of a process that has imported modules of a tenant, from its program's request on. Modules can
/// delay it, and no other request is served meanwhile.
const LONGEST_STEP_OF_TENANT: Duration = Duration::from_secs(1);
/// Processor time that a process with modules of a tenant may use while it waits, in microseconds, beside a part of the time.
const WAITING_CPU_US: u64 = 50_000;
/// One part in this number of the time of waiting may be processor time.
const WAITING_CPU_PARTS: u64 = 100;
/// Time after a failure in which the modules are not imported again.
const PAUSE: Duration = Duration::from_secs(60);

/// Properties of a program by which a process on standby can become it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StandbyTerms {
    env: Vec<(OsString, OsString)>,
    /// Number of its cores.
    pub(super) cores: usize,
    /// Size of the files that it can write in the container of an image, in bytes. It cannot change later.
    files_bytes: Option<u64>,
}

impl StandbyTerms {
    /// Returns nothing for a program that always imports by itself.
    pub(super) fn of(template: &Template, spec: &Spec) -> Option<StandbyTerms> {
        let cores = spec.limits.distinct_cores().len();
        // Modules of an environment and of an image are code of a tenant.
        let is_of_tenant = template.environment.is_some() || template.image.is_some();
        let is_python = template.language == Language::Python && is_of_tenant == template.owner.is_some();
        let has_plain_walls = spec.network == NetworkAccess::None
            && spec.devices == Devices::None
            && spec.lent_folders.is_empty();
        // Files that were written meanwhile have to fit.
        let holds_files = spec.limits.scratch_bytes.min(spec.limits.shared_bytes()) >= FILES_BYTES;
        let can_wait = is_python && has_plain_walls && holds_files && cores > 0 && !spec.has_own_variables;
        let files_bytes = template.image.is_some().then_some(spec.limits.scratch_bytes);
        can_wait.then(|| StandbyTerms { env: spec.env.clone(), cores, files_bytes })
    }
}

/// Modules, cores and memory of a process that begins to import.
pub(super) struct StandbyOrder {
    pub(super) template: Template,
    pub(super) terms: StandbyTerms,
    pub(super) cores: Vec<u32>,
    /// Most memory of the process.
    pub(super) memory_bytes: u64,
    /// Size of memory that it sees.
    pub(super) shown_bytes: u64,
}

/// The processes of one set of modules. They are dead once this is dropped.
#[derive(Default)]
pub(super) struct StandbySet {
    /// Terms of the latest program, once a process is worthwhile.
    pub(super) terms: Option<StandbyTerms>,
    processes: Vec<StandbyProcess>,
    failed: Option<Instant>,
    /// Memory of the latest process when its modules were imported.
    known_bytes: Option<u64>,
    /// Whether the modules are a tenant's.
    is_owned: bool,
    /// Imports since a program has asked for the modules.
    attempts: u32,
    /// When the latest import began.
    latest_import: Option<Instant>,
}

struct StandbyProcess {
    sandbox: Sandbox,
    terms: StandbyTerms,
    cores: Vec<u32>,
    begun: Instant,
    has_imported: bool,
    /// Most memory of the process.
    memory_bytes: u64,
    /// Whether the modules are a tenant's.
    is_owned: bool,
    /// When it began to wait, and the processor time that it had used by then, in microseconds.
    waiting_since: Option<(Instant, u64)>,
}

impl StandbySet {
    /// Makes the set of the modules of a template.
    pub(super) fn of(template: &Template) -> StandbySet {
        StandbySet { is_owned: template.owner.is_some(), ..StandbySet::default() }
    }

    /// Notes the terms of a program that has asked for the modules: the next process is for one like it.
    pub(super) fn ask(&mut self, terms: StandbyTerms) {
        self.terms = Some(terms);
        self.attempts = 0;
    }

    /// Whether there are processes.
    pub(super) fn is_in_use(&self) -> bool {
        !self.processes.is_empty()
    }

    /// Number of processes that wait, and of those that import.
    pub(super) fn counts(&self) -> (usize, usize) {
        let waiting = self.processes.iter().filter(|process| process.has_imported).count();
        (waiting, self.processes.len() - waiting)
    }

    /// When the latest import of the modules began, if there was one.
    pub(super) fn latest_import(&self) -> Option<Instant> {
        self.latest_import
    }

    /// Memory that its processes may take, in bytes.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.processes.iter().map(|process| process.memory_bytes).sum()
    }

    /// Memory that its processes take, in bytes.
    pub(super) fn used_bytes(&self) -> u64 {
        self.processes.iter().filter_map(StandbyProcess::used_bytes).sum()
    }

    /// Free memory with which another process can be tried, in bytes.
    pub(super) fn needed_bytes(&self) -> u64 {
        self.known_bytes.map_or(LEAST_BYTES, |bytes| bytes.saturating_add(MARGIN_BYTES))
    }

    /// The number of cores for another process, if there should be one.
    pub(super) fn wanted_cores(&self, now: Instant) -> Option<usize> {
        let is_exhausted = self.is_owned && self.attempts >= MAX_ATTEMPTS;
        let is_wanted = !self.is_resting(now) && !is_exhausted && self.processes.len() < self.most();
        self.terms.as_ref().filter(|_| is_wanted).map(|terms| terms.cores)
    }

    /// Whether a failure was so recent that no process is begun.
    pub(super) fn is_resting(&self, now: Instant) -> bool {
        self.failed.is_some_and(|failed| now.saturating_duration_since(failed) < PAUSE)
    }

    /// Maximum number of its processes.
    fn most(&self) -> usize {
        if self.is_owned { MAX_PROCESSES_OF_TENANT } else { MAX_PROCESSES }
    }

    /// Notes which processes have imported their modules, and which have ended.
    pub(super) fn look(&mut self, now: Instant) {
        let (mut known_bytes, mut has_failed) = (self.known_bytes, false);
        self.processes.retain_mut(|process| match process.look(now) {
            Ok(None) => true,
            Ok(Some(bytes)) => {
                known_bytes = Some(bytes);
                true
            }
            Err(why) => {
                eprintln!("sublet-spawner: a process on standby has {why}");
                has_failed = true;
                false
            }
        });
        self.known_bytes = known_bytes;
        if has_failed {
            self.failed = Some(now);
        }
    }

    /// Moves processes that import to these cores, or ends them if the cores are too few.
    pub(super) fn use_cores(&mut self, idle: &[u32]) {
        self.processes.retain_mut(|process| process.has_imported || process.moves_to(idle));
    }

    /// Begins another process in the first process of a sandbox that waits for its plan.
    pub(super) fn begin(
        &mut self,
        means: &mut SpawnMeans,
        sandbox: Sandbox,
        order: StandbyOrder,
    ) -> Result<(), SandboxError> {
        debug_assert!(self.processes.len() < self.most(), "{} processes", self.processes.len());
        self.attempts = self.attempts.saturating_add(1);
        self.latest_import = Some(Instant::now());
        self.processes.push(StandbyProcess::begin(means, sandbox, order)?);
        Ok(())
    }

    /// Notes that no process can be made now.
    pub(super) fn give_up(&mut self, now: Instant) {
        self.failed = Some(now);
    }

    /// Ends all processes. Another one is made only once a program has asked for these modules again.
    pub(super) fn end(&mut self) {
        self.processes.clear();
        self.terms = None;
    }

    /// Takes a process that can become a program with these limits, which it has from now on.
    pub(super) fn take(&mut self, terms: &StandbyTerms, limits: &SandboxLimits) -> Option<Sandbox> {
        self.look(Instant::now());
        let fits = |process: &StandbyProcess| process.fits(terms, limits);
        let Some(position) = self.processes.iter().position(fits) else {
            self.make_way(terms);
            return None;
        };
        let mut sandbox = self.processes.remove(position).sandbox;
        // It may have been killed meanwhile, and a limit may be refused: the program then begins without it.
        let is_alive = sandbox.state().status == SandboxStatus::Created;
        let is_prompt = !self.is_owned || sandbox.set_patience(LONGEST_STEP_OF_TENANT).is_ok();
        (is_alive && is_prompt && sandbox.limit(limits).is_ok()).then_some(sandbox)
    }
}

impl StandbySet {
    /// Ends the oldest process if the set is full, and all of its processes are for other programs.
    fn make_way(&mut self, terms: &StandbyTerms) {
        if self.processes.len() >= self.most() && self.processes.iter().all(|process| process.terms != *terms)
        {
            self.processes.remove(0);
        }
    }
}

impl StandbyProcess {
    fn begin(
        means: &mut SpawnMeans,
        mut sandbox: Sandbox,
        order: StandbyOrder,
    ) -> Result<StandbyProcess, SandboxError> {
        let failed = |error: io::Error| SandboxError::system("putting a process on standby", error);
        let StandbyOrder { template, terms, cores, memory_bytes, shown_bytes } = order;
        if !sandbox.cgroup().is_some_and(Cgroup::limits_memory_and_cores) {
            return Err(failed(io::Error::other("no control group limits its memory and its cores")));
        }
        let is_owned = template.owner.is_some();
        if is_owned && sandbox.cgroup().and_then(Cgroup::processor_us).is_none() {
            return Err(failed(io::Error::other("no control group counts its processor time")));
        }
        let mut limits = limits(&cores, memory_bytes, shown_bytes);
        limits.scratch_bytes = terms.files_bytes.unwrap_or(limits.scratch_bytes);
        let own = means.root.own()?;
        let view = own.views.of(&limits.distinct_cores(), limits.shown()).map_err(failed)?;
        let mut mounts = Vec::new();
        if let Some(environment) = &template.environment {
            mounts.push((MountPoint::ENVIRONMENT, root::shown_environment(environment).map_err(failed)?));
        }
        let mut layers = Vec::new();
        if let Some(image) = &template.image {
            mounts.push((
                MountPoint::PROGRAM,
                root::adapter(&template.adapter, &mut own.opened).map_err(failed)?,
            ));
            layers = root::layers_of_image(&image.root)?;
            layers.iter().try_for_each(|layer| sandbox.make_owner(layer.as_fd())).map_err(failed)?;
        }
        root::show_view(&mut mounts, &view).map_err(failed)?;
        sandbox.set_standby();
        sandbox.keep(view);
        sandbox.limit(&limits).map_err(failed)?;
        let env = terms.env.clone();
        let spec = spec(template, env, limits).map_err(failed)?;
        // The sandbox gets its id with its program.
        let plan = CreationPlan::new(SandboxId(0), spec, mounts, (layers, Vec::new(), Vec::new()), &own.kept);
        plan.and_then(|plan| plan.on_standby().send(sandbox.link())).map_err(failed)?;
        let (begun, has_imported, waiting_since) = (Instant::now(), false, None);
        Ok(StandbyProcess {
            sandbox,
            terms,
            cores,
            begun,
            has_imported,
            memory_bytes,
            is_owned,
            waiting_since,
        })
    }

    /// Notes that the modules are imported, and returns the memory that this has taken. An error says what has become of
    /// the process.
    fn look(&mut self, now: Instant) -> Result<Option<u64>, &'static str> {
        if self.has_imported {
            return self.look_while_it_waits(now).map(|()| None);
        }
        match SandboxReport::receive(self.sandbox.link(), RecvFlags::DONTWAIT) {
            // Before it imports, the program's process reports itself, and gives up its connection to the spawner.
            Ok(Some((SandboxReport::Started, pid))) if self.sandbox.standby_program().is_none() => {
                self.sandbox.set_standby_program(pid.unsigned_abs());
                self.look(now)
            }
            Ok(Some((SandboxReport::Waiting, _))) if self.sandbox.standby_program().is_some() => {
                self.has_imported = true;
                let used = self.used_bytes().ok_or("no counted memory")?;
                let kept_bytes = used.saturating_add(MARGIN_BYTES).min(self.memory_bytes);
                // If the kernel refuses the lower limit, the process keeps the one that it has.
                if self.sandbox.limit(&limits(&self.cores, kept_bytes, kept_bytes)).is_ok() {
                    self.memory_bytes = kept_bytes;
                }
                self.waiting_since = self.processor_us().map(|used_us| (now, used_us));
                Ok(Some(used))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let longest = if self.is_owned { LONGEST_IMPORT_OF_TENANT } else { LONGEST_IMPORT };
                let is_late = now.saturating_duration_since(self.begun) > longest;
                if is_late { Err("not imported its modules in time") } else { Ok(None) }
            }
            _ => Err("failed to import its modules"),
        }
    }

    /// An error says why a process that waits has to end: it has died, or code of a tenant computes at no one's cost.
    fn look_while_it_waits(&mut self, now: Instant) -> Result<(), &'static str> {
        if self.sandbox.state().status != SandboxStatus::Created {
            return Err("ended");
        }
        if !self.is_owned {
            return Ok(());
        }
        let (since, before_us) = self.waiting_since.ok_or("no counted processor time")?;
        let used_us = self.processor_us().ok_or("no counted processor time")?.saturating_sub(before_us);
        match is_computing(used_us, now.saturating_duration_since(since)) {
            true => Err("used the processor while it waited"),
            false => Ok(()),
        }
    }

    fn processor_us(&self) -> Option<u64> {
        self.sandbox.cgroup()?.processor_us()
    }

    /// Lets it import on cores that are idle. Returns whether there are enough.
    fn moves_to(&mut self, idle: &[u32]) -> bool {
        if self.cores.iter().all(|core| idle.contains(core)) {
            return true;
        }
        let Some(cores) = idle.get(..self.cores.len()) else { return false };
        self.cores = cores.to_vec();
        self.sandbox.limit(&limits(&self.cores, self.memory_bytes, self.memory_bytes)).is_ok()
    }

    fn fits(&self, terms: &StandbyTerms, limits: &SandboxLimits) -> bool {
        let has_space = limits.memory_bytes.is_none_or(|limit| {
            self.used_bytes().is_some_and(|used| used.saturating_add(MARGIN_BYTES) <= limit)
        });
        self.has_imported && self.terms == *terms && has_space
    }

    fn used_bytes(&self) -> Option<u64> {
        self.sandbox.cgroup()?.memory_bytes()
    }
}

/// Whether a process has used more of the processor than one that only waits.
fn is_computing(used_us: u64, waited: Duration) -> bool {
    let waited_us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
    used_us > WAITING_CPU_US.saturating_add(waited_us / WAITING_CPU_PARTS)
}

fn limits(cores: &[u32], memory_bytes: u64, shown_bytes: u64) -> SandboxLimits {
    SandboxLimits {
        cores: cores.to_vec(),
        memory_bytes: Some(memory_bytes),
        shown_memory_bytes: Some(shown_bytes),
        processes: Some(MAX_THREADS),
        scratch_bytes: FILES_BYTES,
    }
}

/// The specification of a process that imports the modules of a template, and has no program. In an image it is the
/// interpreter that loads its adapter, as for a template.
fn spec(template: Template, env: Vec<(OsString, OsString)>, limits: SandboxLimits) -> io::Result<Spec> {
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    let modules = template.imports.iter().map(OsString::from);
    let (mut program, mut args, mut env) = (PathBuf::from("/"), Vec::new(), env);
    if template.image.is_some() {
        program.clone_from(&template.interpreter);
        args.extend(template.language.arguments(ModuleSource::Image).iter().map(OsString::from));
        env.push((ADAPTER.into(), LOADED.into()));
        env.push((CONTAINED_STANDBY.into(), "1".into()));
    }
    args.extend(modules);
    Ok(Spec {
        kind: IsolationKind::Template(template),
        program: SandboxProgram::Inside(program),
        args,
        env,
        has_own_variables: false,
        folder: None,
        lent_folders: Vec::new(),
        device_mounts: Vec::new(),
        control: OwnedFd::from(nothing),
        log: None,
        network: NetworkAccess::None,
        devices: Devices::None,
        limits,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FolderAccess, LentFolder, TemplateImage};

    fn template() -> Template {
        Template {
            language: Language::Python,
            interpreter: "/usr/bin/python3".into(),
            adapter: "/adapter.so".into(),
            imports: vec!["torch".into()],
            environment: None,
            search_path: Vec::new(),
            image: None,
            owner: None,
        }
    }

    fn program() -> Spec {
        let limits = SandboxLimits {
            cores: vec![3, 1, 3],
            memory_bytes: Some(64 << 20),
            shown_memory_bytes: None,
            processes: None,
            scratch_bytes: FILES_BYTES,
        };
        let env = vec![("HOME".into(), "/tmp".into())];
        Spec { args: vec!["x".into()], ..spec(template(), env, limits).unwrap() }
    }

    #[test]
    fn takes_standby_only_where_modules_would_import_the_same() {
        let terms = StandbyTerms::of(&template(), &program()).unwrap();
        assert_eq!(terms.cores, 2, "distinct cores");
        let other_env = Spec { env: Vec::new(), ..program() };
        assert_ne!(StandbyTerms::of(&template(), &other_env), Some(terms));
        let node = Template { language: Language::Node, ..template() };
        assert_eq!(StandbyTerms::of(&node, &program()), None);
        let in_environment = Template { environment: Some("/e".into()), ..template() };
        assert_eq!(StandbyTerms::of(&in_environment, &program()), None);
        let owned = Template { owner: Some("a".to_owned()), ..in_environment };
        let terms = StandbyTerms::of(&owned, &program()).unwrap();
        assert_eq!(terms.files_bytes, None, "its size can change later");
        let in_image = Template { image: Some(TemplateImage::default()), ..template() };
        assert_eq!(StandbyTerms::of(&in_image, &program()), None);
        let owned = Template { owner: Some("a".to_owned()), ..in_image };
        let terms = StandbyTerms::of(&owned, &program()).unwrap();
        assert_eq!(terms.files_bytes, Some(FILES_BYTES));
        let folder = LentFolder { name: "data".into(), path: "/data".into(), access: FolderAccess::ReadOnly };
        let limited = |change: &dyn Fn(&mut SandboxLimits)| {
            let mut spec = program();
            change(&mut spec.limits);
            spec
        };
        for (why, spec) in [
            ("variables", Spec { has_own_variables: true, ..program() }),
            ("swapping", Spec { devices: Devices::Faults, ..program() }),
            ("network", Spec { network: NetworkAccess::Host, ..program() }),
            ("folders", Spec { lent_folders: vec![folder], ..program() }),
            ("all cores", limited(&|limits| limits.cores.clear())),
            ("little temporary space", limited(&|limits| limits.scratch_bytes -= 1)),
            ("little shared memory", limited(&|limits| limits.shown_memory_bytes = Some(FILES_BYTES))),
        ] {
            assert_eq!(StandbyTerms::of(&template(), &spec), None, "{why}");
        }
    }

    #[test]
    fn set_of_tenant_has_one_process_and_few_imports() {
        let now = Instant::now();
        let owned = Template { environment: Some("/e".into()), owner: Some("a".to_owned()), ..template() };
        let mut set = StandbySet::of(&owned);
        assert_eq!((set.most(), StandbySet::of(&template()).most()), (1, 2));
        let terms = StandbyTerms::of(&owned, &program()).unwrap();
        set.ask(terms.clone());
        assert_eq!(set.wanted_cores(now), Some(2));
        set.attempts = MAX_ATTEMPTS;
        assert_eq!(set.wanted_cores(now), None, "no program has asked since");
        set.ask(terms);
        assert_eq!(set.wanted_cores(now), Some(2));
    }

    #[test]
    fn process_that_waits_uses_little_of_the_processor() {
        let second = Duration::from_secs(1);
        assert!(!is_computing(0, Duration::ZERO) && !is_computing(60_000, second));
        assert!(is_computing(60_001, second), "1 % of a second, and 50 ms");
        assert!(!is_computing(60_001, 2 * second));
    }

    #[test]
    fn rests_after_failure_and_remembers_needed_memory() {
        let now = Instant::now();
        let mut set = StandbySet::default();
        assert_eq!(set.wanted_cores(now), None, "nothing asks for it");
        set.terms = StandbyTerms::of(&template(), &program());
        assert_eq!(set.wanted_cores(now), Some(2));
        set.give_up(now);
        assert_eq!(set.wanted_cores(now), None);
        assert_eq!(set.wanted_cores(now + PAUSE), Some(2));
        assert_eq!(set.needed_bytes(), LEAST_BYTES);
        set.known_bytes = Some(1 << 30);
        assert_eq!(set.needed_bytes(), (1 << 30) + MARGIN_BYTES);
        set.end();
        assert_eq!(set.wanted_cores(now + PAUSE), None);
    }
}
