"""OCI images of this interpreter, in a registry on this machine."""

import gzip
import hashlib
import http.client
import io
import json
import os
import socket
import subprocess
import sys
import sysconfig
import tarfile
import time
from pathlib import Path

from sublet import _command

ROOT = Path(__file__).resolve().parent.parent.parent
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
TYPES = "application/vnd.oci.image"
# Modules of the standard library that need no place in an image.
LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "ensurepip", "site-packages", "dist-packages"}


class Registry:
    """Debian's docker-registry, by default on a free port."""

    def __init__(self, folder, port=0):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            self.port = probe.getsockname()[1]
        settings = {
            "version": "0.1",
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": str(folder / "storage")}},
            "http": {"addr": f"127.0.0.1:{self.port}"},
        }
        # YAML includes JSON.
        (folder / "config.yml").write_text(json.dumps(settings))
        unpacked = ROOT / "target/tools/docker-registry/usr/bin/docker-registry"
        program = str(unpacked) if unpacked.exists() else "docker-registry"
        self._process = subprocess.Popen([program, "serve", folder / "config.yml"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(9000):
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except ConnectionRefusedError:
                time.sleep(0.02)
        self.close()
        raise AssertionError("the registry does not start")

    def push(self, name, layers, variables=(), architecture=ARCHITECTURES[os.uname().machine], tag="1"):
        """Uploads an image of these layers, the bytes of tars, and returns the image's name."""
        config = _config(layers, variables, architecture)
        described = [self._blob(name, f"{TYPES}.config.v1+json", json.dumps(config).encode())]
        described += [self._blob(name, f"{TYPES}.layer.v1.tar+gzip", gzip.compress(layer, 1)) for layer in layers]
        manifest = {"schemaVersion": 2, "mediaType": f"{TYPES}.manifest.v1+json", "config": described[0], "layers": described[1:]}
        self._request("PUT", f"/v2/{name}/manifests/{tag}", json.dumps(manifest).encode(), manifest["mediaType"])
        return f"localhost:{self.port}/{name}:{tag}"

    def close(self):
        self._process.kill()
        self._process.wait()

    def _blob(self, name, kind, content):
        location = self._request("POST", f"/v2/{name}/blobs/uploads/", b"").getheader("Location")
        path = location.split("/", 3)[3] if location.startswith("http") else location[1:]
        self._request("PUT", f"/{path}{'&' if '?' in path else '?'}digest={_digest(content)}", content)
        return {"mediaType": kind, "digest": _digest(content), "size": len(content)}

    def _request(self, method, path, body, kind="application/octet-stream"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(method, path, body, {"Content-Type": kind, "Content-Length": str(len(body))})
        response = connection.getresponse()
        response.read()
        assert response.status in (201, 202), (path, response.status)
        return response


def save(path, name, layers):
    """Writes an image of these layers as `docker save` does."""
    files = {f"{at}/layer.tar": layer for at, layer in enumerate(layers)}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": list(files)}]
    files["config.json"] = json.dumps(_config(layers, (), ARCHITECTURES[os.uname().machine]))
    files["manifest.json"] = json.dumps(manifest)
    Path(path).write_bytes(tar_of(files))


def _config(layers, variables, architecture):
    return {
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": list(variables)},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
    }


def python(distributions=(), modules=()):
    """Packs this interpreter, with modules of these names from its own distributions, and with modules by their text, as a tar.

    Returns the tar, and the folder of its program.
    """
    program = Path(os.path.realpath(sys.executable))
    library = Path(sysconfig.get_path("stdlib"))
    installed = library / "site-packages"
    files = {program: program}
    files.update((file, file) for file in _files(library))
    for name in distributions:
        folder = Path(sysconfig.get_path("platlib"))
        for part in sorted(folder.glob(f"{name}*")):
            within = [part] if part.is_file() else _files(part, all_of_it=True)
            files.update((installed / file.relative_to(folder), file) for file in within)
    adapter = Path(_command.program()).resolve().parent / "libsublet_template_python.so"
    needed = {needed for file in [*files.values(), adapter] for needed in _libraries(file)}
    # Those of distributions are beside them.
    installed_here = sysconfig.get_path("platlib")
    files.update((Path(path), Path(path)) for path in needed if not path.startswith(installed_here))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for place, file in files.items():
            tar.add(os.path.realpath(file), arcname=str(place), recursive=False)
        link = tarfile.TarInfo(str(program.parent / "python3"))
        link.type, link.linkname = tarfile.SYMTYPE, program.name
        if program.name != "python3":
            tar.addfile(link)
        for name, text in dict(modules).items():
            _add(tar, str(installed / name), text)
    return packed.getvalue(), str(program.parent)


def program(path):
    """Packs a program of this machine with its libraries, as a tar."""
    files = {path: Path(path).read_bytes()}
    files.update((library, Path(library).read_bytes()) for library in _libraries(path))
    return tar_of(files)


def tar_of(files):
    """Packs files by their content, as a tar."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            _add(tar, name, content)
    return packed.getvalue()


def _add(tar, name, content):
    content = content.encode() if isinstance(content, str) else content
    file = tarfile.TarInfo(name)
    file.size, file.mode = len(content), 0o755
    tar.addfile(file, io.BytesIO(content))


def _files(folder, all_of_it=False):
    for at, folders, names in os.walk(folder):
        left_out = () if all_of_it else LEFT_OUT
        folders[:] = [name for name in folders if name not in left_out and not name.startswith("config-")]
        yield from (Path(at) / name for name in names)


def _libraries(file):
    with open(file, "rb") as opened:
        if opened.read(4) != b"\x7fELF":
            return
    told = subprocess.run(["ldd", file], capture_output=True, text=True, check=False).stdout
    yield from (os.path.normpath(word) for word in told.split() if word.startswith("/") and not word.endswith(":") and Path(word).exists())


def _digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()
