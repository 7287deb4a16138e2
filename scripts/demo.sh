#!/usr/bin/env bash
# The demonstration: starts Sublet in a folder of its own, prices options on leased cores, shows the bill, stops.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly OPTIONS=${OPTIONS:-1000000}
readonly SUBLET=target/release/sublet
SUBLET_STATE=$(mktemp -d "${TMPDIR:-/tmp}/sublet-demo.XXXXXX")
export SUBLET_STATE
unset SUBLET_MANAGER
server=

heading() {
    printf '\n== %s\n' "$1"
}

# Runs at every exit; an exit before the last line of this script is a failure.
finish() {
    local status=$?
    if [[ -n $server ]]; then
        kill -TERM "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    if [[ $status -ne 0 ]]; then
        [[ -s $SUBLET_STATE/up.log ]] && { heading 'what sublet up said' && tail -n 40 "$SUBLET_STATE/up.log"; }
        printf '\ndemo: FAILED\n'
    fi
    rm -rf "$SUBLET_STATE"
}
trap finish EXIT

wait_until_up() {
    local tries
    for ((tries = 0; tries < 100; tries++)); do
        "$SUBLET" ps >/dev/null 2>&1 && return
        kill -0 "$server" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}

heading 'building (a fresh clone takes a few minutes)'
cargo build --release --workspace

heading 'sublet up'
"$SUBLET" up >"$SUBLET_STATE/up.log" 2>&1 &
server=$!
wait_until_up

heading "Black-Scholes, $OPTIONS options: on this process's threads, on leased cores, half and half"
examples/blackscholes/run.sh --options "$OPTIONS"

heading 'sublet ps'
"$SUBLET" ps

heading 'sublet bill'
"$SUBLET" bill

heading 'stopping'
kill -TERM "$server"
wait "$server"
server=
printf '\ndemo: OK\n'
