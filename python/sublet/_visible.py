"""The folders of this program's modules that functions of its own platform see as they are: see `sublet.local`."""

import os
import stat
import sys
import sysconfig
import tempfile

# Most files and folders that are looked at in a folder, to find whether other users can read all of it.
MOST_ENTRIES = 50_000


def search_path():
    """Returns the paths where this program looks for modules, as far as functions may see them.

    Folders that hold more than modules are left out: the root, home folders and what contains them, and the folder of temporary files. If
    functions are executed as other users, so are folders with files that only this user can read. The last paths are those of packages in
    editable installations, which finders of their own look for.
    """
    paths = [os.path.realpath(path or os.getcwd()) for path in sys.path]
    paths += [path for path in _editable() if path not in paths]
    broad = _broad()
    installed = {os.path.realpath(path) for path in sysconfig.get_paths().values()}
    are_others = os.geteuid() == 0

    def may_be_seen(path):
        return path not in broad and ":" not in path and (not are_others or path in installed or _is_open(path))

    return [path for path in dict.fromkeys(paths) if may_be_seen(path)]


def _broad():
    """Folders that hold more than modules."""
    inner = [os.path.expanduser("~"), tempfile.gettempdir(), sys.prefix, sys.base_prefix]
    found = {"/", "/home", "/tmp", "/var/tmp", "/usr", "/etc"}
    for path in map(os.path.realpath, inner):
        while path not in found:
            found.add(path)
            path = os.path.dirname(path)
    return found


def _editable():
    """Folders of packages that finders of setuptools' editable installations map to their sources."""
    for finder in sys.meta_path:
        module = sys.modules.get(getattr(finder, "__module__", None) or "")
        mapping = getattr(module, "MAPPING", None)
        if module is not None and module.__name__.startswith("__editable__") and isinstance(mapping, dict):
            yield from (os.path.dirname(os.path.realpath(path)) for path in mapping.values() if isinstance(path, str))


def _is_open(path):
    """Whether other users can read a file, or all that is in a folder, which has not too many entries."""
    left, waiting = MOST_ENTRIES, [path]
    try:
        if not _can_read(os.stat(path)):
            return False
        while waiting:
            path = waiting.pop()
            if not os.path.isdir(path):
                continue
            with os.scandir(path) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        return False
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode):
                        if not _can_read(found):
                            return False
                        if stat.S_ISDIR(found.st_mode):
                            waiting.append(entry.path)
    except FileNotFoundError:
        # There is nothing to see. Python, too, looks for modules at paths that do not exist.
        return True
    except OSError:
        return False
    return True


def _can_read(found):
    needed = 0o005 if stat.S_ISDIR(found.st_mode) else 0o004
    return found.st_mode & needed == needed
