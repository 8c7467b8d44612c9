"""Specs without tensors: found, parsed, written from expressions."""
import subprocess
import sys

import pytest

import fagen
from fagen import abi, spec


def test_import_is_light():
    code = "import sys, fagen; assert 'torch' not in sys.modules and not any('libfagen' in line for line in open('/proc/self/maps'))"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(abi.checkout() / "python")})


def test_names_of_the_library():
    s = spec.get("gpt2_train")
    assert (s.dtype, s.d_qk, s.d_v, s.layout, s.kv_group, s.backward, s.lse) == ("bf16", 64, 64, "dense", 1, True, True)
    assert s.dropout == 26 / 256 and s.inputs == () and spec.get("gpt2_train") is s
    assert spec.get("gqa_any").kv_group == 0 and spec.get("packed_causal").layout == "packed"
    with pytest.raises(fagen.FagenError, match="found 'no_such'.*causal_d64"):
        spec.get("no_such")


def test_inputs_are_described():
    slope, = spec.get("alibi").inputs
    assert str(slope) == "slope: f32 [heads]" and slope.grad
    s = spec.get("block_lists")
    assert {i.name: i.dims for i in s.inputs}["block_index"] == ("batch", "heads", "blocks_q", "blocks_k") and s.block_q


def test_files_and_text(tmp_path):
    (tmp_path / "mine.yaml").write_text("head_dim: 96\nblocks: {size: 64, file: kept.txt}\n")
    (tmp_path / "kept.txt").write_text("#.\n##\n")
    assert spec.get(str(tmp_path / "mine.yaml")).d_qk == 96
    assert spec.get('{"head_dim": 128, "dtype": "fp16"}').dtype == "fp16"


def test_errors_carry_place_and_nearest():
    with pytest.raises(fagen.FagenError, match="(?s)spec:2:7: .*did you mean 'causal'") as e:
        spec.get("head_dim: 64\nmask: casual\n")
    assert e.value.code == 1 and e.value.field == "mask"
    with pytest.raises(fagen.FagenError, match="missing.yaml"):
        spec.get("/nowhere/missing.yaml")


@pytest.mark.parametrize("expression, lists", [
    ("doc[b, q] == doc[b, k]", [["b", "q"], ["b", "k"]]),
    ("rel[h, min(q - k, (k + 1) % 7)]", [["h", "min(q - k, (k + 1) % 7)"]]),
    ("other_doc[b] + doc [ next[b, k] ]", [["next[b, k]"]]),
    ("doc == 3", []),
])
def test_indexes(expression, lists):
    assert spec.indexes(expression, "doc" if "rel" not in expression else "rel") == lists


def test_dims_are_read():
    of = spec.dims_read
    assert of(("doc[b, q] == doc[b, k]",), "doc", 2) == ("batch", "seq_q")
    assert of(("rel[h, q - k + 8]",), "rel", 2) == ("heads", 0)
    assert of(("s + cap",), "cap", 0) == () and of(("causal && document",), "doc", 2) is None
    with pytest.raises(ValueError, match="2 indexes, but the tensor has 1"):
        of(("doc[b, q]",), "doc", 1)


def test_written_from_expressions():
    keys = {"head_dim": 64, "passes": ["forward", "backward"]}
    s = spec.written("causal && document", "alibi", (("doc", "i32", None, False), ("slope", "f32", None, True)), keys)
    assert {str(i) for i in s.inputs} == {"doc: i32 [batch, seq_k]", "slope: f32 [heads]"} and dict(zip([i.name for i in s.inputs], s.grads))["slope"]
    s = spec.written(None, "s + rel[h, q - k + 8]", (("rel", "bf16", ("heads", 17), False),), keys)
    assert str(s.inputs[0]) == "rel: bf16 [heads, 17]"
    assert spec.written("k <= q", None, (), keys) is spec.written("k <= q", None, (), keys)
