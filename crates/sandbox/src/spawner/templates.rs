//! Keeps templates: one of each interpreter without modules, another one for environments, and some with modules that are often requested.
//!
//! Who asks for modules gets a copy of the template that has them, if that is warm. Else it gets one of the bare
//! interpreter and imports by itself, as any program does: it never waits for another's modules. How often each is asked
//! for decides which are kept; what was not asked for a minute counts half. For modules that no template can have there are
//! processes on standby in place of a template, within the agent's limit of memory.
//!
//! A template in an image is kept by the same rule, also without modules: while it is not warm, its interpreter is started
//! anew in a container.
//!
//! Modules of a tenant's environment or image are in no template. For them there are processes on standby from a tenant's first request
//! on, within the tenant's share ([`standby_policy`](super::standby_policy)). At the agent's next look, the
//! spawner ends templates and processes whose folders the node's cache has removed.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sublet_proto::text::printable_line;
use sublet_proto::v1::{ColdImports, SandboxStandby, StandbyProcesses};

use super::first_process;
use super::means::SpawnMeans;
use super::mounted_folders::MountedFolders;
use super::sandbox::Sandbox;
use super::standby::{StandbyOrder, StandbySet, StandbyTerms};
use super::standby_policy::{self, StandbyClaim, StandbyStep};
use super::template::TemplateProcess;
use crate::{NetworkAccess, SandboxError, SandboxStatus, Spec, Template};

/// Maximum number of templates with modules or in images, and of interpreters.
const MAX_WARM: usize = 4;
/// Maximum number of templates that are remembered, warm or not, beside those of tenants.
const MAX_KNOWN: usize = 64;
/// Number of first processes of each template that are kept ready.
const READY: usize = 2;
/// Time after which a request counts half.
const HALF_LIFE: Duration = Duration::from_secs(60);
/// Heat at which a template is made: that of a second request within a minute.
const WORTHWHILE: f64 = 1.4;
/// Time after a failure in which a template is not started again.
const PAUSE: Duration = Duration::from_secs(60);
/// Time after a tenant's last request for its modules in which a process waits for the next one.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// Maximum length of the names of modules on standby that are reported, in characters.
const MAX_TOLD_CHARS: usize = 256;

/// See the [module](self).
#[derive(Default)]
pub(super) struct Templates {
    known: BTreeMap<Template, RequestedTemplate>,
    /// Limits of processes on standby.
    terms: SandboxStandby,
}

/// A template that was requested.
struct RequestedTemplate {
    heat: Heat,
    /// Copies that wait for their plans. They are dropped, and dead, before the template.
    ready: Vec<Sandbox>,
    warm: Option<TemplateProcess>,
    failed: Option<Instant>,
    /// Reason why its modules could not be kept warm in the last attempt.
    cold_imports: Option<ColdImports>,
    /// Processes that have imported its modules, if a template cannot.
    standby: StandbySet,
    /// Folders of the node's cache from which it is mounted.
    folders: MountedFolders,
}

/// Whether processes that were made ahead of a request may be taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stock {
    /// Processes that were made ahead may be taken.
    Used,
    /// The program gets a new process: one that was made ahead has failed.
    Unused,
}

/// Number of requests, in which recent ones count more.
#[derive(Clone, Copy)]
struct Heat {
    count: f64,
    at: Instant,
}

impl Heat {
    fn now(self, now: Instant) -> f64 {
        debug_assert!(self.count.is_finite() && self.count >= 0.0, "asked for {} times", self.count);
        let halves = now.saturating_duration_since(self.at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        self.count * 0.5_f64.powf(halves)
    }

    fn add(&mut self, now: Instant) {
        *self = Heat { count: self.now(now) + 1.0, at: now };
    }
}

impl Templates {
    /// A first process for a program that is a copy of this template, or was on standby with its modules, or is a copy of a
    /// template without modules, which then knows why if that is known. Nothing if the template is in an image and not warm.
    pub(super) fn take(
        &mut self,
        means: &mut SpawnMeans,
        wanted: &Template,
        (program, stock): (&Spec, Stock),
    ) -> Result<Option<Sandbox>, SandboxError> {
        let now = Instant::now();
        let wanted = &without_folder(wanted);
        self.note(wanted, now);
        if is_optional(wanted) {
            if let Some(mut sandbox) = self.copy(means, (wanted, stock), false)? {
                if wanted.image.is_some() {
                    sandbox.set_template(wanted);
                }
                return Ok(Some(sandbox));
            }
            if let Some(sandbox) = self.take_standby(wanted, (program, stock), now) {
                return Ok(Some(sandbox));
            }
            self.start_if_worthwhile(means, wanted, now);
        }
        if wanted.image.is_some() {
            return Ok(None);
        }
        let bare = without_modules(wanted);
        self.note(&bare, now);
        let missing = || {
            let reason = "it did not become ready: the agent's log tells more";
            Err(failed(wanted, io::Error::new(io::ErrorKind::TimedOut, reason)))
        };
        let mut sandbox = self.copy(means, (&bare, stock), true)?.map_or_else(missing, Ok)?;
        sandbox.set_cold_imports(self.cold_imports(wanted));
        Ok(Some(sandbox))
    }

    /// Returns the reason why a template could not be kept warm in the last attempt, if it is known.
    pub(super) fn cold_imports(&self, wanted: &Template) -> Option<ColdImports> {
        self.known.get(wanted).and_then(|known| known.cold_imports.clone())
    }

    /// Ends a template whose copy was not made a sandbox. The next requests do without it. If a process on standby was not made
    /// one, no other is begun for some time.
    pub(super) fn give_up(&mut self, template: &Template, error: &SandboxError) {
        let Some(known) = self.known.get_mut(template) else { return };
        if known.warm.is_some() {
            known.give_up(template, error);
        } else if template.image.is_none() || template.owner.is_some() {
            eprintln!("sublet-spawner: a process on standby did not become its program: {error}");
            known.standby.give_up(Instant::now());
        }
    }

    /// Makes one copy of a template that has fewer than wanted ready; says whether it did.
    pub(super) fn make_ready(&mut self, means: &mut SpawnMeans) -> bool {
        for (template, known) in &mut self.known {
            if known.ready.len() < READY && known.look(template) {
                let made = known.warm.as_mut().map(|warm| first_process::copy(means, warm));
                match made {
                    Some(Ok(sandbox)) => known.ready.push(sandbox),
                    Some(Err(error)) => known.give_up(template, &error),
                    None => continue,
                }
                return true;
            }
        }
        false
    }

    /// Returns descriptors that become readable when a template that is starting becomes warm.
    pub(super) fn expected(&self) -> Vec<BorrowedFd<'_>> {
        self.known.values().filter_map(|known| known.warm.as_ref()?.socket()).collect()
    }

    /// Counts a request; forgets what is not asked for any more, should there be too much.
    fn note(&mut self, template: &Template, now: Instant) {
        if !self.known.contains_key(template) {
            let forgotten = self.forgotten_for(template, now);
            forgotten.map(|forgotten| self.known.remove(&forgotten));
            let heat = Heat { count: 0.0, at: now };
            self.known.insert(template.clone(), RequestedTemplate::new(template, heat));
            let most = MAX_KNOWN + standby_policy::MAX_OF_TENANTS;
            debug_assert!(self.known.len() <= most, "{} templates are remembered", self.known.len());
        }
        if let Some(known) = self.known.get_mut(template) {
            known.heat.add(now);
        }
    }

    /// Returns the template that is forgotten before another one is remembered, if one has to be.
    fn forgotten_for(&self, template: &Template, now: Instant) -> Option<Template> {
        let Some(tenant) = &template.owner else {
            let others = self.known.keys().filter(|known| known.owner.is_none()).count();
            let is_full = others >= MAX_KNOWN;
            return self.coldest(now, |known| known.owner.is_none()).filter(|_| is_full).cloned();
        };
        let owned = self.known.iter().filter_map(|(template, known)| {
            Some((template, (template.owner.as_deref()?, known.heat.now(now))))
        });
        let (templates, sets): (Vec<_>, Vec<_>) = owned.unzip();
        let forgotten = standby_policy::forgotten(&sets, tenant)?;
        templates.get(forgotten).map(|template| (*template).clone())
    }

    /// Returns a waiting or a new copy; nothing if the template is not warm. Starts a template without modules, and
    /// waits for it.
    fn copy(
        &mut self,
        means: &mut SpawnMeans,
        (template, stock): (&Template, Stock),
        is_needed: bool,
    ) -> Result<Option<Sandbox>, SandboxError> {
        let Some(known) = self.known.get_mut(template) else { return Ok(None) };
        while stock == Stock::Used
            && let Some(mut sandbox) = known.ready.pop()
        {
            // It may have been killed meanwhile.
            if sandbox.state().status == SandboxStatus::Created {
                return Ok(Some(sandbox));
            }
        }
        // A template that has died is started once more.
        for _ in 0..if is_needed { 2 } else { 1 } {
            if is_needed && known.warm.is_none() {
                let started =
                    TemplateProcess::start(means, template).map_err(|error| failed(template, error));
                known.warm = Some(started?);
            }
            let Some(warm) = &mut known.warm else { return Ok(None) };
            let made = match warm.is_ready(is_needed) {
                Ok(false) => return Ok(None),
                Ok(true) => first_process::copy(means, warm),
                Err(error) => Err(failed(template, error)),
            };
            match made {
                Ok(sandbox) => return Ok(Some(sandbox)),
                Err(error) => known.give_up(template, &error),
            }
        }
        Ok(None)
    }

    fn start_if_worthwhile(&mut self, means: &mut SpawnMeans, wanted: &Template, now: Instant) {
        let Some(known) = self.known.get(wanted) else { return };
        if wanted.owner.is_some() {
            return;
        }
        let is_resting = known.failed.is_some_and(|failed| now.saturating_duration_since(failed) < PAUSE);
        let heat = known.heat.now(now);
        if known.warm.is_some() || known.standby.is_in_use() || is_resting || heat < WORTHWHILE {
            return;
        }
        let warm =
            self.known.iter().filter(|(template, known)| is_optional(template) && known.warm.is_some());
        if warm.count() >= MAX_WARM {
            let Some(coldest) = self.coldest(now, is_optional).cloned() else { return };
            let Some(known) = self.known.get_mut(&coldest) else { return };
            if known.heat.now(now) >= heat {
                return;
            }
            known.cool();
        }
        let Some(known) = self.known.get_mut(wanted) else { return };
        debug_assert!(known.warm.is_none(), "a template of {:?} is started twice", wanted.interpreter);
        match TemplateProcess::start(means, wanted) {
            Ok(warm) => known.warm = Some(warm),
            Err(error) => known.give_up(wanted, &failed(wanted, error)),
        }
    }

    /// The one with the least heat; of those that are warm, if any is.
    fn coldest(&self, now: Instant, counts: impl Fn(&Template) -> bool) -> Option<&Template> {
        let counted = || self.known.iter().filter(|(template, _)| counts(template));
        let order = |known: &RequestedTemplate| (known.warm.is_none(), known.heat.now(now));
        counted()
            .min_by(|(_, a), (_, b)| order(a).partial_cmp(&order(b)).unwrap_or(std::cmp::Ordering::Equal))
            .map(|(template, _)| template)
    }
}

/// Processes on standby.
impl Templates {
    /// Sets what processes on standby may use from now on, and returns those that there are.
    pub(super) fn keep_standby(&mut self, terms: SandboxStandby) -> Vec<StandbyProcesses> {
        let (now, idle) = (Instant::now(), &terms.idle_cores);
        self.known.retain(|template, known| !known.is_obsolete(template, now));
        for known in self.known.values_mut() {
            known.standby.look(now);
            known.standby.use_cores(idle);
        }
        self.terms = terms;
        let in_use = self.known.iter().filter(|(_, known)| known.standby.is_in_use());
        in_use.map(|(template, known)| described(template, &known.standby)).collect()
    }

    /// Begins one process on standby if one is worthwhile, and there are idle cores and memory for it. Ends others for it
    /// that are asked for less. Says whether it did something.
    pub(super) fn make_standby(&mut self, means: &mut SpawnMeans) -> bool {
        let now = Instant::now();
        self.known.values_mut().for_each(|known| known.standby.look(now));
        if self.known.values().any(|known| known.standby.counts().1 > 0) {
            return false;
        }
        let (templates, claims): (Vec<_>, Vec<_>) =
            self.known.iter().map(|(template, known)| (template, self.claim(template, known, now))).unzip();
        let template_at = |position: usize| templates.get(position).map(|template| (*template).clone());
        let Some(step) = standby_policy::next_step(&claims, self.terms.memory_bytes) else { return false };
        let (StandbyStep::Begin(position, _) | StandbyStep::End(position)) = step;
        let Some(template) = template_at(position) else { return false };
        let begun = match step {
            StandbyStep::Begin(_, free_bytes) => self.begin_standby(means, &template, free_bytes),
            StandbyStep::End(_) => {
                self.known.get_mut(&template).into_iter().for_each(|known| known.standby.end());
                Ok(())
            }
        };
        if let (Err(error), Some(known)) = (begun, self.known.get_mut(&template)) {
            eprintln!("sublet-spawner: modules {:?}: {error}", template.imports);
            known.standby.give_up(now);
        }
        true
    }

    /// A set of modules as the policy sees it.
    fn claim<'set>(
        &self,
        template: &'set Template,
        known: &RequestedTemplate,
        now: Instant,
    ) -> StandbyClaim<'set> {
        let (standby, idle) = (&known.standby, self.terms.idle_cores.len());
        let has_cores = standby.wanted_cores(now).is_some_and(|cores| cores <= idle);
        let is_worthwhile = template.owner.is_some() || known.cold_imports.is_some();
        StandbyClaim {
            owner: template.owner.as_deref(),
            heat: known.heat.now(now),
            reserved_bytes: standby.reserved_bytes(),
            needed_bytes: standby.needed_bytes(),
            can_begin: self.terms.memory_bytes > 0 && is_worthwhile && has_cores,
        }
    }

    fn begin_standby(
        &mut self,
        means: &mut SpawnMeans,
        template: &Template,
        memory_bytes: u64,
    ) -> Result<(), SandboxError> {
        let missing = || failed(template, io::Error::other("it is not warm"));
        let terms = self.known.get(template).and_then(|known| known.standby.terms.clone());
        let terms = terms.ok_or_else(missing)?;
        let cores = self.terms.idle_cores.get(..terms.cores).ok_or_else(missing)?.to_vec();
        let sandbox = match &template.image {
            Some(_) => first_process::blank(means, NetworkAccess::None, false)?,
            None => {
                let bare = without_modules(template);
                self.copy(means, (&bare, Stock::Used), false)?.ok_or_else(missing)?
            }
        };
        let shown_bytes = self.terms.memory_bytes;
        let order = StandbyOrder { template: template.clone(), terms, cores, memory_bytes, shown_bytes };
        let known = self.known.get_mut(template).ok_or_else(missing)?;
        known.standby.begin(means, sandbox, order)
    }

    /// Takes a process on standby for a program. Notes the program's terms, for the next process.
    fn take_standby(
        &mut self,
        wanted: &Template,
        (program, stock): (&Spec, Stock),
        now: Instant,
    ) -> Option<Sandbox> {
        let known = self.known.get_mut(wanted)?;
        let is_kept = wanted.owner.is_none() || known.warm.is_none() && known.ready.is_empty();
        debug_assert!(is_kept, "code of tenant {:?} is in a template", wanted.owner);
        let terms = StandbyTerms::of(wanted, program)?;
        let taken = match stock {
            Stock::Used => known.standby.take(&terms, &program.limits),
            Stock::Unused => None,
        };
        // The code of a tenant is executed in advance only for that tenant, and its imports are never in a template.
        if wanted.owner.is_some() || known.standby.terms.is_some() || known.heat.now(now) >= WORTHWHILE {
            known.standby.ask(terms);
        }
        taken.map(|mut sandbox| {
            sandbox.set_template(wanted);
            sandbox
        })
    }
}

impl RequestedTemplate {
    fn new(template: &Template, heat: Heat) -> RequestedTemplate {
        RequestedTemplate {
            heat,
            ready: Vec::new(),
            warm: None,
            failed: None,
            cold_imports: None,
            standby: StandbySet::of(template),
            folders: MountedFolders::of(template),
        }
    }

    /// Whether nothing may be kept of it: a tenant has not asked for its modules for long, or its files were evicted.
    fn is_obsolete(&self, template: &Template, now: Instant) -> bool {
        let idle = now.saturating_duration_since(self.heat.at);
        template.owner.is_some() && idle > LONGEST_WAIT || self.folders.are_evicted()
    }

    /// Whether it can be forked; takes note if it never can.
    fn look(&mut self, template: &Template) -> bool {
        match self.warm.as_mut().map(|warm| warm.is_ready(false)) {
            Some(Ok(is_ready)) => is_ready,
            Some(Err(error)) => {
                self.give_up(template, &failed(template, error));
                false
            }
            None => false,
        }
    }

    fn give_up(&mut self, template: &Template, error: &SandboxError) {
        let cold_imports = self.warm.as_mut().and_then(|warm| warm.cold_imports(template));
        // Each attempt finds the same again.
        if !is_same(cold_imports.as_ref(), self.cold_imports.as_ref()) {
            eprintln!("sublet-spawner: {} with modules {:?}: {error}", name_of(template), template.imports);
        }
        self.cool();
        self.cold_imports = cold_imports;
        self.failed = Some(Instant::now());
    }

    /// Ends the template. The reason of an attempt before the one that ends here is no longer true.
    fn cool(&mut self) {
        self.ready.clear();
        self.warm = None;
        self.cold_imports = None;
    }
}

/// The template from which a program is copied that imports the modules of this one by itself.
fn without_modules(template: &Template) -> Template {
    let environment = template.environment.as_ref().map(|_| PathBuf::new());
    Template { imports: Vec::new(), environment, owner: None, ..template.clone() }
}

/// The processes on standby as operators see them.
fn described(template: &Template, standby: &StandbySet) -> StandbyProcesses {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let (waiting, importing) = standby.counts();
    let modules = match template.imports.as_slice() {
        [] => template.interpreter.display().to_string(),
        imports => imports.join(", "),
    };
    StandbyProcesses {
        modules: printable_line(&modules).chars().take(MAX_TOLD_CHARS).collect(),
        waiting: count(waiting),
        importing: count(importing),
        memory_bytes: standby.used_bytes(),
        tenant: template.owner.clone().unwrap_or_default(),
    }
}

/// The template by which a wanted one is kept: without modules of its own it is the same for all environments.
fn without_folder(wanted: &Template) -> Template {
    let environment = wanted.environment.clone().map(|folder| match wanted.imports.is_empty() {
        true => PathBuf::new(),
        false => folder,
    });
    Template { environment, ..wanted.clone() }
}

/// Whether a program can do without a template: with another one, or with an interpreter that is started anew.
fn is_optional(template: &Template) -> bool {
    !template.imports.is_empty() || template.image.is_some()
}

/// Whether two attempts had the same reason to fail, after whatever time.
fn is_same(now: Option<&ColdImports>, before: Option<&ColdImports>) -> bool {
    let same = |(now, before): (&ColdImports, &ColdImports)| {
        now.module == before.module && now.reason == before.reason
    };
    now.zip(before).is_some_and(same)
}

/// Names the interpreter of a template in messages to the operator.
fn name_of(template: &Template) -> String {
    let interpreter = template.interpreter.display();
    match template.image.as_ref().and_then(|image| image.root.layers.last()) {
        Some(layer) => format!("{interpreter} of the image with the layer {}", layer.display()),
        None => interpreter.to_string(),
    }
}

fn failed(template: &Template, error: io::Error) -> SandboxError {
    SandboxError::system(format!("keeping {} warm", name_of(template)), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicted_template_has_no_reason_of_an_earlier_attempt() {
        let now = Instant::now();
        let reason = "fails with OSError".to_owned();
        let mut known = RequestedTemplate::new(&bare(), Heat { count: 1.0, at: now });
        known.cold_imports = Some(ColdImports { module: "a".to_owned(), reason, import_ms: 0 });
        known.cool();
        assert_eq!(known.cold_imports, None);
    }

    #[test]
    fn same_reason_after_another_time_is_no_news() {
        let cold =
            |reason: &str, import_ms| ColdImports { module: "a".into(), reason: reason.into(), import_ms };
        let (first, again, other) = (cold("fails", 1), cold("fails", 2), cold("ends", 1));
        assert!(is_same(Some(&again), Some(&first)) && !is_same(Some(&other), Some(&first)));
        assert!(!is_same(None, None) && !is_same(Some(&first), None), "a first reason is news");
    }

    fn bare() -> Template {
        Template {
            language: crate::Language::Python,
            interpreter: "/usr/bin/python3".into(),
            adapter: "/adapter".into(),
            imports: Vec::new(),
            environment: None,
            search_path: Vec::new(),
            image: None,
            owner: None,
        }
    }

    fn owned(folder: &str, tenant: &str) -> Template {
        let owner = Some(tenant.to_owned());
        Template { imports: vec!["torch".into()], environment: Some(folder.into()), owner, ..bare() }
    }

    #[test]
    fn sets_of_tenants_forget_no_template_of_the_node() {
        let (mut templates, now) = (Templates::default(), Instant::now());
        templates.note(&bare(), now);
        for number in 0..2 * standby_policy::MAX_OF_TENANTS {
            templates.note(&owned(&format!("/e/{number}"), "a"), now);
        }
        templates.note(&owned("/e", "b"), now);
        let of = |owner: Option<&str>| {
            templates.known.keys().filter(|known| known.owner.as_deref() == owner).count()
        };
        assert_eq!([of(None), of(Some("a")), of(Some("b"))], [1, standby_policy::MAX_OF_TENANT, 1]);
    }

    #[test]
    fn set_of_tenant_ends_after_its_last_request() {
        let now = Instant::now();
        let known = |template: &Template| RequestedTemplate::new(template, Heat { count: 1.0, at: now });
        let (owned, later) = (owned("/no/folder", "a"), now + LONGEST_WAIT + Duration::from_secs(1));
        assert!(!known(&owned).is_obsolete(&owned, now) && known(&owned).is_obsolete(&owned, later));
        assert!(!known(&bare()).is_obsolete(&bare(), later), "the node's own cool down instead");
    }

    #[test]
    fn cold_program_of_tenant_is_copied_from_common_template() {
        let of_environments = Template { environment: Some(PathBuf::new()), ..bare() };
        assert_eq!(without_modules(&owned("/e", "a")), of_environments);
        assert_eq!(without_folder(&owned("/e", "a")), owned("/e", "a"));
    }

    #[test]
    fn only_an_interpreter_of_the_host_without_modules_is_needed() {
        let bare = bare();
        let mut image = crate::TemplateImage::default();
        image.root.layers = vec!["/layers/low".into(), "/layers/high".into()];
        let in_image = Template { image: Some(image), ..bare.clone() };
        let with_modules = Template { imports: vec!["json".into()], ..bare.clone() };
        assert_eq!([&bare, &in_image, &with_modules].map(is_optional), [false, true, true]);
        assert!(in_image != bare && name_of(&in_image).ends_with("/layers/high"), "{}", name_of(&in_image));
    }
}
