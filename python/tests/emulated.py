"""Kernels for Hopper, emitted, compiled and launched by the package, on CPU tensors: test_emulated.py runs this with the driver and the compiler of
tests/emulate in place of CUDA's, in a process of its own, because drivers are not exchanged in one."""
import ctypes as c

import torch

torch.ones(1, requires_grad=True).sum().backward()  # PyTorch has counted its GPUs before there is a driver

import fagen
import sim
from reference import compare
from sim import CAUSAL

WINDOW = dict(mask=lambda b, h, q, k, sq, sk, i: (k - sk <= q - sq) & (q - sq - (k - sk) < 70))
ALIBI = dict(score=lambda s, b, h, q, k, i: s - i["slope"].view(1, -1, 1, 1) * (q - k).abs(), **CAUSAL)
TURNS = 3  # the first call of a form is checked and prepared; others of it have new addresses alone

spaces = []  # workspaces live until the kernels have run


def workspace(made, device):
    spaces.append(sim.workspace(made, device))
    return spaces[-1]


def ran(result):
    """Launches return at once; what they wrote is there behind this."""
    if driver.cuCtxSynchronize():
        raise RuntimeError("a kernel failed")
    spaces.clear()
    return result


def check(heads, heads_kv, seq, d, dtype):
    new = lambda h: torch.randn(1, h, seq, d).to(dtype)
    for _ in range(TURNS):
        t = q, k, v = new(heads), new(heads_kv), new(heads_kv)
        compare([ran(fagen.sdpa(q, k, v, is_causal=True, enable_gqa=True)), None], *t, **CAUSAL)
        compare([ran(fagen.flex(q, k, v, "k <= q && q - k < 70")), None], *t, **WINDOW)
        leaves, dout, dlse = [x.requires_grad_() for x in t], new(heads), torch.randn(1, heads, seq)
        out, lse = ran(fagen.attention(*leaves, {"mask": "causal"}, return_lse=True))
        grads = ran(torch.autograd.grad((out, lse), leaves, (dout, dlse)))
        compare([out, lse, *grads], *t, dout=dout, dlse=dlse, **CAUSAL)
    t = [torch.randn(1, seq, h, d).to(dtype).transpose(1, 2) for h in (heads, heads_kv, heads_kv)]
    compare([ran(fagen.attention(*t, {"mask": "causal"})), None], *t, **CAUSAL)
    slope = torch.rand(heads)
    compare([ran(fagen.flex(*t, "causal", "s - slope[h] * abs(q - k)", slope=slope)), None], *t, inputs={"slope": slope}, **ALIBI)
    used = torch.tensor([seq // 2], dtype=torch.int32)
    out = ran(fagen.attention(*t, {"mask": "causal", "layout": "padded"}, seqlens_q=used, seqlens_k=used))
    compare([out[:, :, :seq // 2], None], *(x[:, :, :seq // 2] for x in t), **CAUSAL)


driver = c.CDLL("libcuda.so.1")
sim.on_cpu(setattr, workspace)
torch.manual_seed(1)
check(2, 2, 200, 64, torch.bfloat16)
check(4, 2, 150, 128, torch.float16)
