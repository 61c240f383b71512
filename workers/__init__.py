"""The data plane: what a Dask worker imports. It knows no service, no settings and no command line."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("dump-ingest")
except PackageNotFoundError:  # run from a checkout that was not installed
    __version__ = "0"
