#!/usr/bin/env bash
# The demonstration: prices options on this process's threads and on leased cores, shows the lease and the bill; fits a model as
# one process and as components that share memory.
set -euo pipefail
cd "$(dirname "$0")/.."

export OPTIONS=${OPTIONS:-1000000} SUBLET_PROFILE=demo

heading() {
    printf '\n== %s\n' "$1"
}

# Beside a running Sublet.
show() {
    heading "Black-Scholes, $OPTIONS options: local threads, leased cores, half and half"
    examples/blackscholes/run.sh --options "$OPTIONS"
    heading 'logistic regression: one process, and components that share memory'
    examples/logistic_regression/run --mb 4 --rounds 1
    heading 'the memory of that run: leased, and used'
    sublet graph history --limit 1
    sublet graph history "$(sublet graph history --limit 1 --json | sed -n 's/^{"runs":\[{"run":"\([0-9a-f]*\)".*/\1/p')"
    heading 'sublet ps'
    sublet ps
    heading 'sublet bill: the cost of each function'
    sublet bill --by function
}

if [[ ${1-} == show ]]; then
    show
    exit
fi
trap '[[ $? -eq 0 ]] || printf "\ndemo: FAILED\n"' EXIT
heading 'building (a fresh clone takes a few minutes)'
# Only what is shown here: no tests, no benchmarks, no WebAssembly.
cargo build --profile demo -p sublet-cli -p sublet-capi -p sublet-runtime -p sublet-sandbox
heading 'starting sublet up in a folder of its own'
scripts/with-sublet.sh scripts/demo.sh show
printf '\ndemo: OK\n'
