"""Globals of a program on its workers: what functions change stays, and what the program changes is sent."""

import builtins
import functools
import gc
import logging
import re
import warnings
import weakref

import numpy
import pytest

from sublet import _calls

SOURCE = """
import functools, re, logging, numpy

cache, items, names, steps = {}, [1], {"a"}, 0
table, records = numpy.arange(1000.0), numpy.ones(500, [("x", "i8")])
pattern, logger = re.compile("a+"), logging.getLogger("test.globals")

class Settings:
    depth = 1
    seen = []
    def __init__(self, level=1):
        self.level = level
    def deeper(self):
        return self.depth + self.level

settings = Settings()

def fill(key, value):
    cache[key] = value
    return dict(cache)

def read(key):
    return cache.get(key)

def step():
    global steps
    steps += 1
    return steps

def steps_so_far():
    return steps

def note(value):
    Settings.seen.append(value)
    return list(Settings.seen)

def noted():
    return list(Settings.seen)

def noted_by(instance):
    return list(instance.seen)

@functools.lru_cache(maxsize=None)
def slow(n):
    return [n]

def first_slow(n):
    return len(slow(n)), slow.cache_info().hits

def second_slow(n):
    return len(slow(n)), slow.cache_info().hits

def matched(text):
    return bool(pattern.match(text))

def logged(text):
    logger.debug(text)
    return logger.name
"""


def made_script():
    space = {"__name__": "__main__", "__builtins__": builtins}
    exec(SOURCE, space)
    return space


@pytest.fixture
def script():
    return made_script()


def defined(script, source):
    exec(source, script)
    return script["f"]


def test_what_a_function_changes_stays_when_another_function_arrives(lease, script):
    assert lease.call(script["fill"], "a", 1) == {"a": 1}
    assert lease.call(script["read"], "a") == 1
    assert lease.call(script["fill"], "b", 2) == {"a": 1, "b": 2}
    assert [lease.call(script["step"]) for _ in range(2)] == [1, 2]
    assert lease.call(script["steps_so_far"]) == 2
    assert lease.call(script["first_slow"], 5) == (1, 0)
    assert lease.call(script["second_slow"], 5) == (1, 1)


def test_what_a_function_changes_of_a_class_stays(lease, script):
    assert lease.call(script["note"], 1) == [1]
    assert lease.call(script["noted"]) == [1]
    assert lease.call(script["noted_by"], script["Settings"]()) == [1]
    assert lease.call(script["note"], 2) == [1, 2]
    # The program's is as it was, and what the program changes arrives.
    assert script["Settings"].seen == []
    script["Settings"].seen.append(9)
    assert lease.call(script["noted_by"], script["Settings"]()) == [9]
    assert lease.call(script["note"], 3) == [9, 3]


def test_what_the_program_changes_arrives(lease, script):
    fill, read = script["fill"], script["read"]
    lease.call(fill, "a", 1)
    script["cache"]["a"] = 5
    assert lease.call(read, "a") == 5
    assert lease.call(fill, "b", 2) == {"a": 5, "b": 2}
    script["cache"] = {"c": 3}
    assert lease.call(fill, "d", 4) == {"c": 3, "d": 4}
    script["steps"] = 10
    assert lease.call(script["step"]) == 11
    # Changed to and fro, and with the same content as before.
    for value in (1, 2, 1):
        script["cache"] = {"a": value}
        assert lease.call(read, "a") == value


def test_what_the_program_changes_arrives_at_each_worker(executor, script):
    fill, read = script["fill"], script["read"]
    assert executor.submit(fill, "a", 1).result() == {"a": 1}
    for value in range(3):
        script["cache"]["a"] = value
        assert set(executor.map(read, ["a"] * 20)) == {value}


CHANGES = {
    "item of a list": ("return items[0]", "items[0] = 2"),
    "nested item": ("return items[1]['a'] if len(items) > 1 else 1", "items.append({'a': 2})"),
    "item of a set": ("return len(names)", "names.add('b')"),
    "element of an array": ("return table[5] - 4", "table[5] = 6"),
    "element of an array of records": ("return int(records['x'][5])", "records['x'][5] = 2"),
    "array in a dict": ("return cache.get('t', [1])[0]", "cache['t'] = numpy.full(1000, 2.0)"),
    "attribute of an instance": ("return settings.level", "settings.level = 2"),
    "attribute of a class": ("return Settings.depth", "Settings.depth = 2"),
    "class of an instance": ("return settings.depth", "Settings.depth = 2"),
    "method of a class": ("return Settings.deeper(settings) - 1", "Settings.deeper = lambda self: 3"),
    "method of an instance's class": ("return settings.deeper() - 1", "Settings.deeper = lambda self: 3"),
    "new attribute of a class": ("return getattr(Settings, 'more', 1)", "Settings.more = 2"),
    "defaults of another function": ("return helper()", "helper.__defaults__ = (2,)"),
    "code of another function": ("return helper()", "helper.__code__ = (lambda n: 2).__code__"),
    "new attribute of a function": ("return getattr(helper, 'more', 1)", "helper.more = 2"),
    "another regular expression": ("return len(pattern.pattern) - 1", "pattern = re.compile('abc')"),
}


def test_changes_of_all_kinds_arrive(lease):
    for change, (body, statement) in CHANGES.items():
        script = made_script()
        f = defined(script, f"def helper(n=1):\n    return n\ndef f():\n    return_of = helper, settings\n    {body}")
        results = [lease.call(f), lease.call(f)]
        exec(statement, script)
        assert (change, *results, lease.call(f)) == (change, 1, 1, 2)


def test_globals_of_a_module_that_is_sent_by_value_may_change(lease, tmp_path, monkeypatch):
    import cloudpickle

    (tmp_path / "by_value_globals.py").write_text("limit = 1\ndef limited():\n    return limit\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import by_value_globals

    cloudpickle.register_pickle_by_value(by_value_globals)
    try:
        assert lease.call(by_value_globals.limited) == 1
        by_value_globals.limit = 2
        assert lease.call(by_value_globals.limited) == 2
    finally:
        cloudpickle.unregister_pickle_by_value(by_value_globals)


NAMED = ["cache", "items", "names", "table", "pattern", "logger", "Settings", "settings", "slow", "settings.deeper", "helper"]


def test_functions_whose_globals_stay_the_same_are_not_pickled_for_each_call(lease, monkeypatch):
    pickled = []
    pickle_function = _calls.pickle_function
    monkeypatch.setattr(_calls, "pickle_function", lambda *args: pickled.append(args) or pickle_function(*args))
    for named in NAMED:
        script = made_script()
        f = defined(script, f"def helper(n=[1], *, m={{}}):\n    return n\nhelper.count = [1]\ndef f():\n    return type({named}).__name__")
        script["cache"]["a"] = [script["settings"], script["slow"], script["helper"], {"b": script["table"]}]
        results = {lease.call(f) for _ in range(6)}
        # At the first call, and at the second, which shows that it is worth a watch.
        assert (named, len(results), len(pickled)) == (named, 1, 2)
        pickled.clear()


def test_large_globals_are_warned_of_unless_they_are_read_only(lease, script):
    f = defined(script, "table = numpy.zeros(4_000_000)\ndef f():\n    return table[-1]")
    assert lease.call(f) == 0
    with pytest.warns(UserWarning, match=r"each call of f takes \d+ ms to compare table with what was sent") as caught:
        assert lease.call(f) == 0
    assert caught[0].filename == __file__
    script["table"][-1] = 3
    assert lease.call(f) == 3
    script["table"].flags.writeable = False
    g = defined(script, "def f():\n    return table[-1] + 1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [lease.call(g) for _ in range(3)] == [4, 4, 4]
    # A view of memory that others write is compared.
    base = numpy.zeros(1000)
    script["table"] = base.view()
    script["table"].flags.writeable = False
    assert lease.call(g) == 1
    base[-1] = 5
    assert lease.call(g) == 6


def test_a_function_is_not_kept_alive_by_what_is_known_of_it(lease):
    def factorial(n):
        return n * factorial(n - 1) if n else 1

    class Adder:
        def __init__(self):
            self.memory = [1]

        def __call__(self, n):
            return n + len(self.memory)

    factorial.limits = [1]
    functions = [factorial, functools.partial(pow, exp=2), Adder()]
    assert [[lease.call(function, 5) for _ in range(3)] for function in functions] == [[120] * 3, [25] * 3, [6] * 3]
    known = [weakref.ref(function) for function in functions]
    del factorial, functions
    gc.collect()
    assert [function() for function in known] == [None] * 3


def test_comparisons_and_results_leave_nothing_to_the_garbage_collection(lease, script):
    made = defined(script, "def f():\n    return type('Made', (), {'__module__': '__main__'})(), cache, table, settings")
    level = defined(script, "def f():\n    return settings.level, table[0], cache.get('a')")
    calls = [lambda: lease.call(script["read"], "a"), lambda: lease.call(script["noted"]), lambda: lease.call(level)]
    for _ in range(3):
        assert [len(str(call())) > 0 for call in (*calls, lambda: lease.call(made))] == [True] * 4
    # Twice, since some objects of C are found only then.
    gc.collect()
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            assert [len(str(call())) > 0 for call in calls] == [True] * 3
        assert gc.collect() == 0
        kinds = [type(lease.call(made)[0]) for _ in range(5)]
        # Classes refer to themselves.
        assert len(set(kinds)) == 5
        assert not any("npickler" in type(each).__name__ for each in gc.get_objects())
    finally:
        gc.enable()


def test_loggers_and_patterns_are_used_as_they_are(lease, script, caplog):
    with caplog.at_level(logging.DEBUG, "test.globals"):
        assert lease.call(script["logged"], "text") == "test.globals"
    assert lease.call(script["matched"], "aa") and not lease.call(script["matched"], "b")
    assert re.compile("a+") is script["pattern"]


def test_functions_in_arguments_have_their_own_globals(lease, script):
    # As the documents say: only functions that are called share the globals of their module.
    apply = defined(script, "def f(function, *arguments):\n    return function(*arguments)")
    assert lease.call(apply, script["fill"], "a", 1) == {"a": 1}
    assert lease.call(apply, script["fill"], "b", 2) == {"b": 2}


def test_errors_while_a_function_is_loaded_change_no_global(lease, script):
    class Unloadable:
        def __reduce__(self):
            return int, ("no number",)

    assert lease.call(script["fill"], "a", 1) == {"a": 1}
    script["broken"] = Unloadable()
    # Values that are loaded before the error set globals, too.
    f = defined(script, "def helper():\n    return cache\ndef f():\n    return helper(), broken")
    with pytest.raises(ValueError, match="no number"):
        lease.call(f)
    assert lease.call(script["fill"], "b", 2) == {"a": 1, "b": 2}
