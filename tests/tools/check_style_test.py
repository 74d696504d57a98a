"""Every rule of tools/check_style, broken once in a tree that is otherwise sound."""
import unittest

from trees import ROOT, TreeTest

SOUND = {
    ".clang-format": (ROOT / ".clang-format").read_text(),
    "kinfolk/core/sum.h": "#pragma once\n\nint sum(int a, int b);\n",
    "tools/show": "#!/usr/bin/env bash\necho shown\n",
    "README.md": "Two spaces end a line of Markdown  \nlike this.\n",
    "build/made.h": "\tint   not_ours;",
    "data/book.txt": "a\ttab",
}


class CheckStyle(TreeTest):
    tool = "check_style"

    def broken(self, expected, path, content, *options):
        self.fails(expected, SOUND | {path: content}, *options)

    def test_sound_tree_passes(self):
        self.assertIn("3 files, 0 faults", self.passes(SOUND))

    def test_format(self):
        self.broken("kinfolk/core/two.h:1:", "kinfolk/core/two.h", "int  two();\n")

    def test_no_format_skips_only_the_format(self):
        self.passes(SOUND | {"kinfolk/core/two.h": "int  two();\n"}, "--no-format")
        self.broken("two.h:1: a tab", "kinfolk/core/two.h", "\tint two();\n", "--no-format")

    def test_length(self):
        self.broken("long.py:801: expected at most 800 lines; found 801", "tools/long.py", "a = 1\n" * 801, "--no-format")
        self.assertIn("long.py: warning: 501 lines", self.passes(SOUND | {"tools/long.py": "a = 1\n" * 501}, "--no-format"))
        self.assertNotIn("warning", self.passes(SOUND | {"tools/long.py": "a = 1\n" * 500}, "--no-format"))

    def test_tab(self):
        self.broken("show:2: a tab", "tools/show", "#!/bin/sh\n\techo\n", "--no-format")
        self.broken("x.toml:1: a tab", "recipes/x.toml", "a\t= 1\n", "--no-format")

    def test_ends(self):
        self.broken("x.toml:1: the file does not end with a newline", "recipes/x.toml", "a = 1", "--no-format")
        self.broken("x.py:1: spaces at the end", "tools/x.py", "a = 1 \n", "--no-format")
        self.broken("x.py:1: a carriage return", "tools/x.py", "a = 1\r\n", "--no-format")

    def test_open_ends(self):
        for word in ("TO" + "DO", "FIX" + "ME", "XX" + "X"):
            self.broken(f"x.py:1: {word}", "tools/x.py", f"a = 1  # {word}: more\n", "--no-format")

    def test_encoding(self):
        self.broken("x.py:1: expected UTF-8", "tools/x.py", b"# \xff\n", "--no-format")

    def test_empty_tree_is_not_a_pass(self):
        self.assertEqual(self.check({"picture.png": b"\x89PNG"})[0], 2)


if __name__ == "__main__":
    unittest.main()
