"""How good the cost model is on this GPU: `fagen bench --sweep` over the bench list, as a page. Every tile that the model
admits is timed; the choice of the planner is compared with the fastest. `make model-report` runs it. Needs no PyTorch."""
import argparse
import datetime
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import fagen_ctypes as fagen
import report

TOKENS, WIDTH = 16384, 2048  # of every dense problem: batch * seq, heads * d
# One of each kind that is not dense: a window, documents, a softcap, dropout, two block-sparse layouts.
REGRET_MEDIAN, REGRET_WORST = 1.03, 1.10  # what a calibrated planner is held to
LIBRARY = ("mistral_window", "packed_documents", "gemma2", "gpt2_train", "bigbird", "block_bitmap")


def dense_specs():
    """Name and text of each."""
    for d in (64, 128, 256):
        for mask in ("full", "causal"):
            for seq in (1024, 4096, 16384):
                yield f"{mask}_d{d}_{seq // 1024}k", (
                    f"head_dim: {d}\ndtype: bf16\npasses: [forward, backward]\nkv_group: 1\nmask: {'causal' if mask == 'causal' else 'none'}\n"
                    f"assume: {{batch: {TOKENS // seq}, heads: {WIDTH // d}, seqlen: {seq}}}\n")


def specs_write(folder, only):
    """Paths of the specs, those asked for."""
    paths = []
    for name, text in dense_specs():
        path = folder / f"{name}.yaml"
        path.write_text(text)
        paths.append(path)
    paths += [report.ROOT / "specs" / f"{name}.yaml" for name in LIBRARY]
    chosen = [p for p in paths if not only or p.stem in only]
    if not chosen:
        sys.exit("model: no such spec; there are " + ", ".join(p.stem for p in paths))
    return [str(p) for p in chosen]


def command_json(*args):
    """What a command of fagen prints, and its exit status; messages go to the standard error."""
    run = subprocess.run([str(fagen.built("fagen", "FAGEN")), *args], stdout=subprocess.PIPE)
    return (json.loads(run.stdout) if run.stdout else None), run.returncode


def by_tile(row, name):
    return next((t for t in row["tiles"] if t["tile"] == row[name]), None)


def ratio(tile):
    return tile["predicted_us"] / tile["us"]


def table(rows):
    lines = ["| spec | pass | problem | tiles timed/legal | chosen | ms | predicted/measured | of all tiles | fastest | ms | regret |",
             "|" + "---|" * 11]
    for r in rows:
        chosen, best = by_tile(r, "tile"), by_tile(r, "best")
        all_tiles = [ratio(t) for t in r["tiles"]]
        lines.append(f"| {r['spec']} | {r['pass']} | {r['problem']} | {len(r['tiles'])}/{r['legal']} | {r['tile']} | {chosen['us'] * 1e-3:.3f} "
                     f"| {ratio(chosen):.2f} | {min(all_tiles):.2f} to {max(all_tiles):.2f} | {r['best']} | {best['us'] * 1e-3:.3f} "
                     f"| {chosen['us'] / best['us']:.3f} |")
    return "\n".join(lines)


def wisdom_result(text):
    """Lines of `fagen tune`, in which tiles of all templates took part, as a sweep says it."""
    line = re.compile(r'(\w+) gpu="([^"]*)".* problem="([^"]*)" tile="([^"]*)" us=([\d.]+) .* planner="([^"]*)" planner_us=([\d.]+) spec=(.*)')
    rows = [m.groups() for m in map(line.fullmatch, text.splitlines()) if m]
    return {"gpu": ", ".join(sorted({r[1] for r in rows})),
            "passes": [{"spec": r[7], "pass": r[0], "problem": r[2], "tile": r[5], "best": r[3],
                        "tiles": [{"tile": r[5], "us": float(r[6])}] + [{"tile": r[3], "us": float(r[4])}] * (r[3] != r[5])} for r in rows]}


def regret(result):
    """Text, and whether the limits are kept."""
    rows = sorted(((by_tile(r, "tile")["us"] / by_tile(r, "best")["us"], r) for r in result["passes"]), key=lambda pair: -pair[0])
    values = [value for value, _ in rows]
    lines = [f"{value:.3f}  {r['spec']:20}  {r['pass']:8}  {r['problem']:38}  {r['tile']:14}  {r['best']:14}" for value, r in rows]
    median, worst = statistics.median(values), values[0]
    lines.append(f"regret on {result['gpu']}: median {median:.3f} (at most {REGRET_MEDIAN}), worst {worst:.3f} (at most {REGRET_WORST}), {len(rows)} passes")
    return "\n".join(lines), median <= REGRET_MEDIAN and worst <= REGRET_WORST


def page(result, driver, seconds):
    s, rows = result["summary"], result["passes"]
    every = [ratio(t) for r in rows for t in r["tiles"]]
    return (f"# The cost model on {result['gpu']}\n\n{datetime.date.today()}, driver of CUDA {driver}. Every tile that the model admits, but those "
            "predicted 2.5 times slower than its choice; median of single launches, inputs rotated out of L2, random data. Regret: time of the "
            "planner's choice over that of the fastest tile. What depends on data, as documents and bitmaps do, is planned as if all of it were visible. "
            f"The run took {seconds:.0f} s. Written by `make model-report`.\n\n"
            f"- predicted over measured, choices: median {s['ratio_median']:.2f}, {s['ratio_least']:.2f} to {s['ratio_most']:.2f}; half within "
            f"{s['error_median'] * 100:.0f}%; {len(rows)} passes\n"
            f"- predicted over measured, all tiles: median {statistics.median(every):.2f}, {min(every):.2f} to {max(every):.2f}; {len(every)} tiles\n"
            f"- regret: median {s['regret_median']:.3f}, worst {s['regret_worst']:.3f}\n\n{table(rows)}\n")


def selftest():
    """Are the specs there, and does the planner have a tile for both passes of each?"""
    missing = []
    with tempfile.TemporaryDirectory() as folder:
        paths = specs_write(pathlib.Path(folder), None)
        for path in paths:
            told, _ = command_json("explain", "--json", "--gpu", "H200", path)
            planned = [p["pass"] for p in (told or {"plans": []})["plans"] if p["chosen"] >= 0]
            if planned != ["forward", "backward"]:
                missing.append(pathlib.Path(path).stem)
    print("model: " + (f"no plan for both passes of {', '.join(missing)}" if missing else f"both passes of {len(paths)} specs are planned"))
    return 4 if missing else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--spec", action="append", help="only this one (may be repeated)")
    p.add_argument("--regret", action="store_true", help="only how far the planner's choices are from the fastest tiles, the worst first; "
                   f"exit status 4 if the median is above {REGRET_MEDIAN} or one above {REGRET_WORST}")
    p.add_argument("--rows", metavar="FILE", help="what `fagen bench --sweep --json` or, with --regret, `fagen tune -o` wrote, instead of a run")
    p.add_argument("--write", nargs="?", const=str(HERE / "results" / "model.md"), metavar="FILE",
                   help="write the figures (default: bench/results/model.md)")
    p.add_argument("--selftest", action="store_true", help="plan the specs instead of timing them; needs no GPU")
    o = p.parse_args()
    if o.selftest:
        return selftest()
    began = time.monotonic()
    try:
        if o.rows:
            rows, status = pathlib.Path(o.rows).read_text(), 0
            result = wisdom_result(rows) if rows.startswith("fagen-wisdom") else json.loads(rows)
        else:
            with tempfile.TemporaryDirectory() as folder:
                result, status = command_json("bench", "--sweep", "--json", *specs_write(pathlib.Path(folder), o.spec))
        if o.regret and result and result.get("passes"):
            text, kept = regret(result)
            print(text)
            return status or (0 if kept else 4)
        machine, _ = command_json("env", "--json")
    except (fagen.FagenError, OSError) as e:
        print(f"model: {e}", file=sys.stderr)
        return 3
    if not result or "summary" not in result:
        return status or 3
    version = machine["driver"]["version"]
    text = page(result, f"{version // 1000}.{version % 1000 // 10}", time.monotonic() - began)
    print(text)
    if o.write:
        path = pathlib.Path(o.write)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(f"written to {path}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
