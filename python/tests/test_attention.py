"""Values and gradients against plain PyTorch in double precision, and everything that PyTorch asks of an operator."""
import pathlib
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F

import fagen
from conftest import GPU
from fagen import launch, ops, spec as specs
from reference import attention, close, compare
from sim import CAUSAL, TOP_LEFT, meaning

BOTH = {"passes": ["forward", "backward"]}


def tensors(device, batch=2, heads=4, heads_kv=None, sq=50, sk=None, d=64, dv=None, dtype=torch.bfloat16, grad=True, seed=1):
    g = torch.Generator().manual_seed(seed)
    make = lambda *shape: torch.randn(shape, generator=g).to(device, dtype).requires_grad_(grad)
    kv = heads if heads_kv is None else heads_kv
    sk = sq if sk is None else sk
    return make(batch, heads, sq, d), make(batch, kv, sk, d), make(batch, kv, sk, dv or d)


def gradients(result, q, k, v, inputs={}, lse=True):
    """[out, lse, dq, dk, dv, of inputs], dout, dlse."""
    out, l = result if lse else (result, None)
    dout, dlse = torch.randn_like(out), torch.randn_like(l) if lse else None
    grads = torch.autograd.grad([out, *([l] if lse else [])], [q, k, v, *(t for t in inputs.values() if t.requires_grad)], [dout, *([dlse] if lse else [])])
    return [out, l, *grads], dout, dlse


CASES = {
    "plain": ({}, {}, {}),
    "causal, fp16, fewer keys": ({"mask": "causal"}, dict(sq=33, sk=70, dtype=torch.float16), CAUSAL),
    "grouped": ({"mask": "causal"}, dict(heads=6, heads_kv=2), CAUSAL),
    "wide values": ({}, dict(d=32, dv=96), {}),
    "window": ({"mask": {"window": {"left": 7, "right": 2}}}, {}, dict(mask=lambda b, h, q, k, sq, sk, i: (q - k <= 7) & (k - q <= 2))),
    "softcap": ({"score": {"softcap": {"cap": 5}}}, {}, dict(score=lambda s, b, h, q, k, i: 5 * torch.tanh(s / 5))),
    "rows that see nothing": ({"mask": "k < q - 20"}, {}, dict(mask=lambda b, h, q, k, sq, sk, i: k < q - 20)),
    "one query": ({"mask": "causal"}, dict(sq=1, sk=65), CAUSAL),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(device, name):
    spec, shape, means = CASES[name]
    q, k, v = tensors(device, **shape)
    with meaning(**means):
        got, dout, dlse = gradients(fagen.attention(q, k, v, spec, return_lse=True), q, k, v)
    compare(got, q, k, v, dout=dout, dlse=None if "nothing" in name else dlse, **means) if "nothing" not in name else compare(got[:2], q, k, v, **means)


def test_strides_of_every_kind(device):
    """Views of one projection, broadcast and sliced tensors, odd offsets; out lies as q does."""
    qkv = torch.randn(2, 40, 3, 4, 64).to(device, torch.bfloat16)
    q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
    wide = torch.randn(2, 4, 40, 129).to(device, torch.bfloat16)[..., 1:65]  # not 16-byte aligned
    one = torch.randn(1, 1, 40, 64).to(device, torch.bfloat16).expand(2, 4, 40, 64)
    columns = torch.randn(2, 4, 64, 40).to(device, torch.bfloat16).transpose(2, 3)  # the last dimension is not contiguous
    for a, b, c in ((q, k, v), (q, wide, v), (wide, k, one), (columns, one, columns)):
        leaves = [t.detach().requires_grad_() for t in (a, b, c)]
        got, dout, _ = gradients(fagen.attention(*leaves, {}), *leaves, lse=False)
        compare(got, *leaves, dout=dout)
    out = fagen.attention(q, k, v, {})
    assert out.transpose(1, 2).is_contiguous()
    q.requires_grad_()
    for g in (torch.ones((), dtype=torch.bfloat16, device=device).expand(out.shape), torch.randn(2, 4, 64, 40).to(device, torch.bfloat16).transpose(2, 3)):
        dq, = torch.autograd.grad(fagen.attention(q, k, v, {}), q, g)  # gradients with strides of their own
        close("dq", dq, *(torch.autograd.grad(attention(q.to(t), k.to(t), v.to(t))[0], q, g.to(t))[0] for t in (torch.float64, torch.float32)))


def test_named_inputs_and_their_gradients(device):
    q, k, v = tensors(device)
    bias = torch.randn(1, 4, 50, 50, device=device, requires_grad=True)
    gate = torch.randn(2, 4, 50).to(device, torch.bfloat16).requires_grad_()
    full = {"bias": bias, "gate": gate}
    with meaning(score=lambda s, b, h, q, k, i: s * torch.sigmoid(i["gate"][b, h, k]) + i["bias"][b, h, q, k]):
        got, dout, _ = gradients(fagen.flex(q, k, v, score="s * sigmoid(gate[b, h, k]) + bias[b, h, q, k]", **full), q, k, v, full, lse=False)
    assert got[-1].dtype == torch.bfloat16 and got[-2].shape == bias.shape  # summed over the batch
    compare(got, q, k, v, full, dout, score=lambda s, b, h, q, k, i: s * torch.sigmoid(i["gate"][b, h, k]) + i["bias"][0 * b, h, q, k])


def test_documents_and_sink(device):
    q, k, v = tensors(device)
    doc = torch.tensor([[0] * 20 + [1] * 30, [0] * 50], dtype=torch.int32, device=device)
    sink = torch.randn(4, device=device, requires_grad=True)
    means = dict(mask=lambda b, h, q, k, sq, sk, i: (k <= q) & (i["doc"][b, q] == i["doc"][b, k]))
    with meaning(**means):
        got, dout, _ = gradients(fagen.flex(q, k, v, "causal && document", doc=doc, sink=sink), q, k, v, {"sink": sink}, lse=False)
    compare(got, q, k, v, {"doc": doc, "sink": sink}, dout, **means)


def test_padded(device):
    q, k, v = tensors(device, batch=3)
    n = torch.tensor([50, 0, 17], dtype=torch.int32, device=device)
    with meaning(**CAUSAL):
        out, lse = fagen.attention(q, k, v, {"mask": "causal", "layout": "padded"}, seqlens_q=n, seqlens_k=n, return_lse=True)
        dout = torch.randn_like(out)
        grads = torch.autograd.grad(out, (q, k, v), dout)
    for b, m in enumerate(n.tolist()):
        cut = lambda t: t[b:b + 1, :, :m]
        compare([cut(out), cut(lse), *map(cut, grads)], *map(cut, (q, k, v)), dout=cut(dout), **CAUSAL)
        assert not out[b, :, m:].any() and not any(g[b, :, m:].any() for g in grads) and torch.isneginf(lse[b, :, m:]).all()


@pytest.mark.parametrize("longest", (0, 30))
def test_packed(device, longest):
    q, k, v = (t.detach()[0].transpose(0, 1).contiguous().requires_grad_() for t in tensors(device, batch=1, heads=4, heads_kv=2, sq=60))
    ends = [0, 30, 30, 51]  # rows behind the last entry belong to nobody
    cu = torch.tensor(ends, dtype=torch.int32, device=device)
    with meaning(**CAUSAL):
        out, lse = fagen.attention(q, k, v, {"mask": "causal", "layout": "packed"}, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=longest,
                                   max_seqlen_k=longest, return_lse=True)
        dout = torch.randn_like(out)
        grads = torch.autograd.grad(out, (q, k, v), dout)
    assert out.shape == (60, 4, 64) and lse.shape == (4, 60)
    for begin, end in zip(ends, ends[1:]):
        cut = lambda t: t[begin:end].transpose(0, 1).unsqueeze(0)
        compare([cut(out), lse[None, :, begin:end], *map(cut, grads)], *map(cut, (q, k, v)), dout=cut(dout), **CAUSAL)
    assert not any(t[51:].any() for t in (out, *grads))


def test_empty(device):
    for shape in (dict(batch=0), dict(sq=0, sk=5), dict(sq=5, sk=0)):
        q, k, v = tensors(device, **shape)
        out, lse = fagen.attention(q, k, v, BOTH, return_lse=True)
        out.sum().backward()
        assert out.shape == q.shape and not out.any() and torch.isneginf(lse).all() and not k.grad.any()


def test_dropout_follows_the_generator(device):
    q, k, v = tensors(device, sq=128)
    spec = {"dropout": 0.25}
    run = lambda: fagen.attention(q, k, v, spec)
    torch.manual_seed(7)
    first, second = run(), run()
    torch.manual_seed(7)
    again = run()
    assert torch.equal(first, again) and not torch.equal(first, second)
    # With V the identity of 128 keys, out is P after dropout: what is kept is 1 / keep times as large, gradients see the same cells.
    eye = torch.eye(128, device=device, dtype=torch.bfloat16).expand(2, 4, 128, 128).requires_grad_()
    torch.manual_seed(7)
    p = fagen.attention(q, k, eye, spec)
    exact, _ = attention(q.double(), k.double(), eye.double())
    kept = p != 0
    assert 0.73 < kept.float().mean() < 0.77
    assert torch.allclose(p[kept].double(), exact[kept] / 0.75, rtol=2e-2)
    dout = torch.randn_like(p)
    got = [p, None, *torch.autograd.grad(p, (q, k, eye), dout)]
    compare(got, q, k, eye, dout=dout, keep=kept / 0.75)


def test_checkpointing_replays_dropout(device):
    q, k, v = tensors(device, sq=64)
    spec = {"dropout": 0.5}
    outs = []
    for through in (lambda f: f(q, k, v), lambda f: torch.utils.checkpoint.checkpoint(f, q, k, v, use_reentrant=False)):
        torch.manual_seed(3)
        out = through(lambda q, k, v: fagen.attention(q, k, v, spec))  # of the devices of these the state is kept
        outs.append((out, *torch.autograd.grad(out.sum(), (q, k, v))))
    assert all(torch.equal(a, b) for a, b in list(zip(*outs))[:1] + list(zip(*outs))[2:])  # dQ is summed in an order of chance


# ---- scaled_dot_product_attention ----


@pytest.mark.parametrize("kind", ("none", "causal", "bool", "padding", "float", "bf16 of heads", "lower right"))
def test_sdpa(device, kind):
    q, k, v = tensors(device, sq=40, sk=56)
    g = torch.Generator().manual_seed(5)
    m = {"bool": torch.rand(40, 56, generator=g) < 0.6, "padding": (torch.arange(56) < torch.tensor([[30], [56]])).view(2, 1, 1, 56),
         "float": torch.randn(2, 1, 40, 56, generator=g), "bf16 of heads": torch.randn(4, 1, 56, generator=g).bfloat16()}.get(kind)
    if m is not None:
        m = m.to(device)
        m[..., 0] = 1  # every row sees something
    named = {"bool": dict(mask=lambda b, h, q, k, sq, sk, i: i["attn"][q, k] != 0), "padding": dict(mask=lambda b, h, q, k, sq, sk, i: i["attn"][b, k] != 0),
             "float": dict(score=lambda s, b, h, q, k, i: s + i["attn"][b, q, k]), "causal": TOP_LEFT, "lower right": CAUSAL,
             "bf16 of heads": dict(score=lambda s, b, h, q, k, i: s + i["attn"][h, k])}.get(kind, {})
    given = dict(is_causal=True) if kind == "causal" else dict(attn_mask=m)
    if kind == "lower right":
        given = dict(attn_mask=torch.nn.attention.bias.causal_lower_right(40, 56))
    with meaning(**named):
        got, dout, _ = gradients(fagen.sdpa(q, k, v, scale=None, **given), q, k, v, lse=False)
    if m is not None:
        m = m.expand(2, 4, 40, 56)
    plain = {"causal": TOP_LEFT, "lower right": CAUSAL, "none": {}}.get(kind)
    if plain is None:
        at = lambda b, h, q, k: m[b, h, q, k]
        plain = dict(mask=lambda b, h, q, k, sq, sk, i: at(b, h, q, k)) if m.dtype == torch.bool else dict(score=lambda s, b, h, q, k, i: s + at(b, h, q, k))
    compare(got, q, k, v, dout=dout, **plain)


@pytest.mark.parametrize("low", (-float("inf"), torch.finfo(torch.bfloat16).min))
def test_sdpa_hides_by_adding(device, low):
    """Whole tiles of a row hidden by what is added to its scores, at the begin and the end."""
    q, k, v = tensors(device, sq=130, sk=700)
    i, j = torch.arange(130, device=device).view(-1, 1), torch.arange(700, device=device)
    seen = (i < 70) & (j >= 520) | (i >= 70) & (j < 130)
    m = torch.zeros(130, 700, device=device).masked_fill(~seen, low).bfloat16()
    with meaning(score=lambda s, b, h, q, k, i: s + i["attn"][q, k]):
        got, dout, _ = gradients(fagen.sdpa(q, k, v, m), q, k, v, lse=False)
    compare(got, q, k, v, dout=dout, mask=lambda b, h, q, k, sq, sk, i: seen[q, k])


def test_sdpa_is_pytorchs(device):
    q, k, v = tensors(device, heads=4, heads_kv=2, grad=False)
    ours, theirs = (f(q, k, v, scale=0.125, enable_gqa=True) for f in (fagen.sdpa, F.scaled_dot_product_attention))
    assert torch.allclose(ours.float(), theirs.float(), atol=2e-2)
    assert fagen.sdpa(q[0], k[0], v[0], enable_gqa=True).shape == (4, 50, 64)


def test_sdpa_refuses(device):
    q, k, v = tensors(device, grad=False)
    with pytest.raises(TypeError, match="attn_mask is torch.int64.*fagen.flex"):
        fagen.sdpa(q, k, v, torch.ones(50, 50, dtype=torch.int64, device=device))
    with pytest.raises(ValueError, match="does not broadcast"):
        fagen.sdpa(q, k, v, torch.ones(49, 50, dtype=torch.bool, device=device))
    with pytest.raises(ValueError, match="one of them"):
        fagen.sdpa(q, k, v, torch.ones(50, 50, dtype=torch.bool, device=device), is_causal=True)
    with pytest.raises(ValueError, match="dropout_p is 1"):
        fagen.sdpa(q, k, v, dropout_p=1.0)
    with pytest.raises(ValueError, match="enable_gqa"):
        fagen.sdpa(q, k[:, :2], v[:, :2])


# ---- refusals ----


def test_refusals(device):
    q, k, v = tensors(device)
    refused = [
        (TypeError, "q is torch.float32.*dtype of the spec is bf16", (q.float(), k, v, "causal_d64"), {}),
        (ValueError, "last dimension of q is 64, but head_dim of the spec is 128", (q, k, v, "causal_d128"), {}),
        (ValueError, "no backward pass: write passes", (q, k, v, "head_dim: 64"), {}),
        (ValueError, "does not write lse", (q.detach(), k.detach(), v.detach(), "head_dim: 64"), dict(return_lse=True)),
        (ValueError, "wants \\[total, heads, dim\\]", (q, k, v, "packed_causal"), dict(cu_seqlens_q=torch.zeros(2).int(), cu_seqlens_k=torch.zeros(2).int())),
        (ValueError, "pass cu_seqlens_q", (q[0], k[0], v[0], {"layout": "packed"}), {}),
        (ValueError, "seqlens_q is given, but the spec's layout is dense: write layout: padded", (q, k, v, BOTH), dict(seqlens_q=torch.zeros(2).int())),
        (ValueError, "must be contiguous torch.int32 \\[2\\]", (q, k, v, {"layout": "padded"}), dict(seqlens_q=torch.zeros(3).int())),
        (TypeError, "slope is missing; its inputs: slope: f32 \\[heads\\]", (q, k, v, {"score": "alibi"}), {}),
        (TypeError, "slop is no input of the spec; its inputs: none", (q, k, v, {}), dict(slop=q)),
        (ValueError, "slope is torch.float32 \\[3\\], but the spec declares slope: f32 \\[heads\\]: here torch.float32 \\[4\\]", (q, k, v, {"score": "alibi"}),
         dict(slope=torch.zeros(3, device=device))),
        (ValueError, "slope requires a gradient.*grad: true", (q, k, v, {"score": "alibi"}), dict(slope=torch.zeros(4, device=device, requires_grad=True))),
        (ValueError, "k is .* and v is", (q, k, v[:, :, :9], BOTH), {}),
        (ValueError, "q has 4 heads and k 2; kv_group of the spec is 1", (q, k[:, :2], v[:, :2], "head_dim: 64\npasses: [forward, backward]"), {}),
        (fagen.FagenError, "did you mean 'causal'", (q, k, v, {"mask": "casual"}), {}),
    ]
    for kind, words, args, kwargs in refused:
        with pytest.raises(kind, match=words):
            fagen.attention(*args, **kwargs)
    with pytest.raises(TypeError, match="n is int; want a tensor"):
        fagen.flex(q, k, v, mask="k < n", n=3)


@pytest.mark.skipif(GPU, reason="the CPU's tensors are the GPU's only without one")
def test_other_devices_are_refused():
    t = torch.zeros(1, 1, 1, 64)
    with pytest.raises(ValueError, match="q is on cpu: fagen computes on CUDA devices"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch, "device_check", DEVICE_CHECK)
            fagen.attention(t.bfloat16(), t.bfloat16(), t.bfloat16(), "head_dim: 64\nname: fresh")


DEVICE_CHECK = launch.device_check


# ---- PyTorch's machinery ----


def op_arguments(device, **shape):
    q, k, v = tensors(device, **shape)
    slope = torch.rand(q.shape[1], device=device, requires_grad=True)
    source = specs.written("causal", "s - slope[h] * abs(q - k)", (("slope", "f32", ("heads",), True),),
                           {"head_dim": 64, **BOTH, "deterministic": True}).source
    return (q, k, v, source, [slope], None, None, None, None, 0, 0, None)


ALIBI = dict(score=lambda s, b, h, q, k, i: s - i["slope"][h] * (q - k).abs(), **CAUSAL)


def test_opcheck(device):
    with meaning(**ALIBI):
        torch.library.opcheck(torch.ops.fagen.forward.default, op_arguments(device), atol=1e-2, rtol=1e-2)
        transposed = [t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in op_arguments(device)[:3]]
        torch.library.opcheck(torch.ops.fagen.forward.default, (*transposed, *op_arguments(device)[3:]), atol=1e-2, rtol=1e-2)


def test_opcheck_packed_with_dropout(device):
    q, k, v = (t.detach()[0].transpose(0, 1).contiguous().requires_grad_() for t in tensors(device, batch=1, sq=60))
    cu = torch.tensor([0, 25, 60], dtype=torch.int32, device=device)
    rng = torch.tensor([3, 4], device=device)
    source = '{"head_dim": 64, "layout": "packed", "dropout": 0.5, "deterministic": true, "passes": ["forward", "backward"]}'
    torch.library.opcheck(torch.ops.fagen.forward.default, (q, k, v, source, [], None, None, cu, cu, 35, 0, rng), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("dynamic", (False, True))
def test_compile_packed(device, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v, cu: fagen.flex(q * 2, k, v, "causal", cu_seqlens_q=cu, cu_seqlens_k=cu), backend="aot_eager",
                             fullgraph=True, dynamic=dynamic)
    for ends in ([0, 25, 60], [0, 10, 20, 44]):
        q, k, v = (t.detach()[0].transpose(0, 1).contiguous() for t in tensors(device, batch=1, sq=ends[-1]))
        cu = torch.tensor(ends, dtype=torch.int32, device=device)
        with meaning(**CAUSAL):
            assert torch.equal(compiled(q, k, v, cu), fagen.flex(q * 2, k, v, "causal", cu_seqlens_q=cu, cu_seqlens_k=cu))


@pytest.mark.parametrize("dynamic", (False, True))
def test_compile_without_graph_breaks(device, dynamic):
    torch._dynamo.reset()
    slope = torch.rand(4, device=device, requires_grad=True)

    def model(q, k, v, slope):
        a = fagen.attention(q * 2, k, v, {"mask": "causal"})
        b, lse = fagen.flex(a, k, v, "causal", "s - slope[h] * abs(q - k)", return_lse=True, slope=slope)
        return fagen.sdpa(b, k, v, is_causal=True).float().sum() + lse.sum()

    compiled = torch.compile(model, backend="inductor" if GPU else "aot_eager", fullgraph=True, dynamic=dynamic)
    with meaning(mask=CAUSAL["mask"], score=lambda s, b, h, q, k, i: s - i["slope"][h] * (q - k).abs() if "slope" in i else s):
        for sq in (50, 64, 33):
            q, k, v = tensors(device, sq=sq)
            eager, fast = (f(q, k, v, slope) for f in (model, compiled))
            assert torch.allclose(eager, fast, rtol=1e-2)
            for a, b in zip(*(torch.autograd.grad(r, (q, k, v, slope)) for r in (eager, fast))):
                assert torch.allclose(a.float(), b.float(), atol=0.05 * a.float().abs().max().item())


def test_compile_with_dropout(device):
    torch._dynamo.reset()
    q, k, v = tensors(device, sq=64)
    compiled = torch.compile(lambda q: fagen.attention(q, k, v, {"dropout": 0.5}), backend="aot_eager", fullgraph=True)
    torch.manual_seed(1)
    a, b = compiled(q), compiled(q)
    assert not torch.equal(a, b)
    a.sum().backward()


def test_dispatch_modes(device):
    from torch.utils.flop_counter import FlopCounterMode
    q, k, v = tensors(device)
    with FlopCounterMode(display=False):
        fagen.attention(q, k, v, {}).sum().backward()
    modes, q.grad = q.grad, None
    fagen.attention(q, k, v, {}).sum().backward()
    assert torch.allclose(q.grad.float(), modes.float(), atol=1e-2)


def test_autocast(device):
    q, k, v = (t.detach().float().requires_grad_() for t in tensors(device))
    with torch.autocast(device, dtype=torch.bfloat16):
        out = fagen.sdpa(q, k, v)
        assert out.dtype == fagen.attention(q, k, v, {}).dtype == torch.bfloat16
    out.sum().backward()
    assert q.grad.dtype == torch.float32


def test_threads(device):
    """Prepared launches are shared, addresses are not."""
    data = [tensors(device, seed=s, grad=False) for s in range(4)]
    want = [fagen.attention(*d, {}) for d in data]
    wrong = []

    def work(i):
        for _ in range(20):
            if not torch.equal(fagen.attention(*data[i], {}), want[i]):
                wrong.append(i)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert not wrong


def test_launches_are_prepared_once(device, monkeypatch):
    q, k, v = tensors(device, seed=9)
    run = lambda: fagen.attention(q, k, v, BOTH).sum().backward()
    run()
    monkeypatch.setattr(launch, "Launch", None)
    run()


# ---- repeated calls, which look at the form of q, k and v alone ----


def repeated(monkeypatch, call, *others):
    """What call(*t) gives for each t of others, each without finding and checking anything anew."""
    with monkeypatch.context() as patch:
        patch.setattr(ops, "attend", None)
        return [call(*t) for t in others]


def test_repeated_with_other_tensors(device, monkeypatch):
    """Each form of q, k and v is another call; what has a form is computed with its own addresses and strides."""
    def layouts(seed):
        q, k, v = tensors(device, grad=False, seed=seed)
        tight = lambda t: t.transpose(1, 2).contiguous().transpose(1, 2)
        yield q, k, v
        yield q, k, k  # one tensor twice
        yield tight(q), k, tight(v)
        yield q, k[:1, :1].expand(k.shape), v[:, :1].expand(v.shape)  # strides of 0
        yield q, torch.cat([k, k], 3)[..., 8:72], v
        yield torch.cat([q, q], 3)[..., 1:65], k, v  # not 16-byte aligned
        yield torch.cat([q.flatten(), q.flatten()])[1:q.numel() + 1].view(q.shape), k, v  # of strides that are
        yield q[:, :, :1], k, v
        yield q[:1], k[:1], v[:1]
        yield q.half(), k.half(), v.half()
    call = lambda q, k, v: fagen.attention(q, k, v, {"kv_group": "any"})
    for first, second in zip(layouts(1), layouts(2)):
        call(*first)
        for t, out in zip((first, second), repeated(monkeypatch, call, first, second)):
            compare([out, None], *t)


@pytest.mark.parametrize("name", ("attention, a dict", "attention, a name", "flex", "sdpa"))
def test_repeated_calls_and_gradients(device, monkeypatch, name):
    call, means = {"attention, a dict": (lambda *t: fagen.attention(*t, {"mask": "causal"}), CAUSAL),
                   "attention, a name": (lambda *t: fagen.attention(*t, "causal_d64"), CAUSAL),
                   "flex": (lambda *t: fagen.flex(*t, "k <= q && q - k < 9"), dict(mask=lambda b, h, q, k, sq, sk, i: (k <= q) & (q - k < 9))),
                   "sdpa": (lambda *t: fagen.sdpa(*t, is_causal=True), TOP_LEFT)}[name]
    kinds = [tensors(device, heads=3, sq=40, seed=s) for s in (1, 2)]
    with meaning(**means):
        for first, second in (kinds, [[t.detach() for t in kind] for kind in kinds]):
            call(*first)
            for t, out in zip((first, second), repeated(monkeypatch, call, first, second)):
                assert out.requires_grad == t[0].requires_grad
                dout = torch.randn_like(out) if out.requires_grad else None
                compare([out, None, *(torch.autograd.grad(out, t, dout) if out.requires_grad else ())], *t, dout=dout, **means)
        with torch.no_grad():
            assert not call(*kinds[0]).requires_grad
        q, k, v = kinds[0]
        assert call(q.detach(), k, v).requires_grad  # any of the three


def test_repeated_calls_are_told_apart(device):
    """By what is asked for, its type, and what is returned."""
    q, k, v = tensors(device, grad=False, sq=24, seed=3)
    for _ in range(2):
        assert len(fagen.attention(q, k, v, {"head_dim": 64}, return_lse=True)) == 2
        assert fagen.attention(q, k, v, {"head_dim": 64}).shape == q.shape
        with pytest.raises(ValueError, match="does not write lse"):
            fagen.attention(q, k, v, "{'head_dim': 64}", return_lse=True)  # the same characters
        with meaning(**TOP_LEFT):
            compare([fagen.sdpa(q, k, v, is_causal=True), None], q, k, v, **TOP_LEFT)
        compare([fagen.sdpa(q, k, v), None], q, k, v)
        compare([fagen.attention(q, k, v, pathlib.Path(specs.found("full_d64"))), None], q, k, v)


def test_repeated_dropout_is_drawn_anew(device, monkeypatch):
    q, k, v = tensors(device, sq=64, seed=4)
    call = lambda *t: fagen.attention(*t, {"dropout": 0.5})
    call(q, k, v)
    a, b = repeated(monkeypatch, call, (q, k, v), (q, k, v))
    assert not torch.equal(a, b)


def test_repeated_refusals(device):
    """What went wrong goes wrong again, and makes nothing known."""
    q, k, v = tensors(device, sq=25)
    fagen.attention(q, k, v, BOTH)
    known = len(ops._calls)
    for _ in range(2):
        for kind, args in ((fagen.FagenError, (q.float(), k, v, BOTH)), (ValueError, (q, k, v[:, :, :9], BOTH)), (ValueError, (q, k, v, "head_dim: 64")),
                           (ValueError, (q[0], k, v, BOTH)), (ValueError, (q, k[:1], v[:1], BOTH))):
            with pytest.raises(kind):
                fagen.attention(*args)
        with pytest.raises(ValueError, match="enable_gqa"):
            fagen.sdpa(q, k[:, :2], v[:, :2])
        fagen.sdpa(q, k[:, :2], v[:, :2], enable_gqa=True)
    assert len(ops._calls) == known + 1


def test_repeated_under_autocast_and_modes(device, monkeypatch):
    from torch.utils.flop_counter import FlopCounterMode
    q, k, v = (t.detach().float() for t in tensors(device, sq=26))
    for _ in range(2):
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast(device, dtype=dtype):
                assert fagen.attention(q, k, v, {}).dtype == dtype
        with pytest.raises(fagen.FagenError, match="dtype: found 'f32'"):
            fagen.attention(q, k, v, {})
    q, k, v = (t.bfloat16() for t in (q, k, v))
    fagen.attention(q, k, v, {})
    seen = []
    monkeypatch.setattr(ops, "forward_op", lambda *a: seen.append(1) or OPERATOR(*a))
    with FlopCounterMode(display=False):
        fagen.attention(q, k, v, {})
    assert seen == [1]  # the operator, though the call is known


OPERATOR = ops.forward_op


def test_repeated_in_threads(device):
    """Forms and gradients of several threads at once; the first calls too."""
    data = [tensors(device, sq=n, grad=grad, seed=n) for n in (27, 28) for grad in (True, False)] * 2
    wrong = []

    def work(t):
        try:
            for _ in range(5):
                compare([fagen.attention(*t, "full_d64"), None], *t)
        except Exception as e:
            wrong.append(e)
    threads = [threading.Thread(target=work, args=(t,)) for t in data]
    [t.start() for t in threads], [t.join() for t in threads]
    assert not wrong


def test_calls_keep_no_tensors_and_are_bounded(device, monkeypatch):
    monkeypatch.setattr(launch, "KEPT_MAX", 3)
    for sq in range(30, 37):
        t = tensors(device, sq=sq)
        out = fagen.attention(*t, BOTH)
        out.sum().backward()
        gone = [weakref.ref(x) for x in (*t, out)]
        del t, out
        assert not any(r() is not None for r in gone)
        assert 0 < len(ops._calls) <= 3 and all(0 < len(s.launches) <= 3 for s, _ in ops._calls.values())


def test_workspace_is_of_the_pass(device):
    """A forward whose kernels need none is given none, though the backward needs it; one that needs it gets it, again and again."""
    for shape in (dict(batch=1, heads=1, sq=64), dict(batch=1, heads=1, sq=1000)):
        t = tensors(device, grad=False, **shape)
        with meaning(**CAUSAL):
            for out in [fagen.attention(*t, "causal_d64") for _ in range(2)]:
                compare([out, None], *t, **CAUSAL)
    if not GPU:
        made = [l for l in specs.get("causal_d64").launches.values() if l.function is specs.runtime().lib.fagen_forward]
        assert {bool(l.workspace) for l in made} == {False, True} and all(l.workspace_most for l in made)
        needy = next(l for l in made if l.workspace)
        needy.workspace, real = 0, needy.function

        def refused_twice(*args):  # another thread has learnt the same in between
            rc, needy.workspace = real(*args), needy.workspace_most
            return rc
        needy.function = refused_twice
        with meaning(**CAUSAL):
            compare([fagen.attention(*t, "causal_d64"), None], *t, **CAUSAL)
        needy.function = real


def test_gradients_of_gradients_are_refused(device):
    q, k, v = tensors(device)
    dout = torch.randn_like(q, requires_grad=True)
    with meaning(**CAUSAL):
        grads = torch.autograd.grad(fagen.attention(q, k, v, {"mask": "causal"}), (q, k, v), dout, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grads[0].float().sum().backward()


gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")


@gpu
def test_cuda_graph(device):
    q, k, v = tensors(device, sq=256)
    spec = {"mask": "causal", "dropout": 0.5, "deterministic": True}
    dout = torch.randn_like(q)
    step = lambda: (out := fagen.attention(q, k, v, spec), *torch.autograd.grad(out, (q, k, v), dout))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step(), step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    torch.manual_seed(5)
    graph.replay()
    first = [t.clone() for t in results]
    graph.replay()
    assert not torch.equal(first[0], results[0])  # another dropout in every replay
    torch.manual_seed(5)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(first, results))


@gpu
def test_streams(device):
    q, k, v = tensors(device, sq=2048, grad=False)
    want = fagen.attention(q, k, v, {})
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        late = q * 1
        torch.cuda._sleep(50_000_000)
        late.copy_(q)
        out = fagen.attention(late, k, v, {})
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(out, want)


@gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_second_gpu(device):
    q, k, v = (t.to("cuda:1") for t in tensors(device, grad=False))
    compare([fagen.attention(q, k, v, {}), None], q, k, v)
