#!/bin/busybox sh
# The first program of the emulated machine: mounts its disk, and continues with enter.sh there.
b=/bin/busybox
$b mkdir -p /proc /sys /dev /new
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
# Their names begin with their places in the order of loading.
for module in /modules/*.ko; do $b insmod "$module"; done
$b mount -t ext4 /dev/vda /new || {
    echo 'the root file system cannot be mounted'
    $b poweroff -f
}
for folder in proc sys dev; do $b mount --move /$folder /new/$folder; done
exec $b switch_root /new /enter.sh
