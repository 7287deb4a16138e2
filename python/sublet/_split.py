"""Marks the points at which the function of an application is split."""


def split(name=None, *, parallelism=1, memory=None, pu=None, external_effects=False, swap=None):
    """In a function that `app` compiles: here one component ends, and another begins. Does nothing where it is executed.

    As the first statement it says what the first component is.

    Args:
        name: Of the component that begins.
        parallelism: How many instances execute it at the same time. Each executes the same, and finds out by `instance` and
            `instances` which part of the work is its own; arrays are shared by them, and other variables are not to change.
        memory: What each instance needs for itself, in bytes or as `"2GiB"`.
        pu: The kind of processing unit.
        external_effects: Whether it changes anything outside of the run: then it is not executed again after a failure.
        swap: How much each instance may allocate that is swapped, in bytes or as `"8GiB"`: what `memory` has no room for is then in
            memory components. `memory` has to be said, too, and at least 32 MiB.
    """
