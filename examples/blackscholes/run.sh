#!/usr/bin/env bash
# Builds the example against this source tree and runs it: run.sh [OPTION...], as `blackscholes --help` lists them.
# It needs what cargo has built with the profile SUBLET_PROFILE (release), a C and a C++ compiler, and a running `sublet up`.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)

readonly PREFIX=$top/target/prefix BUILD=$top/target/blackscholes
# As a user would: against an installed library, here one inside of the build folder.
"$top/scripts/install.sh" "$PREFIX" --library >/dev/null
make --silent --no-print-directory --directory="$top/examples/blackscholes" PREFIX="$PREFIX" BUILD="$BUILD" >&2
exec "$BUILD/blackscholes" --library "$BUILD/libblackscholes.so" "$@"
