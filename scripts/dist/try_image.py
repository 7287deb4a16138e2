"""Runs the OCI image: try_image.py BUNDLE, a folder into which umoci has unpacked it.

Without privileges, as the image's user: the command, and the modules of Python that its C libraries are there for. Then as an
agent has to run, with SYS_ADMIN and without masks on /proc: a platform, whose leases execute functions.
"""

import json
import subprocess
import sys
from pathlib import Path

MODULES = "import bz2, ctypes, hashlib, json, lzma, multiprocessing, sqlite3, ssl, uuid, zlib; print('Python has its libraries')"
# Those that container engines give to root, and the one that sandboxes need.
CAPABILITIES = ["AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW", "SETFCAP",
                "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT", "SYS_ADMIN"]
# Starts a platform, waits for it, and has functions executed. The image has no shell.
LEASES = """
import os, subprocess, time
# The folder of the image belongs to its user.
os.environ["SUBLET_STATE"] = "/tmp/state"
up = subprocess.Popen(["sublet", "up", "--cores", "1", "--python", "python3"])
for _ in range(1800):
    if b"lending" in subprocess.run(["sublet", "ps"], capture_output=True).stdout:
        break
    time.sleep(0.1)
subprocess.run(["sublet", "bench", "latency", "--mode", "warm", "--function", "noop", "--size", "64", "--n", "1000"], check=True)
subprocess.run(["sublet", "bench", "cold", "--n", "3", "--sandbox", "template", "--python", "python3"], check=True)
up.terminate()
raise SystemExit(up.wait())
"""

# crun refuses machines that have both versions of control groups, even if it is not to use any.
CRUN = ["unshare", "--mount", "sh", "-c", 'umount --lazy /sys/fs/cgroup/unified 2>/dev/null; exec crun --cgroup-manager=disabled "$@"',
        "crun"]


def run(bundle: Path, name: str, arguments: list[str], is_agent: bool) -> None:
    """Runs a program in a container of the image, and ends if it fails."""
    path = bundle / "config.json"
    original = path.read_text()
    config = json.loads(original)
    process = config["process"]
    process["terminal"] = False
    process["args"] = arguments
    config["linux"].pop("resources", None)
    config["mounts"] = [mount for mount in config["mounts"] if mount["type"] != "cgroup"]
    if is_agent:
        process["user"] = {"uid": 0, "gid": 0}
        process["noNewPrivileges"] = False
        for kind in ("bounding", "effective", "permitted"):
            process["capabilities"][kind] = [f"CAP_{name}" for name in CAPABILITIES]
        for masks in ("maskedPaths", "readonlyPaths"):
            config["linux"].pop(masks, None)
    path.write_text(json.dumps(config))
    try:
        subprocess.run([*CRUN, "run", "--bundle", bundle, name], check=True, stdin=subprocess.DEVNULL, timeout=300)
    except subprocess.CalledProcessError as error:
        sys.exit(f"try_image.py: {arguments[:2]} failed in the image: {error}")
    finally:
        path.write_text(original)


def main() -> None:
    """Runs all."""
    bundle = Path(sys.argv[1])
    name = f"sublet-image-{bundle.stat().st_ino}"
    entry = json.loads((bundle / "config.json").read_text())
    if entry["process"]["args"][0] != "/usr/bin/sublet" or entry["process"]["user"]["uid"] == 0:
        sys.exit(f"try_image.py: the image starts {entry['process']['args']} as {entry['process']['user']}")
    run(bundle, name, ["/usr/bin/sublet", "--version"], is_agent=False)
    run(bundle, name, ["/usr/bin/python3", "-c", MODULES], is_agent=False)
    run(bundle, name, ["/usr/bin/python3", "-c", LEASES], is_agent=True)
    print("the image runs as its user, and as an agent")


if __name__ == "__main__":
    main()
