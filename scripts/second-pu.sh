#!/usr/bin/env bash
# Installs what `cargo xtask second-pu` needs beside Rust and its own sources. It calls:
#
# - second-pu.sh prepare installs the compilers for aarch64, and puts an emulator, a kernel and a root file system for
#   it into target/second-pu. Where that is impossible, it prints "skipped: " and the reason.
# - second-pu.sh boot FILES PORT boots the emulated machine, with an archive as its second disk, and with its port of that
#   number as this machine's own. Its serial line is standard input and output, and it ends with standard input (see
#   second-pu/enter.sh).
#
# Only the compilers are installed. All else is unpacked, with apt's settings for another architecture in a folder of
# their own.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
export PATH=$PATH:/usr/sbin:/sbin

readonly FOLDER=$PWD/target/second-pu
readonly RUST_TARGET=aarch64-unknown-linux-gnu
# command:package pairs
readonly COMPILERS=(aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu aarch64-linux-gnu-g++:g++-aarch64-linux-gnu mke2fs:e2fsprogs)
readonly HEADERS=/usr/aarch64-linux-gnu/include/stdio.h
readonly HEADERS_PACKAGE=libc6-dev-arm64-cross
# Packages of the emulator, for this machine's own architecture.
readonly EMULATOR_PACKAGES=(qemu-system-arm qemu-system-common qemu-system-data busybox-static)
# The root file system: what an agent and functions in Python use, and what its first program calls.
readonly ROOT_PACKAGES=(base-files bash coreutils tar util-linux mount iproute2 procps grep sed libc6 libstdc++6 python3)
# In the order of loading.
readonly MODULES=(virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_mmio failover net_failover
    virtio_net virtio_blk crc16 crc32c_generic libcrc32c mbcache jbd2 ext4 overlay)
# That of a common DPU: without the atomic instructions of later ones.
readonly PROCESSOR=cortex-a72
readonly PROCESSORS=2
# Taken as it is used.
readonly MEMORY=2G
# More than is in it: what its programs write goes there.
readonly DISK_SIZE=1G

skip() {
    echo "skipped: $*"
    exit 75
}

install_compilers() {
    local missing=() pair
    for pair in "${COMPILERS[@]}"; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
    done
    [[ -f $HEADERS ]] || missing+=("$HEADERS_PACKAGE")
    [[ ${#missing[@]} -gt 0 ]] || return 0
    [[ $(id -u) -eq 0 ]] || skip "these packages are missing, and only root installs them: ${missing[*]}"
    echo "installing ${missing[*]}"
    DEBIAN_FRONTEND=noninteractive sh -c \
        "apt-get update -qq && apt-get install -y -qq --no-install-recommends ${missing[*]}" >/dev/null 2>&1 ||
        skip "these packages cannot be installed: ${missing[*]}"
}

install_target() {
    [[ -d $(rustc --print sysroot)/lib/rustlib/$RUST_TARGET ]] && return
    command -v rustup >/dev/null || skip "Rust's target $RUST_TARGET is missing, and there is no rustup to add it"
    echo "installing the Rust target $RUST_TARGET"
    rustup --quiet target add "$RUST_TARGET" || skip "Rust's target $RUST_TARGET cannot be installed"
}

# Settings by which apt sees a machine of an architecture on which nothing is installed.
make_apt() {
    local architecture=$1 apt=$FOLDER/apt/$1
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/state"
    : >"$apt/status"
    cat >"$apt/apt.conf" <<END
#clear APT::Architectures;
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
APT::Install-Recommends "false";
APT::Sandbox::User "root";
#clear APT::Update::Post-Invoke;
Dir::State "$apt/state";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Binary::apt-get::APT::Keep-Downloaded-Packages "true";
END
}

# Fetches packages of an architecture, with all that they depend on.
fetch() {
    local architecture=$1 apt=$FOLDER/apt/$1
    shift
    APT_CONFIG=$apt/apt.conf apt-get update -qq >"$apt/log" 2>&1 &&
        APT_CONFIG=$apt/apt.conf apt-get install -y -qq --download-only "$@" >>"$apt/log" 2>&1 ||
        skip "packages for $architecture cannot be fetched: $(tail -n 1 "$apt/log")"
}

# Unpacks all that was fetched into a folder in which /bin and its like are links, as everywhere.
unpack() {
    local apt=$FOLDER/apt/$1 into=$2 name package
    mkdir -p "$into/usr"
    for name in bin sbin lib lib64; do
        mkdir -p "$into/usr/$name"
        ln -sfn "usr/$name" "$into/$name"
    done
    for package in "$apt"/cache/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink --no-same-owner -C "$into"
    done
    rm -rf "$apt/cache"
}

make_emulator() {
    [[ -d $FOLDER/emulator ]] && return
    echo "unpacking an emulator of aarch64"
    local own
    own=$(dpkg --print-architecture)
    rm -rf "$FOLDER/emulator.new"
    make_apt "$own"
    fetch "$own" "${EMULATOR_PACKAGES[@]}"
    unpack "$own" "$FOLDER/emulator.new"
    mv "$FOLDER/emulator.new" "$FOLDER/emulator"
}

make_root() {
    [[ -d $FOLDER/root ]] && return
    echo "unpacking a root file system for aarch64"
    rm -rf "$FOLDER/root.new" "$FOLDER/root.img" "$FOLDER/kernel"
    make_apt arm64
    fetch arm64 "${ROOT_PACKAGES[@]}"
    unpack arm64 "$FOLDER/root.new"
    (cd "$FOLDER/root.new" && rm -rf usr/share/doc usr/share/locale usr/share/man)
    mkdir -p "$FOLDER/root.new"/{dev,proc,sys,tmp,run,root,etc}
    printf 'root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$FOLDER/root.new/etc/passwd"
    printf 'root:x:0:\nnogroup:x:65534:\n' >"$FOLDER/root.new/etc/group"
    compile_python "$FOLDER/root.new"
    mv "$FOLDER/root.new" "$FOLDER/root"
}

# Compiles what the emulated Python would compile at each start, by this machine's Python if that is of the same
# version: emulated it takes long.
compile_python() {
    local root=$1 library
    library=$(python3 -c 'import sys; print("usr/lib/python%d.%d" % sys.version_info[:2])' 2>/dev/null) || return 0
    [[ -d $root/$library ]] || return 0
    python3 -m compileall -q -s "$root" -p / "$root/$library" >/dev/null || true
}

# The kernel, and the modules and programs of the little root from which the other is found.
make_kernel() {
    [[ $FOLDER/kernel/initrd.gz -nt $here/second-pu/init.sh ]] && return
    local package
    package=$(APT_CONFIG=$FOLDER/apt/arm64/apt.conf apt-cache depends linux-image-arm64 |
        awk '/Depends: linux-image/ { print $2; exit }')
    [[ -n $package ]] || skip "apt knows no kernel for aarch64 (linux-image-arm64)"
    echo "fetching $package"
    rm -rf "$FOLDER/fetched" "$FOLDER/kernel.new"
    mkdir -p "$FOLDER/fetched"
    (cd "$FOLDER/fetched" && APT_CONFIG=$FOLDER/apt/arm64/apt.conf apt-get download -qq "$package" busybox-static) \
        >/dev/null 2>&1 || skip "$package cannot be fetched"
    local file
    for file in "$FOLDER/fetched"/*.deb; do dpkg-deb -x "$file" "$FOLDER/kernel.new"; done
    rm -rf "$FOLDER/fetched"
    make_initrd "$FOLDER/kernel.new"
    rm -rf "$FOLDER/kernel"
    mv "$FOLDER/kernel.new" "$FOLDER/kernel"
}

make_initrd() {
    local unpacked=$1 tree=$1/tree place
    mkdir -p "$tree/bin" "$tree/modules"
    cp "$unpacked/bin/busybox" "$tree/bin/"
    for place in "${!MODULES[@]}"; do
        # A kernel may have some of them built in.
        find "$unpacked/lib/modules" -name "${MODULES[place]}.ko" \
            -exec cp {} "$tree/modules/$((place + 10))-${MODULES[place]}.ko" \;
    done
    install -m 755 "$here/second-pu/init.sh" "$tree/init"
    (cd "$tree" && find . | "$FOLDER/emulator/bin/busybox" cpio -o -H newc 2>/dev/null | gzip -1 >"$unpacked/initrd.gz")
    cp "$unpacked"/boot/vmlinuz-* "$unpacked/vmlinuz"
    rm -rf "$unpacked/lib" "$unpacked/boot" "$unpacked/usr" "$tree"
}

make_disk() {
    [[ $FOLDER/root.img -nt $here/second-pu/enter.sh ]] && return
    echo "making a disk of the root file system"
    install -m 755 "$here/second-pu/enter.sh" "$FOLDER/root"/enter.sh
    rm -f "$FOLDER/root.img"
    mke2fs -q -t ext4 -O ^has_journal -E root_owner=0:0 -d "$FOLDER/root" "$FOLDER/root.img.new" "$DISK_SIZE"
    mv "$FOLDER/root.img.new" "$FOLDER/root.img"
}

prepare() {
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip "there is no apt-get, which would fetch what is emulated"
    mkdir -p "$FOLDER"
    install_compilers
    install_target
    make_emulator
    make_root
    make_kernel
    make_disk
}

# Starts the emulator with its own libraries, whatever this machine has. It takes this process's place, and is killed
# when its standard input or its caller ends.
boot() {
    local files=$1 port=$2 usr=$FOLDER/emulator/usr loader libraries
    loader=$(compgen -G "$usr/lib*/ld-linux*.so.*" | head -n 1)
    libraries=$(dirname "$(compgen -G "$usr/lib/*-linux-gnu/libc.so.6")")
    exec 3<&0
    exec "$loader" --library-path "$libraries" "$usr/bin/qemu-system-aarch64" -L "$usr/share/qemu" \
        -M virt -cpu "$PROCESSOR" -accel tcg,thread=multi,tb-size=256 -smp "$PROCESSORS" -m "$MEMORY" \
        -nodefaults -display none -serial stdio -no-reboot \
        -kernel "$FOLDER/kernel/vmlinuz" -initrd "$FOLDER/kernel/initrd.gz" \
        -append 'console=ttyAMA0 quiet loglevel=1 panic=-1 mitigations=off' \
        -drive "file=$FOLDER/root.img,format=raw,if=none,id=root,snapshot=on" -device virtio-blk-pci,drive=root \
        -drive "file=$files,format=raw,if=none,id=files,readonly=on" -device virtio-blk-pci,drive=files \
        -netdev "user,id=network,hostfwd=tcp::$port-:$port" -device virtio-net-pci,netdev=network,romfile= \
        < <(cat <&3; kill -KILL $$ 2>/dev/null)
}

case ${1-} in
prepare) prepare ;;
boot) boot "$(realpath "$2")" "$3" ;;
*)
    sed -n '2,7s/^# //p' "$0" >&2
    exit 2
    ;;
esac
