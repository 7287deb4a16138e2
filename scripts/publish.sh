#!/usr/bin/env bash
# Makes and checks everything that is published, for both architectures, and stops before the upload: it prints the commands that
# upload, which a person with the credentials then gives. `make publish` starts it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly FOLDER=target/packages
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)

stop() {
    echo "publish.sh: $*" >&2
    exit 1
}

[[ -z $(git status --porcelain) ]] || stop "the tree has changes that are not committed: what is published is what a commit has"
rm -rf "$FOLDER"
scripts/setup.sh dist
cargo xtask dist --target x86_64-unknown-linux-gnu --check yes
cargo xtask dist --target aarch64-unknown-linux-gnu
(cd "$FOLDER" && sha256sum --check --quiet SHA256SUMS)

cat <<END

Everything of Sublet $version is in $FOLDER, and nothing has been uploaded. These commands publish it, from that folder:

  git tag --sign v$version && git push origin v$version
  twine upload sublet-$version-*.whl
  gh release create v$version SHA256SUMS *.tar.xz *.deb *.cdx.json sublet-$version.tgz
  for a in amd64 arm64; do
      skopeo copy oci-archive:sublet-$version-\$a.oci.tar docker://ghcr.io/sublet/sublet:$version-\$a
  done
  npm publish --access public ../../crates/template-node/npm
  helm push sublet-$version.tgz oci://ghcr.io/sublet/charts

The recipes sublet-$version.spack.py and sublet-$version.conda.yaml are proposed to the repositories of Spack and conda-forge.
END
