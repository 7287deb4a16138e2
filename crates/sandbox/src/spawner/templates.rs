//! Keeps templates: one of each interpreter without modules, another one for environments, and some with modules that are often requested.
//!
//! Who asks for modules gets a copy of the template that has them, if that is warm. Else it gets one of the bare
//! interpreter and imports by itself, as any program does: it never waits for another's modules. How often each is asked
//! for decides which are kept; what was not asked for a minute counts half.
//!
//! A template in an image is kept by the same rule, also without modules: while it is not warm, its interpreter is started
//! anew in a container.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sublet_proto::v1::ColdImports;

use super::first_process;
use super::means::SpawnMeans;
use super::sandbox::Sandbox;
use super::template::TemplateProcess;
use crate::{SandboxError, SandboxStatus, Template};

/// Maximum number of templates with modules or in images, and of interpreters.
const MAX_WARM: usize = 4;
/// Maximum number of templates that are remembered, warm or not.
const MAX_KNOWN: usize = 64;
/// Number of first processes of each template that are kept ready.
const READY: usize = 2;
/// Time after which a request counts half.
const HALF_LIFE: Duration = Duration::from_secs(60);
/// Heat at which a template is made: that of a second request within a minute.
const WORTHWHILE: f64 = 1.4;
/// Time after a failure in which a template is not started again.
const PAUSE: Duration = Duration::from_secs(60);

/// See the [module](self).
#[derive(Default)]
pub(super) struct Templates {
    known: BTreeMap<Template, RequestedTemplate>,
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
    /// A first process that is a copy of this template, or of one without modules, which then knows why if that is known.
    /// Nothing if the template is in an image and not warm.
    pub(super) fn take(
        &mut self,
        means: &mut SpawnMeans,
        wanted: &Template,
    ) -> Result<Option<Sandbox>, SandboxError> {
        let now = Instant::now();
        let wanted = &without_folder(wanted);
        self.note(wanted, now);
        if is_optional(wanted) {
            if let Some(mut sandbox) = self.copy(means, wanted, false)? {
                if wanted.image.is_some() {
                    sandbox.set_template(wanted);
                }
                return Ok(Some(sandbox));
            }
            self.start_if_worthwhile(means, wanted, now);
        }
        if wanted.image.is_some() {
            return Ok(None);
        }
        let environment = wanted.environment.as_ref().map(|_| PathBuf::new());
        let bare = Template { imports: Vec::new(), environment, ..wanted.clone() };
        self.note(&bare, now);
        let missing = || {
            let reason = "it did not become ready: the agent's log tells more";
            Err(failed(wanted, io::Error::new(io::ErrorKind::TimedOut, reason)))
        };
        let mut sandbox = self.copy(means, &bare, true)?.map_or_else(missing, Ok)?;
        sandbox.set_cold_imports(self.cold_imports(wanted));
        Ok(Some(sandbox))
    }

    /// Returns the reason why a template could not be kept warm in the last attempt, if it is known.
    pub(super) fn cold_imports(&self, wanted: &Template) -> Option<ColdImports> {
        self.known.get(wanted).and_then(|known| known.cold_imports.clone())
    }

    /// Ends a template whose copy was not made a sandbox. The next requests do without it.
    pub(super) fn give_up(&mut self, template: &Template, error: &SandboxError) {
        if let Some(known) = self.known.get_mut(template).filter(|known| known.warm.is_some()) {
            known.give_up(template, error);
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
            if self.known.len() >= MAX_KNOWN {
                let cold = self.coldest(now, |_| true).cloned();
                cold.map(|cold| self.known.remove(&cold));
            }
            let heat = Heat { count: 0.0, at: now };
            let known =
                RequestedTemplate { heat, ready: Vec::new(), warm: None, failed: None, cold_imports: None };
            self.known.insert(template.clone(), known);
            debug_assert!(self.known.len() <= MAX_KNOWN, "{} templates are remembered", self.known.len());
        }
        if let Some(known) = self.known.get_mut(template) {
            known.heat.add(now);
        }
    }

    /// Returns a waiting or a new copy; nothing if the template is not warm. Starts a template without modules, and
    /// waits for it.
    fn copy(
        &mut self,
        means: &mut SpawnMeans,
        template: &Template,
        is_needed: bool,
    ) -> Result<Option<Sandbox>, SandboxError> {
        let Some(known) = self.known.get_mut(template) else { return Ok(None) };
        while let Some(mut sandbox) = known.ready.pop() {
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
        let is_resting = known.failed.is_some_and(|failed| now.saturating_duration_since(failed) < PAUSE);
        let heat = known.heat.now(now);
        if known.warm.is_some() || is_resting || heat < WORTHWHILE {
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

impl RequestedTemplate {
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
        let mut known = RequestedTemplate {
            heat: Heat { count: 1.0, at: now },
            ready: Vec::new(),
            warm: None,
            failed: Some(now),
            cold_imports: Some(ColdImports { module: "a".to_owned(), reason, import_ms: 0 }),
        };
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

    #[test]
    fn only_an_interpreter_of_the_host_without_modules_is_needed() {
        let bare = Template {
            language: crate::Language::Python,
            interpreter: "/usr/bin/python3".into(),
            adapter: "/adapter".into(),
            imports: Vec::new(),
            environment: None,
            search_path: Vec::new(),
            image: None,
        };
        let mut image = crate::TemplateImage::default();
        image.root.layers = vec!["/layers/low".into(), "/layers/high".into()];
        let in_image = Template { image: Some(image), ..bare.clone() };
        let with_modules = Template { imports: vec!["json".into()], ..bare.clone() };
        assert_eq!([&bare, &in_image, &with_modules].map(is_optional), [false, true, true]);
        assert!(in_image != bare && name_of(&in_image).ends_with("/layers/high"), "{}", name_of(&in_image));
    }
}
