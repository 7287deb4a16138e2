//! Templates in images: which images the operator trusts with them, and of which template a worker is a copy.
//!
//! A template is the interpreter of an image, and has fewer walls than a sandbox, since its copies have to make theirs. So it
//! executes nothing of an image that a tenant has brought. The operator names images by their digests: a name may mean another
//! image tomorrow, and a node takes an image that it has from wherever it was pulled.
//!
//! Nothing of a tenant is in such a template but the names of modules, so copies for all tenants are made from it. The
//! interpreter of any other image can be on standby for its tenant, in a container with all walls.

use std::collections::BTreeSet;

use sublet_image::Digest;
use sublet_proto::v1::PackageBuild;
use sublet_sandbox::{
    Devices, IsolationKind, Language, MAX_IMPORTS, NetworkAccess, SandboxProgram, Spec, Template,
    TemplateImage,
};

use super::answer::ImageInterpreter;
use crate::execution::c_library::CLibrary;

/// Images whose interpreters the operator trusts like those of the node.
#[derive(Debug, Default)]
pub(super) struct TrustedImages(BTreeSet<Digest>);

impl TrustedImages {
    pub(super) fn new(digests: &[Digest]) -> TrustedImages {
        TrustedImages(digests.iter().copied().collect())
    }

    /// Template whose copy can take the place of a worker in a container. In an image that is not trusted only a process on
    /// standby for this tenant can, if the tenant is known and the node keeps such processes. `None` otherwise, or if the worker
    /// has what neither can have: another program makes its container, or it uses the network, a device or its own page faults.
    /// With musl there is neither: only its own `fork` tells it the number of the new process's thread.
    pub(super) fn template(
        &self,
        (digest, python): (&str, &ImageInterpreter),
        build: &PackageBuild,
        (spec, tenant): (&Spec, Option<&str>),
    ) -> Option<Template> {
        let IsolationKind::Container(root) = &spec.kind else { return None };
        let SandboxProgram::Loading { library, .. } = &spec.program else { return None };
        let is_trusted = digest.parse::<Digest>().is_ok_and(|digest| self.0.contains(&digest));
        let is_plain = spec.network == NetworkAccess::None && spec.devices == Devices::None;
        let owner = tenant.filter(|_| !is_trusted && build.imports.len() <= MAX_IMPORTS);
        // A name would be looked up by the copy's sandbox only.
        let is_possible = is_plain && python.program.is_absolute() && python.libc != CLibrary::Musl;
        if !(is_trusted || owner.is_some()) || !is_possible {
            return None;
        }
        Some(Template {
            language: Language::Python,
            interpreter: python.program.clone(),
            adapter: library.clone(),
            imports: build.imports.clone(),
            environment: None,
            search_path: Vec::new(),
            image: Some(TemplateImage { root: root.clone(), env: spec.env.clone() }),
            owner: owner.map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::PathBuf;

    use sublet_sandbox::{RootImage, SandboxLimits};

    use super::*;

    fn digest(digit: &str) -> Digest {
        format!("sha256:{}", digit.repeat(64)).parse().unwrap()
    }

    fn worker() -> Spec {
        let root = RootImage { layers: vec!["/layer".into()], working_folder: "/work".into() };
        Spec {
            kind: IsolationKind::Container(root),
            program: SandboxProgram::Loading { program: "/bin/python3".into(), library: "/library".into() },
            args: Vec::new(),
            env: vec![("PATH".into(), "/bin".into())],
            has_own_variables: false,
            folder: None,
            lent_folders: Vec::new(),
            device_mounts: Vec::new(),
            control: File::open("/dev/null").unwrap().into(),
            log: None,
            network: NetworkAccess::None,
            devices: Devices::None,
            limits: SandboxLimits {
                cores: vec![3],
                memory_bytes: None,
                shown_memory_bytes: None,
                processes: None,
                scratch_bytes: 0,
            },
        }
    }

    fn python(program: &str) -> ImageInterpreter {
        ImageInterpreter { program: program.into(), version: "3.12".to_owned(), libc: CLibrary::Glibc }
    }

    /// The template of a worker in an image of this digest, where only that of ones is trusted.
    fn template(digest: &str, program: &str, spec: &Spec) -> Option<Template> {
        let build = PackageBuild { imports: vec!["json".to_owned()], ..PackageBuild::default() };
        let python = python(program);
        let trusted = TrustedImages::new(&[self::digest("1")]);
        trusted.template((digest, &python), &build, (spec, None))
    }

    #[test]
    fn worker_in_trusted_image_is_a_copy_of_its_interpreter() {
        let template = template(&digest("1").to_string(), "/bin/python3", &worker()).unwrap();
        let image = template.image.unwrap();
        assert_eq!(
            (template.imports, template.adapter.to_str()),
            (vec!["json".to_owned()], Some("/library"))
        );
        assert_eq!((image.env, image.root.layers), (worker().env, vec![PathBuf::from("/layer")]));
    }

    #[test]
    fn only_trusted_images_have_templates() {
        let trusted = digest("1").to_string();
        let (other, upper) = (digest("2").to_string(), trusted.to_uppercase());
        for other in [other.as_str(), &upper, &trusted[7..], ""] {
            assert_eq!(template(other, "/bin/python3", &worker()), None, "{other}");
        }
        let python = python("/bin/python3");
        let none = TrustedImages::default();
        let plain = PackageBuild::default();
        assert_eq!(none.template((&trusted, &python), &plain, (&worker(), None)), None);
        let with_musl = ImageInterpreter { libc: CLibrary::Musl, ..python.clone() };
        let images = TrustedImages::new(&[digest("1")]);
        let template = |python| images.template((&trusted, python), &plain, (&worker(), None));
        assert!(template(&python).is_some() && template(&with_musl).is_none());
    }

    #[test]
    fn tenant_owns_what_waits_in_its_image() {
        let python = python("/bin/python3");
        let trusted = TrustedImages::new(&[digest("1")]);
        let owner = |digest: Digest| {
            let of_tenant = (&worker(), Some("alice"));
            let digest = digest.to_string();
            trusted.template((&digest, &python), &PackageBuild::default(), of_tenant).unwrap().owner
        };
        assert_eq!(owner(digest("2")), Some("alice".to_owned()));
        assert_eq!(owner(digest("1")), None, "copies of a trusted image's template are for all tenants");
    }

    #[test]
    fn what_a_copy_cannot_have_starts_an_interpreter() {
        let trusted = digest("1").to_string();
        let image = RootImage { layers: vec!["/layer".into()], working_folder: "/".into() };
        let delegated = IsolationKind::Delegated { runtime: "/usr/bin/crun".into(), image };
        for spec in [
            Spec { kind: delegated, ..worker() },
            Spec { kind: IsolationKind::Process, ..worker() },
            Spec { program: SandboxProgram::Outside("/worker".into()), ..worker() },
            Spec { network: NetworkAccess::Host, ..worker() },
            Spec { devices: Devices::Faults, ..worker() },
        ] {
            assert_eq!(template(&trusted, "/bin/python3", &spec), None, "{spec:?}");
        }
        assert_eq!(template(&trusted, "python3", &worker()), None);
    }
}
