"""Which part of the driver a file belongs to."""

from __future__ import annotations

import pytest

from fairlead.plan.cdi import capability

LIB = "/usr/lib/x86_64-linux-gnu"


@pytest.mark.parametrize(
    ("path", "owners"),
    [
        (f"{LIB}/libcuda.so.550.163.01", {"compute"}),
        (f"{LIB}/libnvidia-ml.so.1", {"utility"}),
        (f"{LIB}/libnvidia-encode.so.1", {"video"}),
        (f"{LIB}/libEGL_nvidia.so.0", {"graphics"}),
        (f"{LIB}/libnvidia-ngx.so.550", {"ngx"}),
        (f"{LIB}/libnvidia-gpucomp.so.550", {"compute", "graphics"}),
        ("/usr/bin/nvidia-smi", {"utility"}),
        ("/usr/bin/nvidia-cuda-mps-server", {"compute"}),
        ("/dev/nvidia-modeset", {"graphics", "display"}),
        ("/dev/dri/card0", {"graphics", "display"}),
        ("/usr/share/vulkan/icd.d/nvidia_icd.json", {"graphics", "display"}),
        ("/dev/nvidia0", set()),
        ("/lib/firmware/nvidia/550/gsp_ga10x.bin", set()),
        ("/opt/other/libother.so", set()),
    ],
)
def test_a_file_belongs_to_who_needs_it(path: str, owners: set[str]) -> None:
    assert capability.owners(path) == owners
    assert capability.is_wanted(path, frozenset(owners)) is (True)
    assert capability.is_wanted(path, capability.ALL - owners) is (not owners)


def test_32_bit_libraries_need_their_own_word_beside_their_own_part() -> None:
    path = "/usr/lib/i386-linux-gnu/libcuda.so.1"
    assert not capability.is_wanted(path, frozenset({"compute"}))
    assert not capability.is_wanted(path, frozenset({"compat32"}))
    assert capability.is_wanted(path, frozenset({"compute", "compat32"}))


def test_words_are_read_with_all_and_the_default_within_what_is_supported() -> None:
    only = frozenset({"compute", "utility"})
    assert capability.parse_capabilities("") == (capability.DEFAULT, ())
    assert capability.parse_capabilities(" video , compute ") == (frozenset({"video", "compute"}), ())
    assert capability.parse_capabilities("all", only) == (only, ())
    assert capability.parse_capabilities("video,compute", only) == (frozenset({"compute"}), ("video",))
