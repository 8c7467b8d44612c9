"""Specs as the package uses them: found by name, path, text or dict, parsed by libfagen once in a process, and written from
expressions. Knows nothing of PyTorch."""
import functools
import importlib.util
import json
import os
import pathlib
import re
import threading

from . import abi

_lock = threading.RLock()  # getting a runtime, a spec or a kernel
_runtime = None
_specs = {}  # by source


class Input:
    """A tensor that the spec's mask or score reads."""

    def __init__(self, info):
        self.name, self.dtype, self.grad = info.name.decode(), abi.DTYPES[info.dtype], bool(info.grad)
        self.dims = tuple(abi.DIMS[d] or size for d, size in zip(info.dim[:info.dims], info.size))  # names or numbers

    def __str__(self):
        return f"{self.name}: {self.dtype} [{', '.join(map(str, self.dims))}]"


class Spec:
    """A parsed spec; lives as long as the process."""

    def __init__(self, source):
        self.source, self.launches, self.kernels = source, {}, {}  # the last two are of ops.py
        rt = runtime()
        self.handle = rt.spec(source, "spec") if is_text(source) else rt.spec_load(found(source))
        info, inputs = rt.spec_info(self.handle)
        self.dtype, self.d_qk, self.d_v = abi.DTYPES[info.dtype], info.head_dim_qk, info.head_dim_v
        self.layout, self.kv_group = abi.LAYOUTS[info.layout], info.kv_group
        self.backward, self.lse, self.dropout = bool(info.backward), bool(info.lse), info.dropout
        self.block_q, self.block_k = info.block_q, info.block_k
        self.inputs = tuple(Input(i) for i in inputs)
        self.grads = tuple(i.grad for i in self.inputs)


def runtime():
    """The runtime of the process."""
    global _runtime
    with _lock:
        if _runtime is None:
            _runtime = abi.Runtime(nvrtc_of_wheels())
        return _runtime


def nvrtc_of_wheels():
    """The NVRTC that PyTorch's wheels brought, where there is no CUDA toolkit; else None."""
    if any(v in os.environ for v in ("FAGEN_NVRTC", "CUDA_HOME", "CUDA_PATH")) or os.path.exists("/usr/local/cuda"):
        return None
    nvidia = importlib.util.find_spec("nvidia")
    for root in nvidia.submodule_search_locations if nvidia else ():
        for path in sorted(pathlib.Path(root).glob("cu*/lib/libnvrtc.so.1[0-9]"), reverse=True):
            return path
    return None


def is_text(source):
    return ":" in source or "\n" in source


def found(name):
    """The file of a path, or of a name in the library of specs."""
    if name.endswith((".yaml", ".yml", ".json")) or os.sep in name:
        return name
    here = pathlib.Path(__file__).parent
    folders = [here / "specs", *([abi.checkout() / "specs"] if abi.checkout() else []),
               pathlib.Path("/usr/local/share/fagen/specs"), pathlib.Path("/usr/share/fagen/specs")]
    for folder in folders:
        if (folder / f"{name}.yaml").exists():
            return str(folder / f"{name}.yaml")
    names = sorted({p.stem for f in folders for p in f.glob("*.yaml")})
    raise abi.FagenError(f"spec: found '{name}'; want the path of a .yaml file, YAML text, a dict, or a name of the library: {', '.join(names)}")


def get(source):
    """The Spec of a name, a path or text. A file is read once."""
    spec = _specs.get(source)
    if spec is None:
        with _lock:
            spec = _specs.get(source) or _specs.setdefault(source, Spec(source))
    return spec


def indexes(expression, name):
    """The index lists with which an expression reads an input: [["b", "q - k"], ...]."""
    lists = []
    for match in re.finditer(rf"(?<!\w){re.escape(name)}\s*\[", expression):
        parts, depth, begin = [], 0, match.end()
        for at in range(match.end(), len(expression)):
            ch = expression[at]
            if ch in ",]" and depth == 0:
                parts.append(expression[begin:at].strip())
                begin = at + 1
                if ch == "]":
                    lists.append(parts)
                    break
            depth += (ch in "([") - (ch in ")]")
    return lists


@functools.lru_cache(maxsize=1024)
def dims_read(expressions, name, dims):
    """Dimensions of an input that expressions read: one that is read at exactly b, h, q or k follows the batch, the heads or a
    length, any other is a number: 0. None when no expression names it: a preset's."""
    reads = [r for e in expressions for r in indexes(e, name)]
    if not reads:
        return () if not dims and any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", e) for e in expressions) else None
    names = {"b": "batch", "h": "heads", "q": "seq_q", "k": "seq_k"}
    for r in reads:
        if len(r) != dims:
            raise ValueError(f"{name} is read with {len(r)} indexes, but the tensor has {dims} dimensions")
    return tuple(next((names[r[d]] for r in reads if r[d] in names), 0) for d in range(dims))


def written(mask, score, inputs, keys):
    """The Spec of expressions. inputs: ((name, dtype, dims, grad), ...); those whose dims are None are a preset's, and declared
    as it has them, in the tensor's dtype where that is a float. keys: all else."""
    keys = {k: v for k, v in (("mask", mask), ("score", score)) if v is not None} | keys
    declared = {name: {"dtype": dtype, "shape": dims, "grad": grad} for name, dtype, dims, grad in inputs if dims is not None}
    spec = get(json.dumps(keys | {"inputs": declared or "none"}))
    known = {i.name: i for i in spec.inputs}
    for name, dtype, _, grad in inputs:
        if name not in declared and name in known and (grad, dtype) != (known[name].grad, known[name].dtype) and dtype in ("f32", "bf16", "fp16"):
            declared[name] = {"dtype": dtype, "shape": known[name].dims, "grad": grad}
            spec = get(json.dumps(keys | {"inputs": declared}))
    return spec
