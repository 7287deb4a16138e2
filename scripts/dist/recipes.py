"""Fills in and checks the recipes of package managers: recipes.py FOLDER VERSION, where FOLDER has the archives.

`sublet-VERSION.tgz` is the Helm chart, `sublet-VERSION.conda.yaml` the recipe for conda, `sublet-VERSION.spack.py` that for Spack.

The chart is linted by Helm's own library and rendered with several sets of values, and each object is compared with the
schemas of Kubernetes. The recipe for conda is rendered by rattler-build, and written only if the archives of both targets are
there, whose digests it has. That for Spack is only parsed.
"""

import ast
import hashlib
import sys
from pathlib import Path

import helm_python
import kubernetes_validate
import yaml
from rattler_build import PlatformConfig, RenderConfig, Stage0Recipe

PACKAGING = Path("packaging")
CHART = PACKAGING / "helm/sublet"
KUBERNETES = "1.30"
# Severity of a warning in Helm's reports.
WARNING = 2
ARCHIVES = {"@X86_64_SHA256@": "x86_64-unknown-linux-gnu", "@AARCH64_SHA256@": "aarch64-unknown-linux-gnu"}

# Sets of values, each with the kinds of objects that the chart then has.
MANAGERS = {"Service", "StatefulSet"}
AGENTS = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet"}
NATS = {"replicas": 3, "store": {"kind": "nats", "urlSecret": "nats"}}
VALUES = [({}, MANAGERS), ({"agent": {"enabled": True}}, MANAGERS | AGENTS),
          ({"agent": {"enabled": True}, "manager": NATS}, MANAGERS | AGENTS)]
# Values that the chart must refuse.
REFUSED = [{"manager": {"replicas": 2}}, {"manager": {"store": {"kind": "nats"}}}]


def stop(message: str) -> None:
    """Ends with a message."""
    sys.exit(f"recipes.py: {message}")


def objects(values: dict) -> list[dict]:
    """Renders the chart, and returns its objects."""
    rendered = helm_python.Chart.load(CHART).render(values, name="sublet", namespace="leases")
    texts = (text for path, text in rendered.items() if path.endswith(".yaml"))
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


def check_chart() -> None:
    """Lints the chart, and checks the objects of each set of values."""
    report = helm_python.lint(CHART, strict=True)
    wrong = [one["error"] for one in report["messages"] if one["severity"] >= WARNING]
    if wrong or report["errors"]:
        stop(f"the chart is not clean: {wrong} {report['errors']}")
    for values, kinds in VALUES:
        found = objects(values)
        if {one["kind"] for one in found} != kinds:
            stop(f"with {values} the chart has {sorted(one['kind'] for one in found)}, not {sorted(kinds)}")
        for one in found:
            kubernetes_validate.validate(one, KUBERNETES, strict=True)
    for values in REFUSED:
        try:
            objects(values)
        except helm_python.HelmError:
            continue
        stop(f"the chart accepts {values}")
    program = next(one["data"]["lend.py"] for one in objects(VALUES[1][0]) if one["kind"] == "ConfigMap")
    if ast.dump(ast.parse(program)) != ast.dump(ast.parse((CHART / "files/lend.py").read_text())):
        stop("the program of the agent is not what files/lend.py has")


def fill(source: Path, folder: Path, version: str) -> str:
    """Returns a recipe with the version, and the digests of the archives that have been made."""
    text = source.read_text().replace("@VERSION@", version)
    for mark, triple in ARCHIVES.items():
        archive = folder / f"sublet-{version}-{triple}.tar.xz"
        if mark in text and archive.exists():
            text = text.replace(mark, hashlib.sha256(archive.read_bytes()).hexdigest())
    return text


def check_conda(recipe: str, version: str) -> None:
    """Renders the recipe for each platform, and checks what it builds."""
    for platform in ("linux-64", "linux-aarch64"):
        config = RenderConfig(PlatformConfig(target_platform=platform))
        variants = Stage0Recipe.from_yaml(recipe).render(render_config=config)
        packages = [variant.recipe.package for variant in variants]
        if [(package.name, str(package.version)) for package in packages] != [("sublet", version)]:
            stop(f"for {platform} the recipe for conda makes {packages}")


def main() -> None:
    """Writes and checks all recipes."""
    if len(sys.argv) != 3:
        stop("usage: recipes.py FOLDER VERSION")
    folder, version = Path(sys.argv[1]), sys.argv[2]
    check_chart()
    helm_python.package(CHART, destination=folder, version=version, app_version=version)
    conda = fill(PACKAGING / "conda/recipe.yaml", folder, version)
    missing = [mark for mark in ARCHIVES if mark in conda]
    for mark in missing:
        conda = conda.replace(mark, "0" * 64)
    check_conda(conda, version)
    path = folder / f"sublet-{version}.conda.yaml"
    path.unlink(missing_ok=True)
    if not missing:
        path.write_text(conda)
    spack = fill(PACKAGING / "spack/package.py", folder, version)
    ast.parse(spack)
    (folder / f"sublet-{version}.spack.py").write_text(spack)
    for mark in missing:
        print(f"there is no recipe for conda: the archive for {ARCHIVES[mark]} is missing")


if __name__ == "__main__":
    main()
