"""Distributed training: several processes, started by PyTorch's own launcher ``torchrun``."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitrail.core.errors import ConfigError, VitrailError

# torch.distributed.fsdp and torch.distributed.tensor take 3 s to import: only where weights are sharded.
if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

T = TypeVar("T")

_LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_TORCHRUN_VARIABLE = "TORCHELASTIC_RUN_ID"  # of torchrun alone, not of those who set the others by hand
_LOOK_S, _GRACE_S = 1.0, 60.0  # between two looks after the launcher, and for saving once it is gone


@dataclass(frozen=True)
class Processes:
    """This process among those that train together; every method is collective.

    With one process nothing is sent.
    """

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_joined(self) -> bool:
        """Whether there is a group of processes, as under ``torchrun``; it may be a group of one."""
        return dist.is_available() and dist.is_initialized()

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files and shows progress."""
        return self.rank == 0

    def add_up(self, values: Float[Tensor, " values"]) -> Float[Tensor, " values"]:
        """Sum values over all processes, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def from_first(self, make: Callable[[], T]) -> T:
        """Call ``make`` in the first process only, and return its result in all.

        Raises:
            VitrailError: ``make`` raised it; it is raised in every process.
        """
        if self.world_size == 1:
            return make()
        box: list[Any] = [None]
        if self.is_first:
            try:
                box[0] = make()
            except VitrailError as error:
                box[0] = error
        dist.broadcast_object_list(box, src=0, device=self.device)
        if isinstance(box[0], VitrailError):
            raise box[0]
        return box[0]

    def any_of(self, *flags: bool) -> tuple[bool, ...]:
        """Return for each flag whether any process raised it, without synchronising a GPU."""
        if self.world_size == 1:
            return flags
        raised = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(raised)
        return tuple(bool(count) for count in raised.tolist())

    def wait(self) -> None:
        if self.world_size > 1:
            dist.barrier()


def single_process(device: torch.device | None = None) -> Processes:
    """Return a process that trains alone, by default on the CPU."""
    return Processes(rank=0, world_size=1, device=device or torch.device("cpu"))


@contextmanager
def join_processes(
    device: Literal["cpu", "cuda"] | None = None, environment: Mapping[str, str] = os.environ
) -> Iterator[Processes]:
    """Join the processes that ``torchrun`` started, or train alone without it.

    Raises:
        ConfigError: the launcher's variables are incomplete, or there are fewer GPUs than processes.
    """
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    present = [name for name in _LAUNCHER_VARIABLES if name in environment]
    if not present:
        yield single_process(torch.device(kind, 0) if kind == "cuda" else torch.device(kind))
        return
    if len(present) < len(_LAUNCHER_VARIABLES):
        raise ConfigError(
            f"the environment has {', '.join(present)} but not all of {', '.join(_LAUNCHER_VARIABLES)}",
            expected="all of them, as torchrun sets them, or none",
            remedy="Start with torchrun --nproc-per-node 2 -m vitrail train ..., or unset them",
        )
    rank, world_size, local_rank = (int(environment[name]) for name in _LAUNCHER_VARIABLES)
    if kind == "cuda" and local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"process {local_rank} of this machine finds {torch.cuda.device_count()} GPUs",
            expected="one GPU for each process",
            remedy="Lower --nproc-per-node, or train on the CPU",
        )
    if _TORCHRUN_VARIABLE in environment:
        threading.Thread(target=_outlive, args=(os.getppid(),), daemon=True).start()
    own = torch.device(kind, local_rank) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(own)
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=own)
    else:
        dist.init_process_group("gloo")
    try:
        yield Processes(rank=rank, world_size=world_size, device=own)
        dist.barrier()  # none leaves while another still talks to it
    finally:
        dist.destroy_process_group()


def _outlive(launcher: int) -> None:
    """End this process, as SIGTERM would, when its launcher was killed and can no longer do it."""
    while os.getppid() == launcher:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)  # the training saves its state, unless it waits for a process that is gone
    os._exit(1)


def distribute(model: nn.Module, processes: Processes, parallel: Literal["ddp", "fsdp"]) -> nn.Module:
    """Return the module to call for training: the model itself, replicated or sharded in place.

    Each entry of a ``ModuleList`` (a block) is sharded separately, then the rest.
    """
    if not processes.is_joined:
        return model
    if parallel == "ddp":
        own = [processes.device] if processes.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=own, gradient_as_bucket_view=True)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(processes.device.type, (processes.world_size,))
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    for blocks in reversed(lists):  # inner lists first
        for block in blocks:
            if any(True for _ in block.parameters()):
                fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def kept_gradients(model: nn.Module) -> AbstractContextManager[object]:
    """Accumulate gradients locally within the block; the next pass outside it synchronises them.

    A sharded model synchronises anyway: full gradients would take the memory that sharding saves.
    """
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


@contextmanager
def gathered_weights(model: nn.Module) -> Iterator[None]:
    """Hold the full weights in every process, so that each may run the model independently.

    A sharded model otherwise gathers its weights in every forward pass, which is collective.
    """
    shards = _sharded_modules(model)
    for shard in shards:
        shard.unshard()
    for shard in shards[1:]:  # the outermost keeps its weights after a forward pass anyway
        shard.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for shard in shards[1:]:
            shard.set_reshard_after_forward(True, recurse=False)
        for shard in shards:
            shard.reshard()


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Return whether this process holds only a shard of a tensor (a DTensor, which alone has this method)."""
    return hasattr(tensor, "full_tensor")


def whole_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor of a possibly sharded one; collective."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def sharded_like(whole: Tensor, target: Tensor) -> Tensor:
    """Shard a tensor, known to every process, like ``target``."""
    if not is_sharded(target):
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole.to(target.device), target.device_mesh, target.placements)


def own_part(tensor: Tensor) -> Tensor:
    """Return this process's shard of a tensor, sharing its memory."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def _sharded_modules(model: nn.Module) -> list[FSDPModule]:
    if not dist.is_initialized():
        return []
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]
