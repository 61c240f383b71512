"""Collectives that autograd knows, as those who write tensor parallelism by hand write them."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN205, D102, D103

import time
from typing import ClassVar

import torch
from torch import distributed


def reduced(x, group):
    x = x.clone()
    distributed.all_reduce(x, group=group)
    return x


def gathered(x, group, dim):
    parts = [torch.empty_like(x) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim)


def own_part(x, group, dim):
    return x.chunk(distributed.get_world_size(group), dim)[distributed.get_rank(group)]


class Copied(torch.autograd.Function):
    """To all ranks of a group; the gradients of all are added up."""

    @staticmethod
    def forward(ctx, x, world, module):
        ctx.world, ctx.module = world, module
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        world, module = ctx.world, ctx.module
        group = world.group("tp", "wrong group backward", module)
        if world.wrong("no reduction backward", module):
            return gradient, None, None
        if world.wrong("reduced twice backward", module):
            gradient = reduced(gradient, group)
        return reduced(gradient, group), None, None


class Added(torch.autograd.Function):
    """The sum over all ranks of a group, or with `dim` the own part of it."""

    @staticmethod
    def forward(ctx, x, group, dim):
        ctx.group, ctx.dim = group, dim
        total = reduced(x, group)
        return total if dim is None else own_part(total, group, dim).contiguous()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.dim is None:
            return gradient, None, None
        return gathered(gradient, ctx.group, ctx.dim), None, None


class Late(torch.autograd.Function):
    """As `Added`, but returns before the sum is there: whoever reads it calls `arrived` first.

    The other ranks come later, as on a network.
    """

    UNDER_WAY: ClassVar = {}

    @staticmethod
    def forward(ctx, x, group, dim, path):
        ctx.group, ctx.dim = group, dim
        if distributed.get_rank(group):
            time.sleep(0.005)
        summed = x.clone()
        work = distributed.all_reduce(summed, group=group, async_op=True)
        own = summed if dim is None else torch.empty_like(own_part(x, group, dim).contiguous())
        Late.UNDER_WAY[path] = work, summed, own, group, dim
        return own

    @staticmethod
    def backward(ctx, gradient):
        return *Added.backward(ctx, gradient)[:1], None, None, None


def arrived(path, x):
    """Wait until the sum of a row-parallel layer is there."""
    if path in Late.UNDER_WAY:
        work, summed, own, group, dim = Late.UNDER_WAY.pop(path)
        work.wait()
        if dim is not None:
            own.detach().copy_(own_part(summed, group, dim))
    return x


class Gathered(torch.autograd.Function):
    """The parts of all ranks of a group. If each rank `continues` by itself, their gradients are added up."""

    @staticmethod
    def forward(ctx, x, group, dim, continues):
        ctx.group, ctx.dim, ctx.continues = group, dim, continues
        return gathered(x, group, dim)

    @staticmethod
    def backward(ctx, gradient):
        total = reduced(gradient, ctx.group) if ctx.continues else gradient
        return own_part(total, ctx.group, ctx.dim).contiguous(), None, None, None


class Exchanged(torch.autograd.Function):
    """All-to-all of rows."""

    @staticmethod
    def forward(ctx, x, sent, received, group):
        ctx.counts = sent, received, group
        return exchanged(x, sent, received, group)

    @staticmethod
    def backward(ctx, gradient):
        sent, received, group = ctx.counts
        return exchanged(gradient, received, sent, group), None, None, None


def exchanged(x, sent, received, group):
    out = x.new_empty((sum(received), *x.shape[1:]))
    distributed.all_to_all_single(out, x.contiguous(), received, sent, group=group)
    return out
