"""A trainer and a rollout, token by token: layers by tokens as a picture, and the modules of each layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ingest.page import rendering
from ingest.page.asking import BESIDE, STEP, AnswerLine, Asked, Endpoint, Links, UrlParameter, lines, sides_of
from ingest.page.charts import level_legend, token_picture
from ingest.page.rendering import command
from ingest.questions.rollout.by_token import TokenComparison, compare_tokens
from ingest.questions.rollout.diverging import DIVERGES, SIDES, ComparedModule, PictureColumn
from ingest.questions.rollout.sequences import TensorPlace

#: What a picture has at most: several tokens are one column then, the worst of them.
_COLUMNS = 240
#: The layer of a module: the shortest beginning of its name that ends in a number.
_LAYER = re.compile(r"(?:.*?\.)??\d+(?=\.|$)")


class LayerOfModules(NamedTuple):
    """A row of the picture: the modules of one layer, or a module that is in none."""

    name: str
    anchor: str
    modules: list[ComparedModule]

    @property
    def short(self) -> str:
        """The name of its row."""
        last = self.name.rpartition(".")[2]
        return f"layer {last}" if last.isdecimal() else last

    def within(self, module: str) -> str:
        """Return the name of a module within the layer."""
        return module.removeprefix(f"{self.name}.")

    @property
    def diverges(self) -> bool:
        """Whether one of its modules is the divergence."""
        return any(each.verdict == DIVERGES for each in self.modules)

    @property
    def by_token(self) -> npt.NDArray[Any]:
        """The most that a module differs, by token."""
        return np.asarray(np.fmax.reduce([each.by_token for each in self.modules]))


def layers_of(modules: Sequence[ComparedModule]) -> list[LayerOfModules]:
    """Return the layers in the order in which the trainer begins them."""
    found: dict[str, list[ComparedModule]] = {}
    for each in modules:
        match = _LAYER.match(each.module)
        found.setdefault(match.group() if match else each.module, []).append(each)
    return [LayerOfModules(name, f"layer-{place}", own) for place, (name, own) in enumerate(found.items())]


def shown_tokens(
    answer: TokenComparison, url_of: Callable[[int, TensorPlace], str] = lambda *_: ""
) -> dict[str, Any]:
    """Return what the template shows of an answer.

    Args:
        answer: a comparison token by token.
        url_of: where a tensor of a side is shown; "" for nowhere.
    """
    layers = layers_of(answer.modules)
    drawn: dict[str, Any] = {"picture": None, "legend": []}
    if layers and answer.columns:
        values = np.array([each.by_token for each in layers], np.float64)
        width = -(-values.shape[1] // _COLUMNS)
        values = np.fmax.reduceat(values, np.arange(0, values.shape[1], width), axis=1)
        rows = [(each.short, each.name, each.anchor, each.diverges) for each in layers]
        label = "how far rows of the rollout are from those of the trainer, by layer and token"
        drawn = {
            "picture": token_picture(rows, values, [*_begins(answer.columns, width)], label),
            "legend": level_legend(values, is_count=False),
            "width": width,
        }
    parts = [part for part in answer.report() if isinstance(part, str)]
    told = {"parts": parts, "weights": answer.arrived.counts_text}
    return {"answer": answer, "layers": layers, "sides": SIDES, "url_of": url_of, **told, **drawn}


def _begins(columns: Sequence[PictureColumn], width: int) -> Iterator[tuple[float, str]]:
    """Yield where each sequence begins, in columns of the picture, and its name."""
    ranks = {each.rank for each in columns}
    place = 0
    for (rank, sequence), tokens in groupby(columns, key=lambda each: each[:2]):
        yield place / width, f"sequence {sequence}" + f", rank {rank}" * (len(ranks) > 1)
        place += len([*tokens])


def document(answer: TokenComparison) -> str:
    """Return an answer as one page that works without a network and without other files."""
    return rendering.render(
        "tokens.html.j2",
        **shown_tokens(answer),
        title="Token by token",
        links=Links("", ""),
        names=[],
        other="",
        report=rendering.alone(),
    )


def _show(asked: Asked) -> dict[str, Any]:
    other = asked.arguments.text(BESIDE)
    names = asked.library.names() if asked.library is not None else []
    form = {"names": [each for each in names if each != asked.links.run], "other": other, "answer": None}
    if not other:
        return form
    sides = sides_of(asked, other, None, asked.arguments.integer("step"))
    links = asked.links, asked.links.of_run(other)

    def url_of(side: int, place: TensorPlace) -> str:
        return links[side].view(
            "tensor", rank=place.rank, step=place.step, name=place.name, graph=place.graph
        )

    same = AnswerLine(
        command("compare", *sides, "--by", "token"), f"ingest.compare_tokens({sides[0]!r}, {sides[1]!r})"
    )
    return form | shown_tokens(compare_tokens(*sides), url_of) | {"lines": lines(asked, same)}


SCREEN = Endpoint(
    "tokens",
    "Token by token",
    (UrlParameter(BESIDE, "string", "The run of the engine that samples; this one is the trainer."), STEP),
    _show,
    lambda asked: bool(asked.text(BESIDE)),
    template="tokens.html.j2",
)
