"""What a lease of functions in Python brings along: the caller's own modules, by their content."""

import importlib.util
import os
import site
import sys
import sysconfig
import tempfile
from pathlib import Path

from . import _errors

# What a package may have, in bytes: a larger one is a mistake, or belongs into the environment of the nodes.
MOST_BYTES = 64 << 20
# What no function needs, of modules and of the folders that they are.
LEFT_OUT = {"sitecustomize", "usercustomize", "__pycache__", ".git", ".hg", ".venv", "node_modules", ".mypy_cache", ".pytest_cache", ".tox"}
# Modules that are used only if the worker's interpreter has none of the name.
FALLBACK = "fallback"
MAIN = "sublet_main.py"


def named(package):
    """A package as the library takes it: a name, or a path, which has a slash in it."""
    if isinstance(package, os.PathLike):
        return os.path.join(".", os.fspath(package))
    return package


def version():
    return "%d.%d" % sys.version_info[:2]


def _foreign_folders():
    """Where modules are that belong to an environment, and not to the caller."""
    paths = [sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += site.getsitepackages() if hasattr(site, "getsitepackages") else []
    paths.append(site.getusersitepackages())
    paths.append(str(Path(__file__).resolve().parent))
    return tuple({os.path.realpath(path) + os.sep for path in paths})


def own_modules():
    """The files and folders of the modules that the caller has imported and that no environment has, by their names."""
    foreign = _foreign_folders()
    found = {}
    for name, module in list(sys.modules.items()):
        top = name.partition(".")[0]
        origin = getattr(module, "__file__", None)
        if top in found or top in LEFT_OUT or module is sys.modules["__main__"] or not origin or not origin.endswith(".py"):
            continue
        package = sys.modules.get(top)
        origin = getattr(package, "__file__", None)
        if origin is None:
            folders = list(getattr(package, "__path__", []))
            if len(folders) != 1:
                continue
            path = folders[0]
        else:
            path = os.path.dirname(origin) if hasattr(package, "__path__") else origin
        real = os.path.realpath(path)
        if real.startswith(foreign) or (real + os.sep).startswith(foreign) or "<" in path:
            continue
        found[top] = Path(real)
    return found


def _modules_of(paths):
    """Each path as it is to stand in the package: a file or folder by its own name. One may stand for itself."""
    paths = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    return {Path(path).name: Path(path).resolve() for path in paths}


def write(folder, imports, modules):
    """Writes a package whose functions are those of these modules and whatever is sent."""
    folder = Path(folder)
    left = MOST_BYTES
    for name, path in modules.items():
        target = folder / (path.name if path.is_file() else name)
        left = _copy(path, target, left)
    cloudpickle = importlib.util.find_spec("cloudpickle")
    _copy(Path(cloudpickle.origin).parent, folder / FALLBACK / "cloudpickle", left)
    (folder / MAIN).write_text("")
    listed = ", ".join(f'"{name}"' for name in imports)
    manifest = f'name = "python"\nkind = "python"\nlibrary = "{MAIN}"\n\n[python]\nversion = "{version()}"\nimports = [{listed}]\n'
    (folder / "sublet.toml").write_text(manifest)


def _copy(source, target, left):
    if not source.exists():
        raise _errors.InvalidArgument(f"there is no file or folder {source} to send to workers")
    if source.is_dir():
        for entry in sorted(source.iterdir()):
            if entry.name not in LEFT_OUT and not entry.is_symlink() and (entry.is_dir() or entry.is_file()):
                left = _copy(entry, target / entry.name, left)
        return left
    if source.suffix == ".pyc":
        return left
    content = source.read_bytes()
    if len(content) > left:
        message = (
            f"the modules that are sent to workers have more than {MOST_BYTES} bytes, the last of them {source}: "
            "say which are needed by lease(path=[...])"
        )
        raise _errors.InvalidArgument(message)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return left - len(content)


def deployable(imports, path):
    """A folder with the package, as a context manager."""
    imports = [imports] if isinstance(imports, str) else list(imports)
    for name in imports:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise _errors.InvalidArgument(f"{name!r} in imports is no module's name")
    modules = own_modules() if path is None else _modules_of(path)
    temporary = tempfile.TemporaryDirectory(prefix="sublet-package-")
    try:
        write(temporary.name, imports, modules)
    except BaseException:
        temporary.cleanup()
        raise
    return temporary
