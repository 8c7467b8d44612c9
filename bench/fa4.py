"""FlashAttention-4 (PyPI flash-attn-4, CuTe) as a contender of bench/peers.py and bench/flex.py. Where it is not installed its
columns are left out. Masks and scores are written in CuTe here, as its users must; block lists of both directions and the
derivatives of scores too. All of that is outside the timing."""
import functools
import importlib.util

import torch

import report

BLOCK = 128  # of its lists, rows and keys


def found():
    return importlib.util.find_spec("flash_attn") is not None and importlib.util.find_spec("cutlass") is not None


@functools.cache
def library():
    """Imported late: it takes ten seconds."""
    from flash_attn.cute import interface
    return interface


class Contender:
    """Dense attention, or with the options of flash_attn_func. Data are [batch, head, seq, dim], given to it as views."""

    def __init__(self, data, **options):
        q, k, v, dout = (t.transpose(1, 2) for t in data)
        inputs = [t.detach().requires_grad_() for t in (q, k, v)]
        try:
            attend = library().flash_attn_func
            forward = lambda: attend(*inputs, return_lse=True, **options)[0]
            both = lambda: torch.autograd.grad(forward(), inputs, dout)
            both()
            self.peak = {"forward": report.peak(forward), "backward": report.peak(both)}
            self.out = forward()
        except torch.OutOfMemoryError:
            raise
        except Exception as e:  # of many kinds, from a compiler in Python
            raise RuntimeError(f"FlashAttention-4: {e}") from e
        grads = lambda: torch.autograd.grad(self.out, inputs, dout, retain_graph=True)
        self.run = {"forward": forward, "backward": grads}

    def results(self):
        return [t.transpose(1, 2) for t in (self.out.detach(), *self.run["backward"]())]

    def memory(self):
        return self.peak


def block_lists(visible):
    """The lists of both directions for [batch, head, row, key] of bools, batch and head of one or all."""
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch
    b, h, rows, keys = visible.shape
    cells = visible.reshape(b, h, rows // BLOCK, BLOCK, keys // BLOCK, BLOCK)
    some, full = cells.any(5).any(3), cells.all(5).all(3)

    def listed(partial, full):
        lists = [(kept.sum(-1).int(), torch.argsort(~kept, dim=-1, stable=True).int()) for kept in (partial, full)]
        return BlockSparseTensorsTorch(*lists[0], *lists[1], block_size=(BLOCK, BLOCK))

    partial = some & ~full
    return {"block_sparse_tensors": listed(partial, full),
            "block_sparse_tensors_bwd": listed(partial.transpose(2, 3).contiguous(), full.transpose(2, 3).contiguous())}


def visible_of(mask, batch, seq):
    """[batch, 1, seq, seq] of what a mask of FlexAttention, the same for all heads, keeps."""
    at = torch.arange(seq, device="cuda")
    return torch.stack([mask(b, 0, at[:, None], at[None, :]).expand(seq, seq) for b in range(batch)])[:, None]


@functools.cache
def functions():
    """Masks and scores by name."""
    import cutlass
    import cutlass.cute as cute
    from flash_attn.cute.utils import scalar_to_ssa

    # The names of the arguments are part of its interface.
    @cute.jit
    def prefix512(b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
        return (kv_idx < 512) | (kv_idx <= q_idx)

    @cute.jit
    def document_causal(b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
        of_q = scalar_to_ssa(aux_tensors[0][b[0], q_idx[0]], cutlass.Int32)
        of_k = scalar_to_ssa(aux_tensors[0][b[0], kv_idx[0]], cutlass.Int32)
        return (kv_idx <= q_idx) & (of_q == of_k)

    @cute.jit
    def alibi(s, b, h, q_idx, kv_idx, seqlen_info, aux_tensors):  # slopes of 16 heads
        apart = (q_idx - kv_idx).to(cutlass.Float32)
        return s - cute.math.exp2((h + 1).to(cutlass.Float32) * -0.5) * cute.where(apart < 0, -apart, apart)

    @cute.jit
    def relative(s, b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
        return s + (q_idx - kv_idx).to(cutlass.Float32)

    @cute.jit
    def unchanged(grad, s, b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
        return grad

    return locals()


def options(variant, batch, seq):
    """Of flash_attn_func for a variant of bench/flex.py; None: there is no way to write it."""
    native = {"full": {}, "causal": {"causal": True}, "window1024": {"window_size": (1023, 0)}, "softcap30": {"softcap": 30.0},
              "softcap30_causal": {"softcap": 30.0, "causal": True}}
    if variant.name in native:
        return native[variant.name]
    if variant.name == "block25":
        return block_lists(visible_of(variant.mask, 1, seq))
    written = functions().get(variant.name)
    if written is None:
        return None
    if variant.mask is None:
        return {"score_mod": written, "score_mod_bwd": functions()["unchanged"]}
    aux = {"aux_tensors": list(variant.inputs.values())} if variant.inputs else {}
    return {"mask_mod": written, **aux, **block_lists(visible_of(variant.mask, batch if variant.per_batch else 1, seq))}
