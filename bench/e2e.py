"""Training steps of whole models on one GPU: eager attention, PyTorch's scaled_dot_product_attention and fagen, in bf16 with fused
AdamW; block-sparse encoders beside dense SDPA and compiled FlexAttention. Random weights and tokens: time and memory do not
depend on them. Then what one call costs the host, and how long a new variant takes. `make bench-e2e` runs it."""
import argparse
import gc
import os
import pathlib
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError:
    print("bench: PyTorch is missing. Install torch (a CUDA build) and run `make bench-e2e` again.", file=sys.stderr)
    sys.exit(3)

import fagen
import report
from fagen import launch, ops, spec as specs

BLOCK = 128
# Blocks near the diagonal, a global one, and every 16th column.
KEEP = {"any": [{"local": {"left": 2, "right": 2}}, {"global": {"n": 1}}, {"strided": {"step": 16}}]}


class Model:
    """What is timed. blocks: the block-sparse layout instead of dense attention."""

    def __init__(self, name, layers, width, heads, vocab, seq, batch, dropout=0.0, causal=False, head="tokens", blocks=False):
        self.name, self.layers, self.width, self.heads, self.vocab, self.seq, self.batch = name, layers, width, heads, vocab, seq, batch
        self.dropout, self.causal, self.head, self.blocks = dropout, causal, head, blocks
        self.contenders = ("eager", "SDPA", "fagen") if not blocks else ("SDPA, dense", "Flex", "fagen")


def models():
    gpt2 = lambda seq, batch, p: Model(f"GPT-2 124M, {seq} x {batch}" + (f", dropout {p}" if p else ""), 12, 768, 12, 50257, seq, batch, p, causal=True)
    encoder = lambda name, seq, batch, **kw: Model(f"{name}, {seq} x {batch}", 4, 256, 4, 256, seq, batch, head="class", **kw)
    return [gpt2(1024, 16, 0.0), gpt2(1024, 16, 0.1), gpt2(4096, 4, 0.0), gpt2(4096, 4, 0.1),
            Model("BERT-large, 512 x 32, dropout 0.1", 24, 1024, 16, 30522, 512, 32, 0.1, head="masked"),
            encoder("Long-Range-Arena encoder", 4096, 16),
            encoder("block-sparse encoder", 16384, 4, blocks=True), encoder("block-sparse encoder", 65536, 1, blocks=True)]


# ---- attention, as the contenders compute it: [batch, heads, seq, dim] in and out ----

def eager(m, device):
    hidden = torch.ones(m.seq, m.seq, dtype=torch.bool, device=device).triu(1) if m.causal else None

    def attend(q, k, v):
        scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
        if hidden is not None:
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        return F.dropout(scores.softmax(3), m.dropout) @ v
    return attend


def flex(m):
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    q, k = torch.arange(m.seq // BLOCK, device="cuda")[:, None], torch.arange(m.seq // BLOCK, device="cuda")
    kept = ((q - k).abs() <= 2) | (q < 1) | (k < 1) | (k % 16 == 15)
    count = kept.sum(1, dtype=torch.int32)[None, None]  # blocks that are all visible, the kept ones first
    order = kept.int().argsort(dim=1, descending=True, stable=True).int()[None, None]
    mask = BlockMask.from_kv_blocks(torch.zeros_like(count), order, count, order, BLOCK_SIZE=BLOCK, seq_lengths=(m.seq, m.seq))
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


def attention(name, m, device="cuda"):
    if name == "eager":
        return eager(m, device)
    if name == "Flex":
        return flex(m)
    if name == "fagen" and m.blocks:
        return lambda q, k, v: fagen.flex(q, k, v, blocks={"size": BLOCK, "keep": KEEP})
    sdpa = fagen.sdpa if name == "fagen" else F.scaled_dot_product_attention
    return lambda q, k, v: sdpa(q, k, v, dropout_p=m.dropout, is_causal=m.causal)


# ---- models ----

class Block(nn.Module):
    def __init__(self, m, attend):
        super().__init__()
        w = m.width
        self.heads, self.attend = m.heads, attend
        self.norm1, self.qkv, self.project = nn.LayerNorm(w), nn.Linear(w, 3 * w), nn.Linear(w, w)
        self.norm2, self.widen, self.narrow = nn.LayerNorm(w), nn.Linear(w, 4 * w), nn.Linear(4 * w, w)

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = (t.transpose(1, 2) for t in self.qkv(self.norm1(x)).view(b, s, 3, self.heads, w // self.heads).unbind(2))
        x = x + self.project(self.attend(q, k, v).transpose(1, 2).reshape(b, s, w))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x)), approximate="tanh"))


class Net(nn.Module):
    """head "tokens": a loss over all tokens; "masked": over 15% of them; "class": ten classes of the mean."""

    def __init__(self, m, attend):
        super().__init__()
        self.m = m
        self.tokens, self.places = nn.Embedding(m.vocab, m.width), nn.Embedding(m.seq, m.width)
        self.blocks = nn.ModuleList(Block(m, attend) for _ in range(m.layers))
        self.norm = nn.LayerNorm(m.width)
        self.out = nn.Linear(m.width, 10 if m.head == "class" else m.vocab, bias=False)
        for e in (self.tokens, self.places):
            nn.init.normal_(e.weight, std=0.02)
        if m.head != "class":
            self.out.weight = self.tokens.weight

    def states(self, ids):
        x = self.tokens(ids) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, ids):
        x = self.states(ids)
        if self.m.head == "class":
            return F.cross_entropy(self.out(x.mean(1)).float(), ids[:, 0] % 10)
        goal, some = ids.roll(-1, 1), self.m.seq * 15 // 100 if self.m.head == "masked" else self.m.seq
        return F.cross_entropy(self.out(x[:, :some]).flatten(0, 1).float(), goal[:, :some].flatten())


def contender_run(name, m, steps):
    """{"ms", "gib", "norm"}: the last of the first layer's gradient in the first step; None when the GPU's memory does not do."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(1)
    try:
        net = Net(m, attention(name, m)).to("cuda", torch.bfloat16)
        ids = torch.randint(0, m.vocab, (m.batch, m.seq), device="cuda")
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
        times, norm = [], None
        for i in range(steps + 3):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            net(ids).backward()
            if norm is None:
                norm = net.blocks[0].qkv.weight.grad.float().norm().item()
            optimizer.step()
            optimizer.zero_grad()
            end.record()
            torch.cuda.synchronize()
            if i >= 3:
                times.append(begin.elapsed_time(end))
        return {"ms": statistics.median(times), "gib": torch.cuda.max_memory_allocated() / 2**30, "norm": norm}
    except torch.cuda.OutOfMemoryError:
        return None


def model_run(m, steps):
    rows = {}
    for name in m.contenders:
        began = time.monotonic()
        rows[name] = contender_run(name, m, steps)
        print(f"  {m.name}, {name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    ours, base = rows["fagen"], rows[m.contenders[0 if m.blocks else 1]]
    alike = rows["Flex"] if m.blocks else base  # computes the same
    if alike and abs(ours["norm"] - alike["norm"]) > 0.05 * alike["norm"]:
        raise RuntimeError(f"the first gradient has a norm of {ours['norm']:.4g} with fagen and {alike['norm']:.4g} without")
    return rows, ", ".join(f"{n} {r['ms']:.1f} ms {r['gib']:.1f} GiB" if r else f"{n} out of memory" for n, r in rows.items())


def table(results, blocks):
    results = [(m, r) for m, r in results if m.blocks == blocks]
    if not results:
        return ""
    names = results[0][0].contenders
    heads = ["model, seq x batch", *(f"{n} ms" for n in names), *(f"{n} / fagen" for n in names[:-1]), *(f"{n} GiB" for n in names)]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for m, rows in results:
        cells = [m.name] + [f"{rows[n]['ms']:.1f}" if rows[n] else "-" for n in names]
        cells += [f"{rows[n]['ms'] / rows['fagen']['ms']:.2f}" if rows[n] else "-" for n in names[:-1]]
        cells += [f"{rows[n]['gib']:.1f}" if rows[n] else "out of memory" for n in names]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\n"


def records(results):
    """One for each model and contender; ms is null where memory did not do."""
    return [{"model": m.name, "contender": name, "ms": r and r["ms"], "gib": r and r["gib"]} for m, rows in results for name, r in rows.items()]


# ---- one call on the host, and a new variant ----

def host_us(call, calls=200, rounds=15):
    """Least time that the host takes for a call whose kernels are done sooner."""
    best = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        best.append((time.perf_counter() - began) / calls * 1e6)
    torch.cuda.synchronize()
    return min(best)


def overhead():
    """[(what, microseconds)] of a problem small enough that the host is the slower one."""
    q, k, v = (torch.randn(1, 1, 64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    spec = {"mask": "causal"}
    rows = [("fagen.attention, no gradient", host_us(lambda: fagen.attention(q, k, v, spec))),
            ("fagen.sdpa, no gradient", host_us(lambda: fagen.sdpa(q, k, v, is_causal=True))),
            ("SDPA, no gradient", host_us(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)))]
    s = ops.spec_of(q, k, v, spec, False, {})
    prepared = next(iter(s.launches.values()))
    words, workspace = prepared.words.from_buffer_copy(prepared.template), launch.workspace_of(prepared, "cuda")
    out = torch.empty_like(q)
    for place, t in ((launch.QUERY, q), (launch.KEY, k), (launch.VALUE, v), (launch.OUT, out), (launch.WORKSPACE, workspace)):
        words[place] = t.data_ptr()
    stream, error = launch.stream_of(prepared.device), launch._local.error
    if prepared.function(prepared.kernel, words, stream, error):
        raise RuntimeError(f"the C launch is refused: {error._obj.message.decode()}")
    rows.insert(0, ("the C launch alone", host_us(lambda: prepared.function(prepared.kernel, words, stream, error))))
    leaves = [t.requires_grad_() for t in (q, k, v)]
    dout = torch.ones_like(q)
    rows += [("fagen.attention, to be differentiated", host_us(lambda: fagen.attention(q, k, v, spec))),
             ("SDPA, to be differentiated", host_us(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))),
             ("fagen.attention and its backward", host_us(lambda: torch.autograd.grad(fagen.attention(q, k, v, spec), leaves, dout))),
             ("SDPA and its backward", host_us(lambda: torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=True), leaves, dout)))]
    return rows


def first_calls():
    """Seconds of forward and backward of a variant that no cache has, and of a new process' worth of state with the cache."""
    q, k, v = (torch.randn(2, 8, 1024, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        was, os.environ["FAGEN_CACHE_DIR"] = os.environ.get("FAGEN_CACHE_DIR"), folder
        for _ in range(2):
            specs._runtime = None
            specs._specs.clear(), ops._found.clear(), ops._calls.clear()
            torch.cuda.synchronize()
            began = time.perf_counter()
            fagen.flex(q, k, v, mask="k <= q && q - k < 333 || k < 7", score="15 * tanh(s / 15)").sum().backward()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        os.environ.pop("FAGEN_CACHE_DIR")
        if was is not None:
            os.environ["FAGEN_CACHE_DIR"] = was
    specs._runtime = None
    specs._specs.clear(), ops._found.clear(), ops._calls.clear()
    return seconds


def page(results, calls, firsts, machine, seconds):
    text = (f"# Whole models with fagen on {machine['gpu']}\n\n{report.heading(machine)} A step is forward, backward and fused AdamW, in bf16, weights and "
            "tokens random; median. Peak memory is PyTorch's, of the whole step. A ratio above 1: fagen is faster. Dropout is that of the attention. "
            f"The run took {seconds:.0f} s. Written by `make bench-e2e`.\n\n{table(results, False)}")
    if any(m.blocks for m, _ in results):
        text += ("Block-sparse encoders: blocks of 128, those within 2 of the diagonal, the first row and column, and every 16th column. Dense SDPA computes "
                 f"another attention, and is there for scale; Flex is FlexAttention, compiled, its lists of blocks made outside.\n\n{table(results, True)}")
    if calls:
        text += "Host time of one call, microseconds, the least of 15 rounds:\n\n| call | us |\n|---|---|\n"
        text += "\n".join(f"| {what} | {us:.1f} |" for what, us in calls) + "\n\n"
    if firsts:
        text += f"A new variant, forward and backward: {firsts[0]:.2f} s with an empty cache, {firsts[1] * 1e3:.0f} ms with a warm one.\n"
    return text


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", action="append", help="only those whose name holds this (may be repeated)")
    p.add_argument("--steps", type=int, default=10, help="timed for each contender (default 10)")
    p.add_argument("--limit", type=float, default=240, help="start no model after this many seconds (default 240)")
    p.add_argument("--write", nargs="?", const="", metavar="FILE", help="write the table (default: bench/results/<gpu>-e2e.md), and rows and a plot (docs/bench/<gpu>-e2e.json, or beside FILE)")
    o = p.parse_args()
    runtime = report.gpu_open()
    run = report.Run(o.limit)
    calls, firsts = ([], None) if o.model else (overhead(), first_calls())
    chosen = [m for m in models() if not o.model or any(n in m.name for n in o.model)]
    if not chosen:
        p.error("no such model; there are " + "; ".join(m.name for m in models()))
    results = run.each(chosen, lambda m: m.name, lambda m: model_run(m, o.steps))
    machine = report.machine(runtime)
    text = page(results, calls, firsts, machine, run.seconds())
    print(text)
    report.figures_written(o.write, machine, "-e2e", text, "e2e", records(results))
    return run.status()


if __name__ == "__main__":
    sys.exit(main())
