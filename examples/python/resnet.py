"""Classifies images by ResNet-50, here and on leased cores.

    python examples/python/resnet.py --install [INDEX]      # once: torch and torchvision, into this Python's environment
    python examples/python/resnet.py [--images N]

Each worker makes the model once, by the initializer, and keeps it warm; a call hands over where its image is. The weights are random, so
nothing is downloaded and the classes mean nothing: the time is that of a trained one.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time

import numpy

import sublet

try:
    import torch
    import torchvision
except ImportError:
    torch = None

# Wheels without CUDA: those of PyPI bring its libraries along, some 3 GB.
CPU_ONLY = "https://download.pytorch.org/whl/cpu"
# Memory of a worker: enough for torch, with CUDA's libraries, too.
WORKER_BYTES = 2 << 30

# State that this worker keeps from one call to the next.
model = None


def load():
    global model
    torch.manual_seed(1)
    model = torchvision.models.resnet50(weights=None).eval()


def classify(images):
    """The scores of 1000 classes for each of the images: an array of (images, 3, height, width)."""
    with torch.inference_mode():
        return model(torch.from_numpy(images)).numpy()


def platform():
    """Returns the platform of $SUBLET_MANAGER, or starts one for this program."""
    return contextlib.nullcontext() if "SUBLET_MANAGER" in os.environ else sublet.local()


def timed(function, *args):
    begun = time.perf_counter()
    result = function(*args)
    return result, time.perf_counter() - begun


def compare(options):
    # In memory that workers share, one batch of one image after the other.
    images = sublet.empty((options.images, 1, 3, options.pixels, options.pixels), dtype="f4")
    numpy.random.default_rng(seed=1).random(out=images, dtype="f4")

    load()
    classify(images[0])
    local, local_each = zip(*[timed(classify, image) for image in images])

    begun = time.perf_counter()
    memory = options.cores * WORKER_BYTES
    with platform(), sublet.lease(options.cores, initializer=load, memory=memory, wait=60) as lease:
        for worker in range(lease.workers):
            lease.options(worker=worker).call(classify, images[0])
        begin_s = time.perf_counter() - begun
        one_each = [timed(lease.call, classify, image)[1] for image in images]
        leased, leased_s = timed(lambda: list(lease.map(classify, images, chunksize=1)))

    return {
        "local_s": sum(local_each),
        "local_one_s": statistics.median(local_each),
        "leased_s": leased_s,
        "leased_one_s": statistics.median(one_each),
        "begin_s": begin_s,
        # Sums of more threads are rounded in another order.
        "equal": bool(numpy.allclose(leased, local, rtol=1e-3, atol=1e-4)),
    }


def main():
    parser = argparse.ArgumentParser(description="Classifies images by ResNet-50, here and on leased cores.")
    parser.add_argument(
        "--install", nargs="?", const=CPU_ONLY, metavar="INDEX", help="install torch and torchvision, and end [from %(const)s]"
    )
    parser.add_argument("--cores", type=int, default=2, help="cores to lease [%(default)s]")
    parser.add_argument("--images", type=int, default=20, help="images to classify [%(default)s]")
    parser.add_argument("--pixels", type=int, default=224, help="their width and height [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    options = parser.parse_args()

    if options.install:
        pip = [sys.executable, "-m", "pip", "install", "--index-url", options.install, "torch", "torchvision"]
        return subprocess.run(pip, check=False).returncode
    if torch is None:
        sys.exit(f"this example needs torch and torchvision; to install them into {sys.prefix}: {sys.argv[0]} --install")

    measured = compare(options)
    if options.json:
        print(json.dumps(measured))
    else:
        threads = torch.get_num_threads()
        print(f"{options.images} images of {options.pixels} x {options.pixels} pixels:")
        print(f"  here:           {measured['local_s']:.3f} s, one {1e3 * measured['local_one_s']:.1f} ms, on {threads} threads")
        print(f"  {options.cores} leased cores: {measured['leased_s']:.3f} s, one {1e3 * measured['leased_one_s']:.1f} ms on one core")
        print(f"  {measured['begin_s']:.1f} s to lease them and make a model on each")
    return 0 if measured["equal"] else 1


if __name__ == "__main__":
    # By its name: a module that was imported is sent to the workers whole, and all of its functions there have the same globals.
    import resnet

    sys.exit(resnet.main())
