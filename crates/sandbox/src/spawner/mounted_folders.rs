//! Folders of the node's cache from which a template or a process on standby is mounted, and whether they are still there.
//!
//! A mount keeps the files of a folder on the disk after the cache has removed it. So what was made from a folder that is
//! gone is ended.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::Template;

/// See the [module](self). Each folder has the device and inode that it had when it was first named.
pub(super) struct MountedFolders(Vec<(PathBuf, Option<(u64, u64)>)>);

impl MountedFolders {
    /// Notes the folders of a template: its environment, and the layers of its image.
    pub(super) fn of(template: &Template) -> MountedFolders {
        // A template without modules of its own is the same for all environments.
        let environment = template.environment.iter().filter(|folder| !folder.as_os_str().is_empty());
        let layers = template.image.iter().flat_map(|image| &image.root.layers);
        MountedFolders(environment.chain(layers).map(|folder| (folder.clone(), identity(folder))).collect())
    }

    /// Whether one of the folders was removed, or is another one by now.
    pub(super) fn are_evicted(&self) -> bool {
        self.0.iter().any(|(folder, noted)| identity(folder) != *noted)
    }
}

fn identity(folder: &Path) -> Option<(u64, u64)> {
    fs::metadata(folder).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Language, RootImage, TemplateImage};

    #[test]
    fn removed_or_replaced_folder_is_evicted() {
        let parent = tempfile::tempdir().unwrap();
        let [environment, layer, other] =
            ["environment", "layer", "other"].map(|name| parent.path().join(name));
        for folder in [&environment, &layer, &other] {
            fs::create_dir(folder).unwrap();
        }
        let root = RootImage { layers: vec![layer.clone()], working_folder: "/".into() };
        let of = |environment: Option<PathBuf>, image: Option<TemplateImage>| {
            MountedFolders::of(&Template {
                language: Language::Python,
                interpreter: "/usr/bin/python3".into(),
                adapter: "/adapter".into(),
                imports: Vec::new(),
                environment,
                search_path: Vec::new(),
                image,
                owner: None,
            })
        };
        let image = TemplateImage { root, env: Vec::new() };
        let all = [of(Some(environment.clone()), None), of(None, Some(image))];
        let common = [of(None, None), of(Some(PathBuf::new()), None)];
        assert!(all.iter().chain(&common).all(|folders| !folders.are_evicted()));
        fs::remove_dir(&layer).unwrap();
        fs::remove_dir(&environment).unwrap();
        fs::rename(&other, &environment).unwrap();
        assert!(all.iter().all(MountedFolders::are_evicted));
        assert!(common.iter().all(|folders| !folders.are_evicted()), "no folder of the cache is theirs");
    }
}
