#!/usr/bin/env bash
# Measures over a link of a known rate: scripts/bench-link.sh RATE BENCH [OPTION...], as
# `scripts/bench-link.sh 1gbit bandwidth --json`. Two network namespaces are joined by a virtual cable, shaped at both
# ends by tc; the node stands in one, the client in the other. Both are gone afterwards. Needs root, ip, tc, and what
# `cargo build --release` has built.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
[[ $# -ge 2 ]] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
readonly RATE=$1 BENCH=$2
shift 2

readonly CLIENT=sublet-client-$$ NODE=sublet-node-$$
SUBLET_STATE=$(mktemp -d "${TMPDIR:-/tmp}/sublet.XXXXXX")
export SUBLET_STATE PATH="$top/target/release:$PATH:/usr/sbin:/sbin"
unset SUBLET_MANAGER
readonly LOG=$SUBLET_STATE/up.log
server=

finish() {
    local status=$?
    if [[ -n $server ]]; then
        kill -TERM "$server" 2>/dev/null || true
        wait "$server" || true
    fi
    [[ $status -eq 0 ]] || { [[ -f $LOG ]] && printf '\nwhat sublet up said:\n' && tail -n 40 "$LOG"; } >&2
    ip netns delete "$CLIENT" 2>/dev/null || true
    ip netns delete "$NODE" 2>/dev/null || true
    rm -rf "$SUBLET_STATE"
    exit "$status"
}
trap finish EXIT

# 198.18.0.0/15 is kept free for measurements (RFC 2544).
ip netns add "$CLIENT"
ip netns add "$NODE"
ip link add name cable netns "$CLIENT" type veth peer name cable netns "$NODE"
ip -n "$CLIENT" address add 198.18.0.1/30 dev cable
ip -n "$NODE" address add 198.18.0.2/30 dev cable
for namespace in "$CLIENT" "$NODE"; do
    ip -n "$namespace" link set lo up
    ip -n "$namespace" link set cable up
    # A packet of the kernel's own may be 64 kB large: the bucket holds some.
    tc -n "$namespace" qdisc add dev cable root tbf rate "$RATE" burst 256kb latency 50ms
done

ip netns exec "$NODE" sublet up --listen 198.18.0.2:0 >"$LOG" 2>&1 &
server=$!
for ((tries = 0; tries < 100; tries++)); do
    sublet ps --json 2>/dev/null | grep -q '"cores"' && break
    kill -0 "$server" || exit 1
    sleep 0.1
done
# The manager's socket is in the file system, which both namespaces share; calls take the cable.
ip netns exec "$CLIENT" sublet bench "$BENCH" --fabric tcp --manager "unix:$SUBLET_STATE/manager.sock" "$@"
