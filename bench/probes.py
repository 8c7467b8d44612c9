"""Forward kernels that stand alone, one file for each head dim and mask, as contenders of bench/peers.py: the environment's PROBES names their
folder. A file fwd_d<head dim>_<causal or full>_*.cu tells its tile and shared memory in its first line (HD= BM= BN= smem=), and has the entry
fa_fwd(maps of Q, K, V, O, then struct Params). What is compiled already lies beside it as .cubin; else nvcc does it here."""
import ctypes
import functools
import math
import os
import pathlib
import re
import subprocess
import tempfile

import torch

from fagen_ctypes import driver_call

BFLOAT16, SWIZZLE, PROMOTE_256 = 9, {64: 3, 32: 2, 16: 1}, 3  # of CUtensorMap
SHARED_BYTES = 8  # the function attribute


class Params(ctypes.Structure):
    _fields_ = [("lse", ctypes.c_void_p), *((name, ctypes.c_int) for name in ("seqlen_q", "seqlen_k", "heads", "heads_kv", "batch", "tiles")),
                ("scale_log2", ctypes.c_float), ("section", ctypes.c_void_p)]


def found(d, causal):
    folder = os.environ.get("PROBES")
    return sorted(pathlib.Path(folder).glob(f"fwd_d{d}_{'causal' if causal else 'full'}_*.cu")) if folder else []


@functools.cache
def function(source):
    cubin = source.with_suffix(".cubin")
    if cubin.exists():
        image = cubin.read_bytes()
    else:
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / cubin.name
            subprocess.run(["nvcc", "-cubin", "-gencode", "arch=compute_90a,code=sm_90a", "-o", out, source], check=True, capture_output=True)
            image = out.read_bytes()
    module, entry = ctypes.c_void_p(), ctypes.c_void_p()
    driver_call("cuModuleLoadData", ctypes.byref(module), image)
    driver_call("cuModuleGetFunction", ctypes.byref(entry), module, b"fa_fwd")
    return entry


def tensor_map(tensor, rows, columns):
    """Of [batch, seq, head, dim] without gaps, in boxes of rows x columns; the bytes must outlive its launches."""
    b, s, h, d = tensor.shape
    room = (ctypes.c_uint8 * 192)()
    at = (ctypes.addressof(room) + 63) // 64 * 64
    u32, u64 = ctypes.c_uint32 * 4, ctypes.c_uint64 * 4
    driver_call("cuTensorMapEncodeTiled", ctypes.c_void_p(at), BFLOAT16, 4, ctypes.c_void_p(tensor.data_ptr()), u64(d, s, h, b),
                (ctypes.c_uint64 * 3)(2 * h * d, 2 * d, 2 * s * h * d), u32(columns, rows, 1, 1), u32(1, 1, 1, 1), 0, SWIZZLE[columns], PROMOTE_256, 0)
    return room, ctypes.c_void_p(at)


class Probe:
    """Dense attention with as many key/value heads as query heads. Data are [batch, head, seq, dim]."""

    def __init__(self, source, case, data):
        told = {name: int(n) for name, n in re.findall(r"(\w+)=(\d+)", source.open().readline())}
        q, k, v = (t.transpose(1, 2).contiguous() for t in data[:3])
        self.out, lse = torch.full_like(q, math.nan), torch.empty(case.batch, case.heads, case.seq, device="cuda")
        columns = 64 if case.d % 64 == 0 else 32
        tiles = -(-case.seq // told["BM"])
        items = tiles * case.heads * case.batch
        section = next(n for n in (16, 4, 3, 2, 1) if case.heads * case.batch % n == 0)
        params = Params(lse.data_ptr(), case.seq, case.seq, case.heads, case.heads_kv, case.batch, tiles,
                        math.log2(math.e) / math.sqrt(case.d), section)
        maps = [tensor_map(t, told["BM" if t is q or t is self.out else "BN"], columns) for t in (q, k, v, self.out)]
        args = (ctypes.c_void_p * 5)(*(at for _, at in maps), ctypes.cast(ctypes.pointer(params), ctypes.c_void_p))
        self.kept = q, k, v, lse, maps, params, args
        entry, shared = function(source), told["smem"] + 512
        driver_call("cuFuncSetAttribute", entry, SHARED_BYTES, shared)
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        grid = min(sms, items) if not case.causal or case.seq <= 2048 else items  # the causal ones are the faster so
        threads = (told["BM"] // 64 + 1) * 128
        self.run = {"forward": lambda: driver_call("cuLaunchKernel", entry, grid, 1, 1, threads, 1, 1, shared,
                                                   ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), args, None)}
        self.bytes = {"forward": sum(t.numel() * t.element_size() for t in (self.out, lse))}

    def results(self):
        self.run["forward"]()
        return [self.out.transpose(1, 2)]

    def memory(self):
        return self.bytes
