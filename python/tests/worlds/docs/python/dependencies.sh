# What docs/python/dependencies.md assumes: uv trusts the authorities of the system, as where a proxy has certificates of its own.

certificates() {
    export UV_SYSTEM_CERTS=true
}
