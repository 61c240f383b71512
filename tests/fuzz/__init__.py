"""Coverage-guided fuzzing of the decoders, which is not part of the test run. See `python -m tests.fuzz`."""
