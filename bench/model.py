"""How good the cost model is on this GPU: `fagen bench --sweep` over the bench list, as a page. Every tile that the model
admits is timed; the choice of the planner is compared with the fastest. `make model-report` runs it. Needs no PyTorch."""
import argparse
import datetime
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import fagen_ctypes as fagen

TOKENS, WIDTH = 16384, 2048  # of every dense problem: batch * seq, heads * d
# One of each kind that is not dense: a window, documents, a softcap, dropout, two block-sparse layouts.
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
    paths += [fagen.ROOT / "specs" / f"{name}.yaml" for name in LIBRARY]
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


def report(result, driver, seconds):
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


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--spec", action="append", help="only this one (may be repeated)")
    p.add_argument("--write", nargs="?", const=str(HERE / "results" / "model.md"), metavar="FILE",
                   help="write the figures (default: bench/results/model.md)")
    o = p.parse_args()
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            result, status = command_json("bench", "--sweep", "--json", *specs_write(pathlib.Path(folder), o.spec))
        machine, _ = command_json("env", "--json")
    except (fagen.FagenError, OSError) as e:
        print(f"model: {e}", file=sys.stderr)
        return 3
    if not result or "summary" not in result:
        return status or 3
    version = machine["driver"]["version"]
    text = report(result, f"{version // 1000}.{version % 1000 // 10}", time.monotonic() - began)
    print(text)
    if o.write:
        path = pathlib.Path(o.write)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(f"written to {path}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
