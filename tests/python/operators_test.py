#!/usr/bin/env python3
"""torch.ops.kinfolk as Python sees it: values, gradients, and torch's own checks of an operator.

usage: KINFOLK_LIBRARY=.../libkinfolk.so tests/python/operators_test.py      Exits 77 where it cannot run.
"""
import os
import sys
import unittest


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


if os.environ.get("KINFOLK_SANITIZE"):
    skip("the library is built with sanitizers, whose run time Python does not have")
try:
    import torch
except ImportError as error:
    skip(f"no torch in {sys.executable}: {error}")

import formulas

torch.ops.load_library(os.environ["KINFOLK_LIBRARY"])
kinfolk = torch.ops.kinfolk
OPERATORS = ["attend", "scan_decay", "scan_delta", "scan_selective", "short_conv"]
GROUPED = ["lsh_attend", "routed_attend"]


def draw(*sizes, dtype=torch.float32):
    return torch.randn(*sizes, dtype=torch.float64).to(dtype).requires_grad_(True)


def attend_case(length, keys=None, dtype=torch.float32, groups=2, heads=4, width=16):
    keys = keys or length
    return (draw(2, heads, length, width, dtype=dtype), draw(2, groups, keys, width, dtype=dtype),
            draw(2, groups, keys, width, dtype=dtype))


def case(name, length, dtype=torch.float32):
    """Arguments of an operator, and its formula of the same arguments."""
    def new(*sizes):
        return draw(*sizes, dtype=dtype)

    if name == "lsh_attend":
        # One chunk: all tokens of a bucket meet.
        rotations = torch.randn(3, 2, 1, 16, 2, dtype=torch.float64).to(dtype)
        return ((new(2, 3, length, 16), new(2, 3, length, 8), rotations), {"chunk": max(length, 1), "buckets": 4},
                formulas.lsh_attend)
    if name == "routed_attend":
        centroids = torch.randn(3, 4, 16, dtype=torch.float64).to(dtype)
        return ((new(2, 3, length, 16), new(2, 3, length, 16), new(2, 3, length, 8), centroids), {"top": 9},
                formulas.routed_attend)
    if name == "attend":
        sees = formulas.distances(length, length) >= 0
        return attend_case(length, dtype=dtype), {}, lambda q, k, v: formulas.attention(q, k, v, sees)
    if name == "short_conv":
        given = (new(2, length, 24), new(24, 4), new(24), new(2, 24, 3))
        return given, {"silu": True}, formulas.short_conv
    if name == "scan_selective":
        a = (-torch.rand(16, 8, dtype=torch.float64) - 0.1).to(dtype).requires_grad_(True)
        given = (new(2, length, 16), new(2, length, 16), a, new(2, length, 8), new(2, length, 8), new(16),
                 new(2, length, 16), new(16), new(2, 16, 8))
        return given, {}, formulas.scan_selective
    q, k, v = (new(2, 3, length, 16) for _ in range(3))
    state = new(2, 3, 16, 16)
    if name == "scan_delta":
        k = torch.nn.functional.normalize(k.detach().double(), dim=-1).to(dtype).requires_grad_(True)
        beta = torch.rand(2, 3, length, dtype=torch.float64).to(dtype).requires_grad_(True)
        return (q, k, v, beta, None, state, 0.5), {}, lambda q, k, v, beta, _, state, scale: formulas.scan_delta(
            q, k, v, beta, state, scale)
    decay = (-torch.rand(2, 3, length, dtype=torch.float64)).to(dtype).requires_grad_(True)
    return (q, k, v, decay), {"state": state, "scale": 0.5}, formulas.scan_decay


def leaves(args, kwargs):
    return [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor) and t.requires_grad]


def gradients(results, of):
    """Of a fixed weighted sum of the results that are not empty; zeros where nothing depends on a tensor."""
    total = 0
    for result in results:
        if result.requires_grad and result.numel():
            numbers = result.double()
            weight = torch.linspace(-1, 1, numbers.numel(), dtype=torch.float64).view(numbers.shape)
            total = total + (numbers.masked_fill(numbers.isinf(), 0) * weight).sum()
    return torch.autograd.grad(total, of, allow_unused=True, materialize_grads=True)


class Checked(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)

    def near(self, got, want, tolerance, what=""):
        self.assertEqual(got.shape, want.shape, what)
        if got.numel() == 0:
            return
        got, want = got.detach().double(), want.detach().double()
        finite = want.isfinite()
        self.assertTrue(torch.equal(got[~finite], want[~finite]), what)
        off = (got[finite] - want[finite]).abs().max() if finite.any() else torch.zeros(())
        self.assertLessEqual(off / want[finite].abs().max().clamp(min=1), tolerance, what)

    def same(self, run, formula, args, kwargs, tolerance, what=""):
        """Values and gradients of run(*args) against those of the formula in float64."""
        of = leaves(args, kwargs)
        results = run(*args, **kwargs)
        exact = {id(t): t.detach().double().requires_grad_(True) for t in of}
        double = [exact.get(id(t), t.double() if isinstance(t, torch.Tensor) else t) for t in args]
        want = formula(*double, **{n: exact.get(id(t), t) for n, t in kwargs.items() if n != "silu"})
        for got, expected in zip(results, want):
            self.near(got, expected, tolerance, what)
        for got, expected in zip(gradients(results[:len(want)], of), gradients(want, list(exact.values()))):
            self.near(got, expected, 4 * tolerance, f"{what}: gradient")


class Values(Checked):
    def test_formulas(self):
        for name in OPERATORS:
            for length in (1, 37, 70):
                for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.04)):
                    args, kwargs, formula = case(name, length, dtype)
                    self.same(getattr(kinfolk, name), formula, args, kwargs, tolerance, f"{name} {length} {dtype}")

    def test_grouped(self):
        """Who meets whom follows from numbers: half types, which move them, are tested below."""
        for name in GROUPED:
            for length in (1, 37, 70):
                for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
                    args, kwargs, formula = case(name, length, dtype)
                    for causal in (True, False):
                        self.same(lambda *a, **k: [getattr(kinfolk, name)(*a, **k)], formula, args,
                                  {**kwargs, "causal": causal}, tolerance, f"{name} {length} {dtype} {causal}")
        for name in GROUPED:
            args, kwargs, _ = case(name, 37)
            low = getattr(kinfolk, name)(*(t.bfloat16() for t in args), **kwargs)
            rounded = getattr(kinfolk, name)(*(t.bfloat16().float() for t in args), **kwargs)
            self.assertEqual(low.dtype, torch.bfloat16)
            self.near(low, rounded, 0.04, name)
            turned = [t.detach().transpose(-1, -2).contiguous().transpose(-1, -2) for t in args]
            self.near(getattr(kinfolk, name)(*turned, **kwargs), getattr(kinfolk, name)(*args, **kwargs), 1e-6, name)
            empty, more, _ = case(name, 0)
            self.assertEqual(getattr(kinfolk, name)(*empty, **more).shape, empty[1].shape[:3] + (8,))

    def test_grouped_lanes(self):
        """Tokens that are not valid, and other documents, move nobody."""
        for name in GROUPED:
            args, kwargs, _ = case(name, 30)
            run, split = getattr(kinfolk, name), 13
            document = (torch.arange(30) >= split).long().expand(2, 30)
            both = run(*args, **kwargs, document=document)
            for part in (slice(0, split), slice(split, 30)):
                alone = run(*(t[:, :, part] if t.dim() == 4 else t for t in args), **kwargs)
                self.near(both[:, :, part], alone, 1e-6, name)
            valid = (torch.arange(30) < split).expand(2, 30)
            masked = run(*args, **kwargs, valid=valid)
            self.near(masked[:, :, :split], both[:, :, :split], 1e-6, name)
            self.assertEqual(masked[:, :, split:].abs().max(), 0)

    def test_not_contiguous(self):
        for name in OPERATORS:
            args, kwargs, formula = case(name, 37)
            turned = [t.detach().transpose(-1, -2).contiguous().transpose(-1, -2).requires_grad_(True)
                      if isinstance(t, torch.Tensor) and t.dim() > 1 else t for t in args]
            self.assertFalse(turned[0].is_contiguous())
            self.same(getattr(kinfolk, name), formula, turned, kwargs, 1e-5, name)

    def test_no_tokens(self):
        for name in OPERATORS:
            args, kwargs, _ = case(name, 0)
            results = getattr(kinfolk, name)(*args, **kwargs)
            self.assertEqual(results[0].numel(), 0)
            if name != "attend":  # the state that came in, as a tensor of its own
                state = kwargs.get("state", args[5] if name == "scan_delta" else args[-1])
                self.assertTrue(torch.equal(results[1], state))
                self.assertNotEqual(results[1].data_ptr(), state.data_ptr())

    def test_chunk_or_steps(self):
        for name in ("scan_decay", "scan_delta", "scan_selective"):
            args, kwargs, _ = case(name, 37)
            for got, want in zip(getattr(kinfolk, name)(*args, **kwargs),
                                 getattr(kinfolk, name)(*args, **kwargs, chunk=0)):
                self.near(got, want, 1e-5, name)

    def test_normalised(self):
        args, kwargs, _ = case("scan_decay", 20)
        args = [t.detach().abs() if n < 2 else t for n, t in enumerate(args)]
        out, state, total = kinfolk.scan_decay(*args, **kwargs, normalise=True)
        self.assertEqual(total.shape, (2, 3, 16))
        wider = torch.cat([args[2], torch.ones(2, 3, 20, 1)], -1)
        before = torch.cat([kwargs["state"], torch.zeros(2, 3, 16, 1)], -1)
        want, last = formulas.scan_decay(args[0], args[1], wider, args[3], before, 0.5)
        self.near(out, want[..., :16] / (want[..., 16:] + 1e-6), 1e-5)
        self.near(state, last[..., :16], 1e-5)
        self.near(total, last[..., 16], 1e-5)

    def test_lanes(self):
        valid = torch.rand(2, 37) > 0.3
        for name in OPERATORS[1:]:
            args, kwargs, _ = case(name, 37)
            out = getattr(kinfolk, name)(*args, **kwargs, valid=valid)[0]
            rows = out.transpose(1, 2) if name != "short_conv" and name != "scan_selective" else out
            self.assertEqual(rows[~valid].abs().max(), 0)
            self.assertGreater(rows[valid].abs().max(), 0)


class Attend(Checked):
    def check(self, sees, args, tolerance=1e-5, added=lambda: 0.0, **kwargs):
        of = leaves(args, kwargs)
        results = kinfolk.attend(*args, **kwargs)
        want = formulas.attention(*args[:3], sees, added=added())
        for got, expected in zip(results, want):
            self.near(got, expected, tolerance)
        for got, expected in zip(gradients(results, of), gradients(want, of)):
            self.near(got, expected, 4 * tolerance, "gradient")

    def test_patterns(self):
        d = formulas.distances(50, 50)
        self.check((d >= 0) & (d < 9), (*attend_case(50), "causal & window(9)"))
        self.check((d >= 0) & ((d < 4) | (d % 6 == 0)), (*attend_case(50), "causal & (window(4) | stride(6))"))
        per_head = torch.stack([(d >= 0) & (d < 9), d >= 0])[torch.arange(4) % 2]
        self.check(per_head, attend_case(50), per_head=["causal & window(9)", "causal"])

    def test_facts(self):
        i, j = torch.arange(30)[:, None], torch.arange(30)
        prefix = torch.tensor([4, 11])
        self.check((j <= i) | (j < prefix[:, None, None, None]), (*attend_case(30), "causal | prefix(@prefix)"),
                   prefix=prefix)
        seen = (i - j).abs() < 3
        everywhere = seen | torch.isin(i, torch.tensor([0, 7])) | torch.isin(j, torch.tensor([0, 7]))
        self.check(everywhere, (*attend_case(30), "window(3) | global(@global)"),
                   global_positions=torch.tensor([[0, 7], [7, 0]]))

    def test_queries_are_the_last_tokens(self):
        self.check(formulas.distances(7, 40) >= 0, attend_case(7, 40))

    def test_documents_and_valid(self):
        document = torch.sort(torch.randint(0, 4, (2, 40)))[0]
        valid = torch.rand(2, 40) > 0.3
        pairs = (document[:, :, None] == document[:, None, :]) & valid[:, :, None] & valid[:, None, :]
        sees = (formulas.distances(40, 40) >= 0) & pairs[:, None]
        self.check(sees, attend_case(40), document=document, valid=valid)

    def test_positions_and_limits(self):
        position, at = torch.randint(0, 60, (2, 40)), torch.randint(0, 60, (2, 21))
        low = torch.randint(0, 30, (2, 21))
        d = at[:, :, None] - position[:, None, :]
        sees = (d.abs() < 20) & (position[:, None, :] >= low[:, :, None]) & (position[:, None, :] < 50)
        self.check(sees[:, None], (*attend_case(21, 40), "window(20)"), position=position, q_position=at,
                   sees_from=low, sees_until=torch.full_like(low, 50))

    def test_tables(self):
        d = formulas.distances(40, 40)
        for heads in (1, 4):
            for pattern, sees in (("causal", d >= 0), ("full", d == d), ("causal & (window(4) | stride(6))",
                                                                        (d >= 0) & ((d < 4) | (d % 6 == 0)))):
                table = draw(heads, 12)
                column = (d + 3).clamp(0, 11)
                self.check(sees, (*attend_case(40), pattern), added=lambda: table[:, column], table=table,
                           table_from=-3)

    def test_factors(self):
        d = formulas.distances(40, 40)
        factor, table, args = draw(4, 12), draw(1, 5), attend_case(40)

        def added(relu):
            scores = args[0] @ args[1].repeat_interleave(2, 1).transpose(-1, -2) / 4
            changed = (scores.relu() if relu else scores) * factor[:, (d + 3).clamp(0, 11)]
            return changed + table[:, d.clamp(0, 4)] - scores

        for relu, pattern, sees in ((False, "causal", d >= 0), (True, "full", d == d)):
            self.check(sees, (*args, pattern), 2e-5, added=lambda: added(relu), factor=factor, factor_from=-3,
                       factor_relu=relu, table=table)

    def test_relative(self):
        d = formulas.distances(40, 40)
        rows, p = draw(4, 9, 8), draw(2, 4, 40, 8)
        column = (d + 1).clamp(0, 8)
        for kwargs, sees in (({}, d >= 0), ({"pattern": "full"}, d == d)):
            self.check(sees, attend_case(40), 2e-5,
                       added=lambda: 0.3 * torch.einsum("bhic,hijc->bhij", p, rows[:, column]),
                       relative=rows, relative_q=p, relative_from=-1, relative_scale=0.3, **kwargs)
        shared = draw(1, 9, 16)
        args = attend_case(40)
        self.check(d >= 0, args, 2e-5, added=lambda: torch.einsum("bhic,ijc->bhij", args[0], shared[0][column]),
                   relative=shared, relative_from=-1)

    def test_bands(self):
        q, k, v = attend_case(40)
        far_q, far_k = draw(2, 4, 40, 16), draw(2, 2, 40, 16)
        results = kinfolk.attend(q, k, v, band_q=[far_q], band_k=[far_k], band_edges=[10])
        d = formulas.distances(40, 40)
        repeated = [x.repeat_interleave(2, 1).transpose(-1, -2) for x in (k, far_k)]
        scores = torch.where(d < 10, q @ repeated[0], far_q @ repeated[1]) / 4
        want = (torch.softmax(scores.masked_fill(d < 0, -torch.inf), -1) @ v.repeat_interleave(2, 1),
                scores.masked_fill(d < 0, -torch.inf).logsumexp(-1))
        of = [q, k, v, far_q, far_k]
        for got, expected in zip((*results, *gradients(results, of)), (*want, *gradients(want, of))):
            self.near(got, expected, 4e-5)

    def test_dropout(self):
        args = [t.detach() for t in attend_case(64)]
        args[2] = torch.ones_like(args[2])  # a row is then the share of the weights that stayed, times 1 / 0.75
        first, again, other = (kinfolk.attend(*args, dropout=0.25, seed=s)[0] for s in (5, 5, 6))
        self.assertTrue(torch.equal(first, again))
        self.assertFalse(torch.equal(first, other))
        self.assertLess(abs(first.mean() - 1), 0.05)

    def test_autocast(self):
        args = attend_case(40)
        with torch.autocast("cpu", torch.bfloat16):
            out, lse = kinfolk.attend(*args)
        self.assertEqual((out.dtype, lse.dtype), (torch.bfloat16, torch.float32))
        want = formulas.attention(*args, formulas.distances(40, 40) >= 0)
        self.near(out, want[0], 0.04)
        self.near(gradients([out], [args[0]])[0], gradients(want[:1], [args[0]])[0], 0.1)

    def test_errors(self):
        q, k, v = attend_case(8)
        for wrong, words in ((lambda: kinfolk.attend(q, k, v, "causl"), "causal"),
                             (lambda: kinfolk.attend(q[0], k, v), r"\[attend.q\] expected 4 dimensions; found 3"),
                             (lambda: kinfolk.attend(q, k[:, :, :5], v[:, :, :5]), "q_position"),
                             (lambda: kinfolk.attend(q, k, v, valid=torch.ones(2, 8)), "valid"),
                             (lambda: kinfolk.attend(q, k, v, table=torch.zeros(3, 4)), "table"),
                             (lambda: kinfolk.attend(q, k, v, band_q=[q], band_edges=[1]), "band_edges")):
            with self.assertRaisesRegex(RuntimeError, words):
                wrong()


class Captured(Checked):
    """In a captured graph an operator is one node, and so is its backward pass."""

    def more_cases(self):
        for name in OPERATORS + GROUPED:
            yield name, *case(name, 19)[:2]
        q, k, v, centroids = case("routed_attend", 19)[0]
        yield "routed_attend", (q, None, v, centroids), {"valid": torch.rand(2, 19) > 0.3, "mean": False}
        yield "lsh_attend", case("lsh_attend", 19)[0], {"chunk": 4, "same": False, "wrap": "all", "once": False}
        table, rows = draw(4, 12), draw(1, 5, 16)
        yield "attend", (*attend_case(5, 19), "causal & (window(4) | stride(6))"), {"table": table, "relative": rows}
        yield "attend", attend_case(19), {"band_q": [draw(2, 4, 19, 16)], "band_k": [draw(2, 2, 19, 16)],
                                          "band_edges": [7], "per_head": ["causal", "causal & window(9)"],
                                          "valid": torch.rand(2, 19) > 0.3}

    def test_opcheck(self):
        for name, args, kwargs in self.more_cases():
            torch.library.opcheck(getattr(kinfolk, name).default, args, kwargs)

    def test_opcheck_of_the_smallest(self):
        for name in OPERATORS + GROUPED:
            for length in (0, 1):
                args, kwargs, _ = case(name, length)
                torch.library.opcheck(getattr(kinfolk, name).default, args, kwargs,
                                      test_utils=["test_schema", "test_faketensor"])

    def test_compile(self):
        for name, args, kwargs in self.more_cases():
            run = getattr(kinfolk, name)
            torch._dynamo.reset()  # a case is no variant of the one before
            compiled = torch.compile(lambda *a, **k: run(*a, **k), fullgraph=True, backend="aot_eager")
            of = leaves(args, kwargs) + list(kwargs.get("band_q", [])) + list(kwargs.get("band_k", []))
            results, want = compiled(*args, **kwargs), run(*args, **kwargs)
            if name in GROUPED:
                results, want = [results], [want]
            for got, expected in zip(results, want):
                self.assertTrue(torch.equal(got, expected), name)
                self.assertEqual(got.stride(), expected.stride(), name)
            for got, expected in zip(gradients(results, of), gradients(want, of)):
                self.near(got, expected, 1e-6, f"{name}: gradient")

    def test_compile_once_for_all_lengths_and_seeds(self):
        count = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(lambda q, k, v, seed: kinfolk.attend(q, k, v, dropout=0.1, seed=seed)[0],
                                 fullgraph=True, backend=count, dynamic=True)
        for length, seed in ((20, 2), (33, 3), (47, 4)):
            args = attend_case(length)
            self.assertTrue(torch.equal(compiled(*args, seed), kinfolk.attend(*args, dropout=0.1, seed=seed)[0]))
        self.assertEqual(count.frame_count, 1)

    def test_compile_autocast(self):
        args = attend_case(40)

        def run(*a):
            with torch.autocast("cpu", torch.bfloat16):
                return kinfolk.attend(*a)

        for got, want in zip(torch.compile(run, fullgraph=True, backend="aot_eager")(*args), run(*args)):
            self.assertEqual(got.dtype, want.dtype)
            self.assertTrue(torch.equal(got, want))

    def test_export(self):
        for name in OPERATORS + GROUPED:
            args, kwargs, _ = case(name, 19)

            class Module(torch.nn.Module):
                def forward(self, *args, **kwargs):
                    return getattr(kinfolk, name)(*args, **kwargs)

            program = torch.export.export(Module(), args, kwargs)
            self.assertIn(f"kinfolk.{name}.default", [str(node.target) for node in program.graph.nodes])
            self.assertTrue(torch.equal(program.module()(*args, **kwargs)[0], Module()(*args, **kwargs)[0]))

    def test_make_fx(self):
        from torch.fx.experimental.proxy_tensor import make_fx
        args = attend_case(9)

        def run(*a):
            return torch.autograd.grad(kinfolk.attend(*a)[0].sum(), a)

        graph = make_fx(run)(*args)
        targets = [str(node.target) for node in graph.graph.nodes]
        self.assertIn("kinfolk.attend_backward.default", targets)
        for got, want in zip(graph(*args), run(*args)):
            self.near(got, want, 1e-6)

    def test_backward_by_name(self):
        args, kwargs, _ = case("scan_decay", 19)
        results = kinfolk.scan_decay(*args, **kwargs)
        got = kinfolk.scan_decay_backward([torch.ones_like(results[0]), None, None], [True, False, True, False, True],
                                          [], None, *args, **kwargs)
        want = torch.autograd.grad(results[0].sum(), [args[0], args[2], kwargs["state"]])
        self.assertEqual(len(got), 3)
        for g, w in zip(got, want):
            self.near(g, w, 1e-6)

    def test_tape(self):
        """What the forward pass kept is what the backward pass reads; a copy of the tape carries nothing."""
        args = [t.detach() for t in attend_case(19)]
        *results, tape = kinfolk.attend_recorded([True, True, False], *args)
        grads, wants, other = [torch.ones_like(results[0]), None], [False, True, False], [t + 1 for t in args]
        q, k, v = (t.clone().requires_grad_(True) for t in args)
        want = torch.autograd.grad(kinfolk.attend(q, k, v)[0].sum(), k)[0]
        for _ in range(2):
            self.near(kinfolk.attend_backward(grads, wants, results, tape, *other)[0], want, 1e-6)
        again = kinfolk.attend_backward(grads, wants, results, tape.clone(), *other)[0]
        self.assertGreater((again - want).abs().max(), 1e-3)
        self.near(kinfolk.attend_backward(grads, wants, results, tape.clone(), *args)[0], want, 1e-6)
        # A gradient that was not wanted when the tape was made: the forward pass runs again.
        last = kinfolk.attend_backward(grads, [False, False, True], results, tape, *args)[0]
        self.near(last, torch.autograd.grad(kinfolk.attend(q, k, v)[0].sum(), v)[0], 1e-6)

    def test_no_second_derivative(self):
        for name in OPERATORS + GROUPED:
            args, kwargs, _ = case(name, 9)
            out = getattr(kinfolk, name)(*args, **kwargs)
            out = out if name in GROUPED else out[0]
            with self.assertRaisesRegex(RuntimeError, "one derivative|first derivatives"):
                torch.autograd.grad(out.sum(), args[0], create_graph=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
