"""From tensors to a launch of libfagen. What depends on shapes, strides, types and device alone is prepared once and kept in the
spec; a call copies it, writes addresses into the copy and calls the library."""
import ctypes as c
import threading
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from . import abi, spec as specs

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "f32": torch.float32, "i32": torch.int32, "u8": torch.uint8}
DTYPE_NAMES = {v: k for k, v in DTYPES.items()}
KEPT_MAX = 4096  # prepared launches of a spec, or calls; beyond, they are made anew

# Places of addresses in the words of fagen_args, and of an input behind it.
ARGS_WORDS, INPUT_WORDS = c.sizeof(abi.Args) // 8, c.sizeof(abi.Input) // 8
QUERY, KEY, VALUE, OUT, LSE, DOUT, DLSE, DQUERY, DKEY, DVALUE = (
    getattr(abi.Args, n).offset // 8 for n in ("query", "key", "value", "out", "lse", "dout", "dlse", "dquery", "dkey", "dvalue"))
RNG, WORKSPACE, INPUTS, SEQLENS = (getattr(abi.Args, n).offset // 8 for n in ("rng_state", "workspace", "inputs", "seqlens_q"))
INPUT_DATA, INPUT_GRAD = abi.Input.data.offset // 8, abi.Input.grad.offset // 8


class Lengths(NamedTuple):
    """How the entries of a padded or packed batch lie: int32 on the device. max_*: of the longest entry, 0: not known."""
    seqlens_q: Optional[Tensor] = None  # [batch]
    seqlens_k: Optional[Tensor] = None
    cu_seqlens_q: Optional[Tensor] = None  # [batch + 1]
    cu_seqlens_k: Optional[Tensor] = None
    max_q: int = 0
    max_k: int = 0


EQUAL = Lengths()


class Sizes(NamedTuple):
    batch: int
    heads: int
    heads_kv: int
    seq_q: int  # of the longest entry
    seq_k: int
    rows_q: int  # of the tensors
    rows_k: int


def sizes_of(spec, q, k, lengths):
    if spec.layout != "packed":
        return Sizes(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[2], k.shape[2])
    rows_q, rows_k = q.shape[0], k.shape[0]
    return Sizes(lengths.cu_seqlens_q.shape[0] - 1, q.shape[1], k.shape[1], lengths.max_q or rows_q, lengths.max_k or rows_k, rows_q, rows_k)


def input_shape(spec, declared, sizes):
    """What a tensor for a declared input must be."""
    joined = spec.layout == "packed" and ("seq_q" in declared.dims or "seq_k" in declared.dims)
    known = {"batch": 1 if joined else sizes.batch, "heads": sizes.heads, "heads_kv": sizes.heads_kv, "seq_q": sizes.rows_q,
             "seq_k": sizes.rows_k}
    if spec.block_q:
        known |= {"blocks_q": -(-sizes.seq_q // spec.block_q), "blocks_k": -(-sizes.seq_k // spec.block_k)}
    return tuple(known.get(d, d) for d in declared.dims)


def check(spec, q, k, v, inputs, lengths):
    """Refuses what the library cannot see: it is given addresses and strides."""
    dims = 3 if spec.layout == "packed" else 4
    form = "[total, heads, dim]" if dims == 3 else "[batch, heads, seq, dim]"
    for name, t, width in (("q", q, spec.d_qk), ("k", k, spec.d_qk), ("v", v, spec.d_v)):
        if t.dim() != dims:
            raise ValueError(f"{name} is {list(t.shape)}; the spec's layout is {spec.layout} and wants {form}")
        if t.shape[-1] != width:
            raise ValueError(f"the last dimension of {name} is {t.shape[-1]}, but head_dim of the spec is {width}")
        if t.dtype != DTYPES[spec.dtype]:
            raise TypeError(f"{name} is {t.dtype}, but dtype of the spec is {spec.dtype}: convert it, or write dtype: "
                            f"{DTYPE_NAMES.get(t.dtype, 'bf16')} in the spec" + ("" if t.dtype in (torch.float16, torch.bfloat16) else
                            " (fagen computes with bf16 and fp16; torch.autocast converts by itself)"))
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"k is {list(k.shape)} and v is {list(v.shape)}: they must agree in all but the last dimension")
    if dims == 4 and q.shape[0] != k.shape[0]:
        raise ValueError(f"q has a batch of {q.shape[0]} and k of {k.shape[0]}")
    if spec.kv_group and q.shape[1] != k.shape[1] * spec.kv_group or q.shape[1] % max(k.shape[1], 1):
        raise ValueError(f"q has {q.shape[1]} heads and k {k.shape[1]}; kv_group of the spec is {spec.kv_group or 'any'}: query heads for each head of k")
    check_lengths(spec, q, k, lengths)
    sizes = sizes_of(spec, q, k, lengths)
    for declared, t in zip(spec.inputs, inputs):
        want = input_shape(spec, declared, sizes)
        if tuple(t.shape) != want or t.dtype != DTYPES[declared.dtype]:
            raise ValueError(f"{declared.name} is {t.dtype} {list(t.shape)}, but the spec declares {declared}: here {DTYPES[declared.dtype]} {list(want)}")
    for name, t in (("k", k), ("v", v), *((d.name, t) for d, t in zip(spec.inputs, inputs)), *zip(lengths._fields, lengths[:4])):
        if t is not None and t.device != q.device:
            raise ValueError(f"{name} is on {t.device}, but q is on {q.device}")
    device_check(q)
    return sizes


def device_check(q):
    if q.device.type != "cuda":
        raise ValueError(f"q is on {q.device}: fagen computes on CUDA devices")


def check_lengths(spec, q, k, lengths):
    packed = spec.layout == "packed"
    if packed and (lengths.cu_seqlens_q is None or lengths.cu_seqlens_k is None):
        raise ValueError("the spec's layout is packed: pass cu_seqlens_q and cu_seqlens_k, int32 [batch + 1]")
    batch = lengths.cu_seqlens_q.shape[0] - 1 if packed else q.shape[0]
    for name, t in zip(lengths._fields, lengths[:4]):
        if t is None:
            continue
        cu = int(name.startswith("cu"))
        if spec.layout == "dense" or (cu and not packed):
            raise ValueError(f"{name} is given, but the spec's layout is {spec.layout}: write layout: {'packed' if cu else 'padded'} in the spec")
        if t.dtype != torch.int32 or t.dim() != 1 or t.shape[0] != batch + cu or t.stride(0) != 1:
            raise ValueError(f"{name} is {t.dtype} {list(t.shape)}; it must be contiguous torch.int32 [{batch + cu}]")


def result_like(spec, t, width):
    """Shape and strides of a result with the rows of t: heads lie inside of positions where they do so in t."""
    if spec.layout == "packed":
        rows, heads = t.shape[0], t.shape[1]
        return (rows, heads, width), (heads * width, width, 1)
    batch, heads, rows = t.shape[:3]
    if t.stride(1) < t.stride(2):
        return (batch, heads, rows, width), (rows * heads * width, width, heads * width, 1)
    return (batch, heads, rows, width), (heads * rows * width, rows * width, width, 1)


def lse_like(spec, q):
    """[batch, heads, seq], or packed [heads, total]."""
    if spec.layout == "packed":
        return (q.shape[1], q.shape[0]), (q.shape[0], 1)
    batch, heads, rows = q.shape[:3]
    return (batch, heads, rows), (heads * rows, rows, 1)


def result(form, dtype, device, zeroed):
    out = torch.empty_strided(form[0], form[1], dtype=dtype, device=device)
    return out.zero_() if zeroed else out


def aligned(*tensors):
    """Are addresses and strides multiples of 16 bytes? Of 16-bit tensors with a contiguous last dimension."""
    return not any(t.data_ptr() & 15 or any(s & 7 and n > 1 for s, n in zip(t.stride()[:-1], t.shape)) for t in tensors)


def power(n):
    return 1 << max(n - 1, 0).bit_length()


def kernel_of(spec, device, align, sizes):
    """The kernel for a class of shapes: lengths up to the next power of two share one, so that few are planned."""
    entries = max(sizes.batch, 1)
    if spec.layout == "packed" and sizes.seq_q == sizes.rows_q:  # the longest is not known
        sizes = sizes._replace(seq_q=-(-sizes.rows_q // entries), seq_k=-(-sizes.rows_k // entries))
    key = (device, align, entries, sizes.heads, sizes.heads_kv, power(sizes.seq_q), power(sizes.seq_k))
    kernel = spec.kernels.get(key)
    if kernel is None:
        with specs._lock:
            kernel = spec.kernels[key] = specs.runtime().kernel(spec.handle, *(max(n, 1) for n in key[2:]), device=device, align=align)
    return kernel


def strides_set(tensor, t, packed=False):
    if t.dim() == 4 or (t.dim() == 3 and not packed):  # lse is [batch, head, seq]
        tensor.stride_batch, tensor.stride_head, tensor.stride_seq = t.stride()[:3]
    elif t.dim() == 3:
        tensor.stride_seq, tensor.stride_head = t.stride()[:2]
    else:
        tensor.stride_head, tensor.stride_seq = t.stride()


_local = threading.local()  # the error of a thread's launches


class Launch:
    """All of a launch but its addresses, and the forms of its results."""

    def __init__(self, spec, which, tensors, inputs, grads, sizes, device, results):
        """tensors: {name in fagen_args: tensor}; grads: of the inputs, a tensor or None each."""
        rt, packed, q = specs.runtime(), spec.layout == "packed", tensors["query"]
        self.device, self.lse, self.results = device, spec.lse, results
        self.zeroed = packed  # rows behind the last entry are not written
        # Which results lie just as q, k and v do? To ask for memory by a tensor takes a third of the time.
        self.alike = [(t.shape, t.stride()) == form and not packed for t, form in zip((q, tensors["key"], tensors["value"]), results)]
        kernel = kernel_of(spec, device, 16 if aligned(*(t for n, t in tensors.items() if "lse" not in n)) else 2, sizes)
        args = abi.sized(abi.Args)
        args.batch, args.heads_q, args.heads_kv, args.seqlen_q, args.seqlen_k = sizes[:5]
        args.total_q, args.total_k = (sizes.rows_q, sizes.rows_k) if packed else (0, 0)
        for name, t in tensors.items():
            strides_set(getattr(args, name), t, packed)
        args.input_count = len(inputs)
        args.workspace_size = kernel.workspace_size(args)
        self.workspace, self.workspace_most = 0, args.workspace_size  # the library tells of the larger pass: run tries without
        named = (abi.Input * len(inputs))()
        self.names = [d.name.encode() for d in spec.inputs]  # kept alive
        for to, name, t, g in zip(named, self.names, inputs, grads):
            to.name, to.stride[:t.dim()] = name, t.stride()
            if g is not None:
                to.grad_stride[:g.dim()] = g.stride()
        self.no_grads = (None,) * len(inputs)
        self.words = c.c_uint64 * (ARGS_WORDS + INPUT_WORDS * len(inputs))
        self.template = bytes(args) + bytes(named)
        self.kernel, self.function = kernel.handle, (rt.lib.fagen_backward if which else rt.lib.fagen_forward)

    def fill(self, words, inputs, grads, lengths, rng):
        if rng is not None:
            words[RNG] = rng.data_ptr()
        if lengths is not EQUAL:
            for i in range(4):
                if lengths[i] is not None:
                    words[SEQLENS + i] = lengths[i].data_ptr()
        if inputs:
            words[INPUTS] = c.addressof(words) + 8 * ARGS_WORDS
            at = ARGS_WORDS
            for t, g in zip(inputs, grads):
                words[at + INPUT_DATA] = t.data_ptr()
                if g is not None:
                    words[at + INPUT_GRAD] = g.data_ptr()
                at += INPUT_WORDS

    def run(self, words, device):
        """The tensors live at least until the call returns; their memory is then the stream's, as PyTorch's allocator keeps it."""
        if self.workspace:
            workspace = workspace_of(self, device)
            words[WORKSPACE] = workspace.data_ptr()
        try:
            error = _local.error
        except AttributeError:
            error = _local.error = c.byref(abi.sized(abi.Error))
        if self.function(self.kernel, words, stream_of(self.device), error):
            said = error._obj
            if said.field == b"workspace" and not words[WORKSPACE] and self.workspace_most:
                self.workspace = self.workspace_most
                return self.run(words, device)
            raise abi.FagenError(said.message.decode(errors="replace").rstrip(), said.code, said.field.decode(errors="replace"))

    def forward(self, q, k, v, addresses, inputs=(), lengths=EQUAL, rng=None):
        """out and lse (None when the spec does not want it). addresses: of q, k and v."""
        device, lse = q.device, None
        out = torch.empty_like(q) if self.alike[0] else result(self.results[0], q.dtype, device, self.zeroed)
        words = self.words.from_buffer_copy(self.template)  # of this call alone: threads share the rest
        words[QUERY], words[KEY], words[VALUE] = addresses
        words[OUT] = out.data_ptr()
        if self.lse:
            lse = result(self.results[1], torch.float32, device, self.zeroed)
            words[LSE] = lse.data_ptr()
        if inputs or lengths is not EQUAL or rng is not None:
            self.fill(words, inputs, self.no_grads, lengths, rng)
        self.run(words, device)
        return out, lse


def device_of(t):
    return t.get_device()


# Of a device's index, without making a torch.cuda.Stream.
stream_of = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (lambda device: torch.cuda.current_stream(device).cuda_stream)


def addresses_of(q, k, v):
    return q.data_ptr(), k.data_ptr(), v.data_ptr()


def form_of(q, k, v, addresses):
    """All of q, k and v that a launch depends on: of their addresses, whether they are multiples of 16 bytes."""
    at_q, at_k, at_v = addresses
    return (q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride(), q.dtype, k.dtype, v.dtype, q.get_device(), k.get_device(), v.get_device(),
            (at_q | at_k | at_v) & 15)


def launch_key(q, k, v, addresses, inputs, lengths):
    """form_of, with lengths and inputs where there are any."""
    form = form_of(q, k, v, addresses)
    if lengths is EQUAL and not inputs:
        return form
    return (form, tuple([t if type(t) is int else t is not None and (t.shape, t.stride(), t.dtype, t.device) for t in lengths]),
            tuple([(t.shape, t.stride(), t.dtype, t.device) for t in inputs]))


def kept(found, key, value):
    """found[key], which is the value if there was none. Full, it is emptied."""
    if len(found) >= KEPT_MAX:
        found.clear()
    return found.setdefault(key, value)


def workspace_of(launch, device):
    return torch.empty(launch.workspace, dtype=torch.uint8, device=device)


def forward_launch(spec, q, k, v, addresses, inputs, lengths):
    key = launch_key(q, k, v, addresses, inputs, lengths)
    return spec.launches.get(key) or kept(spec.launches, key, forward_prepare(spec, q, k, v, inputs, lengths))


def forward_prepare(spec, q, k, v, inputs, lengths):
    sizes = check(spec, q, k, v, inputs, lengths)
    forms = result_like(spec, q, spec.d_v), lse_like(spec, q)
    out, lse = (torch.empty_strided(*form, dtype=q.dtype, device="meta") for form in forms)
    return Launch(spec, abi.FORWARD, {"query": q, "key": k, "value": v, "out": out, "lse": lse}, inputs, (None,) * len(inputs), sizes,
                  device_of(q), forms)


def backward(spec, dout, dlse, q, k, v, out, lse, inputs, lengths, rng, wanted):
    """dq, dk, dv, and a list of the gradients of the inputs: float32, or None where it is not wanted."""
    if dout.stride(-1) != 1:
        dout = dout.contiguous()
    if dlse is not None:
        dlse = dlse.to(torch.float32)
    key = (dout.stride(), out.stride(), lse.stride(), dlse is not None and dlse.stride(), (dout.data_ptr() | out.data_ptr()) & 15, *wanted,
           launch_key(q, k, v, addresses_of(q, k, v), inputs, lengths))
    launch, device = spec.launches.get(key), q.device
    forms = launch.results if launch else [result_like(spec, t, t.shape[-1]) for t in (q, k, v)]
    if launch and all(launch.alike):
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    else:
        dq, dk, dv = (result(form, q.dtype, device, spec.layout == "packed") for form in forms)
    grads = [torch.empty(t.shape, dtype=torch.float32, device=device) if w else None for t, w in zip(inputs, wanted)]
    if launch is None:
        sizes = check(spec, q, k, v, inputs, lengths)
        tensors = {"query": q, "key": k, "value": v, "out": out, "lse": lse, "dout": dout, "dquery": dq, "dkey": dk, "dvalue": dv}
        if dlse is not None:
            tensors["dlse"] = dlse
        launch = kept(spec.launches, key, Launch(spec, abi.BACKWARD, tensors, inputs, grads, sizes, device_of(q), forms))
    words = launch.words.from_buffer_copy(launch.template)
    launch.fill(words, inputs, grads, lengths, rng)
    for place, t in ((QUERY, q), (KEY, k), (VALUE, v), (OUT, out), (LSE, lse), (DOUT, dout), (DQUERY, dq), (DKEY, dk), (DVALUE, dv)):
        words[place] = t.data_ptr()
    if dlse is not None:
        words[DLSE] = dlse.data_ptr()
    launch.run(words, device)
    return dq, dk, dv, grads
