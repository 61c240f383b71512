"""An opened store: its steps and tensors, and everything that reads one store.

catalog.py, dump_store.py     ranks and steps; the same with methods for users
snapshot.py                   the complete steps at one moment, which answers are about
indexed_step.py, step.py      a committed step with its index; the same for users
indexed_tensor.py, tensor.py  a row of the index; the tensor that users read
array_like.py, listing.py,    tensors as arrays; lists as tables; what a notebook shows
notebook.py

choice.py, tensor_filter.py,  which ranks, steps and tensors are meant
block_filter.py,
bounded_regex.py
step_statistics.py,           tables of a step besides its index
step_findings.py,
step_histograms.py,
step_marginals.py
neighbour.py, compare_bits.py who wrote and who read a tensor; which bits of two tensors differ
quantization.py               what quantisation changed

damage.py                     answers that go on without what is damaged
require.py                    the error for a place that holds no store
text.py, ranges.py, rows.py,  values as text, and as documented JSON
shown.py
xarray_engine.py              `xr.open_dataset(url, engine="dump-ingest")`

cubes/                        the consolidated view
parallel/                     where ranks are in the mesh of their job; whole tensors from pieces
verifying/                    what is damaged
files/                        files that are written from a store
anatomy/, context/, flow/, zarr_view/    see there
"""
