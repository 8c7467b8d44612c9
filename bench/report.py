"""What the benchmarks share: the machine, a list of cases under a time limit, and where figures are written."""
import datetime
import json
import pathlib
import subprocess
import sys
import time

import fagen_ctypes as fagen

ROOT = pathlib.Path(__file__).resolve().parents[1]


def leave(why):
    print(f"bench: {why}", file=sys.stderr)
    sys.exit(3)


def gpu_open():
    """The runtime, in PyTorch's primary context."""
    import torch
    if not torch.cuda.is_available():
        leave("no GPU that PyTorch can use; the peers are timed on a GPU only")
    torch.empty(1, device="cuda")
    try:
        return fagen.Runtime()
    except (fagen.FagenError, OSError) as e:
        leave(e)


def driver():
    """The version of the NVIDIA driver, or "unknown"."""
    try:
        run = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"], capture_output=True, text=True)
        return run.stdout.strip() if run.returncode == 0 and run.stdout.strip() else "unknown"
    except OSError:
        return "unknown"


def machine(runtime):
    """What figures depend on beside the sources."""
    import torch
    p = torch.cuda.get_device_properties(0)
    return {"gpu": p.name, "driver": driver(), "date": str(datetime.date.today()), "fagen": runtime.version(), "sms": p.multi_processor_count,
            "torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}


def heading(m):
    return (f"{m['date']}, fagen {m['fagen']}, {m['sms']} SMs, driver {m['driver']}, PyTorch {m['torch']}, CUDA {m['cuda']}, cuDNN {m['cudnn']}.")


class Run:
    """Cases one after the other. A failed one is told at once and again at the end; none starts after `limit` seconds."""

    def __init__(self, limit):
        self.began, self.limit, self.failed, self.skipped = time.monotonic(), limit, [], 0

    def seconds(self):
        return time.monotonic() - self.began

    def each(self, cases, label, measure):
        """[(case, measure(case))] of those that ran; measure returns its result and a line that tells it."""
        import torch
        results = []
        for case in cases:
            if self.seconds() > self.limit:
                self.skipped += 1
                continue
            try:
                result, line = measure(case)
                results.append((case, result))
                print(f"{label(case)}: {line}", file=sys.stderr, flush=True)
            except (fagen.FagenError, RuntimeError, subprocess.CalledProcessError) as e:
                self.failed.append(f"{label(case)}: {e}")
                print(f"bench: {self.failed[-1]}", file=sys.stderr, flush=True)
            torch.cuda.empty_cache()
        return results

    def status(self):
        if self.skipped:
            print(f"bench: {self.skipped} cases were not run: {self.limit:.0f} s were over (--limit)", file=sys.stderr)
        for line in self.failed:
            print(f"bench: {line}", file=sys.stderr)
        return 4 if self.failed else 0


def peak(run):
    """Bytes that the call allocates at the most beside what there was."""
    import torch
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def written(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"written to {path}", file=sys.stderr)


def page_path(given, machine, suffix):
    return pathlib.Path(given) if given else ROOT / "bench" / "results" / f"{file_name(machine)}{suffix}.md"


def page_written(given, machine, kind, text):
    """What --write asks for: None, nothing; "", the page of this GPU and kind in bench/results; else a path."""
    if given is not None:
        written(page_path(given, machine, f"-{kind}"), text)


def figures_written(given, machine, suffix, text, kind, rows):
    """A page likewise, and its rows and what bench/plot.py draws of them: beside a page that was given, else in docs/bench."""
    if given is None:
        return
    page = page_path(given, machine, suffix)
    rows_at = page.with_suffix(".json") if given else ROOT / "docs" / "bench" / f"{file_name(machine)}{suffix}.json"
    written(page, text)
    written(rows_at, rows_json(machine, rows))
    plot(kind, rows_at, rows_at.with_suffix(""))


def rows_json(head, rows):
    """One row a line."""
    return json.dumps(head)[:-1] + ', "rows": [\n' + ",\n".join(json.dumps(r) for r in rows) + "\n]}\n"


def file_name(machine):
    return machine["gpu"].removeprefix("NVIDIA ").lower().replace(" ", "-")


def plot(*args):
    """bench/plot.py as a command of its own: false, after saying so, when it could not draw."""
    done = subprocess.run([sys.executable, str(ROOT / "bench" / "plot.py"), *map(str, args)]).returncode == 0
    if not done:
        print("bench: no plots were drawn", file=sys.stderr)
    return done
