#!/usr/bin/env bash
# Sorts with DuckDB in memory, in a folder of leased memory, and on a throttled disk: run.sh [OPTION...], as `sort.py --help` lists
# them. It needs what cargo has built with the profile SUBLET_PROFILE (release), and root for the disk. DuckDB is installed into the
# build folder if Python has none.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)

readonly MODULE=duckdb==1.5.5 FOLDER=$top/target/tools/duckdb
python=python3
if ! "$python" -c 'import duckdb' 2>/dev/null; then
    python=$FOLDER/bin/python
    if ! "$python" -c 'import duckdb' 2>/dev/null; then
        python3 -m venv "$FOLDER"
        "$python" -m pip install --quiet "$MODULE" >&2
    fi
fi
exec "$top/scripts/with-sublet.sh" "$python" "$top/examples/duckdb_sort/sort.py" "$@"
