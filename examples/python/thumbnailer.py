"""Makes thumbnails of photographs, here and on leased cores.

    python examples/python/thumbnailer.py [--images N]

The photographs have the sizes of those with which rFaaS was measured (IPDPS 2023, section V-F): 97 kB and 3.6 MB. They are generated:
coloured clouds, and grain that does not compress. The workers need Pillow: the lease names it in `requirements`, and each node installs
it once.
"""

import argparse
import concurrent.futures
import contextlib
import importlib.metadata
import io
import json
import os
import statistics
import sys
import time

import numpy
from PIL import Image

import sublet

# Sizes of the generated photographs: width and height in pixels, and the strength of the grain.
SIZES = {"97 kB": (800, 600, 5.0), "3.6 MB": (4000, 3000, 9.1)}
THUMBNAIL_PIXELS = (200, 200)


def photograph(width, height, grain, seed):
    """Generates a photograph, and returns it as a JPEG file."""
    random = numpy.random.default_rng(seed)
    clouds = Image.fromarray(random.integers(0, 256, (height // 50, width // 50, 3), dtype="u1"))
    pixels = numpy.asarray(clouds.resize((width, height), Image.Resampling.BICUBIC))
    pixels = pixels + grain * random.standard_normal((height, width, 1), dtype="f4")
    return encoded(Image.fromarray(pixels.clip(0, 255).astype("u1")), quality=85)


def encoded(image, **options):
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def thumbnail(jpeg):
    """Returns a smaller JPEG file of the image."""
    image = Image.open(io.BytesIO(jpeg))
    image.thumbnail(THUMBNAIL_PIXELS)
    return encoded(image)


def requirements():
    """The packages that workers need, in the versions that this program has: with them, workers make the same thumbnails."""
    return [f"{name}=={importlib.metadata.version(name)}" for name in ("numpy", "pillow")]


def platform():
    """Returns the platform of $SUBLET_MANAGER, or starts one for this program."""
    return contextlib.nullcontext() if "SUBLET_MANAGER" in os.environ else sublet.local()


def timed(function, *args):
    begun = time.perf_counter()
    result = function(*args)
    return result, time.perf_counter() - begun


def both(lease, pool, shared, jpeg, count):
    """Half of the thumbnails on leased cores, while threads of this program make the others."""
    futures = [lease.submit(thumbnail, shared) for _ in range(count // 2)]
    rest = list(pool.map(thumbnail, [jpeg] * (count - count // 2)))
    return [future.result() for future in futures] + rest


def compare(lease, pool, jpeg, options):
    """Measures thumbnails of an image, made by threads here, by all workers, and by both."""
    count = options.images
    # In memory that workers of this machine share: a call hands over where the image is.
    shared = sublet.array(numpy.frombuffer(jpeg, dtype="u1"))
    for worker in range(lease.workers):
        lease.options(worker=worker).call(thumbnail, shared)
    called = [timed(lease.call, thumbnail, shared) for _ in range(count)]
    expected, local_one_s = timed(thumbnail, jpeg)

    ways = {
        "local": lambda: list(pool.map(thumbnail, [jpeg] * count)),
        "leased": lambda: list(lease.map(thumbnail, [shared] * count)),
        "both": lambda: both(lease, pool, shared, jpeg, count),
    }
    seconds, equal = {name: [] for name in ways}, all(made == expected for made, _ in called)
    # The ways take turns, so that whatever slows the machine down slows each.
    for _ in range(options.repeat):
        for name, way in ways.items():
            made, taken = timed(way)
            seconds[name].append(taken)
            equal = equal and made == [expected] * count
    times = {f"{name}_s": statistics.median(taken) for name, taken in seconds.items()}
    leased_one_s = statistics.median(taken for _, taken in called)
    return {"bytes": len(jpeg), **times, "local_one_s": local_one_s, "leased_one_s": leased_one_s, "equal": equal}


def main():
    parser = argparse.ArgumentParser(description="Makes thumbnails here and on leased cores.")
    parser.add_argument("--cores", type=int, default=2, help="cores to lease [%(default)s]")
    parser.add_argument("--threads", type=int, default=1, help="threads of this program [%(default)s]")
    parser.add_argument("--images", type=int, default=40, help="thumbnails of each size [%(default)s]")
    parser.add_argument("--repeat", type=int, default=3, help="measurements of which the median is taken [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print the times as JSON")
    options = parser.parse_args()

    times = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(platform())
        lease = stack.enter_context(
            sublet.lease(
                options.cores,
                requirements=requirements(),
                # Workers have imported these before their first call.
                imports=["PIL.Image", "PIL.JpegImagePlugin"],
                memory="1GiB",
                wait=60,
            )
        )
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(options.threads))
        for name, size in SIZES.items():
            times[name] = compare(lease, pool, photograph(*size, seed=1), options)

    equal = all(size["equal"] for size in times.values())
    if options.json:
        print(json.dumps({"sizes": times, "equal": equal}))
    else:
        for size in times.values():
            print(f"{options.images} thumbnails of {size['bytes'] / 1000:.0f} kB:")
            print(f"  threads here, {options.threads}:  {1e3 * size['local_s']:7.1f} ms, one {1e3 * size['local_one_s']:.2f} ms")
            print(f"  leased cores, {options.cores}:  {1e3 * size['leased_s']:7.1f} ms, one {1e3 * size['leased_one_s']:.2f} ms")
            print(f"  half and half:    {1e3 * size['both_s']:7.1f} ms")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
