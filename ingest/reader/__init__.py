"""An opened store: its steps and tensors, and everything that reads one store.

catalog.py, dump_store.py     ranks and steps; the same with methods for users
snapshot.py                   the complete steps at one moment, which answers are about
step.py, tensor.py            a committed step with its index, lists as tables; a tensor, and its neighbours
array_like.py                 tensors as arrays, of which parts are read
mesh.py, unsharded.py         where ranks are in the mesh of their job; whole tensors from pieces

choice.py, tensor_filter.py   which ranks, steps and tensors are meant
step_statistics.py            statistics of many steps: from the consolidated view, or from the indexes
step_tables.py                tables of a step besides its index: findings, histograms, marginals
anatomy.py, shown.py          what is in a tensor, which bits of two differ; all that is known of a tensor
operator_kinds.py,            calls of operators; kinds of inputs, outputs and operators; from which tensor to
step_flow.py                  which content passed

verifying.py                  what is damaged
require.py                    the error for a place that holds no store
export.py, save.py,           files that are written from a store
output_file.py
text.py                       values as text, as plain values, and as tables of a notebook
xarray_engine.py              `xr.open_dataset(url, engine="dump-ingest")`

cube_reader.py                the cubes, by steps, blocks of steps, objects, inner chunks; copies of commits
cube_conditions.py            a search by condition; steps that need not be read for one
zarr_view.py, zarr_nodes.py   a store of zarr-python with an array for each tensor; its groups and metadata
context/                      source lines
"""
