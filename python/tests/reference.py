"""Attention in plain PyTorch: exact (float64), and as a plain computation rounds (float32, P and the output in the tensors' type)."""
import math

import torch


def attention(q, k, v, mask=None, score=None, inputs={}, keep=None, scale=None, rounded=None):
    """out and lse of one batch of tensors [batch, heads, seq, dim]; keep multiplies the probabilities (dropout)."""
    trim = (lambda t: t.to(rounded).to(t.dtype)) if rounded else (lambda t: t)
    batch, heads, sq, d = q.shape
    sk, group = k.shape[2], heads // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    b, h, i, j = (torch.arange(n, device=q.device).view(s) for n, s in (
        (batch, (-1, 1, 1, 1)), (heads, (1, -1, 1, 1)), (sq, (1, 1, -1, 1)), (sk, (1, 1, 1, -1))))
    s = q @ k.transpose(2, 3) * (d**-0.5 if scale is None else scale)
    if score:
        s = score(s, b, h, i, j, inputs)
    if mask:
        s = s.masked_fill(~mask(b, h, i, j, sq, sk, inputs), -math.inf)
    joined = s
    if "sink" in inputs:
        joined = torch.cat([s, inputs["sink"].view(1, -1, 1, 1).expand(batch, -1, sq, 1)], 3)
    lse = torch.logsumexp(joined, 3)
    p = torch.exp(s - lse.masked_fill(lse == -math.inf, 0).unsqueeze(3))
    return trim(trim(p if keep is None else p * keep) @ v), lse


def close(name, got, exact, plain):
    """May err three times as much as the plain computation, and 4 units in the last place of the largest value: of float32 ones
    2e-5 of it (lse), and 2e-2 where they are sums of gradients of 16-bit tensors."""
    assert got.shape == exact.shape, f"{name} is {list(got.shape)}, not {list(exact.shape)}"
    assert torch.equal(torch.isinf(got), torch.isinf(exact)) and not got.isnan().any(), f"{name}: NaN or infinities of its own"
    there = ~torch.isinf(exact)
    got, exact, plain, eps = got[there].double(), exact[there].double(), plain[there].double(), torch.finfo(got.dtype).eps
    if got.numel():
        unit = eps if eps > 1e-6 else 5e-3 if name.startswith("d") else 5e-6
        error, allowed = (got - exact).abs().max(), 3 * (plain - exact).abs().max() + 4 * unit * exact.abs().max().clamp(1 if name == "lse" else 1e-3)
        assert error <= allowed, f"{name} errs by {error:.3g}; {allowed:.3g} is allowed"


def compare(got, q, k, v, inputs={}, dout=None, dlse=None, **meaning):
    """out, lse (or None) and, when dout is given, the gradients of q, k, v and of inputs that require one."""
    out, lse, *grads = got
    results = []
    for work, rounded in ((torch.float64, None), (torch.float32, q.dtype)):
        with torch.enable_grad():
            leaves = [t.detach().to(work).requires_grad_() for t in (q, k, v)]
            named = {n: t.detach().to(work).requires_grad_(t.requires_grad) if t.is_floating_point() else t for n, t in inputs.items()}
            o, l = attention(*leaves, inputs=named, rounded=rounded, **meaning)
            r = [o, l]
            if dout is not None:
                loss = (o * dout.to(work)).sum() + (0 if dlse is None else (l * dlse.to(work)).sum())
                leaves += [t for t in named.values() if t.requires_grad]
                r += torch.autograd.grad(loss, leaves)
        results.append([t.detach() for t in r])
    names = ["out", "lse", "dq", "dk", "dv", *(f"d{n}" for n, t in inputs.items() if t.requires_grad)]
    assert dout is None or len(grads) == len(names) - 2
    for name, g, exact, plain in zip(names, got, *results):
        if g is not None:
            close(name, g.detach(), exact, plain)
