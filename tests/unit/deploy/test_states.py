"""Which state is played where: as series, with real processes, and what `doctor` says of it.

Each row is a state in which somebody must be told, or nobody. A row names states of `tests/alert_states.py`,
tests in which real processes are in that state, and tests of the one thing that `doctor` says to do.
"""

from dataclasses import dataclass

from tests.alert_failures import SILENT_FAILURES
from tests.alert_false_alarms import FALSE_ALARMS
from tests.alert_states import DISKS

ON_CALL = "integration/test_on_call.py::test_whatever_goes_wrong_reaches_a_receiver_and_nothing_else_does"
WATCHDOG = "integration/test_watchdog.py"
SLURM = "integration/test_slurm.py::test_a_job_leaves_its_whole_dump_in_the_store"
STOPPING = "integration/test_stopping.py"
PODMAN = "integration/test_podman.py"
DOCTOR = "unit/ingest/doctor"


@dataclass(frozen=True)
class Row:
    """Where a state is played. States are named by a part of their name."""

    states: tuple[str, ...]
    real: tuple[str, ...] = ()
    doctor: tuple[str, ...] = ()


MUST_TELL = {
    "a dump that the user may not read, one rank or all": Row(
        ("of one rank", "of all ranks of a host", "told without their kind"),
        (ON_CALL, f"{PODMAN}::test_a_wrong_user_is_told_in_one_line_what_to_do"),
        (
            "integration/test_doctor.py::test_files_of_another_user_are_found",
            f"{DOCTOR}/test_process_checks.py::test_a_watcher_that_may_read_nothing",
        ),
    ),
    "a path that never shows a dump": Row(
        ("a path that never shows a dump",),
        (ON_CALL,),
        (
            f"{DOCTOR}/test_checks.py::test_a_dump_that_is_not_there_fails_with_a_hint_and_the_rest_is_checked",
            f"{DOCTOR}/test_process_checks.py::test_a_watcher_that_has_seen_no_dump",
        ),
    ),
    "a store that is not there": Row(
        ("a store that does not answer", "whose store does not exist", "rejects the credentials"),
        (ON_CALL,),
        (
            f"{DOCTOR}/test_checks.py::test_a_store_that_does_not_answer_is_to_be_looked_for",
            f"{DOCTOR}/test_process_checks.py::test_a_consolidator_without_a_lease_unless_it_stands_by",
        ),
    ),
    "another store than the watchers'": Row(
        ("another store than the watchers'", "which does not exist either"),
        (ON_CALL,),
        (
            f"{DOCTOR}/test_process_checks.py::test_a_process_with_another_store",
            f"{DOCTOR}/test_checks.py::test_another_store_than_that_of_the_watchers",
        ),
    ),
    "a process in a crash loop": Row(
        (
            "a watcher that is killed every minute",
            "a worker that is killed every minute",
            "CrashLoopBackOff",
            "backs off",
        ),
        (ON_CALL, f"{PODMAN}::test_the_kernel_ends_what_takes_more_than_its_memory_and_it_starts_again"),
        (
            f"{DOCTOR}/test_process_checks.py::test_a_crash_loop_that_is_up_at_the_moment",
            f"{DOCTOR}/test_process_checks.py::test_a_process_that_is_gone_evicted_or_pending",
        ),
    ),
    "a component that is evicted, Pending or scaled away": Row(
        (
            "a watcher that is evicted",
            "all watchers of a run are evicted",
            "a scheduler that is evicted",
            "a consolidator that is scaled away",
            "a worker that is evicted",
            "wait for a node",
        ),
        (ON_CALL,),
        (
            f"{DOCTOR}/test_process_checks.py::test_a_process_that_is_gone_evicted_or_pending",
            f"{DOCTOR}/test_scheduler_check.py::test_a_scheduler_that_is_gone_is_an_error",
            f"{DOCTOR}/test_checks.py::test_a_consolidator_that_has_died",
        ),
    ),
    "a process that hangs": Row(
        ("hangs before its first look", "hangs and still holds the lease", "a worker that does not answer"),
        (
            f"{WATCHDOG}::test_a_service_is_ready_and_beats_until_it_hangs",
            f"{WATCHDOG}::test_a_scheduler_and_a_worker_beat_until_their_event_loops_hang",
            f"{PODMAN}::test_systemd_restarts_a_watcher_that_hangs",
            f"{PODMAN}::test_it_is_healthy_until_it_hangs_and_drains_at_sigterm",
        ),
        (
            f"{WATCHDOG}::test_a_scheduler_and_a_worker_beat_until_their_event_loops_hang",
            f"{DOCTOR}/test_process_checks.py::test_a_process_that_is_stopped",
            f"{DOCTOR}/test_process_checks.py::test_a_process_that_hangs_in_a_dead_file_system",
        ),
    ),
    "a consolidator without a lease": Row(
        ("neither with the lease",),
        (ON_CALL,),
        (f"{DOCTOR}/test_process_checks.py::test_a_consolidator_without_a_lease_unless_it_stands_by",),
    ),
    "fewer ranks than expected": Row(
        ("fewer ranks than the settings expect", "than the rank table names", "and no consolidator"),
        (ON_CALL,),
        (f"{DOCTOR}/test_checks.py::test_fewer_ranks_than_expected",),
    ),
    "a last step whose findings nobody scraped": Row(
        ("a NaN in the last step, told by the consolidator", "a NaN in the last step of a job"),
        (ON_CALL, SLURM),
    ),
    "gc that fails": Row(("gc that fails",), (ON_CALL,), (f"{DOCTOR}/test_checks.py::test_a_gc_that_fails",)),
    "a backlog left behind at SIGTERM": Row(
        ("ends with a backlog", "while a young step waits", "steps that it may not read"),
        (
            f"{STOPPING}::test_a_backlog_is_told_with_its_size_and_an_exit_code",
            f"{STOPPING}::test_everything_that_is_there_is_taken_first_if_asked_for",
        ),
        (
            f"{DOCTOR}/test_checks.py::test_steps_that_nobody_takes",
            f"{DOCTOR}/test_process_checks.py::test_a_watcher_with_a_backlog",
        ),
    ),
    "findings outlive the process that saw them": Row(
        ("the watcher ends three minutes later", "all of whose processes end with it"), (ON_CALL,)
    ),
}
MUST_NOT_TELL = {
    "a job that ends": Row(
        ("with its processes left running", "targets that are taken out"), (ON_CALL, SLURM)
    ),
    "a job that is killed in the middle of a dump": Row(("in the middle of a dump", "three steps apart")),
    "a job that repeats steps from a checkpoint": Row(("from a checkpoint",)),
    "a job that pauses for evaluation": Row(("evaluates for hours",)),
    "a job that ends in Slurm": Row(
        ("with static targets", "in Slurm that ends with an old backlog"), (SLURM,)
    ),
    "a standby consolidator": Row(("stands by",), (ON_CALL,)),
    "a restart of any process": Row(
        ("a restart of the", "replaces all pods", "a consolidator that restarts")
    ),
    "a clock ten minutes off": Row(("ten minutes behind", "ten minutes ahead", "a minute off")),
    "a shared disk that is always 96 % full": Row(("always 96 %", "between 95 % and 97 %")),
    "a cleanup every two hours": Row(("a cleanup every two hours",)),
    "a large dump whose look takes a minute": Row(("a large dump",)),
    "two releases beside one another": Row(("beside a busy one", "with a store each")),
}


def test_what_must_be_told_is_in_the_list_of_failures_and_what_must_not_in_the_others() -> None:
    for rows, states in ((MUST_TELL, SILENT_FAILURES), (MUST_NOT_TELL, (*FALSE_ALARMS, *DISKS))):
        names = [state.name for state in states]
        for row in rows.values():
            assert any(part in name for part in row.states for name in names)


def test_ten_of_the_worst_are_played_with_real_processes() -> None:
    assert sum(bool(row.real) for row in MUST_TELL.values()) >= 10
    assert sum(bool(row.doctor) for row in MUST_TELL.values()) >= 10
