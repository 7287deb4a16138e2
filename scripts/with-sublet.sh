#!/usr/bin/env bash
# Runs a command beside a `sublet up` of its own: scripts/with-sublet.sh COMMAND [ARGUMENT...]. Its state is a folder that
# is gone afterwards; its exit status is the command's. The variable START has the words that start it, if
# not `sublet up`. cargo has built Sublet with the profile SUBLET_PROFILE (release).
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)

SUBLET_STATE=$(mktemp -d "${TMPDIR:-/tmp}/sublet.XXXXXX")
built=$(cd "$top" && realpath "${CARGO_TARGET_DIR:-target}/${SUBLET_PROFILE:-release}")
export SUBLET_STATE PATH="$built:$PATH"
unset SUBLET_MANAGER
readonly LOG=$SUBLET_STATE/up.log
server=

finish() {
    local status=$?
    if [[ -n $server ]]; then
        kill -TERM "$server" 2>/dev/null || true
        wait "$server" || status=$?
    fi
    [[ $status -eq 0 ]] || { printf '\nwhat sublet up said:\n' && tail -n 40 "$LOG"; } >&2
    rm -rf "$SUBLET_STATE"
    exit "$status"
}
trap finish EXIT

${START:-sublet up} >"$LOG" 2>&1 &
server=$!
for ((tries = 0; tries < 1800; tries++)); do
    sublet ps --json 2>/dev/null | grep -q '"cores"' && break
    kill -0 "$server" || exit 1
    sleep 0.1
done
"$@"
