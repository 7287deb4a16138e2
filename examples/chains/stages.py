"""Implements the stages of stages.c in Python: each transforms text to text, as bytes."""

import collections
import re

# The functions of each chain, in their order.
CHAINS = {"assistant": ["frontend", "dialogue", "home", "door", "light"], "words": ["split", "map", "reduce"]}
# Bytes of a stage's output, at most, as in stages.h.
STAGE_BYTES = 16384


def frontend(text):
    """Returns the words in lower case between single spaces, without the word that wakes the assistant."""
    words = re.findall("[A-Za-z0-9]+", bytes(text).decode())
    return " ".join(word.lower() for word in words if word != "Alexa").encode()


def dialogue(text):
    """Returns the requests: each line has a device and the state that it is to take."""
    states = {"open": "open", "on": "on", "close": "closed", "off": "off"}
    becomes, wanted = None, []
    for word in bytes(text).decode().split():
        becomes = states.get(word, becomes)
        if becomes and word in ("door", "light"):
            wanted.append(f"{word} {becomes}\n")
    return "".join(wanted).encode()


def home(text):
    """Prefixes each line with the location of the device."""
    lines = bytes(text).decode().splitlines()
    return "".join(f"{'hall' if line[0] == 'd' else 'kitchen'}/{line}\n" for line in lines).encode()


def device(text, name):
    """Executes the requests for one device, and writes its new state in their place."""
    return re.sub(f"^[a-z]+/{name} (.*)$", rf"the {name} is \1", bytes(text).decode(), flags=re.MULTILINE).encode()


def door(text):
    return device(text, "door")


def light(text):
    return device(text, "light")


def split(text):
    """Returns one word in each line, in lower case."""
    return "".join(f"{word.lower()}\n" for word in re.findall("[A-Za-z0-9]+", bytes(text).decode())).encode()


def map(text):
    """Returns each word once, with its count, in the order of words."""
    counts = collections.Counter(bytes(text).decode().split())
    return "".join(f"{word} {counts[word]}\n" for word in sorted(counts)).encode()


def reduce(text):
    """Returns the most frequent word, the first one of several, and its count."""
    words = [line.split() for line in bytes(text).decode().splitlines()]
    word, times = max(words, key=lambda word: int(word[1]), default=("", 0))
    return f"{word} {times}\n".encode()
