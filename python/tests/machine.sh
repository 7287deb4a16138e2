#!/usr/bin/env bash
# Runs a command on a machine of its own, as far as system folders and the network are concerned: machine.sh FOLDER COMMAND...
#
# The command sees this machine's /etc, /opt, /usr/local, /var/lib and /var/backups, empty /run and /srv, and an interface eth1 with the
# address 10.77.0.1. The other end of its cable is in the network namespace `nodes`, with 10.77.0.2 to 10.77.0.5. Changes to all of these
# end with the command, and so do all processes that it has started. FOLDER is an empty folder. It needs root.
set -euo pipefail

# Puts a file system in memory over a folder, so that its files are seen and changes go to that file system.
cover() {
    local changes=$1/$2
    mkdir -p "$changes/upper" "$changes/work"
    mount -t overlay overlay -o "lowerdir=/$2,upperdir=$changes/upper,workdir=$changes/work" "/$2"
}

prepare() {
    local folder=$1 covered host
    mount -t tmpfs tmpfs "$folder"
    for covered in etc opt usr/local var/lib var/backups; do
        cover "$folder" "$covered"
    done
    mount -t tmpfs -o mode=755 tmpfs /run
    mount -t tmpfs -o mode=755 tmpfs /srv
    ip link set lo up
    ip netns add nodes
    ip link add eth1 type veth peer name eth1 netns nodes
    ip address add 10.77.0.1/24 dev eth1
    ip link set eth1 up
    ip -netns nodes link set lo up
    ip -netns nodes link set eth1 up
    for host in 2 3 4 5; do
        ip -netns nodes address add "10.77.0.$host/24" dev eth1
    done
}

if [[ ${1-} == --inside ]]; then
    shift
    prepare "$1"
    shift
    exec "$@"
fi
exec unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private "$0" --inside "$@"
