"""fagen.attention, fagen.sdpa and fagen.flex: PyTorch's side of a launch."""
import json
import os
from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import launch, spec as specs
from .launch import DTYPE_NAMES, EQUAL, Lengths

SpecLike = Union[str, "os.PathLike[str]", Dict[str, Any]]

# ---- the operator: what torch.compile and dispatch modes see ----


@torch.library.custom_op("fagen::forward", mutates_args=())
def forward_op(q: Tensor, k: Tensor, v: Tensor, spec: str, inputs: List[Tensor], seqlens_q: Optional[Tensor], seqlens_k: Optional[Tensor],
               cu_seqlens_q: Optional[Tensor], cu_seqlens_k: Optional[Tensor], max_q: int, max_k: int, rng: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
    s = specs.get(spec)
    inputs, lengths = tuple(inputs), lengths_of(seqlens_q, seqlens_k, cu_seqlens_q, cu_seqlens_k, max_q, max_k)
    at = launch.addresses_of(q, k, v)
    out, lse = launch.forward_launch(s, q, k, v, at, inputs, lengths).forward(q, k, v, at, inputs, lengths, rng)
    return out, q.new_empty(0, dtype=torch.float32) if lse is None else lse


@forward_op.register_fake
def _(q, k, v, spec, inputs, seqlens_q, seqlens_k, cu_seqlens_q, cu_seqlens_k, max_q, max_k, rng):
    s = specs.get(spec)
    launch.check(s, q, k, v, inputs, lengths_of(seqlens_q, seqlens_k, cu_seqlens_q, cu_seqlens_k, max_q, max_k))
    out = torch.empty_strided(*launch.result_like(s, q, s.d_v), dtype=q.dtype, device=q.device)
    form = launch.lse_like(s, q) if s.lse else ((0,), (1,))
    return out, torch.empty_strided(*form, dtype=torch.float32, device=q.device)


@torch.library.custom_op("fagen::backward", mutates_args=())
def backward_op(dout: Tensor, dlse: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, spec: str, inputs: List[Tensor],
                seqlens_q: Optional[Tensor], seqlens_k: Optional[Tensor], cu_seqlens_q: Optional[Tensor], cu_seqlens_k: Optional[Tensor],
                max_q: int, max_k: int, rng: Optional[Tensor]) -> List[Tensor]:
    s = specs.get(spec)
    lengths = lengths_of(seqlens_q, seqlens_k, cu_seqlens_q, cu_seqlens_k, max_q, max_k)
    *grads, of_inputs = launch.backward(s, dout, dlse, q, k, v, out, lse, tuple(inputs), lengths, rng, s.grads)
    return grads + [g for g in of_inputs if g is not None]


@backward_op.register_fake
def _(dout, dlse, q, k, v, out, lse, spec, inputs, seqlens_q, seqlens_k, cu_seqlens_q, cu_seqlens_k, max_q, max_k, rng):
    s = specs.get(spec)
    grads = [torch.empty_strided(*launch.result_like(s, t, t.shape[-1]), dtype=t.dtype, device=t.device) for t in (q, k, v)]
    return grads + [torch.empty(t.shape, dtype=torch.float32, device=t.device) for t, g in zip(inputs, s.grads) if g]


def _save(ctx, inputs, output):
    q, k, v, ctx.spec, tensors, *lengths, rng = inputs
    ctx.count, ctx.longest = len(tensors), lengths[4:]
    ctx.save_for_backward(q, k, v, *output, rng, *lengths[:4], *tensors)
    ctx.set_materialize_grads(False)


def _gradients(ctx, dout, dlse):
    q, k, v, out, lse, rng, *rest = ctx.saved_tensors
    lengths, inputs = rest[:4], rest[4:]
    s = specs.get(ctx.spec)
    if not s.backward:
        raise no_backward(s)
    dq, dk, dv, *grads = backward_op(torch.zeros_like(out) if dout is None else dout, dlse, q, k, v, out, lse, ctx.spec, inputs, *lengths, *ctx.longest, rng)
    grads = iter(grads)
    return dq, dk, dv, None, [next(grads).to(t.dtype) if g else None for t, g in zip(inputs, s.grads)], *(None,) * 7


forward_op.register_autograd(_gradients, setup_context=_save)


def lengths_of(seqlens_q, seqlens_k, cu_seqlens_q, cu_seqlens_k, max_q, max_k):
    if seqlens_q is None and seqlens_k is None and cu_seqlens_q is None and cu_seqlens_k is None and not max_q and not max_k:
        return EQUAL
    return Lengths(seqlens_q, seqlens_k, cu_seqlens_q, cu_seqlens_k, max_q, max_k)


def no_backward(spec):
    return ValueError("a gradient is asked for, but the spec has no backward pass: write passes: [forward, backward]")


# ---- the same for plain tensors: an operator with an autograd registration takes ten times as long to call ----


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, q, k, v, *inputs):
        spec, prepared, addresses, lengths, rng, return_lse = call
        out, lse = prepared.forward(q, k, v, addresses, inputs, lengths, rng)
        ctx.called = spec, lengths is not EQUAL and lengths[4:]
        if lengths is EQUAL and not inputs:
            ctx.save_for_backward(q, k, v, out, lse, rng)
        else:
            ctx.save_for_backward(q, k, v, out, lse, rng, *(() if lengths is EQUAL else lengths[:4]), *inputs)
        if not return_lse:  # of one result there is always a gradient
            return out
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse=None):
        # Gradients are enabled here where the caller wants a graph of them, which then says that there is none: that costs 9 us to set up.
        return (_differentiated_once if _grad_enabled() else _differentiated)(ctx, dout, dlse)


def _differentiated(ctx, dout, dlse):
    spec, longest = ctx.called
    q, k, v, out, lse, rng, *rest = ctx.saved_tensors
    lengths, inputs = (Lengths(*rest[:4], *longest), rest[4:]) if longest else (EQUAL, rest)
    wanted = ctx.needs_input_grad[4:]
    dq, dk, dv, grads = launch.backward(spec, torch.zeros_like(out) if dout is None else dout, dlse, q, k, v, out, lse, inputs, lengths, rng, wanted)
    return None, dq, dk, dv, *(g if g is None else g.to(t.dtype) for t, g in zip(inputs, grads))


_differentiated_once = once_differentiable(_differentiated)


# Function.apply looks for functorch's tensors first, for 4 us: plain has seen that there are none.
_apply = super(torch.autograd.Function, _Attention).apply
_modes, _transforms, _grad_enabled = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active, torch.is_grad_enabled


def plain(q):
    """No subclass, dispatch mode or functorch transform (which operators refuse) is in the way."""
    return type(q) is Tensor and not _modes() and not _transforms()


def attend(s, q, k, v, inputs, lengths, return_lse):
    if q.stride(-1) != 1:
        q = q.contiguous()
    if k.stride(-1) != 1:
        k = k.contiguous()
    if v.stride(-1) != 1:
        v = v.contiguous()
    grad = needs_grad(q, k, v, inputs)
    if grad and not s.backward:
        raise no_backward(s)
    if return_lse and not s.lse:
        raise ValueError("return_lse is true, but the spec does not write lse: write outputs: [out, lse]")
    if plain(q):
        at = launch.addresses_of(q, k, v)
        return computed(s, launch.forward_launch(s, q, k, v, at, inputs, lengths), q, k, v, at, inputs, lengths, return_lse, grad)
    out, lse = forward_op(q, k, v, s.source, list(inputs), *lengths, drawn(q) if s.dropout else None)
    return (out, lse) if return_lse else out


def computed(s, prepared, q, k, v, addresses, inputs, lengths, return_lse, grad):
    """The results for plain tensors."""
    rng = drawn(q) if s.dropout else None
    if grad:
        return _apply((s, prepared, addresses, lengths, rng, return_lse), q, k, v, *inputs)
    out, lse = prepared.forward(q, k, v, addresses, inputs, lengths, rng)
    return (out, lse) if return_lse else out


# ---- a call that went well, repeated ----

# What was asked for and the form of plain q, k and v, without inputs and lengths: to the spec and the prepared launch. To find
# and check these anew takes as long as all the rest of a call.
_calls: Dict[Any, Tuple[specs.Spec, launch.Launch]] = {}


def call(asked, find, args, q, k, v, inputs, lengths, return_lse):
    """The path of every call. asked: all that is asked for but the arguments here; find(q, k, v, *args): the spec that it means."""
    key = None
    # plain(), needs_grad() and addresses_of(), written out: a twentieth of a call.
    if lengths is EQUAL and not inputs and type(q) is Tensor and not _modes() and not _transforms():
        grad = _grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
        at = q.data_ptr(), k.data_ptr(), v.data_ptr()
        key = asked, return_lse, grad, launch.form_of(q, k, v, at)
        known = _calls.get(key)
        if known is not None:
            s, prepared = known
            return computed(s, prepared, q, k, v, at, (), EQUAL, return_lse, grad)
    q, k, v = autocast(q, k, v)
    s = find(q, k, v, *args)
    results = attend(s, q, k, v, inputs_of(s, q, k, lengths, inputs), lengths, return_lse)
    prepared = s.launches.get(key[3]) if key else None  # none when autocast or contiguous() made other tensors of q, k or v
    if prepared is not None:
        launch.kept(_calls, key, (s, prepared))
    return results


def drawn(q):
    """What a dropout is made from."""
    return torch.randint(0, 1 << 32, (2,), dtype=torch.int64, device=q.device)


def autocast(q, k, v):
    """As torch.autocast converts the operands of scaled_dot_product_attention."""
    if q.dtype == torch.float32 and torch.is_autocast_enabled(q.device.type):
        to = torch.get_autocast_dtype(q.device.type)
        return q.to(to), k.to(to), v.to(to)
    return q, k, v


def needs_grad(q, k, v, inputs):
    return _grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or (len(inputs) > 0 and any(t.requires_grad for t in inputs)))


def inputs_of(s, q, k, lengths, given):
    """The spec's inputs in its order, broadcast to their shapes."""
    if not s.inputs and not given:
        return ()
    names = {d.name for d in s.inputs}
    if names != given.keys():
        declared = "; ".join(map(str, s.inputs)) or "none"
        wrong = sorted(given.keys() - names) or sorted(names - given.keys())
        raise TypeError(f"{wrong[0]} is {'no input of the spec' if given.keys() - names else 'missing'}; its inputs: {declared}")
    launch.check_lengths(s, q, k, lengths)
    sizes, tensors = launch.sizes_of(s, q, k, lengths), []
    for d in s.inputs:
        t = given[d.name]
        if not isinstance(t, Tensor):
            raise TypeError(f"{d.name} must be a tensor on {q.device}: {d}")
        if t.dtype == torch.bool and d.dtype == "u8":
            t = t.view(torch.uint8)
        if t.requires_grad and torch.is_grad_enabled() and not d.grad:
            raise ValueError(f"{d.name} requires a gradient, but the spec does not compute it: write grad: true at this input, or pass {d.name}.detach()")
        shape = launch.input_shape(s, d, sizes)
        if tuple(t.shape) != shape and t.dim() <= len(shape) and all(n in (1, m) for n, m in zip(reversed(t.shape), reversed(shape))):
            t = t.expand(shape)
        tensors.append(t)
    return tuple(tensors)


def said(q, k, v, return_lse, inputs):
    """What tensors say of a spec: dtype, both head dims, kv_group, are there gradients, is lse wanted."""
    grad, shape = needs_grad(q, k, v, inputs), q.shape
    return q.dtype, int(shape[-1]), int(v.shape[-1]), int(shape[1]) // (int(k.shape[1]) or 1), grad, grad or return_lse


def keys_said(dtype, qk, v, group, grad, lse):
    return {"head_dim": {"qk": qk, "v": v}, "dtype": DTYPE_NAMES.get(dtype, "bf16"), "kv_group": max(group, 1),
            "passes": ["forward", "backward"] if grad else ["forward"], "outputs": ["out", "lse"] if lse else ["out"]}


_found: Dict[Any, specs.Spec] = {}  # by what was written and what the tensors said


def spec_of(q, k, v, spec, return_lse, given):
    if type(spec) is str:
        return specs.get(spec)
    if not isinstance(spec, dict):
        return specs.get(os.fspath(spec))
    tensors = said(q, k, v, return_lse, given.values())
    key = (repr(spec), tensors)
    found = _found.get(key)
    if found is None:
        found = _found[key] = specs.get(json.dumps(keys_said(*tensors) | spec))
    return found


# ---- the interface ----


@torch.compiler.allow_in_graph
def attention(q: Tensor, k: Tensor, v: Tensor, spec: SpecLike, *, return_lse: bool = False, seqlens_q: Optional[Tensor] = None,
              seqlens_k: Optional[Tensor] = None, cu_seqlens_q: Optional[Tensor] = None, cu_seqlens_k: Optional[Tensor] = None,
              max_seqlen_q: int = 0, max_seqlen_k: int = 0, **inputs: Tensor) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """The attention that a spec says, differentiable.

    q: [batch, heads, seq_q, qk], k: [batch, heads_kv, seq_k, qk], v: [batch, heads_kv, seq_k, v], bf16 or fp16, any strides;
    with `layout: packed` [total, heads, dim]. heads is a multiple of heads_kv.
    spec: a name of the library ("causal_d64"), the path of a file, YAML text, or a dict, of which head_dim, dtype, kv_group,
    passes and outputs may be left out: the tensors say them. Files are read once in a process.
    seqlens_*: int32 [batch], of padded and packed layouts. cu_seqlens_*: int32 [batch + 1], packed. max_seqlen_*: the longest
    entry, if known.
    inputs: a tensor for each input of the spec, by name, of the declared dtype and shape; dimensions of size 1 or missing in
    front are broadcast.

    Returns out [batch, heads, seq_q, v] (packed [total, heads, v]), which lies in memory as q does, and with return_lse also
    lse, float32 [batch, heads, seq_q] (packed [heads, total]). Dropout draws from PyTorch's generator of the device."""
    lengths = lengths_of(seqlens_q, seqlens_k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    asked = spec if type(spec) is str else (repr(spec),) if isinstance(spec, dict) else os.fspath(spec)
    return call(asked, spec_of, (spec, return_lse, inputs), q, k, v, inputs, lengths, return_lse)


@torch.compiler.allow_in_graph
def flex(q: Tensor, k: Tensor, v: Tensor, mask: Optional[str] = None, score: Optional[str] = None, *, dropout: float = 0.0,
         scale: Optional[float] = None, blocks: Optional[Dict[str, Any]] = None, deterministic: bool = False, return_lse: bool = False,
         seqlens_q: Optional[Tensor] = None, seqlens_k: Optional[Tensor] = None, cu_seqlens_q: Optional[Tensor] = None,
         cu_seqlens_k: Optional[Tensor] = None, max_seqlen_q: int = 0, max_seqlen_k: int = 0, **inputs: Tensor) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """Attention whose mask and score are expressions: flex(q, k, v, mask="k <= q && q - k < w", score="s - slope[h] * abs(q - k)",
    slope=slope). docs/language.md is the language.

    q, k, v, seqlens, cu_seqlens, result: as in attention; lengths given make the batch padded, or packed.
    inputs: the tensors that the expressions read. A dimension that is read at exactly b, h, q or k is the batch, the heads or a
    length (and may have size 1, which is broadcast); others are as large as the tensor. A tensor that requires a gradient gets
    one. `sink` ([heads]) is a learned logit of each head in the softmax.
    blocks: a block layout as a spec has it, {"size": 64, "keep": "..."}."""
    lengths = lengths_of(seqlens_q, seqlens_k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    layout = "dense" if lengths is EQUAL else "padded" if cu_seqlens_q is None else "packed"
    return call((mask, score, dropout, scale, blocks and repr(blocks), deterministic), expressed,
                (mask, score, dropout, scale, blocks, deterministic, layout, return_lse, inputs), q, k, v, inputs, lengths, return_lse)


def expressed(q, k, v, mask, score, dropout, scale, blocks, deterministic, layout, return_lse, inputs):
    for name, t in inputs.items():
        if not isinstance(t, Tensor) or t.dtype != torch.bool and t.dtype not in DTYPE_NAMES:
            found = t.dtype if isinstance(t, Tensor) else type(t).__name__
            raise TypeError(f"{name} is {found}; want a tensor of float32, bfloat16, float16, int32, uint8 or bool: numbers go into the expression")
    expressions, read = tuple([e for e in (mask, score) if e]), []
    for name, t in inputs.items():
        dims = specs.dims_read(expressions, name, t.dim())
        if dims is not None:
            dims = tuple(n or int(size) for n, size in zip(dims, t.shape))
        read.append((name, DTYPE_NAMES.get(t.dtype, "u8"), dims, t.requires_grad and torch.is_grad_enabled()))
    tensors = said(q, k, v, return_lse, inputs.values())
    key = (mask, score, tuple(read), tensors, layout, dropout, scale, deterministic, blocks and repr(blocks))
    found = _found.get(key)
    if found is None:
        found = _found[key] = specs.written(mask, score, tuple(read), keys_said(*tensors) | {
            "layout": layout, "dropout": dropout, "blocks": blocks or "none", "sink": "sink" in inputs, "deterministic": deterministic,
            "softmax_scale": "auto" if scale is None else scale})
    return found


@torch.compiler.allow_in_graph
def sdpa(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None, dropout_p: float = 0.0, is_causal: bool = False,
         scale: Optional[float] = None, enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention by fagen: query [batch, heads, seq_q, qk], key [batch, heads_kv, seq_k, qk],
    value [batch, heads_kv, seq_k, v], or without batch; bf16 or fp16.

    attn_mask: bool (true: seen) or a float that is added, of any shape that broadcasts to [batch, heads, seq_q, seq_k], or a
    CausalBias of torch.nn.attention.bias. is_causal aligns the first query with the first key, as PyTorch does. Rows that see
    nothing are 0. Dropout is done in steps of 1/256."""
    if query.dim() == 3:
        mask = attn_mask if attn_mask is None or attn_mask.dim() < 3 else attn_mask.unsqueeze(0)
        return sdpa(*(t.unsqueeze(0) for t in (query, key, value)), mask, dropout_p, is_causal, scale, enable_gqa).squeeze(0)
    mask, score, inputs = "causal_top_left" if is_causal else None, None, {}
    if attn_mask is not None:
        sdpa_check(query, key, dropout_p, enable_gqa)
        if is_causal:
            raise ValueError("attn_mask is given and is_causal is true: one of them")
        mask, score, inputs = mask_kind(attn_mask, (query.shape[0], query.shape[1], query.shape[2], key.shape[2]))
    return call((mask, score, dropout_p, scale, enable_gqa), sdpa_spec, (mask, score, dropout_p, scale, enable_gqa, inputs), query, key, value,
                inputs, EQUAL, False)


def sdpa_spec(q, k, v, mask, score, dropout_p, scale, enable_gqa, inputs):
    sdpa_check(q, k, dropout_p, enable_gqa)
    return expressed(q, k, v, mask, score, dropout_p, scale, None, False, "dense", False, inputs)


def sdpa_check(query, key, dropout_p, enable_gqa):
    if query.dim() != 4:
        raise ValueError(f"query is {list(query.shape)}; want [batch, heads, seq, dim] or [heads, seq, dim]")
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p is {dropout_p}; want a number from 0 to below 1")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(f"query has {query.shape[1]} heads and key {key.shape[1]}: pass enable_gqa=True")


def mask_kind(m, full, name="attn"):
    """mask, score and inputs of a spec that mean a mask tensor, which is called so there."""
    from torch.nn.attention.bias import CausalBias, CausalVariant
    if isinstance(m, CausalBias):
        return "causal" if m.variant == CausalVariant.LOWER_RIGHT else "causal_top_left", None, {}
    if m.dtype not in (torch.bool, torch.float32, torch.bfloat16, torch.float16):
        raise TypeError(f"attn_mask is {m.dtype}; want bool, float32, bfloat16 or float16. Other masks are expressions: fagen.flex(q, k, v, mask=\"...\")")
    if m.dim() > 4 or any(n not in (1, f) for n, f in zip(reversed(m.shape), reversed(full))):
        raise ValueError(f"attn_mask is {list(m.shape)}, which does not broadcast to [batch, heads, seq_q, seq_k]: here {list(full)}")
    m = m.expand(*(1,) * (4 - m.dim()), *m.shape)
    names = "bhqk"
    for d in (3, 2, 1, 0):  # what does not vary is not read
        if m.shape[d] == 1 or m.stride(d) == 0:
            m, names = m.select(d, 0), names[:d] + names[d + 1:]
    at = f"{name}[{', '.join(names)}]" if names else name
    return (f"{at} != 0", None, {name: m}) if m.dtype == torch.bool else (None, f"s + {at}", {name: m})
