"""Where recordings are made and replayed: NVIDIA GPUs and the CPU."""
