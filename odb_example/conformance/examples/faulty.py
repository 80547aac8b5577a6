"""The text-only stack with three faults that no loss curve shows; docs/conformance.md has its report."""

from dataclasses import replace

import torch

from odb_example.conformance.examples import text_only


def sample(index):
    """The first answer token has no label: prompt and answer were measured apart."""
    right = text_only.sample(index)
    labels = right["labels"].clone()
    labels[(labels != -100).nonzero()[0]] = -100
    return {**right, "labels": labels}


def loader(kind, *, rank, world_size):
    """Ranks get shares of one size: the last share is filled up with the first samples."""
    order = torch.randperm(len(text_only.RECORDS), generator=torch.Generator().manual_seed(1)).tolist()
    share = -(-len(order) // (4 * world_size)) * 4
    mine = (order + order)[rank * share : (rank + 1) * share]
    return [text_only.collate([sample(index) for index in mine[start : start + 4]]) for start in range(0, share, 4)]


def loss(model, batch, totals):
    """Each batch's own mean counts the same, whatever it holds."""
    labels = int((batch["labels"][:, 1:] != -100).sum())
    return text_only.loss(model, batch, totals) * totals.label_tokens / max(labels, 1) / totals.batches


def build():
    return replace(text_only.build(), name="a faulty text-only stack", sample=sample, loader=loader, loss=loss)
