"""Training of GPT-2 124M and BERT-large from random weights on the bytes of alice.txt, with attention dropout: loss curves with
fagen, with eager attention, and with eager attention and other dropout, which says how far apart curves of the same arithmetic are."""
import pathlib

import torch
import torch.nn.functional as F

import e2e

TEXT = pathlib.Path(__file__).resolve().parent / "alice.txt"
MASKED = 256  # the token behind those of bytes
DROPOUT = 0.1
RUNS = {"fagen": ("fagen", 1), "eager": ("eager", 1), "eager again": ("eager", 2)}  # attention, seed of dropout

CASES = {"gpt2": e2e.Model("GPT-2 124M", 12, 768, 12, 50257, 511, 8, DROPOUT, causal=True),
         "bert": e2e.Model("BERT-large", 24, 1024, 16, 30522, 511, 8, DROPOUT, head="masked")}


def batches(m, steps, device):
    """(tokens, goals) of each step; goals that do not count are -100. The same ones in each run."""
    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).long()
    g = torch.Generator().manual_seed(7)
    for _ in range(steps):
        at = torch.randint(0, len(text) - m.seq, (m.batch,), generator=g)
        cut = torch.stack([text[i:i + m.seq + 1] for i in at.tolist()])
        tokens, goals = cut[:, :-1], cut[:, 1:]
        if m.head == "masked":
            some = torch.rand(tokens.shape, generator=g) < 0.15
            tokens, goals = tokens.masked_fill(some, MASKED), tokens.masked_fill(~some, -100)
        yield tokens.to(device), goals.to(device)


def losses(m, attention, seed, steps, device):
    """Of each step: float32 weights, bf16 under autocast, AdamW with a warm-up."""
    torch.manual_seed(1)
    net = e2e.Net(m, e2e.attention(attention, m, device)).to(device)
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4 if m.width < 1024 else 1e-4)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1, (i + 1) / 20))
    seen = []
    for tokens, goals in batches(m, steps, device):
        with torch.autocast(device, torch.bfloat16):
            counts = goals != -100
            loss = F.cross_entropy(net.out(net.states(tokens)[counts]).float(), goals[counts])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        warm.step()
        seen.append(loss.detach())
    return torch.stack(seen).tolist()


def smooth(curve):
    """Means of a 20th of the curve."""
    width = max(1, len(curve) // 20)
    return torch.tensor(curve).unfold(0, width, 1).mean(1)


def compare(curves):
    """Overlap: fagen's curve, smoothed, is on average and at its farthest at most twice as far from eager's as eager's are from
    each other, and 0.02 and 0.05 for luck."""
    s = {name: smooth(c) for name, c in curves.items()}
    distance, noise = (s["fagen"] - s["eager"]).abs(), (s["eager again"] - s["eager"]).abs()
    row = {"mean": float(distance.mean()), "noise_mean": float(noise.mean()), "max": float(distance.max()), "noise_max": float(noise.max()),
           "first": {n: c[0] for n, c in curves.items()}, "last": {n: float(c[-1]) for n, c in s.items()}}
    row["ok"] = row["mean"] <= 2 * row["noise_mean"] + 0.02 and row["max"] <= 2 * row["noise_max"] + 0.05 and row["last"]["fagen"] < row["first"]["fagen"]
    return row


def case_run(m, steps, device, say):
    curves = {}
    for run, (attention, seed) in RUNS.items():
        curves[run] = losses(m, attention, seed, steps, device)
        say(f"{m.name}, {run}: loss {curves[run][0]:.3f} to {float(smooth(curves[run])[-1]):.3f} in {steps} steps")
    return {"model": m.name, "seq": m.seq, "batch": m.batch, "steps": steps, "dropout": m.dropout, **compare(curves), "losses": curves}


PAGE_HEAD = f"""## Training

From random weights on the bytes of `bench/real/alice.txt`, bf16 under autocast. Distances are between curves smoothed over a 20th of the steps; *eager
again* has other dropout. Wanted: fagen's curve at most twice as far from eager's as that one's, and 0.02 on average, 0.05 at its farthest, for luck.

| model | seq x batch | steps | attention dropout | first loss: fagen | eager | last: fagen | eager | eager again | mean distance: fagen | eager again | largest: fagen | eager again | ok |
{"|---" * 14}|
"""


def page(rows, yes):
    text = PAGE_HEAD
    for r in rows:
        first, last = r["first"], r["last"]
        numbers = [*(f"{x:.3f}" for x in (first["fagen"], first["eager"], last["fagen"], last["eager"], last["eager again"])),
                   *(f"{r[n]:.4f}" for n in ("mean", "noise_mean", "max", "noise_max"))]
        text += f"| {r['model']} | {r['seq']} x {r['batch']} | {r['steps']} | {r['dropout']} | {' | '.join(numbers)} | {yes(r['ok'])} |\n"
    return text


def plot(rows, path):
    try:
        import matplotlib
    except ImportError:
        return
    if not rows:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(1, len(rows), figsize=(6 * len(rows), 4), squeeze=False)
    for a, r in zip(axes[0], rows):
        for name, curve in r["losses"].items():
            a.plot(curve, label=name, linewidth=1)
        a.set(title=f"{r['model']}, attention dropout {r['dropout']}", xlabel="step", ylabel="loss")
        a.legend()
    figure.savefig(path, dpi=80, bbox_inches="tight")
