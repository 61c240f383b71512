"""Lines of two runs in one picture."""

from ingest.page.arguments import Arguments
from ingest.page.links import Links
from ingest.page.moment import Moment
from ingest.page.screen import Asked
from ingest.page.views.compare import SCREEN
from ingest.page.views.overlays import overlay_of_tensor, overlays_of_roles

LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


def asked(moment: Moment, **given: str) -> Asked:
    return Asked(moment, Arguments.of({"with": "b.zarr", **given}, SCREEN.parameters), Links("", "a.zarr"))


def test_loss_gradients_and_weights_have_lines_of_both_runs(moment: Moment) -> None:
    overlays = overlays_of_roles(asked(moment), moment, 1)
    titles = [overlay.title for overlay in overlays]
    assert "mean of the loss" in titles
    assert titles[-1] == "greatest l2_norm of a weight"
    for overlay in overlays:
        assert overlay.names == ["a.zarr, rank 1", "b.zarr, rank 1"]
    assert overlays[0].has_bad
    assert [line.shell.split()[1] for line in overlays[0].answers] == ["heatmap", "heatmap"]
    assert "role='loss'" in overlays[0].answers[0].python


def test_a_tensor_that_is_asked_for_is_drawn_for_both_runs(moment: Moment) -> None:
    view = asked(moment, name=LOG)
    overlay = overlay_of_tensor(view, moment, None, "max", None)
    assert overlay is not None
    assert overlay.title == f"max of {LOG}"
    assert overlay.names == [f"{run}.zarr, rank {rank}" for run in "ab" for rank in (0, 1)]
    assert overlay_of_tensor(asked(moment), moment, None, "max", None) is None
    assert overlay_of_tensor(asked(moment, name="nothing"), moment, None, "max", None) is None
