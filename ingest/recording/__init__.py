"""A recorder for PyTorch: hooks on a model write its tensors, or their statistics, as a dump.

record, recorder         what users call; which steps are recorded
hooks, compiled          what runs in the training thread: hooks on modules, on gradients, on functions
nested, snapshots        the tensors in a value; a tensor as it is at one moment
device_statistics        statistics on an accelerator
call_lines               the lines of the program that call modules
places                   the rank of the process, and its place in the mesh of the job
queue, writer            a bounded queue, and the thread that empties it
step_files               the files of one step, in the layout of `ingest.layouts.recorder`

PyTorch is imported by nothing here: the module comes from the caller's process, see `torch_module`.
"""

from ingest.recording.record import record
from ingest.recording.recorder import Recorder

__all__ = ["Recorder", "record"]
