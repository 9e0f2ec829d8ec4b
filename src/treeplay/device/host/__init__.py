"""The host device: on a CPU the compiled artifact, or the plan of operators, is itself the replayable thing."""

from treeplay.device.host.device import HostDevice

__all__ = ["HostDevice"]
