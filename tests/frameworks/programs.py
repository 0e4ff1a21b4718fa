"""Ten steps of training in three frameworks, on one of two ranks.

Run as `programs.py FRAMEWORK BACKEND` in the environment of a launcher, but for `lightning_forks`,
which forks its ranks itself; rank 0 prints what came of it as one line of JSON.
"""

import gc
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH, FEATURES = 10, 8, 32


@dataclass(frozen=True)
class Trained:
    """The result of ten training steps."""

    backend: str
    """Of the default group, as the framework made it."""
    group: str
    """Class of the default group, and the package that has it."""
    losses: list[float]
    weights: str
    """A digest of all parameters, which is the same on all ranks."""
    seconds: float
    """Of making the group and of training, without imports."""


Train: TypeAlias = Callable[[str], tuple[list[float], str] | None]
"""Trains with the backend that it is given; returns the losses and a digest of the weights.

None: its ranks were other processes, which have told.
"""


def rows(count: int) -> TensorDataset:
    torch.manual_seed(7)
    x = torch.randn(count, FEATURES)
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def network() -> nn.Sequential:
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 2))


def digest(model: nn.Module) -> str:
    """Return a digest of the parameters, once all ranks have been seen to have the same."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().numpy().tobytes())
    mine = found.hexdigest()[:16]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    assert set(every) == {mine}, every
    return mine


def tell(losses: list[float], weights: str, began: float) -> None:
    """Print the training's result on rank 0."""
    if dist.get_rank() == 0:
        of = type(dist.group.WORLD)
        group = f"{of.__name__} of {of.__module__.partition('.')[0]}"
        made = Trained(dist.get_backend(), group, losses, weights, time.perf_counter() - began)
        print(json.dumps(asdict(made)), flush=True)


def lightning() -> Train:
    """Fit and validate, with metrics averaged over the ranks, integers included."""
    import lightning as pl
    from lightning.pytorch.strategies import DDPStrategy

    def train(backend: str) -> tuple[list[float], str]:
        model = _classifier(pl)
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        _fit(pl, model, devices, DDPStrategy(process_group_backend=backend))
        assert model.trainer.global_step == STEPS
        return model.losses, digest(model.net)

    return train


def lightning_forks() -> Train:
    """Fit as `lightning` does, on ranks forked by Lightning, with forked data loaders.

    All collect garbage often: what they inherited must not hold them up.
    """
    import lightning as pl
    from lightning.pytorch.strategies import DDPStrategy

    def train(backend: str) -> None:
        began = time.perf_counter()

        class Told(pl.Callback):
            def on_fit_end(self, trainer: Any, model: Any) -> None:
                assert trainer.global_step == STEPS
                tell(model.losses, digest(model.net), began)

        if backend == "allhands":
            _use_a_world()
        gc.set_threshold(20)
        strategy = DDPStrategy(process_group_backend=backend, start_method="fork")
        _fit(pl, _classifier(pl), 2, strategy, callbacks=[Told()], workers=2)

    return train


def _use_a_world() -> None:
    """Leave the traces of an earlier world in this process."""
    import numpy as np

    import allhands as ah

    ah.init_process_group(world_size=1)
    ah.all_reduce(np.ones(4))
    ah.destroy_process_group()


def _classifier(pl: Any) -> Any:
    class Classifier(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.losses: list[float] = []

        def training_step(self, batch: Any, at: int) -> Any:
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss, sync_dist=True, on_step=True)
            return loss

        def on_train_batch_end(self, *_: Any) -> None:
            self.losses.append(float(self.trainer.callback_metrics["loss"]))

        def validation_step(self, batch: Any, at: int) -> None:
            right = (self.net(batch[0]).argmax(dim=1) == batch[1]).sum()
            self.log("right", right, sync_dist=True)

        def on_validation_epoch_end(self) -> None:
            self.losses.append(float(self.trainer.callback_metrics["right"]))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Classifier()


def _fit(
    pl: Any, model: Any, devices: int, strategy: Any, workers: int = 0, **options: Any
) -> None:
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=strategy,
        max_steps=STEPS,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=1,
        logger=False,
        **options,
    )
    fed = DataLoader(rows(STEPS * BATCH * 2), BATCH, num_workers=workers)
    held = DataLoader(rows(64), BATCH, num_workers=workers)
    trainer.fit(model, fed, held)


def accelerate() -> Train:
    """The loop of accelerate's own documentation; the group is made before the Accelerator."""
    from accelerate import Accelerator

    def train(backend: str) -> tuple[list[float], str]:
        dist.init_process_group(backend)
        accelerator = Accelerator(cpu=True)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(rows(STEPS * BATCH * 2), BATCH)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        losses = []
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(float(accelerator.reduce(loss.detach(), reduction="mean")))
        assert len(losses) == STEPS
        gathered = accelerator.gather_for_metrics(torch.tensor([accelerator.process_index]))
        assert gathered.tolist() == [*range(accelerator.num_processes)]
        return losses, digest(accelerator.unwrap_model(model))

    return train


def transformers() -> Train:
    """Ten steps of a Trainer, with an evaluation."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    def train(backend: str) -> tuple[list[float], str]:
        dist.init_process_group(backend)
        torch.manual_seed(11)
        small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        model = BertForSequenceClassification(
            BertConfig(vocab_size=50, intermediate_size=64, num_labels=2, **small)
        )
        torch.manual_seed(7)
        tokens = torch.randint(0, 50, (STEPS * BATCH * 2, 12))
        data = [{"input_ids": row, "labels": int(row[0] > 24)} for row in tokens]
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                output_dir=folder,
                use_cpu=True,  # and no ddp_backend: the group that is there already counts
                max_steps=STEPS,
                per_device_train_batch_size=BATCH,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            )
            trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data[:16])
            trainer.train()
            losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
            assert len(losses) == STEPS
            losses.append(trainer.evaluate()["eval_loss"])
        return losses, digest(model)

    return train


FRAMEWORKS: dict[str, Callable[[], Train]] = {
    one.__name__: one for one in (lightning, lightning_forks, accelerate, transformers)
}


def main() -> None:
    torch.set_num_threads(1)
    framework, backend = sys.argv[1:]
    train = FRAMEWORKS[framework]()
    began = time.perf_counter()
    if (came := train(backend)) is not None:
        tell(*came, began)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
