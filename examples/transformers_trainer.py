"""`Trainer` of Transformers: the model that it is given is jitted.

pip install 'treeplay[models]'; python examples/transformers_trainer.py
"""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import treeplay


class Texts(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.tokens = torch.randint(0, 64, (64, 12), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[at], "labels": self.tokens[at], "attention_mask": torch.ones(12).long()}


def made() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    names = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, **names, **ends))


def trained(model: GPT2LMHeadModel) -> list[torch.Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=2,
            max_steps=20,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
        )
        Trainer(model=model, args=arguments, train_dataset=Texts()).train()
    return [parameter.detach() for parameter in model.parameters()]


# The one line. `torch_compile_backend="treeplay"` is a ValueError, because Accelerate lists the backends that it takes;
# `model.compile(backend="treeplay")` works too, and records the graphs that Dynamo captures.
model = treeplay.jit(made())

torch.testing.assert_close(trained(model), trained(made()), rtol=1e-3, atol=1e-4)
found = model.statistics()
print(f"replayed {found.replays} of {found.calls} calls")
