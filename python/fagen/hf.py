"""attn_implementation="fagen" for Hugging Face transformers (5 or later).

A model's mask arrives as a function of positions. Those that transformers builds from causal, sliding window, chunk, packed
documents and padding become an expression and vectors; any other is evaluated into a bool [batch, 1, seq_q, seq_k]."""
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from . import ops


class Mask(NamedTuple):
    """What attention layers get as attention_mask: an expression ("": all is seen) and the tensors that it reads."""
    expression: str
    inputs: Dict[str, Tensor]


def register(name: str = "fagen") -> None:
    """Makes attn_implementation=name known to transformers. May be called again."""
    from transformers import AttentionInterface, AttentionMaskInterface
    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, mask_of)


def mask_of(batch_size: int, q_length: int, kv_length: int, q_offset=0, kv_offset=0, mask_function=None, attention_mask: Optional[Tensor] = None,
            **kwargs: Any):
    """The mask interface of transformers: a Mask, or a bool tensor [batch, 1, seq_q, seq_k]."""
    from transformers import masking_utils as hf
    mask_function = hf.causal_mask_function if mask_function is None else mask_function
    aligned = not isinstance(q_offset, Tensor) and q_offset + q_length == kv_offset + kv_length
    inputs: Dict[str, Tensor] = {}
    if aligned:
        distance = "((q - sq) - (k - sk))"  # the last query stands at the last key, also in packed batches
    elif isinstance(q_offset, Tensor) or q_offset != kv_offset:
        distance = "(q + shift - k)"
        inputs["shift"] = torch.as_tensor(q_offset - kv_offset, dtype=torch.int32, device=kwargs.get("device"))
    else:
        distance = "(q - k)"
    terms = None
    if mask_function is hf.causal_mask_function:
        terms = [f"{distance} >= 0"]
    elif not torch.compiler.is_compiling():
        terms = terms_of(mask_function, distance, inputs, not isinstance(q_offset, Tensor) and not q_offset and not kv_offset, hf)
    if terms is None:
        kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return hf.sdpa_mask(batch_size, q_length, kv_length, q_offset, kv_offset, mask_function=mask_function, attention_mask=attention_mask, **kwargs)
    padding = hf.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, kv_offset:kv_offset + kv_length].to(torch.bool)
        if torch.compiler.is_compiling() or not padding.all():
            terms.append("keep[b, k] != 0")
            inputs["keep"] = padding
    return Mask(" && ".join(terms), inputs)


def terms_of(function, distance: str, inputs: Dict[str, Tensor], at_zero: bool, hf) -> Optional[List[str]]:
    """The conjuncts that a mask function of transformers means; None when it is none of those known. Tensors that they read
    join inputs; at_zero: positions count from 0."""
    if function is hf.causal_mask_function:
        return [f"{distance} >= 0"]
    if function is hf.bidirectional_mask_function:
        return []
    kind = getattr(function, "__qualname__", "").partition(".")[0]
    try:
        held = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__ or ())))
        if kind == "and_masks":
            parts = [terms_of(f, distance, inputs, at_zero, hf) for f in held["mask_functions"]]
            return None if None in parts else [t for p in parts for t in p]
        if kind == "sliding_window_overlay":
            return [f"{distance} < {int(held['sliding_window'])}"]
        if kind == "sliding_window_bidirectional_overlay":
            return [f"abs({distance}) <= {int(held['sliding_window'])}"]
        if kind == "packed_sequence_mask_function" and at_zero:
            inputs["doc"] = held["packed_sequence_mask"].to(torch.int32)
            return ["doc[b, q] == doc[b, k]"]
        if kind == "chunked_overlay" and at_zero:
            inputs["left"] = held["left_padding"].to(torch.int32)
            size = int(held["chunk_size"])
            return [f"(k - left[b]) / {size} == (q - left[b]) / {size}"]
    except (AttributeError, KeyError):
        pass  # another transformers: its functions hold other things
    return None


def forward(module, query: Tensor, key: Tensor, value: Tensor, attention_mask, dropout: float = 0.0, scaling: Optional[float] = None,
            sliding_window: Optional[int] = None, softcap: Optional[float] = None, is_causal: Optional[bool] = None, s_aux: Optional[Tensor] = None,
            position_bias: Optional[Tensor] = None, cu_seq_lens_q: Optional[Tensor] = None, cu_seq_lens_k: Optional[Tensor] = None,
            max_length_q: int = 0, max_length_k: int = 0, **kwargs: Any) -> Tuple[Tensor, None]:
    """The attention interface of transformers: query [batch, heads, seq_q, dim] to [batch, seq_q, heads, dim]."""
    mask, score, inputs = None, "s", {}
    if softcap is not None:
        score = f"{float(softcap)} * tanh(s / {float(softcap)})"
    if isinstance(attention_mask, Mask):
        mask, inputs = attention_mask.expression or None, dict(attention_mask.inputs)
    elif attention_mask is not None:
        mask, added, inputs = ops.mask_kind(attention_mask, (query.shape[0], query.shape[1], query.shape[2], key.shape[2]))
        score = added.replace("s", score, 1) if added else score
    elif is_causal if is_causal is not None else getattr(module, "is_causal", True):
        mask = "causal" if sliding_window is None else f"causal && window({int(sliding_window) - 1}, unbounded)"
    if position_bias is not None:
        _, added, read = ops.mask_kind(position_bias, (query.shape[0], query.shape[1], query.shape[2], key.shape[2]), "position_bias")
        score, inputs = added.replace("s", score, 1), inputs | read
    if s_aux is not None:
        inputs["sink"] = s_aux.float()
    given = dict(mask=mask, score=None if score == "s" else score, dropout=dropout, scale=scaling, **inputs)
    if cu_seq_lens_q is None or "doc" in inputs:
        return ops.flex(query, key, value, **given).transpose(1, 2), None
    packed = (t[0].transpose(0, 1) for t in (query, key, value))
    out = ops.flex(*packed, cu_seqlens_q=cu_seq_lens_q, cu_seqlens_k=cu_seq_lens_k, max_seqlen_q=max_length_q, max_seqlen_k=max_length_k, **given)
    return out.unsqueeze(0), None
