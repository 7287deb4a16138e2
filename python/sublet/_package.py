"""What a lease of functions in Python brings along: the caller's own modules, by their content."""

import importlib.util
import keyword
import math
import os
import re
import site
import sys
import sysconfig
import tempfile
import types
from pathlib import Path
from typing import NamedTuple

from . import _errors
from .components import pickled

# What a package may have, in bytes: a larger one is a mistake, or belongs into the environment of the nodes.
MOST_BYTES = 64 << 20
# What no function needs, of modules and of the folders that they are.
LEFT_OUT = {"sitecustomize", "usercustomize", "__pycache__", ".git", ".hg", ".venv", "node_modules", ".mypy_cache", ".pytest_cache", ".tox"}
# Modules that are used only if the worker's interpreter has none of the name.
FALLBACK = "fallback"
MAIN = "sublet_main.py"
# Of a package for graphs: the module of its functions, and the one of values that they name and no module has.
COMPONENTS = "sublet_components.py"
VALUES = "sublet_values"
VALUES_SOURCE = f'''"""Values that the components name: from {VALUES}.pickle."""

import pathlib
import pickle

globals().update(pickle.loads(pathlib.Path(__file__).with_suffix(".pickle").read_bytes()))
'''
# What of this package goes along, and how it is called there.
INSIDE = {
    "_inside.py": "__init__.py",
    **{name: name for name in ("_chain.py", "_channel.py", "_errors.py", "_shapes.py", "_split.py", "components.py", "xpu.py")},
}


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
    _write_modules(Path(folder), modules)
    (Path(folder) / MAIN).write_text("")
    _write_manifest(Path(folder), "python", MAIN, imports, ())


def write_components(folder, name, imports, modules, functions):
    """Writes a package whose functions, of the module `COMPONENTS`, components of graphs execute; that is written by others."""
    folder = Path(folder)
    _write_modules(folder, modules)
    write_functions(folder, name, imports, functions)


def identifier(name, taken):
    """A component's name as a function's, which no other has."""
    made = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if made[:1].isdigit() or keyword.iskeyword(made):
        made = f"component_{made}"
    while made in taken:
        made += "_"
    return made


def write_functions(folder, name, imports, functions):
    """Writes which functions such a package offers."""
    _write_manifest(Path(folder), name, COMPONENTS, imports, functions)


def write_values(folder, values):
    """Writes values that are known by no name, for the module `VALUES` to have them."""
    if values:
        (Path(folder) / f"{VALUES}.pickle").write_bytes(pickled(values))
        (Path(folder) / f"{VALUES}.py").write_text(VALUES_SOURCE)


class Named(NamedTuple):
    """How a module comes to names that another one has."""

    imports: list
    constants: list
    #: Those that only `VALUES` can have.
    values: dict

    def lines(self, more=()):
        """What stands at the module's beginning."""
        imports = sorted([*self.imports, *more], key=lambda line: (line.startswith("from"), line))
        return [*imports, "", *self.constants] if self.constants else imports


def globals_of(names, value_of):
    """Of these names; one that has no value is a builtin, or nothing, as where it stands now."""
    found = Named([], [], {})
    for name in names:
        try:
            value = value_of(name)
        except KeyError:
            continue
        imported = _import_of(name, value)
        if imported is not None:
            found.imports.append(imported)
        elif _is_short(value):
            found.constants.append(f"{name} = {value!r}")
        else:
            found.values[name] = value
    if found.values:
        found.imports.append(f"from {VALUES} import {', '.join(sorted(found.values))}")
    return found


def _import_of(name, value):
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__}" if value.__name__ == name else f"import {value.__name__} as {name}"
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(path, str) and path.isidentifier() and module != "__main__":
        if getattr(sys.modules.get(module), path, None) is value:
            return f"from {module} import {path}" + ("" if path == name else f" as {name}")
    return None


def _is_short(value):
    """Whether a constant can be written out."""
    if type(value) in (str, bytes):
        return len(value) <= 1000
    return type(value) in (type(None), bool, int) or (type(value) is float and math.isfinite(value))


def _write_modules(folder, modules):
    left = MOST_BYTES
    for name, path in modules.items():
        target = folder / (path.name if path.is_file() else name)
        left = _copy(path, target, left)
    cloudpickle = importlib.util.find_spec("cloudpickle")
    _copy(Path(cloudpickle.origin).parent, folder / FALLBACK / "cloudpickle", left)
    here = Path(__file__).resolve().parent
    for inside, there in INSIDE.items():
        _copy(here / inside, folder / FALLBACK / "sublet" / there, MOST_BYTES)


def _write_manifest(folder, name, library, imports, functions):
    listed = ", ".join(f'"{module}"' for module in imports)
    offered = "".join(f'[[function]]\nname = "{function}"\n\n' for function in functions)
    head = f'name = "{name}"\nkind = "python"\nlibrary = "{library}"\n\n'
    (folder / "sublet.toml").write_text(f'{head}{offered}[python]\nversion = "{version()}"\nimports = [{listed}]\n')


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


def checked_imports(imports):
    imports = [imports] if isinstance(imports, str) else list(imports)
    for name in imports:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise _errors.InvalidArgument(f"{name!r} in imports is no module's name")
    return imports


def modules_of(path):
    """The modules that are sent: those that were said, or the caller's own."""
    return own_modules() if path is None else _modules_of(path)


def deployable(imports, path):
    """A folder with the package, as a context manager."""
    imports, modules = checked_imports(imports), modules_of(path)
    temporary = tempfile.TemporaryDirectory(prefix="sublet-package-")
    try:
        write(temporary.name, imports, modules)
    except BaseException:
        temporary.cleanup()
        raise
    return temporary
