"""What differs between two runs, ranks, steps or dumps.

The way from `compare(a, b)` to a verdict:

    run.py               opens both sides, compares step by step, and makes one answer of that
    sources.py           a side: the steps of a store, or of a dump where it lies
    selection.py         what the user named, and which step is compared with which
    step_comparison.py   one step against another: digests decide first, then statistics, then elements
    matching.py          which tensor of A is which one of B, by names; mapping.py is the user's file of names
    programs.py          the same for what names do not tell; alignment.py aligns the operators of both
    differences.py       how far tensors are apart, and which of them nobody computed with
    judge.py             the verdicts, in the order of execution; dataflow.py is what operators read
    thresholds.py        limits: given by the user, of types, and what rounding explains
    first_difference.py  the first tensor that differs, and what it was computed of
    result.py            the answer; html.py is a page of it
    runner.py            threads, or a cluster, in which elements are read

Where tensors are put together from the pieces of all ranks, a step of all ranks is compared as one:

    held_tensors.py      every tensor once, with the ranks that have a piece of it
    calls.py             calls that only one side makes, and batches that are cut into other calls
    rank_names.py        names that ranks give otherwise than the other side
    placing.py           how ranks hold each tensor: by digests, marginals, or a search
"""
