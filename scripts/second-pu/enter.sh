#!/bin/bash
# The second program of the emulated machine: a network, the files of the second disk, and then one command a line from the
# serial line, each answered by a line with its status.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
exec 2>&1
stty -F /dev/ttyAMA0 raw -echo
ulimit -l unlimited
mkdir -p /dev/shm /dev/pts /sublet
for folder in /dev/shm /tmp /run; do mount -t tmpfs tmpfs $folder; done
mount -t devpts devpts /dev/pts
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
ip link set eth0 up
# That of QEMU's own network.
ip address add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
tar -x -f /dev/vdb -C /sublet
cd /sublet
echo "second-pu: ready"
while IFS= read -r command; do
    eval "$command" </dev/null
    printf '\nsecond-pu: ended with %d\n' $?
done </dev/ttyAMA0
