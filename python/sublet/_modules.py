"""The modules that are sent to workers: those of the caller's that no environment has, by their content.

A module that cannot be sent (too large, deleted, in no file) is left out: only a function that imports it fails, and its
`ModuleNotFoundError` says why. A single file that cannot be sent is left out of its module with a warning.
"""

import os
import re
import shutil
import site
import stat
import sys
import sysconfig
import warnings
import zipfile
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES, BuiltinImporter, FrozenImporter
from pathlib import Path

from . import _errors, _foreign

# Most bytes of the modules in a package: a larger one belongs into the environment of the nodes.
MOST_BYTES = 64 << 20
# Most files of a package, without those that each package has.
MOST_FILES = 4096 - 64
# Most folders within each other.
MOST_DEPTH = 24
# Longest path of a file in a package, in bytes.
MOST_PATH_BYTES = 1000
# Characters that no path in a package may have: backslashes, control characters, and characters that change the direction of text.
_REFUSED = re.compile(r"[\\\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# Modules and folders that no function needs.
UNNEEDED = {"sitecustomize", "usercustomize", "__pycache__", ".git", ".hg", ".venv", "node_modules", ".mypy_cache", ".pytest_cache", ".tox"}
# Files that Python imports.
_SUFFIXES = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES, *BYTECODE_SUFFIXES)
# Modules that are always there.
_ALWAYS = frozenset(("__main__", "__mp_main__", *sys.builtin_module_names))


class Unsendable(Exception):
    """A module that cannot be sent, with the reason."""


class Selection:
    """Files for a package, by their paths there, and the modules that are left out, each with the reason."""

    def __init__(self):
        self.files = {}
        self.left_out = {}
        self.bytes = 0

    def add(self, tree):
        """Adds all files of a tree, or none if there is no space for them."""
        if self.bytes + tree.bytes > MOST_BYTES:
            raise Unsendable(f"the modules that are sent to workers would have more than {MOST_BYTES} bytes, the last of them {tree.root}")
        if len(self.files) + len(tree.files) > MOST_FILES:
            raise Unsendable(f"the modules that are sent to workers would have more than {MOST_FILES} files, the last of them in {tree.root}")
        self.files.update(tree.files)
        self.bytes += tree.bytes

    def write(self, folder):
        """Writes the files into a folder."""
        for path, file in self.files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            file.write(target)


class _File:
    """A file of this machine."""

    def __init__(self, path):
        self.path = path
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is not a regular file")
        if not os.access(path, os.R_OK):
            raise OSError("it cannot be read")
        self.bytes = found.st_size

        self.is_executable = bool(found.st_mode & 0o111)

    def write(self, target):
        shutil.copyfile(self.path, target)
        if self.is_executable:
            os.chmod(target, 0o755)


class _Zipped:
    """A file in a zip archive."""

    def __init__(self, archive, info):
        self.archive = archive
        self.name = info.filename
        self.path = f"{archive}/{info.filename}"
        self.bytes = info.file_size

    def write(self, target):
        with zipfile.ZipFile(self.archive) as opened:
            target.write_bytes(opened.read(self.name))


class _Tree:
    """The files of one module."""

    def __init__(self, root, imported=frozenset()):
        self.root = root
        self.files = {}
        self.bytes = 0
        self.skipped = []
        self._imported = imported

    def add(self, place, file):
        """Adds a file; the first of two that have one place stays, as with folders in which Python looks one after the other."""
        why = _bad_path(place)
        if why is not None:
            return self.skip(file.path, why)
        if place not in self.files:
            self.files[place] = file
            self.bytes += file.bytes
        if self.bytes > MOST_BYTES:
            raise Unsendable(f"it has more than {MOST_BYTES} bytes, the last of them in {self.root}")
        if len(self.files) > MOST_FILES:
            raise Unsendable(f"it has more than {MOST_FILES} files, in {self.root}")

    def skip(self, path, why):
        self.skipped.append(f"{path!s}: {why}")

    def add_path(self, path, place):
        """Adds a file, or the files of a folder that functions may need."""
        if os.path.isdir(path):
            self._add_folder(path, place, os.path.realpath(path), ())
        else:
            self._add_file(path, place)

    def _add_file(self, path, place):
        try:
            self.add(place, _File(path))
        except OSError as error:
            self.skip(path, error.strerror or str(error))

    def _add_folder(self, path, place, root, above):
        real = os.path.realpath(path)
        if len(above) > MOST_DEPTH:
            return self.skip(path, f"it is more than {MOST_DEPTH} folders deep")
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        except OSError as error:
            return self.skip(path, error.strerror)
        names = {entry.name for entry in entries}
        for entry in entries:
            if entry.name in UNNEEDED or _has_source(entry.name, names):
                continue
            if entry.is_symlink() and not self._is_followed(entry, root, (*above, real)):
                continue
            there = f"{place}/{entry.name}"
            if entry.is_dir():
                self._add_folder(entry.path, there, root, (*above, real))
            elif entry.is_file():
                self._add_file(entry.path, there)

    def _is_followed(self, link, root, above):
        """Whether a link leads to something within the module, or to something that Python imports."""
        target = os.path.realpath(link.path)
        if target in above or not os.path.exists(target):
            # A ring, or nothing.
            return False
        if (target + os.sep).startswith(root + os.sep) or (link.is_file() and link.name.endswith(_SUFFIXES)):
            return True
        if any(path.startswith(link.path + os.sep) for path in self._imported):
            return True
        self.skip(link.path, f"it is a link that leads out of {root}")
        return False

    def add_zipped(self, path, place):
        """Adds a file or folder of an archive, whose path has the archive's at its beginning."""
        archive, inner = _archive_of(path)
        with zipfile.ZipFile(archive) as opened:
            for info in opened.infolist():
                below = info.filename[len(inner) :]
                is_needed = UNNEEDED.isdisjoint(below.split("/")) and not info.is_dir()
                if is_needed and info.filename.startswith(inner) and (not below or below[0] == "/"):
                    self.add(place + below, _Zipped(archive, info))

    def warn(self):
        """Says which files are left out."""
        if self.skipped:
            more = f", and {len(self.skipped) - 3} more" if len(self.skipped) > 3 else ""
            warnings.warn(f"not sent to workers: {_foreign.escaped('; '.join(self.skipped[:3]))}{more}", stacklevel=2)


def _has_source(name, names):
    """Whether a file of bytecode is only a copy of a source beside it."""
    return name.endswith(".pyc") and name[:-1] in names


def _bad_path(place):
    """Returns the reason why a package cannot have such a path; None if it can."""
    try:
        encoded = place.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if len(encoded) > MOST_PATH_BYTES:
        return f"its path in a package would have more than {MOST_PATH_BYTES} bytes"
    if _REFUSED.search(place):
        return "its name has a backslash, a control character or one that changes the direction of text"
    return None


def _archive_of(path):
    """The zip archive that a path leads into, and the path in it; None if it leads into none."""
    archive, inner = os.path.dirname(path), os.path.basename(path)
    while archive and archive != os.path.dirname(archive):
        if os.path.isfile(archive):
            return (archive, inner) if zipfile.is_zipfile(archive) else None
        archive, inner = os.path.dirname(archive), f"{os.path.basename(archive)}/{inner}"
    return None


def selected(paths, visible=()):
    """The files of those paths, each a module or folder of modules; without paths, of the caller's own modules that are not in the visible
    folders."""
    return _own(visible) if paths is None else _said(paths)


def _said(paths):
    selection = Selection()
    for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
        path = Path(path).absolute()
        if not path.exists():
            raise _errors.InvalidArgument(f"there is no file or folder {path} to send to workers")
        tree = _Tree(path)
        try:
            tree.add_path(os.path.realpath(path), path.resolve().name if path.name == ".." else path.name)
            selection.add(tree)
        except Unsendable as error:
            raise _errors.InvalidArgument(f"{error}: say which are needed by lease(path=[...])") from None
        tree.warn()
    return selection


def _own(visible):
    """The modules that the caller has imported, and that neither an environment nor a visible folder has.

    The smallest are sent first, so that one that is too large takes the place of no other.
    """
    selection, trees = Selection(), {}
    environment, imported = _environment_folders(), _imported_paths()
    environment += tuple(os.path.realpath(path) + os.sep for path in visible)
    for name in sorted({name.partition(".")[0] for name in list(sys.modules)}):
        module = sys.modules.get(name)
        if module is None or name in UNNEEDED or name in _ALWAYS or module is sys.modules["__main__"]:
            continue
        try:
            tree = _tree_of(name, module, environment, imported)
            if tree is not None:
                trees[name] = tree
        except Unsendable as error:
            selection.left_out[name] = str(error)
    for name, tree in sorted(trees.items(), key=lambda item: item[1].bytes):
        try:
            selection.add(tree)
            tree.warn()
        except Unsendable as error:
            selection.left_out[name] = str(error)
    return selection


def _environment_folders():
    """Returns the folders of modules that belong to an environment, and not to the caller."""
    paths = [sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += site.getsitepackages() if hasattr(site, "getsitepackages") else []
    paths.append(str(Path(__file__).resolve().parent))
    return tuple({os.path.realpath(path) + os.sep for path in paths})


def _imported_paths():
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return frozenset(file for file in files if isinstance(file, str))


def _tree_of(name, module, environment, imported):
    """The files of a module; None of one that environments have."""
    file, folders = getattr(module, "__file__", None), _folders_of(module)
    if not folders and not isinstance(file, str):
        loader = getattr(getattr(module, "__spec__", None), "loader", None)
        if loader in (BuiltinImporter, FrozenImporter):
            return None
        raise Unsendable("the program has made it, and it is in no file")
    paths = [path for path in folders or [file] if not _is_within(path, environment)]
    if not paths:
        return None
    if _is_within(paths[0], (os.path.realpath(site.getusersitepackages()) + os.sep,)):
        raise Unsendable(f"it is of this user only, in {paths[0]}")
    tree = _Tree(paths[0], imported)
    for path in paths:
        # A package, with or without `__init__`, is added as a folder, and any other module as a file.
        place = name if folders else os.path.basename(path)
        if os.path.exists(path):
            tree.add_path(os.path.realpath(path), place)
        elif _archive_of(path) is not None:
            tree.add_zipped(path, place)
        else:
            raise Unsendable(f"there is no {path}, or not any more")
        if folders and os.path.isdir(f"{path}.libs"):
            # Shared objects of a wheel, which its extensions load.
            tree.add_path(f"{path}.libs", f"{name}.libs")
    return tree


def _folders_of(module):
    try:
        return [path for path in module.__path__ if isinstance(path, str)]
    except (AttributeError, TypeError):
        return []


def _is_within(path, folders):
    real = os.path.realpath(path)
    return (real + os.sep).startswith(folders) or real.startswith(folders)
