"""LoRA with PEFT: a step over the wrapped model, of which only the adapters are trained.

pip install 'treeplay[models]'; python examples/peft_lora.py
"""

from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import treeplay

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def train(jit: Callable[..., Any]) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    base = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=32, **sizes))
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])).to(device)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    @jit
    def step(tokens: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(20):
        step(torch.randint(64, (2, 12), device=device))
    return model, step


model, step = train(treeplay.jit)
eager, _ = train(lambda program: program)
torch.testing.assert_close([*model.parameters()], [*eager.parameters()], rtol=1e-3, atol=1e-4)
print(f"replayed {step.statistics().replays} of {step.statistics().calls} calls")
