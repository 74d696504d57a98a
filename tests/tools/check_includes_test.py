"""Every rule of tools/check_includes, broken once in a tree that is otherwise sound."""
import unittest

from trees import TreeTest

SOUND = {
    "kinfolk/kernels/sum.h": "#include <cstdint>\n",
    "kinfolk/kernels/sum.cpp": '#include "kinfolk/kernels/sum.h"\n#include <ATen/cpu/vec/vec.h>\n',
    "kinfolk/core/errors.h": "#include <ATen/core/Tensor.h>\n",
    "kinfolk/core/pch.h": "#include <ATen/ATen.h>\n",
    "kinfolk/ops/sum.cpp": '#include "kinfolk/kernels/sum.h"\n#include <ATen/ops/add.h>\n',
    "kinfolk/nn/model.h": '#include "kinfolk/core/errors.h"\n#include <torch/nn/module.h>\n',
    "kinfolk/nn/model_test.cpp": '#include "kinfolk/reference/sum.h"\n#include "tests/near.h"\n',
    "kinfolk/train/trainer.h": '#include "kinfolk/nn/model.h"\n',
    "kinfolk/eval/perplexity.h": '#include "kinfolk/nn/model.h"\n',
    "kinfolk/reference/sum.h": '#include <vector>\n#include "kinfolk/core/errors.h"\n',
    "cli/train.cpp": '#include "kinfolk/train/trainer.h"\n',
    "tests/near.h": "#include <cmath>\n",
}


class CheckIncludes(TreeTest):
    tool = "check_includes"

    def broken(self, path, line, expected):
        self.fails(f"{path}:{SOUND.get(path, '').count(chr(10)) + 1}: {expected}", SOUND | {path: SOUND.get(path, "") + line + "\n"})

    def test_sound_tree_passes(self):
        self.assertIn(f"{len(SOUND)} files, 0 faults", self.passes(SOUND))

    def test_upward(self):
        self.broken("kinfolk/core/errors.h", '#include "kinfolk/nn/model.h"', "kinfolk/nn/model.h: core may not include nn")
        self.broken("kinfolk/kernels/sum.cpp", '#include "kinfolk/core/errors.h"', "kinfolk/core/errors.h: kernels may not")
        self.broken("kinfolk/nn/model.h", '#include "cli/train.cpp"', "cli/train.cpp: nn may not include cli")

    def test_sideways(self):
        self.broken("kinfolk/train/trainer.h", '#include "kinfolk/eval/perplexity.h"', "kinfolk/eval/perplexity.h: train may not")

    def test_tests_keep_to_the_layers_below(self):
        self.broken("kinfolk/nn/model_test.cpp", '#include "kinfolk/train/trainer.h"', "kinfolk/train/trainer.h: nn may not")

    def test_reference_is_for_tests(self):
        self.broken("kinfolk/nn/model.h", '#include "kinfolk/reference/sum.h"', "kinfolk/reference/sum.h: the reference")

    def test_reference_stands_apart(self):
        self.broken("kinfolk/reference/sum.h", '#include "kinfolk/nn/model.h"', "kinfolk/nn/model.h: reference stands")

    def test_helpers_of_tests_are_for_tests(self):
        self.broken("kinfolk/nn/model.h", '#include "tests/near.h"', "tests/near.h: only tests")

    def test_heavy_headers(self):
        for header in ("torch/torch.h", "torch/all.h", "torch/nn.h", "torch/extension.h"):
            self.broken("kinfolk/ops/sum.cpp", f"#include <{header}>", f"{header} costs")
            self.broken("tests/near.h", f"  #  include <{header}>", f"{header} costs")

    def test_kernels_know_no_tensor(self):
        for header in ("ATen/core/Tensor.h", "c10/util/Half.h", "torch/library.h"):
            self.broken("kinfolk/kernels/sum.cpp", f"#include <{header}>", f"{header}: kernels include")

    def test_light_headers(self):
        self.broken("kinfolk/core/errors.h", "#include <ATen/ATen.h>", "ATen/ATen.h: headers of core")
        self.broken("kinfolk/nn/model.h", "#include <torch/optim/adamw.h>", "torch/optim/adamw.h: headers of nn")

    def test_names_from_the_root(self):
        self.broken("kinfolk/core/errors.h", '#include "pch.h"', "pch.h: no such file from the root")
        self.broken("kinfolk/core/errors.h", "#include <kinfolk/core/pch.h>", 'kinfolk/core/pch.h: own headers stand in "quotes"')

    def test_unknown_layer(self):
        self.broken("kinfolk/misc/sum.h", "#include <vector>", "in no known layer")

    def test_empty_tree_is_not_a_pass(self):
        self.assertEqual(self.check({"readme.md": "\n"})[0], 2)


if __name__ == "__main__":
    unittest.main()
