"""Which device records where a program computes."""

from __future__ import annotations

import torch

from treeplay.device.host import HostDevice
from treeplay.device.protocol import Device


def device_for(device: torch.device) -> Device:
    """What records there."""
    if device.type == "cpu":
        return HostDevice()
    # Here and not above: on the CPU nothing for GPUs is imported.
    from treeplay.device.cuda.device import CudaDevice

    return CudaDevice(device)
