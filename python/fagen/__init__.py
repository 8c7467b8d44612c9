"""Exact attention compiled from a spec, for PyTorch.

    out = fagen.attention(q, k, v, "causal_d64")                 # a spec of the library, a file, YAML text or a dict
    out = fagen.flex(q, k, v, mask="k <= q && q - k < 256")      # an expression, the rest taken from the tensors
    out = fagen.sdpa(q, k, v, is_causal=True)                    # as torch.nn.functional.scaled_dot_product_attention
    fagen.register(); AutoModel.from_pretrained(..., attn_implementation="fagen")

`import fagen` is light: libfagen and PyTorch are loaded when first used. docs/pytorch.md is the guide."""
from .abi import FagenError

__all__ = ["FagenError", "attention", "flex", "register", "sdpa", "version"]
_homes = {"attention": "ops", "flex": "ops", "sdpa": "ops", "register": "hf"}


def version() -> str:
    """The version of libfagen."""
    from . import spec
    return spec.runtime().version()


def __getattr__(name):
    if name not in _homes:
        raise AttributeError(f"module 'fagen' has no attribute '{name}'")
    import importlib
    value = getattr(importlib.import_module("." + _homes[name], __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return __all__
