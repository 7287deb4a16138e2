//! Test of the links between documents: each relative link of each document leads to a file, and its anchor to a heading.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::map::files;
use crate::root;

/// The document's lines outside of fenced code.
fn prose(markdown: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    markdown.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// The targets of a document's links to files and headings of the repository.
fn targets(markdown: &str) -> BTreeSet<String> {
    let links = prose(markdown).flat_map(|line| line.split("](").skip(1));
    let targets = links.filter_map(|rest| rest.split([')', ' ']).next());
    targets
        .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        .map(str::to_owned)
        .collect()
}

/// The anchors of a document's headings, as GitHub and mkdocs name them.
fn anchors(markdown: &str) -> BTreeSet<String> {
    let mut uses: BTreeMap<String, u32> = BTreeMap::new();
    let headings = prose(markdown).filter(|line| line.starts_with('#'));
    let slugs = headings.map(|line| slug(line.trim_start_matches('#').trim()));
    slugs
        .map(|slug| {
            let count = uses.entry(slug.clone()).or_default();
            *count += 1;
            if *count == 1 { slug } else { format!("{slug}-{}", *count - 1) }
        })
        .collect()
}

fn slug(heading: &str) -> String {
    let kept = heading.to_lowercase().replace(' ', "-");
    kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
}

/// Why a link of a document leads nowhere; `None` if it leads somewhere.
fn broken(document: &Path, target: &str) -> Option<String> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = document.parent().unwrap_or(Path::new(""));
    let file = if path.is_empty() { document.to_path_buf() } else { folder.join(path) };
    let file = root().join(file);
    if !file.exists() {
        return Some(format!("{} links to {target}: no such file", document.display()));
    }
    if anchor.is_empty() || file.extension().is_none_or(|end| end != "md") {
        return None;
    }
    let has_anchor = fs::read_to_string(&file).is_ok_and(|text| anchors(&text).contains(anchor));
    (!has_anchor).then(|| format!("{} links to {target}: no such heading", document.display()))
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let documents: Vec<PathBuf> = files(&["md"]).unwrap();
    assert!(documents.len() > 20, "only {} documents were found", documents.len());
    let problems: Vec<String> = documents
        .iter()
        .flat_map(|document| {
            let text = fs::read_to_string(root().join(document)).unwrap();
            targets(&text).into_iter().filter_map(|target| broken(document, &target)).collect::<Vec<_>>()
        })
        .collect();
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn anchors_follow_the_headings() {
    let markdown = "# A title\n## `code`, and more\n```sh\n# a comment\n```\n## Twice\n## Twice\n";
    let expected = ["a-title", "code-and-more", "twice", "twice-1"];
    assert_eq!(anchors(markdown), expected.map(str::to_owned).into());
}
