"""fagen beside PyTorch's FlexAttention, compiled, on masks and scores of both kinds: b=2 h=16 s=8192 d=128 in bf16. Every
variant is compiled once, its results are compared, then both take their turn in every round, timed by CUDA events, median.
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

import fagen_ctypes as fagen
import report

BATCH, HEADS, SEQ, D, BLOCK = 2, 16, 8192, 128, 128


class Variant:
    """The same attention twice: lines of a spec with the inputs that they read, and FlexAttention's functions."""

    def __init__(self, name, spec, inputs=None, mask=None, score=None, per_batch=False):
        self.name, self.lines, self.inputs, self.mask, self.score, self.per_batch = name, spec, inputs or {}, mask, score, per_batch

    def spec(self):
        return f"head_dim: {D}\ndtype: bf16\npasses: [forward, backward]\nkv_group: 1\n" + self.lines + "\n"


def variants():
    random = torch.Generator(device="cuda").manual_seed(1)
    # Packed documents of about a thousand tokens; every batch entry has its own.
    begins = torch.rand((BATCH, SEQ), generator=random, device="cuda") < 1 / 1024
    doc = begins.cumsum(1).to(torch.int32)
    blocks = SEQ // BLOCK
    keep = torch.rand((blocks, blocks), generator=random, device="cuda") < 0.25
    bitmap = keep.to(torch.uint8).expand(BATCH, HEADS, blocks, blocks)
    slope = 2.0 ** (-8.0 * torch.arange(1, HEADS + 1, device="cuda") / HEADS)
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
    for which in peers.PASSES:
        row[which] = peers.time_round_robin({"fagen": ours.run[which], "flex": flex.run[which]}, seconds)
    told = ", ".join(f"{w} {row[w]['fagen'] * 1e-3:.3f} ms, {ratio(row, w):.2f} of FlexAttention" for w in peers.PASSES)
    return row, f"{told}, source in {row['source']:.1f} ms"


def ratio(row, which):
    return row[which]["flex"] / row[which]["fagen"]


def table(results):
    lines = ["| variant | density | fagen fwd ms | Flex fwd ms | Flex/fagen | fagen bwd ms | Flex bwd ms | Flex/fagen "
             "| spec to source ms | first call s, fagen | Flex |", "|" + "---|" * 11]
    for variant, row in results:
        times = [cell for w in peers.PASSES
                 for cell in (f"{row[w]['fagen'] * 1e-3:.3f}", f"{row[w]['flex'] * 1e-3:.3f}", f"{ratio(row, w):.2f}")]
        lines.append(f"| {variant.name} | {row['density']:.2f} | {' | '.join(times)} | {row['source']:.1f} | {row['fagen first']:.1f} | {row['flex first']:.1f} |")
    return "\n".join(lines)


def page(results, machine, seconds):
    means = ", ".join(f"{w} {statistics.geometric_mean(ratio(r, w) for _, r in results):.2f} (least {min(ratio(r, w) for _, r in results):.2f})"
                      for w in peers.PASSES)
    return (f"# fagen beside FlexAttention on {machine['gpu']}\n\n{report.heading(machine)} b={BATCH} h={HEADS} s={SEQ} d={D}, bf16, random normal "
            "data, layout [batch, head, seq, dim]. Median of rounds in which both run once, results compared before. Flex/fagen above 1: fagen is "
            "faster. Density: share of the 128x128 blocks that FlexAttention's block mask keeps; the mask is made outside the timing. First call: both "
            "passes, compilation included (fagen's may come from its cache). Spec to source: parsing, analysis, planning and emission of the slower "
            f"pass. The run took {seconds:.0f} s. Written by `make bench-flex`.\n\n{table(results)}\n\n"
            f"Geometric means of Flex/fagen: {means}. Slowest from spec to source: {max(r['source'] for _, r in results):.1f} ms.\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--variant", action="append", help="only this one (may be repeated)")
    p.add_argument("--seconds", type=float, default=0.3, help="of measurement for each variant and pass (default 0.3)")
    p.add_argument("--limit", type=float, default=130, help="start no variant after this many seconds (default 130)")
    p.add_argument("--write", nargs="?", const="", metavar="FILE", help="write the figures (default: bench/results/<gpu>-flex.md)")
    o = p.parse_args()
    torch._functorch.config.donated_buffer = False  # backward is called again on the same graph
    runtime, gpu = report.gpu_open()
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
        if o.write is not None:
            report.written(pathlib.Path(o.write) if o.write else HERE / "results" / f"{report.file_name(machine, gpu)}-flex.md", text)
    return run.status()


if __name__ == "__main__":
    sys.exit(main())
