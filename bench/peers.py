"""fagen beside PyTorch's attention backends on one GPU: every peer of a configuration takes its turn in every round, timed
by CUDA events, median. Results are compared with FlashAttention-2 before anything is timed. `make bench` runs it.

FLOPs by the usual count: forward 4*b*h*sq*sk*d, half of it when causal; backward 2.5 times that.
Memory is what a call takes beside its inputs at the most, outputs included; that of "backward" is of both passes one after
the other, for what the first keeps for the second is memory too."""
import argparse
import math
import pathlib
import statistics
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    import torch.nn.functional as F
except ImportError:
    print("bench: PyTorch is missing; it gives the peers and the memory. Install torch (a CUDA build) and run `make bench` again.\n"
          "Without PyTorch, `fagen bench SPEC` times fagen alone.", file=sys.stderr)
    sys.exit(3)

import fa4
import fagen_ctypes as fagen
import probes
import report

TOKENS, WIDTH = 16384, 2048  # of every configuration: batch * seq, heads * d
PASSES = ("forward", "backward")
RIVALS = ("FA2", "cuDNN", "FA4")


class Case:
    def __init__(self, d, causal, seq, batch=None, heads=None, heads_kv=None):
        self.d, self.causal, self.seq = d, causal, seq
        self.batch = batch or TOKENS // seq
        self.heads = heads or WIDTH // d
        self.heads_kv = heads_kv or self.heads

    def flops(self, which):
        f = 4.0 * self.batch * self.heads * self.seq * self.seq * self.d / (2 if self.causal else 1)
        return f * 2.5 if which == "backward" else f

    def spec(self, passes="forward, backward"):
        group = self.heads // self.heads_kv
        return f"head_dim: {self.d}\ndtype: bf16\npasses: [{passes}]\nkv_group: {group}\n" + ("mask: causal\n" if self.causal else "")

    def scores_bytes(self):
        """Of standard attention: scores, probabilities and their gradients, in float32."""
        return 4 * 4 * self.batch * self.heads * self.seq * self.seq

    def memory_allowed(self, which):
        """Outputs, LSE, D and a float32 dQ: linear in the sequence."""
        rows, keys = self.batch * self.heads * self.seq, self.batch * self.heads_kv * self.seq
        forward = rows * (2 * self.d + 4)
        return forward if which == "forward" else forward + 2 * (rows + 2 * keys) * self.d + rows * (4 + 4 * self.d)

    def label(self):
        return f"{self.d} | {'causal' if self.causal else 'full'} | {self.batch} | {self.seq} | {self.heads}/{self.heads_kv}"


def cases_default():
    heads = {64: 32, 96: 20, 128: 16, 192: 8, 256: 8}
    grid = [Case(d, causal, s, heads=h) for d, h in heads.items() for causal in (False, True) for s in (512, 1024, 2048, 4096, 8192, 16384)]
    long = [Case(d, causal, 65536, 1, h) for d, h in heads.items() for causal in (False, True)]
    odd = [Case(96, True, 2048, 4, 16), Case(128, True, 8192, 1, 32, 8), Case(128, False, 4096, 2, 32, 8), Case(128, True, 2048, 1, 8),
           Case(128, True, 4000, 4, 16), Case(64, False, 4095, 4, 32)]
    return grid + long + odd


def cases_quick():
    return [Case(d, causal, s) for d in (64, 128) for causal in (False, True) for s in (1024, 4096, 16384)]


# ---- peers: each gives {pass: callable}, and its results for the comparison ----

class Fagen:
    def __init__(self, runtime, spec, case, data, naive=False, inputs={}):
        """inputs: {name: tensor} of what the spec's mask and score read."""
        self.kernel = runtime.kernel(spec, case.batch, case.heads, case.heads_kv, case.seq, case.seq, naive=naive)
        q, k, v, dout = data
        self.out, self.lse = torch.full_like(q, math.nan), torch.full(q.shape[:3], math.nan, device="cuda")
        self.grads = [torch.full_like(t, math.nan) for t in (q, k, v)]
        self.inputs = inputs
        size = self.kernel.workspace_size(self.kernel.args(q, k, v, self.out, self.lse, inputs=inputs))
        self.workspace = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")
        self.forward_args = self.kernel.args(q, k, v, self.out, self.lse, workspace=self.workspace, inputs=inputs)
        self.backward_args = self.kernel.args(q, k, v, self.out, self.lse, dout, *self.grads, workspace=self.workspace, inputs=inputs)
        self.run = {"forward": lambda: self.kernel.forward(self.forward_args, stream()),
                    "backward": lambda: self.kernel.backward(self.backward_args, stream())}

    def results(self):
        self.run["forward"]()
        self.run["backward"]()
        return [self.out, *self.grads]

    def memory(self, forward=None):
        """`forward`: a kernel of the forward pass alone, whose workspace it needs; else that of both."""
        size = lambda *tensors: sum(t.numel() * t.element_size() for t in tensors)
        alone = forward.workspace_size(self.forward_args) if forward else self.workspace.numel()
        results = size(self.out, self.lse)
        return {"forward": results + alone, "backward": results + size(*self.grads) + self.workspace.numel()}


class Sdpa:
    def __init__(self, backend, case, data, dropout=0.0):
        q, k, v, dout = data
        inputs = [t.detach().requires_grad_() for t in (q, k, v)]
        gqa = {"enable_gqa": True} if case.heads != case.heads_kv else {}

        def forward():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(*inputs, is_causal=case.causal, dropout_p=dropout, **gqa)

        both = lambda: torch.autograd.grad(forward(), inputs, dout)
        both()  # libraries allocate workspaces of their own at the first call
        self.peak = {"forward": report.peak(forward), "backward": report.peak(both)}
        self.out = forward()
        self.grads = lambda: torch.autograd.grad(self.out, inputs, dout, retain_graph=True)
        self.run = {"forward": forward, "backward": self.grads}

    def results(self):
        return [self.out.detach(), *self.grads()]

    def memory(self):
        return self.peak


def stream():
    return torch.cuda.current_stream().cuda_stream


def peer_make(make):
    """A peer that cannot do the case is left out of its row."""
    try:
        peer = make()
        torch.cuda.synchronize()
        return peer
    except (RuntimeError, torch.OutOfMemoryError):
        return None


def differences(ours, theirs):
    """What is wrong, in words, for results of bf16: two right kernels differ by a few roundings."""
    wrong = []
    for name, a, b in zip(("out", "dquery", "dkey", "dvalue"), ours, theirs):
        worst = norm = apart = 0.0
        for x, y in zip(a, b):  # by batch, to keep float32 copies small
            x, y = x.float(), y.float()
            norm, apart = norm + float((y * y).sum()), apart + float(((x - y) ** 2).sum())
            worst = max(worst, float((x - y).abs().max()) / max(float(y.abs().max()), 1e-30))
        relative = math.sqrt(apart / max(norm, 1e-30))
        if not (relative <= 0.02 and worst <= 2.0 ** -5):  # NaN fails
            wrong.append(f"{name} differs by {relative:.2%} in norm, {worst:.2%} of the largest value at most")
    return "; ".join(wrong)


# ---- time ----

def time_round_robin(runs, seconds, least=5):
    """{name: microseconds}: median over at least `least` rounds, every peer once in each. The queue is kept full, so the host
    is not timed."""
    def rounds(n):
        events = {name: [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(n)] for name in runs}
        for i in range(n):
            torch.cuda._sleep(1_000_000)  # clocks: the host gets ahead
            for name, run in runs.items():
                events[name][i][0].record()
                run()
                events[name][i][1].record()
        torch.cuda.synchronize()
        return {name: [a.elapsed_time(b) * 1e3 for a, b in pairs] for name, pairs in events.items()}

    warm = rounds(2)
    once = sum(t[-1] for t in warm.values()) * 1e-6 + 6e-4
    measured = rounds(max(least, min(40, int(seconds / once))))
    return {name: statistics.median(t) for name, t in measured.items()}


def standard_run(rows, name, make, ours):
    """Adds one slow contender, alone and with few repetitions: the memory it takes leaves no room for company."""
    slow = peer_make(make)
    if slow is None:
        return
    wrong = differences(slow.results(), ours.results())
    if wrong:
        raise fagen.FagenError(f"fagen and {name} disagree: {wrong}")
    rows["memory"][name] = slow.memory()
    for which in PASSES:
        rows[which] |= time_round_robin({name: slow.run[which]}, 0.02, 3)


def case_run(runtime, case, options, folder):
    """{pass: {peer: us, "predicted": us}, "memory": {peer: {pass: bytes}}}."""
    b, s, d = case.batch, case.seq, case.d
    torch.manual_seed(1)
    new = lambda heads: torch.randn(b, heads, s, d, device="cuda", dtype=torch.bfloat16)
    data = (new(case.heads), new(case.heads_kv), new(case.heads_kv), new(case.heads))
    path = folder / f"d{d}_{'causal' if case.causal else 'full'}_g{case.heads // case.heads_kv}.yaml"
    path.write_text(case.spec())
    spec = runtime.spec(case.spec(), path.name)

    ours = Fagen(runtime, spec, case, data)
    forward = runtime.kernel(runtime.spec(case.spec("forward"), path.name), b, case.heads, case.heads_kv, s, s)
    peers = {"fagen": ours, "FA2": peer_make(lambda: Sdpa(SDPBackend.FLASH_ATTENTION, case, data)),
             "cuDNN": peer_make(lambda: Sdpa(SDPBackend.CUDNN_ATTENTION, case, data)),
             "FA4": peer_make(lambda: fa4.Contender(data, causal=case.causal)) if fa4.found() else None}
    if case.heads == case.heads_kv:
        peers |= {source.stem: peer_make(lambda: probes.Probe(source, case, data)) for source in probes.found(d, case.causal)}
    peers = {name: p for name, p in peers.items() if p}
    yardstick = peers.get("FA2") or peers.get("cuDNN")
    if yardstick is None:
        raise fagen.FagenError("neither FlashAttention-2 nor cuDNN of PyTorch runs here: there is nothing to compare with")
    alone = [name for name, p in peers.items() if isinstance(p, probes.Probe)]
    for name in ("fagen", *alone):
        wrong = differences(peers[name].results(), yardstick.results())
        if wrong:
            raise fagen.FagenError(f"{name} and PyTorch disagree, so nothing is timed: {wrong}")

    planned = fagen.plans(path, torch.cuda.get_device_name(0), b, case.heads, case.heads_kv, s)
    rows = {"memory": {name: p.memory(forward) if p is ours else p.memory() for name, p in peers.items()}}
    for which in PASSES:
        rows[which] = time_round_robin({name: p.run[which] for name, p in peers.items() if which in p.run}, options.seconds)
        if which in planned:
            rows[which]["predicted"] = planned[which][1]["time_us"]
    if alone:  # the fastest of them stands for all
        fastest = min(alone, key=rows["forward"].get)
        rows["forward"]["probe"], rows["memory"]["probe"] = rows["forward"][fastest], rows["memory"][fastest]
        for name in alone:
            del rows["forward"][name], rows["memory"][name]
    del peers, yardstick
    if case.scores_bytes() <= options.math_up_to * 1e9:
        standard_run(rows, "math", lambda: Sdpa(SDPBackend.MATH, case, data), ours)
    if s <= options.standard_up_to:
        standard_run(rows, "standard", lambda: Fagen(runtime, spec, case, data, naive=True), ours)
    told = lambda w: f"{w} {case.flops(w) / rows[w]['fagen'] * 1e-6:.0f} TFLOP/s" + "".join(
        f", {rows[w][n] / rows[w]['fagen']:.2f} of {n}" for n in RIVALS if n in rows[w])
    return rows, "  ".join(told(w) for w in PASSES)


# ---- tables ----

def table(results, which, names):
    number = lambda x, form: form.format(x) if x is not None else "-"
    rivals = [n for n in RIVALS if n in names]
    lines = [f"| d | mask | batch | seq | heads/kv | {' | '.join(names)} | {' | '.join('fagen/' + n for n in rivals)} | predicted/measured |",
             "|" + "---|" * (6 + len(names) + len(rivals))]
    for case, rows in results:
        us = rows[which]
        rate = lambda name: case.flops(which) / us[name] * 1e-6 if name in us else None
        ratio = lambda name: us[name] / us["fagen"] if name in us else None
        cells = [number(rate(n), "{:.0f}") for n in names] + [number(ratio(n), "{:.2f}") for n in (*rivals, "predicted")]
        lines.append(f"| {case.label()} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(results):
    lines = []
    for which in PASSES:
        for d in sorted({case.d for case, _ in results}):
            chosen = [r[which] for case, r in results if case.d == d and case.seq >= 1024]
            for peer in RIVALS:
                ratios = [us[peer] / us["fagen"] for us in chosen if peer in us]
                if ratios:
                    lines.append(f"{which} d {d}, seq >= 1024: {min(ratios):.2f} to {max(ratios):.2f} of {peer}, "
                                 f"geometric mean {statistics.geometric_mean(ratios):.2f}")
    predicted = [r[w]["predicted"] / r[w]["fagen"] for _, r in results for w in PASSES if "predicted" in r[w]]
    if predicted:
        lines.append(f"predicted/measured: {min(predicted):.2f} to {max(predicted):.2f}, geometric mean {statistics.geometric_mean(predicted):.2f}")
    return "\n".join("- " + line for line in lines + memory_lines(results))


def memory_lines(results):
    """fagen's memory against what the design allows; what is above it are rows that fill tiles up."""
    lines = []
    for which in PASSES:
        over = [(r["memory"]["fagen"][which] / case.memory_allowed(which), case) for case, r in results]
        most, case = max(over, key=lambda o: o[0])
        what = "outputs + LSE" if which == "forward" else "outputs + LSE + D + float32 dQ, both passes"
        lines.append(f"memory, {which}: {min(o for o, _ in over):.3f} to {most:.3f} times {what} (most: {case.label()})")
    return lines


def records(results):
    """The JSON rows: one for each case, pass and contender."""
    rows = []
    for case, measured in results:
        shape = {"d": case.d, "mask": "causal" if case.causal else "full", "batch": case.batch, "seq": case.seq, "heads": case.heads,
                 "heads_kv": case.heads_kv}
        for which in PASSES:
            rows += [shape | {"pass": which, "contender": name, "ms": round(us * 1e-3, 5), "tflops": round(case.flops(which) / us * 1e-6, 2),
                              "memory": measured["memory"][name][which]} for name, us in measured[which].items() if name != "predicted"]
    return rows


def page(results, machine, seconds):
    names = [n for n in ("fagen", *RIVALS, "probe", "math", "standard") if any(n in r[w] for _, r in results for w in PASSES)]
    head = (f"# fagen beside its peers on {machine['gpu']}\n\n{report.heading(machine)} bf16, random normal data, layout [batch, head, seq, dim]. "
            "TFLOP/s, median of rounds in which every peer runs once; FLOPs: forward 4*b*h*s*s*d, half of it when causal, backward 2.5 times that. "
            "FA4 is FlashAttention-4 where it is installed; FA2, cuDNN and math are backends of PyTorch's scaled_dot_product_attention, math being the standard attention, with its scores in "
            "memory; standard is the same by fagen's own naive kernels, in float32. Both of these are timed alone, in fewer rounds. "
            "probe is the fastest of kernels that do this and nothing else (bench/probes.py). "
            f"The run took {seconds:.0f} s. Written by `make bench`.")
    parts = [head] + [f"## {w.capitalize()}\n\n{table(results, w, names)}" for w in PASSES] + ["## Summary\n\n" + summary(results)]
    return "\n\n".join(parts) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="12 configurations instead of all")
    p.add_argument("--d", type=int, action="append", help="only this head dimension (may be repeated)")
    p.add_argument("--math-up-to", type=float, default=None, metavar="GB",
                   help="time PyTorch's math backend, the standard attention, where its scores take no more (default: 40; 0 with --quick)")
    p.add_argument("--standard-up-to", type=int, default=None, metavar="SEQ",
                   help="time the naive kernels up to this length (default: 2048; 0 with --quick)")
    p.add_argument("--seconds", type=float, default=None, help="of measurement for each configuration and pass (default 0.3; 0.15 with --quick)")
    p.add_argument("--limit", type=float, default=None, help="start no configuration after this many seconds (default 540; 36 with --quick)")
    p.add_argument("--write", nargs="?", const="", metavar="FILE",
                   help="write the table (default: bench/results/<gpu>.md), and rows and plots (docs/bench/<gpu>.json, or beside FILE)")
    o = p.parse_args()
    pick = lambda given, full, quick: given if given is not None else quick if o.quick else full
    o.math_up_to, o.standard_up_to = pick(o.math_up_to, 40, 0), pick(o.standard_up_to, 2048, 0)
    o.seconds, o.limit = pick(o.seconds, 0.3, 0.15), pick(o.limit, 540, 36)

    runtime = report.gpu_open()
    run = report.Run(o.limit)
    cases = [case for case in (cases_quick() if o.quick else cases_default()) if not o.d or case.d in o.d]
    with tempfile.TemporaryDirectory() as folder:
        results = run.each(cases, Case.label, lambda case: case_run(runtime, case, o, pathlib.Path(folder)))
    if results:
        machine = report.machine(runtime)
        text = page(results, machine, run.seconds())
        print(text)
        report.figures_written(o.write, machine, "", text, "bench", records(results))
    return run.status()


if __name__ == "__main__":
    sys.exit(main())
