"""A pipeline of Diffusers: its network is jitted, and each step of the schedule is a replay.

pip install 'treeplay[models]'; python examples/diffusers_pipeline.py
"""

import copy

import numpy as np
import torch
from diffusers import DDIMPipeline, DDIMScheduler, UNet2DModel

import treeplay

torch.manual_seed(0)
unet = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(8, 16),
    norm_num_groups=4,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
).eval()
eager = DDIMPipeline(copy.deepcopy(unet), DDIMScheduler())
pipeline = DDIMPipeline(unet, DDIMScheduler())
for each in (eager, pipeline):
    each.set_progress_bar_config(disable=True)
    each.to("cuda" if torch.cuda.is_available() else "cpu")

pipeline.unet = treeplay.jit(pipeline.unet)  # the timestep is a tensor, and so an input

for seed in range(3):
    images = [
        each(num_inference_steps=10, generator=torch.Generator().manual_seed(seed), output_type="np").images
        for each in (pipeline, eager)
    ]
    np.testing.assert_allclose(*images, rtol=1e-3, atol=1e-3)
found = pipeline.unet.statistics()
print(f"replayed {found.replays} of {found.calls} calls")
