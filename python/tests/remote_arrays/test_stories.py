"""Random steps on random views of an array, with NumPy and with remote arrays."""

import random
import threading

import numpy
import pytest


def story(far, seed):
    """Random steps on random views of one array, here and there; after each the whole array is the same."""
    chance = random.Random(seed)
    local = numpy.random.default_rng(seed).integers(-50, 50, (12, 9, 14))
    there = far.asarray(local)
    for _ in range(12):
        order, cut = chance.sample(range(3), 3), []
        for length in (local.shape[axis] for axis in order):
            begin, end = sorted(chance.sample(range(length + 1), 2))
            part = slice(begin, end, chance.choice((1, 1, 2, 3)))
            cut.append(chance.choice((part, part, slice(None), slice(None, None, -1))))
        step = chance.randrange(7)
        for whole in (local, there):
            change(whole.transpose(order)[tuple(cut)], step)
        numpy.testing.assert_array_equal(numpy.asarray(there), local, f"seed {seed}")


def change(a, step):
    if step == 0:
        a += 3
    elif step == 1:
        a[1:] = a[:-1]
    elif step == 2:
        a[...] = a[::-1, :, ::-1]
    elif step == 3:
        a.sort(axis=1)
    elif step == 4:
        a[a > 20] = -7
    elif step == 5:
        a -= a.sum(axis=1, keepdims=True) % 11
    else:
        numpy.multiply(a[..., 1:], -1, out=a[..., :-1])


@pytest.mark.parametrize("seed", range(8))
def test_stories(far, seed):
    story(far, seed)


def test_threads_use_one_place(far):
    failed = []

    def work(seed):
        try:
            story(far, 100 + seed)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
