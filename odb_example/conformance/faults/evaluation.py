"""Scorers and validation losses that are nearly right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from odb_example.conformance import ours, reference
from odb_example.conformance.faults.fault import fault
from odb_example.conformance.pipeline import Choice, Pipeline, Scored, ValidationLoss

Score = Callable[[Sequence[Choice]], Sequence[Scored]]


def _scored_as(pipeline: Pipeline, scores: Callable[[Pipeline, Choice], Mapping[str, float]]) -> Pipeline:
    """A pipeline that scores each item alone by ``scores``."""
    return replace(pipeline, score=partial(_each, pipeline, scores))


def _each(
    pipeline: Pipeline, scores: Callable[[Pipeline, Choice], Mapping[str, float]], items: Sequence[Choice]
) -> list[Scored]:
    found = []
    for item in items:
        letters = dict(scores(pipeline, item))
        best = reference.best_letter(letters, reference.LETTERS[: len(item.options)])
        found.append(Scored(scores=letters, prediction=best))
    return found


def _truth(pipeline: Pipeline, item: Choice) -> torch.Tensor:
    return reference.next_token_scores(pipeline, reference.choice_inputs(pipeline, item))


def _of_letters(values: torch.Tensor, ids: Mapping[str, int]) -> dict[str, float]:
    return {letter: float(values[one]) for letter, one in ids.items()}


@fault(caught_by="scores_are_those_of_the_protocol", mentions="leading space")
def letters_have_a_leading_space(pipeline: Pipeline) -> Pipeline:
    """The token of " A" is scored, not that of "A"."""
    return _scored_as(pipeline, _spaced)


def _spaced(pipeline: Pipeline, item: Choice) -> dict[str, float]:
    return _of_letters(_truth(pipeline, item), reference.letter_ids(pipeline, leading=" "))


@fault(caught_by="scores_are_those_of_the_protocol", mentions="add_generation_prompt")
def prompt_does_not_ask_for_an_answer(pipeline: Pipeline) -> Pipeline:
    """The prompt ends with the question's turn."""
    return _scored_as(pipeline, _unasked)


def _unasked(pipeline: Pipeline, item: Choice) -> dict[str, float]:
    inputs = reference.choice_inputs(pipeline, item, generation_prompt=False)
    return _of_letters(reference.next_token_scores(pipeline, inputs), reference.letter_ids(pipeline))


@fault(caught_by="scores_are_those_of_the_protocol", mentions="position before the last")
def position_is_one_off(pipeline: Pipeline) -> Pipeline:
    """The distribution one position early is read."""
    return _scored_as(pipeline, _early)


def _early(pipeline: Pipeline, item: Choice) -> dict[str, float]:
    inputs = reference.choice_inputs(pipeline, item)
    return _of_letters(reference.next_token_scores(pipeline, inputs, position=-2), reference.letter_ids(pipeline))


@fault(caught_by="scores_are_those_of_the_protocol", mentions="over the letters")
def scores_are_normalised_over_letters(pipeline: Pipeline) -> Pipeline:
    """Log-probabilities are taken over the letters A-H only."""
    return _scored_as(pipeline, _normalised)


def _normalised(pipeline: Pipeline, item: Choice) -> dict[str, float]:
    ids = reference.letter_ids(pipeline)
    values = _truth(pipeline, item)
    return _of_letters(values - torch.logsumexp(values[list(ids.values())], dim=0), ids)


@fault(caught_by="scores_are_those_of_the_protocol", mentions="images come in another order")
def images_of_an_item_are_reversed(pipeline: Pipeline) -> Pipeline:
    """The images of an item enter the prompt in reverse order."""
    return replace(pipeline, score=partial(_reversed_images, pipeline.part("score")))


def _reversed_images(score: Score, items: Sequence[Choice]) -> Sequence[Scored]:
    return score([replace(item, images=item.images[::-1]) for item in items])


@fault(caught_by="scores_are_those_of_the_protocol", mentions="another prompt")
def options_are_written_with_dots(pipeline: Pipeline) -> Pipeline:
    """Options stand as `A. text`, another protocol's form."""
    return _scored_as(pipeline, _dotted)


def _dotted(pipeline: Pipeline, item: Choice) -> dict[str, float]:
    listed = "\n".join(f"{chr(65 + number)}. {option}" for number, option in enumerate(item.options))
    text = f"{item.question}\n{listed}\n{reference.PROMPT_SUFFIX}"
    content = [{"type": "image"}] * len(item.images) + [{"type": "text", "text": text}]
    prompt = pipeline.processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    inputs = dict(pipeline.processor(text=[prompt], images=list(item.images) or None, return_tensors="pt"))
    return _of_letters(reference.next_token_scores(pipeline, inputs), reference.letter_ids(pipeline))


@fault(caught_by="scores_do_not_depend_on_company", mentions="pad on the left")
def prompts_are_padded_on_the_right(pipeline: Pipeline) -> Pipeline:
    """Batches are padded on the right and their last position is read."""
    return replace(pipeline, score=partial(_right_padded, pipeline))


def _right_padded(pipeline: Pipeline, items: Sequence[Choice]) -> list[Scored]:
    made = ours.stack()
    batch = made.collate(
        [made.samples.maker.prompt(reference.choice_prompt(item), list(item.images)) for item in items]
    )
    batch.pop("odb_n_patches")
    with torch.no_grad():
        values = torch.log_softmax(made.model(**batch).logits[:, -1].float(), dim=-1)
    return [
        Scored(scores=scores, prediction=reference.best_letter(scores, reference.LETTERS[: len(item.options)]))
        for item, row in zip(items, values, strict=True)
        for scores in [_of_letters(row, reference.letter_ids(pipeline))]
    ]


@fault(caught_by="scores_do_not_depend_on_company", mentions="put back into the order")
def scores_stay_sorted_by_length(pipeline: Pipeline) -> Pipeline:
    """Items are scored in order of length and not put back."""
    return replace(pipeline, score=partial(_sorted_scores, pipeline.part("score")))


def _sorted_scores(score: Score, items: Sequence[Choice]) -> Sequence[Scored]:
    return score(sorted(items, key=lambda item: len(item.question)))


@fault(caught_by="prediction_is_the_best_valid_letter", mentions="without an option")
def letters_without_option_take_part(pipeline: Pipeline) -> Pipeline:
    """The prediction is the best of A-H, whatever the number of options."""
    return replace(pipeline, score=partial(_any_letter, pipeline.part("score")))


def _any_letter(score: Score, items: Sequence[Choice]) -> Sequence[Scored]:
    return [replace(one, prediction=reference.best_letter(dict(one.scores), reference.LETTERS)) for one in score(items)]


@fault(caught_by="prediction_is_the_best_valid_letter", mentions="its scores say")
def prediction_is_the_worst_letter(pipeline: Pipeline) -> Pipeline:
    """The letter with the highest negative log-probability is taken: a sign."""
    return replace(pipeline, score=partial(_worst_letter, pipeline.part("score")))


def _worst_letter(score: Score, items: Sequence[Choice]) -> Sequence[Scored]:
    return [
        replace(one, prediction=min(reference.LETTERS[: len(item.options)], key=lambda letter: one.scores[letter]))
        for item, one in zip(items, score(items), strict=True)
    ]


def _sums(pipeline: Pipeline, indices: Sequence[int]) -> list[torch.Tensor]:
    known = dict(pipeline.numbered)
    with torch.no_grad():
        return [
            reference.token_losses(pipeline.network, known[index], pipeline.ignore_index).double() for index in indices
        ]


def _of(rows: Sequence[torch.Tensor]) -> ValidationLoss:
    return ValidationLoss(
        sample_mean=float(torch.stack([row.mean() for row in rows]).mean()),
        token_mean=float(torch.cat(list(rows)).mean()),
        label_tokens=sum(len(row) for row in rows),
    )


@fault(caught_by="validation_loss_does_not_depend_on_batches", mentions="means of batches are averaged")
def validation_averages_batches(pipeline: Pipeline) -> Pipeline:
    """The token mean is the mean of the batches' means."""
    return replace(pipeline, validation_loss=partial(_batch_averages, pipeline))


def _batch_averages(pipeline: Pipeline, indices: Sequence[int], token_budget: int) -> ValidationLoss:
    rows = _sums(pipeline, indices)
    size = max(1, token_budget // 256)
    means = [torch.cat(rows[start : start + size]).mean() for start in range(0, len(rows), size)]
    return replace(_of(rows), token_mean=float(torch.stack(means).mean()))


@fault(caught_by="validation_loss_is_true", mentions="multiplied by 2")
def validation_has_the_training_scale(pipeline: Pipeline) -> Pipeline:
    """The scale that training needs for DDP is applied in evaluation too."""
    return replace(pipeline, validation_loss=partial(_doubled, pipeline))


def _doubled(pipeline: Pipeline, indices: Sequence[int], token_budget: int) -> ValidationLoss:
    del token_budget
    right = _of(_sums(pipeline, indices))
    return replace(right, sample_mean=2 * right.sample_mean, token_mean=2 * right.token_mean)


@fault(caught_by="validation_loss_is_true", mentions="last, partial batch is dropped")
def validation_drops_its_last_sample(pipeline: Pipeline) -> Pipeline:
    """The last, partial batch is not evaluated."""
    return replace(pipeline, validation_loss=partial(_without_last, pipeline))


def _without_last(pipeline: Pipeline, indices: Sequence[int], token_budget: int) -> ValidationLoss:
    del token_budget
    return _of(_sums(pipeline, indices)[:-1])


@fault(caught_by="validation_loss_is_true", mentions="exchanged")
def validation_means_are_exchanged(pipeline: Pipeline) -> Pipeline:
    """Sample mean and token mean stand in each other's field."""
    return replace(pipeline, validation_loss=partial(_exchanged, pipeline))


def _exchanged(pipeline: Pipeline, indices: Sequence[int], token_budget: int) -> ValidationLoss:
    del token_budget
    right = _of(_sums(pipeline, indices))
    return replace(right, sample_mean=right.token_mean, token_mean=right.sample_mean)


@fault(caught_by="validation_loss_is_true", mentions="label tokens are reported")
def validation_counts_one_label_a_sample_more(pipeline: Pipeline) -> Pipeline:
    """Label tokens are counted with one more a sample."""
    return replace(pipeline, validation_loss=partial(_one_more_each, pipeline))


def _one_more_each(pipeline: Pipeline, indices: Sequence[int], token_budget: int) -> ValidationLoss:
    del token_budget
    right = _of(_sums(pipeline, indices))
    return replace(right, label_tokens=right.label_tokens + len(indices))
