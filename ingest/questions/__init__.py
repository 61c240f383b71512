"""Questions over a store, each with an answer that `to_dict` turns into the JSON of its command.

origin/, why/            which operator produced NaN or Inf first, and what in its inputs did it
divergence/              where replicas stop agreeing
compare/                 two stores, runs, ranks, steps or dumps, tensor by tensor
placement/               how the ranks of a run hold each tensor
next_dump/, missing/     what to dump next; what was asked for and is not in the store
outliers/, precision/,   answers from sketches, also when the tensors are gone
quantiles.py, localize.py
trampled.py,             memory that changed although nobody wrote it
trampled_buffers.py
trend.py, heatmap.py,     a statistic over steps and ranks
rank_values.py, matrix.py
trend_figure.py,         pictures and rows of these
heatmap_rows.py,
heatmap_scale.py,
plot.py, sparkline.py
statistic_names.py,      shared: names of statistics, names in YAML files, steps that users name, the tensors
name_pattern.py,         that a question is about, their histograms, and the error if there are none
named_steps.py,
matching_tensors.py,
sketched_tensors.py,
empty_choice.py
"""
