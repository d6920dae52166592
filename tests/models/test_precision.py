"""The setting `dtype`: which type `auto` means on a processor."""

from pathlib import Path

import pytest
import torch

from palaestra.models import precision
from palaestra.models.precision import chosen_dtype

AMD = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx512f {}\n"
INTEL = "vendor_id\t: GenuineIntel\nflags\t\t: fpu avx512f {}\n"


@pytest.fixture
def processor(monkeypatch, tmp_path):
    def set_to(text: str | None) -> None:
        file = tmp_path / "cpuinfo"
        if text is not None:
            file.write_text(text)
        monkeypatch.setattr(precision, "Path", lambda _: Path(file))
        precision._multiplies_bfloat16.cache_clear()

    yield set_to
    precision._multiplies_bfloat16.cache_clear()


@pytest.mark.parametrize(
    ("text", "means"),
    [
        (AMD.format("avx512_bf16"), "bfloat16"),
        (AMD.format("avx512_vnni"), "float32"),
        (INTEL.format("avx512_bf16"), "float32"),
        (INTEL.format("avx512_bf16 amx_bf16 amx_tile"), "bfloat16"),
        ("processor\t: 0\nFeatures\t: fp asimd\n", "float32"),
        (None, "float32"),  # no such file
    ],
)
def test_auto_is_bfloat16_where_products_in_it_are_faster(processor, text, means):
    processor(text)
    assert chosen_dtype("auto", "cpu") == means


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
def test_other_names_mean_themselves(name):
    assert chosen_dtype(name, "cpu") == name


def test_a_gpu_without_bfloat16_takes_float32(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for has_it, means in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *, including_emulation, has=has_it: has)
        assert chosen_dtype("auto", "cuda:0") == means
