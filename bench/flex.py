"""fagen beside PyTorch's FlexAttention, compiled, and FlashAttention-4 where it is installed, on masks and scores of both kinds:
b=2 h=16 s=8192 d=128 in bf16. Every variant is compiled once, its results are compared, then all take their turn in every round, timed by CUDA events, median.
FlexAttention's block mask is made once, outside the timing. `make bench-flex` runs it."""
import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import peers  # leaves with a message when PyTorch is missing
import torch
import torch._dynamo
import torch._functorch.config
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import fa4
import fagen_ctypes as fagen
import report
from inputs import blocks_kept, documents, slopes

BATCH, HEADS, SEQ, D, BLOCK = 2, 16, 8192, 128, 128
RIVALS = ("Flex", "FA4")


class Variant:
    """The same attention twice: lines of a spec with the inputs that they read, and FlexAttention's functions."""

    def __init__(self, name, spec, inputs=None, mask=None, score=None, per_batch=False):
        self.name, self.lines, self.inputs, self.mask, self.score, self.per_batch = name, spec, inputs or {}, mask, score, per_batch

    def spec(self):
        return f"head_dim: {D}\ndtype: bf16\npasses: [forward, backward]\nkv_group: 1\n" + self.lines + "\n"


def variants():
    doc = documents((BATCH, SEQ))  # every batch entry has its own
    keep = blocks_kept((SEQ // BLOCK, SEQ // BLOCK))
    bitmap = keep.to(torch.uint8).expand(BATCH, HEADS, *keep.shape)
    slope = slopes(HEADS)
    return [
        Variant("causal", "mask: causal", mask=lambda b, h, q, k: q >= k),
        Variant("window1024", "mask: {window: {left: 1023, right: 0}}", mask=lambda b, h, q, k: (q >= k) & (q - k < 1024)),
        Variant("document_causal", "mask: {all: [causal, document]}", {"doc": doc},
                mask=lambda b, h, q, k: (q >= k) & (doc[b, q] == doc[b, k]), per_batch=True),
        Variant("block25", f"blocks: {{size: {BLOCK}, from: bitmap}}", {"blocks": bitmap},
                mask=lambda b, h, q, k: keep[q // BLOCK, k // BLOCK]),
        Variant("prefix512", "mask: {prefix: {n: 512}}", mask=lambda b, h, q, k: (k < 512) | (q >= k)),
        Variant("alibi", "score: alibi", {"slope": slope}, score=lambda s, b, h, q, k: s - slope[h] * (q - k).abs()),
        Variant("softcap30", "score: {softcap: {cap: 30}}", score=lambda s, b, h, q, k: 30 * torch.tanh(s / 30)),
        Variant("softcap30_causal", "mask: causal\nscore: {softcap: {cap: 30}}", mask=lambda b, h, q, k: q >= k,
                score=lambda s, b, h, q, k: 30 * torch.tanh(s / 30)),
        Variant("relative", 'score: "s + (q - k)"', score=lambda s, b, h, q, k: s + (q - k)),
    ]


class Flex:
    def __init__(self, variant, data):
        q, k, v, dout = data
        inputs = [t.detach().requires_grad_() for t in (q, k, v)]
        self.block_mask = variant.mask and create_block_mask(variant.mask, BATCH if variant.per_batch else None, None, SEQ, SEQ)
        compiled = torch.compile(flex_attention, dynamic=False)
        forward = lambda: compiled(*inputs, score_mod=variant.score, block_mask=self.block_mask)
        torch.cuda.synchronize()
        began = time.monotonic()
        self.out = forward()
        backward = lambda: torch.autograd.grad(self.out, inputs, dout, retain_graph=True)
        backward()
        torch.cuda.synchronize()
        self.first = time.monotonic() - began
        self.run = {"forward": forward, "backward": backward}

    def density(self):
        return 1 - self.block_mask.sparsity() / 100 if self.block_mask else 1.0

    def results(self):
        return [self.out.detach(), *self.run["backward"]()]


def source_ms(path, target):
    """Milliseconds from a spec's file to a kernel's source, the slower pass: a run of the command less one that does nothing."""
    def least(*args):
        def once():
            began = time.perf_counter()
            subprocess.run([command, *args], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True, close_fds=False)
            return time.perf_counter() - began
        return min(once() for _ in range(9)) * 1e3
    command = str(fagen.built("fagen", "FAGEN"))
    idle = least("--version")
    return max(least("--emit", "cu", "--target", target, "--pass", which, str(path)) for which in peers.PASSES) - idle


def variant_run(runtime, variant, data, seconds, folder):
    path = folder / f"{variant.name}.yaml"
    path.write_text(variant.spec())
    began = time.monotonic()
    ours = peers.Fagen(runtime, runtime.spec(variant.spec(), path.name), peers.Case(D, False, SEQ, BATCH, HEADS), data, inputs=variant.inputs)
    row = {"fagen first": time.monotonic() - began}
    torch._dynamo.reset()
    flex = Flex(variant, data)
    wrong = peers.differences(ours.results(), flex.results())
    if wrong:
        raise fagen.FagenError(f"fagen and FlexAttention disagree, so nothing is timed: {wrong}")
    row |= {"density": flex.density(), "flex first": flex.first, "source": source_ms(path, ours.kernel.info().target.decode())}
    runs = {"fagen": ours.run, "Flex": flex.run}
    try:
        options = fa4.options(variant, BATCH, SEQ) if fa4.found() else None
        if options is not None:
            fourth = fa4.Contender(data, **options)
            wrong = peers.differences(ours.results(), fourth.results())
            if wrong:
                raise RuntimeError(f"its results differ: {wrong}")
            runs["FA4"] = fourth.run
    except RuntimeError as e:
        print(f"bench: FlashAttention-4 is left out of {variant.name}: {e}", file=sys.stderr)
    for which in peers.PASSES:
        row[which] = peers.time_round_robin({name: run[which] for name, run in runs.items()}, seconds)
    told = ", ".join(f"{w} {row[w]['fagen'] * 1e-3:.3f} ms" + "".join(f", {ratio(row, w, n):.2f} of {n}" for n in RIVALS if n in row[w])
                     for w in peers.PASSES)
    return row, f"{told}, source in {row['source']:.1f} ms"


def ratio(row, which, rival):
    return row[which][rival] / row[which]["fagen"]


def table(results):
    rivals = [n for n in RIVALS if any(n in row["forward"] for _, row in results)]
    heads = ["variant", "density"]
    for short in ("fwd", "bwd"):
        heads += [f"fagen {short} ms"] + [text for n in rivals for text in (f"{n} {short} ms", f"{n}/fagen")]
    heads += ["spec to source ms", "first call s, fagen", "Flex"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for variant, row in results:
        cells = [variant.name, f"{row['density']:.2f}"]
        for w in peers.PASSES:
            cells.append(f"{row[w]['fagen'] * 1e-3:.3f}")
            for n in rivals:
                cells += [f"{row[w][n] * 1e-3:.3f}", f"{ratio(row, w, n):.2f}"] if n in row[w] else ["-", "-"]
        cells += [f"{row['source']:.1f}", f"{row['fagen first']:.1f}", f"{row['flex first']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def means(results):
    """Geometric means over the variants, by rival and pass."""
    lines = []
    for n in RIVALS:
        ratios = {w: [ratio(row, w, n) for _, row in results if n in row[w]] for w in peers.PASSES}
        if ratios["forward"]:
            told = ", ".join(f"{w} {statistics.geometric_mean(r):.2f} (least {min(r):.2f})" for w, r in ratios.items())
            lines.append(f"Geometric means of {n}/fagen: {told}.")
    return " ".join(lines)


def page(results, machine, seconds):
    return (f"# fagen beside FlexAttention on {machine['gpu']}\n\n{report.heading(machine)} b={BATCH} h={HEADS} s={SEQ} d={D}, bf16, random normal "
            "data, layout [batch, head, seq, dim]. Median of rounds in which each runs once, results compared before. A ratio above 1: fagen is "
            "faster. Flex is FlexAttention, compiled; FA4 is FlashAttention-4 where it is installed. Density: share of the 128x128 blocks that "
            "FlexAttention's block mask keeps; that mask and the block lists of FlashAttention-4 are made outside the timing. First call: both "
            "passes, compilation included (fagen's may come from its cache). Spec to source: parsing, analysis, planning and emission of the slower "
            f"pass. The run took {seconds:.0f} s. Written by `make bench-flex`.\n\n{table(results)}\n\n"
            f"{means(results)} Slowest from spec to source: {max(r['source'] for _, r in results):.1f} ms.\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--variant", action="append", help="only this one (may be repeated)")
    p.add_argument("--seconds", type=float, default=0.3, help="of measurement for each variant and pass (default 0.3)")
    p.add_argument("--limit", type=float, default=170, help="start no variant after this many seconds (default 170)")
    p.add_argument("--write", nargs="?", const="", metavar="FILE", help="write the figures (default: bench/results/<gpu>-flex.md)")
    o = p.parse_args()
    torch._functorch.config.donated_buffer = False  # backward is called again on the same graph
    runtime = report.gpu_open()
    run = report.Run(o.limit)
    torch.manual_seed(1)
    data = [torch.randn(BATCH, HEADS, SEQ, D, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    chosen = [v for v in variants() if not o.variant or v.name in o.variant]
    if not chosen:
        p.error("no such variant; there are " + ", ".join(v.name for v in variants()))
    with tempfile.TemporaryDirectory() as folder:
        results = run.each(chosen, lambda v: v.name, lambda v: variant_run(runtime, v, data, o.seconds, pathlib.Path(folder)))
    if results:
        machine = report.machine(runtime)
        text = page(results, machine, run.seconds())
        print(text)
        report.page_written(o.write, machine, "flex", text)
    return run.status()


if __name__ == "__main__":
    sys.exit(main())
