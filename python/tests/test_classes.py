"""Classes of a program in what its functions return: they are the program's own, and as they are there."""

import builtins
import gc
import weakref

import pytest

# As a script has it: none of this is a module that workers could import.
SCRIPT = {"__name__": "__main__", "__builtins__": builtins}
SOURCE = """
import abc, collections, dataclasses, enum, typing

class Plain:
    limit = 1
    def __init__(self, value=None):
        self.value = value
    class Nested:
        limit = 1

class Child(Plain):
    pass

class Slotted:
    __slots__ = ("value",)
    limit = 1

class Meta(type):
    limit = 1

class WithMeta(metaclass=Meta):
    pass

class Abstract(abc.ABC):
    limit = 1
    @abc.abstractmethod
    def work(self): ...

class Concrete(Abstract):
    def work(self):
        return super().work()

@dataclasses.dataclass(frozen=True)
class Frozen:
    value: int = 0
    limit: typing.ClassVar[int] = 1

@dataclasses.dataclass
class Row:
    value: int = 0
    limit = 1

Pair = collections.namedtuple("Pair", "left right")

class Listed(list):
    limit = 1

T = typing.TypeVar("T")

class Box(typing.Generic[T]):
    limit = 1

class Color(enum.Enum):
    RED = 1
    BLUE = 2
    def named(self):
        return self.name.lower()

class Access(enum.Flag):
    READ = 1
    WRITE = 2

class Broken(Exception):
    limit = 1

class Reduced(Exception):
    limit = 1
    def __init__(self, who, why):
        super().__init__(f"{who}: {why}")
        self.who, self.why = who, why
    def __reduce__(self):
        return Reduced, (self.who, self.why)

def given(value):
    return value

def given_changed(value):
    type(value).limit = 9
    return value

def fails(kind, *arguments):
    kind.limit = 9
    raise kind(*arguments)
"""
exec(SOURCE, SCRIPT)
given, given_changed, fails = (SCRIPT[name] for name in ("given", "given_changed", "fails"))
INSTANCES = {
    "plain": lambda: SCRIPT["Plain"](3),
    "child": lambda: SCRIPT["Child"](3),
    "nested": lambda: SCRIPT["Plain"].Nested(),
    "slotted": lambda: SCRIPT["Slotted"](),
    "with metaclass": lambda: SCRIPT["WithMeta"](),
    "abstract": lambda: SCRIPT["Concrete"](),
    "frozen": lambda: SCRIPT["Frozen"](3),
    "dataclass": lambda: SCRIPT["Row"](3),
    "namedtuple": lambda: SCRIPT["Pair"](1, 2),
    "subclass of list": lambda: SCRIPT["Listed"]([1]),
    "generic": lambda: SCRIPT["Box"](),
}


def test_instances_come_back_of_their_own_class(lease):
    for name, make in INSTANCES.items():
        instance = make()
        kind = type(instance)
        # The worker changes its class, and the caller's stays.
        back = lease.call(given_changed, instance)
        assert (name, type(back), getattr(kind, "limit", 1)) == (name, kind, 1)
        assert lease.call(given, [kind]) == [kind]


def test_members_of_enums_are_the_callers(lease):
    color, access = SCRIPT["Color"], SCRIPT["Access"]
    assert lease.call(given, color.RED) is color.RED
    assert lease.call(lambda: color.BLUE) is color.BLUE
    assert lease.call(given, access.READ | access.WRITE) == access.READ | access.WRITE
    assert lease.call(given, {color.RED: [color.BLUE]}) == {color.RED: [color.BLUE]}
    assert lease.call(given, color) is color


def test_a_class_that_changes_during_a_call_stays_changed(lease):
    plain = SCRIPT["Plain"]

    def later(value):
        import time

        time.sleep(0.2)
        return value

    try:
        futures = [lease.submit(later, plain(1)), lease.submit(lambda: later(plain(2)))]
        plain.limit, plain.added = 2, "here"
        assert [type(future.result()) is plain for future in futures] == [True, True]
        assert (plain.limit, plain.added) == (2, "here")
    finally:
        plain.limit = 1
        del plain.added


def test_classes_of_exceptions_stay_as_they_are(lease):
    broken, reduced = SCRIPT["Broken"], SCRIPT["Reduced"]
    with pytest.raises(broken, match="late") as caught:
        lease.call(fails, broken, "late")
    assert type(caught.value) is broken and broken.limit == 1
    with pytest.raises(reduced, match="node: late") as caught:
        lease.call(fails, reduced, "node", "late")
    assert type(caught.value) is reduced and reduced.limit == 1 and caught.value.why == "late"


def test_classes_in_results_of_maps_and_executors_are_the_callers(executor):
    row, plain = SCRIPT["Row"], SCRIPT["Plain"]
    rows = [row(number) for number in range(20)]
    assert list(executor.map(given_changed, rows)) == rows and row.limit == 1
    assert type(executor.submit(given_changed, plain()).result()) is plain and plain.limit == 1


def test_local_classes_and_their_methods_come_back(lease):
    class Local:
        limit = 1

        def times(self, factor):
            type(self).limit = factor
            return Local()

    assert type(lease.call(Local.times, Local(), 5)) is Local and Local.limit == 1
    method = lease.call(given, Local().times)
    assert type(method.__self__) is Local and method.__func__ is Local.times


def test_a_class_whose_methods_name_what_cannot_be_sent_comes_back(lease):
    space = dict(SCRIPT)
    exec("class Locked:\n    def take(self):\n        return lock.acquire()\n", space)
    locked = space["Locked"]

    def made():
        import threading

        locked.take.__globals__["lock"] = threading.Lock()
        return locked()

    assert type(lease.call(made)) is locked


def test_a_class_that_a_function_makes_comes_by_value_and_stays(lease):
    def made(limit):
        global Made
        if "Made" not in globals():
            Made = type("Made", (), {"__module__": "__main__", "double": lambda self: 2 * self.limit})
        Made.limit = limit
        return Made()

    first = lease.call(made, 1)
    assert type(first).__name__ == "Made" and first.double() == 2
    type(first).limit = 5
    second = lease.call(made, 3)
    # It is the caller's own from then on.
    assert type(second) is type(first) and second.double() == 10
    # Sent, it is what the caller has made of it.
    assert lease.call(lambda value: value.double(), first) == 10
    assert type(lease.call(given, first)) is type(first)


def test_a_class_is_kept_until_the_calls_that_need_it_have_ended(lease):
    def begin():
        class Local:
            def __init__(self, value):
                self.value = value

        return lease.submit(lambda: [Local(7)]), weakref.ref(Local)

    future, local = begin()
    gc.collect()
    (result,) = future.result()
    assert result.value == 7 and type(result) is local()
    del result, future
    gc.collect()
    assert local() is None


def test_a_class_that_is_deleted_here_is_named(lease):
    def begin():
        class Deleted:
            pass

        def keep(value):
            builtins.kept_instance = value

        lease.call(keep, Deleted())
        return weakref.ref(Deleted)

    deleted = begin()
    gc.collect()
    assert deleted() is None
    with pytest.raises(LookupError, match="Deleted.* deleted this class"):
        lease.call(lambda: __import__("builtins").kept_instance)


def test_a_result_of_an_app_changes_no_class(platform, tmp_path):
    script = tmp_path / "graph_of_classes.py"
    script.write_text(
        "import sublet\n"
        "class Total:\n"
        "    limit = 1\n"
        "    def __init__(self, value):\n"
        "        self.value = value\n"
        "@sublet.app\n"
        "def total(n):\n"
        "    Total.limit = 9\n"
        "    return Total(n)\n"
    )
    space = {"__name__": "__main__", "__builtins__": builtins, "__file__": str(script)}
    exec(compile(script.read_text(), str(script), "exec"), space)
    total = space["Total"]
    result = space["total"].options(client=platform)(3)
    assert type(result) is total and result.value == 3 and total.limit == 1
