"""Models of the bench: each a task at the size it is used at, and at one that a step takes no time at."""

from __future__ import annotations

from retape.bench.models import cpp, hugging_face, tree_lstm, unet, vocabulary
from retape.bench.models.model import Model

MODELS: dict[str, Model] = {
    model.name: model
    for module in (cpp, hugging_face, vocabulary, unet, tree_lstm)
    for model in module.MODELS
}
