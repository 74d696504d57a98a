"""What the operators of torch.ops.kinfolk compute, in plain torch: whole matrices and loops over tokens."""
import torch


def attention(q, k, v, sees, scale=None, added=0.0):
    """sees: bool, broadcast to [B, H, L, S]; added: to the scores. Returns out and the log of the normaliser."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5) + added
    sees = sees.expand(scores.shape)
    none = ~sees.any(-1)
    lse = scores.masked_fill(~sees, -torch.inf).masked_fill(none[..., None], 0).logsumexp(-1)
    weights = (scores - lse[..., None]).masked_fill(~sees, -torch.inf).exp()
    return weights @ v, lse.masked_fill(none, -torch.inf)


def distances(length, keys):
    """i - j of queries that are the last of the keys: [length, keys]."""
    return torch.arange(keys - length, keys)[:, None] - torch.arange(keys)


def scan_decay(q, k, v, decay, state, scale=1.0):
    """S_t = exp(decay_t) S_{t-1} + k_t v_t^T, o_t = scale q_t S_t; decay [B, H, L]."""
    out = []
    for t in range(q.shape[2]):
        state = decay[:, :, t, None, None].exp() * state + k[:, :, t, :, None] * v[:, :, t, None, :]
        out.append(scale * (q[:, :, t, None, :] @ state)[:, :, 0])
    return torch.stack(out, 2), state


def scan_delta(q, k, v, beta, state, scale=1.0):
    """S_t = S_{t-1} + beta_t k_t (v_t - k_t^T S_{t-1})^T, o_t = scale q_t S_t."""
    out = []
    for t in range(q.shape[2]):
        read = (k[:, :, t, None, :] @ state)[:, :, 0]
        state = state + (beta[:, :, t, None] * k[:, :, t])[..., None] * (v[:, :, t] - read)[:, :, None, :]
        out.append(scale * (q[:, :, t, None, :] @ state)[:, :, 0])
    return torch.stack(out, 2), state


def scan_selective(x, delta, a, b, c, skip, z, bias, state):
    """h_t = exp(d_t A) h_{t-1} + d_t B_t x_t, y_t = (C_t . h_t + skip x_t) silu(z_t), d = softplus(delta + bias)."""
    out, step = [], torch.nn.functional.softplus(delta + bias)
    for t in range(x.shape[1]):
        d = step[:, t, :, None]
        state = (d * a).exp() * state + d * b[:, t, None, :] * x[:, t, :, None]
        out.append((state * c[:, t, None, :]).sum(-1) + skip * x[:, t])
    return torch.stack(out, 1) * torch.nn.functional.silu(z), state


def short_conv(x, weight, bias, state):
    """silu of a causal convolution of each channel; state: the inputs before."""
    past = torch.cat([state, x.transpose(1, 2)], 2)  # [B, D, W - 1 + L]
    out = torch.nn.functional.conv1d(past, weight[:, None], bias, groups=x.shape[2])
    return torch.nn.functional.silu(out).transpose(1, 2), past[:, :, x.shape[1]:]


def lsh_attend(qk, v, rotations, chunk, buckets, causal=True):
    """Softmax over all tokens that share a bucket in some round, keys of length 1, not the own one; chunks hold all."""
    x = torch.einsum("bhld,hrdm->bhrlm", qk, rotations[:, :, 0, :, :buckets // 2])
    code = torch.cat([x, -x], -1).argmax(-1)  # [B, H, R, L]
    sees = (code[..., :, None] == code[..., None, :]).any(2)
    d = distances(qk.shape[2], qk.shape[2])
    sees = sees & (d != 0) & ((d > 0) if causal else True)
    out, lse = attention(qk, qk / qk.norm(dim=-1, keepdim=True), v, sees)
    return [torch.where(lse.isinf()[..., None], v, out)]


def routed_attend(q, k, v, centroids, top, causal=True):
    """Each centroid lets the nearest queries meet the nearest keys; what several read for a token is averaged."""
    total, count, length = torch.zeros_like(v), torch.zeros(*v.shape[:3], 1, dtype=v.dtype), q.shape[2]
    for centroid in centroids.unbind(1):  # [H, d]
        asks, asked = (torch.zeros(q.shape[:3], dtype=torch.bool).scatter(
            2, (x * centroid[:, None]).sum(-1).topk(min(top, length)).indices, True) for x in (q, k))
        sees = asked[:, :, None] & ((distances(length, length) >= 0) if causal else True)
        total = total + attention(q, k, v, sees)[0] * asks[..., None]
        count = count + asks[..., None]
    return [total / count.clamp(min=1)]
