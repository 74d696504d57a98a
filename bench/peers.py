#!/usr/bin/env python3
"""torch.ops.kinfolk beside what Python offers for the same sums, interleaved A B A B in CPU time.

usage: bench/peers.py attend|scan|content [LENGTH ...] [--threads N] [--only TEXT] [--flex] [--seconds S] [--library FILE]

A row is run when TEXT is in its name and its length is among those given (none: all). It prints both medians, the
median of the ratios of neighbours with the smallest and the largest, what torch.mm of 1024 reaches just before, and by
how much the two results differ; `both` is forward and backward. Peers that are not installed are named and left out. A library of another build:
KINFOLK_LIBRARY or --library.
"""
import argparse
import importlib
import math
import os
import pathlib
import statistics
import sys
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("what", choices=["attend", "scan", "content"])
parser.add_argument("lengths", nargs="*", type=int)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--only", default="")
parser.add_argument("--flex", action="store_true", help="flex_attention too, which compiles for a minute")
parser.add_argument("--seconds", type=float, default=6, help="CPU time of a row, roughly")
parser.add_argument("--library", default=os.environ.get("KINFOLK_LIBRARY", ROOT / "build/clang/libkinfolk.so"))
options = parser.parse_args()
os.environ.update(OMP_WAIT_POLICY="PASSIVE", OMP_NUM_THREADS=str(options.threads), MKL_NUM_THREADS=str(options.threads))
warnings.filterwarnings("ignore")

import torch  # noqa: E402 (the threads are set before)
import torch.nn.functional as F  # noqa: E402

torch.ops.load_library(str(options.library))
kinfolk = torch.ops.kinfolk
missing, pending = set(), []


def peer(module):
    """The module, or None where it is not installed."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # some raise other errors where there is no GPU
        name = module.split(".")[0]
        if name not in missing:
            print(f"  {name}: left out ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})")
            missing.add(name)
        return None


def wanted(name, length):
    return options.only in name and (not options.lengths or length in options.lengths)


def timed(run):
    begin = time.process_time()
    run()
    return time.process_time() - begin


def mm_rate():
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    torch.mm(a, b)
    return 2.147483648 / statistics.median(timed(lambda: torch.mm(a, b)) for _ in range(7))


def compare(name, length, ours, theirs, leaves=(), flops=0, gigabytes=0, equal=True):
    """ours() and theirs() give the same output (not equal: do other sums). With leaves both ways: their gradients too,
    of the sum of the output. The peer may take so many gigabytes."""
    name = f"{name}, {length}, " + ("both" if leaves else "forward")
    print_heading()
    available = int(next(x for x in open("/proc/meminfo") if x.startswith("MemAvailable")).split()[1]) / 2**20
    if gigabytes > available:
        print(f"  {name}: left out (it wants {gigabytes:.0f} GB; {available:.0f} are free)")
        return

    def step(run):
        if not leaves:
            with torch.no_grad():
                run()
            return
        out = run()
        torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)

    try:
        off = "-"
        if equal:
            with torch.no_grad():
                a, b = ours(), theirs()
                off = f"{((a - b).abs().max() / b.abs().max()).item():.0e}"
            del a, b
        rate = mm_rate()
        step(ours)
        times = [(timed(lambda: step(ours)), timed(lambda: step(theirs)))]  # kept where there is time for no other
        spent = sum(times[0])
        if spent < options.seconds:
            times.clear()
        while not times or (spent < 2 * options.seconds and len(times) < 15):
            times.append((timed(lambda: step(ours)), timed(lambda: step(theirs))))
            spent += sum(times[-1])
    except Exception as error:
        print(f"  {name}: {type(error).__name__}: {str(error).splitlines()[0][:160]}")
        return
    ours_s, theirs_s = (statistics.median(t[i] for t in times) for i in (0, 1))
    ratios = sorted(t[1] / t[0] for t in times)
    spread = f"({ratios[0]:.2f}-{ratios[-1]:.2f}, {len(times)})"
    own = f"{flops / ours_s / 1e9:5.0f}" if flops else "    -"
    print(f"  {name:<60} {1e3 * ours_s:8.1f} {1e3 * theirs_s:8.1f} {statistics.median(ratios):8.2f} {spread:<20}"
          f"{own} {rate:5.0f}  {off}", flush=True)


def heading(text):
    """Printed above the next row, if there is one."""
    pending[:] = [text]


def print_heading():
    while pending:
        print(f"{pending.pop()}\n  {'':<60} {'ours ms':>8} {'peer ms':>8} {'ratio':>8} {'(range, rounds)':<20}"
              f" GF/s    mm  off", flush=True)


def inputs(length, heads, gradients, width=64):
    torch.manual_seed(0)
    return [torch.randn(1, heads, length, width, requires_grad=gradients) for _ in range(3)]


def attention_flops(pairs, heads, gradients, width=64):
    return heads * pairs * width * (14 if gradients else 4)


def causal():
    heading("causal, 8 heads of 64, against scaled_dot_product_attention(is_causal=True)")
    for length in (1024, 1056, 4096, 16384):
        for gradients in (False, True):
            if wanted("causal", length):
                q, k, v = inputs(length, 8, gradients)
                compare("causal", length, lambda: kinfolk.attend(q, k, v)[0],
                        lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), [q, k, v] * gradients,
                        attention_flops(length * (length + 1) // 2, 8, gradients))


def biases():
    heading("a bias by distance, against scaled_dot_product_attention with a mask tensor (made beforehand)")
    for length in (1024, 4096):
        distance = torch.arange(length)[:, None] - torch.arange(length)
        slopes = 2.0 ** -torch.arange(1.0, 9.0)[:, None]
        alibi = -slopes * torch.arange(length)
        for gradients in (False, True):
            if wanted("ALiBi", length):
                q, k, v = inputs(length, 8, gradients)
                mask = alibi[:, distance.clamp(min=0)].masked_fill(distance < 0, -torch.inf)[None]
                compare("ALiBi", length, lambda: kinfolk.attend(q, k, v, table=alibi)[0],
                        lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), [q, k, v] * gradients,
                        attention_flops(length * (length + 1) // 2, 8, gradients))
                del mask
    for length in (1024, 2048):
        if wanted("T5 table that learns", length):
            q, k, v = inputs(length, 8, True)
            weight = torch.randn(8, 32, requires_grad=True)
            far = (16 + 16 * (torch.arange(1, length + 1) / 16).log() / torch.log(torch.tensor(8.0))).long()
            bucket = torch.where(torch.arange(length) < 16, torch.arange(length), far.clamp(max=31))
            distance = torch.arange(length)[:, None] - torch.arange(length)
            matrix = bucket[distance.clamp(min=0)]

            def masked():
                bias = weight.t()[matrix].permute(2, 0, 1).masked_fill(distance < 0, -torch.inf)
                return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])

            compare("T5 table that learns", length, lambda: kinfolk.attend(q, k, v, table=weight[:, bucket])[0], masked,
                    [q, k, v, weight])


def windows():
    def pairs(length, w):
        return length * w - w * (w - 1) // 2

    heading("window of 512 keys, 8 heads of 64, against scaled_dot_product_attention with a bool mask tensor")
    for length, both in ((8192, True), (32768, False)):
        for gradients in (False, True)[:1 + both]:
            if wanted("window, mask", length):
                q, k, v = inputs(length, 8, gradients)
                at = torch.arange(length, dtype=torch.int32)
                mask = at[:, None] >= at
                mask &= at[:, None] - at < 512
                compare("window, mask", length, lambda: kinfolk.attend(q, k, v, "causal & window(512)")[0],
                        lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), [q, k, v] * gradients,
                        attention_flops(pairs(length, 512), 8, gradients), (length / 32768) ** 2 * 10)
                del mask
    if not any(wanted("window, local-attention", n) for n in (8192, 32768, 131072)):
        return
    local = peer("local_attention")
    heading("window of 513 keys against local-attention (exact_windowsize; its window of 512 sees one key more)")
    for length, heads in ((8192, 8), (32768, 8), (131072, 2)):
        for gradients in (False, True):
            if local and wanted("window, local-attention", length):
                q, k, v = inputs(length, heads, gradients)
                module = local.LocalAttention(512, causal=True, look_backward=1, exact_windowsize=True,
                                              use_rotary_pos_emb=False)
                compare(f"window, local-attention, {heads} heads", length,
                        lambda: kinfolk.attend(q, k, v, "causal & window(513)")[0], lambda: module(q, k, v),
                        [q, k, v] * gradients, attention_flops(pairs(length, 513), heads, gradients),
                        length * heads / 131072 / 2 * (4 if gradients else 3))


def flex():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    heading("torch.compile(flex_attention), forward only (it has no backward on a CPU), compiled beforehand")
    compiled = torch.compile(flex_attention)
    slopes = 2.0 ** -torch.arange(1.0, 9.0)
    alibi = -slopes[:, None] * torch.arange(4096)

    def add(score, b, h, i, j):
        return score + slopes[h] * (j - i)

    for name, length, pattern, more, change, sees in (
            ("flex, causal", 4096, "causal", {}, None, lambda b, h, i, j: i >= j),
            ("flex, ALiBi", 4096, "causal", {"table": alibi}, add, lambda b, h, i, j: i >= j),
            ("flex, window of 512", 8192, "causal & window(512)", {}, None,
             lambda b, h, i, j: (i >= j) & (i - j < 512))):
        if wanted(name, length):
            q, k, v = inputs(length, 8, False)
            blocks = create_block_mask(sees, None, None, length, length, device="cpu")
            compare(name, length, lambda: kinfolk.attend(q, k, v, pattern, **more)[0],
                    lambda: compiled(q, k, v, score_mod=change, block_mask=blocks))


def torch_chunk(q, k, v, gate, size=64):
    """The good plain form: matrix products inside chunks, one loop over the states between them."""
    batch, heads, length, width = q.shape
    q, k, v = (t.view(batch, heads, length // size, size, width) for t in (q, k, v))
    gate = gate.view(batch, heads, length // size, size).cumsum(-1)
    decay = (gate[..., :, None] - gate[..., None, :]).tril().exp().tril()
    written = (k * (gate[..., -1:] - gate).exp()[..., None]).transpose(-1, -2) @ v
    whole, states = gate[..., -1].exp(), [torch.zeros(batch, heads, width, width)]
    for i, news in enumerate(written.unbind(2)[:-1]):
        states.append(states[-1] * whole[:, :, i, None, None] + news)
    return ((q @ k.transpose(-1, -2) * decay) @ v + (q * gate.exp()[..., None]) @ torch.stack(states, 2)).flatten(2, 3)


def decay():
    heading("scan_decay, a decay a token and head, width 64 x 64")

    def attention(q, k, v, *_):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def chunk(q, k, v, gate):
        return torch_chunk(q / 8, k, v, gate)

    def fla(q, k, v, gate):
        form = peer("fla.ops.simple_gla.naive").naive_chunk_simple_gla
        return form(*(t.transpose(1, 2) for t in (q, k, v, gate)), chunk_size=64)[0].transpose(1, 2)

    for name, run, sizes in (("torch_chunk", chunk, ((4096, 8, 2), (65536, 8, 1))),
                             ("fla naive_chunk_simple_gla", fla, ((4096, 8, 2), (65536, 8, 1))),
                             ("causal attention", attention, ((4096, 8, 2), (65536, 2, 1)))):
        for length, heads, both in sizes:
            for gradients in (False, True)[:both]:
                if not wanted(f"decay, {name}", length):
                    continue
                if name.startswith("fla") and not peer("fla.ops.simple_gla.naive"):
                    continue
                q, k, v = inputs(length, heads, gradients)
                gate = (-0.2 * torch.rand(1, heads, length)).requires_grad_(gradients)
                compare(f"decay, {name}, {heads} heads", length,
                        lambda: kinfolk.scan_decay(q, k, v, gate, scale=0.125)[0], lambda: run(q, k, v, gate),
                        [q, k, v, gate] * gradients, equal=name != "causal attention")


def delta():
    heading("scan_delta, width 64 x 64")
    for name, sizes in (("fla delta_rule_chunkwise", ((4096, 8, 2), (65536, 8, 1))),
                        ("causal attention", ((4096, 8, 2), (65536, 2, 1)))):
        for length, heads, both in sizes:
            for gradients in (False, True)[:both]:
                if not wanted(f"delta, {name}", length):
                    continue
                fla = peer("fla.ops.delta_rule.naive") if name.startswith("fla") else None
                if name.startswith("fla") and not fla:
                    continue
                q, k, v = inputs(length, heads, gradients)
                k = F.normalize(k.detach(), dim=-1).requires_grad_(gradients)
                beta = torch.rand(1, heads, length).requires_grad_(gradients)

                def theirs():
                    if fla:
                        return fla.delta_rule_chunkwise(q, k, v, beta, chunk_size=32)[0]
                    return F.scaled_dot_product_attention(q, k, v, is_causal=True)

                compare(f"delta, {name}, {heads} heads", length,
                        lambda: kinfolk.scan_delta(q, k, v, beta, scale=0.125)[0], theirs,
                        [q, k, v, beta] * gradients, equal=bool(fla))


def selective():
    heading("scan_selective, 1024 channels of 16 states where nothing else is said")

    def problem(length, gradients, channels=1024):
        torch.manual_seed(0)

        def leaf(t):
            return t.requires_grad_(gradients)

        a = leaf(-torch.arange(1, 17.0).repeat(channels, 1))
        x, z = (leaf(torch.randn(1, length, channels)) for _ in range(2))
        return [x, leaf(torch.randn(1, length, channels) - 4), a, leaf(torch.randn(1, length, 16)),
                leaf(torch.randn(1, length, 16)), leaf(torch.ones(channels)), z]

    def mambapy(given):
        module = peer("mambapy.mamba")
        scan = module.MambaBlock(module.MambaConfig(d_model=512, n_layers=1, d_state=16, expand_factor=2, pscan=True))
        x, step, a, b, c, skip, z = given
        return lambda: scan.selective_scan(x, F.softplus(step), a, b, c, skip) * F.silu(z)

    def transformers(given):
        form = peer("transformers.models.mamba.modeling_mamba").mamba_selective_scan
        form = getattr(form, "__wrapped__", form)
        x, step, a, b, c, skip, z = given
        rows = [t.transpose(1, 2) for t in (x, step)]
        return lambda: form(*rows, a, b.transpose(1, 2), c.transpose(1, 2), skip, z.transpose(1, 2), None,
                            True).transpose(1, 2)

    for name, module, make, sizes in (
            ("mambapy", "mambapy.mamba", mambapy, ((2048, 2), (4096, 2))),
            ("transformers' slow path", "transformers.models.mamba.modeling_mamba", transformers,
             ((256, 2), (2048, 1), (4096, 1)))):
        for length, both in sizes:
            for gradients in (False, True)[:both]:
                if wanted(f"selective, {name}", length) and peer(module):
                    given = problem(length, gradients)
                    x, step, a, b, c, skip, z = given
                    compare(f"selective, {name}", length,
                            lambda: kinfolk.scan_selective(x, step, a, b, c, skip, z)[0], make(given),
                            given * gradients, 0, length / 500)
    for length, heads, both in ((4096, 8, 2), (65536, 2, 1)):
        for gradients in (False, True)[:both]:
            if wanted("selective, causal attention", length):  # both of a layer of width 64 heads
                x, step, a, b, c, skip, z = given = problem(length, gradients, 128 * heads)
                q, k, v = other = inputs(length, heads, gradients)
                compare(f"selective, causal attention, {128 * heads} channels, {heads} heads", length,
                        lambda: kinfolk.scan_selective(x, step, a, b, c, skip, z)[0],
                        lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), (given + other) * gradients,
                        equal=False)


class Columns(torch.nn.Module):
    """In the place of a projection: the first columns of what comes in; of more, three parts that are the same."""
    def __init__(self, count):
        super().__init__()
        self.count = count

    def forward(self, x):
        return x[..., :self.count] if self.count <= x.shape[-1] else Alike(x[..., :self.count // 3])


class Alike:
    def __init__(self, part):
        self.part = part

    def chunk(self, count, dim):
        return [self.part] * count


def without_projections(form):
    for module in list(form.modules()):
        for name, child in module.named_children():
            if isinstance(child, torch.nn.Linear):
                setattr(module, name, Columns(child.out_features))
    return form


def layer(length, keyed=512, bare=False):
    """x and the weights of queries, keys, values and output of a layer of width 512; bare: without weights."""
    torch.manual_seed(0)
    x = torch.randn(1, length, 512).requires_grad_()
    if bare:
        return [x] + [Columns(n) for n in (512, keyed, 512, 512)]
    return [x] + [(torch.randn(n, 512) / 512**0.5).requires_grad_() for n in (512, keyed, 512, 512)]


def projected(x, weight):
    return weight(x) if isinstance(weight, Columns) else F.linear(x, weight)


def heads(x, weight):
    return projected(x, weight).unflatten(-1, (-1, 64)).transpose(1, 2)


def merged(o, weight):
    return projected(o.transpose(1, 2).flatten(2), weight)


def leaves_of(given, form=None):
    return [t for t in given if isinstance(t, torch.Tensor)] + (list(form.parameters()) if form else [])


def dense(given, causal=True):
    x, q, k, v, out = given
    return lambda: merged(F.scaled_dot_product_attention(heads(x, q), heads(x, k), heads(x, v), is_causal=causal), out)


def content():
    """A layer of width 512 with 8 heads; the modules draw their own hashes, so results differ."""
    def reformer(_given):
        form = peer("reformer_pytorch.reformer_pytorch").LSHSelfAttention(512, heads=8, bucket_size=64, n_hashes=4,
                                                                         causal=True)
        return form, lambda x: form(x)

    def transformers(given):
        modeling = peer("transformers.models.reformer.modeling_reformer")
        config = importlib.import_module("transformers").ReformerConfig(
            hidden_size=512, num_attention_heads=8, attention_head_size=64, lsh_attn_chunk_length=64, num_hashes=4,
            is_decoder=True, attn_layers=["lsh"], num_buckets=None, lsh_attention_probs_dropout_prob=0.0,
            max_position_embeddings=len(given[0][0]), axial_pos_embds=False)
        form = torch.nn.ModuleList([modeling.LSHSelfAttention(config), torch.nn.Linear(512, 512, bias=False)])
        return form, lambda x: form[1](form[0](x).hidden_states)

    rotations = torch.randn(8, 4, 2, 64, 64)
    for bare in (False, True):
        heading("lsh_attend, 4 rounds, chunks of 64, causal, " + ("alone" if bare else "with its 3 projections"))
        for name, module, make in (
                ("reformer-pytorch", "reformer_pytorch.reformer_pytorch", reformer),
                ("transformers' Reformer", "transformers.models.reformer.modeling_reformer", transformers),
                ("dense, is_causal=True", "torch", None)):
            for length in (4096, 16384):
                for more in ({}, {"same": False, "wrap": "all", "once": False}):
                    title = f"lsh{', alone' if bare else ''}{', any bucket, duplicates' if more else ''}, {name}"
                    if not wanted(title, length) or not peer(module) or (more and name != "reformer-pytorch"):
                        continue
                    given = layer(length, bare=bare)
                    x, q, _, v, out = given

                    def ours():
                        return merged(kinfolk.lsh_attend(heads(x, q), heads(x, v), rotations, **more), out)

                    form, run = make(given) if make else (torch.nn.Identity(), lambda x: dense(given)())
                    if bare:
                        without_projections(form)
                    compare(title, length, ours, lambda: run(x), leaves_of(given, form), 0, length / 16384 * 4,
                            equal=False)

    for bare in (False, True):
        heading("routed_attend, 4 heads by centroids of 128 tokens, 4 in a window of 256, causal, "
                + ("alone" if bare else "with its projections"))
        for name, module in (("routing-transformer", "routing_transformer.routing_transformer"),
                             ("dense, is_causal=True", "torch")):
            for length in (4096, 16384):
                title = f"routing{', alone' if bare else ''}, {name}"
                if wanted(title, length) and peer(module):
                    routing(title, length, module, bare)


def routing(title, length, module, bare):
    given = layer(length, 256, bare)
    x, q, k, v, out = given
    centroids = torch.randn(4, length // 128, 64)

    def ours():
        queries, values = heads(x, q), heads(x, v)
        near = kinfolk.attend(queries[:, :4], heads(x, k), values[:, :4], "causal & window(256)")[0]
        routed = F.layer_norm(queries[:, 4:], (64,))
        far = kinfolk.routed_attend(routed, None, values[:, 4:], centroids)
        with torch.no_grad():  # what centroids move by, as the peer does it in training
            code = (centroids @ routed.transpose(2, 3)).argmax(2)[0] + torch.arange(4)[:, None] * len(centroids[0])
            torch.zeros_like(centroids).view(-1, 64).index_add_(0, code.flatten(), routed[0].flatten(0, 1))
        return merged(torch.cat([near, far], 1), out)

    form, other = torch.nn.Identity(), layer(length, bare=bare)
    theirs = dense(other)
    if module != "torch":  # a window of 128 to 256 keys
        form, other = peer(module).SelfAttention(512, 1, length, 8, 4, 128, causal=True, rel_pos_emb=False,
                                                shared_qk=True), []
        if bare:
            without_projections(form)
        with torch.no_grad():
            form(torch.randn(1, length, 512))  # places its centroids

        def theirs():
            return form(x)[0]

    compare(title, length, ours, theirs, leaves_of(given + other, form), 0, length / 16384 * 3, equal=False)


def features(x, directions, over):
    """Positive random features as published, the stabiliser the largest over these dimensions (Performer)."""
    x = x * x.shape[-1] ** -0.25
    along = x @ directions.t()
    row = x.square().sum(-1, True) / 2 + along.detach().amax(over, True) + math.log(len(directions)) / 2
    return (along - row).exp() + 1e-4 / len(directions)**0.5


def low_rank():
    """Layers of width 512 with 8 heads and their projections, with the peer's own weights: results are equal."""
    def weights(form):
        for module in form.modules():
            if isinstance(module, torch.nn.Linear) and module.bias is not None:
                module.bias = None
        return [t.detach().clone().requires_grad_()
                for t in (form.to_q.weight, form.to_k.weight, form.to_v.weight, form.to_out.weight)]

    heading("Performer, 256 positive features, with its 4 projections")
    for causal in (False, True):
        for length in (4096, 16384):
            title = f"performer, {'causal' if causal else 'whole'}"
            for name, module in (("performer-pytorch", "performer_pytorch.performer_pytorch"), ("dense", "torch")):
                if not wanted(f"{title}, {name}", length) or not peer("performer_pytorch.performer_pytorch"):
                    continue
                form = peer("performer_pytorch.performer_pytorch").SelfAttention(
                    512, causal=causal, heads=8, dim_head=64, nb_features=256)
                x = layer(length)[0]
                q, k, v, out = given = weights(form)
                directions = form.fast_attention.projection_matrix

                def ours():
                    a, b = features(heads(x, q), directions, -1), features(heads(x, k), directions, (-1, -2))
                    values = heads(x, v)
                    if causal:
                        return merged(kinfolk.scan_decay(a, b, values, sum=torch.full((1, 8, 256), 1e-6), eps=1e-30,
                                                         normalise=True)[0], out)  # the peer's sum begins with 1e-6
                    sums = a @ (b.transpose(2, 3) @ F.pad(values, (0, 1), value=1.0))
                    return merged(sums[..., :64] / sums[..., 64:], out)

                theirs = dense([x] + given, causal) if name == "dense" else lambda: form(x)
                compare(f"{title}, {name}", length, ours, theirs, [x] + leaves_of(given, form), 0,
                        length / 4096 * (11 if causal and name != "dense" else 1), equal=name != "dense")

    heading("Linformer, rank 256, with its 4 projections")
    for length in (4096, 16384):
        for name in ("linformer", "dense"):
            if not wanted(f"linformer, {name}", length) or not peer("linformer"):
                continue
            form = peer("linformer").LinformerSelfAttention(512, length, k=256, heads=8)
            x = layer(length)[0]
            q, k, v, out = given = weights(form)
            e, f = (t.detach().t().contiguous().requires_grad_() for t in (form.proj_k, form.proj_v))
            at, slots = torch.arange(length)[None], torch.arange(256)[None]

            def ours():  # sums over tokens before the matrices of keys and values, which commute
                return merged(kinfolk.attend(heads(x, q), heads(e @ x, k), heads(f @ x, v), "full", q_position=at,
                                             position=slots)[0], out)

            theirs = dense([x] + given, False) if name == "dense" else lambda: form(x)
            compare(f"linformer, {name}", length, ours, theirs, [x, e, f] + leaves_of(given, form), 0,
                    length / 16384 * 3, equal=name != "dense")


if __name__ == "__main__":
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} thread(s); ratio: peer over ours, above 1 we are faster; "
          f"GF/s: ours, of the pairs that are seen; off: largest difference over largest value")
    parts = {"attend": (causal, biases, windows, *([flex] if options.flex else [])), "scan": (decay, delta, selective),
             "content": (content, low_rank)}
    for part in parts[options.what]:
        part()
