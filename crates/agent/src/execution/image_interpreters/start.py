# Becomes a worker in an interpreter of an image, which has just been started, or is a copy of a warm one.
def start():
    import os
    import sys
    from importlib.machinery import ExtensionFileLoader
    from importlib.util import module_from_spec, spec_from_loader

    # The working folder, which an interpreter adds for `-c`.
    if sys.path[:1] == [""]:
        del sys.path[0]
    os.environ.pop("LD_PRELOAD", None)
    sys.argv = ["/program"]
    # A copy has loaded it.
    if "sublet_template" not in sys.modules:
        spec = spec_from_loader("sublet_template", ExtensionFileLoader("sublet_template", "/program"))
        adapter = module_from_spec(spec)
        spec.loader.exec_module(adapter)
        sys.modules["sublet_template"] = adapter
    if sys.version_info >= (3, 14):
        from multiprocessing import context

        # As in workers of the node's interpreter: the server of forks needs sockets, which a sandbox does not have.
        context._default_context._default_context = context._concrete_contexts["fork"]
    # Functions find an empty main module.
    del globals()["start"]
    return sys.modules["sublet_template"]


start().work()
