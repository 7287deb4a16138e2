#!/usr/bin/env bash
# Makes the OCI image of what `cargo xtask dist` has built, without a daemon: image.sh WORK FOLDER. Started by xtask, which sets
# SUBLET_VERSION, SUBLET_TARGET, SUBLET_IMAGE and SUBLET_DEBIAN (the architecture's names), and what scripts/install.sh reads.
#
# The image has the command, the programs that agents start, and of Debian 13 what they and functions use: the C and C++
# libraries, Python, and the authorities that registries are checked by. It has no shell. Its user is not root.
set -euo pipefail

readonly WORK=${1:?usage: scripts/dist/image.sh WORK FOLDER} FOLDER=${2:?usage: scripts/dist/image.sh WORK FOLDER}
readonly VERSION=${SUBLET_VERSION:?} ARCHITECTURE=${SUBLET_IMAGE:?} DEBIAN=${SUBLET_DEBIAN:?} NOTICES=${SUBLET_NOTICES:?}
readonly SUITE=trixie
readonly PACKAGES=(libc6 libgcc-s1 libstdc++6 zlib1g libffi8 libexpat1 libssl3t64 liblzma5 libbz2-1.0 libzstd1 libuuid1 libsqlite3-0
    python3.13-minimal libpython3.13-minimal libpython3.13-stdlib)
# Number of the user; agents of Kubernetes name it too.
readonly USER_ID=64128
# What nobody reads in an image. The copyright files of the packages stay.
readonly UNUSED=(usr/share/{man,locale,lintian,bug,info,bash-completion,zsh,fish,applications,pixmaps,binfmts,menu} usr/include
    usr/lib/pkgconfig usr/lib/cmake usr/lib/libsublet.a usr/share/sublet usr/share/gcc)

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly TREE=$WORK/tree LAYOUT=$WORK/layout
root=$(scripts/dist/root.sh "$SUITE")

# Unpacks Debian's packages of the image's architecture, which are downloaded in the root file system of the release: there
# the keys are, and this machine's lists of packages stay as they are.
unpack_packages() {
    local package downloads=$root/var/cache/image-$DEBIAN
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    mkdir -p "$downloads"
    rm -f "$downloads"/*.deb
    chroot "$root" dpkg --add-architecture "$DEBIAN"
    chroot "$root" apt-get --quiet=2 update
    (for package in "${PACKAGES[@]}"; do echo "$package:$DEBIAN"; done) | chroot "$root" sh -euc \
        "cd '/var/cache/image-$DEBIAN' && xargs apt-get --quiet=2 -o APT::Sandbox::User=root download"
    for package in "$downloads"/*.deb; do
        dpkg-deb --extract "$package" "$TREE"
    done
}

system_files() {
    mkdir -p "$TREE"/{etc/ssl/certs,tmp,proc,sys,dev,run,home,var/tmp,var/lib/sublet}
    chmod 1777 "$TREE/tmp" "$TREE/var/tmp"
    chown "$USER_ID:$USER_ID" "$TREE/var/lib/sublet"
    cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$TREE/etc/ssl/certs/ca-certificates.crt"
    printf 'root:x:0:0:root:/root:/sbin/nologin\nsublet:x:%d:%d:Sublet:/var/lib/sublet:/sbin/nologin\n' "$USER_ID" "$USER_ID" \
        >"$TREE/etc/passwd"
    printf 'root:x:0:\nsublet:x:%d:\n' "$USER_ID" >"$TREE/etc/group"
    printf 'passwd: files\ngroup: files\nhosts: files dns\n' >"$TREE/etc/nsswitch.conf"
    ln --symbolic --force python3.13 "$TREE/usr/bin/python3"
}

# Debian's packages are of a system whose /bin, /lib and /sbin are links into /usr.
merged_usr() {
    local name
    for name in bin lib lib64 sbin; do
        mkdir -p "$TREE/usr/$name"
        ln --symbolic "usr/$name" "$TREE/$name"
    done
}

remove_unused() {
    local path
    for path in "${UNUSED[@]}"; do
        rm -rf "${TREE:?}/$path"
    done
    find "$TREE/usr/share/doc" -type f ! -name copyright ! -path '*/sublet/*' -delete
    find "$TREE/usr/lib" -depth \( -name gconv -o -name '__pycache__' -o -name 'config-3.*' \) -exec rm -rf {} +
    find "$TREE/usr/bin" -type f ! -name sublet ! -name 'python3*' -delete
}

mkdir -p "$TREE"
merged_usr
unpack_packages
DESTDIR=$TREE scripts/install.sh /usr
system_files
remove_unused
mkdir -p "$TREE/usr/share/doc/sublet"
cp LICENSE "$NOTICES" "$TREE/usr/share/doc/sublet/"
find "$TREE" -exec touch --no-dereference --date="@$(git log -1 --format=%ct)" {} +

rm -rf "$LAYOUT"
umoci init --layout "$LAYOUT"
umoci new --image "$LAYOUT:$VERSION"
umoci insert --image "$LAYOUT:$VERSION" "$TREE" /
umoci config --image "$LAYOUT:$VERSION" --architecture "$ARCHITECTURE" --os linux --config.user "$USER_ID:$USER_ID" \
    --config.entrypoint /usr/bin/sublet --config.cmd --help --config.workingdir /var/lib/sublet \
    --config.env SUBLET_STATE=/var/lib/sublet --config.env PATH=/usr/bin \
    --config.label "org.opencontainers.image.version=$VERSION" --config.label org.opencontainers.image.licenses=Apache-2.0 \
    --config.label org.opencontainers.image.title=sublet
umoci gc --layout "$LAYOUT"
if [[ $DEBIAN == "$(dpkg --print-architecture)" ]]; then
    umoci unpack --image "$LAYOUT:$VERSION" "$WORK/bundle"
    python3 scripts/dist/try_image.py "$WORK/bundle"
fi
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$LAYOUT" -cf "$FOLDER/sublet-$VERSION-$ARCHITECTURE.oci.tar" .
echo "the tree of the image has $(du --apparent-size -sm "$TREE" | cut -f 1) MB"
