"""The names of tensors that an entry of a YAML file is about."""

import pytest
from pydantic import ValidationError

from ingest.questions.compare.thresholds import ThresholdRule
from ingest.questions.placement.layout_map import MappedPlacement


@pytest.mark.parametrize(("model", "rest"), [(ThresholdRule, {}), (MappedPlacement, {"a": "replicated"})])
def test_what_is_not_a_regular_expression_is_refused(
    model: type[ThresholdRule | MappedPlacement], rest: dict[str, str]
) -> None:
    with pytest.raises(ValidationError, match="regex '\\('"):
        model.model_validate({"regex": "(", **rest})
