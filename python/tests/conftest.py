"""With a GPU the tests run on it; without, on tests/sim.py."""
import pathlib
import sys

import pytest
import torch

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "python"), str(HERE)]

GPU = torch.cuda.is_available()
FAKE = ROOT / "build" / "release" / "tests" / "fake" / "libcuda.so.1"


def pytest_report_header():
    return f"fagen: on {torch.cuda.get_device_name(0) if GPU else 'the fake driver'}"


@pytest.fixture(scope="session")
def device():
    """Where tensors of the tests live: the GPU, or the CPU with a simulated one."""
    if GPU:
        yield "cuda"
        return
    import sim
    patch = pytest.MonkeyPatch()
    sim.install(patch, FAKE)
    yield "cpu"
    patch.undo()
