#!/usr/bin/env bash
# Installs what cargo has built with the profile SUBLET_PROFILE (release): scripts/install.sh PREFIX [--systemd | --library].
# With DESTDIR, files go to $DESTDIR$PREFIX. With SUBLET_TARGET (such as x86_64-unknown-linux-gnu) cargo has built for that target,
# without symbols; SUBLET_COMMAND then names a sublet that runs here, which writes completions and manual pages.
#
#   bin/sublet                   the command
#   libexec/sublet/              the worker programs and the one that makes sandboxes, which only agents start; what images
#                                with musl need, if it was built
#
#   lib/libsublet.{so,a}         the C library; lib/pkgconfig and lib/cmake tell how to use it
#
#   include/                     sublet.h, sublet.hpp, sublet_memory.h, sublet_memory.hpp, sublet_graph.h, sublet_graph.hpp,
#                                sublet_swap.h, sublet_swap.hpp, sublet_function.h, sublet_xpu.h; sublet.f90 and
#                                sublet_function.f90, which programs in Fortran compile
#
#   share/sublet/rust/           the crate sublet-function, for functions in Rust
#   share/sublet/nodejs/         the package @sublet/sublet of npm, with types for functions in TypeScript
#   share/                       completions for bash, zsh and fish; manual pages
#
# --library installs lib/, include/, share/sublet/rust/ and share/sublet/nodejs/ only: what programs are compiled with.
#
# Nothing installed names the prefix, so the tree may be moved. With --systemd there are also these files, which do name it:
#
#   lib/systemd/system/          sublet-manager.service, sublet-agent.service, sublet-runner.service
#   lib/{sysusers,tmpfiles}.d/   their user, and /etc/sublet with the three configurations
#   share/sublet/                manager.toml, agent.toml, runner.env, from which those are made
set -euo pipefail

if [[ $# -lt 1 || $# -gt 2 || -z $1 || $1 == -* || ! ${2---library} =~ ^--(library|systemd)$ ]]; then
    echo 'usage: scripts/install.sh PREFIX [--systemd | --library]' >&2
    exit 2
fi
# A relative prefix is meant from where the command was given.
named=$(realpath --canonicalize-missing --no-symlinks "$1")
readonly named prefix=${DESTDIR-}$named extent=${2-}
cd "$(dirname "$0")/.."

readonly TARGET=${SUBLET_TARGET-}
BUILT=$(realpath "${CARGO_TARGET_DIR:-target}/${TARGET:+$TARGET/}${SUBLET_PROFILE:-release}")
readonly BUILT COMMAND=${SUBLET_COMMAND:-$BUILT/sublet} CAPI=crates/capi FUNCTION=crates/function
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
interface=$(sed -n 's/^const INTERFACE: u32 = \([0-9]*\);$/\1/p' $CAPI/build.rs)

# put MODE FROM TO: leaves an equal file alone, and otherwise replaces it: a program may have mapped the old one.
put() {
    cmp --quiet "$2" "$prefix/$3" && return
    install -D --mode="$1" "$2" "$prefix/$3.new"
    mv --force "$prefix/$3.new" "$prefix/$3"
}

# put_program FROM TO: installs a program or library without symbols; they go to the folder .debug beside it, where debuggers
# look for them.
put_program() {
    local folder name
    if [[ -n $TARGET ]]; then
        put 755 "$1" "$2"
        return
    fi
    folder=$(mktemp -d) name=$(basename "$2")
    objcopy --only-keep-debug "$1" "$folder/$name.debug"
    strip -o "$folder/$name" "$1"
    (cd "$folder" && objcopy --add-gnu-debuglink="$name.debug" "$name")
    put 755 "$folder/$name" "$2"
    put 644 "$folder/$name.debug" "$(dirname "$2")/.debug/$name.debug"
    rm -r "$folder"
}

fill() {
    local filled
    filled=$(mktemp)
    sed -e "s/@VERSION@/$version/g" -e "s/@INTERFACE@/$interface/g" -e "s|@PREFIX@|$named|g" "$1" >"$filled"
    put 644 "$filled" "$2"
    rm "$filled"
}

completions() {
    local shell=$1 to=$2 script
    script=$(mktemp)
    if "$COMMAND" completions "$shell" >"$script" 2>/dev/null; then
        put 644 "$script" "$to"
    fi
    rm "$script"
}

manual() {
    local folder page
    folder=$(mktemp -d)
    if "$COMMAND" manual "$folder" >/dev/null 2>&1; then
        for page in "$folder"/*.1; do
            put 644 "$page" "share/man/man1/$(basename "$page")"
        done
    fi
    rm -r "$folder"
}

programs() {
    local name language
    put_program "$BUILT/sublet" bin/sublet
    for name in worker worker-wasm worker-kernels spawner; do
        put_program "$BUILT/sublet-$name" "libexec/sublet/sublet-$name"
    done
    for language in python node; do
        put_program "$BUILT/libsublet_template_$language.so" "libexec/sublet/libsublet_template_$language.so"
    done
    for name in sublet-worker-musl libsublet_template_python_musl.so; do
        if [[ -e $BUILT/$name ]]; then
            put_program "$BUILT/$name" "libexec/sublet/$name"
        else
            rm -f "$prefix/libexec/sublet/$name" "$prefix/libexec/sublet/.debug/$name.debug"
        fi
    done
    completions bash share/bash-completion/completions/sublet
    completions zsh share/zsh/site-functions/_sublet
    completions fish share/fish/vendor_completions.d/sublet.fish
    manual
}

# The source of a crate without dependencies, as a package outside of this workspace.
function_crate() {
    local source
    fill $FUNCTION/installed.toml.in "$1/Cargo.toml"
    while IFS= read -r source; do
        put 644 "$FUNCTION/$source" "$1/$source"
    done < <(cd $FUNCTION && find src -name '*.rs' ! -name tests.rs | sort)
}

library() {
    local header file
    put_program "$BUILT/libsublet_c.so" "lib/libsublet.so.$interface"
    ln --symbolic --force --no-dereference "libsublet.so.$interface" "$prefix/lib/libsublet.so"
    put 644 "$BUILT/libsublet_c.a" lib/libsublet.a
    for header in sublet.h sublet.hpp sublet_memory.h sublet_memory.hpp sublet_graph.h sublet_graph.hpp sublet_swap.h \
        sublet_swap.hpp sublet_function.h sublet_xpu.h sublet.f90 sublet_function.f90; do
        put 644 "$CAPI/include/$header" "include/$header"
    done
    function_crate share/sublet/rust/sublet-function
    for file in package.json index.js index.d.ts; do
        put 644 "crates/template-node/npm/$file" "share/sublet/nodejs/$file"
    done
    fill $CAPI/pkgconfig/sublet.pc.in lib/pkgconfig/sublet.pc
    fill $CAPI/cmake/sublet-config.cmake.in lib/cmake/sublet/sublet-config.cmake
    fill $CAPI/cmake/sublet-config-version.cmake.in lib/cmake/sublet/sublet-config-version.cmake
}

units() {
    local unit
    for unit in sublet-manager.service sublet-agent.service sublet-runner.service; do
        fill "packaging/systemd/$unit" "lib/systemd/system/$unit"
    done
    fill packaging/systemd/sublet.sysusers.conf lib/sysusers.d/sublet.conf
    fill packaging/systemd/sublet.tmpfiles.conf lib/tmpfiles.d/sublet.conf
    put 644 packaging/manager.toml share/sublet/manager.toml
    put 644 packaging/agent.toml share/sublet/agent.toml
    put 644 packaging/runner.env share/sublet/runner.env
}

[[ $extent == --library ]] || programs
library
[[ $extent != --systemd ]] || units

echo "installed Sublet $version under $prefix"
