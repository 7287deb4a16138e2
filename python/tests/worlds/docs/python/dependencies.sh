# The assumptions of docs/python/dependencies.md: uv trusts the authorities of the system.

certificates() {
    export UV_SYSTEM_CERTS=true
}
