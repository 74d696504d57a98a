#!/usr/bin/env python3
"""torch.ops.kinfolk beside what Python offers for the same sums, interleaved A B A B in CPU time.

usage: bench/peers.py attend|scan|content [LENGTH ...] [--threads N] [--only TEXT] [--flex] [--seconds S] [--library FILE]

A row is run when TEXT is in its name and its length is among those given (none: all). It prints both medians, the
median of the ratios of neighbours with the smallest and the largest, what torch.mm of 1024 reaches just before, and by
how much the two results differ; `both` is forward and backward. Peers that are not installed are named and left out. A library of another build:
KINFOLK_LIBRARY or --library.
"""
from peers_content import content, low_rank
from peers_run import F, compare, heading, kinfolk, options, peer, torch, wanted


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


if __name__ == "__main__":
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} thread(s); ratio: peer over ours, above 1 we are faster; "
          f"GF/s: ours, of the pairs that are seen; off: largest difference over largest value")
    parts = {"attend": (causal, biases, windows, *([flex] if options.flex else [])), "scan": (decay, delta, selective),
             "content": (content, low_rank)}
    for part in parts[options.what]:
        part()
