"""Writes what the published programs are made of: bill_of_materials.py TRIPLE FOLDER PACKAGE...

`sublet.cdx.json` is a bill of materials in CycloneDX 1.5: each crate that is linked into a program of these packages, with its
version, licence and digest. `LICENSE-THIRD-PARTY` has the licences of the same crates, and their texts, each text once.

Crates that only build others (build scripts, procedural macros) are not linked, and are in neither.
"""

import json
import re
import subprocess
import sys
import uuid
from pathlib import Path

# Names of files that have a licence or a notice, at the top of a crate.
LICENCE_FILE = re.compile(r"^(licen[cs]es?|copying|notice|unlicense)([-_.].*)?$", re.IGNORECASE)
# Code that is linked and is no crate: name, version's source, licence, and what the notices say of it.
STANDARD_LIBRARY = "The Rust standard library, Apache-2.0 OR MIT: https://www.rust-lang.org/policies/licenses"
SQLITE = "SQLite, in the public domain: https://www.sqlite.org/copyright.html"
# Where a crate has no text of its licence: the text of this repository, or the sentences of MIT with the crate's authors.
MIT = """Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def stop(message: str) -> None:
    """Ends with a message."""
    sys.exit(f"bill_of_materials.py: {message}")


def output(*command: str) -> str:
    """Returns what a command prints."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def linked(triple: str, packages: list[str]) -> set[tuple[str, str]]:
    """Returns name and version of each crate that is linked into a program of these packages."""
    chosen = [option for package in packages for option in ("--package", package)]
    tree = output("cargo", "tree", "--locked", *chosen, "--target", triple, "--edges", "normal,no-proc-macro",
                  "--prefix", "none", "--format", "{p}")
    found = set()
    for line in filter(None, tree.splitlines()):
        name, version = line.split()[:2]
        found.add((name, version.removeprefix("v")))
    return found


def crates(triple: str, packages: list[str]) -> list[dict]:
    """Returns what cargo knows of each linked crate, in the order of names; those of this repository are left out."""
    names = linked(triple, packages)
    metadata = json.loads(output("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", triple))
    own = set(metadata["workspace_members"])
    known = [package for package in metadata["packages"] if (package["name"], package["version"]) in names]
    if len(known) < len(names):
        stop(f"cargo knows {len(known)} of {len(names)} linked crates")
    foreign = [package for package in known if package["id"] not in own]
    for package in foreign:
        if not package["license"]:
            stop(f"{package['name']} {package['version']} has no licence expression")
    return sorted(foreign, key=lambda package: (package["name"], package["version"]))


def digests() -> dict[tuple[str, str], str]:
    """Returns the SHA-256 of each crate's archive, which Cargo.lock has."""
    found = {}
    for entry in Path("Cargo.lock").read_text().split("[[package]]")[1:]:
        fields = dict(re.findall(r'^(name|version|checksum) = "(.*)"$', entry, re.MULTILINE))
        if "checksum" in fields:
            found[fields["name"], fields["version"]] = fields["checksum"]
    return found


def expression(package: dict) -> str:
    """Returns a licence as an SPDX expression: old crates separate alternatives by a slash."""
    return package["license"].replace("/", " OR ")


def component(package: dict, digest: dict[tuple[str, str], str]) -> dict:
    """Returns a crate as a component of the bill."""
    name, version = package["name"], package["version"]
    url = f"pkg:cargo/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": url,
        "name": name,
        "version": version,
        "purl": url,
        "licenses": [{"expression": expression(package)}],
        "hashes": [{"alg": "SHA-256", "content": digest[name, version]}],
    }


def bill(triple: str, found: list[dict], version: str) -> dict:
    """Returns the bill of materials. The same tree and target have the same bill: its number is made of its components."""
    digest = digests()
    components = [component(package, digest) for package in found]
    components.append({"type": "library", "bom-ref": "sqlite", "name": "sqlite", "licenses": [{"expression": "blessing"}]})
    rust = output("rustc", "--version").split()[1]
    components.append({"type": "library", "bom-ref": "rust-std", "name": "rust-std", "version": rust,
                       "licenses": [{"expression": "Apache-2.0 OR MIT"}]})
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([triple, version, components]))
    subject = {"type": "application", "bom-ref": "sublet", "name": "sublet", "version": version,
               "purl": f"pkg:generic/sublet@{version}?platform={triple}", "licenses": [{"expression": "Apache-2.0"}]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        "metadata": {"component": subject},
        "components": components,
    }


def texts(package: dict) -> list[str]:
    """Returns the texts of a crate's licences and notices."""
    folder = Path(package["manifest_path"]).parent
    files = sorted(path for path in folder.iterdir() if path.is_file() and LICENCE_FILE.match(path.name))
    found = [path.read_text(errors="replace").strip() for path in files]
    if found:
        return found
    licence = expression(package)
    authors = ", ".join(package["authors"]) or f"the authors of {package['name']}"
    if "MIT" in licence:
        return [f"Copyright (c) {authors}\n\n{MIT}".strip()]
    if "Apache-2.0" in licence:
        return [Path("LICENSE").read_text().strip()]
    return stop(f"{package['name']} {package['version']} ({licence}) has no text of its licence")


def notices(found: list[dict]) -> str:
    """Returns the licences of all crates, and each text once, with the crates that it is of."""
    lines = ["The programs of Sublet are linked with the following code of others.", "", STANDARD_LIBRARY, SQLITE, ""]
    crates_of: dict[str, list[str]] = {}
    for package in found:
        name = f"{package['name']} {package['version']}"
        lines.append(f"{name}, {expression(package)}: {package['repository'] or 'https://crates.io/crates/' + package['name']}")
        for text in texts(package):
            crates_of.setdefault(text, []).append(name)
    for text, names in crates_of.items():
        lines += ["", "-" * 79, ", ".join(names), "", text]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes both files."""
    if len(sys.argv) < 4:
        stop("usage: bill_of_materials.py TRIPLE FOLDER PACKAGE...")
    triple, folder, packages = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    version = re.search(r'^version = "(.*)"$', Path("Cargo.toml").read_text(), re.MULTILINE)[1]
    found = crates(triple, packages)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sublet.cdx.json").write_text(json.dumps(bill(triple, found, version), indent=1) + "\n")
    (folder / "LICENSE-THIRD-PARTY").write_text(notices(found))
    print(f"{len(found)} crates are linked")


if __name__ == "__main__":
    main()
