"""What each setting becomes for a service."""

from typing import Any

from ingest.disk.pressure import Threshold
from ingest.dump_retention.policy import RetentionPolicy
from ingest.settings import Settings, load
from ingest.wiring.services import options_of
from workers.arrays.sketches.marginal_scope import MarginalScope


def settings(**values: Any) -> Settings:
    return load(**values).settings


def test_settings_become_what_a_service_is_to_do() -> None:
    chosen = settings(
        quiet_s=7,
        settle_s=3,
        order="newest",
        replace=True,
        after_commit="delete",
        keep_last=4,
        keep_anomalous=True,
        host="node-1",
        under_pressure="newest",
        pressure_free="20%",
    )
    once, forever = options_of(chosen, dry_run=True), options_of(chosen, retry_forever=True)
    assert (once.policy.completeness.quiet_s, once.policy.completeness.settle_s) == (7, 3)
    assert (once.policy.order, once.policy.replace, once.host, once.dry_run) == (
        "newest",
        True,
        "node-1",
        True,
    )
    assert once.retention == RetentionPolicy(4, keep_anomalous=True)
    assert once.pressure is not None
    assert (once.pressure.policy, once.pressure.threshold) == ("newest", Threshold(share=0.2))
    # A watcher never takes again what was removed, or it would undo each `gc`.
    assert (once.take_removed, forever.take_removed) == (True, False)
    assert options_of(settings()).retention is None


def test_sketches_are_kept_unless_a_setting_says_otherwise() -> None:
    assert options_of(settings()).sketches
    assert not options_of(settings(sketches=False)).sketches
    assert options_of(settings()).marginals is MarginalScope.LARGE
    assert options_of(settings(marginals="all")).marginals is MarginalScope.ALL
