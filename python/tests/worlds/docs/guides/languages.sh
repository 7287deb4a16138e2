# What docs/guides/languages.md assumes: a toolchain of Rust with the target for WebAssembly, which is that of the repository.

toolchain() {
    RUSTUP_TOOLCHAIN=$(sed -n 's/^channel = "\(.*\)"$/\1/p' "$PAGE_SOURCES/rust-toolchain.toml")
    export RUSTUP_TOOLCHAIN
}
