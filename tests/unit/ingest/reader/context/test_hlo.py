"""Graphs of XLA: in the spelling of the present and of older versions, and of a real program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ingest
from ingest.reader.context.files import Frame
from ingest.reader.context.hlo import parse_hlo
from ingest.reader.context.ir import IrSource
from ingest.reader.context.rank_context import DumpedSource
from tests.cli import run_here

TEXT = """\
HloModule jit_f, entry_computation_layout={(f32[4,4]{1,0})->f32[]}

FileNames
1 "/srv/train.py"

FunctionNames
1 "f"
2 "<module>"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=12 end_column=52}
2 {file_name_id=1 function_name_id=2 line=9 end_line=9 column=6 end_column=55}

StackFrames
1 {file_location_id=2 parent_frame_id=1}
2 {file_location_id=1 parent_frame_id=2}

%region_0.1 (a.1: f32[]) -> f32[] {
  %a.1 = f32[] parameter(0)
  ROOT %neg.1 = f32[] negate(%a.1), metadata={op_name="jit(f)/neg" source_file="/srv/a b.py" source_line=3}
}

ENTRY %main.2 (w.1: f32[4,4]) -> f32[] {
  %w.1 = f32[4,4]{1,0} parameter(0), metadata={op_name="weights['kernel']"}
  %pair.1 = (f32[4,4]{1,0}, /*index=1*/f32[]) custom-call(%w.1), custom_call_target="two, (of them"
  %get-tuple-element.1 = f32[] get-tuple-element(%pair.1), index=1
  ROOT log.1 = f32[] log(f32[] %get-tuple-element.1), metadata={op_name="jit(f)/log" stack_frame_id=2}
}
"""


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_instructions_have_edges_and_lines(size: int) -> None:
    data = TEXT.encode()
    graph = parse_hlo(data[at : at + size] for at in range(0, len(data), size))
    assert not graph.problems
    assert {name: op.inputs for name, op in graph.ops.items()} == {
        "jit_f/neg.1": (None,),
        "jit_f/pair.1": (IrSource("weights['kernel']", -1),),
        "jit_f/log.1": (IrSource("jit_f/pair.1", 1),),
    }
    assert graph.ops["jit_f/neg.1"].stack == (Frame("/srv/a b.py", 3, ""),)
    assert graph.ops["jit_f/log.1"].stack == (
        Frame("/srv/train.py", 9, "", "<module>"),
        Frame("/srv/train.py", 7, "", "f"),
    )


def test_anything_is_accepted_and_what_is_no_module_is_told() -> None:
    assert parse_hlo([b"\xff{\n1 {stack\nROOT = ("]).problems
    frame = "1 {file_location_id=2 parent_frame_id="
    cyclic = TEXT.replace(f"{frame}1", f"{frame}3")
    assert len(parse_hlo([cyclic.encode()]).ops["jit_f/log.1"].stack) == 200


PROGRAM = """
import pathlib, sys
import jax, jax.numpy as jnp, numpy as np

def f(x):
    lower = x - 1
    return jnp.log(lower).sum()

jax.jit(f).lower(jnp.ones(4)).compile()
step = pathlib.Path(sys.argv[1], "rank_0", "jit_f", "step_3")
step.mkdir(parents=True)
lower = np.array([1, 2, -1, 3], np.float32)
with np.errstate(invalid="ignore"):
    named = {"sub.1.output.0": lower, "log.1.input.0": lower, "log.1.output.0": np.log(lower)}
for name, values in named.items():
    np.save(step / f"{name}.npy", values)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("jax")
def test_what_xla_dumps_beside_tensors_tells_their_lines_and_edges(tmp_path: Path) -> None:
    dump, store, program = tmp_path / "dump", str(tmp_path / "run.zarr"), tmp_path / "train.py"
    program.write_text(PROGRAM)
    flags = {"XLA_FLAGS": f"--xla_dump_to={dump / 'rank_0' / 'hlo'} --xla_dump_hlo_as_text"}
    subprocess.run([sys.executable, program, dump], env={**os.environ, **flags}, check=True)
    layout = "rank_{rank}/{graph}/step_{step}/{name}.{io}.{slot}.npy"
    run_here("ingest", str(dump), "--store", store, "--layout", layout)
    answer = ingest.origin(ingest.open_store(store))
    assert answer.op_name == "log.1"
    assert answer.source is not None
    assert (answer.source.file, answer.source.line) == (str(program), 7)
    opened = ingest.open_store(store)
    context = ingest.context_of(opened, 0)
    (read,) = opened.tensors(where="io == 'input'")
    assert context.graph_source(read) == DumpedSource("", "sub.1", 0)
    assert not context.problems
