"""Networks of images: convolutions, patches, mixers, and the U-Net of a diffusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.backend.model import Feed, Model, Size, of_logits, of_tensor, pick

_CLASSES = 1000


def _images(argument: str, tiny: int, published: int = 224) -> Callable[[Size, torch.device], Feed]:
    def feed(size: Size, device: torch.device) -> Feed:
        count, pixels = pick(size, (2, tiny), (16, published))
        images = torch.randn(count, 3, pixels, pixels, device=device)
        return Feed({argument: images}, torch.randint(pick(size, 10, _CLASSES), (count,), device=device))

    return feed


def _resnet18(size: Size) -> nn.Module:
    from torchvision.models import resnet

    layers = pick(size, [1, 1, 1, 1], [2, 2, 2, 2])
    made: nn.Module = resnet.ResNet(resnet.BasicBlock, layers, num_classes=pick(size, 10, _CLASSES))
    return made


def _resnet50(size: Size) -> nn.Module:
    from torchvision.models import resnet

    layers = pick(size, [1, 1, 1, 1], [3, 4, 6, 3])
    narrow = pick(size, {"width_per_group": 16}, {})
    made: nn.Module = resnet.ResNet(resnet.Bottleneck, layers, num_classes=pick(size, 10, _CLASSES), **narrow)
    return made


def _efficientnet(size: Size) -> nn.Module:
    from torchvision.models import efficientnet

    options: dict[str, Any] = {"stochastic_depth_prob": 0.0, "num_classes": pick(size, 10, _CLASSES), "dropout": 0.0}
    if size == "published":
        made: nn.Module = efficientnet.efficientnet_b0(**options)
        return made
    few = [(1, 3, 1, 8, 8), (6, 3, 2, 8, 16), (6, 5, 2, 16, 24)]  # expansion, kernel, stride, channels in and out
    blocks = [efficientnet.MBConvConfig(*numbers, 1) for numbers in few]
    tiny: nn.Module = efficientnet.EfficientNet(blocks, last_channel=64, **options)
    return tiny


def _mobilenet(size: Size) -> nn.Module:
    import torchvision

    options: dict[str, Any] = pick(size, {"width_mult": 0.25, "num_classes": 10}, {"num_classes": _CLASSES})
    made: nn.Module = torchvision.models.mobilenet_v3_small(dropout=0.0, **options)
    return made


def _timm(name: str, **tiny: Any) -> Callable[[Size], nn.Module]:
    def build(size: Size) -> nn.Module:
        import timm

        options = pick(size, {"num_classes": 10, **tiny}, {"num_classes": _CLASSES})
        # Layers that are dropped at random would be others in each way.
        made: nn.Module = timm.create_model(name, pretrained=False, **options | {"drop_path_rate": 0.0})
        return made

    return build


def _mixer(size: Size) -> nn.Module:
    from timm.models import mlp_mixer

    if size == "published":
        return _timm("mixer_b16_224")(size)
    made: nn.Module = mlp_mixer.MlpMixer(num_classes=10, img_size=32, patch_size=8, num_blocks=2, embed_dim=32)
    return made


def _unet_of_pixels(size: Size) -> nn.Module:
    from diffusers import UNet2DModel

    blocks = {  # google/ddpm-cifar10-32
        "sample_size": 32,
        "block_out_channels": (128, 256, 256, 256),
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        "downsample_padding": 0,
        "flip_sin_to_cos": False,
        "freq_shift": 1,
        "norm_eps": 1e-6,
        "attention_head_dim": None,
    }
    tiny = {
        "sample_size": 16,
        "block_out_channels": (16, 32),
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "attention_head_dim": 8,
    }
    made: nn.Module = UNet2DModel(**pick(size, tiny, blocks))
    return made


def _noise(size: Size, device: torch.device) -> Feed:
    shape = pick(size, (2, 3, 16, 16), (16, 3, 32, 32))
    inputs = {"sample": torch.randn(shape, device=device), "timestep": torch.randint(1000, shape[:1], device=device)}
    return Feed(inputs, torch.randn(shape, device=device))


def _unet_with_text(size: Size) -> nn.Module:
    from diffusers import UNet2DConditionModel

    published = {"sample_size": 64, "cross_attention_dim": 768}  # Stable Diffusion 1.5
    tiny = {
        "sample_size": 16,
        "block_out_channels": (16, 32),
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "attention_head_dim": 4,
        "cross_attention_dim": 16,
    }
    made: nn.Module = UNet2DConditionModel(**pick(size, tiny, published))
    return made


def _latents(size: Size, device: torch.device) -> Feed:
    shape, words = pick(size, ((2, 4, 16, 16), (2, 7, 16)), ((2, 4, 64, 64), (2, 77, 768)))
    inputs = {
        "sample": torch.randn(shape, device=device),
        "timestep": torch.randint(1000, shape[:1], device=device),
        "encoder_hidden_states": torch.randn(words, device=device),
    }
    return Feed(inputs, torch.randn(shape, device=device))


def _of_sample(result: Any, target: torch.Tensor) -> torch.Tensor:
    return of_tensor(result.sample, target)


IMAGE_MODELS = (
    Model("resnet18", "residual: ResNet-18", "torchvision", _resnet18, _images("x", 64), of_logits),
    Model("resnet50", "residual: ResNet-50", "torchvision", _resnet50, _images("x", 64), of_logits),
    Model("efficientnet", "EfficientNet-B0", "torchvision", _efficientnet, _images("x", 64), of_logits),
    Model("mobilenet", "MobileNetV3-Small", "torchvision", _mobilenet, _images("x", 64), of_logits),
    Model(
        "convnext",
        "ConvNeXt-Tiny",
        "timm",
        _timm("convnext_tiny", depths=(1, 1, 2, 1), dims=(8, 16, 24, 32)),
        _images("x", 64),
        of_logits,
    ),
    Model(
        "vit",
        "patches: ViT-Small/16",
        "timm",
        _timm("vit_small_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4),
        _images("x", 32),
        of_logits,
    ),
    Model(
        "swin",
        "shifted windows: Swin-Tiny",
        "timm",
        _timm("swin_tiny_patch4_window7_224", img_size=56, embed_dim=16, depths=(2, 2), num_heads=(2, 4)),
        _images("x", 56),
        of_logits,
    ),
    Model("mixer", "mixer: Mixer-B/16", "timm", _mixer, _images("x", 32), of_logits),
    Model("unet", "diffusion: U-Net of DDPM CIFAR-10", "diffusers", _unet_of_pixels, _noise, _of_sample),
    Model("unet-text", "diffusion: U-Net of Stable Diffusion 1.5", "diffusers", _unet_with_text, _latents, _of_sample),
)
