"""Classifies images by ResNet-50, here and on leased cores.

    pip install onnx onnxruntime
    python examples/python/resnet.py [--images N]

The workers need ONNX Runtime: the lease names it in `requirements`, and each node installs it once. The program makes the model itself:
the layers of ResNet-50 with its 25,557,032 parameters, which are random. So nothing is downloaded and the classes mean nothing, and the
time is that of a trained model. Each worker gets the model once, by the initializer, and keeps it warm; a call sends an image.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import statistics
import sys
import time

import numpy

import sublet

try:
    import onnxruntime
except ImportError:
    onnxruntime = None

# Blocks of each of the four stages, and the channels of their first convolutions.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
CLASSES = 1000
# Memory of a worker: the model's file and its message, its weights, and what a convolution needs.
WORKER_BYTES = 1 << 30

# State that this worker keeps from one call to the next.
session = None


class Network:
    """A network of layers whose parameters are random."""

    def __init__(self):
        from onnx import helper, numpy_helper

        self._helper, self._tensors = helper, numpy_helper
        self._random = numpy.random.default_rng(seed=1)
        self.nodes, self.constants, self.parameters = [], [], 0

    def layer(self, kind, *inputs, **attributes):
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(self._helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, values):
        name = f"constant_{len(self.constants)}"
        self.constants.append(self._tensors.from_array(values, name))
        return name

    def parameter(self, values):
        self.parameters += values.size
        return self.constant(values)

    def weights(self, *shape):
        """Random weights, such that a layer's outputs have the variance of its inputs."""
        scale = numpy.sqrt(2 / numpy.prod(shape[1:]), dtype="f4")
        return self.parameter(scale * self._random.standard_normal(shape, dtype="f4"))

    def convolution(self, x, channels, made, size, stride=1):
        """A convolution of `channels` channels that makes `made`, and its normalization."""
        y = self.layer("Conv", x, self.weights(made, channels, size, size), strides=[stride] * 2, pads=[size // 2] * 4)
        ones, zeros = numpy.ones(made, dtype="f4"), numpy.zeros(made, dtype="f4")
        scale, shift = self.parameter(ones), self.parameter(zeros)
        return self.layer("BatchNormalization", y, scale, shift, self.constant(zeros), self.constant(ones))

    def block(self, x, channels, width, stride):
        """Three convolutions and a way around them."""
        y = self.layer("Relu", self.convolution(x, channels, width, 1))
        y = self.layer("Relu", self.convolution(y, width, width, 3, stride))
        y = self.convolution(y, width, 4 * width, 1)
        if channels != 4 * width:
            x = self.convolution(x, channels, 4 * width, 1, stride)
        return self.layer("Relu", self.layer("Add", x, y))


def make_model():
    """Makes ResNet-50; returns its file, and the number of its parameters."""
    from onnx import TensorProto, helper

    network = Network()
    x = network.layer("Relu", network.convolution("images", 3, 64, 7, 2))
    x = network.layer("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, (blocks, width) in enumerate(STAGES):
        for block in range(blocks):
            x = network.block(x, channels, width, 2 if stage > 0 and block == 0 else 1)
            channels = 4 * width
    x = network.layer("Flatten", network.layer("GlobalAveragePool", x))
    bias = network.parameter(numpy.zeros(CLASSES, dtype="f4"))
    x = network.layer("Gemm", x, network.weights(CLASSES, channels), bias, transB=1)

    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["count", 3, "height", "width"])
    scores = helper.make_tensor_value_info(x, TensorProto.FLOAT, ["count", CLASSES])
    graph = helper.make_graph(network.nodes, "resnet50", [images], [scores], network.constants)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    return model.SerializeToString(), network.parameters


def load(model, threads):
    global session
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def classify(images):
    """The scores of 1000 classes for each of the images: an array of (images, 3, height, width)."""
    (scores,) = session.run(None, {"images": images})
    return scores


def requirements():
    """The packages that workers need, in the versions that this program has: with them, workers compute what it computes."""
    return [f"{name}=={importlib.metadata.version(name)}" for name in ("numpy", "onnxruntime")]


def platform():
    """Returns the platform of $SUBLET_MANAGER, or starts one for this program."""
    return contextlib.nullcontext() if "SUBLET_MANAGER" in os.environ else sublet.local()


def timed(function, *args):
    begun = time.perf_counter()
    result = function(*args)
    return result, time.perf_counter() - begun


def here(images):
    return [classify(image) for image in images]


def leased(lease, images):
    return list(lease.map(classify, images, chunksize=1))


def both(lease, images):
    """Half of the images on leased cores, while this program classifies the others."""
    half = len(images) // 2
    futures = [lease.submit(classify, image) for image in images[:half]]
    rest = here(images[half:])
    return [future.result() for future in futures] + rest


def compare(options):
    # In memory that workers of this machine share, one batch of one image after the other.
    images = sublet.empty((options.images, 1, 3, options.pixels, options.pixels), dtype="f4")
    numpy.random.default_rng(seed=2).random(out=images, dtype="f4")
    model, parameters = make_model()
    load(model, options.threads)

    begun = time.perf_counter()
    with platform(), sublet.lease(
        options.cores,
        initializer=load,
        initargs=(model, 1),
        requirements=requirements(),
        memory=options.cores * WORKER_BYTES,
        wait=60,
    ) as lease:
        for worker in range(lease.workers):
            lease.options(worker=worker).call(classify, images[0])
        begin_s = time.perf_counter() - begun
        one_each = [timed(lease.call, classify, image)[1] for image in images]
        ways = {"local": (here, images), "leased": (leased, lease, images), "both": (both, lease, images)}
        expected = here(images)
        seconds, equal = {name: [] for name in ways}, True
        # The ways take turns, so that whatever slows the machine down slows each.
        for _ in range(options.repeat):
            for name, way in ways.items():
                scores, taken = timed(*way)
                seconds[name].append(taken)
                # Threads may add in another order.
                equal = equal and numpy.allclose(scores, expected, rtol=1e-3, atol=1e-3)

    medians = {f"{name}_s": statistics.median(taken) for name, taken in seconds.items()}
    one_s = statistics.median(one_each)
    return {**medians, "leased_one_s": one_s, "begin_s": begin_s, "parameters": parameters, "equal": bool(equal)}


def main():
    parser = argparse.ArgumentParser(description="Classifies images by ResNet-50, here and on leased cores.")
    parser.add_argument("--cores", type=int, default=2, help="cores to lease [%(default)s]")
    parser.add_argument("--threads", type=int, default=1, help="threads of this program [%(default)s]")
    parser.add_argument("--images", type=int, default=20, help="images to classify [%(default)s]")
    parser.add_argument("--pixels", type=int, default=224, help="their width and height [%(default)s]")
    parser.add_argument("--repeat", type=int, default=3, help="measurements of which the median is taken [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print the times as JSON")
    options = parser.parse_args()
    if onnxruntime is None or importlib.util.find_spec("onnx") is None:
        sys.exit("this example needs onnx and onnxruntime: pip install onnx onnxruntime")

    times = compare(options)
    if options.json:
        print(json.dumps(times))
    else:
        print(f"{options.images} images of {options.pixels} x {options.pixels} pixels, {times['parameters']:,} parameters:")
        print(f"  threads here, {options.threads}:  {times['local_s']:.3f} s")
        print(f"  leased cores, {options.cores}:  {times['leased_s']:.3f} s, one image {1e3 * times['leased_one_s']:.1f} ms")
        print(f"  half and half:    {times['both_s']:.3f} s")
        print(f"  {times['begin_s']:.1f} s to lease the cores, and to install the requirements and load the model there")
    return 0 if times["equal"] else 1


if __name__ == "__main__":
    # By its name: a module that was imported is sent to the workers whole, and all of its functions there have the same globals.
    import resnet

    sys.exit(resnet.main())
