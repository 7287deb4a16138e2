# In the virtual machine: only control groups of version 2, as today's distributions have them. Each program is in a
# group of its own, as every service and session is.
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir /sys/fs/cgroup/guest.service
echo $$ >/sys/fs/cgroup/guest.service/cgroup.procs
# Images of containers want a file system that maps owners, which this kernel's tmpfs does not.
modprobe -a loop ext4
truncate -s 2G /run/disk
mkfs.ext4 -q /run/disk
mount -o loop /run/disk /tmp
chmod 1777 /tmp
