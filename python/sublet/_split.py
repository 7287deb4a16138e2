"""Marks the points at which the function of an application is split."""

import contextlib


def split(name=None, *, parallelism=1, cores=1, memory=None, pu=None, external_effects=False, swap=None):
    """Ends a component, and starts another one, in a function that `app` compiles. Does nothing when it is executed.

    As the first statement it describes the first component.

    Args:
        name: Name of the component that starts here.
        parallelism: Number of concurrent instances. All execute the same code, and use `instance` and `instances` to
            choose their part of the work. They share arrays, and must not change other variables. The number may follow from a
            variable that was set before. With `{"from": "parts", "limit": 64}` it is the value of `parts`, from 1 to 64. With
            `{"from": "table", "bytes_each": "64MiB", "limit": 64}` there is one for each 64 MiB in the memory of `table`. `limit` is the
            largest number.
        cores: Number of cores of each instance, all on one node.
        memory: Memory of each instance, in bytes or as `"2GiB"`.
        pu: Kind of processing unit.
        external_effects: Whether the component has effects outside of the run. It is then not repeated after a failure.
        swap: Swapped memory that each instance may allocate, in bytes or as `"8GiB"`: parts that do not fit into `memory` are in
            memory components. It requires `memory`, of at least 32 MiB.
    """


def parallel():
    """Encloses components that are executed at the same time, in a function that `app` compiles: `with sublet.parallel():`.

    Each `split` within the block begins one of them; the statements behind the block begin when all have ended. Executed as it is, the
    block is executed in order. So no component may read or set a variable that another one sets. They share the elements of arrays.

    Examples:
        >>> @sublet.app
        ... def report(table):
        ...     table = load(table)
        ...     with sublet.parallel():
        ...         sublet.split("means")
        ...         means = table.mean(axis=0)
        ...         sublet.split("deviations")
        ...         deviations = table.std(axis=0)
        ...     return means, deviations
    """
    return contextlib.nullcontext()
