#!/usr/bin/env bash
# Makes the root file system of a Debian release, and prints its folder: root.sh SUITE. It is kept in target/tools/roots.
#
# It has a Python of 3.11 or later: the release's own, or for Debian 11, whose Python is older, one that is compiled there
# from Debian 12's source package and installed in /opt/python.
set -euo pipefail

readonly SUITE=${1:?usage: scripts/dist/root.sh bullseye|bookworm|trixie}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
ROOT=$PWD/target/tools/roots/$SUITE
readonly ROOT PACKAGES=python3,python3-venv,ca-certificates
# Release whose Python is compiled where the release's own is too old, and what compiles it.
readonly PYTHON_SUITE=bookworm PYTHON_SOURCE=python3.11
readonly PYTHON_NEEDS=(gcc libc6-dev make xz-utils zlib1g-dev libffi-dev libssl-dev)

stop() {
    echo "root.sh: $*" >&2
    exit 1
}

# Runs a command in the root file system, with the network of this machine.
inside() {
    cp /etc/resolv.conf "$ROOT/etc/resolv.conf"
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive chroot "$ROOT" "$@"
}

has_new_python() {
    inside python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'
}

compile_python() {
    sed "s/^deb \(.*\) $SUITE /deb-src \1 $PYTHON_SUITE /" "$ROOT/etc/apt/sources.list" >"$ROOT/etc/apt/sources.list.d/source.list"
    inside apt-get --quiet=2 update
    inside apt-get --quiet=2 install --yes --no-install-recommends "${PYTHON_NEEDS[@]}"
    inside sh -euc "
        mkdir -p /usr/src/python
        cd /usr/src/python
        apt-get --quiet=2 -o APT::Sandbox::User=root source --download-only $PYTHON_SOURCE
        tar --extract --strip-components=1 --file ${PYTHON_SOURCE}_*.orig.tar.*
        ./configure --quiet --prefix=/opt/python
        make --silent --jobs=2
        make --silent install
        rm -rf /usr/src/python"
}

[[ ! -e $ROOT/complete ]] || {
    echo "$ROOT"
    exit
}
[[ $(id -u) -eq 0 ]] || stop "only root can make a root file system"
mkdir -p "$(dirname "$ROOT")"
{
    if [[ ! -e $ROOT/bootstrapped ]]; then
        rm -rf --one-file-system "$ROOT"
        # What it mounts there is gone with it.
        PATH=$PATH:/usr/sbin:/sbin unshare --mount debootstrap --variant=minbase --include="$PACKAGES" "$SUITE" "$ROOT"
        touch "$ROOT/bootstrapped"
    fi
    has_new_python || compile_python
} >&2
touch "$ROOT/complete"
echo "$ROOT"
