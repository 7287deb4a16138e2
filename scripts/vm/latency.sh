# In the virtual machine: the round trip of 64 bytes by perftest's ib_write_lat and by the fabric, in turn, so that both
# see every state of the machine beneath. latency.sh ROUNDS prints both results.
set -euo pipefail
readonly PORT=18515 TOWARD=10.0.0.1 BYTES=64

perftest() { taskset -c "$1" ib_write_lat -d rxe0 -x 1 -s "$BYTES" -n 1000 -F "${@:2}"; }

for ((round = 1; round <= $1; round++)); do
    perftest 1 >/tmp/perftest-server.log 2>&1 &
    until ss -Hltn "sport = :$PORT" | grep -q .; do sleep 0.1; done
    perftest 0 "$TOWARD"
    wait "$!"
    ./latency verbs "$TOWARD" "$BYTES" 5
done
