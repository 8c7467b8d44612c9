"""Runs the models on real text on the CPU and writes every layer's Q, K and V, rounded to the type of their spec, to
build/real: one file of raw 16-bit numbers for each model, and index.json. `make real-dump` runs it."""
import argparse
import json
import pathlib
import re

import numpy as np

from models import MODELS

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Sentences and tokens each: odd lengths, so that no tile divides them; about 20 MB in all.
SHAPES = {"minilm": (5, 101), "smollm2": (1, 211)}


def spec_dtype(name):
    text = (ROOT / "specs" / f"{name}.yaml").read_text()
    found = re.search(r"^dtype:\s*(\w+)", text, re.M)
    return found.group(1) if found else "bf16"


def to_16_bit(x, dtype):
    if dtype == "fp16":
        return x.astype(np.float16).view(np.uint16)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)  # to nearest, ties to even


def dump(name, text, out, models_folder):
    model = MODELS[name](models_folder)
    print(f"{name}: {model.sane()}")
    tokens = model.batch(text, *SHAPES[name])
    dtype, layers = spec_dtype(name), []
    with open(out / f"{name}.bin", "wb") as f:

        def see(layer, q, k, v):
            layers.append({"layer": layer, "largest": [round(float(np.abs(t).max()), 3) for t in (q, k, v)]})
            for t in (q, k, v):
                f.write(to_16_bit(t, dtype).tobytes())
            layers[-1]["shapes"] = [list(t.shape) for t in (q, k, v)]

        model.forward(tokens, see)
    print(f"{name}: {len(layers)} layers of {tokens.shape[0]} x {tokens.shape[1]} tokens, {dtype}, "
          f"{(out / f'{name}.bin').stat().st_size / 1e6:.1f} MB")
    shapes = layers[0].pop("shapes")
    for layer in layers[1:]:
        assert layer.pop("shapes") == shapes
    return {"model": name, "spec": f"specs/{name}.yaml", "dtype": dtype, "file": f"{name}.bin", "shapes": shapes, "layers": layers}


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--text", type=pathlib.Path, default=ROOT / "LICENSE", help="what the models read (default: LICENSE)")
    p.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "real")
    p.add_argument("--models", type=pathlib.Path, default=ROOT / "build" / "models", help="where the weights are kept")
    p.add_argument("names", nargs="*", default=list(MODELS), metavar="MODEL", help=f"default: {' '.join(MODELS)}")
    a = p.parse_args()
    text = re.sub(r"\s+", " ", a.text.read_text()).strip()
    a.out.mkdir(parents=True, exist_ok=True)
    index = [dump(name, text, a.out, a.models) for name in a.names]
    (a.out / "index.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
