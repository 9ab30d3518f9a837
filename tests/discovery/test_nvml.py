"""GPUs by NVML: asked of a stand-in for the library that refuses whatever a driver may refuse."""

from __future__ import annotations

import ctypes
import sys
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from reconciler.discovery.live import nvml
from reconciler.discovery.live.machine import islands_of


class NVMLError(Exception):
    pass


class Library:
    """As `pynvml`: GPUs at 0000:0N:00.0; `wires` says for each GPU where its links lead (an index, "switch", None down)."""

    NVMLError = NVMLError
    NVML_NVLINK_MAX_LINKS = 18
    NVML_FEATURE_ENABLED = 1
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2
    nvmlShutdown = staticmethod(lambda: None)

    def __init__(self, wires: list[list[int | str | None]], *, clique: int = 0, driver: bool = True) -> None:
        self.wires, self.clique, self.driver = wires, clique, driver

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLError

    def nvmlDeviceGetCount(self) -> int:
        return len(self.wires)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetPciInfo(self, gpu: int) -> Any:
        return SimpleNamespace(busId=f"00000000:0{gpu}:00.0".encode())

    def nvmlDeviceGetUUID(self, gpu: int) -> bytes:
        return f"GPU-{gpu}".encode()

    def nvmlDeviceGetName(self, _: int) -> str:
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetMemoryInfo(self, _: int) -> Any:
        return SimpleNamespace(total=81559 << 20)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.1"

    def nvmlDeviceGetNvLinkState(self, gpu: int, link: int) -> int:
        return int(self._far_end(gpu, link) is not None)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: int, link: int) -> int:
        return 2 if self._far_end(gpu, link) == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: int, link: int) -> Any:
        end = self._far_end(gpu, link)
        return SimpleNamespace(busId="00000000:AA:00.0" if end == "switch" else f"00000000:0{end}:00.0")

    def _far_end(self, gpu: int, link: int) -> int | str | None:
        if link >= len(self.wires[gpu]):
            raise NVMLError
        return self.wires[gpu][link]

    def c_nvmlGpuFabricInfo_v2_t(self) -> Any:
        class Answer(ctypes.Structure):
            _fields_ = (("clusterUuid", ctypes.c_uint8 * 16), ("cliqueId", ctypes.c_uint32), ("state", ctypes.c_uint8))

        return Answer((ctypes.c_uint8 * 16)(*uuid.UUID(int=7).bytes), self.clique, 3)

    def nvmlDeviceGetGpuFabricInfoV(self, _: int, answer: object) -> int:
        return 0


def asked(monkeypatch: pytest.MonkeyPatch, library: Library) -> Any:
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return nvml.ask()


def test_no_driver_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, Library([], driver=False)) is None


def test_through_switches_every_gpu_with_links_reaches_every_other(monkeypatch: pytest.MonkeyPatch) -> None:
    up: list[int | str | None] = ["switch"] * 4
    gpus, driver, clique = asked(monkeypatch, Library([up, up, [None] * 4, up], clique=5))
    assert (driver, clique) == ("570.1", f"{uuid.UUID(int=7)}.5")
    assert [(g.links, g.switched, dict(g.peers)) for g in gpus] == [
        (4, True, {1: 4, 3: 4}),
        (4, True, {0: 4, 3: 4}),
        (0, False, {}),
        (4, True, {0: 4, 1: 4}),
    ]
    assert [[gpu.index for gpu in island] for island in islands_of(gpus)] == [[0, 1, 3]]
    assert (gpus[0].pci, gpus[0].memory >> 20, gpus[0].uuid) == ("0000:00:00.0", 81559, "GPU-0")


def test_bridged_pairs_and_gpus_without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus, _, _ = asked(monkeypatch, Library([[1, 1, None], [0, 0], [], []]))
    assert [(g.links, dict(g.peers)) for g in gpus] == [(2, {1: 2}), (2, {0: 2}), (-1, {}), (-1, {})]
    assert [[gpu.index for gpu in island] for island in islands_of(gpus)] == [[0, 1]]


def test_the_real_library_has_what_is_asked_of_it() -> None:
    import pynvml

    asked_for = [name for name in vars(Library) if name.startswith(("nvml", "NVML", "c_nvml"))]
    assert [name for name in asked_for if not hasattr(pynvml, name)] == []
    assert {"version", "clusterUuid", "cliqueId", "state"} <= {f[0] for f in pynvml.c_nvmlGpuFabricInfo_v2_t._fields_}
