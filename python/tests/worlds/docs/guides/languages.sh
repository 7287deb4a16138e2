# The assumptions of docs/guides/languages.md: a toolchain of Rust with the target for WebAssembly, which is that of the repository.

toolchain() {
    RUSTUP_TOOLCHAIN=$(sed -n 's/^channel = "\(.*\)"$/\1/p' "$PAGE_SOURCES/rust-toolchain.toml")
    export RUSTUP_TOOLCHAIN
}
