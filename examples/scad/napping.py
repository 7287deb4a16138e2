"""The function of the row `warm`: it imports next to nothing, so that a start is measured and not an import."""

import time


def nap(data):
    """Sleeps for as many milliseconds as the message says, and hands that on."""
    time.sleep(int(bytes(data)) / 1000)
    return bytes(data)
