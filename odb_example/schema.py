"""The fields that people's scripts read, by result file. Ours may hold more; none of these may be missing.

A schema is a mapping of field to nested schema, or None where the value is a leaf; a one-element list holds the schema
of each row. `missing` names what a value lacks.
"""

from __future__ import annotations

from typing import Any

from odb_example.evaluate.subjects import DISCIPLINES

Schema = dict[str, Any] | list[Any] | None


def _leaves(words: str) -> dict[str, Any]:
    return dict.fromkeys(words.split())


LABEL_TOKENS_PER_SAMPLE = _leaves("min p10 p50 p90 max mean")
SPLIT = _leaves("split_mode train_size_arg val_size split_seed train_indices_preview eval_indices_preview")
TRAIN_SUMMARY: Schema = {
    **_leaves("loader global_step emitted_samples mean_emitted_samples_per_step"),
    **_leaves("effective_emitted_samples_per_second trainer_metrics world_size"),
    "split": SPLIT,
    "config": _leaves(
        "max_length image_max_pixels processor_backend num_workers prefetch_factor fixed_batch_size token_budget "
        "buffer_size loss_scaling join deepspeed gradient_checkpointing use_cache trainable_keywords"
    ),
}
STEP = _leaves("samples label_tokens input_tokens padded_tokens groups idle seconds loss grad_norm")
START_LINE = _leaves("loader data raw_records records model trainable_parameters")
EVAL_RESULTS: Schema = {
    **_leaves("checkpoint data split_mode val_start val_size split_seed eval_indices_preview eval_samples eval_loss"),
    **_leaves("mean_batch_loss loss_aggregation token_weighted_eval_loss label_tokens max_length image_max_pixels"),
    "processor_backend": None,
    "label_tokens_per_sample": LABEL_TOKENS_PER_SAMPLE,
}
_SCORE = _leaves("accuracy total correct")
BENCHMARK_RESULTS: Schema = {
    **_leaves("protocol split checkpoint dataset subjects evaluated_samples excluded_samples total_rows_seen"),
    **_leaves("overall_accuracy overall_correct overall_total excluded_by_reason prediction_counts"),
    **_leaves("option_status_counts total_images"),
    "per_category": dict.fromkeys((*DISCIPLINES, "Overall"), _SCORE),
}
PREDICTION = _leaves(
    "protocol split subject category sample_id question options valid_candidate_letters option_status ground_truth "
    "candidate_scores choice_scores prediction score_margin correct num_images"
)
EXCLUDED = _leaves("protocol split subject sample_id reason answer_raw normalized_answer options")
SCORE_AUDIT: Schema = {
    **_leaves("protocol prompt_suffix"),
    "candidate_token_info": {letter: _leaves("candidate_text first_token_id token_ids") for letter in "ABCDEFGH"},
    "score_meta_examples": [_leaves("prompt_tokens rendered_chat_chars subject sample_id")],
}
INSPECT: Schema = {
    **_leaves("model processor_backend max_length image_max_pixels num_records vision_token_ids failures"),
    "inspected": [
        _leaves(
            "index source has_image num_record_images input_length label_tokens known_vision_token_count "
            "known_vision_label_values vision_tensors model_batch_keys"
        )
    ],
}
RECORD_SIDE = _leaves("runtime_seconds train_loss validation_loss token_weighted_validation_loss")
PUBLIC_RECORD: Schema = {
    **_leaves("name date model notes"),
    "package": _leaves("online_dynamic_batching"),
    "hardware": _leaves("nodes gpus_per_node gpu_type"),
    "data": _leaves("recipe raw_records train_samples eval_samples label_tokens label_tokens_per_sample"),
    "training": {"standard": RECORD_SIDE, "odb": RECORD_SIDE},
    "derived": _leaves(
        "throughput_speedup runtime_speedup validation_loss_delta_odb_minus_standard "
        "token_weighted_validation_loss_delta_odb_minus_standard mmmu_mc_delta_points"
    ),
}


def missing(value: Any, schema: Schema, where: str = "") -> list[str]:
    """Paths of the fields that ``value`` lacks, or that are not of the schema's shape."""
    if schema is None:
        return []
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{where or '.'} is not a list"]
        return [line for i, row in enumerate(value) for line in missing(row, schema[0], f"{where}[{i}]")]
    if not isinstance(value, dict):
        return [f"{where or '.'} is not a mapping"]
    lacking = [f"{where}.{field}" for field in schema if field not in value]
    return lacking + [line for f, s in schema.items() if f in value for line in missing(value[f], s, f"{where}.{f}")]
