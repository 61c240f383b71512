"""Recorders for PyTorch and JAX: hooks on a model write its tensors, or their statistics, as a dump.

record.py     what users call, and where this process is in the mesh of the job
recorder.py   which steps are recorded, and how much of a model in each
hooks.py      what runs in the training thread: hooks on modules, gradients and functions, with their lines
snapshots.py  a tensor as it is at one moment, its statistics, how it lies on the mesh
training.py   recording a model that a trainer, or a script, calls itself
writer.py     a bounded queue, and the thread that empties it into files (`ingest.layouts.recorder`)
black_box.py  a ring of the last steps, which is saved when something happens
triggers.py   what can happen, on any rank
jax_program.py  the same for JAX: evaluates a traced program equation by equation
__main__.py   runs a script with a recorder

PyTorch and JAX are imported by nothing here: the modules come from the caller's process, see
`snapshots.TorchModule`.
"""

from ingest.recording.record import record
from ingest.recording.recorder import Recorder
from ingest.recording.training import record_training

__all__ = ["Recorder", "record", "record_training"]
