"""All models, in the order in which they are measured."""

from __future__ import annotations

from benchmarks.backend.image_models import IMAGE_MODELS
from benchmarks.backend.model import Model
from benchmarks.backend.recurrent_models import RECURRENT_MODELS
from benchmarks.backend.text_models import TEXT_MODELS

MODELS: tuple[Model, ...] = (*TEXT_MODELS, *IMAGE_MODELS, *RECURRENT_MODELS)


def find_model(name: str) -> Model:
    """The model called `name`; `KeyError` with the names there are if there is none."""
    for model in MODELS:
        if model.name == name:
            return model
    raise KeyError(f"no model {name!r}; there are {', '.join(model.name for model in MODELS)}")
