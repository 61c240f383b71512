"""The error that says why a choice of tensors may be empty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ingest.reader.step import Step
from ingest.reader.tensor_filter import TensorFilter
from workers.errors import UsageError
from workers.rules.names import matching, near
from workers.store.consolidated.blocks import TensorKey, tensors_of


def empty_choice_error(choice: TensorFilter, keys: Sequence[TensorKey]) -> UsageError:
    """Return the error for a choice that no tensor fulfils; its hint is about the condition that none does.

    Args:
        choice: the conditions.
        keys: all tensors that there are.
    """
    if not keys:
        return UsageError(
            "there are no tensors in these steps",
            hint="`dump-ingest ls STORE --problems` lists files that could not be read as tensors.",
        )
    fields = choice.fields
    if isinstance(name := fields.get("name"), str):
        try:
            matching(name, [key.name for key in keys])
        except UsageError as exc:
            return exc
    for label, of_key in _LABELS.items():
        value = fields.get(label)
        known = list(dict.fromkeys(of_key(key) for key in keys))
        if isinstance(value, str) and value not in known:
            return UsageError(f"no tensor has the {label} {value!r}", hint=_hint(value, known))
    return UsageError(
        f"no tensor fulfils {choice}",
        hint="`dump-ingest find STORE` with fewer conditions lists what is there.",
    )


def keys_of(steps: Iterable[Step]) -> list[TensorKey]:
    """Return the keys of all tensors of some steps, each once."""
    keys: dict[TensorKey, None] = {}
    for step in steps:
        keys |= dict.fromkeys(tensors_of(step.tables)[1])
        step.forget_tables()
    return list(keys)


_LABELS: dict[str, Callable[[TensorKey], str]] = {
    "op_type": lambda key: key.op_type,
    "io": lambda key: key.io,
    "graph": lambda key: key.graph,
}


def _hint(value: str, known: Sequence[str]) -> str:
    other_case = [text for text in known if text.lower() == value.lower()]
    if other_case:
        return f"Did you mean {' or '.join(other_case)}? Case matters."
    nearest = near(value, known)
    return f"Near: {', '.join(nearest)}" if nearest else f"There are: {', '.join(known[:10])}"
