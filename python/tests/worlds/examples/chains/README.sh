# The assumptions of examples/chains/README.md: the folder of the repository, and the programs of these tests.

clone() {
    cd "$PAGE_SOURCES"
    export CARGO_TARGET_DIR=$PAGE_TARGET SUBLET_PROFILE=$PAGE_PROFILE
}
