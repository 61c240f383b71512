"""Numbers over arrays: element types, device formats, digests, statistics, comparison."""
