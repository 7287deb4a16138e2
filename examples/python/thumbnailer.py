"""Makes thumbnails of photographs, here and on leased cores.

    python examples/python/thumbnailer.py [--images N]

The photographs have the sizes of those with which rFaaS was measured (IPDPS 2023, section V-F): 97 kB and 3.6 MB. They are generated:
coloured clouds, and grain that does not compress.
"""

import argparse
import contextlib
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


def platform():
    """Returns the platform of $SUBLET_MANAGER, or starts one for this program."""
    return contextlib.nullcontext() if "SUBLET_MANAGER" in os.environ else sublet.local()


def timed(function, *args):
    begun = time.perf_counter()
    result = function(*args)
    return result, time.perf_counter() - begun


def compare(lease, jpeg, count):
    """Measures `count` thumbnails of an image, made here, by one call after the other, and by all workers at once."""
    # In memory that workers share: a call hands over where the image is.
    shared = sublet.array(numpy.frombuffer(jpeg, dtype="u1"))
    for worker in range(lease.workers):
        lease.options(worker=worker).call(thumbnail, shared)
    thumbnail(jpeg)

    local = [timed(thumbnail, jpeg) for _ in range(count)]
    called = [timed(lease.call, thumbnail, shared) for _ in range(count)]
    mapped, mapped_s = timed(lambda: list(lease.map(thumbnail, [shared] * count)))
    made = [result for result, _ in local]
    return {
        "bytes": len(jpeg),
        "local_s": sum(seconds for _, seconds in local),
        "leased_s": mapped_s,
        "local_one_s": statistics.median(seconds for _, seconds in local),
        "leased_one_s": statistics.median(seconds for _, seconds in called),
        "equal": made == mapped == [result for result, _ in called],
    }


def main():
    parser = argparse.ArgumentParser(description="Makes thumbnails here and on leased cores.")
    parser.add_argument("--cores", type=int, default=2, help="cores to lease [%(default)s]")
    parser.add_argument("--images", type=int, default=40, help="thumbnails of each size [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    options = parser.parse_args()

    figures = {}
    # Workers have imported these before their first call.
    imports = ["PIL.Image", "PIL.JpegImagePlugin"]
    with platform(), sublet.lease(options.cores, imports=imports, memory="1GiB", wait=60) as lease:
        for name, size in SIZES.items():
            figures[name] = compare(lease, photograph(*size, seed=1), options.images)

    if options.json:
        print(json.dumps({"sizes": figures, "equal": all(size["equal"] for size in figures.values())}))
    else:
        for size in figures.values():
            print(f"{options.images} thumbnails of {size['bytes'] / 1000:.0f} kB:")
            print(f"  here:             {1e3 * size['local_s']:7.1f} ms, one {1e3 * size['local_one_s']:.2f} ms")
            print(f"  {options.cores} leased cores:   {1e3 * size['leased_s']:7.1f} ms, one {1e3 * size['leased_one_s']:.2f} ms")
    return 0 if all(size["equal"] for size in figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
