"""Marks the points at which the function of an application is split."""


def split(name=None, *, parallelism=1, cores=1, memory=None, pu=None, external_effects=False, swap=None):
    """Ends a component, and starts another one, in a function that `app` compiles. Does nothing when it is executed.

    As the first statement it describes the first component.

    Args:
        name: Name of the component that starts here.
        parallelism: Number of concurrent instances. All execute the same code, and use `instance` and `instances` to
            choose their part of the work. They share arrays, and must not change other variables.
        cores: Number of cores of each instance, all on one node.
        memory: Memory of each instance, in bytes or as `"2GiB"`.
        pu: Kind of processing unit.
        external_effects: Whether the component has effects outside of the run. It is then not repeated after a failure.
        swap: Swapped memory that each instance may allocate, in bytes or as `"8GiB"`: parts that do not fit into `memory` are in
            memory components. It requires `memory`, of at least 32 MiB.
    """
