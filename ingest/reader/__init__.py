"""An opened store: its steps and tensors, and everything that reads one store.

catalog.py, dump_store.py     ranks and steps; the same with methods for users
snapshot.py                   the complete steps at one moment, which answers are about
step.py, tensor.py            a committed step with its index; a tensor, and its neighbours
array_like.py, listing.py,    tensors as arrays, of which parts are read; lists as tables; what a notebook
notebook.py                   shows

choice.py, tensor_filter.py,  which ranks, steps and tensors are meant
block_filter.py,
bounded_regex.py
step_statistics.py            statistics of many steps: from the consolidated view, or from the indexes
step_tables.py                tables of a step besides its index: findings, histograms, marginals
anatomy.py, compare_bits.py,  what is in a tensor; which bits of two differ; what quantisation changed
quantization.py

damage.py                     answers that go on without what is damaged
require.py                    the error for a place that holds no store
text.py, ranges.py, rows.py,  values as text, and as documented JSON
shown.py
xarray_engine.py              `xr.open_dataset(url, engine="dump-ingest")`

cubes/                        the consolidated view
parallel/                     where ranks are in the mesh of their job; whole tensors from pieces
verifying/                    what is damaged
files/                        files that are written from a store
context/, flow/, zarr_view/   see there
"""
