"""Environment variables, secrets, folders, temporary space and isolation of leases."""

import os
import subprocess

import pytest

import sublet
from sublet._local import program


def test_variables_are_set_before_modules_are_imported(platform, tmp_path):
    module = tmp_path / "looks_at_start.py"
    module.write_text("import os\nFIRST = os.environ.get('STAGE')\ndef first():\n    return FIRST\n")
    with platform.lease(env={"STAGE": "test"}, imports=["looks_at_start"], path=[str(module)]) as lease:
        assert lease.call("looks_at_start:first") == "test"
        assert lease.call(os.getenv, "STAGE") == "test"
        assert lease.call(os.getenv, "HOME") == "/tmp"
        lease.grow(1)
        assert [lease.options(worker=worker).call(os.getenv, "STAGE") for worker in range(2)] == ["test", "test"]


def test_variables_hold_for_packages_and_the_replacement_of_a_worker(platform):
    with platform.lease(env={"STAGE": "kept"}) as lease:
        with pytest.raises(sublet.WorkerDied):
            lease.call(os._exit, 1)
        assert lease.call(os.getenv, "STAGE") == "kept"


@pytest.mark.parametrize(
    "options, named",
    [
        ({"env": {"A": 1}}, "'A'"),
        ({"env": {"1A": "x"}}, "1A"),
        ({"env": {"LD_PRELOAD": "x"}}, "LD_PRELOAD"),
        ({"secrets": "KEY"}, "secrets='KEY'"),
        ({"secrets": ["missing-secret"]}, "missing-secret"),
        ({"secrets": {"KEY": "missing-secret"}}, "missing-secret"),
        ({"folders": "data"}, "folders='data'"),
        ({"folders": ["../etc"]}, "../etc"),
        ({"devices": ["cuda"]}, "devices=['cuda']"),
        ({"devices": {"../x": 1}}, "../x"),
        ({"devices": {"cuda": True}}, "True devices"),
        ({"gpus": 0}, "0 devices of the kind 'gpu'"),
        ({"temporary": "1TiB", "memory": "256MiB"}, "temporary space"),
        ({"temporary": "many"}, "many"),
    ],
    ids=str,
)
def test_invalid_options_are_refused_by_name(platform, options, named):
    with pytest.raises(sublet.InvalidArgument) as raised:
        platform.lease(**options)
    assert named in str(raised.value)


def test_folder_that_no_node_lends_is_refused_by_name(platform):
    with pytest.raises(sublet.Error) as raised:
        platform.lease(folders=["tapes"])
    assert raised.value.code == "insufficient_resources" and '"tapes"' in str(raised.value)


def test_device_that_no_node_lends_is_refused_by_name(platform):
    with pytest.raises(sublet.Error) as raised:
        platform.lease(devices={"tapes": 2})
    assert raised.value.code == "insufficient_resources" and '2 devices of the kind "tapes"' in str(raised.value)


def test_isolation_is_demanded_and_reported(platform):
    with platform.lease(isolation="process") as lease:
        assert lease.call(abs, -1) == 1
        assert lease.isolation == "process"
    for name, code in [("weak", "insufficient_resources"), ("vm", "invalid_argument")]:
        with pytest.raises(sublet.Error) as raised:
            platform.lease(isolation=name)
        assert raised.value.code == code and f'"{name}"' in str(raised.value)


def test_secret_reaches_functions_and_no_representation_of_a_lease(platform):
    value = "hidden-value-of-the-test"
    environment = dict(os.environ, SUBLET_MANAGER=platform.managers)
    subprocess.run([program(), "secret", "set", "TEST_KEY"], input=value.encode(), env=environment, check=True, capture_output=True)
    with platform.lease(secrets={"KEY": "TEST_KEY"}, env={"OTHER": "x"}) as lease:
        assert lease.call(os.getenv, "KEY") == value
        assert lease.call(os.getenv, "OTHER") == "x"
        assert value not in repr(lease) + repr(lease.leases)
        with open("/proc/self/environ") as own:
            assert value not in own.read()
    subprocess.run([program(), "secret", "remove", "TEST_KEY"], env=environment, check=True, capture_output=True)
