#!/usr/bin/env bash
# An emulated machine with Debian's kernel. `cargo xtask verbs-vm` and `cargo xtask cgroup-vm` call it:
#
# - vm.sh prepare PACKAGE... installs and fetches what is missing, and these packages, which the virtual machine uses.
#   Where that is impossible, it prints "skipped: " and the reason.
# - vm.sh boot SHARE boots the virtual machine, which runs SHARE/guest.sh for at most LIMIT_S seconds (see vm/enter.sh).
#
# The virtual machine sees this machine's file system, read-only, and SHARE, which it may write. It does not outlive this
# script, however the script ends.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PATH=$PATH:/usr/sbin:/sbin

readonly CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/sublet-vm
# With two processors round trips take milliseconds: the network card is a kernel thread.
readonly PROCESSORS=3
# Taken as it is used.
readonly MEMORY=${SUBLET_VM_MEMORY:-4G}
readonly LIMIT_S=${LIMIT_S:-3600}
readonly PACKAGES=(qemu-system-x86 busybox-static kmod iproute2)
# In the order of loading.
readonly EARLY_MODULES=(virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci netfs fscache 9pnet
    9pnet_virtio 9p overlay)

skip() {
    echo "skipped: $*"
    exit 75
}

install_packages() {
    local missing=() package
    for package in "${PACKAGES[@]}" "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || missing+=("$package")
    done
    [[ ${#missing[@]} -gt 0 ]] || return 0
    [[ $(id -u) -eq 0 ]] || skip "these packages are missing, and only root installs them: ${missing[*]}"
    echo "installing ${missing[*]}"
    DEBIAN_FRONTEND=noninteractive sh -c \
        "apt-get update -qq && apt-get install -y -qq --no-install-recommends ${missing[*]}" >/dev/null 2>&1 ||
        skip "these packages cannot be installed: ${missing[*]}"
}

# A kernel with its modules, unpacked and not installed: this machine does not boot it. Once for all runs.
fetch_kernel() {
    compgen -G "$CACHE/kernel/boot/vmlinuz-*" >/dev/null && return
    local package
    package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
    [[ -n $package ]] || skip "apt knows no kernel (linux-image-amd64)"
    echo "fetching $package"
    mkdir -p "$CACHE/fetched"
    (cd "$CACHE/fetched" && apt-get download -qq "$package" >/dev/null 2>&1) || skip "$package cannot be fetched"
    rm -rf "$CACHE/unpacked"
    dpkg -x "$CACHE/fetched/$package"_*.deb "$CACHE/unpacked"
    rm -rf "$CACHE/fetched"
    depmod -b "$CACHE/unpacked" "$(ls "$CACHE/unpacked/lib/modules")"
    mv "$CACHE/unpacked" "$CACHE/kernel"
}

prepare() {
    command -v apt-get >/dev/null || skip "there is no apt-get, which would fetch the kernel to boot"
    install_packages "$@"
    command -v qemu-system-x86_64 >/dev/null || skip "there is no qemu-system-x86_64"
    fetch_kernel
}

make_initrd() {
    local work=$1 version=$2 place
    mkdir -p "$work/tree/bin" "$work/tree/modules"
    cp /bin/busybox "$work/tree/bin/"
    for place in "${!EARLY_MODULES[@]}"; do
        # A kernel may have some of them built in.
        find "$CACHE/kernel/lib/modules/$version" -name "${EARLY_MODULES[place]}.ko" \
            -exec cp {} "$work/tree/modules/$((place + 10))-${EARLY_MODULES[place]}.ko" \;
    done
    install -m 755 "$here/vm/init.sh" "$work/tree/init"
    (cd "$work/tree" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1 >"$work/initrd.gz")
}

# Starts the machine. Should this script be killed without notice, the kernel kills the machine.
start_machine() {
    local share=$1 work=$2 version=$3
    local how='security_model=none,multidevs=remap'
    setpriv --pdeathsig KILL -- \
        qemu-system-x86_64 -M q35 -accel tcg,thread=multi,tb-size=512 -cpu max -smp "$PROCESSORS" -m "$MEMORY" \
        -nodefaults -display none -serial "file:$share/console.log" -no-reboot -net none \
        -kernel "$CACHE/kernel/boot/vmlinuz-$version" -initrd "$work/initrd.gz" \
        -append 'console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable' \
        -virtfs "local,path=/,mount_tag=root,readonly=on,$how" \
        -virtfs "local,path=$CACHE/kernel,mount_tag=kernel,readonly=on,$how" \
        -virtfs "local,path=$share,mount_tag=share,$how" </dev/null >"$share/qemu.log" 2>&1 &
    machine=$!
}

finish() {
    if [[ -n $machine ]]; then
        kill -KILL "$machine" 2>/dev/null || true
        # Also for what shows its progress, which ends with it.
        wait 2>/dev/null || true
    fi
    rm -rf "$work"
}

boot() {
    local share=$1 version
    version=$(ls "$CACHE/kernel/lib/modules")
    machine=
    work=$(mktemp -d)
    trap finish EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    make_initrd "$work" "$version"
    cp "$here/vm/"*.sh "$share/"
    : >"$share/progress"
    echo "booting $version in emulation: $PROCESSORS processors, $MEMORY of memory, at most $LIMIT_S s"
    start_machine "$share" "$work" "$version"
    follow "$share"
}

# Shows the progress of the virtual machine, until it is done or its time is over.
follow() {
    local share=$1
    tail -n +1 -s 0.2 --pid="$machine" -f "$share/progress" &
    while kill -0 "$machine" 2>/dev/null && [[ ! -f $share/finished ]] && ((SECONDS < LIMIT_S)); do
        sleep 0.2
    done
    [[ ! -f $share/finished ]] || return 0
    if kill -0 "$machine" 2>/dev/null; then
        echo "the emulated machine was stopped: it was not done after $LIMIT_S s"
    else
        echo "the emulated machine ended before it was done; its last words:"
        tail -n 20 "$share/qemu.log" "$share/console.log"
    fi
    exit 1
}

case ${1-} in
prepare) prepare "${@:2}" ;;
boot) boot "$(realpath "$2")" ;;
*)
    sed -n '2,7s/^# //p' "$0" >&2
    exit 2
    ;;
esac
