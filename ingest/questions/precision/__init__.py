"""Which tensors would overflow or underflow in another format of numbers, from their histograms alone."""

from ingest.questions.precision.answer import FormatLosses, PrecisionAnswer, TensorPrecision
from ingest.questions.precision.find import DEFAULT_FORMATS, precision
from ingest.questions.precision.scaling import SCALINGS

__all__ = [
    "DEFAULT_FORMATS",
    "SCALINGS",
    "FormatLosses",
    "PrecisionAnswer",
    "TensorPrecision",
    "precision",
]
