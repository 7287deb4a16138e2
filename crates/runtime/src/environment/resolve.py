"""Finds the wheels of an environment: those of requirements, or of a lock file, for the Python and the platform of the nodes.

Standard input has a request in JSON, as `Request` in `resolve.rs` writes it. Standard output has a line of JSON for each step, and a last one
with the wheels, or with the reason why there are none. The wheels are in a cache folder, which keeps resolutions, too.

Requirements are resolved by uv or, where there is none, by pip. Only wheels are used, and no code of a distribution is executed: what
would have to be built is refused. It uses the standard library only, of every Python from 3.9 on.
"""

import concurrent.futures
import hashlib
import json
import netrc
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

# Time after which wheels and resolutions that were not used are removed from the cache, in seconds.
UNUSED = 30 * 24 * 3600
# Wheels that are downloaded at the same time.
AT_ONCE = 8
# Time limit for each step of a download, in seconds.
PATIENCE = 60
# Largest wheel, in bytes: as for packages.
LARGEST = 256 << 20
# Versions of glibc by which uv names platforms.
UV_GLIBC = (17, 28, *range(31, 41))
# Variables that change what uv and pip find.
VARIABLES = re.compile(r"(PIP|UV)_(DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|NO_INDEX|PRE|PRERELEASE|CONSTRAINT|OVERRIDE)$")
# pip in a process that starts no other: a distribution whose metadata would have to be built is refused.
PIP = """
import runpy, sys

# The events of the interpreter by which another program is started.
EVENTS = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}

# pip asks other programs for the name of the system, and takes this error for an answer.
def refuse(event, arguments):
    if event in EVENTS:
        raise PermissionError("something would have to be built or executed: only wheels are used")

sys.addaudithook(refuse)
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__")
"""


class Refused(Exception):
    """The reason why there is no environment, for the user."""


def tell(**message):
    print(json.dumps(message), flush=True)


# Tags.


class Target:
    """The Python and the platform for which wheels are chosen."""

    def __init__(self, request):
        self.python = request["python"]
        self.version = tuple(int(number) for number in self.python.split("."))
        self.architecture = request["architecture"]
        self.glibc = request["glibc"]
        self.tag = "cp%d%d" % self.version

    def __str__(self):
        return f"Python {self.python} on {self.architecture} with glibc 2.{self.glibc}"

    def platforms(self):
        """Tags of platforms, the most specific first."""
        legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
        found = []
        for minor in range(self.glibc, 4, -1):
            found.append(f"manylinux_2_{minor}_{self.architecture}")
            if minor in legacy:
                found.append(f"{legacy[minor]}_{self.architecture}")
        return [*found, f"linux_{self.architecture}"]

    def rank(self, name):
        """How well a wheel fits: the least is the best; None if it does not fit."""
        parts = name[: -len(".whl")].split("-") if name.endswith(".whl") else []
        if len(parts) not in (5, 6):
            return None
        build = parts[2] if len(parts) == 6 else ""
        platforms = [*self.platforms(), "any"]
        ranks = [
            (python, platforms.index(platform))
            for tag in parts[-3].split(".")
            for abi in parts[-2].split(".")
            for platform in parts[-1].split(".")
            for python in [self._rank_of_python(tag, abi)]
            if python is not None and platform in platforms
        ]
        number = int(re.match(r"\d*", build)[0] or 0)
        return (*min(ranks), -number) if ranks else None

    def _rank_of_python(self, tag, abi):
        matched = re.fullmatch(r"(cp|py)(\d)(\d*)", tag)
        if matched is None or int(matched[2]) != self.version[0]:
            return None
        minor = int(matched[3]) if matched[3] else None
        if abi == self.tag and tag == self.tag:
            return 0
        if abi == "abi3" and matched[1] == "cp" and minor is not None and minor <= self.version[1]:
            return 1 + self.version[1] - minor
        if abi == "none" and (minor is None or minor <= self.version[1]):
            return 100 - (minor or 0)
        return None


# Versions and markers, as lock files have them (PEP 440, PEP 508).


def version_key(text):
    matched = re.match(r"\s*v?(?:\d+!)?([\d.]+)", text)
    numbers = [int(number) for number in matched[1].split(".") if number] if matched else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def is_version(text):
    return re.fullmatch(r"\s*v?\d+(\.\d+)*(\.\*)?([a-z]+\d*)?\s*", text) is not None


def compare(left, operator, right):
    if operator in ("in", "not in"):
        found = left in right if isinstance(right, (list, tuple)) else left in re.split(r"[\s,|]+", right) or left in right
        return found == (operator == "in")
    if is_version(left) and is_version(right):
        if right.strip().endswith(".*"):
            prefix = [int(number) for number in right.strip()[:-2].split(".")]
            own = [int(number) for number in re.match(r"[\d.]+", left.strip())[0].split(".")]
            own += [0] * (len(prefix) - len(own))
            return (own[: len(prefix)] == prefix) == (operator == "==")
        a, b = version_key(left), version_key(right)
        if operator == "~=":
            base = [int(number) for number in right.strip().split(".") if number.isdigit()][:-1]
            own = [int(number) for number in re.match(r"[\d.]+", left.strip())[0].split(".")]
            return a >= b and (own + [0] * len(base))[: len(base)] == base
    else:
        a, b = left, right
    tests = {"==": a == b, "===": left == right, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}
    if operator not in tests:
        raise Refused(f"the operator {operator!r} in the lock file is unknown")
    return tests[operator]


def fits(version, specifiers):
    """Whether a version is one of those that specifiers like `>=3.9,<4` allow."""
    for part in filter(None, (part.strip() for part in specifiers.split(","))):
        matched = re.fullmatch(r"(===|==|~=|!=|<=|>=|<|>)\s*(.+)", part)
        if matched is None:
            raise Refused(f"the lock file says requires-python = {specifiers!r}, which is not a list of versions")
        if not compare(version, matched[1], matched[2]):
            return False
    return True


_TOKEN = re.compile(r"\s*(\(|\)|===|==|~=|!=|<=|>=|<|>|'[^']*'|\"[^\"]*\"|[A-Za-z_][A-Za-z_0-9.]*)")


class Marker:
    """A condition of a package in a lock file."""

    def __init__(self, text, values):
        self._values = values
        self._tokens, at = [], 0
        text = text.strip()
        while at < len(text):
            matched = _TOKEN.match(text, at)
            if matched is None:
                raise Refused(f"the marker {text!r} in the lock file cannot be read")
            self._tokens.append(matched[1])
            at = matched.end()
        self._text = text

    def holds(self):
        result = self._either()
        if self._tokens:
            raise Refused(f"the marker {self._text!r} in the lock file cannot be read")
        return result

    def _next(self):
        if not self._tokens:
            raise Refused(f"the marker {self._text!r} in the lock file ends too early")
        return self._tokens.pop(0)

    def _takes(self, word):
        if self._tokens[:1] == [word]:
            self._tokens.pop(0)
            return True
        return False

    def _either(self):
        result = self._both()
        while self._takes("or"):
            result = self._both() or result
        return result

    def _both(self):
        result = self._one()
        while self._takes("and"):
            result = self._one() and result
        return result

    def _one(self):
        if self._takes("("):
            result = self._either()
            if self._next() != ")":
                raise Refused(f"the marker {self._text!r} in the lock file lacks a parenthesis")
            return result
        left, operator = self._value(self._next()), self._next()
        if operator == "not":
            operator = f"not {self._next()}"
        return compare(left, operator, self._value(self._next()))

    def _value(self, token):
        if token[0] in "'\"":
            return token[1:-1]
        if token not in self._values:
            raise Refused(f"the marker {self._text!r} in the lock file names {token!r}, which is unknown")
        return self._values[token]


def marker_values(target):
    return {
        "python_version": target.python,
        # Nodes have a recent release of their version.
        "python_full_version": f"{target.python}.99",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": target.architecture,
        "platform_release": "",
        "platform_version": "",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "implementation_version": f"{target.python}.99",
        "extra": "",
        "extras": [],
        "dependency_groups": [],
    }


# Lock files.


def read_toml(data, path):
    try:
        import tomllib
    except ImportError:
        try:
            from pip._vendor import tomli as tomllib
        except ImportError:
            raise Refused(f"reading {path} needs Python 3.11 or later, or pip, on this machine") from None
    try:
        return tomllib.loads(data.decode())
    except ValueError as error:
        raise Refused(f"{path} is not valid TOML: {error}") from None


def locked(data, path, target):
    """The wheels that a lock file of PEP 751 has for the target: a name, a URL or path, and a SHA-256 of each."""
    lock = read_toml(data, path)
    if str(lock.get("lock-version", "")).split(".")[0] != "1":
        raise Refused(f"{path} has lock-version {lock.get('lock-version')!r}, and 1.0 is known: is it a pylock.toml of PEP 751?")
    values = marker_values(target)
    required = lock.get("requires-python", "")
    if not fits(values["python_full_version"], required):
        raise Refused(f"{path} is for Python {required}, and the environment for Python {target.python}: make a lock file for that version")
    chosen = {}
    for package in lock.get("packages", []):
        name, version = package.get("name", "?"), package.get("version", "")
        if "marker" in package and not Marker(package["marker"], values).holds():
            continue
        if not fits(values["python_full_version"], package.get("requires-python", "")):
            raise Refused(f"{path}: {name} {version} is for Python {package['requires-python']}, not for {target.python}")
        if name in chosen:
            raise Refused(f"{path} has two packages {name} for {target}")
        chosen[name] = choose(package, f"{name} {version}".strip(), path, target)
    if not chosen:
        raise Refused(f"{path} has no packages for {target}")
    return list(chosen.values())


def choose(package, name, path, target):
    """The best wheel of a package."""
    wheels = [*package.get("wheels", [])]
    archive = package.get("archive")
    if archive is not None and str(archive.get("url") or archive.get("path")).endswith(".whl"):
        wheels.append(archive)
    ranked = []
    for wheel in wheels:
        place = wheel.get("url") or wheel.get("path") or ""
        file = wheel.get("name") or urllib.parse.unquote(urllib.parse.urlsplit(place).path.rpartition("/")[2])
        rank = target.rank(file)
        if rank is not None:
            ranked.append((rank, file, wheel, place))
    if not ranked:
        source = any(key in package for key in ("sdist", "vcs", "directory", "archive"))
        if not wheels and source:
            raise Refused(f"{path}: {name} has no wheel, only sources, and nothing is compiled: {MAKE_WHEEL}")
        others = ", ".join(sorted({(wheel.get("name") or (wheel.get("url") or "?").rpartition("/")[2]) for wheel in wheels})[:3])
        raise Refused(f"{path}: {name} has no wheel for {target}" + (f" (it has {others})" if others else ""))
    _, file, wheel, place = min(ranked, key=lambda one: one[:2])
    digest = wheel.get("hashes", {}).get("sha256")
    if not digest or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise Refused(f"{path}: {file} has no SHA-256, by which it is known")
    if "url" not in wheel:
        place = os.path.join(os.path.dirname(os.path.abspath(path)), place)
    return {"name": file, "place": place, "sha256": digest}


MAKE_WHEEL = "make a wheel of it (`pip wheel NAME`) and name its folder in find_links"


# Requirements.


def lines_of(path, seen):
    """The lines of a requirements file and of those that it includes, with the file of each."""
    path = os.path.abspath(path)
    if path in seen:
        return
    seen.add(path)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"cannot read the requirements {path}: {getattr(error, 'strerror', None) or error}") from None
    for line in re.sub(r"\\\n", " ", text).splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        if not line:
            continue
        included = re.match(r"(?:-r|-c|--requirement|--constraint)[\s=]*(\S+)", line)
        if included:
            yield from lines_of(os.path.join(os.path.dirname(path), included[1]), seen)
        yield path, line


def check_requirement(line, where):
    """Refuses what would have to be built."""
    if re.match(r"(-e|--editable)\b", line):
        raise Refused(f"{where}: {line!r} is editable, and an environment has only wheels: functions of this program are sent with it")
    if line.startswith("-"):
        return
    place = line.partition("@")[2].strip() if re.match(r"[A-Za-z0-9._-]+\s*(\[[^]]*\])?\s*@", line) else line
    place = place.split(" ")[0].partition("#")[0]
    is_place = place.startswith((".", "/", "~")) or "://" in place or re.match(r"(git|hg|svn|bzr)\+", place)
    if is_place and not urllib.parse.urlsplit(place).path.endswith(".whl"):
        raise Refused(f"{where}: {line!r} is not a wheel, and nothing is compiled: {MAKE_WHEEL}")


def check_any(lines, where):
    """Refuses comments and options without any requirement."""
    if not any(line.strip() and not line.strip().startswith(("-", "#")) for _, line in lines):
        raise Refused(f"{where} has no requirements, only comments or options: without requirements no environment is needed")


def local_folders(request, lines):
    """Folders with wheels, which may change between two resolutions."""
    folders = list(request["find_links"])
    for path, line in lines:
        matched = re.match(r"(?:-f|--find-links)[\s=]*(\S+)", line)
        if matched and "://" not in matched[1]:
            folders.append(os.path.join(os.path.dirname(path), matched[1]))
    return [folder for folder in folders if os.path.isdir(folder)]


def state_of(folder):
    return sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in os.scandir(folder))


def index_options(request):
    options = []
    if request["index"] is not None:
        options += ["--no-index"] if request["index"] == "" else ["--index-url", request["index"]]
    for folder in request["find_links"]:
        options += ["--find-links", folder]
    return options


def run(command, cwd, text=None):
    """Executes uv or pip; returns its standard output, or raises what it says."""
    environment = dict(os.environ, NO_COLOR="1", PIP_NO_INPUT="1", PIP_DISABLE_PIP_VERSION_CHECK="1", UV_NO_PROGRESS="1")
    # uv trusts its own list of authorities, and pip those of this machine: an index behind a proxy is known by the latter. The second
    # name is that of earlier versions of uv.
    for variable in ("UV_SYSTEM_CERTS", "UV_NATIVE_TLS"):
        environment.setdefault(variable, "1")
    ran = subprocess.run(command, cwd=cwd, input=text, capture_output=True, text=True, env=environment)
    if ran.returncode == 0:
        return ran.stdout
    said, _, trace = ran.stderr.partition("Traceback (most recent call last):")
    said = said.splitlines() + [line.rpartition("Error: ")[2] for line in trace.splitlines()[-1:]]
    lines = [re.sub(r"^\s*(ERROR|error|hint|cause|Because)\s*:\s*", "", line).strip(" ×╰─▶│") for line in said]
    unneeded = ("WARNING", "Looking in", "  cached", "ERROR: Exception", "Exception:", "Collecting")
    lines = [line for line in lines if line and not line.startswith(unneeded)]
    raise ToolFailed("; ".join(lines[-12:])[:2000].rstrip(". ") or f"{command[0]} ended with status {ran.returncode}")


class ToolFailed(Exception):
    """The errors that uv or pip has printed."""


def find_uv():
    uv = shutil.which("uv")
    if uv is None:
        return None
    try:
        said = subprocess.run([uv, "pip", "compile", "--help"], capture_output=True, text=True).stdout
    except OSError:
        return None
    return uv if "pylock.toml" in said else None


def has_pip():
    return subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0


def resolve(request, target, cache):
    """The wheels of requirements: in the cache already if pip has found them."""
    path, cwd = request["file"], None
    if path is not None:
        cwd = os.path.dirname(os.path.abspath(path))
    uv = find_uv() if request["tool"] in (None, "uv") else None
    tell(step=f"resolving for {target}")
    try:
        if uv is not None:
            return locked(run(by_uv(uv, request, target), cwd, text_of(request)).encode(), "uv's result", target)
        if request["tool"] == "uv" or not has_pip():
            raise Refused("neither uv nor pip is here, one of which resolves requirements: `pip install uv`")
        return by_pip(request, target, cwd, cache)
    except ToolFailed as failed:
        hint = ""
        if re.search(r"no matching distribution|not? .*(usable|compatible) wheels|no wheels|only-binary|building|unsatisfiable", str(failed), re.I):
            hint = f". Only wheels are used; of a distribution that has none for {target}, {MAKE_WHEEL}"
        raise Refused(f"the requirements cannot be met for {target}: {failed}{hint}") from None


def text_of(request):
    return None if request["file"] is not None else "\n".join(request["requirements"]) + "\n"


def by_uv(uv, request, target):
    source = "-" if request["file"] is None else os.path.abspath(request["file"])
    minor = max((minor for minor in UV_GLIBC if minor <= target.glibc), default=17)
    platform = f"{target.architecture}-manylinux_2_{minor}"
    command = [uv, "pip", "compile", source, "--quiet", "--format", "pylock.toml", "--only-binary", ":all:", "--no-header"]
    if request["refresh"]:
        command.append("--refresh")
    return [*command, "--python-version", target.python, "--python-platform", platform, *index_options(request)]


def by_pip(request, target, cwd, cache):
    folder = os.path.join(cache, f"pip-{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    try:
        command = [sys.executable, "-c", PIP, "download", "--quiet", "--only-binary", ":all:", "--dest", folder]
        command += ["--python-version", target.python, "--implementation", "cp", "--abi", target.tag, "--abi", "abi3", "--abi", "none"]
        for platform in target.platforms():
            command += ["--platform", platform]
        command += index_options(request)
        listed = os.path.join(folder, "requirements.txt")
        if request["file"] is None:
            with open(listed, "w", encoding="utf-8") as file:
                file.write(text_of(request))
        run([*command, "-r", listed if request["file"] is None else os.path.abspath(request["file"])], cwd)
        wheels = []
        for name in sorted(os.listdir(folder)):
            if name.endswith(".whl"):
                digest = hash_of(os.path.join(folder, name))
                keep(os.path.join(folder, name), name, digest, cache)
                wheels.append({"name": name, "place": "", "sha256": digest})
        return wheels
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# Wheels.


def hash_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            block = file.read(1 << 20)
            if not block:
                return digest.hexdigest()
            digest.update(block)


def place_of(name, digest, cache):
    if "/" in name or name.startswith("."):
        raise Refused(f"{name!r} is not the file name of a wheel")
    return os.path.join(cache, "wheels", digest, name)


def keep(file, name, digest, cache):
    target = place_of(name, digest, cache)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.replace(file, target)


def opened(place):
    """Opens a file or URL, with the credentials of the URL or of ~/.netrc."""
    parts = urllib.parse.urlsplit(place)
    if parts.scheme not in ("http", "https"):
        return open(urllib.request.url2pathname(parts.path) if parts.scheme == "file" else place, "rb")
    user, password = parts.username, parts.password
    if user is None:
        try:
            found = netrc.netrc().authenticators(parts.hostname)
        except (OSError, netrc.NetrcParseError):
            found = None
        user, password = (found[0], found[2]) if found else (None, None)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request = urllib.request.Request(bare, headers={"User-Agent": "sublet"})
    if user is not None:
        import base64

        pair = f"{urllib.parse.unquote(user)}:{urllib.parse.unquote(password or '')}"
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
    return urllib.request.urlopen(request, timeout=PATIENCE)


def download(wheel, cache):
    """Brings a wheel into the cache, if it is the one that was locked."""
    name, place, digest = wheel["name"], wheel["place"], wheel["sha256"]
    target = place_of(name, digest, cache)
    if os.path.exists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    part, found, size = f"{target}.{os.getpid()}", hashlib.sha256(), 0
    try:
        with opened(place) as source, open(part, "wb") as file:
            while True:
                block = source.read(1 << 20)
                if not block:
                    break
                size += len(block)
                if size > LARGEST:
                    raise Refused(f"the wheel {name} has more than {LARGEST} bytes, which is the most")
                found.update(block)
                file.write(block)
        if found.hexdigest() != digest:
            raise Refused(f"{place} has the SHA-256 {found.hexdigest()}, and {digest} was expected: it is not used")
        os.replace(part, target)
    except (OSError, urllib.error.URLError) as error:
        raise Refused(f"cannot get {place or name}: {getattr(error, 'reason', None) or getattr(error, 'strerror', None) or error}") from None
    finally:
        if os.path.exists(part):
            os.remove(part)


def download_all(wheels, cache):
    missing = [wheel for wheel in wheels if not os.path.exists(place_of(wheel["name"], wheel["sha256"], cache))]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        begun = {pool.submit(download, wheel, cache): wheel for wheel in missing}
        for number, done in enumerate(concurrent.futures.as_completed(begun), 1):
            done.result()
            tell(step=f"downloaded {begun[done]['name'].partition('-')[0]}, {number} of {len(missing)}")


def prune(cache):
    """Removes what was not used for long."""
    oldest = time.time() - UNUSED
    for folder in ("wheels", "resolved"):
        below = os.path.join(cache, folder)
        for name in os.listdir(below) if os.path.isdir(below) else []:
            path = os.path.join(below, name)
            try:
                if os.stat(path).st_mtime < oldest:
                    shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
            except OSError:
                pass


# The whole.


def inputs(request, target):
    """Digest of everything that decides which wheels are found: requirements, files, options, variables, and folders with wheels."""
    variables = {name: value for name, value in os.environ.items() if VARIABLES.match(name)}
    seen = {"target": str(target), "index": request["index"], "find_links": request["find_links"], "variables": variables, "version": 1}
    path = request["file"]
    if path is None:
        lines = [("", line) for line in request["requirements"]]
        for _, line in lines:
            if re.match(r"-(?!-hash)", line.strip()):
                raise Refused(f"{line!r} is an option: write it into a requirements file, or use index= and find_links=")
        check_any(lines, "the list of requirements")
    elif path.endswith(".toml") or os.path.basename(path) == "uv.lock":
        lines = []
    else:
        lines = list(lines_of(path, set()))
        check_any(lines, path)
    for where, line in lines:
        check_requirement(line.strip(), where or "requirements")
    seen["lines"] = [line for _, line in lines]
    seen["folders"] = [(folder, state_of(folder)) for folder in local_folders(request, lines)]
    if path is not None:
        with open(path, "rb") as file:
            seen["file"] = hashlib.sha256(file.read()).hexdigest()
            seen["folder"] = os.path.dirname(os.path.abspath(path))
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()


def find(request, target, cache):
    path = request["file"]
    if path is None:
        return resolve(request, target, cache)
    name = os.path.basename(path)
    if name == "uv.lock":
        uv = find_uv()
        if uv is None:
            raise Refused(f"reading {path} needs uv, which is not here: `pip install uv`, or `uv export --format pylock.toml` where it is")
        folder = os.path.dirname(os.path.abspath(path))
        command = [uv, "export", "--frozen", "--quiet", "--format", "pylock.toml", "--no-dev", "--no-emit-workspace", "--project", folder]
        try:
            return locked(run(command, folder).encode(), path, target)
        except ToolFailed as failed:
            raise Refused(f"uv cannot read {path}: {failed}") from None
    if name.endswith(".toml"):
        with open(path, "rb") as file:
            return locked(file.read(), path, target)
    return resolve(request, target, cache)


def main():
    request = json.load(sys.stdin)
    target, cache = Target(request), request["cache"]
    path = request["file"]
    if path is not None and not os.path.isfile(path):
        raise Refused(f"there is no file {path}")
    os.makedirs(os.path.join(cache, "resolved"), mode=0o700, exist_ok=True)
    key = os.path.join(cache, "resolved", f"{inputs(request, target)}.json")
    wheels = None
    if os.path.exists(key) and not request["refresh"]:
        with open(key, encoding="utf-8") as file:
            wheels = json.load(file)
        os.utime(key)
        if any(not wheel["place"] and not os.path.exists(place_of(wheel["name"], wheel["sha256"], cache)) for wheel in wheels):
            wheels = None
    if wheels is None:
        wheels = find(request, target, cache)
        prune(cache)
    download_all(wheels, cache)
    part = f"{key}.{os.getpid()}"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(wheels, file)
    os.replace(part, key)
    found = []
    for wheel in wheels:
        file = place_of(wheel["name"], wheel["sha256"], cache)
        os.utime(os.path.dirname(file))
        found.append({"name": wheel["name"], "sha256": wheel["sha256"], "path": file, "size": os.path.getsize(file)})
    tell(wheels=found)


try:
    main()
except Refused as refused:
    tell(error=str(refused))
except OSError as error:
    tell(error=f"{error.filename or 'a file'}: {error.strerror or error}")
