"""Small models of transformers with random weights: with fagen as with eager attention."""
import pytest
import torch

transformers = pytest.importorskip("transformers")

import fagen
import sim
from fagen import hf, ops
from transformers import masking_utils

fagen.register()
SMALL = dict(hidden_size=128, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=99, max_position_embeddings=256)
MODELS = {
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig(**SMALL, num_key_value_heads=2)),
    "mistral": (transformers.MistralForCausalLM, transformers.MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=9)),
    "gemma2": (transformers.Gemma2ForCausalLM, transformers.Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=32, sliding_window=9,
                                                                       attn_logit_softcapping=5.0, query_pre_attn_scalar=32)),
    "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config(n_embd=128, n_layer=2, n_head=4, vocab_size=99, n_positions=256)),
    "bert": (transformers.BertModel, transformers.BertConfig(**SMALL)),
}


class Evaluated:
    """What the simulated GPU is told that an expression means: the expression, read by Python."""

    def __init__(self, monkeypatch):
        real = ops.flex

        def flex(q, k, v, mask, score, **rest):
            self.mask, self.score = mask, score
            return real(q, k, v, mask, score, **rest)
        monkeypatch.setattr(ops, "flex", flex)

    def value(self, text, **names):
        text = text.replace("causal", "(k - sk <= q - sq)").replace("&&", ") & (").replace(" / ", " // " if "left" in text else " / ")
        return eval(f"({text})", {"tanh": torch.tanh, "abs": torch.abs}, names)

    def __enter__(self):
        self.means = sim.meaning(mask=lambda b, h, q, k, sq, sk, i: self.value(self.mask or "k >= 0", b=b, h=h, q=q, k=k, sq=sq, sk=sk, **i),
                                 score=lambda s, b, h, q, k, i: self.value(self.score or "s", s=s, b=b, h=h, q=q, k=k, **i))
        return self.means.__enter__()

    def __exit__(self, *what):
        return self.means.__exit__(*what)


def both(name, device, monkeypatch, run):
    """run(model) with fagen's attention and with eager."""
    kind, config = MODELS[name]
    torch.manual_seed(0)
    model = kind(config).to(device, torch.bfloat16).eval()
    results = []
    for attention in ("fagen", "eager"):
        model.set_attn_implementation(attention)
        with Evaluated(monkeypatch):
            results.append(run(model))
    return results


def near(a, b, rows=None):
    a, b = (t if rows is None else t[rows] for t in (a.float(), b.float()))
    assert (a - b).abs().max() <= 0.03 * b.abs().max(), f"differ by {(a - b).abs().max():.3g} of {b.abs().max():.3g}"


@pytest.mark.parametrize("name", MODELS)
def test_models(device, monkeypatch, name):
    ids = torch.randint(0, 99, (2, 23), device=device, generator=torch.Generator(device).manual_seed(1))
    padding = torch.ones_like(ids)
    padding[1, :6] = 0  # on the left, as generation has it
    for mask in (None, padding):
        a, b = both(name, device, monkeypatch, lambda m: m(ids, attention_mask=mask)[0].detach())
        near(a, b, None if mask is None else mask.bool())


def test_packed_documents(device, monkeypatch):
    ids = torch.randint(0, 99, (1, 24), device=device)
    positions = torch.cat([torch.arange(10), torch.arange(14)]).unsqueeze(0).to(device)
    a, b = both("llama", device, monkeypatch, lambda m: m(ids, position_ids=positions, use_cache=False).logits.detach())
    near(a, b)


def test_training(device, monkeypatch):
    ids = torch.randint(0, 99, (2, 23), device=device)

    def run(model):
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        return model.model.layers[0].self_attn.q_proj.weight.grad.clone()
    near(*both("llama", device, monkeypatch, run))


def test_generation(device, monkeypatch):
    ids = torch.randint(0, 99, (2, 7), device=device, generator=torch.Generator(device).manual_seed(4))
    padding = torch.ones_like(ids)
    padding[0, :3] = 0

    def run(model):
        out = model.generate(ids, attention_mask=padding, max_new_tokens=4, do_sample=False, output_logits=True, return_dict_in_generate=True, pad_token_id=0)
        return out.logits[0]
    near(*both("llama", device, monkeypatch, run))


def test_what_masks_become():
    m = lambda f, **kw: hf.mask_of(2, 8, 8, mask_function=f, **kw)
    last = "((q - sq) - (k - sk))"
    assert m(masking_utils.causal_mask_function) == hf.Mask(f"{last} >= 0", {})
    assert m(masking_utils.bidirectional_mask_function) == hf.Mask("", {})
    assert m(masking_utils.sliding_window_causal_mask_function(4)).expression == f"{last} < 4 && {last} >= 0"
    docs = m(masking_utils.and_masks(masking_utils.causal_mask_function, masking_utils.packed_sequence_mask_function(torch.zeros(2, 8).long())))
    assert docs.expression == f"{last} >= 0 && doc[b, q] == doc[b, k]" and docs.inputs["doc"].dtype == torch.int32
    ones = torch.ones(2, 8).bool()
    assert m(masking_utils.causal_mask_function, attention_mask=ones).inputs == {}
    ones[0, 0] = False
    assert list(m(masking_utils.causal_mask_function, attention_mask=ones).inputs) == ["keep"]
    static = hf.mask_of(2, 1, 32, q_offset=7, mask_function=masking_utils.causal_mask_function)
    assert static.expression == "(q + shift - k) >= 0" and static.inputs["shift"].item() == 7
    other = m(lambda b, h, q, k: k % 2 == 0)
    assert other.dtype == torch.bool and other.shape == (2, 1, 8, 8) and not other[..., 1].any()
