"""Makes small wheels for tests, valid ones and others."""

import base64
import hashlib
import zipfile
from pathlib import Path


def record_line(path, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}\n"


def make(folder, name, version, files, tag="py3-none-any", requires=()):
    """Writes a wheel with these files; returns its path."""
    information = f"{name}-{version}.dist-info"
    required = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    contents = {path: content.encode() if isinstance(content, str) else content for path, content in files.items()}
    contents[f"{information}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}".encode()
    contents[f"{information}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    record = "".join(record_line(path, content) for path, content in contents.items())
    contents[f"{information}/RECORD"] = f"{record}{information}/RECORD,,\n".encode()
    path = Path(folder) / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, content in contents.items():
            archive.writestr(place, content)
    return path


def locked(*wheels, more=""):
    """The text of a lock file with these wheels, each one package."""
    packages = ""
    for path in wheels:
        name, version = path.name.split("-")[:2]
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        packages += f'[[packages]]\nname = "{name}"\nversion = "{version}"\n'
        packages += f'wheels = [{{ name = "{path.name}", url = "{path.as_uri()}", hashes = {{ sha256 = "{digest}" }} }}]\n\n'
    return f'lock-version = "1.0"\ncreated-by = "tests"\n{more}\n{packages}'
