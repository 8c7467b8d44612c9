"""bench/real/models_torch.py with small random models: against the models in numpy, and as it judges fagen."""
import importlib.util
import json
import struct
import sys

import pytest
import torch

import sim
from conftest import ROOT

np = pytest.importorskip("numpy")
sys.path[:0] = [str(ROOT / "bench" / "real"), str(ROOT / "bench")]
import e2e
import models_torch as real
import train

spec = importlib.util.spec_from_file_location("models_numpy", ROOT / "bench" / "real" / "models.py")
numpy_models = importlib.util.module_from_spec(spec)
spec.loader.exec_module(numpy_models)


def weights(shapes, device, seed=0):
    g = torch.Generator().manual_seed(seed)
    made = {n: torch.randn(s, generator=g) * (0.2 if len(s) == 2 else 0.1) + (1 if "norm.weight" in n.lower() else 0) for n, s in shapes.items()}
    return {n: w.to(device) for n, w in made.items()}


def numpy_of(kind, model, **fields):
    m = kind.__new__(kind)
    m.w = {n: w.cpu().numpy() for n, w in model["w"].items()}
    for name, value in fields.items():
        setattr(m, name, value)
    return m


@pytest.fixture(scope="module")
def llama(device):
    width, wide = 96, 128
    shapes = {"token_embd.weight": (50, width), "output_norm.weight": (width,)}
    for i in range(2):
        p = f"blk.{i}."
        shapes |= {p + "attn_norm.weight": (width,), p + "ffn_norm.weight": (width,), p + "attn_q.weight": (96, width), p + "attn_k.weight": (32, width),
                   p + "attn_v.weight": (32, width), p + "attn_output.weight": (width, 96), p + "ffn_gate.weight": (wide, width),
                   p + "ffn_up.weight": (wide, width), p + "ffn_down.weight": (width, wide)}
    model = {"layers": 2, "heads": 6, "heads_kv": 2, "base": 1e4, "eps": 1e-5, "tokens": torch.randint(0, 50, (40,), generator=torch.Generator().manual_seed(3)).tolist(),
             "w": weights(shapes, device)}
    truth = numpy_of(numpy_models.SmolLM2, model, layers=2, heads=6, heads_kv=2, base=1e4, eps=1e-5)
    logits = truth.forward(np.array([model["tokens"][:7]]))[0]
    return {**model, "prompt": model["tokens"][:7], "logits": logits.tolist(), "answer": int(logits.argmax())}


def test_smollm2(device, llama):
    real.smollm2_right(llama)
    with torch.no_grad(), sim.meaning(**sim.CAUSAL):
        rows = real.smollm2(llama, (5, 11), 8)
    assert [r["ok"] for r in rows] == [True] * 6 and rows[0]["clear"] > 0, rows
    assert len(real.page({"smollm2": rows}, "sim").split("| 11 | 8 | ")) == 4


def test_smollm2_wrong_attention_is_seen(device, llama, monkeypatch):
    monkeypatch.setitem(real.CAUSAL, "fagen", lambda q, k, v: real.with_sdpa(q, k, v) * 1.1)
    with torch.no_grad():
        assert not any(r["ok"] for r in real.smollm2(llama, (5,), 8))
    with pytest.raises(RuntimeError, match="nonsense"):
        real.smollm2_right({**llama, "base": 1e2})


def test_minilm(device):
    width, e = 64, "embeddings."
    pair = lambda name, *shape: {name + ".weight": shape, name + ".bias": shape[:1]}
    shapes = {e + "word_embeddings.weight": (50, width), e + "position_embeddings.weight": (16, width), e + "token_type_embeddings.weight": (2, width),
              **pair(e + "LayerNorm", width)}
    for i in range(2):
        p = f"encoder.layer.{i}."
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            shapes |= pair(p + name, width, width)
        shapes |= {**pair(p + "intermediate.dense", 96, width), **pair(p + "output.dense", width, 96), **pair(p + "attention.output.LayerNorm", width),
                   **pair(p + "output.LayerNorm", width)}
    model = {"layers": 2, "heads": 2, "eps": 1e-12, "tokens": [[1, 2, 3], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11], [40, 41, 42, 43, 44]], "w": weights(shapes, device, 1)}
    truth = numpy_of(numpy_models.MiniLM, model, config={"num_attention_heads": 2, "num_hidden_layers": 2, "layer_norm_eps": 1e-12})
    means = [truth.forward(np.array([t]))[0].mean(axis=0) for t in model["tokens"]]
    model["embeddings"] = [(m / np.linalg.norm(m)).tolist() for m in means]
    with torch.no_grad(), sim.meaning():
        row = real.minilm(model)
    assert row["ok"] and row["longest"] == 11, row
    model["embeddings"][1][0] += 0.01
    with torch.no_grad(), sim.meaning():
        assert not real.minilm(model)["ok"]


@pytest.mark.parametrize("causal", (True, False))
def test_training(device, causal):
    m = e2e.Model("small", 2, 64, 2, 300, 31, 2, 0.1, causal=causal, head="tokens" if causal else "masked")
    with sim.meaning(**(sim.CAUSAL if causal else {})):
        row = train.case_run(m, 3, device, lambda what: None)
    assert [len(c) for c in row["losses"].values()] == [3] * 3
    assert all(abs(a - b) < 0.05 for a, b in zip(row["losses"]["fagen"], row["losses"]["eager"])), row
    assert json.loads(json.dumps(row)) == row and "small" in train.page([row], str)


def test_curves_apart_are_seen():
    base = [4 - i / 100 for i in range(200)]
    near = [x + 0.02 * (-1) ** i for i, x in enumerate(base)]
    assert train.compare({"fagen": near, "eager": base, "eager again": near})["ok"]
    assert not train.compare({"fagen": [x + 0.1 for x in base], "eager": base, "eager again": near})["ok"]
    assert not train.compare({"fagen": base[:150] + [float("nan")] * 50, "eager": base, "eager again": near})["ok"]


def test_blocks():
    values = bytes(range(100, 116))
    raw = torch.frombuffer(bytearray(struct.pack("<ee", 0.5, -3) + values), dtype=torch.uint8)
    assert real.q4_1(raw).flatten().tolist() == [(v & 15) / 2 - 3 for v in values] + [(v >> 4) / 2 - 3 for v in values]
    raw = torch.frombuffer(bytearray(struct.pack("<e32b", 0.25, *range(-16, 16))), dtype=torch.uint8)
    assert real.q8_0(raw).flatten().tolist() == [v / 4 for v in range(-16, 16)]
