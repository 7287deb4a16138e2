#!/usr/bin/env bash
# Makes Debian's packages of what `cargo xtask dist` has built: deb.sh STAGE FOLDER. Started by xtask, which sets SUBLET_VERSION,
# SUBLET_TARGET, SUBLET_DEBIAN (Debian's name of the architecture), SUBLET_NOTICES and what scripts/install.sh reads.
#
#   sublet          the command, the programs that agents start, units, completions, manual pages
#   libsublet0      the C library
#   libsublet-dev   headers, the static library, and what tells compilers of them
#
# The units are installed and neither enabled nor started: a manager needs an address, and an agent a manager.
set -euo pipefail

readonly STAGE=${1:?usage: scripts/dist/deb.sh STAGE FOLDER} FOLDER=${2:?usage: scripts/dist/deb.sh STAGE FOLDER}
readonly VERSION=${SUBLET_VERSION:?} ARCHITECTURE=${SUBLET_DEBIAN:?} NOTICES=${SUBLET_NOTICES:?}
readonly MAINTAINER='The Sublet developers <sublet@example.org>'
# Tags of lintian that are wrong here are in packaging/debian/*.lintian-overrides, each with its reason.
readonly SOURCES=packaging/debian

cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Moves files of the library's tree, which is part of the command's tree, out of the latter.
separate_library() {
    local path
    (cd "$STAGE/library" && find . ! -type d) | while IFS= read -r path; do
        rm "$STAGE/sublet/$path"
    done
    find "$STAGE/sublet" -type d -empty -delete
}

# Moves paths from one package to another: move FROM TO PATH...
move() {
    local from=$STAGE/$1 to=$STAGE/$2 path
    shift 2
    for path in "$@"; do
        mkdir -p "$to/$(dirname "$path")"
        mv "$from/$path" "$to/$path"
    done
}

changelog() {
    printf '%s (%s) unstable; urgency=medium\n\n  * See https://github.com/sublet/sublet/releases/tag/v%s.\n\n -- %s  %s\n' \
        sublet "$VERSION" "$VERSION" "$MAINTAINER" "$(LC_ALL=C date --utc --rfc-email --date="@${SOURCE_DATE_EPOCH:?}")"
}

documents() {
    local name=$1 folder=$STAGE/$1/usr/share/doc/$1
    mkdir -p "$folder"
    changelog | gzip -9n >"$folder/changelog.gz"
    sed "s/@NAME@/$name/" "$SOURCES/copyright" >"$folder/copyright"
    gzip -9n <"$NOTICES" >"$folder/third-party-notices.gz"
    if [[ -e $SOURCES/$name.lintian-overrides ]]; then
        install -D --mode=644 "$SOURCES/$name.lintian-overrides" "$STAGE/$name/usr/share/lintian/overrides/$name"
    fi
    find "$STAGE/$name" -path '*/man/*' -name '*.1' -exec gzip -9n {} +
}

control() {
    local name=$1 folder=$STAGE/$1/DEBIAN script
    mkdir -p "$folder"
    sed -e "s/@VERSION@/$VERSION/g" -e "s/@ARCHITECTURE@/$ARCHITECTURE/g" -e "s/@MAINTAINER@/$MAINTAINER/g" \
        -e "s/@SIZE@/$(du --apparent-size -sk "$STAGE/$name/usr" | cut -f 1)/g" "$SOURCES/$name.control" >"$folder/control"
    for script in postinst prerm postrm triggers shlibs; do
        [[ ! -e $SOURCES/$name.$script ]] || install --mode=755 "$SOURCES/$name.$script" "$folder/$script"
    done
    [[ ! -e $folder/triggers ]] || chmod 644 "$folder/triggers" "$folder/shlibs"
    (cd "$STAGE/$name" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$folder/md5sums"
}

# The same tree gives the same packages: times are those of the last commit.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
DESTDIR=$STAGE/sublet scripts/install.sh /usr --systemd
DESTDIR=$STAGE/library scripts/install.sh /usr --library
separate_library
move library libsublet0 usr/lib/libsublet.so.0
chmod 644 "$STAGE/libsublet0/usr/lib/libsublet.so.0"
mv "$STAGE/library" "$STAGE/libsublet-dev"
# Where compilers for other architectures look for it, too.
case $ARCHITECTURE in
amd64) multiarch=x86_64-linux-gnu ;;
arm64) multiarch=aarch64-linux-gnu ;;
esac
mkdir -p "$STAGE/libsublet-dev/usr/lib/$multiarch"
mv "$STAGE/libsublet-dev/usr/lib/pkgconfig" "$STAGE/libsublet-dev/usr/lib/$multiarch/pkgconfig"
mkdir -p "$STAGE/sublet/usr/share/zsh"
mv "$STAGE/sublet/usr/share/zsh/site-functions" "$STAGE/sublet/usr/share/zsh/vendor-completions"

for name in sublet libsublet0 libsublet-dev; do
    documents "$name"
    control "$name"
    chmod -R go=rX,u+rw "$STAGE/$name"
    find "$STAGE/$name" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$STAGE/$name" "$FOLDER/${name}_${VERSION}_$ARCHITECTURE.deb"
    lintian --allow-root --fail-on error,warning --tag-display-limit 0 "$FOLDER/${name}_${VERSION}_$ARCHITECTURE.deb"
done
