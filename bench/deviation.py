"""The study of numeric deviation of `fagen check --deviation` on this machine's GPU; with --write its rows, a plot and a table
under docs/bench. `make deviation` runs it."""
import argparse
import datetime
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import fagen_ctypes as fagen
import report

TENSORS = ("out", "lse", "dquery", "dkey", "dvalue")


def worst(row):
    """RMS deviation of the worst tile; infinite where a result is not finite."""
    return max(float("inf") if t["rms"] is None else t["rms"] for t in row["fagen"])


def cell(rows):
    """The largest deviation over lengths and tiles, and the largest ratio to the plain computation."""
    if not rows:
        return "-"
    ratios = [worst(r) / r["plain"]["rms"] for r in rows if r["plain"]["rms"]]
    return f"{max(map(worst, rows)):.1e}" + (f" ({max(ratios):.2f})" if ratios else "")


def table(rows):
    lines = ["| spec | dtype | data | lengths | " + " | ".join(TENSORS) + " |", "|" + "---|" * (4 + len(TENSORS))]
    for spec, dtype, data in dict.fromkeys((r["spec"], r["dtype"], r["data"]) for r in rows):
        mine = [r for r in rows if (r["spec"], r["dtype"], r["data"]) == (spec, dtype, data)]
        lengths = [r["seqlen"] for r in mine]
        cells = [cell([r for r in mine if r["tensor"] == t]) for t in TENSORS]
        lines.append(f"| {spec} | {dtype} | {data} | {min(lengths)} to {max(lengths)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def tiles(rows):
    """What was compiled for each spec and dtype."""
    found = dict.fromkeys((r["spec"], r["dtype"], tuple(t["tile"] for t in r["fagen"])) for r in rows)
    return "\n".join(f"- {spec}, {dtype}: {'; '.join(names)}" for spec, dtype, names in found)


def page(figures, plot):
    picture = f"![deviation over sequence length]({plot.name})\n\n" if plot.exists() else ""
    return (f"# Numeric deviation of fagen on {figures['gpu']}\n\n{figures['date']}, fagen {figures['fagen']}, driver {figures['driver']} (CUDA "
            f"{figures['cuda']}). RMS deviation from attention in double over the RMS of the exact result: the largest over all lengths and tiles. "
            "In parentheses the largest ratio to a plain computation of the same dtype, with scores and softmax in float32 at once, P, dS and "
            "results rounded: 1 says that tiling loses nothing. One head. Kinds of data: `fagen check --deviation --help`. Written by `make deviation`; every "
            f"row is in the JSON file beside this one.\n\n{picture}{table(figures['rows'])}\n\nTiles (query rows x keys, forward and backward; the "
            f"first is the planner's):\n\n{tiles(figures['rows'])}\n")


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("spec", nargs="*", help="specs; default: head dims 64 and 128, causal and full")
    p.add_argument("--up-to", type=int, help="longest sequence")
    p.add_argument("--write", nargs="?", const="", metavar="PREFIX", help="write PREFIX.json, .png and .md (default: docs/bench/deviation)")
    o = p.parse_args()
    try:
        command = [str(fagen.built("fagen", "FAGEN")), "check", "--deviation", *o.spec]
    except fagen.FagenError as e:
        report.leave(e)
    if o.up_to is not None:
        command += ["--up-to", str(o.up_to)]
    with tempfile.TemporaryDirectory() as folder:
        rows = pathlib.Path(folder) / "rows.json"
        status = subprocess.run([*command, "--json", str(rows)]).returncode
        if status or o.write is None:
            return status
        figures = json.loads(rows.read_text())
    machine = {"gpu": figures["gpu"], "driver": report.driver(), "date": str(datetime.date.today()), "cuda": figures["cuda"], "fagen": figures["fagen"]}
    prefix = pathlib.Path(o.write) if o.write else report.ROOT / "docs" / "bench" / "deviation"
    at = {end: prefix.with_name(prefix.name + end) for end in (".json", ".png", ".md")}
    report.written(at[".json"], report.rows_json(machine, figures["rows"]))
    at[".png"].unlink(missing_ok=True)  # an old plot is not one of these rows
    report.plot("deviation", at[".json"], at[".png"])
    report.written(at[".md"], page(machine | figures, at[".png"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
