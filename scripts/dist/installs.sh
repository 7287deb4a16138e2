#!/usr/bin/env bash
# Installs the packages in root file systems, and uses them there: installs.sh FOLDER, which `cargo xtask dist` has filled.
#
# Each release has a copy of its root file system in memory and on a scratch overlay, in namespaces of its own: nothing stays. There
# is no network, so what the wheel depends on is downloaded before.
set -euo pipefail

readonly FOLDER=${1:?usage: scripts/dist/installs.sh FOLDER} VERSION=${SUBLET_VERSION:?} DEBIAN=${SUBLET_DEBIAN:?}
readonly TRIPLE=${SUBLET_TARGET:?}
readonly SUITES=(bullseye bookworm trixie)
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

SCRATCH=$(mktemp --directory "$PWD/target/xtask/installs.XXXXXX")
trap 'rm -rf --one-file-system "$SCRATCH"' EXIT

# What is installed, and the script that installs and uses it.
collect() {
    mkdir "$SCRATCH/packages"
    cp "$FOLDER"/sublet-"$VERSION"-cp311-abi3-*_"${TRIPLE%%-*}".whl "$FOLDER"/*_"${VERSION}_$DEBIAN".deb \
        "$FOLDER/sublet-$VERSION-$TRIPLE.tar.xz" scripts/dist/in_root.sh "$SCRATCH/packages/"
    # This interpreter has pip.
    target/tools/dist/bin/python -m pip download --quiet --no-deps --dest "$SCRATCH/packages" 'cloudpickle>=3.0,<4'
}

# Runs the script as root of a copy of a root file system. A root directory that is changed by chroot would forbid sandboxes.
try_suite() {
    local suite=$1 root
    root=$(scripts/dist/root.sh "$suite")
    mkdir -p "$SCRATCH/$suite"/{upper,work,root}
    timeout --kill-after=10 900 unshare --mount --pid --fork --kill-child --net --ipc --uts bash -euc '
        mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
        root=$2/root
        mkdir -p "$root/packages" "$root/old"
        mount --bind "$3" "$root/packages"
        mount -t proc proc "$root/proc"
        mount --rbind /sys "$root/sys"
        mount --rbind /dev "$root/dev"
        mount -t tmpfs tmpfs "$root/run"
        ip link set lo up 2>/dev/null || true
        cd "$root"
        pivot_root . old
        umount --lazy /old
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 sh /packages/in_root.sh' \
        bash "$root" "$SCRATCH/$suite" "$SCRATCH/packages"
}

collect
for suite in "${SUITES[@]}"; do
    echo "== $suite"
    try_suite "$suite"
done
echo "installed and used in ${SUITES[*]}"
