"""How dumps that are not made by the recorder are laid out: what `ingest --layout` takes."""

from proving.case import Dump

LAYOUTS = {
    Dump.HOOKS: "rank{rank}/step{step}/{module}.{io}.{slot}.pt",
    Dump.SAFETENSORS: "rank{rank}/step{step}/{module}.{io}.{slot}.safetensors",
}
