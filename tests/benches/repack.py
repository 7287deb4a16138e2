"""Makes wheels of installed distributions in a folder, and a lock file of them: repack.py FOLDER LOCK NAME...

It prints the bytes that they unpack to.
"""

import base64
import hashlib
import importlib.metadata
import re
import sys
import zipfile
from pathlib import Path


def recorded(path, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"


def repack(folder, name):
    """Makes a wheel. Returns its entry in the lock file, and the bytes that it unpacks to."""
    found = importlib.metadata.distribution(name)
    tag = next(line.partition(": ")[2] for line in found.read_text("WHEEL").splitlines() if line.startswith("Tag: "))
    wheel = folder / f"{re.sub(r'[-_.]+', '_', found.metadata['Name']).lower()}-{found.version}-{tag}.whl"
    record, unpacked, place = "", 0, ""
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in found.files:
            if ".." in file.parts or file.suffix == ".pyc":
                continue
            if file.name == "RECORD":
                place = str(file)
                continue
            data = file.read_binary()
            archive.writestr(str(file), data)
            record, unpacked = record + recorded(file, data), unpacked + len(data)
        archive.writestr(place, f"{record}{place},,\n")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    entry = f'[[packages]]\nname = "{name}"\nversion = "{found.version}"\n'
    return f'{entry}[[packages.wheels]]\nname = "{wheel.name}"\npath = "{wheel}"\nhashes = {{ sha256 = "{digest}" }}\n', unpacked


def main():
    folder, lock, names = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), sys.argv[3:]
    packed = [repack(folder, name) for name in names]
    lock.write_text('lock-version = "1.0"\ncreated-by = "repack.py"\n' + "".join(entry for entry, _ in packed))
    print(sum(unpacked for _, unpacked in packed))


main()
