"""A GPU on the CPU: the library under test plans, compiles and launches on the fake driver (tests/fake_cuda.c), which checks what
it is given; what kernels would compute is then computed here from the addresses, strides and lengths of the launch itself, in
double precision. The test says what mask and score mean."""
import concurrent.futures
import contextlib
import ctypes as c
import math

import torch

from fagen import abi, launch, spec as specs

BYTES = {torch.float32: 4, torch.int32: 4, torch.uint8: 1, torch.bool: 1}
calls = []  # "forward" or "backward" of each launch
_kernels, _meaning = {}, []
_thread = concurrent.futures.ThreadPoolExecutor(1)


@contextlib.contextmanager
def meaning(mask=None, score=None):
    """mask(b, h, q, k, sq, sk, inputs) -> bool, score(s, b, h, q, k, inputs) -> scores, of index tensors that broadcast."""
    _meaning.append((mask, score))
    try:
        yield
    finally:
        _meaning.pop()


CAUSAL = dict(mask=lambda b, h, q, k, sq, sk, i: k - sk <= q - sq)
TOP_LEFT = dict(mask=lambda b, h, q, k, sq, sk, i: k <= q)


def install(patch, fake_driver):
    torch.ones(1, requires_grad=True).sum().backward()  # PyTorch has counted its GPUs before there is a driver
    c.CDLL(str(fake_driver))  # the loader finds it by its SONAME from now on
    lib = specs.runtime().lib
    made = launch.kernel_of

    def kernel_of(spec, *rest):
        kernel = made(spec, *rest)
        _kernels[kernel.handle.value] = spec
        return kernel

    def wrapped(name, compute):
        real = getattr(lib, name)

        def call(kernel, words, stream, error):
            rc = real(kernel, words, stream, error)
            if not rc:
                calls.append(name.removeprefix("fagen_"))
                # In a thread of its own: inside an operator there is no autograd.
                _thread.submit(compute, _kernels[kernel.value], abi.Args.from_buffer(words)).result()
            return rc
        patch.setattr(lib, name, call)

    patch.setattr(launch, "kernel_of", kernel_of)
    wrapped("fagen_forward", forward)
    wrapped("fagen_backward", backward)
    on_cpu(patch.setattr, workspace)
    patch.setattr(torch.cuda, "is_available", lambda: False)


def on_cpu(patch, workspace):
    """The package takes CPU tensors from now on; `patch` is setattr, or one that can be undone."""
    patch(launch, "device_check", lambda q: None)
    patch(launch, "device_of", lambda t: 0)
    patch(launch, "stream_of", lambda device: 0)
    patch(launch, "workspace_of", workspace)


def workspace(made, device):
    raw = torch.empty(made.workspace + 256, dtype=torch.uint8)
    return raw[-raw.data_ptr() % 256:][:made.workspace]


def memory(address, shape, strides, dtype):
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides))
    raw = (c.c_char * (reach * BYTES.get(dtype, 2))).from_address(address)
    return torch.frombuffer(raw, dtype=dtype).as_strided(shape, strides)


def view(t, heads, rows, width, dtype, batch):
    if not t.data and heads * rows * batch:
        return None
    shape, strides = (heads, rows), (t.stride_head, t.stride_seq)
    if width:
        shape, strides = shape + (width,), strides + (1,)
    return memory(t.data, (batch, *shape), (t.stride_batch, *strides), dtype)


class Entries:
    """Tensors of a launch, and the rows of each batch entry."""

    def __init__(self, spec, a):
        self.spec, self.a, packed = spec, a, spec.layout == "packed"
        rows_q, rows_k, batch = (a.total_q, a.total_k, 1) if packed else (a.seqlen_q, a.seqlen_k, a.batch)
        dtype, f32 = launch.DTYPES[spec.dtype], torch.float32
        heads = {"q": (a.heads_q, rows_q), "k": (a.heads_kv, rows_k)}
        forms = {"query": ("q", spec.d_qk), "key": ("k", spec.d_qk), "value": ("k", spec.d_v), "out": ("q", spec.d_v), "dout": ("q", spec.d_v),
                 "lse": ("q", 0), "dlse": ("q", 0), "dquery": ("q", spec.d_qk), "dkey": ("k", spec.d_qk), "dvalue": ("k", spec.d_v)}
        for name, (side, width) in forms.items():
            setattr(self, name, view(getattr(a, name), *heads[side], width, dtype if width else f32, batch))
        sizes = launch.Sizes(a.batch, a.heads_q, a.heads_kv, a.seqlen_q, a.seqlen_k, rows_q, rows_k)
        named = (abi.Input * a.input_count).from_address(a.inputs) if a.input_count else ()
        self.inputs, self.input_grads = {}, {}
        for d, n in zip(spec.inputs, named):
            assert n.name.decode() == d.name
            shape = launch.input_shape(spec, d, sizes)
            self.inputs[d.name] = memory(n.data, shape, n.stride[:len(shape)], launch.DTYPES[d.dtype])
            if n.grad:
                self.input_grads[d.name] = memory(n.grad, shape, n.grad_stride[:len(shape)], f32)
        ints = lambda at, n: memory(at, (n,), (1,), torch.int32).tolist() if at else None
        self.rows = []
        cu_q, cu_k = ints(a.cu_seqlens_q, a.batch + 1), ints(a.cu_seqlens_k, a.batch + 1)
        used_q, used_k = ints(a.seqlens_q, a.batch), ints(a.seqlens_k, a.batch)
        for b in range(a.batch):
            q0, q1 = (cu_q[b], cu_q[b + 1]) if packed else (0, rows_q)
            k0, k1 = (cu_k[b], cu_k[b + 1]) if packed else (0, rows_k)
            self.rows.append((b, 0 if packed else b, q0, q1, min(q1, q0 + used_q[b]) if used_q else q1, k0, k1, min(k1, k0 + used_k[b]) if used_k else k1))


def attend(e, b, q, k, v, inputs):
    """out and lse of one entry: q [heads, rows, d], k, v [heads_kv, rows, d], doubles."""
    mask, score = _meaning[-1] if _meaning else (None, None)
    heads, sq, sk = q.shape[0], q.shape[1], k.shape[1]
    group = heads // max(k.shape[0], 1)
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[2])
    h, i, j = (torch.arange(n).view(s) for n, s in ((heads, (-1, 1, 1)), (sq, (-1, 1)), (sk, (1, -1))))
    if score:
        scores = score(scores, b, h, i, j, inputs)
    if mask:
        scores = scores.masked_fill(~mask(b, h, i, j, sq, sk, inputs).expand(scores.shape), -math.inf)
    if "sink" in inputs:
        scores = torch.cat([scores, inputs["sink"].view(-1, 1, 1).expand(-1, sq, 1)], 2)
    lse = torch.logsumexp(scores, 2)
    p = torch.exp(scores - lse.masked_fill(lse == -math.inf, 0).unsqueeze(2))[:, :, :sk]
    if e.spec.dropout:
        seed, offset = (c.c_int64 * 2).from_address(e.a.rng_state)
        g = torch.Generator().manual_seed(seed ^ offset << 20 ^ b)
        p = p * (torch.rand(p.shape, generator=g) >= e.spec.dropout) / (1 - e.spec.dropout)
    return p @ v, lse


def forward(spec, args):
    e = Entries(spec, args)
    for b, at, q0, q1, q_end, k0, _, k_end in e.rows:
        out, lse = attend(e, b, e.query[at, :, q0:q_end].double(), e.key[at, :, k0:k_end].double(), e.value[at, :, k0:k_end].double(),
                          {n: t.double() if t.is_floating_point() else t for n, t in e.inputs.items()})
        e.out[at, :, q0:q_end], e.out[at, :, q_end:q1] = out.to(e.out.dtype), 0
        if e.lse is not None:
            e.lse[at, :, q0:q_end], e.lse[at, :, q_end:q1] = lse.float(), -math.inf


def backward(spec, args):
    e = Entries(spec, args)
    inputs = {n: t.double().requires_grad_(n in e.input_grads) if t.is_floating_point() else t for n, t in e.inputs.items()}
    for g in e.input_grads.values():
        g.zero_()
    for b, at, q0, q1, q_end, k0, k1, k_end in e.rows:
        with torch.enable_grad():
            q, k, v = (t[at, :, i:j].double().requires_grad_() for t, i, j in ((e.query, q0, q_end), (e.key, k0, k_end), (e.value, k0, k_end)))
            out, lse = attend(e, b, q, k, v, inputs)
            assert torch.allclose(out.float(), e.out[at, :, q0:q_end].float(), atol=1e-2, rtol=1e-2)  # the same dropout, the same tensors
            loss = (out * e.dout[at, :, q0:q_end].double()).sum()
            if e.dlse is not None:
                loss = loss + (lse * e.dlse[at, :, q0:q_end].double()).sum()
        leaves = [q, k, v, *(inputs[n] for n in e.input_grads)]
        grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        for to, g, i, j, end in zip((e.dquery, e.dkey, e.dvalue), grads, (q0, k0, k0), (q_end, k_end, k_end), (q1, k1, k1)):
            to[at, :, i:j], to[at, :, j:end] = g.to(to.dtype), 0
        for to, g in zip(e.input_grads.values(), grads[3:]):
            to += 0 if g is None else g.float()
