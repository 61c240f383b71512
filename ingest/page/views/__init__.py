"""The screens: each module turns answers of the store into what its template shows."""

from ingest.page.views import cell, compare, incidents, live, matrix, tensor

#: By name in the URL.
SCREENS = {module.SCREEN.name: module.SCREEN for module in (incidents, matrix, cell, tensor, live, compare)}
#: The views that the top of every page leads to.
TABS = (("incidents", "Incidents"), ("matrix", "Matrix"), ("live", "Live"), ("compare", "Two runs"))
