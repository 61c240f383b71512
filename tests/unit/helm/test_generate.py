"""The generated parts of the chart."""

import json
import subprocess
import sys

from helm import generate
from tests.charts import CHART


def test_what_is_generated_is_current() -> None:
    """Schema and README follow values.yaml and the settings; alerts and dashboards are those of deploy/."""
    done = subprocess.run(
        [sys.executable, CHART.parent / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_value_is_described_and_has_a_type() -> None:
    def check(schema: dict[str, object], path: str) -> None:
        properties = schema.get("properties", {})
        assert isinstance(properties, dict)
        for name, value in properties.items():
            if not isinstance(value, dict) or path.startswith(".config"):
                continue
            assert "type" in value, f"{path}.{name}"
            if value.get("additionalProperties") is False and "required" in value:
                check(value, f"{path}.{name}")

    check(json.loads(generate.schema()), "")
