"""How often the native forward's speculative softmax would do an item again on the activations of real models, on the CPU: a row's
reference is the maximum of the first key tile that it visits and sees, tiles go from last to first, and an item is done again
when the sum of exp2(logit - reference) of one of its rows leaves [2^-60, 2^120] (templates/sm90/fwd.cu). `make real-reach` runs it."""
import argparse
import pathlib

import numpy as np

from dump import ROOT, re
from models import MODELS

LENGTH = {"minilm": 509, "smollm2": 2003}  # tokens: one sequence as long as the model goes, or long enough for many tiles
TILE_M, TILE_N = 128, 128
SUM_LEAST, SUM_MOST = 2.0**-60, 2.0**120


def items(q, k, causal):
    """For each item of a layer (a tile of query rows of a head): the least and the most of its rows' sums."""
    heads, (rows, dim), keys = q.shape[0], q.shape[1:], k.shape[1]
    for h in range(heads):
        logits = (q[h] @ k[h * k.shape[0] // heads].T).astype(np.float64) / np.sqrt(dim) * np.log2(np.e)
        if causal:
            logits[np.triu_indices(rows, 1, keys)] = -np.inf
        for q0 in range(0, rows, TILE_M):
            tile = logits[q0:q0 + TILE_M]
            reference = np.full(len(tile), -np.inf)
            for k0 in range((keys - 1) // TILE_N * TILE_N, -1, -TILE_N):
                reference = np.where(np.isinf(reference), tile[:, k0:k0 + TILE_N].max(axis=1), reference)
            sums = np.exp2(tile - reference[:, None]).sum(axis=1)
            yield sums.min(), sums.max()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--text", type=pathlib.Path, default=ROOT / "LICENSE", help="what the models read (default: LICENSE)")
    p.add_argument("--models", type=pathlib.Path, default=ROOT / "build" / "models", help="where the weights are kept")
    a = p.parse_args()
    text = re.sub(r"\s+", " ", a.text.read_text()).strip()
    for name, make in MODELS.items():
        model, seen = make(a.models), []
        tokens = model.batch(text, 1, LENGTH[name])
        model.forward(tokens, lambda layer, q, k, v: seen.extend(items(q[0], k[0], name == "smollm2")))
        least, most = (np.array(x) for x in zip(*seen))
        again = int(((least < SUM_LEAST) | (most > SUM_MOST)).sum())
        print(f"{name}: {tokens.shape[1]} tokens, {len(seen)} items of {TILE_M} rows, {again} done again; "
              f"sums 2^{np.log2(least.min()):.1f} to 2^{np.log2(most.max()):.1f}")


if __name__ == "__main__":
    main()
