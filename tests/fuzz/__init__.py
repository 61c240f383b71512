"""Coverage-guided fuzzing of the decoders. Not a part of the test run: `python -m tests.fuzz` says how."""
