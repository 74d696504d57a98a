"""Small source trees on disk for the tests of the checks, and a run of a check on one."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class TreeTest(unittest.TestCase):
    """A case whose tool runs on a tree made of {path: text or bytes}."""

    tool = ""

    def check(self, files, *options):
        """Exit status and output of the tool on that tree."""
        with tempfile.TemporaryDirectory() as folder:
            for path, content in files.items():
                place = pathlib.Path(folder) / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content if isinstance(content, bytes) else content.encode())
            command = [sys.executable, str(ROOT / "tools" / self.tool), *options, folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def passes(self, files, *options):
        status, output = self.check(files, *options)
        self.assertEqual(status, 0, output)
        return output

    def fails(self, expected, files, *options):
        status, output = self.check(files, *options)
        self.assertEqual(status, 1, output)
        self.assertIn(expected, output)
        self.assertIn("1 faults", output)
