"""Tests the archives that scripts/wheel.py writes, with Python's own reader of archives. A test of xtask runs them."""

import importlib.util
import os
import tempfile
import unittest
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace

PROGRAM = Path(__file__).resolve().parent.parent / "wheel.py"
SPECIFICATION = importlib.util.spec_from_file_location("wheel", PROGRAM)
wheel = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(wheel)

FILES = {"sublet/py.typed": b"", "sublet/text.py": b"a = 1\n" * 10_000, "sublet/_programs/random": os.urandom(100_000)}


def archive(folder: str) -> Path:
    """Writes an archive of the files, the last of which is a program."""
    path = Path(folder) / "sublet.whl"
    made = wheel.Wheel(path)
    for name, content in FILES.items():
        made.add(name, content, 0o755 if "_programs" in name else 0o644)
    made.close("sublet.dist-info")
    return path


class Archives(unittest.TestCase):
    """What readers find in an archive."""

    def check(self) -> None:
        """Writes an archive, and compares what is read of it."""
        with tempfile.TemporaryDirectory() as folder:
            path = archive(folder)
            first = path.read_bytes()
            with zipfile.ZipFile(path) as found:
                self.assertIsNone(found.testzip())
                self.assertEqual(found.namelist(), [*FILES, "sublet.dist-info/RECORD"])
                for name, content in FILES.items():
                    self.assertEqual(found.read(name), content, name)
                entry = found.getinfo("sublet/_programs/random")
                self.assertEqual((entry.external_attr >> 16, entry.date_time), (0o100755, (1980, 1, 1, 0, 0, 0)))
                record = found.read("sublet.dist-info/RECORD").decode().splitlines()
            self.assertEqual([line.split(",")[0] for line in record], [*FILES, "sublet.dist-info/RECORD"])
            self.assertEqual([line.split(",")[2] for line in record[:-1]], [str(len(content)) for content in FILES.values()])
            self.assertEqual(archive(folder).read_bytes(), first)

    def test_is_read_as_it_was_written(self) -> None:
        self.check()

    def test_streams_of_another_compressor_are_read(self) -> None:
        def stored(content: bytes, level: int) -> bytes:
            self.assertEqual(level, wheel.LEVEL)
            compressor = zlib.compressobj(0, zlib.DEFLATED, -zlib.MAX_WBITS)
            return compressor.compress(content) + compressor.flush()

        usual, wheel.deflate = wheel.deflate, SimpleNamespace(deflate_compress=stored)
        try:
            self.check()
        finally:
            wheel.deflate = usual


if __name__ == "__main__":
    unittest.main()
