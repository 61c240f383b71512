"""The plugin of pytest: the fixture `golden`, `--golden-update`, and failures that say what differs first.

Every run of pytest imports this module, so it imports neither PyTorch nor the rest of dump-ingest.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ingest.questions.compare.result import Comparison

#: Of larger tensors, a golden recording has the statistics without the elements.
_MAX_NBYTES = 64 * 1024
#: The property of a report of a test that says what was accepted: it also comes back from workers of xdist.
_UPDATED = "golden update"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, and where recordings and reports are."""
    group = parser.getgroup("golden", "numbers of models (dump-ingest)")
    group.addoption(
        "--golden-update",
        action="store_true",
        help="Accept the numbers of this run, and say what changed.",
    )
    parser.addini(
        "golden_max_nbytes",
        "Keep the elements of tensors up to this size in bytes.",
        default=str(_MAX_NBYTES),
    )
    parser.addini("golden_reports", "Directory of HTML reports of failures.", default="golden-reports")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what `--golden-update` accepted."""
    reports = terminalreporter.getreports("passed")
    said = [text for report in reports for name, text in report.user_properties if name == _UPDATED]
    if said:
        terminalreporter.section("golden recordings that were written")
        terminalreporter.write_line("\n".join(map(str, said)))


@pytest.fixture
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    """Return what compares the numbers of a model with those that are kept beside the test."""
    return Golden(request, tmp_path)


class Golden:
    """Compares forward and backward passes with recordings in `golden/` beside the file of the test."""

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self._config = request.config
        self._properties = request.node.user_properties
        self._scratch = tmp_path
        self._test = re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")
        self.directory = request.path.parent / "golden" / request.path.stem
        """Where the recordings of this file of tests are: to be committed with it."""

    def check(
        self,
        model: Any,
        *inputs: Any,
        loss: Callable[[Any], Any] | None = None,
        name: str = "",
        **named_inputs: Any,
    ) -> None:
        """Run a model forward and backward, and compare every tensor of it with the golden recording.

        What may differ is derived from types, lengths of sums and what the inputs of an operator differ by:
        as `dump-ingest compare` judges. Seed the weights and the inputs.

        Args:
            model: a `torch.nn.Module`. Its gradients are added to, as by any backward pass.
            inputs: what it is called with, as are `named_inputs`.
            loss: computes what is differentiated from what the model returns. Default: the sum of all its
                floating-point outputs, each element with another weight.
            name: tells several checks of one test apart.

        Raises:
            pytest.fail.Exception: the golden recording is missing, or a tensor is beyond its limit.
        """
        import ingest  # deferred, as are PyTorch and all that it needs

        title = f"{self._test}-{name}" if name else self._test
        kept, new = self.directory / title, self._scratch / "golden" / title
        with ingest.record(
            model,
            new,
            what="tensors",
            advance="manual",
            max_nbytes=int(self._config.getini("golden_max_nbytes")),
        ) as recorder:
            outputs = model(*inputs, **named_inputs)
            value = (loss or _weighted_sum)(outputs)
            recorder.save("loss", value)
            if value.requires_grad:
                value.backward()
        comparison = ingest.compare(new, kept) if kept.is_dir() else None
        if self._config.getoption("golden_update"):
            self._update(title, new, kept, comparison)
        elif comparison is None:
            pytest.fail(
                f"no golden recording {kept}: write it with pytest --golden-update, and commit it",
                pytrace=False,
            )
        elif not comparison.is_within:
            pytest.fail(f"{_told(comparison)}\n{self._report(title, comparison)}", pytrace=False)

    def _update(self, title: str, new: Path, kept: Path, comparison: Comparison | None) -> None:
        """Replace the golden recording, unless every number is as it was."""
        if comparison is not None and comparison.verdict == "equal":
            return
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(new, kept)
        self._properties.append((_UPDATED, f"{title}: {_told(comparison) if comparison else 'new'}"))

    def _report(self, title: str, comparison: Comparison) -> str:
        from ingest.questions.compare.html import to_html

        directory = self._config.rootpath / self._config.getini("golden_reports")
        directory.mkdir(parents=True, exist_ok=True)
        report = directory / f"{self.directory.name}-{title}.html"
        report.write_text(to_html(comparison), encoding="utf-8")
        return f"report: {report}\nif this is meant: pytest --golden-update"


def _told(comparison: Comparison) -> str:
    """Return the first difference, as `compare` names it, and how many there are."""
    lines = [", ".join(f"{count} {verdict.value}" for verdict, count in comparison.counts.items())]
    if first := comparison.first:
        lines[:0] = [
            f"{first.tensor.name} differs first: {first.reason}{f'; {first.says}' if first.says else ''}"
        ]
    return "\n".join([*lines, *comparison.notes])


def _weighted_sum(outputs: Any) -> Any:
    """Sum all floating-point outputs. Equal weights would leave softmax and norms without gradients."""
    import torch

    from ingest.recording.hooks import tensors_in

    total = torch.zeros(())
    for _, output in tensors_in(outputs, torch.Tensor):
        if output.is_floating_point():
            weights = torch.arange(output.numel(), dtype=torch.float64).cos()
            total = total + (output * weights.view(output.shape).to(output)).sum().to(total)
    return total
