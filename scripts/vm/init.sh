#!/bin/busybox sh
# The first program of the virtual machine: mounts the file systems of the machine that emulates it, and continues with
# enter.sh there.
b=/bin/busybox
$b mkdir -p /proc /sys /dev /lower /upper /new
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
# Their names begin with their places in the order of loading.
for module in /modules/*.ko; do $b insmod "$module"; done
how=trans=virtio,version=9p2000.L,msize=262144
$b mount -t 9p -o $how,cache=loose,ro root /lower || {
    echo 'the root file system cannot be mounted'
    $b poweroff -f
}
$b mount -t tmpfs tmpfs /upper
$b mkdir /upper/data /upper/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work overlay /new
$b mkdir -p /new/share /new/kernel
$b mount -t 9p -o $how,cache=none share /new/share
$b mount -t 9p -o $how,cache=loose,ro kernel /new/kernel
for folder in proc sys dev; do $b mount --move /$folder /new/$folder; done
exec $b switch_root /new /bin/bash /share/enter.sh
