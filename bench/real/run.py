"""The attention layers of real models through fagen's kernels, with their real activations (dump.py made them), on a GPU.
Forward of every layer, and backward where the spec has that pass, with a random gradient. `make real` runs it.

Each result may err at most 1.5 times as much as a plain computation of the same layer (float32 scores and softmax; P, dS
and results rounded to the layer's type), plus 2 units in the last place of the largest value; both are measured against
float64. For LSE, a float32, the 2 ulp are 1e-5 of its size plus 1e-5."""
import argparse
import datetime
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

try:
    import torch
except ImportError:
    print("real: PyTorch is missing; it gives the GPU's memory and the float64 reference. Install torch (a CUDA build).", file=sys.stderr)
    sys.exit(3)

import fagen_ctypes as fagen


def attention(q, k, v, dout, causal, scale, work, rounded):
    """out, lse, dquery, dkey, dvalue. `work` is the type of the arithmetic; `rounded` the type that P, dS and out take on
    the way, None for an exact computation."""
    group = q.shape[1] // k.shape[1]
    trim = (lambda t: t.to(rounded).to(work)) if rounded else (lambda t: t)
    q, k, v, dout = (t.to(work) for t in (q, k, v, dout))
    kk, vv = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ kk.transpose(2, 3) * scale
    if causal:
        rows, keys = s.shape[2:]
        seen = torch.ones(rows, keys, dtype=torch.bool, device=s.device).tril(keys - rows)
        s = s.masked_fill(~seen, -torch.inf)
    lse = torch.logsumexp(s, 3, keepdim=True)
    p = torch.exp(s - lse)
    out = trim(trim(p) @ vv)
    dp = dout @ vv.transpose(2, 3)
    ds = trim(p * (dp - (dout * out).sum(3, keepdim=True)))
    shared = lambda t: t.unflatten(1, (-1, group)).sum(2)
    grads = ds @ kk * scale, shared(ds.transpose(2, 3) @ q) * scale, shared(trim(p).transpose(2, 3) @ dout)
    return out, lse[..., 0], *(trim(g) for g in grads)


def ulp(largest, dtype):
    """Of the type at this size."""
    return 2.0 ** (torch.tensor(largest).log2().floor().item()) * torch.finfo(dtype).eps if largest > 0 else torch.finfo(dtype).tiny


def tensors_read(entry, layer, folder, dtype):
    sizes = [torch.Size(s).numel() for s in entry["shapes"]]
    start = layer * sum(sizes) * 2
    raw = bytearray((folder / entry["file"]).read_bytes()[start:start + sum(sizes) * 2])
    flat = torch.frombuffer(raw, dtype=dtype).cuda()
    return [t.view(s) for t, s in zip(flat.split(sizes), entry["shapes"])]


def layer_run(kernel, q, k, v, dout, backward, naive):
    out, lse = torch.full_like(q, torch.nan), torch.full(q.shape[:3], torch.nan, device="cuda")
    grads = [torch.full_like(t, torch.nan) for t in (q, k, v)]
    size = kernel.workspace_size(kernel.args(q, k, v, out, lse))
    workspace = torch.full((max(size, 1),), 255, dtype=torch.uint8, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    kernel.forward(kernel.args(q, k, v, out, lse, workspace=workspace), stream)
    if backward:
        kernel.backward(kernel.args(q, k, v, out, lse, dout, *grads, workspace=workspace), stream)
    torch.cuda.synchronize()
    return [out, lse] + (grads if backward else [])


def layer_check(results, q, k, v, dout, causal, scale):
    """[(name, error, bound, ok)]."""
    exact = attention(q, k, v, dout, causal, scale, torch.float64, None)
    plain = attention(q, k, v, dout, causal, scale, torch.float32, q.dtype)
    rows = []
    for i, name in enumerate(("out", "lse", "dquery", "dkey", "dvalue")[: len(results)]):
        error = float((results[i].double() - exact[i]).abs().max())
        largest = float(exact[i].abs().max())
        slack = 1e-5 * (1 + largest) if name == "lse" else 2 * ulp(largest, q.dtype)
        bound = 1.5 * float((plain[i].double() - exact[i]).abs().max()) + slack
        rows.append((name, error, bound, error <= bound))  # NaN fails
    return rows


def model_run(runtime, entry, folder, naive, say):
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[entry["dtype"]]
    spec_text = (ROOT / entry["spec"]).read_text()
    causal = "\nmask: causal" in spec_text
    shape_q, shape_k = entry["shapes"][:2]
    kernel = runtime.kernel(runtime.spec(spec_text, entry["spec"]), shape_q[0], shape_q[1], shape_k[1], shape_q[2], shape_k[2], naive=naive)
    backward = bool(kernel.info().backward)
    rows = []
    torch.manual_seed(3)
    for layer in range(len(entry["layers"])):
        q, k, v = tensors_read(entry, layer, folder, dtype)
        dout = torch.randn(q.shape, device="cuda").to(dtype)
        checks = layer_check(layer_run(kernel, q, k, v, dout, backward, naive), q, k, v, dout, causal, shape_q[3] ** -0.5)
        rows.append((layer, checks))
        say(f"{entry['model']:8} layer {layer:2}  " + "  ".join(f"{n} {e:.2e} of {b:.2e}{'' if ok else ' WRONG'}" for n, e, b, ok in checks))
    return backward, rows


def figures(done, runtime, naive):
    lines = [f"# Attention of real models through fagen\n\n{datetime.date.today()}, {torch.cuda.get_device_name(0)}, fagen {runtime.version()}"
             f"{', naive kernels' if naive else ''}. Q, K and V of every layer are the activations of the model on real text (`make real-dump`); "
             "the gradient of the output is random. Error: the largest distance to a float64 computation; bound: 1.5 times the error of a plain "
             "computation (float32 scores and softmax, P, dS and results rounded) plus 2 ulp. Written by `make real`.\n"]
    for entry, backward, rows in done:
        b, h, s, d = entry["shapes"][0]
        lines.append(f"## {entry['model']}\n\n`{entry['spec']}`, {entry['dtype']}: {b} x {s} tokens, {h} query heads over {entry['shapes'][1][1]}, "
                     f"head dim {d}; forward{' and backward' if backward else ' alone (the passes of the spec)'}.\n")
        names = [n for n, *_ in rows[0][1]]
        lines.append("| layer | largest Q, K, V | " + " | ".join(f"{n} error | bound" for n in names) + " | ok |")
        lines.append("|" + "---|" * (3 + 2 * len(names)))
        for layer, checks in rows:
            cells = " | ".join(f"{e:.2e} | {b_:.2e}" for _, e, b_, _ in checks)
            largest = ", ".join(f"{x:.1f}" for x in entry["layers"][layer]["largest"])
            lines.append(f"| {layer} | {largest} | {cells} | {'yes' if all(c[3] for c in checks) else '**no**'} |")
        lines.append("")
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=pathlib.Path, default=ROOT / "build" / "real", help="what dump.py wrote")
    p.add_argument("--naive", action="store_true", help="the naive kernels instead")
    p.add_argument("--write", nargs="?", type=pathlib.Path, const=HERE / "figures.md", metavar="FILE", help="write the figures (default: bench/real/figures.md)")
    a = p.parse_args()
    index = a.data / "index.json"
    if not index.exists():
        print(f"real: {index} is missing: run `make real-dump` first (it needs PyPI, no GPU)", file=sys.stderr)
        return 3
    if not torch.cuda.is_available():
        print("real: no GPU that PyTorch can use", file=sys.stderr)
        return 3
    torch.empty(1, device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = False
    done = []
    try:
        runtime = fagen.Runtime()
        for entry in json.loads(index.read_text()):
            done.append((entry, *model_run(runtime, entry, a.data, a.naive, print)))
    except (fagen.FagenError, OSError) as e:
        print(f"real: {e}", file=sys.stderr)
        return 3
    wrong = sum(not ok for _, _, rows in done for _, checks in rows for *_, ok in checks)
    print(f"{sum(len(rows) for _, _, rows in done)} layers, {wrong} results out of bounds")
    if a.write:
        a.write.write_text(figures(done, runtime, a.naive))
    return 4 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
