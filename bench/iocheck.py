"""Device memory traffic: what the planner predicts beside what the GPU's counters saw, and both beside standard attention.
`make iocheck` runs it; it needs a GPU and Nsight Compute (ncu), not PyTorch.

One process launches every pass of every case once, and ncu reads dram__bytes_read and dram__bytes_write of each kernel. Caches
are left alone between the kernels of a pass, as in use. Before a pass and after it a kernel reads four times as much memory as
the L2 holds: the pass begins with a cold L2, and what it left there unwritten is written back while that kernel runs, which
itself writes nothing. So bytes of a pass = what its kernels read and wrote + what the reading kernel after it wrote."""
import argparse
import concurrent.futures
import csv
import ctypes as c
import datetime
import io
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import fagen_ctypes as fagen

BATCH, HEADS = 4, 16
TOLERANCE = 0.10
DELIMITER = "l2_read"
PASSES = ("forward", "backward")
READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
UNITS = {"": 1, "byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12}
MASKS = {"full": "", "causal": "mask: causal\n", "window": "mask: {window: {left: 511, right: 0}}\n",
         "sparse": "mask: causal\nblocks: {size: 128, keep: {any: [{local: {left: 1, right: 1}}, {random: {seed: 3, chance: 0.1}}]}}\n"}


class Case:
    """judged: its prediction must hold. Others are there to be compared, and are small against the L2."""
    def __init__(self, d, mask, seq, naive=False, judged=True):
        self.d, self.mask, self.seq, self.naive, self.judged = d, mask, seq, naive, judged

    def spec(self):
        return f"head_dim: {self.d}\npasses: [forward, backward]\n{MASKS[self.mask]}"

    def key(self):
        return (self.d, self.mask, self.seq)


def cases_all():
    judged = [Case(d, mask, seq) for d in (64, 128) for mask, seq in (("causal", 4096), ("causal", 8192), ("window", 8192), ("sparse", 8192))]
    beside = [Case(d, mask, 2048, naive, False) for d in (64, 128) for mask in ("full", "causal") for naive in (False, True)]
    return judged + beside


def measurements():
    return [(case, which) for case in cases_all() for which in PASSES]


# ---- the counters ----

def bytes_of(text, unit):
    if unit not in UNITS:
        raise ValueError(f"ncu counts in '{unit}', which is no unit of bytes")
    return float(text.replace(",", "")) * UNITS[unit]


def rows_read(text):
    """[(kernel, bytes read, bytes written)] in the order of launch, from what `ncu --csv --page raw` prints: lines of its own,
    then a row of names, a row of units, and a row for each kernel."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise ValueError("ncu printed no table:\n" + text[-2000:])
    table = list(csv.reader(io.StringIO("\n".join(line for line in lines[start:] if not line.startswith("==")))))
    for name in ("Kernel Name", READ, WRITE):
        if name not in table[0]:
            raise ValueError(f"ncu's table has no column {name}; it has {', '.join(table[0])}")
    name, read, write = (table[0].index(x) for x in ("Kernel Name", READ, WRITE))
    units = table[1]
    return [(row[name].split("(")[0], bytes_of(row[read], units[read]), bytes_of(row[write], units[write])) for row in table[2:] if row]


def passes_read(rows):
    """[(kernels, bytes)] of each pass: what was launched between two reading kernels, if anything was."""
    passes, kernels, total = [], [], 0.0
    if not rows or rows[0][0] != DELIMITER or rows[-1][0] != DELIMITER:
        raise ValueError(f"the list of kernels does not begin and end with {DELIMITER}: {[r[0] for r in rows]}")
    for kernel, read, written in rows[1:]:
        if "memset" in kernel.lower():
            continue
        if kernel != DELIMITER:
            kernels.append(kernel)
            total += read + written
            continue
        if kernels: # else buffers were filled in between
            passes.append((kernels, total + written))
        kernels, total = [], 0.0
    return passes


# ---- launching: what runs under ncu ----

PTX = """.version 7.0
.target sm_80
.address_size 64
.visible .entry l2_read(.param .u64 from, .param .u64 bytes)
{
	.reg .u64 %at, %end, %step, %t;
	.reg .u32 %i, %n, %c, %v<4>;
	.reg .pred %p;
	mov.u32 %i, %tid.x;
	mov.u32 %n, %ntid.x;
	mov.u32 %c, %ctaid.x;
	mad.lo.u32 %i, %c, %n, %i;
	mul.wide.u32 %t, %i, 16;
	ld.param.u64 %at, [from];
	ld.param.u64 %end, [bytes];
	add.u64 %end, %at, %end;
	add.u64 %at, %at, %t;
	mov.u32 %c, %nctaid.x;
	mul.lo.u32 %n, %n, %c;
	mul.wide.u32 %step, %n, 16;
	setp.ge.u64 %p, %at, %end;
	@%p bra done;
more:
	ld.volatile.global.v4.u32 {%v0, %v1, %v2, %v3}, [%at];
	add.u64 %at, %at, %step;
	setp.lt.u64 %p, %at, %end;
	@%p bra more;
done:
	ret;
}
"""


class Device:
    """The driver API, as far as it is needed here."""
    def __init__(self):
        fagen.driver_call("cuInit", 0)
        device, context, module = c.c_int(), c.c_void_p(), c.c_void_p()
        fagen.driver_call("cuDeviceGet", c.byref(device), 0)
        fagen.driver_call("cuDevicePrimaryCtxRetain", c.byref(context), device)
        fagen.driver_call("cuCtxSetCurrent", context)
        name = c.create_string_buffer(128)
        fagen.driver_call("cuDeviceGetName", name, 128, device)
        self.name = name.value.decode()
        version, l2 = c.c_int(), c.c_int()
        fagen.driver_call("cuDriverGetVersion", c.byref(version))
        fagen.driver_call("cuDeviceGetAttribute", c.byref(l2), 38, device)
        self.driver, self.l2 = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}", l2.value
        fagen.driver_call("cuModuleLoadData", c.byref(module), PTX.encode())
        self.read = c.c_void_p()
        fagen.driver_call("cuModuleGetFunction", c.byref(self.read), module, DELIMITER.encode())
        self.scratch_bytes = 4 * self.l2
        self.scratch = self.alloc(self.scratch_bytes, 0)

    def alloc(self, size, value):
        """Device memory filled with a 16-bit value."""
        at = c.c_uint64()
        fagen.driver_call("cuMemAlloc_v2", c.byref(at), c.c_size_t(max(size, 256)))
        fagen.driver_call("cuMemsetD16_v2", at, c.c_ushort(value), c.c_size_t(max(size, 256) // 2))
        return at.value

    def free(self, at):
        fagen.driver_call("cuMemFree_v2", c.c_uint64(at))

    def flush(self):
        at, size = c.c_uint64(self.scratch), c.c_uint64(self.scratch_bytes)
        params = (c.c_void_p * 2)(c.addressof(at), c.addressof(size))
        fagen.driver_call("cuLaunchKernel", self.read, 1024, 1, 1, 256, 1, 1, 0, None, params, None)
        self.sync()

    def sync(self):
        fagen.driver_call("cuCtxSynchronize")

    def time(self, run):
        """Milliseconds of one run."""
        events = [c.c_void_p(), c.c_void_p()]
        for e in events:
            fagen.driver_call("cuEventCreate", c.byref(e), 0)
        fagen.driver_call("cuEventRecord", events[0], None)
        run()
        fagen.driver_call("cuEventRecord", events[1], None)
        self.sync()
        ms = c.c_float()
        fagen.driver_call("cuEventElapsedTime", c.byref(ms), *events)
        for e in events:
            fagen.driver_call("cuEventDestroy_v2", e)
        return ms.value


ONE = 0x3F80  # bf16 1.0


def dense(at, heads, seq, row):
    return fagen.Tensor(at, heads * seq * row, seq * row, row)


def case_runs(device, kernel, case):
    """({pass: callable}, buffers)."""
    a = fagen.sized(fagen.Args)
    a.batch, a.heads_q, a.heads_kv, a.seqlen_q, a.seqlen_k = BATCH, HEADS, HEADS, case.seq, case.seq
    buffers = []
    for name in ("query", "key", "value", "out", "dout", "dquery", "dkey", "dvalue"):
        buffers.append(device.alloc(BATCH * HEADS * case.seq * case.d * 2, ONE))
        setattr(a, name, dense(buffers[-1], HEADS, case.seq, case.d))
    buffers.append(device.alloc(BATCH * HEADS * case.seq * 4, 0))
    a.lse = dense(buffers[-1], HEADS, case.seq, 1)
    a.workspace_size = kernel.workspace_size(a)
    buffers.append(device.alloc(a.workspace_size, 0))
    a.workspace = buffers[-1]
    return {"forward": lambda: kernel.forward(a), "backward": lambda: kernel.backward(a)}, buffers


def kernels_make(runtime):
    """A kernel for each case; they are compiled side by side."""
    def make(case):
        spec = runtime.spec(case.spec(), "iocheck")
        return runtime.kernel(spec, BATCH, HEADS, HEADS, case.seq, case.seq, naive=case.naive)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return list(pool.map(make, cases_all()))


def launch(timed):
    """Launches every measurement once, between reading kernels; timed: several times, and prints what it took as JSON."""
    device, runtime = Device(), fagen.Runtime()
    kernels = kernels_make(runtime)
    ms = []
    for case, kernel in zip(cases_all(), kernels):
        runs, buffers = case_runs(device, kernel, case)
        if not timed:
            device.flush() # the buffers were written when they were filled
        for which in PASSES:
            if timed:
                ms.append(statistics.median([device.time(runs[which]) for _ in range(6)][1:]))
            else:
                runs[which]()
                device.sync()
                device.flush()
        for at in buffers:
            device.free(at)
    if timed:
        print(json.dumps({"gpu": device.name, "driver": device.driver, "l2": device.l2, "ms": ms}))


# ---- predictions, tables ----

def plans(case, gpu, folder):
    """{pass: (bytes predicted, of standard attention, GFLOP done, GFLOP useful)} by `fagen explain`."""
    path = folder / "spec.yaml"
    path.write_text(case.spec())
    return {which: (k["hbm_bytes"], p["standard_bytes"], k["mma_flop"] * 1e-9, p["useful_flop"] * 1e-9)
            for which, (p, k) in fagen.plans(path, gpu, BATCH, HEADS, HEADS, case.seq).items()}


def results_make(predicted, counted, ms):
    """One dict for each measurement; `predicted` by case key, `counted` as passes_read gives them."""
    wanted = measurements()
    if len(counted) != len(wanted) or len(ms) != len(wanted):
        raise ValueError(f"{len(wanted)} passes were to be launched, ncu saw {len(counted)} and {len(ms)} were timed")
    results = []
    for (case, which), (kernels, seen), time in zip(wanted, counted, ms):
        ours, standard, done, useful = predicted[case.key()][which]
        p = standard if case.naive else ours
        results.append({"case": case, "pass": which, "kernels": kernels, "predicted": p, "measured": seen, "ratio": p / seen, "ms": time,
                        "done": None if case.naive else done, "useful": useful})
    return results


def wrong_of(results):
    return [r for r in results if r["case"].judged and not abs(r["ratio"] - 1) <= TOLERANCE]


def predicted_table(results):
    lines = ["| pass | d | mask | seq | predicted MB | measured MB | predicted/measured | |", "|---|---|---|---|---|---|---|---|"]
    bad = wrong_of(results)
    for r in results:
        if r["case"].judged:
            k = r["case"]
            lines.append(f"| {r['pass']} | {k.d} | {k.mask} | {k.seq} | {r['predicted'] / 1e6:.1f} | {r['measured'] / 1e6:.1f} | {r['ratio']:.3f} | "
                         f"{'outside' if r in bad else ''} |")
    return "\n".join(lines)


def beside_table(results):
    """As table and figure 2 of the FlashAttention paper: work, traffic and time of standard attention and of fagen."""
    lines = ["| pass | d | mask | | standard | fagen | factor |", "|---|---|---|---|---|---|---|"]
    at = {(r["case"].key(), r["pass"], r["case"].naive): r for r in results if not r["case"].judged}
    for (key, which, naive), r in at.items():
        if naive or (key, which, True) not in at:
            continue
        s = at[key, which, True]
        head = f"| {which} | {key[0]} | {key[1]} |"
        lines += [f"{head} GFLOP | {s['useful']:.1f} | {r['done']:.1f} | {s['useful'] / r['done']:.2f} |",
                  f"{head} HBM GB | {s['measured'] / 1e9:.3f} | {r['measured'] / 1e9:.3f} | {s['measured'] / r['measured']:.1f} |",
                  f"{head} ms | {s['ms']:.3f} | {r['ms']:.3f} | {s['ms'] / r['ms']:.1f} |",
                  f"{head} predicted/measured | {s['ratio']:.2f} | {r['ratio']:.2f} | |"]
    return "\n".join(lines)


def report(results, gpu, driver):
    judged = [r for r in results if r["case"].judged]
    return (f"# Device memory traffic on {gpu}\n\n{datetime.date.today()}, driver {driver}. bf16, batch {BATCH}, {HEADS} heads. Counters of Nsight Compute "
            "(dram__bytes_read + dram__bytes_write) summed over the kernels of a pass, cold L2, what the pass left in L2 counted as written. "
            f"Predicted: `hbm_bytes` of `fagen explain --json`. Written by `make iocheck`.\n\n## Predicted and measured\n\n{predicted_table(results)}\n\n"
            f"{len(judged) - len(wrong_of(results))} of {len(judged)} within {TOLERANCE:.0%}.\n\n## Beside standard attention\n\nSequence 2048. Standard: the naive "
            "kernels, scores in memory in float32; their GFLOP are those of the visible cells, fagen's count recomputed and half-empty tiles too. At "
            f"this length much of fagen's traffic fits in L2, so its predictions are not judged here.\n\n{beside_table(results)}\n")


# ---- self-test: no GPU ----

SAMPLE = '''==PROF== Connected to process 7 (/usr/bin/python3)
==PROF== Profiling "l2_read" - 0: 0%....50%....100% - 1 pass
"ID","Process ID","Kernel Name","Block Size","dram__bytes_read.sum","dram__bytes_write.sum"
"","","","","Mbyte","byte"
"0","7","l2_read(unsigned long, unsigned long)","(256, 1, 1)","240.5","1,024"
"1","7","fagen_forward","(128, 1, 1)","100.25","50,000,000"
"2","7","l2_read","(256, 1, 1)","240","7000000"
==PROF== Disconnected from process 7
"3","7","fagen_delta(Args, int)","(128, 1, 1)","1","2000000"
"4","7","fagen_backward","(128, 1, 1)","3","4000000"
"5","7","l2_read","(256, 1, 1)","240","500000"
"6","7","memset_kernel","(256, 1, 1)","1","9000000"
"7","7","l2_read","(256, 1, 1)","240","70000000"
'''


def expect(what, got, want):
    if got != want:
        sys.exit(f"iocheck --selftest: {what} is {got!r}, not {want!r}")


def refused(what, call, *args):
    try:
        call(*args)
    except ValueError as e:
        return str(e)
    sys.exit(f"iocheck --selftest: {what} was accepted")


def selftest():
    rows = rows_read(SAMPLE)
    expect("the first row", rows[0], ("l2_read", 240.5e6, 1024.0))
    expect("the passes", passes_read(rows), [(["fagen_forward"], 157.25e6), (["fagen_delta", "fagen_backward"], 10.5e6)])
    refused("a log without a table", rows_read, "==ERROR== no permission\n")
    refused("a table without the counter", rows_read, SAMPLE.replace(WRITE, "sm__cycles"))
    refused("an unknown unit", rows_read, SAMPLE.replace("Mbyte", "sector"))
    refused("a list that ends in the middle", passes_read, rows[:-1])
    expect("passes of nothing", passes_read([rows[0], rows[0]]), [])
    n = len(measurements())
    plan = {p: (100.0e6, 3.0e9, 2.0, 1.0) for p in PASSES}
    predicted = {case.key(): plan for case in cases_all()}
    seen = [(["k"], 100e6)] * n
    refused("a pass that is missing", results_make, predicted, seen[1:], [1.0] * n)
    expect("what is wrong", wrong_of(results_make(predicted, seen, [1.0] * n)), [])
    for factor, bad in ((0.905, 0), (1.12, 1), (0.89, 1)):
        off = results_make(predicted, [(["k"], 100e6 / factor)] + seen[1:], [1.0] * n)
        expect(f"predictions {factor} times too large", len(wrong_of(off)), bad)
    text = report(results_make(predicted, seen, [2.0] * n), "a GPU", "CUDA 13.0")
    expect("rows of the tables", sum(line.startswith("| ") for line in text.splitlines()), 2 + 16 + 4 * 8)
    expect("the number of right ones", "16 of 16 within 10%." in text, True)
    print("iocheck: the parser and the tables are right")


# ---- main ----

def ncu_find():
    places = [os.environ.get("NCU"), shutil.which("ncu"), "/usr/local/cuda/bin/ncu"]
    places += sorted(map(str, pathlib.Path("/opt/nvidia").glob("nsight-compute/*/ncu")), reverse=True)
    return next((p for p in places if p and pathlib.Path(p).exists()), None)


def counters(ncu, folder):
    log = folder / "ncu.csv"
    run = subprocess.run([ncu, "--target-processes", "all", "--csv", "--page", "raw", "--print-units", "base", "--cache-control", "none", "--clock-control", "none", "--metrics",
                          f"{READ},{WRITE}", "--log-file", str(log), sys.executable, str(pathlib.Path(__file__).resolve()), "--launch"],
                         capture_output=True, text=True)
    text = (log.read_text() if log.exists() else "") + run.stdout
    if run.returncode or '"ID"' not in text:
        raise fagen.FagenError(f"ncu failed (exit {run.returncode}):\n{text[-3000:]}{run.stderr[-2000:]}")
    return passes_read(rows_read(text))


def main():
    parser = argparse.ArgumentParser(prog="iocheck", description="HBM traffic predicted and measured; exit 1 when a prediction is off by more than 10%.")
    parser.add_argument("--write", metavar="FILE", nargs="?", const=str(HERE / "results" / "iocheck.md"), help="write the report (default bench/results/iocheck.md)")
    parser.add_argument("--selftest", action="store_true", help="test the parser; needs no GPU")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--time", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.selftest:
        return selftest()
    if options.launch or options.time:
        return launch(options.time)
    ncu = ncu_find()
    if not ncu:
        print("iocheck: ncu (Nsight Compute) is missing; looked in PATH, /usr/local/cuda and /opt/nvidia. Name it in NCU.", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        # First without ncu: the kernels are compiled and timed.
        run = subprocess.run([sys.executable, str(pathlib.Path(__file__).resolve()), "--time"], capture_output=True, text=True)
        if run.returncode:
            raise fagen.FagenError(run.stderr[-3000:])
        timed = json.loads(run.stdout.splitlines()[-1])
        predicted = {case.key(): plans(case, timed["gpu"], folder) for case in cases_all()}
        if not all(predicted.values()):
            print(f"iocheck: the planner does not know {timed['gpu']}, so there is no prediction to check.", file=sys.stderr)
            return 3
        results = results_make(predicted, counters(ncu, folder), timed["ms"])
    text = report(results, timed["gpu"], timed["driver"])
    print(text)
    if options.write:
        path = pathlib.Path(options.write)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 1 if wrong_of(results) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (fagen.FagenError, ValueError, OSError) as e:
        print(f"iocheck: {e}", file=sys.stderr)
        sys.exit(3)
