# The assumptions of examples/python/README.md: the folder of the repository.

clone() {
    cd "$PAGE_SOURCES"
}
