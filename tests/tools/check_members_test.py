"""Every rule of tools/check_members, broken once, with a stand-in for the program."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

from trees import ROOT

TABLE = "| member | about |\n| --- | --- |\n| rope | rotates |\n"
PROGRAM = f"#!{sys.executable}\nimport sys\nprint({TABLE!r} if '--markdown' in sys.argv else 'rope  rotates\\ndelta  writes', end='')\n"
BLOCK = f"Text\n<!-- members -->\n{TABLE}<!-- /members -->\nMore\n"
NAMES = "| golden row | component | recipe |\n| --- | --- | --- |\n| rope | rope | rope |\n| deltanet | delta | - |\n"
SOUND = {
    "program": PROGRAM,
    "README.md": BLOCK,
    "docs/members.md": BLOCK + "\n" + NAMES,
    "recipes/rope.toml": "\n",
    "tests/golden/attention/rope/case.txt": "\n",
    "tests/golden/recurrent/deltanet/case.txt": "\n",
}


class CheckMembers(unittest.TestCase):
    def check(self, changes, *options):
        """Exit status, output, and the README after the check."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, content in (SOUND | changes).items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(content)
            (root / "program").chmod(0o755)
            command = [sys.executable, str(ROOT / "tools/check_members"), *options, str(root / "program"), folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return done.returncode, done.stdout + done.stderr, (root / "README.md").read_text()

    def fails(self, expected, changes):
        status, output, _ = self.check(changes)
        self.assertEqual(status, 1, output)
        self.assertIn(expected, output)

    def test_sound_tree_passes(self):
        status, output, _ = self.check({})
        self.assertEqual(status, 0, output)

    def test_stale_table(self):
        for page in ("README.md", "docs/members.md"):
            stale = SOUND[page].replace("rotates", "turns")
            self.fails(f"{page}: not what the program lists", {page: stale})
        self.fails("+| rope | rotates |", {"README.md": SOUND["README.md"].replace("rotates", "turns")})

    def test_missing_block(self):
        self.fails("README.md: expected one block", {"README.md": "Text\n"})

    def test_write(self):
        status, output, page = self.check({"README.md": "Text\n<!-- members -->\n<!-- /members -->\nMore\n"}, "--write")
        self.assertEqual(status, 0, output)
        self.assertEqual(page, BLOCK)

    def test_names(self):
        page = SOUND["docs/members.md"]
        self.fails("deltanet: no recipe gone", {"docs/members.md": page.replace("delta | -", "delta | gone")})
        self.fails("rope: the program lists no component wheel", {"docs/members.md": page.replace("| rope | rope |", "| rope | wheel |")})
        self.fails("attention/alibi has no line", {"tests/golden/attention/alibi/case.txt": ""})
        self.fails("expected a table with the head", {"docs/members.md": BLOCK})

    def test_program_that_fails_is_not_a_pass(self):
        self.assertEqual(self.check({"program": "#!/bin/sh\nexit 1\n"})[0], 2)
        self.assertEqual(self.check({"program": "#!/bin/sh\necho\n"})[0], 2)


if __name__ == "__main__":
    unittest.main()
