# The assumptions of docs/installing.md: the files that were downloaded, and a Python without Sublet.

WORK=$PWD

# The wheel of these tests, and an archive of the installation of these tests, as `cargo xtask dist` makes it.
downloads() {
    local name
    name=sublet-$(sublet --version | cut -d ' ' -f 2)-$(uname -m)-unknown-linux-gnu
    mkdir "$name"
    cp -r --dereference "$HOME"/.local/* "$name"
    tar -c --exclude=.debug "$name" | xz -0 >"$name.tar.xz"
    rm -r "$name"
    cp "$PAGE_WHEELS"/sublet-*.whl .
    sha256sum -- *.whl *.tar.xz >SHA256SUMS
    echo "$(printf '0%.0s' {1..64})  sublet-of-another-machine.tar.xz" >>SHA256SUMS
}

# An environment with the distribution that Sublet needs, since this machine reaches no index.
python() {
    local site
    site=$(command python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    command python -m venv "$WORK/venv"
    cp -r "$site"/cloudpickle* "$WORK"/venv/lib/python*/site-packages
    export PATH=$WORK/venv/bin:$PATH
    unset -f python
}

finish() {
    [[ $(command -v sublet) == "$WORK/venv/bin/sublet" ]]
}
