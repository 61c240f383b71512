"""When the source of a step must stay, whatever the user asked for."""

from dataclasses import replace

import pytest
from msgspec import structs

from ingest.layouts.detect import LAYOUTS
from ingest.steps.keeping import CHECKPOINTS, KeepReason, must_stay
from tests.made_steps import made_commit
from workers.model import StepKey
from workers.store.commit import Commit

KEY = StepKey(0, 1)


def of_layout(layout: str) -> Commit:
    commit = made_commit(KEY, "a")
    source = replace(commit.record.source, layout=layout)
    return replace(commit, record=structs.replace(commit.record, source=source))


@pytest.mark.parametrize(
    ("commit", "reason"),
    [
        (None, KeepReason.NO_COMMIT),
        (made_commit(KEY, "a", status="partial"), KeepReason.PARTIAL),
        (made_commit(KEY, "a", removed_tensors=True), KeepReason.NO_TENSORS),
        (of_layout("megatron"), KeepReason.CHECKPOINT),
        (of_layout("distributed_checkpoint+mindspore"), KeepReason.CHECKPOINT),
        (of_layout("mindspore"), None),
        (made_commit(KEY, "a"), None),
    ],
)
def test_only_a_complete_commit_with_its_tensors_lets_the_source_go(
    commit: Commit | None, reason: KeepReason | None
) -> None:
    why = must_stay(commit)
    assert (None if why is None else why[0]) is reason


def test_all_layouts_of_checkpoints_are_known() -> None:
    assert {layout.name for layout in LAYOUTS if layout.is_checkpoint} == CHECKPOINTS
