"""The C interface of libfagen (runtime/fagen.h) in ctypes; nothing else is imported. Tensors are anything with data_ptr()
and stride(), as PyTorch's, in the layout [batch, head, seq, dim]."""
import ctypes as c
import os
import pathlib

FORWARD, BACKWARD = 0, 1
DTYPES = ("bf16", "fp16", "f32", "i32", "u8")  # FAGEN_BF16 ...
LAYOUTS = ("dense", "padded", "packed")
DIMS = ("", "batch", "heads", "heads_kv", "seq_q", "seq_k", "blocks_q", "blocks_k")  # FAGEN_DIM_NUMBER ...


class Error(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("code", c.c_int32), ("cuda_result", c.c_int32), ("nvrtc_result", c.c_int32),
                ("line", c.c_int32), ("column", c.c_int32), ("field", c.c_char * 64), ("message", c.c_char * 2048)]


class Config(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("ignore_env", c.c_int32), ("cache_dir", c.c_char_p), ("nvrtc_path", c.c_char_p),
                ("templates_dir", c.c_char_p), ("wisdom_path", c.c_char_p)]


class SpecInfo(c.Structure):
    _fields_ = [("struct_size", c.c_uint32)] + [
        (n, c.c_int32) for n in ("head_dim_qk", "head_dim_v", "dtype", "layout", "kv_group", "backward", "lse", "block_q", "block_k")
    ] + [("dropout", c.c_double), ("input_count", c.c_size_t)]


class InputInfo(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("dtype", c.c_int32), ("grad", c.c_int32), ("dims", c.c_int32), ("name", c.c_char * 32),
                ("dim", c.c_int32 * 4), ("size", c.c_int64 * 4)]


class Problem(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("align", c.c_int32)] + [
        (n, c.c_int64) for n in ("batch", "heads_q", "heads_kv", "seqlen_q", "seqlen_k")]


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("stride_batch", c.c_int64), ("stride_head", c.c_int64), ("stride_seq", c.c_int64)]


class Input(c.Structure):
    _fields_ = [("name", c.c_char_p), ("data", c.c_void_p), ("stride", c.c_int64 * 4), ("grad", c.c_void_p),
                ("grad_stride", c.c_int64 * 4)]


class Args(c.Structure):
    _fields_ = ([("struct_size", c.c_uint32), ("reserved", c.c_uint32)]
                + [(n, c.c_int64) for n in ("batch", "heads_q", "heads_kv", "seqlen_q", "seqlen_k")]
                + [(n, Tensor) for n in ("query", "key", "value", "out", "lse", "dout", "dlse", "dquery", "dkey", "dvalue")]
                + [("seed", c.c_uint64), ("offset", c.c_uint64), ("rng_state", c.c_void_p), ("workspace", c.c_void_p),
                   ("workspace_size", c.c_size_t), ("inputs", c.c_void_p), ("input_count", c.c_size_t)]
                + [(n, c.c_void_p) for n in ("seqlens_q", "seqlens_k", "cu_seqlens_q", "cu_seqlens_k")]
                + [("total_q", c.c_int64), ("total_k", c.c_int64)])


class KernelInfo(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("forward", c.c_int32), ("backward", c.c_int32), ("target", c.c_char * 16),
                ("source", (c.c_char * 16) * 2), ("registers", c.c_int32 * 2), ("spill_bytes", c.c_int32 * 2),
                ("smem_bytes", c.c_int32 * 2), ("tile_m", c.c_int32 * 2), ("tile_n", c.c_int32 * 2)]


class FagenError(RuntimeError):
    """What the library says went wrong. field: the key of the spec or the argument at fault, or "". code: FAGEN_ERROR_*."""

    def __init__(self, message, code=0, field=""):
        super().__init__(message)
        self.code, self.field = code, field


def checkout():
    """The source tree that this file lies in, or None when the package was installed."""
    root = pathlib.Path(__file__).resolve().parents[2]
    return root if (root / "runtime" / "fagen.h").exists() else None


def built(name, variable):
    """A file of the build: what the variable names, else where a wheel, a build or a carried copy puts it."""
    places = [pathlib.Path(os.environ[variable])] if variable in os.environ else [pathlib.Path(__file__).parent / "lib" / name]
    if variable not in os.environ and checkout():
        places += [checkout() / "build" / d / name for d in ("carry", "release")]
    for place in places:
        if place.exists():
            return place
    raise FagenError(f"{name} is missing (looked for {', '.join(map(str, places))}): run `make` first, or name it in {variable}")


def library():
    """libfagen, loaded: of $FAGEN_LIB, the package, the source tree, or as installed (libfagen.so.0)."""
    try:
        lib = c.CDLL(str(built("libfagen.so", "FAGEN_LIB")))
    except FagenError as missing:
        try:
            lib = c.CDLL("libfagen.so.0")
        except OSError:
            raise missing from None
    if not hasattr(lib, "fagen_spec_describe"):
        raise FagenError(f"{lib._name} is older than this package: it has no fagen_spec_describe. Build or install the library of the same release.")
    lib.fagen_forward.argtypes = lib.fagen_backward.argtypes = [c.c_void_p] * 4
    return lib


def sized(struct):
    """A zeroed struct with its struct_size set."""
    s = struct()
    s.struct_size = c.sizeof(struct)
    return s


def tensor(t):
    """The view of a [batch, head, seq, dim] tensor, or of [batch, head, seq] for lse."""
    if t is None:
        return Tensor()
    if t.dim() == 4 and t.shape[3] > 1 and t.stride(3) != 1:
        raise FagenError("the last dimension of a tensor must be contiguous")
    return Tensor(t.data_ptr(), t.stride(0), t.stride(1), t.stride(2))


def named_inputs(inputs, grads):
    """Named inputs from {name: tensor}, with the gradients that {name: tensor} asks for."""
    array = (Input * len(inputs))()
    for to, (name, t) in zip(array, inputs.items()):
        to.name, to.data = name.encode(), t.data_ptr()
        to.stride[:t.dim()] = t.stride()
        if name in grads:
            to.grad = grads[name].data_ptr()
            to.grad_stride[:t.dim()] = grads[name].stride()
    return array


class Runtime:
    def __init__(self, nvrtc=None, **paths):
        """nvrtc: path of the compiler's library, or None: where fagen looks for it. paths: other members of the Config by name."""
        self.lib = library()
        self.lib.fagen_version.restype = c.c_char_p
        self.handle = c.c_void_p()
        config = sized(Config)
        config.nvrtc_path = str(nvrtc).encode() if nvrtc else None
        for name, path in paths.items():
            setattr(config, name, str(path).encode())
        self.call("fagen_open", c.byref(self.handle), c.byref(config))

    def call(self, function, *args):
        error = sized(Error)
        if getattr(self.lib, function)(*args, c.byref(error)):
            raise FagenError(error.message.decode(errors="replace").rstrip(), error.code, error.field.decode(errors="replace"))

    def version(self):
        return self.lib.fagen_version().decode()

    def spec(self, yaml, name="spec"):
        """A spec from its text."""
        spec, text = c.c_void_p(), yaml.encode()
        self.call("fagen_spec_parse", c.byref(spec), self.handle, c.c_char_p(text), c.c_size_t(len(text)), name.encode())
        return spec

    def spec_load(self, path):
        """A spec from a file."""
        spec = c.c_void_p()
        self.call("fagen_spec_load", c.byref(spec), self.handle, str(path).encode())
        return spec

    def spec_info(self, spec):
        """SpecInfo, and the InputInfo of each input."""
        info = sized(SpecInfo)
        self.call("fagen_spec_describe", c.byref(info), spec)
        inputs = [sized(InputInfo) for _ in range(info.input_count)]
        for i, to in enumerate(inputs):
            self.call("fagen_spec_input", c.byref(to), spec, c.c_size_t(i))
        return info, inputs

    def kernel(self, spec, batch, heads_q, heads_kv, seqlen_q, seqlen_k, device=0, align=16, naive=False):
        problem = sized(Problem)
        problem.align, problem.batch, problem.heads_q, problem.heads_kv = align, batch, heads_q, heads_kv
        problem.seqlen_q, problem.seqlen_k = seqlen_q, seqlen_k
        kernel = c.c_void_p()
        self.call("fagen_kernel_get_naive" if naive else "fagen_kernel_get", c.byref(kernel), self.handle, spec, c.byref(problem),
                  c.c_int(device))
        return Kernel(self, kernel)

    def close(self):
        self.lib.fagen_close(self.handle)
        self.handle = c.c_void_p()


class Kernel:
    def __init__(self, runtime, handle):
        self.runtime, self.handle = runtime, handle

    def info(self):
        info = sized(KernelInfo)
        self.runtime.call("fagen_kernel_describe", c.byref(info), self.handle)
        return info

    def args(self, query, key, value, out, lse, dout=None, dquery=None, dkey=None, dvalue=None, dlse=None, workspace=None,
             inputs={}, input_grads={}):
        """What a launch takes; workspace is a byte tensor of workspace_size(args) bytes, aligned to 256. inputs and
        input_grads are {name: tensor}."""
        a = sized(Args)
        a.batch, a.heads_q, a.seqlen_q = query.shape[:3]
        a.heads_kv, a.seqlen_k = key.shape[1:3]
        for name, t in (("query", query), ("key", key), ("value", value), ("out", out), ("lse", lse), ("dout", dout), ("dlse", dlse),
                        ("dquery", dquery), ("dkey", dkey), ("dvalue", dvalue)):
            setattr(a, name, tensor(t))
        if workspace is not None:
            a.workspace, a.workspace_size = workspace.data_ptr(), workspace.numel() * workspace.element_size()
        a.named = named_inputs(inputs, input_grads)  # kept alive
        a.inputs, a.input_count = c.addressof(a.named), len(inputs)
        return a

    def workspace_size(self, args):
        size = c.c_size_t()
        self.runtime.call("fagen_workspace_size", c.byref(size), self.handle, c.byref(args))
        return size.value

    def forward(self, args, stream=0):
        self.runtime.call("fagen_forward", self.handle, c.byref(args), c.c_void_p(stream))

    def backward(self, args, stream=0):
        self.runtime.call("fagen_backward", self.handle, c.byref(args), c.c_void_p(stream))
