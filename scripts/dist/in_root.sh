#!/bin/sh
# Installs each package in the root file system of a distribution, and uses it: started by installs.sh, with the packages in
# /packages. The first failure ends it.
set -eu

step() {
    echo "-- $*"
}

# Starts a command's platform, has a native function executed there in three leases, and ends the platform. Nodes refuse the
# Python of Debian 11, which is too old: the platform gets the interpreter that the wheel has.
lease() {
    "$1" up --cores 1 --python "$python" >/tmp/up.log 2>&1 &
    up=$!
    tries=0
    until "$1" ps 2>&1 | grep --quiet lending; do
        tries=$((tries + 1))
        if [ "$tries" -eq 1800 ]; then
            cat /tmp/up.log
            exit 1
        fi
        sleep 0.1
    done
    "$1" bench cold --n 3
    kill -TERM "$up"
    wait "$up"
}

# The Python that the root file system has for the wheel.
python=/usr/bin/python3
[ ! -x /opt/python/bin/python3 ] || python=/opt/python/bin/python3
# The loader tells the version of the C library in every release.
step "$(sed -n 's/^PRETTY_NAME=//p' /etc/os-release), $(ldd --version | sed -n 1p), $($python --version)"

step 'the wheel: install, version, doctor, a lease'
$python -m venv /venv
/venv/bin/pip install --quiet --no-index --find-links /packages sublet
/venv/bin/sublet --version
/venv/bin/sublet doctor
/venv/bin/python - <<'PYTHON'
import sublet

with sublet.local(), sublet.lease(cores=1) as lease:
    assert lease.call(pow, 2, 10) == 1024
    assert list(lease.map(lambda n: n * n, range(5))) == [0, 1, 4, 9, 16]
print("a lease of sublet.local() has computed")
PYTHON

step 'the packages of Debian: install, version, a lease, remove'
dpkg --install /packages/*.deb
test "$(command -v sublet)" = /usr/bin/sublet
sublet --version
lease sublet
test -s /usr/share/man/man1/sublet-up.1.gz
for service in manager agent runner; do
    test -s "/usr/lib/systemd/system/sublet-$service.service"
done
test -s /usr/share/bash-completion/completions/sublet
ldconfig -p | grep -q libsublet.so.0
dpkg --purge sublet libsublet-dev libsublet0
test ! -e /usr/bin/sublet

step 'the archive: unpack anywhere, version, a lease'
mkdir -p /srv/somewhere
if command -v xz >/dev/null; then
    tar -C /srv/somewhere -xf /packages/sublet-*.tar.xz
else
    $python -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall("/srv/somewhere")' /packages/sublet-*.tar.xz
fi
/srv/somewhere/sublet-*/bin/sublet --version
lease /srv/somewhere/sublet-*/bin/sublet
echo 'all packages are installed and used'
