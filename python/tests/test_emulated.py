"""Values and gradients of the kernels themselves, without a GPU: emulated.py."""
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EMULATE = ROOT / "build" / "emulate"


@pytest.mark.skipif(not (EMULATE / "libcuda.so.1").exists(), reason="there is no build/emulate: make python builds it")
def test_kernels_emulated(tmp_path):
    env = os.environ | {"LD_LIBRARY_PATH": str(EMULATE), "FAGEN_NVRTC": str(EMULATE / "libnvrtc.so.13"), "FAGEN_CACHE_DIR": str(tmp_path),
                        "FAGEN_TEMPLATES": str(ROOT / "templates"), "FAGEN_EMULATE_SEED": "1",
                        "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(HERE)])}
    run = subprocess.run([sys.executable, "-W", "ignore", str(HERE / "emulated.py")], env=env, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
