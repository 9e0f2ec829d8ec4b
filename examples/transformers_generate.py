"""`generate` of Transformers with a static cache: one recording serves the tokens of all later calls of `generate`.

pip install 'treeplay[models]'; python examples/transformers_generate.py
"""

import copy

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import treeplay

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
)
model = LlamaForCausalLM(config).to("cuda" if torch.cuda.is_available() else "cpu").eval()
eager = copy.deepcopy(model)
model.forward = treeplay.jit(model.forward)  # what `generate` calls for each token

for _ in range(4):
    prompt = torch.randint(2, 64, (2, 8), device=model.device)
    # Without a static cache, each token makes the cache longer: a size of its own for each call, which runs as it is.
    options = {"max_new_tokens": 16, "do_sample": False, "cache_implementation": "static"}
    found = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    expected = eager.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    assert torch.equal(found, expected)
found = model.forward.statistics()
print(f"replayed {found.replays} of {found.calls} calls")
