"""Builds of fagen raced against each other on this GPU: the libraries of two commits, or one library with other templates, tiles,
wisdom or keys of the spec, and peers of bench/peers.py beside them. For differences of a few percent, which two runs do not show:
`make bench-ab AB="..."` runs it, for instance with

    --build old:/tmp/old/libfagen.so --build new:build/release/libfagen.so bench/cases/dense.txt
    --build is:$LIB --build edited:$LIB:templates=/tmp/edited --only d128-causal bench/cases/backward.txt
    --build is:$LIB --build three:$LIB:tile=192x128w16s3 --peers cuDNN "one {head_dim: 64} 16 1024 32 forward"
    --build none:$LIB --build 'drop:$LIB:spec=dropout: 0.1' --peers FA2,cuDNN bench/cases/dropout.txt
    --build portable:$LIB:portable=1 --build native:$LIB bench/cases/presets.txt

A build is NAME:LIBRARY[:KEY=VALUE]..., and what plans it the command `fagen` beside the library, else that of this tree:
  templates=FOLDER   kernels of this folder instead of those built in
  wisdom=FILE        as `fagen tune` writes it
  tile=192x80w16s2   of the forward pass: rows, keys, warps, stages; parts may be left out at the end. btile: of the backward pass
  portable=1         the sm_80 templates, which need no Hopper, in the tiles that the planner has for rows of any alignment
  spec=KEYS          added to the spec of each case; it is the last of a build, for it may have colons

A case is NAME {KEYS OF A SPEC} BATCH SEQ HEADS[/KV] forward|backward, a line of a file or an argument; bf16.

All contenders of a case take their turn in every round, in rotating order. "single" is the median of launches by themselves, behind
a flush of L2 and a rest; "sustained" that of loops as long as --loop, in which the GPU reaches the clocks that its power allows.
Columns of each: microseconds, half of the spread, speed beside the first build (above 1: faster), TFLOP/s of the cells that the mask
keeps, and in lists that have a case `full`: time of a visited cell there over time of a visited cell here (1: as fast as dense).
Then template and tile ("?" where the library took another than the command planned), registers, spilled bytes, v: the share of cells
in visited tiles, counted where data rule it, and the distance in norm of the results from those of the first build with the same
spec; of a build, above 2% it is a failure. With dropout, nothing is compared. Exit status 4 if anything failed."""
import argparse
import concurrent.futures
import functools
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time

import fagen_ctypes as fagen
import report

if not {"--dry", "-h", "--help"} & set(sys.argv):  # plans need no PyTorch
    import peers  # leaves with a message when PyTorch is missing
    import torch
    from torch.nn.attention import SDPBackend
    import fa4
    import inputs

PASSES = ("forward", "backward")
KINDS = ("single", "sustained")
PEERS = ("FA2", "cuDNN", "FA4")
APART = 0.02  # two right kernels differ by less, in norm


class Case:
    LINE = re.compile(r"(\S+)\s+\{(.*)\}\s+(\d+)\s+(\d+)\s+(\d+)(?:/(\d+))?\s+(forward|backward)")

    def __init__(self, line):
        m = self.LINE.fullmatch(line.strip())
        d = m and re.search(r"head_dim: (\d+)", m[2])
        if not d:
            sys.exit(f"ab: not a case: {line}\nab: a case is NAME {{head_dim: N, ...}} BATCH SEQ HEADS[/KV] forward|backward")
        self.name, self.keys, self.way, self.d = m[1], m[2], m[7], int(d[1])
        self.batch, self.seq, self.heads = map(int, m.group(3, 4, 5))
        self.heads_kv = int(m[6] or m[5])
        self.causal = "mask: causal" in self.keys
        self.plain = bool(re.fullmatch(r"head_dim: \d+(, mask: causal)?", self.keys))  # peers can do it
        self.passes = PASSES[:PASSES.index(self.way) + 1]

    def label(self):
        return f"{self.name} {self.way}"


def cases_read(given, only):
    lines = [line for g in given for line in ([g] if "{" in g else pathlib.Path(g).read_text().splitlines())]
    cases = [Case(line) for line in lines if line.strip() and not line.startswith("#")]
    chosen = [case for case in cases if not only or any(re.search(o, case.name) for o in only)]
    if not chosen:
        sys.exit("ab: no such case; there are " + ", ".join(dict.fromkeys(case.name for case in cases)))
    return chosen


# ---- builds, and how they plan ----

def tile_parse(text):
    m = re.fullmatch(r"(\d+)x(\d+)(?:w(\d+))?(?:s(\d+))?", text)
    if not m:
        sys.exit(f"ab: a tile is 192x80w16s2, not {text}")
    return {name: int(n) for name, n in zip(("m", "n", "warps", "stages"), m.groups()) if n}


class Build:
    KEYS = {"templates", "wisdom", "tile", "btile", "portable", "spec"}

    def __init__(self, text, gpu):
        head, _, self.spec = text.partition(":spec=")
        name, *rest = head.split(":")
        options = dict(pair.partition("=")[::2] for pair in rest[1:])
        if not name or not rest or not pathlib.Path(rest[0]).exists() or set(options) - self.KEYS:
            sys.exit(f"ab: a build is NAME:LIBRARY[:KEY=VALUE]..., the library a file, keys {', '.join(sorted(self.KEYS))}; not {text}")
        self.name, self.gpu, self.library = name, gpu, pathlib.Path(rest[0]).resolve()
        self.templates, self.wisdom, self.portable = (options.get(key, "") for key in ("templates", "wisdom", "portable"))
        self.tiles = {way: tile_parse(options[key]) for way, key in zip(PASSES, ("tile", "btile")) if key in options}
        beside = self.library.with_name("fagen")
        self.command = beside if beside.exists() else fagen.built("fagen", "FAGEN")
        self.runtime, self.specs = None, {}

    def text(self, case, tiles):
        keys = [case.keys, f"kv_group: {case.heads // case.heads_kv}, passes: [{', '.join(case.passes)}], outputs: [out, lse]"]
        keys += [self.spec, f"tile: {json.dumps(tiles)}" if tiles else ""]
        return "{" + ", ".join(filter(None, keys)) + "}\n"

    def explained(self, case, way, tiles, align=16):
        """The plan, and its chosen candidate."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / f"{case.name}.yaml"
            path.write_text(self.text(case, tiles))
            flags = {"gpu": self.gpu, "batch": case.batch, "heads": case.heads, "heads_kv": case.heads_kv, "seq": case.seq, "align": align,
                     "pass": way} | ({"wisdom": self.wisdom} if self.wisdom else {})
            try:
                plan = fagen.explained(path, self.command, **flags)[0]
            except fagen.FagenError as e:
                raise fagen.FagenError(f"{self.name}: {e}") from e
        if plan["chosen"] < 0:
            raise fagen.FagenError(f"{self.name}: no tile is admitted")
        return plan, plan["candidates"][plan["chosen"]]

    @functools.cache
    def tiles_of(self, case):
        """What the spec says of tiles."""
        tiles = {way: tile for way, tile in self.tiles.items() if way in case.passes}
        for way in case.passes if self.portable == "1" else ():
            t = self.explained(case, way, tiles, align=2)[1]
            tiles.setdefault(way, {"m": t["tile_m"], "n": t["tile_n"], "warps": t["warps"], "stages": t["stages"]})
        return tiles

    def plan(self, case):
        return self.explained(case, case.way, self.tiles_of(case))

    def open(self):
        os.environ["FAGEN_LIB"] = str(self.library)
        self.runtime = fagen.Runtime(templates_dir=self.templates, wisdom_path=self.wisdom)

    def spec_of(self, case):
        """Parsed once, and its kernel got."""
        if case not in self.specs:
            spec = self.runtime.spec(self.text(case, self.tiles_of(case)), case.name)
            self.runtime.kernel(spec, case.batch, case.heads, case.heads_kv, case.seq, case.seq)
            self.specs[case] = spec
        return self.specs[case]


def tile_name(t):
    return f"{t['tile_m']}x{t['tile_n']}w{t['warps']}s{t['stages']}"


def dry(cases, builds):
    """What would be raced, as planned: needs no GPU."""
    failed = 0
    for case in cases:
        for build in builds:
            try:
                plan, t = build.plan(case)
                print(f"{case.label():36} {build.name:12} {plan['template']:13} {tile_name(t):14} {t['time_us']:9.1f} us predicted, "
                      f"{plan['useful_flop'] / t['time_us'] * 1e-6:.0f} TFLOP/s, v{t['visited']:.4f}")
            except fagen.FagenError as e:
                failed += 1
                print(f"{case.label():36} {e}")
    return 4 if failed else 0


# ---- the race ----

def timed(run, times):
    """Microseconds of one of `times` runs in a row. The queue is kept full, so the host is not timed."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(1_000_000)  # clocks: the host gets ahead
    begin.record()
    for _ in range(times):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / times


def rounds(runs, count, measure):
    """{name: [measure(run)]}: `count` rounds, in each of which another begins."""
    names, times = list(runs), {name: [] for name in runs}
    for i in range(count):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(measure(runs[name]))
    return times


def apart(ours, theirs):
    """Distance in norm, of the worst result; NaN if there is one in either."""
    distance = lambda a, b: (a.float() - b.float()).norm() / b.float().norm().clamp_min(1e-30)
    return torch.stack([distance(a, b) for a, b in zip(ours, theirs)]).max().item()


class Race:
    def __init__(self, options, builds):
        self.o, self.builds, self.run = options, builds, report.Run(options.limit)
        self.rows, self.full = [], {}  # full: microseconds of a visited cell of the case of that name
        self.trash = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")

    def compile(self, cases):
        """On all cores, before anything is timed. What fails here fails again in its race, and is told there."""
        with concurrent.futures.ThreadPoolExecutor(self.o.jobs) as pool:
            for case in cases:
                for build in self.builds:
                    pool.submit(build.spec_of, case)

    def fail(self, case, name, why):
        self.run.failed.append(f"{case.label()}, {name}: {why}")
        print(f"bench: {self.run.failed[-1]}", file=sys.stderr, flush=True)

    def ours(self, case, build, data):
        """A contender that has run once, and what is told of it."""
        plan, tile = build.plan(case)
        spec = build.spec_of(case)
        info, infos = build.runtime.spec_info(spec)
        read = inputs.made(infos, info, case)
        made = peers.Fagen(build.runtime, spec, case, data, inputs=read)
        for way in case.passes:
            made.run[way]()
        torch.cuda.synchronize()
        kernel, w = made.kernel.info(), PASSES.index(case.way)
        same = (kernel.tile_m[w], kernel.tile_n[w]) == (tile["tile_m"], tile["tile_n"])
        return made, {"template": plan["template"] if same else "?", "tile": tile_name(tile) if same else f"{kernel.tile_m[w]}x{kernel.tile_n[w]}",
                      "registers": kernel.registers[w], "spill_bytes": kernel.spill_bytes[w], "visited": inputs.visited(case, tile, read, info),
                      "dropout": info.dropout, "useful_flop": plan["useful_flop"]}

    def rivals(self, case, data, chances):
        """{name: (peer, its chance of dropout)} of those asked for that can do the case."""
        backends = {"FA2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
        found = {}
        for name in self.o.peers if case.plain else ():
            for p in sorted(chances):
                if name in backends:
                    peer = peers.peer_make(lambda: peers.Sdpa(backends[name], case, data, p))
                else:
                    peer = peers.peer_make(lambda: fa4.Contender(data, causal=case.causal)) if p == 0 and fa4.found() else None
                if peer:
                    found[name + (f" p{p:g}" if p else "")] = peer, p
        return found

    def contenders(self, case):
        """{name: callable}, and {name: what is told}."""
        torch.manual_seed(1)
        new = lambda heads: torch.randn(case.batch, heads, case.seq, case.d, device="cuda", dtype=torch.bfloat16)
        data = (new(case.heads), new(case.heads_kv), new(case.heads_kv), new(case.heads))
        runs, told, firsts = {}, {}, {}  # firsts: results to compare with, by what is added to the spec
        for build in self.builds:
            try:
                made, facts = self.ours(case, build, data)
            except (fagen.FagenError, RuntimeError) as e:
                self.fail(case, build.name, e)
                continue
            results = [made.out, *(made.grads if case.way == "backward" else ())]
            facts["apart"] = apart(results, results if facts["dropout"] else firsts.setdefault(build.spec, results))  # of its own: NaN alone
            if not facts["apart"] <= APART:
                self.fail(case, build.name, f"its results are {facts['apart']:.2%} apart in norm")
            runs[build.name], told[build.name] = made.run[case.way], facts
        chances = {facts["dropout"] for facts in told.values()}
        for name, (peer, p) in self.rivals(case, data, chances).items():
            runs[name], told[name] = peer.run[case.way], {}
            if "" in firsts and not p:
                told[name]["apart"] = apart(peer.results()[:len(firsts[""])], firsts[""])
        return runs, told

    def times(self, runs):
        def single(run):
            self.trash.zero_()
            torch.cuda.synchronize()
            time.sleep(self.o.pause * 1e-3)
            return timed(run, 1)
        sustained = lambda run: timed(run, max(3, int(self.o.loop * 1e3 / timed(run, 3))))
        for run in runs.values():
            timed(run, 3)
        return {"single": rounds(runs, self.o.single, single), "sustained": rounds(runs, self.o.sustained, sustained)}

    def case_run(self, case):
        runs, told = self.contenders(case)
        if not runs:
            raise fagen.FagenError("no build runs it")
        first = next(iter(runs))
        measured = {kind: times for kind, times in self.times(runs).items() if times[first]}
        print(f"\n{case.label()} b{case.batch} s{case.seq} h{case.heads}/{case.heads_kv} {{{case.keys}}}")
        for name in runs:
            row = {"case": case.name, "pass": case.way, "contender": name, "batch": case.batch, "seq": case.seq, "heads": case.heads,
                   "heads_kv": case.heads_kv, "spec": case.keys, **told[name]}
            for kind, times in measured.items():
                us = statistics.median(times[name])
                row[kind] = {"us": us, "spread": (max(times[name]) - min(times[name])) / us, "speed": statistics.median(times[first]) / us,
                             "tflops": told[first]["useful_flop"] / us * 1e-6}
                if row.get("visited"):
                    cell = us / (row["visited"] * case.batch * case.heads * case.seq ** 2)
                    full = self.full.setdefault((name, case.way, kind), cell) if case.name == "full" else self.full.get((name, case.way, kind))
                    row[kind] |= {"of_full": full / cell} if full else {}
            self.rows.append(row)
            print(row_text(row), flush=True)
        if self.o.json:
            pathlib.Path(self.o.json).write_text(report.rows_json(report.machine(self.builds[0].runtime), self.rows))
        return None, f"{len(runs)} contenders"


def row_text(row):
    cell = lambda t: f"{t['us']:9.1f} us +-{t['spread'] / 2:5.1%} x{t['speed']:.3f} {t['tflops']:4.0f} TFLOP/s" + (
        f" {t['of_full']:.3f} of full" if "of_full" in t else "")
    facts = f"{row['template']} {row['tile']} r{row['registers']} spills {row['spill_bytes']} v{row['visited']:.3f} " if "tile" in row else ""
    facts += f"apart {row['apart']:.1e}" if "apart" in row and not row.get("dropout") else ""
    return f"  {row['contender']:14} " + " | ".join([f"{kind} {cell(row[kind])}" for kind in KINDS if kind in row] + [facts])


def summary(rows):
    lines = []
    for name in dict.fromkeys(row["contender"] for row in rows):
        for way in PASSES:
            speeds = {kind: [r[kind]["speed"] for r in rows if r["contender"] == name and r["pass"] == way and kind in r] for kind in KINDS}
            told = [f"{kind} {statistics.geometric_mean(s):.3f} ({min(s):.3f} to {max(s):.3f}), {len(s)} cases" for kind, s in speeds.items() if s]
            lines += [f"  {name:14} {way:8} {'; '.join(told)}"] * bool(told)
    return "\n".join(["\nSpeed beside the first build, geometric means:", *lines])


def gpu_begin():
    """Its name; runtimes are opened in PyTorch's primary context."""
    if not torch.cuda.is_available():
        report.leave("no GPU that PyTorch can use; --dry tells the plans without one")
    torch.empty(1, device="cuda")
    return torch.cuda.get_device_name(0)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", action="append", required=True, help="NAME:LIBRARY[:KEY=VALUE]...; the first is what others are compared with")
    p.add_argument("--peers", default="", help="of FA2, cuDNN, FA4, with commas: beside cases that are dense or causal alone")
    p.add_argument("--only", action="append", metavar="REGEX", help="cases with such a name (may be repeated)")
    p.add_argument("--single", type=int, default=15, metavar="ROUNDS", help="of single launches (default 15; 0: none)")
    p.add_argument("--pause", type=float, default=3, metavar="MS", help="rest before each of them (default 3)")
    p.add_argument("--sustained", type=int, default=3, metavar="ROUNDS", help="of sustained loops (default 3; 0: none)")
    p.add_argument("--loop", type=float, default=150, metavar="MS", help="of each of them (default 150)")
    p.add_argument("--limit", type=float, default=500, metavar="SECONDS", help="start no case after so many (default 500)")
    p.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilations at a time (default: the cores)")
    p.add_argument("--json", metavar="FILE", help="write rows there")
    p.add_argument("--dry", action="store_true", help="tell the plans instead; needs neither a GPU nor PyTorch")
    p.add_argument("--gpu", help="plan for this GPU (default: the one here; H200 with --dry)")
    p.add_argument("cases", nargs="+", help="files of cases, or a case")
    o = p.parse_args()
    o.peers = o.peers.split(",") if o.peers else []
    if set(o.peers) - set(PEERS):
        sys.exit(f"ab: peers are {', '.join(PEERS)}, not {', '.join(o.peers)}")
    cases = cases_read(o.cases, o.only)
    gpu = o.gpu or ("H200" if o.dry else gpu_begin())
    builds = [Build(text, gpu) for text in o.build]
    if len({build.name for build in builds}) < len(builds):
        sys.exit("ab: two builds have one name")
    if o.dry:
        return dry(cases, builds)
    try:
        for build in builds:
            build.open()
    except (fagen.FagenError, OSError) as e:
        report.leave(e)
    race = Race(o, builds)
    race.compile(cases)
    race.run.each(cases, Case.label, race.case_run)
    print(summary(race.rows))
    return race.run.status()


if __name__ == "__main__":
    sys.exit(main())
