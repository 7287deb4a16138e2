#!/usr/bin/env bash
# Boots Debian's kernel in an emulated machine whose network card is software (rdma_rxe), and runs SHARE/guest.sh there:
# verbs-vm.sh SHARE. The guest sees this machine's file system, read-only, and SHARE, which it may write.
# Installs what is missing. Exits with 75, and a line that says why, where that cannot be. `cargo xtask verbs-vm` calls it.
set -euo pipefail

readonly CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/sublet-verbs-vm
# With two processors round trips take milliseconds: the network card is a kernel thread.
readonly PROCESSORS=3
readonly MEMORY=3G
readonly LIMIT_S=${LIMIT_S:-1200}
readonly PACKAGES=(qemu-system-x86 busybox-static kmod iproute2 rdma-core ibverbs-providers libfabric1 perftest)
readonly EARLY_MODULES=(virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci netfs fscache 9pnet
    9pnet_virtio 9p overlay)

skip() {
    echo "skipped: $*"
    exit 75
}

install_packages() {
    local missing=() package
    for package in "${PACKAGES[@]}"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || missing+=("$package")
    done
    [[ ${#missing[@]} -gt 0 ]] || return 0
    [[ $(id -u) -eq 0 ]] || skip "these packages are missing, and only root installs them: ${missing[*]}"
    echo "installing ${missing[*]}"
    DEBIAN_FRONTEND=noninteractive sh -c \
        "apt-get update -qq && apt-get install -y -qq --no-install-recommends ${missing[*]}" >/dev/null 2>&1 ||
        skip "these packages cannot be installed: ${missing[*]}"
}

# A kernel with its modules, unpacked and not installed: this machine does not boot it.
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
    depmod -b "$CACHE/unpacked" "$(ls "$CACHE/unpacked/lib/modules")"
    mv "$CACHE/unpacked" "$CACHE/kernel"
}

# The first file system of the guest: mounts the others and hands over to enter.sh.
make_initrd() {
    local work=$1 version=$2 module
    mkdir -p "$work/tree/bin" "$work/tree/modules"
    cp /bin/busybox "$work/tree/bin/"
    for module in "${EARLY_MODULES[@]}"; do
        find "$CACHE/kernel/lib/modules/$version" -name "$module.ko" -exec cp {} "$work/tree/modules/" \;
    done
    cat >"$work/tree/init" <<EOF
#!/bin/busybox sh
b=/bin/busybox
\$b mkdir -p /proc /sys /dev /lower /upper /new
\$b mount -t proc proc /proc; \$b mount -t sysfs sys /sys; \$b mount -t devtmpfs dev /dev
for module in ${EARLY_MODULES[*]}; do [ -f /modules/\$module.ko ] && \$b insmod /modules/\$module.ko; done
how=trans=virtio,version=9p2000.L,msize=262144
\$b mount -t 9p -o \$how,cache=loose,ro root /lower || { echo 'the root file system cannot be mounted'; \$b poweroff -f; }
\$b mount -t tmpfs tmpfs /upper; \$b mkdir /upper/data /upper/work
\$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work overlay /new
\$b mkdir -p /new/share /new/kernel
\$b mount -t 9p -o \$how,cache=none share /new/share
\$b mount -t 9p -o \$how,cache=loose,ro kernel /new/kernel
for folder in proc sys dev; do \$b mount --move /\$folder /new/\$folder; done
exec \$b switch_root /new /bin/bash /share/enter.sh
EOF
    chmod +x "$work/tree/init"
    (cd "$work/tree" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1 >"$work/initrd.gz")
}

# What the guest does: two interfaces, a card in software on one of them, then the caller's commands.
write_enter() {
    cat >"$1/enter.sh" <<'EOF'
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
ulimit -l unlimited
mkdir -p /dev/shm /dev/pts
for folder in /dev/shm /tmp /run; do mount -t tmpfs tmpfs $folder; done
mount -t devpts devpts /dev/pts
# The kernel itself asks for modules, too, where they always are.
mkdir -p /lib/modules
mount --bind /kernel/lib/modules /lib/modules
for module in rdma_rxe ib_uverbs rdma_ucm veth; do modprobe $module; done
ip link set lo up
ip link add veth0 type veth peer name veth1
ip addr add 10.0.0.1/24 dev veth0
ip link set veth0 up
ip link set veth1 up
rdma link add rxe0 type rxe netdev veth0
node() { IFS=: read -r major minor <"$2" && [ -e "$1" ] || mknod "$1" c "$major" "$minor"; }
mkdir -p /dev/infiniband
for verbs in /sys/class/infiniband_verbs/uverbs*; do node "/dev/infiniband/$(basename "$verbs")" "$verbs/dev"; done
node /dev/infiniband/rdma_cm /sys/class/misc/rdma_cm/dev
echo "kernel $(uname -r), up after $(cut -d' ' -f1 /proc/uptime) s"
cd /share
bash guest.sh >guest.log 2>&1
echo $? >guest.status
sync
poweroff -f 2>/dev/null || /bin/busybox poweroff -f
EOF
}

boot() {
    local share=$1 work=$2 version=$3
    local share_of='security_model=none,multidevs=remap'
    timeout "$LIMIT_S" qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max -smp "$PROCESSORS" -m "$MEMORY" \
        -nodefaults -display none -serial stdio -no-reboot -net none \
        -kernel "$CACHE/kernel/boot/vmlinuz-$version" -initrd "$work/initrd.gz" \
        -append 'console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable' \
        -virtfs "local,path=/,mount_tag=root,readonly=on,$share_of" \
        -virtfs "local,path=$CACHE/kernel,mount_tag=kernel,readonly=on,$share_of" \
        -virtfs "local,path=$share,mount_tag=share,$share_of" <"/dev/null"
}

main() {
    local share work version
    share=$(realpath "$1")
    command -v apt-get >/dev/null || skip "without apt-get there is no kernel to boot"
    install_packages
    fetch_kernel
    version=$(ls "$CACHE/kernel/lib/modules")
    work=$(mktemp -d)
    trap "rm -rf '$work'" EXIT
    make_initrd "$work" "$version"
    write_enter "$share"
    rm -f "$share/guest.status"
    echo "booting $version in emulation ($PROCESSORS processors)"
    boot "$share" "$work" "$version" >"$share/console.log" 2>&1 || echo "qemu ended with status $?"
    grep -a '^kernel .* up after' "$share/console.log" || tail -n 20 "$share/console.log"
    [[ -f $share/guest.status ]] || { echo "the guest did not finish within $LIMIT_S s"; exit 1; }
    exit "$(cat "$share/guest.status")"
}

main "$@"
