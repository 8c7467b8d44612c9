"""Plots of figures that other commands wrote as JSON.

    plot.py bench ROWS.json PREFIX          TFLOP/s of each pass and memory over sequence length: PREFIX-forward.png, ...
    plot.py e2e ROWS.json PREFIX            time and peak memory of a training step of whole models: PREFIX.png
    plot.py deviation ROWS.json FILE.png    deviation from exact results over sequence length, of one spec

The rows are those of `make bench BENCH=--write`, `make bench-e2e BENCH=--write` and `fagen check --deviation --json FILE`."""
import argparse
import io
import json
import pathlib
import sys

# One colour for each contender in every plot; the standard attention is last.
CONTENDERS = {"fagen": ("fagen", "C0", "o"), "FA2": ("FlashAttention-2", "C1", "s"), "cuDNN": ("cuDNN", "C2", "^"), "FA4": ("FlashAttention-4", "C4", "v"), "probe": ("kernels of one shape", "C5", "d"),
              "math": ("standard attention (PyTorch's math)", "C3", "x")}
STEP_CONTENDERS = {"eager": "C3", "SDPA": "C2", "SDPA, dense": "C2", "Flex": "C1", "fagen": "C0"}
DTYPES = {"fp16": "C0", "bf16": "C1"}
TENSORS = ("out", "lse", "dquery", "dkey", "dvalue")
DPI, COLOURS = 80, 64  # keep a file below 150 kB


def leave(status, why):
    print(f"plot: {why}", file=sys.stderr)
    sys.exit(status)


def pyplot():
    try:
        import matplotlib
    except ImportError:
        leave(3, "matplotlib is missing: pip install matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot
    return matplotlib.pyplot


def load(path):
    try:
        figures = json.loads(pathlib.Path(path).read_text())
        if figures["rows"]:
            return figures
        leave(1, f"{path} has no rows")
    except (OSError, ValueError, KeyError, TypeError) as e:
        leave(1, f"{path} holds no rows of figures: {type(e).__name__}: {e}")


def where(figures):
    """GPU, driver and date, as far as the file says."""
    return ", ".join(f"{word}{figures[key]}" for key, word in (("gpu", ""), ("driver", "driver "), ("date", "")) if key in figures)


def grid(plt, rows, columns, title, width=4.2, height=3.2):
    figure, axes = plt.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False, sharex="col", sharey="row")
    figure.suptitle(title)
    return figure, axes


def lengths_axis(axis, lengths):
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [str(n) for n in lengths], rotation=45, fontsize=8)
    axis.minorticks_off()
    axis.grid(alpha=0.3)


def save(figure, axes, path):
    """With one legend for all panels: that of the panel with the most lines."""
    handles, labels = max((a.get_legend_handles_labels() for a in axes.flat), key=lambda h: len(h[0]))
    figure.legend(handles, labels, loc="lower center", ncols=4)
    figure.tight_layout(rect=(0, 0.06, 1, 0.98))
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    import PIL.Image  # matplotlib brings it
    image = io.BytesIO()
    figure.savefig(image, dpi=DPI)
    PIL.Image.open(image).convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(f"written to {path}", file=sys.stderr)


# ---- bench ----

def series(rows):
    """The rows that differ in length alone: as many query as key/value heads, and the commonest number of tokens."""
    equal = [r for r in rows if r["heads"] == r["heads_kv"]]
    tokens = [r["batch"] * r["seq"] for r in equal]
    common = max(set(tokens), key=tokens.count, default=0)
    chosen = [r for r in equal if r["batch"] * r["seq"] == common]
    long = {d for d in {r["d"] for r in chosen} if len({r["seq"] for r in chosen if r["d"] == d}) > 1}
    return [r for r in chosen if r["d"] in long] or chosen, common


def bench_figure(plt, figures, which, value, label, path, log):
    rows, tokens = series(figures["rows"])
    rows = [r for r in rows if r["pass"] == which]
    if not rows:
        leave(1, f"there are no rows of the {which} pass")
    dims, masks = sorted({r["d"] for r in rows}), sorted({r["mask"] for r in rows}, reverse=True)
    figure, axes = grid(plt, len(masks), len(dims), f"{label}, {tokens} tokens\n{where(figures)}")
    for i, mask in enumerate(masks):
        for j, d in enumerate(dims):
            panel = [r for r in rows if r["d"] == d and r["mask"] == mask]
            axis = axes[i][j]
            for name, (text, colour, marker) in CONTENDERS.items():
                points = sorted((r["seq"], value(r)) for r in panel if r["contender"] == name)
                if points:
                    axis.plot(*zip(*points), label=text, color=colour, marker=marker)
            axis.set_title(f"head dim {d}, {mask}", fontsize=10)
            lengths_axis(axis, sorted({r["seq"] for r in panel}))
            if log:
                axis.set_yscale("log", base=2)
                axis.yaxis.set_major_formatter("{x:g}")
            else:
                axis.set_ylim(bottom=0)
        axes[i][0].set_ylabel(label.split(",")[0])
    for axis in axes[-1]:
        axis.set_xlabel("sequence length")
    save(figure, axes, path)


def bench_plot(figures, prefix):
    plt = pyplot()
    for which in ("forward", "backward"):
        bench_figure(plt, figures, which, lambda r: r["tflops"], f"TFLOP/s, {which}, bf16", f"{prefix}-{which}.png", False)
    bench_figure(plt, figures, "backward", lambda r: r["memory"] / 2**30, "GiB beside the inputs, forward and backward, bf16",
                 f"{prefix}-memory.png", True)


# ---- whole models ----

def e2e_plot(figures, prefix):
    """Bars: a model in each row, a contender in each bar; dense attention beside a block-sparse one is for scale."""
    plt = pyplot()
    rows = figures["rows"]
    models = list(dict.fromkeys(r["model"] for r in rows))
    contenders = [c for c in STEP_CONTENDERS if any(r["contender"] == c for r in rows)]
    figure, axes = plt.subplots(1, 2, figsize=(11, 0.8 * len(models) + 1.6), squeeze=False, sharey="row")
    figure.suptitle(f"A training step, bf16\n{where(figures)}")
    for axis, value, label in zip(axes[0], ("ms", "gib"), ("ms a step", "GiB at the peak")):
        least = min(r[value] for r in rows if r[value])
        for contender in contenders:
            bars = []
            for at, model in enumerate(models):
                mine = [r for r in rows if r["model"] == model]
                bars += [(at + (i - (len(mine) - 1) / 2) / (len(mine) + 1), r[value], 1 / (len(mine) + 1))
                         for i, r in enumerate(mine) if r["contender"] == contender]
            places, values, heights = zip(*bars)
            axis.barh(places, [v or 0 for v in values], heights, color=STEP_CONTENDERS[contender], label=contender)
            for place, v in zip(places, values):
                axis.text(v or least, place, f" {v:.3g}" if v else " out of memory", va="center", fontsize=7)
        most = max(r[value] for r in rows if r[value])
        axis.set_xscale("log")
        axis.set_xlim(0.7 * least, 1.5 * most)
        axis.set_xticks([n for e in range(-2, 6) for n in (10.0**e, 2 * 10.0**e, 5 * 10.0**e) if 0.7 * least < n < 1.5 * most])
        axis.xaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.set_xlabel(label)
        axis.grid(alpha=0.3, axis="x")
    axes[0][0].set_yticks(range(len(models)), models, fontsize=8)
    axes[0][0].invert_yaxis()
    save(figure, axes, f"{prefix}.png")


# ---- deviation ----

def drawn(axis):
    return any(len(line.get_ydata()) for line in axis.lines)


def deviation_plot(figures, path, spec):
    plt = pyplot()
    specs = list(dict.fromkeys(r["spec"] for r in figures["rows"]))
    if spec is not None and spec not in specs:
        leave(1, f"there is no spec '{spec}' in the rows; there are: {', '.join(specs)}")
    spec = spec or specs[0]
    rows = [r for r in figures["rows"] if r["spec"] == spec]
    kinds = list(dict.fromkeys(r["data"] for r in rows))
    tensors = [t for t in TENSORS if any(r["tensor"] == t for r in rows)]
    figure, axes = grid(plt, len(tensors), len(kinds), f"{spec}: RMS deviation over the RMS of the exact result; fagen: the worst tile\n"
                        f"{where(figures)}", 2.6, 2.1)
    for i, tensor in enumerate(tensors):
        for j, kind in enumerate(kinds):
            axis = axes[i][j]
            panel = sorted((r for r in rows if r["tensor"] == tensor and r["data"] == kind), key=lambda r: r["seqlen"])
            for dtype, colour in DTYPES.items():
                mine = [r for r in panel if r["dtype"] == dtype]
                worst = lambda r: max((t["rms"] for t in r["fagen"]), key=lambda x: float("inf") if x is None else x)
                for text, style, value in (("fagen", "o-", worst), ("plain", "x--", lambda r: r["plain"]["rms"])):
                    points = [(r["seqlen"], value(r)) for r in mine if value(r)]  # neither exact results nor those not finite
                    axis.plot([p[0] for p in points], [p[1] for p in points], style, color=colour, label=f"{dtype}, {text}", markersize=4)
            lengths_axis(axis, sorted({r["seqlen"] for r in panel}))
            if not drawn(axis):
                axis.text(0.5, 0.5, "exact", ha="center", transform=axis.transAxes)
            if i == 0:
                axis.set_title(kind)
            if j == 0:
                axis.set_ylabel(tensor)
        if any(map(drawn, axes[i])):
            axes[i][0].set_yscale("log")  # which the row shares
    save(figure, axes, path)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("kind", choices=("bench", "e2e", "deviation"))
    p.add_argument("rows", help="the JSON file")
    p.add_argument("to", help="prefix of the files to write (bench, e2e), or the file (deviation)")
    p.add_argument("--spec", help="which spec of a deviation study (default: the first)")
    o = p.parse_args()
    figures = load(o.rows)
    try:
        if o.kind == "bench":
            bench_plot(figures, o.to)
        elif o.kind == "e2e":
            e2e_plot(figures, o.to)
        else:
            deviation_plot(figures, o.to, o.spec)
    except (KeyError, TypeError) as e:
        leave(1, f"{o.rows} has no rows of kind {o.kind}: {type(e).__name__}: {e}")


if __name__ == "__main__":
    main()
