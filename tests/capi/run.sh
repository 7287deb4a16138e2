#!/usr/bin/env bash
# Tests the C and C++ interfaces and the examples, as a user has them. They are installed in a folder of their own, found
# by CMake and by pkg-config, and run against a `sublet up` of their own. Cargo has built everything, with the profile
# SUBLET_PROFILE (release). With SUBLET_SANITIZE (address) the programs are compiled with that sanitizer.
# SUBLET_SANITIZED_LIBRARY names a libsublet.so with the same sanitizer that replaces the installed one.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly TESTS=tests/capi EXAMPLES=examples BUILT=${CARGO_TARGET_DIR:-target}/${SUBLET_PROFILE:-release}
# How long one program may take, in seconds.
readonly LIMIT=120
scratch=$(mktemp -d "${TMPDIR:-/tmp}/sublet-capi.XXXXXX")
readonly PREFIX=$scratch/prefix BUILD=$scratch/build
export SUBLET_STATE=$scratch/state
unset SUBLET_MANAGER
readonly MANAGER=unix:$SUBLET_STATE/manager.sock
server=
passed=0 failed=0

finish() {
    if [[ -n $server ]]; then
        kill -TERM "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    rm -rf "$scratch"
}
trap finish EXIT

# verdict NAME STATUS: one check more, and what it said if it failed.
verdict() {
    if [[ $2 -eq 0 ]]; then
        passed=$((passed + 1))
        echo "test $1 ... ok"
    else
        failed=$((failed + 1))
        sed 's/^/    /' "$scratch/output"
        echo "test $1 ... FAILED (status $2)"
    fi
}

# check NAME COMMAND...
check() {
    local status=0
    timeout "$LIMIT" "${@:2}" >"$scratch/output" 2>&1 || status=$?
    verdict "$1" "$status"
}

# run_tests NAME COMMAND...: a program of several tests, which says what became of each.
run_tests() {
    local status=0 ok bad
    timeout "$LIMIT" "${@:2}" >"$scratch/output" 2>&1 || status=$?
    sed "s/^test /test $1: /; s/^skipped: /skipped: $1: /" "$scratch/output"
    ok=$(grep -c '^test .* \.\.\. ok$' "$scratch/output") || true
    bad=$(grep -c '^test .* \.\.\. FAILED$' "$scratch/output") || true
    # One that ends early has failed in the test that it did not come to the end of.
    if [[ $status -ne 0 && $bad -eq 0 || $((ok + bad)) -eq 0 ]]; then
        echo "test $1 ... FAILED (status $status)"
        bad=$((bad + 1))
    fi
    passed=$((passed + ok)) failed=$((failed + bad))
}

# says COMMAND...: whether the command prints what hello prints in every language.
says() {
    diff "$TESTS/hello.expected" <("$@" 2>&1)
}

# A header compiles alone, without a warning, in the given language.
compiles() {
    local compiler=$1 language=$2 standard=$3 header=$4
    "$compiler" -x "$language" "-std=$standard" -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -fsyntax-only \
        -I"$PREFIX/include" - <<<"#include <$header>"
}

# build_with_pkg_config OUTPUT COMPILER ARGUMENT...
build_with_pkg_config() {
    local output=$1
    shift
    # shellcheck disable=SC2046 # flags are words
    "$@" $(PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig pkg-config --cflags --libs sublet) -o "$output"
}

build_with_cmake() {
    cmake -S "$TESTS/cmake" -B "$BUILD" -DCMAKE_PREFIX_PATH="$PREFIX" -DCMAKE_BUILD_TYPE=Release \
        -DSANITIZE="${SUBLET_SANITIZE-}" &&
        cmake --build "$BUILD" --parallel "$(nproc)"
}

# Nothing in the installed tree names the folder that it was installed in.
runs_after_a_move() {
    mv "$PREFIX" "$PREFIX-moved" || return
    local status=0
    PKG_CONFIG_PATH=$PREFIX-moved/lib/pkgconfig pkg-config --cflags sublet | grep -q "$PREFIX-moved" || status=$?
    "$PREFIX-moved/bin/sublet" ps || status=$?
    mv "$PREFIX-moved" "$PREFIX"
    return $status
}

# Options through a file and back, priced on threads and workers.
price_a_file() {
    make --no-print-directory --directory=$EXAMPLES/blackscholes PREFIX="$PREFIX" BUILD="$scratch/blackscholes" \
        CFLAGS='-O2 -Werror' CXXFLAGS='-O2 -Werror' || return
    cd "$scratch/blackscholes"
    ./generator 1000 options.txt && [[ $(wc -l <options.txt) -eq 1001 ]] || return
    ./blackscholes --input options.txt --output prices.txt --runs 3 --repeat 1 || return
    [[ $(head -n 1 prices.txt) == 1000 && $(wc -l <prices.txt) -eq 1001 ]] || return
    ./blackscholes --options 1000 --workers 1 --runs 1 --repeat 1 --json | grep -q '"largest_difference":0,'
}

# A file that ends too early is an error that names the line.
refuses_a_short_file() {
    cd "$scratch/blackscholes"
    head -n 10 options.txt >short.txt
    ! ./blackscholes --input short.txt 2>error.txt && grep 'short.txt:11:' error.txt
}

start() {
    mkdir -p "$SUBLET_STATE"
    # The installed command, which must find the installed worker.
    "$PREFIX/bin/sublet" up --cores 2 --listen 127.0.0.1:0 >"$scratch/up.log" 2>&1 &
    server=$!
    local tries
    for ((tries = 0; tries < 1800; tries++)); do
        "$PREFIX/bin/sublet" ps --json 2>/dev/null | grep -q '"cores"' && return
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    echo 'sublet up does not start:'
    cat "$scratch/up.log"
    return 1
}

# over FABRIC COMMAND...: with the calls carried by it.
over() {
    SUBLET_FABRIC=$1 "${@:2}"
}

export -f says over compiles build_with_pkg_config build_with_cmake runs_after_a_move price_a_file refuses_a_short_file
export TESTS EXAMPLES PREFIX BUILD scratch
in_shell() { check "$1" bash -c '"$@"' bash "${@:2}"; }

check 'install' scripts/install.sh "$PREFIX"
if [[ -n ${SUBLET_SANITIZED_LIBRARY-} ]]; then
    library=$(readlink -f "$PREFIX/lib/libsublet.so")
    check 'the sanitized library is installed' cp "$SUBLET_SANITIZED_LIBRARY" "$library"
fi
for standard in c11 c17; do
    for header in sublet.h sublet_memory.h sublet_graph.h sublet_swap.h sublet_function.h sublet_xpu.h; do
        in_shell "$header compiles as $standard" compiles "${CC:-cc}" c "$standard" "$header"
    done
done
for standard in c++17 c++20; do
    for header in sublet.h sublet_memory.h sublet_graph.h sublet_swap.h sublet_function.h sublet_xpu.h \
        sublet.hpp sublet_memory.hpp sublet_graph.hpp sublet_swap.hpp; do
        in_shell "$header compiles as $standard" compiles "${CXX:-c++}" c++ "$standard" "$header"
    done
done
in_shell 'find_package finds it' build_with_cmake
in_shell 'pkg-config finds it for C' build_with_pkg_config "$scratch/hello-c" "${CC:-cc}" -std=c11 $EXAMPLES/c/hello.c
in_shell 'pkg-config finds it for C++' build_with_pkg_config "$scratch/hello-cpp" "${CXX:-c++}" -std=c++17 $EXAMPLES/cpp/hello.cpp

start
readonly HELLO=$BUILD/libhello.so
in_shell 'the tree may be moved' runs_after_a_move
in_shell 'hello in C' says "$scratch/hello-c" "$HELLO"
in_shell 'hello in C++' says "$scratch/hello-cpp" "$HELLO"
in_shell 'hello in Rust' says "$BUILT/hello" "$HELLO"
in_shell 'hello by CMake in C' says "$BUILD/hello-c" "$HELLO"
in_shell 'hello by CMake in C++' says "$BUILD/hello-cpp" "$HELLO"
in_shell 'hello with the static library' says "$BUILD/hello-static" "$HELLO"
check 'Listing 2 of the paper' "$BUILD/listing2" "$MANAGER" "$BUILD/libfunctions.so"
for fabric in tcp tcp+tls; do
    in_shell "hello in C over $fabric" over "$fabric" says "$scratch/hello-c" "$HELLO"
    in_shell "hello in C++ over $fabric" over "$fabric" says "$scratch/hello-cpp" "$HELLO"
    in_shell "hello in Rust over $fabric" over "$fabric" says "$BUILT/hello" "$HELLO"
    in_shell "Listing 2 of the paper over $fabric" over "$fabric" "$BUILD/listing2" "$MANAGER" "$BUILD/libfunctions.so"
done
run_tests c "$BUILD/calls-c" "$BUILD/libfunctions.so"
run_tests c++ "$BUILD/calls-cpp" "$BUILD/libfunctions.so" "$BUILD/libthrowing.so"
run_tests 'memory in c' "$BUILD/memory-c"
run_tests 'memory in c++' "$BUILD/memory-cpp"
check 'components are deployed' "$PREFIX/bin/sublet" deploy "$BUILD/libcomponents.so"
run_tests 'graphs in c' "$BUILD/graphs-c"
run_tests 'graphs in c++' "$BUILD/graphs-cpp"
run_tests 'swapping in c' "$BUILD/swapping-c"
run_tests 'swapping in c++' "$BUILD/swapping-cpp"
in_shell 'blackscholes prices a file' price_a_file
in_shell 'blackscholes prices a file over tcp' over tcp price_a_file
in_shell 'blackscholes refuses a short file' refuses_a_short_file

outcome=ok
[[ $failed -eq 0 ]] || outcome=FAILED
printf '\ntest result: %s. %d passed; %d failed\n%d passed, %d failed\n' $outcome $passed $failed $passed $failed
[[ $failed -eq 0 ]]
