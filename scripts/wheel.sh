#!/usr/bin/env bash
# Makes the wheel of the Python package: wheel.sh FOLDER. Beside the package and its module it carries the programs of a whole
# installation, without symbols. cargo has built them, with the profile SUBLET_PROFILE (release).
set -euo pipefail

readonly PROGRAMS=(sublet sublet-worker sublet-worker-wasm sublet-worker-opencl sublet-worker-cuda sublet-device-builder sublet-spawner
    libsublet_template_python.so libsublet_template_node.so)
readonly MATURIN=target/tools/maturin/bin/maturin

cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$(realpath "${1:-target/wheels}")
profile=${SUBLET_PROFILE:-release}
built=${CARGO_TARGET_DIR:-target}/$profile
carried=python/sublet/_programs
rm -rf "$carried"
mkdir -p "$carried" "$folder"
trap 'rm -rf "$carried"' EXIT
for program in "${PROGRAMS[@]}"; do
    strip -o "$carried/$program" "$built/$program"
    chmod 755 "$carried/$program"
done
cp LICENSE python/LICENSE
trap 'rm -rf "$carried" python/LICENSE' EXIT
rm -f "$folder"/sublet-*.whl
"$MATURIN" build --profile "$profile" --strip --manifest-path python/Cargo.toml --out "$folder"
