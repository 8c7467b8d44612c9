"""What the masks, scores and block layouts of presets read, made up for the benchmarks: the same data each time, whatever the build."""
import torch

import fagen_ctypes as fagen

CHANCE = 0.25  # of a block to be kept


def uniform(shape, seed=1):
    return torch.rand(shape, generator=torch.Generator(device="cuda").manual_seed(seed), device="cuda")


def documents(shape):
    """Numbers of packed documents of about a thousand tokens."""
    return (uniform(shape) < 1 / 1024).cumsum(-1).to(torch.int32)


def slopes(heads):
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1, device="cuda") / heads)


def blocks_kept(shape):
    """[rows, keys] of a block layout, for all heads: the same for a bitmap, counts and lists."""
    return uniform((shape[-1], shape[-1])) < CHANCE


INPUTS = {  # of given meaning, by name, to be expanded; others are random normal numbers
    "doc": lambda shape, seq: documents(shape),
    "kv_len": lambda shape, seq: torch.full(shape, seq * 3 // 4, dtype=torch.int32, device="cuda"),
    "slope": lambda shape, seq: slopes(shape[0]),
    "blocks": lambda shape, seq: blocks_kept(shape),
    "block_count": lambda shape, seq: blocks_kept(shape).sum(1, dtype=torch.int32).expand(shape).contiguous(),
    "block_index": lambda shape, seq: blocks_kept(shape).int().argsort(dim=1, descending=True, stable=True).int().expand(shape).contiguous(),
    "bias": lambda shape, seq: torch.randn((1, 1, *shape[2:]), device="cuda"),  # one for all batch entries and heads
}


def made(infos, info, case):
    """{name: tensor} of what the spec of a case of bench/ab.py reads, as its runtime describes it."""
    blocks = lambda size: -(-case.seq // max(size, 1))
    sizes = {"batch": case.batch, "heads": case.heads, "heads_kv": case.heads_kv, "seq_q": case.seq, "seq_k": case.seq,
             "blocks_q": blocks(info.block_q), "blocks_k": blocks(info.block_k)}
    dtypes = dict(zip(fagen.DTYPES, (torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.uint8)))
    torch.manual_seed(2)
    tensors = {}
    for i in infos:
        shape = tuple(sizes.get(fagen.DIMS[i.dim[n]], i.size[n]) for n in range(i.dims))
        make = INPUTS.get(i.name.decode(), lambda shape, seq: torch.randn(shape, device="cuda"))
        tensors[i.name.decode()] = make(shape, case.seq).to(dtypes[fagen.DTYPES[i.dtype]]).expand(shape)
    return tensors


def visited(case, tile, tensors, info):
    """The share of cells in tiles that must be visited: as planned, or counted where data rule it."""
    s, m, n = case.seq, tile["tile_m"], tile["tile_n"]
    at = torch.arange(s, device="cuda")
    causal = (at[:, None] >= at[None, :]) | ("causal" not in case.keys)
    if "doc" in tensors:
        masks = [causal & (doc[:, None] == doc[None, :]) for doc in tensors["doc"]]
    elif "kv_len" in tensors:
        masks = [causal & (at[None, :] < length) for length in tensors["kv_len"]]
    elif "blocks" in tensors or "block_index" in tensors:
        kept = blocks_kept(tensors["blocks" if "blocks" in tensors else "block_index"].shape)
        masks = [causal & kept[at[:, None] // info.block_q, at[None, :] // info.block_k]]
    else:
        return tile["visited"]
    tiles = lambda mask: torch.nn.functional.pad(mask, (0, -s % n, 0, -s % m)).view(-(-s // m), m, -(-s // n), n).any(3).any(1)
    return sum(tiles(mask).sum().item() for mask in masks) / len(masks) * m * n / s / s
