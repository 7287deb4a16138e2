"""Constants of a program's own modules, as `config.limit`, which the program sets at run time."""

import builtins
import importlib
import os
import sys
import warnings

import pytest

CONFIG = """
import os

limit = 3
name: str = "first"
ratio = -0.5
switch = False
model = None
place = os.path.dirname(__file__)
twice = 1
twice = 2
lazy = None

def load():
    global lazy
    lazy = 7

def limited():
    return limit
"""
USER = """
import constants_config
import constants_package.inner
from constants_config import limit

def copied():
    return limit

def by_attribute():
    return constants_config.limit, constants_config.name, constants_config.ratio, constants_config.switch

def deep():
    return constants_package.inner.depth

def others():
    return constants_config.place, constants_config.twice, constants_config.lazy

def set_there(value):
    constants_config.limit = value
    return constants_config.limit
"""
FILES = {
    "constants_config.py": CONFIG,
    "constants_user.py": USER,
    "constants_package/__init__.py": "",
    "constants_package/inner.py": "".join(f"name_{number} = {number}\n" for number in range(300)) + "depth = 1\n",
}


@pytest.fixture
def user(tmp_path, monkeypatch):
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("constants_user")
    for name in [name for name in sys.modules if name.startswith("constants_")]:
        del sys.modules[name]


@pytest.fixture
def config(user):
    return user.constants_config


def scripted(source, **names):
    space = {"__name__": "__main__", "__builtins__": builtins, **names}
    exec(source, space)
    return space["f"]


def test_constants_that_the_program_has_set_are_set_on_workers(platform, user, config):
    config.limit, config.name, config.ratio, config.switch = 5, "second", 2, True
    user.constants_package.inner.depth = 2
    with platform.lease(wait=60) as lease:
        assert lease.call(user.by_attribute) == (5, "second", 2, True)
        assert lease.call(config.limited) == 5
        assert lease.call("constants_user:deep") == 2
        # Also what another module has imported from that one.
        assert lease.call(user.copied) == 5


def test_other_names_are_the_workers_own(platform, user, config):
    config.place, config.twice = "elsewhere", 9
    config.load()
    with platform.lease(wait=60) as lease:
        place, twice, lazy = lease.call(user.others)
        assert place not in ("elsewhere", os.path.dirname(config.__file__)) and (twice, lazy) == (2, None)


def test_constants_that_are_set_later_arrive_with_functions_of_the_program(user, config, lease):
    f = scripted("def f():\n    return user.constants_config.limit, config.name", config=config, user=user)
    assert lease.call(f) == (3, "first")
    config.limit = 5
    assert lease.call(f) == (5, "first")
    # And back.
    for limit in (6, 5, 3, True, 1):
        config.limit = limit
        assert repr(lease.call(f)) == f"({limit}, 'first')"


def test_constants_that_functions_set_stay_until_the_program_sets_them(platform, user, config):
    config.limit = 5
    f = scripted("def f():\n    return config.limit, config.name", config=config)
    with platform.lease(wait=60) as lease:
        assert lease.call(user.set_there, 8) == 8
        assert lease.call(f) == (8, "first")
        config.name = "second"
        assert lease.call(f) == (8, "second")
        config.limit = 6
        assert lease.call(f) == (6, "second")


def test_initializers_find_the_constants_that_the_program_has_set(platform, user, config):
    config.limit = 5
    # Its module is imported, and imports the constant, while the initializer is loaded.
    initialize = scripted("def f():\n    import builtins\n    builtins.limit_at_first = user.copied()", user=user)
    with platform.lease(initializer=initialize, wait=60) as lease:
        assert lease.call(lambda: __import__("builtins").limit_at_first) == 5


def test_a_constant_that_cannot_be_sent_is_warned_of_once(platform, config):
    config.model = [1]
    with pytest.warns(UserWarning, match=r"constants_config.model was set to an object of type list, .*: set it in an initializer"):
        platform.lease(wait=60).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        platform.lease(wait=60).close()
