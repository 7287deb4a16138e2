#!/bin/bash
# In the virtual machine: as-user.sh PROGRAM ARGUMENT... runs a program as the user `nobody`, in a control group that
# this user owns, as a service manager delegates it (Delegate=yes).
set -euo pipefail
readonly GROUP=/sys/fs/cgroup/user-$$.service
mkdir -p "$GROUP"
for controller in cpuset cpu memory pids; do echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control; done
chown nobody "$GROUP" "$GROUP"/cgroup.{procs,threads,subtree_control}
echo $$ >"$GROUP/cgroup.procs"
exec setpriv --reuid nobody --regid nogroup --clear-groups -- "$@"
