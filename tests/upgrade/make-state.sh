#!/usr/bin/env bash
# Makes state.tar.gz with the programs of a version: `make-state.sh PROGRAMS`, the folder that has its `sublet`.
#
# A manager and an agent of that version get what a user would leave there: packages, tokens, tenants with limits, a graph
# with a run, a ledger. Then they are killed while a client holds a lease, so that the write-ahead log and the journals
# are in use. `before.json` is what the version itself lists a moment before.
set -euo pipefail
umask 077

readonly PROGRAMS=$(cd "$1" && pwd)
readonly HERE=$(cd "$(dirname "$0")" && pwd)
readonly FUNCTIONS=$HERE/../functions
folder=$(mktemp -d)
pids=()
stop() {
    kill -KILL "${pids[@]}" 2>/dev/null || true
    rm -rf "$folder"
}
trap stop EXIT

sublet() {
    "$PROGRAMS/sublet" "$@"
}
wait_until() {
    local tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        ((tries < 3600)) || { echo "in vain: $*" >&2; exit 1; }
        sleep 0.05
    done
}
lends() {
    sublet ps | grep -q lending
}
# Whether the bill has the first call of the lease that is killed.
is_billed() {
    sublet ps --json | grep -q '"attached"' && sublet bill --json | grep -q libfaults && test -s "$folder/agent/leases.journal"
}

for source in calls components faults; do
    cc -std=c11 -O2 -s -shared -fPIC -o "$folder/lib$source.so" "$FUNCTIONS/$source.c"
done
export SUBLET_MANAGER=unix:$folder/manager/manager.sock SUBLET_PYTHON=none
unset SUBLET_TOKEN SUBLET_CA SUBLET_STATE
"$PROGRAMS/sublet" manager --state "$folder/manager" --listen 127.0.0.1:0 >/dev/null 2>"$folder/manager.log" &
pids+=($!)
wait_until test -S "$folder/manager/manager.sock"
"$PROGRAMS/sublet" agent --state "$folder/agent" --name node --cores 2 --listen 127.0.0.1:0 >/dev/null 2>"$folder/agent.log" &
pids+=($!)
wait_until lends

sublet tenant set alice --cores 4 --leases 9 --spend 5 >/dev/null
sublet token create --tenant alice --note kept >"$folder/alice.token"
sublet token create --tenant bob --note revoked >"$folder/bob.token"
sublet token revoke "$(sublet token list | awk '/revoked/ {print $1; exit}')" >/dev/null
SUBLET_TOKEN_FILE=$folder/alice.token sublet deploy "$folder/libcalls.so" >/dev/null
sublet deploy "$folder/libcomponents.so" >/dev/null
sublet deploy "$folder/libfaults.so" >/dev/null
sublet package publish libfaults >/dev/null
printf hello >"$folder/in"
for _ in 1 2 3; do
    SUBLET_TOKEN_FILE=$folder/alice.token sublet call libcalls/echo --input "$folder/in" --output "$folder/out" >/dev/null
done
cmp "$folder/in" "$folder/out"
cat >"$folder/sums.json" <<'GRAPH'
{"version": 1, "name": "sums",
 "components": [
  {"name": "fill", "type": "compute", "package": "libcomponents", "function": "fill", "entry": true},
  {"name": "share", "type": "compute", "package": "libcomponents", "function": "share", "parallelism": 2},
  {"name": "total", "type": "compute", "package": "libcomponents", "function": "total"},
  {"name": "numbers", "type": "memory", "initial_bytes": 4096, "increment_bytes": 1048576, "limit_bytes": 67108864},
  {"name": "sums", "type": "memory", "initial_bytes": 4096, "increment_bytes": 1048576, "limit_bytes": 67108864}],
 "edges": [
  {"type": "trigger", "from": "fill", "to": "share"}, {"type": "trigger", "from": "share", "to": "total"},
  {"type": "access", "from": "fill", "to": "numbers", "rights": "write"},
  {"type": "access", "from": "share", "to": "numbers", "rights": "read"},
  {"type": "access", "from": "share", "to": "sums", "rights": "write"},
  {"type": "access", "from": "total", "to": "sums", "rights": "read"}]}
GRAPH
sublet graph deploy "$folder/sums.json" >/dev/null
printf '\350\003\000\000\000\000\000\000' >"$folder/thousand"
sublet graph run sums --input "$folder/thousand" >/dev/null

"$PROGRAMS/holding-client" "$SUBLET_MANAGER" "$folder/libfaults.so" >"$folder/held" &
pids+=($!)
wait_until test -s "$folder/held"
wait_until is_billed
{
    printf '{"bill": %s,\n' "$(sublet bill --json)"
    printf '"packages": %s,\n' "$(sublet package list --json)"
    printf '"tenants": %s,\n' "$(sublet tenant list --json)"
    printf '"tokens": %s,\n' "$(sublet token list --json)"
    printf '"graphs": %s,\n' "$(sublet graph list --json)"
    printf '"runs": %s}\n' "$(sublet graph history --json)"
} >"$folder/before.json"
kill -KILL "${pids[@]}"
wait "${pids[@]}" 2>/dev/null || true
pids=()

kept=(before.json alice.token bob.token manager agent/leases.journal)
for needless in manager.sock lock; do
    rm -f "$folder/manager/$needless"
done
find "$folder/manager" -type f | sort
test -s "$folder/agent/leases.journal"
tar -C "$folder" --sort=name --owner=0 --group=0 --numeric-owner -czf "$HERE/state.tar.gz" "${kept[@]}"
ls -l "$HERE/state.tar.gz"
