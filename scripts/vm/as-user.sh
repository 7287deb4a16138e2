#!/bin/bash
# In the guest: as-user.sh PROGRAM ARGUMENT... runs a program as nobody, in a control group that is nobody's own, as a service
# manager hands it over (Delegate=yes).
set -euo pipefail
readonly GROUP=/sys/fs/cgroup/user-$$.service
mkdir -p "$GROUP"
for controller in cpuset cpu memory pids; do echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control; done
chown nobody "$GROUP" "$GROUP"/cgroup.{procs,threads,subtree_control}
echo $$ >"$GROUP/cgroup.procs"
exec setpriv --reuid nobody --regid nogroup --clear-groups -- "$@"
