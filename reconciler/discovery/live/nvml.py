"""What does NVIDIA's library say of the GPUs? The library is loaded only here, and only when somebody asks.

Each question stands alone: a driver that does not know one answers the others.
"""

from __future__ import annotations

import uuid as uuids
from collections.abc import Callable
from ctypes import byref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reconciler.discovery.live.machine import GpuFact

_COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED


def ask() -> tuple[tuple[GpuFact, ...], str, str] | None:
    """GPUs by index, driver version and clique; None when there is no library or no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return _answers(pynvml)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _answers(nvml: Any) -> tuple[tuple[GpuFact, ...], str, str]:
    from reconciler.discovery.live.machine import GpuFact, pci_address

    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    addresses = [pci_address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)) for handle in handles]
    gpus = []
    for index, handle in enumerate(handles):
        up, peers, switched = _links(nvml, handle, addresses)
        gpus.append(
            GpuFact(
                index=index,
                uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
                model=_text(nvml.nvmlDeviceGetName(handle)),
                memory=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                pci=addresses[index],
                links=up,
                peers=peers,
                switched=switched,
            )
        )
    if any(gpu.switched for gpu in gpus):  # through switches every GPU that has links reaches every other
        linked = [gpu for gpu in gpus if gpu.switched and gpu.links > 0]
        gpus = [_through_switch(gpu, linked) if gpu in linked else gpu for gpu in gpus]
    driver = _text(nvml.nvmlSystemGetDriverVersion())
    return tuple(gpus), driver, _clique(nvml, handles[0]) if handles else ""


def _through_switch(gpu: GpuFact, linked: list[GpuFact]) -> GpuFact:
    return replace(gpu, peers={other.index: min(gpu.links, other.links) for other in linked if other is not gpu})


def _links(nvml: Any, handle: Any, addresses: list[str]) -> tuple[int, dict[int, int], bool]:
    """Links up (-1 when the GPU has none at all), links to each other GPU, and whether a switch is at the other end."""
    from reconciler.discovery.live.machine import pci_address

    up, listed, switched = 0, 0, False
    peers: dict[int, int] = {}
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        state = _maybe(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            continue
        listed += 1
        if state != nvml.NVML_FEATURE_ENABLED:
            continue
        up += 1
        kind = _maybe(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        switched = switched or kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        remote = _maybe(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        address = pci_address(_text(remote.busId)) if remote is not None else ""
        if address in addresses:
            peer = addresses.index(address)
            peers[peer] = peers.get(peer, 0) + 1
    return up if listed else -1, peers, switched


def _clique(nvml: Any, handle: Any) -> str:
    answer = nvml.c_nvmlGpuFabricInfo_v2_t()
    if _maybe(nvml, nvml.nvmlDeviceGetGpuFabricInfoV, handle, byref(answer)) is None:
        return ""
    cluster = uuids.UUID(bytes=bytes(answer.clusterUuid))
    return f"{cluster}.{answer.cliqueId}" if answer.state == _COMPLETED and cluster.int else ""


def _maybe(nvml: Any, question: Callable[..., Any], *about: Any) -> Any:
    """The answer, None when this driver or this GPU has none."""
    try:
        return question(*about)
    except nvml.NVMLError:
        return None


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
