#!/bin/sh
# Renews the pinned copy of the RustSec advisory database, by which `cargo xtask deny` checks dependencies where the network is
# closed. Takes a repository of the database: an address, or the path of a clone.
set -eu

readonly UPSTREAM=https://github.com/rustsec/advisory-db
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

git clone --quiet --depth 1 "${1:-$UPSTREAM}" "$work/clone"
mkdir "$work/copy"
git -C "$work/clone" archive HEAD crates support.toml LICENSE.txt LICENSES | tar -x -C "$work/copy"
git -C "$work/clone" log -1 --format='%H of %cs' > "$work/copy/PINNED"
# The same database makes the same file.
tar -c --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$work/copy" . | gzip -9n > "$root/xtask/advisories.tar.gz"
echo "xtask/advisories.tar.gz: $(cat "$work/copy/PINNED")"
