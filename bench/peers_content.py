"""The rows of bench/peers.py content: layers whose tokens meet by content, and layers of low rank."""
import importlib
import math

from peers_run import F, compare, heading, kinfolk, peer, torch, wanted


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
