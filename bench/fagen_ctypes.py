"""The C interface for the benchmarks: python/fagen/abi.py, and the plans that the command tells."""
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

from fagen.abi import *


def plans(spec_path, gpu, batch, heads_q, heads_kv, seqlen):
    """{pass: (plan, its chosen candidate)} by `fagen explain` for a GPU as the driver names it; {} when the planner does not know that GPU."""
    run = subprocess.run([built("fagen", "FAGEN"), "explain", str(spec_path), "--json", "--gpu", gpu, "--batch", str(batch), "--heads",
                          str(heads_q), "--heads-kv", str(heads_kv), "--seq", str(seqlen)], capture_output=True, text=True)
    if "No GPU is called" in run.stderr:
        return {}
    if run.returncode:
        raise FagenError(run.stderr)
    return {p["pass"]: (p, p["candidates"][p["chosen"]]) for p in json.loads(run.stdout)["plans"]}
