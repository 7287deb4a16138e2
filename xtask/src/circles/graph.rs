//! Resolves the imports of a crate's files to the files that define the imported items, and finds circles of them.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Import, NamePath, SourceFile};

/// Names of a module and of the modules around it; empty for the crate itself.
pub type ModulePath = Vec<String>;

/// For each file and each other file that it imports from, the imported names.
pub type Imports = BTreeMap<(ModulePath, ModulePath), BTreeSet<String>>;

/// Longest chain of re-exports that is followed.
const MAX_REEXPORTS: usize = 16;

/// The files of a crate, by their modules.
type Sources<'a> = BTreeMap<ModulePath, &'a SourceFile>;

/// The imports between the files of a crate.
pub fn imports(sources: &Sources<'_>) -> Imports {
    let mut found = Imports::new();
    for (module, source) in sources {
        let of_imports = source.imports.iter().filter(|import| is_used(source, import));
        let of_imports = of_imports.map(|import| (&import.scope, &import.path, import.name == "*"));
        let of_paths = source.paths.iter().map(|(scope, path)| (scope, path, false));
        for (scope, path, is_glob) in of_imports.chain(of_paths) {
            let Some(full) = absolute(sources, module, scope, path) else { continue };
            let Some((to, name)) = definition(sources, &full, is_glob) else { continue };
            if to != *module {
                found.entry((module.clone(), to)).or_default().insert(name);
            }
        }
    }
    found
}

/// Whether an import is more than a re-export.
fn is_used(source: &SourceFile, import: &Import) -> bool {
    !import.is_public || source.words.contains(&import.name)
}

/// A path from the crate's root; `None` if it leads into another crate.
fn absolute(
    sources: &Sources<'_>,
    module: &ModulePath,
    scope: &NamePath,
    path: &[String],
) -> Option<NamePath> {
    let mut at: NamePath = module.iter().chain(scope).cloned().collect();
    let first = path.first()?.as_str();
    let rest = match first {
        "crate" => {
            at.clear();
            &path[1..]
        }
        "self" | "super" => {
            let path = path.strip_prefix(&["self".to_owned()]).unwrap_or(path);
            let up = path.iter().take_while(|name| *name == "super").count();
            at.truncate(at.len().checked_sub(up)?);
            &path[up..]
        }
        // A submodule or an imported name.
        name => {
            let child: NamePath = module.iter().cloned().chain([name.to_owned()]).collect();
            if sources.contains_key(&child) {
                at.clone_from(module);
                path
            } else {
                let source = sources.get(module)?;
                let import = source.imports.iter().find(|import| import.name == name)?;
                if import.path.first().is_some_and(|first| first == name) {
                    return None;
                }
                let mut full = absolute(sources, module, &import.scope, &import.path)?;
                full.extend_from_slice(&path[1..]);
                return Some(full);
            }
        }
    };
    at.extend_from_slice(rest);
    Some(at)
}

/// The file that defines what a path from the root names, and the name; `None` if that is a module.
fn definition(sources: &Sources<'_>, full: &[String], is_glob: bool) -> Option<(ModulePath, String)> {
    let mut full = full.to_vec();
    for _ in 0..MAX_REEXPORTS {
        let len = (0..=full.len()).rev().find(|&len| sources.contains_key(&full[..len]))?;
        let (module, source) = (full[..len].to_vec(), sources[&full[..len]]);
        let Some(name) = full.get(len) else {
            return is_glob.then(|| (module, "*".to_owned()));
        };
        if source.defines.contains(name) {
            return Some((module, full[len..].join("::")));
        }
        let named = source.imports.iter().find(|import| import.scope.is_empty() && import.name == *name);
        let globs = source.imports.iter().filter(|import| import.scope.is_empty() && import.name == "*");
        let next = match named {
            Some(import) => absolute(sources, &module, &import.scope, &import.path)?,
            None => {
                let of = |import: &Import| {
                    let of = absolute(sources, &module, &import.scope, &import.path)?;
                    sources.get(&of)?.defines.contains(name).then(|| [of, vec![name.clone()]].concat())
                };
                let Some(found) = globs.into_iter().find_map(of) else {
                    // An item in an inline module, or one that a macro defines.
                    return Some((module, full[len..].join("::")));
                };
                found
            }
        };
        full = [next, full[len + 1..].to_vec()].concat();
    }
    None
}

/// The circles of imports: sets of at least two files, each of which leads to every other one.
pub fn circles(imports: &Imports) -> Vec<Vec<ModulePath>> {
    let files: BTreeSet<&ModulePath> = imports.keys().flat_map(|(from, to)| [from, to]).collect();
    let reached: BTreeMap<_, _> = files.iter().map(|file| (*file, reached(imports, file))).collect();
    let mut found: Vec<Vec<ModulePath>> = Vec::new();
    for file in &files {
        if found.iter().any(|circle| circle.contains(file)) {
            continue;
        }
        let is_in = |other: &&ModulePath| reached[file].contains(*other) && reached[*other].contains(*file);
        let circle: Vec<ModulePath> = files.iter().copied().filter(is_in).cloned().collect();
        if circle.len() > 1 {
            found.push(circle);
        }
    }
    found
}

/// The files to which imports lead from a file.
fn reached<'a>(imports: &'a Imports, from: &ModulePath) -> BTreeSet<&'a ModulePath> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from];
    while let Some(file) = left.pop() {
        for (_, to) in imports.keys().filter(|(of, _)| of == file) {
            if reached.insert(to) {
                left.push(to);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports_of(files: &[(&str, &str)]) -> Imports {
        let read = |(name, source): &(&str, &str)| (module(name), SourceFile::read(source));
        let read: Vec<(ModulePath, SourceFile)> = files.iter().map(read).collect();
        imports(&read.iter().map(|(module, source)| (module.clone(), source)).collect())
    }

    fn module(name: &str) -> ModulePath {
        name.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    fn arrows(files: &[(&str, &str)]) -> Vec<String> {
        let imports = imports_of(files);
        imports.keys().map(|(from, to)| format!("{} {}", from.join("::"), to.join("::"))).collect()
    }

    #[test]
    fn finds_imports_in_every_form() {
        let b = ("b", "pub fn f() {}");
        for source in [
            "use crate::b::f;",
            "use super::b::f;",
            "use super::b; fn g() { b::f() }",
            "use crate::b as c; fn g() { c::f() }",
            "use crate::b::*;",
            "fn g() { crate::b::f() }",
            "fn g() { super::b::f() }",
            "mod m { fn g() { super::super::b::f() } }",
        ] {
            assert_eq!(arrows(&[("", "mod a; mod b;"), ("a", source), b]), ["a b"], "{source}");
        }
    }

    #[test]
    fn ignores_what_is_no_import() {
        let b = ("b", "pub fn f() {}");
        for source in [
            "use std::b::f;",
            "#[cfg(test)] mod tests { use crate::b::f; }",
            "// crate::b::f\nfn g() {}",
            "use crate::b;",
            "use crate::a::h; fn h() {}",
        ] {
            assert!(arrows(&[("", "mod a; mod b;"), ("a", source), b]).is_empty(), "{source}");
        }
    }

    #[test]
    fn re_exported_items_belong_to_the_file_that_defines_them() {
        let files = [
            ("p", "mod c; pub use c::A; pub struct Own;"),
            ("p::c", "pub struct A;"),
            ("q", "use crate::p::A;"),
        ];
        assert_eq!(arrows(&files), ["q p::c"]);
        let own = [files[0], files[1], ("q", "use crate::p::Own;")];
        assert_eq!(arrows(&own), ["q p"]);
        let used = [("p", "mod c; pub use c::A; fn f(a: A) {}"), files[1]];
        assert_eq!(arrows(&used), ["p p::c"], "a re-export that the parent uses, too");
    }

    #[test]
    fn sibling_behind_a_re_export_closes_no_circle() {
        let files = [
            ("p", "mod c; mod d; pub use c::A; pub use d::B;"),
            ("p::c", "use super::B; pub struct A;"),
            ("p::d", "pub struct B;"),
        ];
        assert!(circles(&imports_of(&files)).is_empty());
    }

    #[test]
    fn finds_circles_between_parent_child_and_siblings() {
        let files = [
            ("p", "mod c; pub struct P; fn f() { c::g() }"),
            ("p::c", "use super::P; pub fn g() {}"),
            ("x", "use crate::y::Y; pub struct X;"),
            ("y", "use crate::z::Z; pub struct Y;"),
            ("z", "use crate::x::X; pub struct Z;"),
            ("leaf", "use crate::x::X;"),
        ];
        let found = circles(&imports_of(&files));
        assert_eq!(found, [vec![module("p"), module("p::c")], vec![module("x"), module("y"), module("z")]]);
    }
}
