"""The C interface for the benchmarks: python/fagen/abi.py, and the plans that the command tells."""
import ctypes
import functools
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

from fagen.abi import *


@functools.cache
def driver():
    return ctypes.CDLL("libcuda.so.1")


def driver_call(name, *args):
    """A function of the driver API, whose error becomes a FagenError."""
    code = getattr(driver(), name)(*args)
    if code:
        raise FagenError(f"{name} failed with code {code}")


def explained(spec_path, command=None, **flags):
    """The plans that `fagen explain` tells: this tree's, or that of `command`. FagenError says what it said."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    run = subprocess.run([command or built("fagen", "FAGEN"), "explain", str(spec_path), "--json", *options], capture_output=True, text=True)
    if run.returncode:
        raise FagenError(run.stderr.strip())
    return json.loads(run.stdout)["plans"]


def plans(spec_path, gpu, batch, heads_q, heads_kv, seqlen):
    """{pass: (plan, its chosen candidate)} by `fagen explain` for a GPU as the driver names it; {} when the planner does not know that GPU."""
    try:
        told = explained(spec_path, gpu=gpu, batch=batch, heads=heads_q, heads_kv=heads_kv, seq=seqlen)
    except FagenError as e:
        if "No GPU is called" in str(e):
            return {}
        raise
    return {p["pass"]: (p, p["candidates"][p["chosen"]]) for p in told}
