"""Images: functions of a program are executed by the Python of an image, and see what the image has."""

import sys
from pathlib import Path

import pytest

import sublet

sys.path.insert(0, str(Path(__file__).parent))
import image_functions as functions  # noqa: E402: it is beside this file
import images  # noqa: E402: it is beside this file


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    registry = images.Registry(tmp_path_factory.mktemp("registry"))
    yield registry
    registry.close()


@pytest.fixture(scope="module")
def image(registry):
    pytest.importorskip("numpy")
    tar, folder = images.python(["numpy"], {"only_here.py": "value = 'of the image'\n"})
    return registry.push("science", tar, [f"PATH={folder}", "HUE=red"])


@pytest.fixture(scope="module")
def near(registry):
    """A platform that pulls from the registry."""
    with sublet.local(memory="8GiB", registries=f"localhost:{registry.port}") as client:
        yield client


def test_functions_see_what_the_image_has(near, image):
    import numpy

    with near.lease(image=image, env={"HUE": "blue"}, imports=["numpy"], wait=60) as lease:
        value, hue, file, has_package = lease.call(functions.of_image, "HUE")
        assert (value, hue, has_package) == ("of the image", "blue", True)
        assert file != numpy.__file__ and file.endswith("numpy/__init__.py")
        assert lease.call(functions.mean, numpy.arange(1001.0)) == 500.0
        assert list(lease.map(abs, range(-5, 5))) == [abs(number) for number in range(-5, 5)]
        with pytest.raises(KeyError, match="told"):
            lease.call(functions.fails)
    with near.lease(image=image, wait=60) as lease:
        assert lease.call(functions.of_image, "HUE")[1] == "red"


def test_an_executor_has_an_image(near, image):
    with sublet.Executor(1, client=near, image=image, wait=60) as executor:
        assert executor.submit(functions.of_image, "HUE").result()[0] == "of the image"


def test_a_lease_has_one_place(near, image):
    with pytest.raises(sublet.InvalidArgument, match="an image or an environment"):
        near.lease(image=image, requirements=["numpy"])
    with pytest.raises(sublet.InvalidArgument, match="its own image"):
        near.lease(package="words", image=image)
    with pytest.raises(sublet.InvalidArgument, match="not the name of an image"):
        near.lease(image=["debian:12"])


def test_images_that_cannot_be_used_are_named(near, registry):
    with pytest.raises(sublet.Error, match="has no nothing/manifests/1") as caught:
        near.lease(image=f"localhost:{registry.port}/nothing:1")
    assert caught.value.code == "unknown_image"
    empty = registry.push("empty", images.tar_of({"etc/issue": "x"}), ["PATH=/bin"])
    with pytest.raises(sublet.Error, match=r"empty:1@sha256:\w+ cannot execute Python: it has no python3 in the folders of its PATH \(/bin\)") as caught:
        near.lease(image=empty)
    assert caught.value.code == "invalid_package"
