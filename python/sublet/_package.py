"""Packs what a lease of functions in Python needs: the caller's own modules, by their content."""

import importlib.util
import json
import keyword
import math
import os
import re
import shutil
import sys
import tempfile
import types
from pathlib import Path
from typing import NamedTuple

from . import _errors, _modules, _native
from ._bundle import pickled

# Modules that are used only if the worker's interpreter has none of the name.
FALLBACK = "fallback"
# The modules of the caller that are left out, each with the reason.
LEFT_OUT = "sublet_left_out.json"
MAIN = "sublet_main.py"
# Modules of a package for graphs: its functions, and the values that these name and no other module has.
COMPONENTS = "sublet_components.py"
VALUES = "sublet_values"
VALUES_SOURCE = f'''"""Values that the components name: from {VALUES}.pickle."""

import pathlib
import pickle

globals().update(pickle.loads(pathlib.Path(__file__).with_suffix(".pickle").read_bytes()))
'''
# Files of this package that are sent along, with their names there.
INSIDE = {
    "_inside.py": "__init__.py",
    **{name: name for name in ("_chain.py", "_channel.py", "_classes.py", "_errors.py", "_rebuild.py", "_shapes.py", "_split.py")},
    "xpu.py": "xpu.py",
}
# Further files for the components of an application.
OF_COMPONENTS = ("_bundle.py", "_frame_stage.py", "_frame_tree.py", "_leaving.py", "_regions.py", "_sizes.py", "components.py")


def named(package):
    """A package as the library takes it: an address, or a path, which begins with a dot or a slash."""
    if isinstance(package, os.PathLike):
        return os.path.join(".", os.fspath(package))
    return package


def is_path(package):
    """Whether a package is given by its path, and so is this program's own: a name may be another tenant's."""
    return isinstance(package, os.PathLike) or _native.is_path(package)


def version():
    return "%d.%d" % sys.version_info[:2]


def write(folder, imports, modules, environment=None, image=None):
    """Writes a package whose functions are those of these modules and whatever is sent, in an environment or image, if one is named."""
    _write_modules(Path(folder), modules)
    (Path(folder) / MAIN).write_text("")
    _write_manifest(Path(folder), "python", MAIN, imports, (), environment, image)


def write_components(folder, name, imports, modules, functions):
    """Writes a package whose functions, of the module `COMPONENTS`, components of graphs execute; that is written by others."""
    folder = Path(folder)
    _write_modules(folder, modules)
    here = Path(__file__).resolve().parent
    for file in (*(here / name for name in OF_COMPONENTS), *(here / "_remote").glob("*.py")):
        _copy(file, folder / FALLBACK / "sublet" / file.relative_to(here))
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
    """Lines that give a module the names that another module has."""

    imports: list
    constants: list
    #: Values that only the module `VALUES` can have.
    values: dict

    def lines(self, more=()):
        """Returns the lines for the beginning of the module."""
        imports = sorted([*self.imports, *more], key=lambda line: (line.startswith("from"), line))
        return [*imports, "", *self.constants] if self.constants else imports


def globals_of(names, value_of):
    """Returns how a module gets these globals.

    A name without a value is a builtin, or undefined as in the original module.
    """
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
    modules.write(folder)
    if modules.left_out:
        (folder / LEFT_OUT).write_text(json.dumps(modules.left_out))
    cloudpickle = Path(importlib.util.find_spec("cloudpickle").origin).parent
    here = Path(__file__).resolve().parent
    always = {f"cloudpickle/{file.name}": file for file in cloudpickle.glob("*.py")}
    always.update((f"sublet/{there}", here / inside) for inside, there in INSIDE.items())
    for place, file in always.items():
        _copy(file, folder / FALLBACK / place)


def _copy(file, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)


def _write_manifest(folder, name, library, imports, functions, environment=None, image=None):
    listed = ", ".join(f'"{module}"' for module in imports)
    offered = "".join(f'[[function]]\nname = "{function}"\n\n' for function in functions)
    inside = "" if image is None else f'image = "{image}"\n'
    head = f'name = "{name}"\nkind = "python"\nlibrary = "{library}"\n{inside}\n'
    named = "" if environment is None else f'environment = "{environment}"\n'
    (folder / "sublet.toml").write_text(f'{head}{offered}[python]\nversion = "{version()}"\nimports = [{listed}]\n{named}')


def checked_imports(imports):
    imports = [imports] if isinstance(imports, str) else list(imports)
    for name in imports:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise _errors.InvalidArgument(f"{name!r} in imports is no module's name")
    return imports


def deployable(imports, path, environment=None, visible=(), image=None):
    """A folder with the package, as a context manager. It has no modules in folders that functions see anyway."""
    imports, modules = checked_imports(imports), _modules.selected(path, visible)
    temporary = tempfile.TemporaryDirectory(prefix="sublet-package-")
    try:
        write(temporary.name, imports, modules, environment, image)
    except BaseException:
        temporary.cleanup()
        raise
    return temporary
