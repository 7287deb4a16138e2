# The second program of the virtual machine: sets up what every machine has, then runs the caller's commands (guest.sh).
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
ulimit -l unlimited
mkdir -p /dev/shm /dev/pts
for folder in /dev/shm /tmp /run; do mount -t tmpfs tmpfs $folder; done
mount -t devpts devpts /dev/pts
# The kernel itself asks for modules, too, where they always are.
mkdir -p /lib/modules
mount --bind /kernel/lib/modules /lib/modules
ip link set lo up

cd /share
say() { echo "$*" >>progress; }
# Runs a command as part NAME, for a limited number of seconds: NAME.log has its output, NAME.status how it ended and
# after how long.
part() {
    local name=$1 limit_s=$2 began_s=$SECONDS status=0
    shift 2
    say "  $name, at most $limit_s s"
    timeout --kill-after=5 "$limit_s" "$@" >"$name.log" 2>&1 || status=$?
    echo "$status $((SECONDS - began_s))" >"$name.status"
    say "  $name: ended with $status after $((SECONDS - began_s)) s"
}
say "  kernel $(uname -r), up after $(cut -d' ' -f1 /proc/uptime) s, $(nproc) processors, $(awk '/MemTotal/ { print int($2 / 1024) }' /proc/meminfo) MiB"
source ./guest.sh
echo done >finished
sync
poweroff -f 2>/dev/null || /bin/busybox poweroff -f
