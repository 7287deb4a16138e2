# The assumptions of examples/mpi/README.md: a copy of the folder, Sublet in /usr/local, and root's permission to run ranks.

installed() {
    cp -r "$PAGE_SOURCES/examples/mpi" .
    rm -rf mpi/build
    (cd "$PAGE_SOURCES" && CARGO_TARGET_DIR=$PAGE_TARGET SUBLET_PROFILE=$PAGE_PROFILE scripts/install.sh /usr/local)
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    cd mpi
}
