"""Write small checkpoints with real trainers, and what torch and safetensors read back from them.

    python trainer_checkpoints.py DIRECTORY

needs torch, transformers, accelerate, lightning and deepspeed. What has no package that runs on a CPU
(Megatron-LM, verl, OLMo, fairseq, nanoGPT) is written by `torch.save` with the keys of its source. The files
are kept in `tests/data/pt/trainer-checkpoints.tar.xz`, because these packages are large.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ANN204, ARG002

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

SELF = Path(__file__)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))


def trained(steps=1):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def rows():
    data = torch.utils.data.TensorDataset(torch.randn(16, 4))
    return torch.utils.data.DataLoader(data, batch_size=4)


def hugging_face(root):
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    records = [{"input_ids": torch.arange(8) + n, "labels": torch.arange(8) + n} for n in range(8)]
    arguments = transformers.TrainingArguments(
        str(root), max_steps=4, save_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=records)
    trainer.train()
    trainer.save_model()
    model.save_pretrained(root / "checkpoint-6", max_shard_size="1KB")
    torch.save(model.state_dict(), root / "checkpoint-8.bin")
    (root / "checkpoint-8").mkdir()
    (root / "checkpoint-8.bin").rename(root / "checkpoint-8" / "pytorch_model.bin")
    parts = root / "checkpoint-8" / "pytorch_model_fsdp_0"
    torch.distributed.checkpoint.save({"model": model.state_dict()}, checkpoint_id=parts, no_dist=True)


def accelerate(root):
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    config = ProjectConfiguration(str(root), automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=config)
    model, optimizer = accelerator.prepare(*trained())
    for batch in accelerator.prepare(rows()):
        accelerator.backward(model(batch[0]).square().mean())
        optimizer.step()
        accelerator.save_state()


def lightning(root):
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self, width=8):
            super().__init__()
            self.save_hyperparameters()
            self.net = net()

        def training_step(self, batch, _):
            loss = self.net(batch[0]).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    kept = pl.callbacks.ModelCheckpoint(root, save_top_k=-1, save_last=True)
    best = pl.callbacks.ModelCheckpoint(root / "best", filename="{epoch:02d}-{loss:.2f}", monitor="loss")
    trainer = pl.Trainer(
        default_root_dir=root, max_epochs=2, accelerator="cpu", logger=False, callbacks=[kept, best]
    )
    trainer.fit(Module(), rows())


def deepspeed(root, stage):
    import deepspeed as ds

    ds.init_distributed("gloo")
    model = net()
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
        "zero_optimization": {"stage": int(stage)},
        "bf16": {"enabled": stage != "2"},
    }
    engine, *_ = ds.initialize(model=model, config=config, model_parameters=model.parameters())
    for step in range(4):
        batch = torch.randn(2, 4).to(next(engine.parameters()).dtype)
        engine.backward(engine(batch).square().mean())
        engine.step()
        if step % 2:
            engine.save_checkpoint(root, client_state={"args": argparse.Namespace(iteration=step)})


def megatron(root):
    for step in (100, 200):
        for tensor in range(2):
            for stage in range(2):
                directory = root / f"iter_{step:07d}" / f"mp_rank_{tensor:02d}_{stage:03d}"
                directory.mkdir(parents=True)
                model, optimizer = trained(step // 100)
                sizes = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
                state = {
                    "args": argparse.Namespace(**sizes, params_dtype=torch.bfloat16, iteration=step),
                    "checkpoint_version": 3.0,
                    "iteration": step,
                    "model": {"language_model": model.state_dict()},
                    "optimizer": {"optimizer": optimizer.state_dict(), "grad_scaler": None},
                    "rng_state": [{"torch_rng_state": torch.get_rng_state(), "random_rng_state": (3, (1,))}],
                }
                torch.save(state, directory / "model_optim_rng.pt")
                shard = {0: {(torch.float32, torch.bfloat16): {"exp_avg": torch.randn(6)}}}
                torch.save(shard, directory / "distrib_optim.pt")
    (root / "latest_checkpointed_iteration.txt").write_text("200")


def verl(root):
    for step in (10, 20):
        for part in ("actor", "critic"):
            directory = root / f"global_step_{step}" / part
            directory.mkdir(parents=True)
            (directory / "fsdp_config.json").write_text("{}")
            for rank in range(2):
                model, optimizer = trained(step // 10)
                rng = {"cpu": torch.get_rng_state()}
                torch.save(model.state_dict(), directory / f"model_world_size_2_rank_{rank}.pt")
                torch.save(optimizer.state_dict(), directory / f"optim_world_size_2_rank_{rank}.pt")
                torch.save({"rng": rng}, directory / f"extra_state_world_size_2_rank_{rank}.pt")


def olmo(root):
    for step in (1000, 2000):
        directory = root / f"step{step}-unsharded"
        directory.mkdir(parents=True)
        model, optimizer = trained(step // 1000)
        torch.save(model.state_dict(), directory / "model.pt")
        torch.save(optimizer.state_dict(), directory / "optim.pt")
        torch.save({"rng": {"torch": torch.get_rng_state()}, "epoch": 0}, directory / "train.pt")
        (directory / "config.yaml").write_text("seed: 0\n")


def fairseq(root):
    root.mkdir()
    for name, steps in (("checkpoint_1_500", 1), ("checkpoint_1_1000", 2), ("checkpoint_last", 2)):
        model, optimizer = trained(steps)
        state = {
            "cfg": {"model": argparse.Namespace(arch="tiny")},
            "model": model.state_dict(),
            "optimizer_history": [{"num_updates": steps}],
            "last_optimizer_state": optimizer.state_dict(),
        }
        torch.save(state, root / f"{name}.pt")


def nanogpt(root):
    root.mkdir()
    model, optimizer = trained()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "model_args": {"n_layer": 2},
        "iter_num": 500,
        "best_val_loss": torch.tensor(1.5),
    }
    torch.save(state, root / "ckpt.pt")


def tensors(value, key):
    """Yield the tensors and arrays in a value, each with the way to it."""
    if isinstance(value, torch.Tensor | np.ndarray):
        yield key, torch.as_tensor(value)
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from tensors(member, [*key, str(name)])
    elif isinstance(value, list | tuple):
        for number, member in enumerate(value):
            yield from tensors(member, [*key, str(number)])


def loaded(path):
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=False)


def told(path):
    """Return what is in a file of tensors, as `tests/torch_truth.py` needs it."""
    found = []
    for key, tensor in tensors(loaded(path), []):
        content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        digest = hashlib.sha256(content).hexdigest()
        found.append({"key": key, "shape": list(tensor.shape), "sha256": digest})
    return {"tensors": found}


def main(root):
    for write in (hugging_face, accelerate, lightning, megatron, verl, olmo, fairseq, nanogpt):
        write(root / write.__name__)
    for stage in "123":
        run = ["-m", "torch.distributed.run", "--nproc-per-node", "2", SELF, root / f"zero{stage}", stage]
        subprocess.run([sys.executable, *map(str, run)], check=True)
    suffixes = {".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".pkl"}
    files = sorted(path for path in root.rglob("*") if path.suffix in suffixes)
    truth = {"files": {str(path.relative_to(root)): told(path) for path in files}}
    (root / "truth.json").write_text(json.dumps(truth, indent=1))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        deepspeed(*sys.argv[1:])
    else:
        main(Path(sys.argv[1]))
