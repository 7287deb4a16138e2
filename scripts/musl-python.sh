#!/usr/bin/env bash
# Compiles a CPython that is linked with musl, from the source of Debian's own Python, into target/tools/musl-python: an image with
# musl, such as Alpine's, has such an interpreter, and no registry of such images is needed then. A few minutes, once.
#
#   bin/python3                   the interpreter, with the modules in C that workers use
#   lib/python3.*/                its library
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly FOLDER=target/tools/musl-python
# Modules in C that the interpreter is linked with, by their names in Modules/Setup. Those that need further libraries are left
# out; not every version has all of these.
readonly MODULES='_asyncio _bisect _blake2 _contextvars _csv _datetime _heapq _json _lsprof _md5 _multiprocessing _opcode _pickle
_posixsubprocess _queue _random _sha1 _sha2 _sha256 _sha3 _sha512 _socket _statistics _struct _typing _zoneinfo array binascii
cmath fcntl grp math mmap resource select syslog termios unicodedata'

stop() {
    printf 'musl-python.sh: %s\n' "$*" >&2
    exit 1
}

# The upstream source of Debian's Python, from the mirror of this machine, with lists of packages of its own.
fetch() {
    local work=$1 package=$2
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
    apt-get indextargets --format 'deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
        grep -v -- '-\(security\|updates\) ' | sort -u >"$work/sources.list"
    local options=(-o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" --quiet update >/dev/null
    (cd "$work" && apt-get "${options[@]}" --quiet source --download-only --tar-only "$package" >/dev/null)
}

build() {
    local work=$1 source=$2
    (
        cd "$source"
        printf '*static*\n' >Modules/Setup.local
        for module in $MODULES; do
            sed -n "s/^#*\($module [^#]*\).*/\1/p" Modules/Setup >>Modules/Setup.local
        done
        # The script of Debian tells of the folders for glibc, with which configure finds a contradiction.
        printf '#!/bin/sh\n[ "$1" != --print-multiarch ] || exit 1\nexec musl-gcc "$@"\n' >"$work/cc"
        chmod +x "$work/cc"
        # Without the libraries for glibc that pkg-config knows. Quick to compile: nothing here measures the interpreter.
        CC=$work/cc CFLAGS='-O1 -g0' PKG_CONFIG=false ./configure --prefix=/usr --without-ensurepip --disable-test-modules --without-static-libpython &&
            make --silent -j"$(nproc)" python
    ) >"$work/build.log" 2>&1 || { tail -n 30 "$work/build.log" >&2; stop "CPython was not compiled: see $work/build.log"; }
}

main() {
    local version package work source
    command -v musl-gcc >/dev/null || stop 'there is no musl-gcc: scripts/setup.sh test installs it'
    package=$(apt-cache depends python3-minimal | grep -om1 'python3\.[0-9]*')
    version=${package#python}
    [[ -x $FOLDER/bin/python3 && -d $FOLDER/lib/python$version ]] && return
    echo "compiling $package with musl"
    work=$(realpath --canonicalize-missing "$FOLDER.work")
    rm -rf "$work" "$FOLDER"
    mkdir -p "$work/source"
    fetch "$work" "$package"
    tar -xf "$work/${package}"_*.orig.tar.* --strip-components=1 -C "$work/source"
    build "$work" "$work/source"
    source=$work/source
    mkdir -p "$work/made/bin" "$work/made/lib/python$version/lib-dynload"
    cp -a "$source/Lib/." "$work/made/lib/python$version/"
    rm -rf "$work/made/lib/python$version"/{test,idlelib,lib2to3,ensurepip,tkinter,turtledemo}
    strip -o "$work/made/bin/python3" "$source/python"
    mv "$work/made" "$FOLDER"
    rm -rf "$work"
}

main
