"""Checkpoints: of `torch.distributed.checkpoint`, such as those of torchtitan and Megatron, and of trainers.

    [{step or iter}{step}/]__{rank}_{n}.distcp    the parts of tensors that a rank has
    [{step or iter}{step}/].metadata              their names, written last

(torch 2.15, `torch/distributed/checkpoint`.) See `workers.dump.formats.distcp`.

Trainers leave on disk:

    checkpoint-{step}/                                 Hugging Face's Trainer, and what is built on it
    checkpoint_{step}/                                 Accelerate
        model-00001-of-00003.safetensors, pytorch_model.bin, optimizer.pt, rng_state_0.pth, ...
    global_step{step}/                                 DeepSpeed, also inside of the directories above
        mp_rank_{tp}_model_states.pt
        [bf16_|fp16_]zero_pp_rank_{dp}_mp_rank_{tp}_{optim|model}_states.pt
    iter_{step}/mp_rank_{tp}[_{pp}][_{ep}]/            Megatron-LM, `--ckpt-format torch`
        model_optim_rng.pt, distrib_optim.pt
    epoch=1-step={step}.ckpt                           PyTorch Lightning
    step{step}-unsharded/                              OLMo
    global_step_{step}/{part}/{what}_world_size_{size}_rank_{rank}.pt                verl
    checkpoint_{epoch}_{step}.pt                       fairseq
    ckpt.pt                                            nanoGPT: it does not name its step, which is 0 here

and those of `torch.distributed.checkpoint` that are a part of such a directory:

    checkpoint-{step}/{pytorch_model_fsdp_0|optimizer_0}/__{rank}_{n}.distcp         Hugging Face, Accelerate
    epoch=1-step={step}.ckpt/__{rank}_{n}.distcp                                     PyTorch Lightning
    ...step={step}.../weights/__{rank}_{n}.distcp                                    NeMo
    step{step}/model_and_optim/__{rank}_{n}.distcp                                   OLMo-core

(transformers 5.23 `trainer.py`; accelerate 1.15 `checkpointing.py`; deepspeed 0.19 `runtime/engine.py`;
Megatron-LM `training/checkpointing.py`; lightning 2.6 `callbacks/model_checkpoint.py`; OLMo
`olmo/checkpoint.py`; verl `utils/checkpoint/fsdp_checkpoint_manager.py`; fairseq `checkpoint_utils.py`;
nanoGPT `train.py`.)

A tensor is named by the way to it in its file. In front stands the name of the file, unless it only says that
this is the model, or all that the trainer keeps. States of random generators, and what callbacks remember,
are neither inputs nor outputs of anything: their `io` is `value`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from ingest.layouts.base import (
    Description,
    Layout,
    Place,
    Problem,
    ReadSmall,
    System,
    TensorFile,
    join_member,
    parse,
)
from ingest.layouts.declared import CONTAINERS
from workers.dump.formats.distcp import MAX_METADATA_NBYTES, Chunk, read_metadata
from workers.dump.formats.header import Container
from workers.dump.model import TensorName
from workers.errors import UnreadableTensor
from workers.model import SourceFile, counted

_METADATA = ".metadata"
_COPY_HINT = (
    "It was not copied as a whole, or is still being copied. Copy all of it, and run the same command again."
)
FILE = r"__{rank}_{part:\d{1,9}}.distcp"


def _describe_distributed_checkpoint(
    place: Place, files: Sequence[SourceFile], read: ReadSmall
) -> Description:
    metadata = f"{place.directory}/{_METADATA}".lstrip("/")
    data = read(metadata)
    if data is None:
        problem = Problem(
            metadata,
            "is missing or cannot be read: the names of the tensors are not known",
            "It is written last: the checkpoint was not finished.",
        )
        return Description(_named(files, {}), problems=(problem,), unfinished=metadata)
    try:
        chunks = _parsed(data)
    except UnreadableTensor as exc:
        return Description(_named(files, {}), problems=(Problem(metadata, exc.message),))
    lost = (*_cut_off(files, chunks), *_missing(place, files, chunks))
    return Description(_named(files, chunks), problems=lost, unfinished=lost[0].path if lost else "")


#: The files of one checkpoint: one or several for each rank, and the names for all.
DISTRIBUTED_CHECKPOINT = Layout(
    name="distributed_checkpoint",
    is_checkpoint=True,
    file_patterns=tuple(
        parse(f"{above}{FILE}", of_files=True)
        for above in (
            r"{before:(?:.*[._-])?}step{sep:[._-]?}{step}/",
            r"{before:(?:.*[._-])?}iter{sep:(?:ation)?[._-]?}{step}/",
            "",
        )
    ),
    implied={"step": "0"},
    systems=(
        System("torch.distributed.checkpoint", "step-8/__1_0.distcp", "distcp, `.metadata`"),
        System("torch.distributed.checkpoint in Megatron", "iter_0000008/__1_0.distcp", "the same"),
        System("torch.distributed.checkpoint, a single one", "__1_0.distcp", "the same"),
    ),
    of_place=_describe_distributed_checkpoint,
)


def _missing(
    place: Place, files: Sequence[SourceFile], chunks: Mapping[str, Mapping[int, Chunk]]
) -> Iterator[Problem]:
    """Yield a problem for each file of the rank that is not there, although others of the rank are.

    All files of a rank are written by one process, into one directory. Those of other ranks may be on other
    hosts.
    """
    own = f"__{place.fields['rank']}_"
    there = {file.path.rpartition("/")[2] for file in files}
    for name in sorted(name for name in chunks if name.startswith(own) and name not in there):
        parts, first = counted(len(chunks[name]), "part"), next(iter(chunks[name].values())).name
        yield Problem(
            f"{place.directory}/{name}".lstrip("/"),
            f"is missing: {_METADATA} names {parts} in it; the first is {first:.200}",
            _COPY_HINT,
        )


def _cut_off(files: Sequence[SourceFile], chunks: Mapping[str, Mapping[int, Chunk]]) -> Iterator[Problem]:
    """Yield a problem for each file that ends before parts of it begin: it may end with a whole archive."""
    for file in files:
        of_file = chunks.get(file.path.rpartition("/")[2], {})
        if behind := sorted(begin for begin in of_file if begin >= file.size):
            parts, first = counted(len(behind), "part"), of_file[behind[0]].name
            yield Problem(
                file.path,
                f"ends at byte {file.size}, before {parts} that {_METADATA} names; the first is {first:.200}",
                _COPY_HINT,
            )


def _named(files: Sequence[SourceFile], chunks: Mapping[str, Mapping[int, Chunk]]) -> dict[str, TensorFile]:
    name = TensorName(op_type="Parameter", io="output", slot=0)
    return {
        file.path: TensorFile(
            name,
            Container.DISTCP,
            name_member=_member,
            chunks=chunks.get(file.path.rpartition("/")[2], {}),
        )
        for file in files
    }


def _member(name: TensorName, path: tuple[str, ...], number: int) -> TensorName:
    first, *rest = path
    return join_member(name._replace(op_name=first), tuple(rest), number)


@lru_cache(maxsize=1)  # all ranks ask for the same one
def _parsed(data: bytes) -> Mapping[str, Mapping[int, Chunk]]:
    if len(data) > MAX_METADATA_NBYTES:
        raise UnreadableTensor(f"has {len(data)} bytes; at most {MAX_METADATA_NBYTES} are read")
    return read_metadata(data)


_HUGGING_FACE = "checkpoint{sep:[-_]}{step}"
_LIGHTNING = "{before:(?:.*[-_])?}step={step}{after:(?:-.*)?}.ckpt"
_NUMBERED = r"{before:(?:.*[._-])?(?:global_?)?}step{sep:[._-]?}{step}"
_MODEL = r"(?:(?:pytorch_|adapter_)?model|diffusion_pytorch_model)(?:-\d{5}-of-\d{5})?"
#: Files whose names say nothing of what is in them: ranks and steps are told otherwise.
_UNNAMED = re.compile(
    rf"{_MODEL}|model_world_size_\d+_rank_\d+|model_optim_rng|ckpt|checkpoint_\d+_\d+|.*step=\d+.*", re.DOTALL
)
#: What the names of other files say of ranks.
_OF_RANK = re.compile(
    r"_world_size_\d+_rank_\d+|(?:(?:[a-z0-9]+_)?zero_pp_rank_\d+_)?mp_rank_\d+_|-model_\d+-model_states"
)
#: Accelerate saves these with `torch.save`, whatever their suffix.
_ACCELERATE = re.compile(r"(?:random_states|custom_checkpoint)_\d+\.pkl")
#: An object of Hugging Face's Trainer that holds no tensor.
_WITHOUT_TENSORS = frozenset(["training_args.bin"])
#: The state of a generator of random numbers, in the way to a tensor.
_RANDOM_STATE = re.compile(r"(?:^|\.)(?:rng|(?:rng|random)_states?(?:_\d+)?)(?:\.|$)")
#: What callbacks remember, such as the best loss, which begins as infinity.
_CALLBACK = "callbacks."


def _trainer_file(place: Place, path: str) -> TensorFile | None:
    """Return what a file of any trainer is: names of tensors are ways to them."""
    file_name = path.rpartition("/")[2]
    container = CONTAINERS.get(file_name.rpartition(".")[2])
    if _ACCELERATE.fullmatch(file_name):
        container = Container.PT
    if container is None or file_name in _WITHOUT_TENSORS:
        return None
    return TensorFile(_name_of(place, path), container, name_member=_below)


def _name_of(place: Place, path: str) -> TensorName:
    *directories, file_name = path.removeprefix(f"{place.directory}/").split("/")
    stem = file_name.rpartition(".")[0]
    named = [place.fields.get("part", ""), *directories]
    if _UNNAMED.fullmatch(stem) is None:
        named.append(_OF_RANK.sub("", stem))
    return TensorName(op_type="Parameter", op_name=".".join(filter(None, named)), io="output", slot=0)


def _below(name: TensorName, path: tuple[str, ...], number: int) -> TensorName:  # noqa: ARG001  (see `NameMember`)
    op_name = ".".join((name.op_name, *path) if name.op_name else path) or "value"
    if _RANDOM_STATE.search(op_name):
        return name._replace(op_type="RandomState", op_name=op_name, io="value")
    if op_name.startswith(_CALLBACK):
        return name._replace(op_type="Callback", op_name=op_name, io="value")
    return name._replace(op_name=op_name)


#: The numbered directories of Hugging Face's Trainer and of Accelerate: one process writes them.
HUGGING_FACE = Layout(
    name="hugging_face",
    is_checkpoint=True,
    patterns=(parse(_HUGGING_FACE),),
    evidence=re.compile(
        rf"{_MODEL}\.(?:safetensors|bin)(?:\.index\.json)?|trainer_state\.json|training_args\.bin"
        r"|(?:optimizer|scheduler)\.(?:pt|bin)|random_states_\d+\.pkl"
    ),
    needs_evidence=True,
    systems=(
        System("Hugging Face's Trainer, TRL, PEFT", "checkpoint-8", "safetensors, pt (`.bin`, `.pth`)"),
        System("Accelerate, `save_state`", "checkpoint_8", "safetensors, pt (`.bin`, `.pkl`)"),
    ),
    of_path=_trainer_file,
)


_DEEPSPEED = (
    _NUMBERED,
    f"{_HUGGING_FACE}/global_step{{iteration}}",
    f"{_HUGGING_FACE}/pytorch_model",
    f"{_LIGHTNING}/checkpoint",
)
#: The directories of DeepSpeed, in which all ranks write; `pp` in the names of files means partitions.
DEEPSPEED = Layout(
    name="deepspeed",
    is_checkpoint=True,
    patterns=tuple(map(parse, _DEEPSPEED)),
    file_patterns=tuple(
        parse(f"{directory}/{ranks}_{{what:model|optim}}_states.pt", of_files=True)
        for directory in _DEEPSPEED
        for ranks in (
            "{kind:(?:[a-z0-9]+_)?}zero_pp_rank_{data_parallel}_mp_rank_{tensor_parallel}",
            "mp_rank_{tensor_parallel}",
        )
    ),
    implied={"data_parallel": "0", "tensor_parallel": "0"},
    evidence=re.compile(r".*_states\.pt", re.DOTALL),
    needs_evidence=True,
    systems=(
        System("DeepSpeed", "global_step8/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "pt"),
        System("DeepSpeed, weights", "global_step8/mp_rank_00_model_states.pt", "pt"),
        System(
            "DeepSpeed in Hugging Face's Trainer",
            "checkpoint-8/global_step8/zero_pp_rank_1_mp_rank_00_model_states.pt",
            "pt",
        ),
    ),
    of_path=_trainer_file,
)


#: The directories of Megatron-LM, one for each model-parallel rank.
MEGATRON = Layout(
    name="megatron",
    is_checkpoint=True,
    patterns=tuple(
        parse(f"iter_{{step}}/mp_rank_{{tensor_parallel}}{rest}")
        for rest in (
            "",
            "_{pipeline_parallel}",
            "_{pipeline_parallel}_{expert_parallel}",
        )
    ),
    systems=(
        System("Megatron-LM, `--ckpt-format torch`", "iter_0000008/mp_rank_01", "pt"),
        System("the same with pipelines", "iter_0000008/mp_rank_00_001", "pt"),
    ),
    of_path=_trainer_file,
)


#: The directories of verl, with a file of each rank.
VERL = Layout(
    name="verl",
    is_checkpoint=True,
    patterns=(parse("global_step_{step}"),),
    file_patterns=(
        parse(
            r"global_step_{step}/{part}/{what:model|optim|extra_state}_world_size_{size:\d+}_rank_{rank}.pt",
            of_files=True,
        ),
    ),
    evidence=re.compile("actor|critic"),
    needs_evidence=True,
    systems=(System("verl, FSDP", "global_step_8/actor/model_world_size_2_rank_1.pt", "pt"),),
    of_path=_trainer_file,
)


#: The directories of OLMo in which one process writes.
OLMO = Layout(
    name="olmo",
    is_checkpoint=True,
    patterns=(parse("step{step}-unsharded"),),
    evidence=re.compile(r"(?:model|optim)\.(?:pt|safetensors)"),
    needs_evidence=True,
    systems=(System("OLMo, unsharded", "step8-unsharded", "pt, safetensors"),),
    of_path=_trainer_file,
)


#: Checkpoints of one file each.
CHECKPOINT_FILES = Layout(
    name="checkpoint_file",
    is_checkpoint=True,
    file_patterns=(
        parse(_LIGHTNING, of_files=True),
        parse(r"checkpoint_{epoch:\d{1,9}}_{step}.pt", of_files=True),
        parse("{name:ckpt}.pt", of_files=True),
    ),
    implied={"step": "0"},
    systems=(
        System("PyTorch Lightning", "epoch=1-step=8.ckpt", "pt"),
        System("fairseq, within an epoch", "checkpoint_1_8.pt", "pt"),
        System("nanoGPT", "ckpt.pt", "pt"),
    ),
    of_path=_trainer_file,
)


#: What trainers save with `torch.distributed.checkpoint` in directories of their own.
TRAINER_SHARDS = replace(
    DISTRIBUTED_CHECKPOINT,
    file_patterns=tuple(
        parse(f"{above}/{FILE}", of_files=True)
        for above in (
            rf"{_HUGGING_FACE}/{{part:(?:pytorch_model_fsdp|optimizer)_\d+}}",
            _LIGHTNING,
            "{before:(?:.*[-_])?}step={step}{after:(?:-.*)?}/weights",
            "step{step}/model_and_optim",
        )
    ),
    systems=(
        System(
            "Hugging Face's Trainer and Accelerate, FSDP",
            "checkpoint-8/pytorch_model_fsdp_0/__1_0.distcp",
            "distcp, `.metadata`",
        ),
        System("PyTorch Lightning, FSDP", "epoch=1-step=8.ckpt/__1_0.distcp", "the same"),
    ),
)
