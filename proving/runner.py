"""Run the ranks of programs, ingest what they dumped, ask, and score: each run once."""

from __future__ import annotations

import hashlib
import multiprocessing
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Self

from proving import agent, answers, score
from proving.case import Case, Result, Run, Truth, Verdict
from proving.layouts import LAYOUTS

#: What a forked process finds imported already: otherwise most of its time is imports.
_PRELOADED = [
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "ingest.recording.record",
    "proving.agent",
    "proving.answers",
    "proving.job",
]
_PATIENCE_S = 300
_DONE = "done"

#: Which programs these are: runs that are kept are those of the same programs.
_PROGRAMS = hashlib.sha256(
    b"".join(
        path.read_bytes()
        for name in ("programs/*.py", "loop.py", "job.py", "edits.py", "collectives.py", "sglang.py")
        for path in sorted(Path(__file__).parent.glob(name))
    )
).hexdigest()[:8]


class ProgramFailed(Exception):
    """A program of the proving ground ended with an error, or did not end, or did not do what is wrong."""


class Proving:
    """Runs cases, several at once; a context manager."""

    def __init__(self, directory: Path, jobs: int = 2, *, as_agent: bool = False) -> None:
        self._directory = directory
        self._ask = agent.ask if as_agent else answers.ask
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        self._threads = ThreadPoolExecutor(jobs)
        self._pool = ProcessPoolExecutor(jobs, self._context)
        self._runs: dict[Run, Future[Truth | None]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._pool.shutdown()

    def cases(self, seed: int) -> list[Case]:
        """Return every case. Their tables import PyTorch, which takes this process seconds."""
        return self._pool.submit(_cases, seed).result()

    def results(self, cases: Sequence[Case], seen: Callable[[Result], None] = lambda _: None) -> list[Result]:
        """Return the results, in the order of the cases; `seen` is called with each as it is there."""
        futures = [self._threads.submit(self._result, case) for case in cases]
        results = []
        for future in futures:
            results.append(future.result())
            seen(results[-1])
        return results

    def _result(self, case: Case) -> Result:
        try:
            truth = self._ensure(case.run)
            if case.reference is not None:
                self._ensure(case.reference)
        except ProgramFailed as exc:
            return Result(case, None, {"program": Verdict.BROKEN}, (), str(exc))
        reference = self._place(case.reference) if case.reference is not None else None
        asked = self._pool.submit(self._ask, self._place(case.run), reference, alone=case.alone).result()
        return score.result(case, truth, asked)

    def _place(self, run: Run) -> Path:
        return self._directory / f"{run.id}-{_PROGRAMS}"

    def _ensure(self, run: Run) -> Truth | None:
        """Run and ingest it, unless that was done or is under way; return what was wrong in it."""
        with self._lock:
            is_mine = run not in self._runs
            future = self._runs.setdefault(run, Future())
        if is_mine:
            try:
                future.set_result(self._run(run))
            except Exception as exc:  # noqa: BLE001  (whoever waits for it gets it)
                future.set_exception(exc)
        return future.result()

    def _run(self, run: Run) -> Truth | None:
        place = self._place(run)
        if (place / _DONE).exists():
            return _truth(run, place)
        shutil.rmtree(place, ignore_errors=True)  # what was interrupted is made again
        place.mkdir(parents=True)
        if run.ranks == 1:  # in a process that has all imported, and goes on with the next
            problem = self._pool.submit(_rank, run, 0, place).exception(_PATIENCE_S)
            if problem is not None:
                raise ProgramFailed(f"{type(problem).__name__}: {problem}\n{_errors(place)}")
        else:
            processes = [
                self._context.Process(target=_rank, args=(run, rank, place), daemon=True)
                for rank in range(run.ranks)
            ]
            for process in processes:
                process.start()
            _wait(processes, place)
        truth = _truth(run, place)
        self._pool.submit(answers.take_in, place, LAYOUTS.get(run.dump, "")).result()
        (place / _DONE).touch()
        return truth


def _cases(seed: int) -> list[Case]:
    from proving import parallel, single

    return [*single.cases(seed), *parallel.cases(seed)]


def _rank(run: Run, rank: int, place: Path) -> None:
    """Be one rank of a run; what it prints goes to a file."""
    import traceback

    import torch
    from torch import distributed

    from proving.job import Job

    try:
        torch.set_num_threads(1)
        if run.ranks > 1:
            distributed.init_process_group(
                "gloo", init_method=f"file://{place}/init", rank=rank, world_size=run.ranks
            )
        program = import_module(f"proving.programs.{run.program}")
        job = Job(run, rank, place / "dump", program.FAULTS)
        program.train(job)
        truth = job.truth()
        if truth is not None:
            (place / f"truth-{rank}.json").write_text(truth.to_json())
        if run.ranks > 1:
            distributed.barrier()
    except BaseException:
        (place / f"error-{rank}.txt").write_text(traceback.format_exc())
        raise
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _wait(processes: Sequence[BaseProcess], place: Path) -> None:
    for process in processes:
        process.join(_PATIENCE_S)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    if any(codes) or None in codes:
        raise ProgramFailed(f"exit codes {codes}\n{_errors(place)}")


def _errors(place: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(place.glob("error-*.txt")))


def _truth(run: Run, place: Path) -> Truth | None:
    """Return the truth of the first rank that did something wrong; its ranks are those of all."""
    told = [Truth.from_json(path.read_text()) for path in sorted(place.glob("truth-*.json"))]
    if run.fault and not told:
        raise ProgramFailed(f"the program never came to its fault: {run.fault}")
    return told[0] if told else None
