#!/usr/bin/env bash
# Measures over a link of a known rate: scripts/bench-link.sh RATE BENCH [OPTION...], as
# `scripts/bench-link.sh 1gbit bandwidth --json`. Two network namespaces are joined by a virtual cable, shaped at both
# ends by tc; the node stands in one, the client in the other. Both are gone afterwards. Needs root, ip, tc, and what
# `cargo build --release` has built.
set -euo pipefail
[[ $# -ge 2 ]] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
readonly RATE=$1 BENCH=$2
shift 2

readonly CLIENT=sublet-client-$$ NODE=sublet-node-$$
export PATH="$PATH:/usr/sbin:/sbin"

finish() {
    ip netns delete "$CLIENT" 2>/dev/null || true
    ip netns delete "$NODE" 2>/dev/null || true
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

# The manager's socket is in the file system, which both namespaces share; calls take the cable.
export START="ip netns exec $NODE sublet up --lend-network --listen 198.18.0.2:0 --fabrics tcp"
readonly MEASURE='exec sublet bench "$0" --fabric tcp --manager "unix:$SUBLET_STATE/manager.sock" "$@"'
"$(dirname "$0")/with-sublet.sh" ip netns exec "$CLIENT" sh -c "$MEASURE" "$BENCH" "$@"
