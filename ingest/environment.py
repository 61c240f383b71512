"""The names of the variables in the environment that this project reads."""

from __future__ import annotations

ENV_PREFIX = "DUMP_INGEST_"
CONFIG_VARIABLE = f"{ENV_PREFIX}CONFIG"
#: A credential, hence not a setting: it is read where it is used.
TOKEN_VARIABLE = f"{ENV_PREFIX}WEBHOOK_TOKEN"
#: The same: who sends it may have black boxes save what they hold.
TRIGGER_TOKEN_VARIABLE = f"{ENV_PREFIX}TRIGGER_TOKEN"

#: What `python -m ingest.recording` records, and where; see there.
RECORD_VARIABLE = f"{ENV_PREFIX}RECORD"
