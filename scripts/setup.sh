#!/usr/bin/env bash
# Installs what a chore needs and this machine lacks: `make demo` (setup.sh build), `make wheel` (setup.sh wheel), `make docs` (setup.sh
# docs), `make test` (setup.sh test), `cargo xtask second-pu` (setup.sh second-pu) or `cargo xtask dist` (setup.sh dist).
# Silent and quick where nothing is missing. Changes nothing but packages, Rust components and target/tools.
set -euo pipefail

readonly RUST_NEEDED=1.89
readonly CARGO_DENY=0.20.2

# command:package pairs
readonly BUILD_TOOLS=(gcc:gcc g++:g++ make:make protoc:protobuf-compiler python3:python3)
readonly TEST_TOOLS=(cmake:cmake pkg-config:pkg-config strace:strace nats-server:nats-server ip:iproute2 tc:iproute2
    crun:crun runc:runc runsc:runsc umoci:umoci clang:clang wasm-ld:lld node:nodejs npm:npm redis-cli:redis-tools gfortran:gfortran go:golang-go jq:jq
    mpirun:openmpi-bin mpicxx:libopenmpi-dev mpifort:libopenmpi-dev openssl:openssl pgrep:procps musl-gcc:musl-tools)
readonly SECOND_PU_TOOLS=(ip:iproute2)
# The compilers of the guard (see crates/runtime/build.rs) and for musl, and what makes and checks packages and images.
readonly DIST_TOOLS=(aarch64-linux-gnu-g++:g++-aarch64-linux-gnu musl-gcc:musl-tools dpkg-deb:dpkg lintian:lintian
    debootstrap:debootstrap umoci:umoci crun:crun)
readonly DIST_TARGETS=(x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu x86_64-unknown-linux-musl aarch64-unknown-linux-musl)
# A library that a test preloads to move a process's clock; it has no command of its own.
readonly FAKETIME_PACKAGE=libfaketime
# libfabric's headers, against which the ofi provider is built. With them comes the library, which it loads.
readonly LIBFABRIC_PACKAGE=libfabric-dev
# Redis's client in C: what the example of logistic regression is compared with hands on through it.
readonly REDIS_PACKAGE=libhiredis-dev
# A C library for WebAssembly, with which tests and examples are compiled.
readonly WASI_PACKAGE=wasi-libc
# Target for which Rust compiles WebAssembly.
readonly WASM_TARGET=wasm32-unknown-unknown
# Target for which Rust compiles what runs in images with musl.
MUSL_TARGET=$(uname -m)-unknown-linux-musl
readonly MUSL_TARGET
# The registry of the tests. Its package would start a server here, now and at each boot, so it is only unpacked.
readonly REGISTRY_PACKAGE=docker-registry
readonly REGISTRY_FOLDER=target/tools/docker-registry
# A Python of the tests' own, with modules that many use.
readonly PYTHON_FOLDER=target/tools/python
readonly PYTHON_MODULES=(numpy==2.2.6 pandas==2.3.3 pillow==12.0.0)
# The programs that compile and link for an older C library, and for other processors.
readonly DIST_FOLDER=target/tools/dist
readonly DIST_MODULES=(ziglang==0.17.1 cargo-zigbuild==0.24.1 helm-python-sdk==0.2.2 kubernetes-validate==1.37.0 pyyaml==6.0.4
    py-rattler-build==0.73.0 deflate==0.9.0)
# The compiler of TypeScript, in the versions and with the digests of a lock file.
readonly TYPESCRIPT_FOLDER=target/tools/typescript
readonly TYPESCRIPT_SOURCE=tests/typescript
# The programs that build the documentation site.
readonly MKDOCS_FOLDER=target/tools/mkdocs
readonly MKDOCS_MODULES=(mkdocs==1.6.1 mkdocs-material==9.8.2 mkdocstrings==1.0.8 mkdocstrings-python==2.0.11 ruff==0.17.6)
# OpenCL's loader and PoCL, by which the processor is a device: what kernels are tested on.
readonly OPENCL_PACKAGES=(ocl-icd-libopencl1 pocl-opencl-icd)

stop() {
    printf '%s\n' '' "$@" >&2
    exit 1
}

# Whether version $1 is at least version $2.
at_least() {
    [[ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" == "$2" ]]
}

# The packages whose commands are missing, each once.
missing_packages() {
    local pair packages=' '
    for pair in "$@"; do
        has_command "${pair%%:*}" || [[ $packages == *" ${pair##*:} "* ]] || packages+="${pair##*:} "
    done
    printf '%s' "${packages# }"
}

# Whether there is a command; those for administrators may stand where an ordinary user does not look.
has_command() {
    PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null
}

has_faketime() {
    compgen -G '/usr/lib*/faketime/libfaketime.so*' >/dev/null ||
        compgen -G '/usr/lib/*/faketime/libfaketime.so*' >/dev/null
}

has_libfabric_headers() {
    printf '#include <rdma/fabric.h>\n' | gcc -fsyntax-only -x c - 2>/dev/null
}

has_redis_headers() {
    printf '#include <hiredis/hiredis.h>\n' | gcc -fsyntax-only -x c - 2>/dev/null
}

has_wasi_library() {
    printf '#include <stdlib.h>\n' | clang --target=wasm32-wasi -fsyntax-only -x c - 2>/dev/null
}

has_library() {
    PATH=$PATH:/usr/sbin:/sbin ldconfig -p | grep -q "^[[:space:]]*$1 "
}

has_opencl() {
    has_library libOpenCL.so.1 && compgen -G '/etc/OpenCL/vendors/*.icd' >/dev/null
}

# Whether Debian's Python makes virtual environments: that is a package of its own.
has_python_environments() {
    python3 -c 'import ensurepip, venv' 2>/dev/null
}

may_become_root() {
    command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 && -t 2 ]]; }
}

install_packages() {
    local packages=$1 root=
    local line="apt-get update && apt-get install --yes --no-install-recommends ${packages% }"
    command -v apt-get >/dev/null ||
        stop "These are missing: ${packages% } (Debian's names)." "Install them with this system's package manager, then run make again."
    if [[ $(id -u) -ne 0 ]]; then
        may_become_root ||
            stop "These packages are missing: ${packages% }. As root, run this line, then make again:" "  $line"
        root='sudo '
    fi
    echo "installing ${packages% }"
    ${root}env DEBIAN_FRONTEND=noninteractive sh -c "$line" ||
        stop "The packages could not be installed. As root, run this line, then make again:" "  $line"
}

as_root() {
    if [[ $(id -u) -eq 0 ]]; then "$@"; else may_become_root && sudo "$@"; fi
}

# The newest package of a name, put into a folder, which needs no rights but where no lists of packages are there yet.
download_package() {
    local folder=$1 package=$2
    (cd "$folder" && apt-get download --quiet "$package") 2>/dev/null && return
    as_root apt-get update --quiet >/dev/null && (cd "$folder" && apt-get download --quiet "$package")
}

unpack_registry() {
    has_command docker-registry && return
    [[ -x $REGISTRY_FOLDER/usr/bin/docker-registry ]] && return
    echo "unpacking $REGISTRY_PACKAGE into $REGISTRY_FOLDER"
    local folder
    folder=$(mktemp --directory)
    { download_package "$folder" "$REGISTRY_PACKAGE" && dpkg-deb --extract "$folder"/*.deb "$folder/unpacked"; } ||
        stop "$REGISTRY_PACKAGE could not be fetched. Install a docker-registry whose command is found, then run make again."
    mkdir -p "$(dirname "$REGISTRY_FOLDER")"
    rm -rf "$REGISTRY_FOLDER"
    mv "$folder/unpacked" "$REGISTRY_FOLDER"
    rm -rf "$folder"
}

# A virtual environment: its folder, and its modules.
make_python() {
    local folder=$1
    shift
    [[ $(cat "$folder/modules" 2>/dev/null) == "$*" ]] && return
    echo "installing $* into $folder"
    rm -rf "$folder"
    { python3 -m venv "$folder" &&
        "$folder/bin/pip" install --quiet --no-input --disable-pip-version-check "$@"; } ||
        stop "A Python with $* could not be made. See what pip says above, then run make again."
    printf '%s' "$*" >"$folder/modules"
}

# The compiler of TypeScript. npm checks the digests and executes no script of a package.
make_typescript() {
    local source=$TYPESCRIPT_SOURCE folder=$TYPESCRIPT_FOLDER
    cmp --quiet "$source/package-lock.json" "$folder/installed" && return
    echo "installing TypeScript into $folder"
    rm -rf "$folder"
    mkdir -p "$folder"
    cp "$source/package.json" "$source/package-lock.json" "$folder/"
    (cd "$folder" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) ||
        stop "TypeScript could not be installed. See what npm says above, then run make again."
    cp "$source/package-lock.json" "$folder/installed"
}

check_rust() {
    command -v cargo >/dev/null ||
        stop "A Rust toolchain (cargo, $RUST_NEEDED or later) is needed. Install it by https://rustup.rs, then run make again:" \
            "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
    local version
    version=$(cargo --version | cut -d ' ' -f 2)
    at_least "${version%%-*}" "$RUST_NEEDED" ||
        stop "Rust $RUST_NEEDED or later is needed; this is $version ($(command -v cargo)). With rustup:" "  rustup update stable"
}

# A Rust component: its name and a command that answers only where it is there.
install_component() {
    local component=$1
    shift
    "$@" >/dev/null 2>&1 && return
    command -v rustup >/dev/null ||
        stop "The Rust component $component is missing, and there is no rustup to add it. Install $component, then run make again."
    echo "installing the Rust component $component"
    rustup component add "$component"
}

# Rust's standard library for another target.
install_target() {
    [[ -d $(rustc --print sysroot)/lib/rustlib/$1 ]] && return
    command -v rustup >/dev/null ||
        stop "Rust's target $1 is missing, and there is no rustup to add it. Install it, then run make again."
    echo "installing the Rust target $1"
    rustup target add "$1"
}

install_cargo_deny() {
    local version
    if version=$(cargo-deny --version 2>/dev/null) && at_least "${version#cargo-deny }" "$CARGO_DENY"; then
        return
    fi
    echo "installing cargo-deny $CARGO_DENY (a few minutes, once)"
    cargo install cargo-deny --quiet --locked --version "$CARGO_DENY"
}

main() {
    cd "$(dirname "${BASH_SOURCE[0]}")/.."
    local tools=("${BUILD_TOOLS[@]}") packages target
    [[ $1 != test ]] || tools+=("${TEST_TOOLS[@]}")
    [[ $1 != second-pu ]] || tools+=("${SECOND_PU_TOOLS[@]}")
    [[ $1 != dist ]] || tools+=("${DIST_TOOLS[@]}")
    packages=$(missing_packages "${tools[@]}")
    [[ $1 != test ]] || has_faketime || packages+="$FAKETIME_PACKAGE "
    [[ $1 != test ]] || has_redis_headers || packages+="$REDIS_PACKAGE "
    [[ $1 != test ]] || has_wasi_library || packages+="$WASI_PACKAGE "
    [[ $1 == build ]] || has_python_environments || packages+='python3-venv '
    [[ $1 != test ]] || has_opencl || packages+="${OPENCL_PACKAGES[*]} "
    has_libfabric_headers || packages+="$LIBFABRIC_PACKAGE "
    [[ -z $packages ]] || install_packages "$packages"
    check_rust
    if [[ $1 == test ]]; then
        install_component rustfmt rustfmt --version
        install_component clippy cargo-clippy --version
        install_target "$WASM_TARGET"
        install_target "$MUSL_TARGET"
        install_cargo_deny
        unpack_registry
        make_typescript
    fi
    [[ $1 != test && $1 != second-pu ]] || make_python "$PYTHON_FOLDER" "${PYTHON_MODULES[@]}"
    [[ $1 != test && $1 != docs ]] || make_python "$MKDOCS_FOLDER" "${MKDOCS_MODULES[@]}"
    if [[ $1 == dist ]]; then
        make_python "$DIST_FOLDER" "${DIST_MODULES[@]}"
        for target in "${DIST_TARGETS[@]}"; do
            install_target "$target"
        done
    fi
}

case ${1-} in
build | wheel | docs | test | second-pu | dist) main "$1" ;;
*) stop "usage: scripts/setup.sh build|wheel|docs|test|second-pu|dist" ;;
esac
