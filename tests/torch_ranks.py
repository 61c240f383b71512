"""Ranks of `torch.distributed` with gloo, each a process that records. Imports PyTorch in those processes."""

import multiprocessing
from pathlib import Path

_PRELOADED = ["torch", "torch.nn.parallel", "ingest.recording.record", "workers.arrays.kernel_cache"]


def record_ranks(directory: Path, ranks: int, *, drifting: int) -> None:
    """Train replicas for four steps; after the second, one of them changes a bias by itself."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    processes = [
        context.Process(target=_train, args=(directory, rank, ranks, drifting)) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * ranks


def _train(directory: Path, rank: int, ranks: int, drifting: int) -> None:
    import torch  # deferred: only these processes have it for certain
    from torch import distributed, nn  # deferred: the same
    from torch.nn.parallel import DistributedDataParallel  # deferred: the same

    import ingest  # deferred: this module is imported by processes that need none of it

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{directory}/init", rank=rank, world_size=ranks
    )
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    with ingest.record(model, directory / "run-dump"):
        for step in range(4):
            optimizer.zero_grad()
            model(torch.randn(4, 4)).square().mean().backward()
            optimizer.step()
            if (rank, step) == (drifting, 1):
                with torch.no_grad():
                    net[2].bias[1] += 1e-3
    distributed.destroy_process_group()
