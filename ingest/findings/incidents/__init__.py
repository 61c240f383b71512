"""Incidents: what went wrong, once for each cause, from findings of rules and origins of NaN and Inf."""

from ingest.findings.incidents.find import incidents
from ingest.findings.incidents.incident import Incident, Incidents

__all__ = ["Incident", "Incidents", "incidents"]
