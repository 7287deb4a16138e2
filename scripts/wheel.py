"""Makes the wheel of the Python package: wheel.py FOLDER [--tag TAG] [--platform PLATFORM] [--modules DIR] [--add FILE]...

Beside the package and its module the wheel carries the programs of a whole installation, without symbols. cargo has built
them, with the profile SUBLET_PROFILE (release). With SUBLET_TARGET (such as x86_64-unknown-linux-gnu) cargo has built for
that target, and its programs have no symbols.

The wheel is of the tag cp311-abi3 and of this machine's platform, unless others are given: an interpreter without the stable
interface needs libraries that are built for it, which --modules names the folder of. A file whose name begins with LICENSE goes
beside the licence, any other one to the bills of materials. The same files and the same compressor give the same wheel: it is
libdeflate, by the module `deflate`, where the interpreter has that module, and otherwise the larger one of zlib.
"""

import argparse
import base64
import hashlib
import os
import shutil
import struct
import subprocess
import sysconfig
import tempfile
import tomllib
import zlib
from pathlib import Path

try:
    import deflate
except ImportError:
    deflate = None

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python/sublet"
PROGRAMS = ("sublet", "sublet-worker", "sublet-worker-wasm", "sublet-worker-kernels", "sublet-spawner",
            "libsublet_template_python.so", "libsublet_template_node.so")
MODULE = "lib_native.so"
# The libraries that an interpreter loads; the others are the same for each interpreter.
MODULES = (MODULE, "libsublet_template_python.so")
# Ends of the names under which interpreters of a tag look for the module.
SUFFIXES = {"cp311-abi3": ".abi3.so"}
# The time of each file in the archive, the first that one can have: a wheel does not depend on when it was made.
TIME, DATE = 0, 1 << 5 | 1
# Numbers of the archive's format: the version that readers need, the system Unix, and the method "deflate".
VERSION, UNIX, DEFLATED = 20, 3, 8
# The strongest level of libdeflate.
LEVEL = 12


def deflated(content: bytes) -> bytes:
    """Compresses by "deflate", without a frame."""
    if deflate:
        return bytes(deflate.deflate_compress(content, LEVEL))
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(content) + compressor.flush()


class Wheel:
    """An archive in progress, and the record of its files. The module zipfile can write no other streams than those of zlib."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._directory: list[bytes] = []
        self._record: list[str] = []

    def add(self, name: str, content: bytes, mode: int = 0o644) -> None:
        """Adds a file."""
        self._write(name, content, mode)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self._record.append(f"{name},sha256={digest},{len(content)}")

    def close(self, folder: str) -> None:
        """Adds the record, and ends the archive."""
        record = f"{folder}/RECORD"
        self._record.append(f"{record},,")
        self._write(record, ("\n".join(self._record) + "\n").encode(), 0o644)
        begin, directory = self._file.tell(), b"".join(self._directory)
        count = len(self._directory)
        end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(directory), begin, 0)
        self._file.write(directory + end)
        self._file.close()

    def _write(self, name: str, content: bytes, mode: int) -> None:
        path, packed, at = name.encode("ascii"), deflated(content), self._file.tell()
        common = struct.pack("<5H3L2H", VERSION, 0, DEFLATED, TIME, DATE, zlib.crc32(content), len(packed), len(content), len(path), 0)
        self._file.write(b"PK\3\4" + common + path + packed)
        made_by, attributes = UNIX << 8 | VERSION, (0o100000 | mode) << 16
        self._directory.append(
            struct.pack("<4sH", b"PK\1\2", made_by) + common + struct.pack("<3H2L", 0, 0, 0, attributes, at) + path)


def metadata(project: dict, version: str, licences: list[str]) -> str:
    """Returns the metadata of the distribution, version 2.4."""
    lines = ["Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {version}",
             f"Summary: {project['description']}", f"License-Expression: {project['license']}"]
    lines += [f"License-File: {name}" for name in licences]
    lines += [f"Requires-Python: {project['requires-python']}"]
    lines += [f"Classifier: {classifier}" for classifier in project["classifiers"]]
    lines += [f"Requires-Dist: {needed}" for needed in project["dependencies"]]
    for extra, needed in project["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}", *(f"Requires-Dist: {one}; extra == '{extra}'" for one in needed)]
    lines += ["Description-Content-Type: text/markdown", "", (ROOT / "python" / project["readme"]).read_text()]
    return "\n".join(lines)


def without_symbols(path: Path, is_stripped: bool) -> bytes:
    """Returns a program's bytes without its symbols."""
    if is_stripped:
        return path.read_bytes()
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run(["strip", "-o", file.name, path], check=True)
        return Path(file.name).read_bytes()


def sources() -> list[Path]:
    """Returns the files of the package, in the order of their names."""
    files = (path for path in PACKAGE.rglob("*") if path.is_file())
    return sorted(path for path in files if path.suffix in {".py", ".pyi", ".typed"} or path.name == "py.typed")


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    parser = argparse.ArgumentParser(description="Makes the wheel of the Python package.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tag", default="cp311-abi3", help="tags of interpreter and interface")
    parser.add_argument("--platform", default=machine, help="tag of the platform")
    parser.add_argument("--modules", type=Path, help="folder of the libraries that the interpreter loads")
    parser.add_argument("--add", type=Path, action="append", default=[], help="a licence or bill of materials to carry")
    return parser.parse_args()


def main() -> None:
    """Writes the wheel, and prints its path."""
    given = arguments()
    target = os.environ.get("SUBLET_TARGET", "")
    built = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / target / os.environ.get("SUBLET_PROFILE", "release")
    project = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    name = f"{project['name']}-{version}"
    information = f"{name}.dist-info"
    given.folder.mkdir(parents=True, exist_ok=True)
    path = given.folder / f"{name}-{given.tag}-{given.platform}.whl"
    unfinished = path.with_suffix(".new")
    wheel = Wheel(unfinished)
    for source in sources():
        wheel.add(f"sublet/{source.relative_to(PACKAGE)}", source.read_bytes())
    suffix = SUFFIXES.get(given.tag, ".so")
    wheel.add(f"sublet/_native{suffix}", without_symbols((given.modules or built) / MODULE, bool(target)), 0o755)
    for program in PROGRAMS:
        folder = given.modules if given.modules and program in MODULES else built
        wheel.add(f"sublet/_programs/{program}", without_symbols(folder / program, bool(target)), 0o755)
    licences = [ROOT / "LICENSE", *(file for file in given.add if file.name.startswith("LICENSE"))]
    for licence in licences:
        wheel.add(f"{information}/licenses/{licence.name}", licence.read_bytes())
    for bill in (file for file in given.add if file not in licences):
        wheel.add(f"{information}/sboms/{bill.name}", bill.read_bytes())
    wheel.add(f"{information}/METADATA", metadata(project, version, [file.name for file in licences]).encode())
    facts = f"Wheel-Version: 1.0\nGenerator: sublet\nRoot-Is-Purelib: false\nTag: {given.tag}-{given.platform}\n"
    wheel.add(f"{information}/WHEEL", facts.encode())
    scripts = "".join(f"{script} = {entry}\n" for script, entry in project["scripts"].items())
    wheel.add(f"{information}/entry_points.txt", f"[console_scripts]\n{scripts}".encode())
    wheel.close(information)
    shutil.move(unfinished, path)
    print(path)


if __name__ == "__main__":
    main()
