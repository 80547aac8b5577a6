"""Every option once: name, type, default, variable, and one line of help.

`Settings` is what every stage receives. `odb_example.cli` turns its fields into flags; no command line is known here.
Precedence is flag > environment > settings file > preset > default. Importing this module costs no torch.

Field metadata (`Option`): ``env`` is the variable, ``flag`` the name on the command line where it differs from the
field's own, ``commands`` the groups of commands that offer it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

SHARED, TRAIN, DATA, INSPECT, VALLOSS, BENCHMARK, COMPARE = (
    "shared", "train", "data", "inspect", "valloss", "benchmark", "compare",
)  # fmt: skip

LossScaling = Literal["token", "sample", "odb-exact", "odb-approx", "none"]
MAX_SEED = 2**32 - 1  # what numpy takes
GroupOrderFlip = Literal[
    "none", "A", "B", "C", "D", "rank_epoch_random", "rank_window_balanced", "rank_window_random"
]  # fmt: skip
LoaderKind = Literal["odb", "standard", "group_by_length", "batch_rebalance", "oracle"]
ProcessorBackend = Literal["auto", "qwen_vl", "generic"]

_LOSS_ALIASES = {"exact": "token", "approx": "odb-approx"}
_BACKEND_ALIASES = {"qwen3_vl": "qwen_vl", "llamafactory_qwen_vl": "qwen_vl", "hf": "generic", "processor": "generic"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Where a setting comes from and who offers it."""

    commands: tuple[str, ...]
    env: str | None = None
    flag: str | None = None


def _canonical(aliases: dict[str, str]) -> BeforeValidator:
    return BeforeValidator(lambda value: aliases.get(value, value) if isinstance(value, str) else value)


def _option(
    default: Any, words: str, *commands: str, env: str | None = None, flag: str | None = None, **bounds: Any
) -> Any:
    extra = {"option": Option(commands=commands, env=env, flag=flag)}
    return Field(default, description=words, json_schema_extra=extra, **bounds)  # type: ignore[arg-type]


class Settings(BaseModel):
    """One run's resolved settings; immutable, unknown names refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False,
        defer_build=True,  # --help needs the fields only
    )  # fmt: skip

    # --- what and where -------------------------------------------------------------------------------------------
    preset: Literal["public", "miniature"] | None = _option(
        None, "defaults to start from: public (Qwen3-VL-2B, MM-Mix) or miniature (tiny model, embedded data)",
        SHARED, env="ODB_MM_MIX_PRESET",
    )  # fmt: skip
    model: str = _option(
        "Qwen/Qwen3-VL-2B-Instruct", "checkpoint: a Hub id or a folder", TRAIN, INSPECT, env="ODB_MM_MIX_MODEL"
    )
    data: str = _option("data/mm-mix-tmdb", "TMDB data folder", TRAIN, INSPECT, VALLOSS, DATA, env="ODB_MM_MIX_DATA")
    output_root: str = _option(
        "outputs/hf-trainer-real", "folder that holds one run folder per loader", SHARED, env="ODB_MM_MIX_OUTPUT_ROOT"
    )
    output_dir: str | None = _option(
        None, "run folder (default: OUTPUT_ROOT/{loader}-{integration})", TRAIN, env="ODB_MM_MIX_OUTPUT_DIR"
    )
    overwrite: bool = _option(
        False,
        "replace a store, run folder or results made with other settings",
        DATA,
        TRAIN,
        VALLOSS,
        BENCHMARK,
        env="ODB_MM_MIX_OVERWRITE",
    )
    source_data: str | None = _option(
        None, "copy the store from this folder to --local-data first", TRAIN, env="ODB_MM_MIX_SOURCE_DATA"
    )
    local_data: str | None = _option(
        None, "fast local folder the store is copied to and read from", TRAIN, env="ODB_MM_MIX_LOCAL_DATA"
    )
    force_local_copy: bool = _option(False, "copy even if the local store is the same", TRAIN)
    trust_remote_code: bool = _option(
        False, "run Python code that a checkpoint ships", TRAIN, INSPECT, VALLOSS, BENCHMARK,
        env="ODB_MM_MIX_TRUST_REMOTE_CODE",
    )  # fmt: skip
    seed: int = _option(
        42, "seed of data order, dropout and the miniature", SHARED, env="ODB_MM_MIX_SEED", ge=0, le=MAX_SEED
    )

    # --- data build -----------------------------------------------------------------------------------------------
    recipe_root: str | None = _option(
        None, "folder with local copies of the source data sets, by Hub id, used instead of the Hub", DATA,
        env="ODB_MM_MIX_RECIPE_ROOT",
    )  # fmt: skip
    sources: str = _option("all", "comma-separated source names to build", DATA, env="ODB_MM_MIX_SOURCES")
    caps: dict[str, int] = _option({}, "records per source, e.g. --caps.iiit5k 500", DATA)
    records: int = _option(3000, "records of the miniature mix", DATA, env="ODB_MM_MIX_RECORDS", ge=100, le=1_000_000)
    revisions: dict[str, str] = _option({}, "commit or tag per source, e.g. --revisions.iiit5k COMMIT", DATA)
    build_workers: int = _option(2, "threads that check images", DATA, env="ODB_MM_MIX_BUILD_WORKERS", ge=1)
    vqa_like: str | None = _option(
        None, "Hub id or folder of the short-answer VQA source (its origin is not published)", DATA,
        env="ODB_MM_MIX_VQA_LIKE",
    )  # fmt: skip

    # --- samples --------------------------------------------------------------------------------------------------
    processor_backend: Annotated[ProcessorBackend, _canonical(_BACKEND_ALIASES)] = _option(
        "qwen_vl", "how samples are made: auto, qwen_vl or generic", TRAIN, INSPECT, VALLOSS,
        env="ODB_MM_MIX_PROCESSOR_BACKEND",
    )  # fmt: skip
    max_length: int = _option(
        16384, "token cap of one sample, visual tokens included", TRAIN, INSPECT, VALLOSS,
        env="ODB_MM_MIX_MAX_LENGTH", gt=0,
    )  # fmt: skip
    image_max_pixels: int = _option(
        589824, "pixel cap of one image (0 = the checkpoint's own)", TRAIN, INSPECT, VALLOSS,
        env="ODB_MM_MIX_IMAGE_MAX_PIXELS", ge=0,
    )  # fmt: skip
    on_bad_record: Literal["refuse", "skip"] = _option(
        "refuse", "records that cannot become a sample: stop before training, or leave them out of the split",
        TRAIN, VALLOSS, env="ODB_MM_MIX_ON_BAD_RECORD",
    )  # fmt: skip
    train_size: int = _option(128, "training records (0 = all of the split)", TRAIN, env="ODB_MM_MIX_TRAIN_SIZE", ge=0)
    split_mode: Literal["lf_val_size", "prefix"] = _option(
        "lf_val_size", "seeded permutation with a held-out share, or the first records", TRAIN,
        env="ODB_MM_MIX_SPLIT_MODE",
    )  # fmt: skip
    val_size: float = _option(0.05, "held-out share, or a count when above 1", TRAIN, env="ODB_MM_MIX_VAL_SIZE", gt=0)
    split_seed: int = _option(42, "seed of the split", TRAIN, env="ODB_MM_MIX_SPLIT_SEED", ge=0, le=MAX_SEED)

    # --- loader ---------------------------------------------------------------------------------------------------
    loader: LoaderKind = _option("odb", "how samples are grouped into batches", TRAIN, env="ODB_MM_MIX_LOADER")
    odb_integration: Literal["enable", "manual"] = _option(
        "enable", "enable_odb in one call, or odb.apply + configure_trainer", TRAIN, env="ODB_MM_MIX_ODB_INTEGRATION"
    )
    token_budget: int = _option(
        12288, "padded-token cap of one group of samples on one rank", TRAIN, INSPECT, VALLOSS, BENCHMARK,
        env="ODB_MM_MIX_TOKEN_BUDGET", gt=0,
    )  # fmt: skip
    buffer_size: int = _option(
        1024, "finished samples a rank collects before it groups them", TRAIN, INSPECT,
        env="ODB_MM_MIX_BUFFER_SIZE", gt=0,
    )  # fmt: skip
    max_patches: int = _option(0, "vision-patch cap of one group (0 = none)", TRAIN, env="ODB_MM_MIX_MAX_PATCHES", ge=0)
    join: bool = _option(True, "ODB: ranks that run out of samples wait for the others", TRAIN)
    group_order_flip: GroupOrderFlip = _option("none", "ODB: rank-wise order of groups, as odb.apply takes it", TRAIN)
    no_warmup: bool = _option(False, "ODB: group only once the buffer is full, from the first step on", TRAIN)
    fixed_batch_size: int = _option(
        1, "rows per rank of the loaders with a fixed batch", TRAIN, env="ODB_MM_MIX_FIXED_BATCH_SIZE", gt=0
    )
    num_workers: int = _option(
        4, "loader processes per rank", TRAIN, VALLOSS, BENCHMARK, env="ODB_MM_MIX_NUM_WORKERS", ge=0
    )
    prefetch_factor: int | None = _option(
        None, "samples each worker prepares ahead; wins over the loader's own", TRAIN, VALLOSS,
        env="ODB_MM_MIX_PREFETCH_FACTOR", gt=0,
    )  # fmt: skip
    odb_prefetch_factor: int = _option(512, "the same for ODB", TRAIN, env="ODB_MM_MIX_ODB_PREFETCH_FACTOR", gt=0)
    standard_prefetch_factor: int = _option(
        2, "the same for every other loader", TRAIN, env="ODB_MM_MIX_STANDARD_PREFETCH_FACTOR", gt=0
    )

    # --- training -------------------------------------------------------------------------------------------------
    loss_scaling: Annotated[LossScaling, _canonical(_LOSS_ALIASES)] = _option(
        "token", "objective: token or sample mean of the optimizer step, or ODB's own weights", TRAIN,
        env="ODB_MM_MIX_LOSS_SCALING",
    )  # fmt: skip
    max_steps: int = _option(0, "optimizer-step cap (0 = none)", TRAIN, env="ODB_MM_MIX_MAX_STEPS", ge=0)
    num_train_epochs: float = _option(1.0, "passes over the training split", TRAIN, env="ODB_MM_MIX_EPOCHS", gt=0)
    gradient_accumulation_steps: int = _option(
        1, "batches per rank in one optimizer step", TRAIN, env="ODB_MM_MIX_GRADIENT_ACCUMULATION_STEPS", gt=0
    )
    lr: float = _option(1e-5, "peak learning rate", TRAIN, env="ODB_MM_MIX_LR", gt=0)
    lr_scheduler_type: str = _option("cosine", "learning-rate schedule", TRAIN, env="ODB_MM_MIX_LR_SCHEDULER_TYPE")
    warmup_ratio: float = _option(
        0.03, "share of the run in which the rate rises", TRAIN, env="ODB_MM_MIX_WARMUP_RATIO", ge=0, lt=1
    )
    max_grad_norm: float = _option(4.0, "gradient-norm clip (0 = off)", TRAIN, env="ODB_MM_MIX_MAX_GRAD_NORM", ge=0)
    bf16: bool | None = _option(None, "bf16 autocast (default: on with CUDA)", TRAIN)
    fp16: bool = _option(False, "fp16 autocast", TRAIN)
    gradient_checkpointing: bool = _option(
        True, "recompute activations in the backward pass", TRAIN, env="ODB_MM_MIX_GRADIENT_CHECKPOINTING"
    )
    deepspeed: str | None = _option(
        None, "DeepSpeed config file, zero2 or zero3 for the shipped ones, none to switch off (default: zero2 on GPUs)",
        TRAIN, env="ODB_MM_MIX_DEEPSPEED",
    )  # fmt: skip
    fsdp: str | None = _option(None, "FSDP2 sharding as TrainingArguments takes it, e.g. full_shard", TRAIN)
    trainable_keywords: str = _option(
        "full", "comma-separated parameter-name parts to train (full = all)", TRAIN,
        env="ODB_MM_MIX_TRAINABLE_KEYWORDS",
    )  # fmt: skip
    freeze_vision_tower: bool = _option(False, "do not train the vision tower", TRAIN)
    freeze_multimodal_projector: bool = _option(False, "do not train the vision-to-text merger", TRAIN)
    freeze_language_model: bool = _option(False, "do not train the language model", TRAIN)
    lora_r: int = _option(0, "LoRA rank through PEFT (0 = off)", TRAIN, ge=0)
    lora_alpha: int = _option(32, "LoRA scale", TRAIN, gt=0)
    lora_dropout: float = _option(0.0, "LoRA dropout", TRAIN, ge=0, lt=1)
    lora_target_modules: str = _option("all-linear", "comma-separated module names, or all-linear", TRAIN)
    attn_implementation: str | None = _option(
        None, "attention kernel: sdpa, eager, flash_attention_2", TRAIN, VALLOSS, BENCHMARK
    )
    logging_steps: int = _option(10, "steps between log lines", TRAIN, gt=0)
    report_to: str = _option(
        "auto", "comma-separated trackers: tensorboard, trackio, wandb, none (auto: tensorboard where installed)", TRAIN
    )
    save_strategy: Literal["no", "steps", "epoch"] = _option(
        "no", "when checkpoints are written", TRAIN, env="ODB_MM_MIX_SAVE_STRATEGY"
    )
    save_steps: int = _option(500, "steps between checkpoints with --save-strategy steps", TRAIN, gt=0)
    save_total_limit: int | None = _option(None, "checkpoints kept", TRAIN, gt=0)
    save_final_model: bool = _option(False, "write the trained model", TRAIN, env="ODB_MM_MIX_SAVE_FINAL_MODEL")
    eval_steps: int = _option(0, "steps between validation losses during training (0 = none)", TRAIN, ge=0)
    resume: str | None = _option(None, "continue from this checkpoint folder, or newest", TRAIN)
    trainer: dict[str, str] = _option({}, "any further TrainingArguments, e.g. --trainer.adam_beta2 0.95", TRAIN)

    # --- processes ------------------------------------------------------------------------------------------------
    num_processes: int | None = _option(
        None, "ranks to start on this machine (default: the GPUs, or 1)", TRAIN, VALLOSS, BENCHMARK,
        env="ODB_MM_MIX_NUM_PROCESSES", gt=0,
    )  # fmt: skip
    master_port: int | None = _option(
        None, "rendezvous port (default: a free one)", TRAIN, VALLOSS, BENCHMARK,
        env="ODB_MM_MIX_MASTER_PORT", ge=1, le=65535,
    )  # fmt: skip
    master_addr: str = _option("127.0.0.1", "rendezvous host of several nodes", TRAIN, env="ODB_MM_MIX_MASTER_ADDR")
    nnodes: int = _option(1, "machines", TRAIN, gt=0)
    node_rank: int = _option(0, "number of this machine", TRAIN, ge=0)
    ddp_timeout: int = _option(1800, "seconds a rank waits for the others", TRAIN, env="ODB_MM_MIX_DDP_TIMEOUT", gt=0)
    device: Literal["auto", "cpu", "cuda"] = _option(
        "auto", "where to compute", TRAIN, VALLOSS, BENCHMARK, env="ODB_MM_MIX_DEVICE"
    )

    # --- evaluation -----------------------------------------------------------------------------------------------
    checkpoint: str | None = _option(
        None, "checkpoint to evaluate (default: OUTPUT_ROOT/odb-enable)", VALLOSS, BENCHMARK,
        env="ODB_HF_EVAL_CHECKPOINT",
    )  # fmt: skip
    eval_output_root: str | None = _option(
        None, "folder that holds the evaluations' folders (default: the checkpoint)", VALLOSS, BENCHMARK,
        env="ODB_HF_EVAL_OUTPUT_ROOT",
    )  # fmt: skip
    eval_save_dir: str | None = _option(
        None, "folder of the results", VALLOSS, env="ODB_HF_EVAL_SAVE_DIR", flag="output-dir"
    )
    benchmark_output_dir: str | None = _option(
        None, "folder of the results", BENCHMARK, env="ODB_HF_BENCHMARK_OUTPUT_DIR", flag="output-dir"
    )
    eval_split_mode: Literal["lf_val_size", "tail"] | None = _option(
        None, "held-out rows (default: the checkpoint's own split)", VALLOSS,
        env="ODB_HF_EVAL_SPLIT_MODE", flag="split-mode",
    )  # fmt: skip
    val_start: int = _option(196200, "first row of the tail split", VALLOSS, env="ODB_MM_MIX_VAL_START", ge=0)
    eval_val_size: float | None = _option(
        None, "held-out share or count (default: the checkpoint's own)", VALLOSS,
        env="ODB_HF_EVAL_VAL_SIZE", flag="val-size", gt=0,
    )  # fmt: skip
    eval_split_seed: int | None = _option(
        None, "seed of the split (default: the checkpoint's own)", VALLOSS,
        env="ODB_HF_EVAL_SPLIT_SEED", flag="split-seed", ge=0,
    )  # fmt: skip
    force_split: bool = _option(False, "evaluate on another split than the checkpoint's, and mark it", VALLOSS)
    max_samples: int = _option(
        0, "cap of scored rows (0 = all)", VALLOSS, BENCHMARK, env="ODB_HF_EVAL_MAX_SAMPLES", ge=0
    )
    eval_bf16: bool | None = _option(
        None, "bf16 weights (default: on with CUDA)", VALLOSS, env="ODB_HF_EVAL_BF16", flag="bf16"
    )
    limit_log_steps: int = _option(50, "batches between progress lines", VALLOSS, env="ODB_HF_EVAL_LOG_STEPS", gt=0)
    torch_dtype: Literal["bf16", "fp16", "fp32"] | None = _option(
        None, "precision of the weights (default: bf16 with CUDA, else fp32)", BENCHMARK,
        env="ODB_HF_EVAL_TORCH_DTYPE",
    )  # fmt: skip
    dataset: str = _option("MMMU/MMMU", "benchmark: a Hub id or a folder", BENCHMARK, env="ODB_HF_BENCHMARK_DATASET")
    split: str = _option("validation", "split of the benchmark", BENCHMARK, env="ODB_HF_BENCHMARK_SPLIT")
    subjects: str = _option("all", "comma-separated subjects", BENCHMARK, env="ODB_HF_EVAL_SUBJECTS")
    prompt_variant: Literal["v1", "mmmu", "lmms-eval"] = _option(
        "v1", "form of the question; only v1 is the reference's protocol", BENCHMARK
    )
    cache_dir: str | None = _option(None, "folder of the data-set cache", BENCHMARK, DATA, env="HF_DATASETS_CACHE")

    # --- inspect --------------------------------------------------------------------------------------------------
    num_samples: int = _option(16, "image rows to inspect, and a quarter as many text rows", INSPECT, gt=0)
    inspect_output: str | None = _option(
        None, "file for the report (default: stdout)", INSPECT, env="ODB_MM_MIX_INSPECT_OUTPUT", flag="output"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if self.bf16 and self.fp16:
            raise ValueError("bf16 and fp16 exclude each other")
        for size in (self.val_size, self.eval_val_size):
            if size is not None and size > 1 and size != int(size):
                raise ValueError(f"val_size {size:g} is neither a share below 1 nor a whole number of records")
        if self.node_rank >= self.nnodes:
            raise ValueError(f"node_rank {self.node_rank} needs nnodes above it, got {self.nnodes}")
        return self


PRESETS: dict[str, dict[str, Any]] = {
    "public": {},
    "miniature": {
        "model": "outputs/miniature/model",
        "data": "data/mm-mix-miniature",
        "output_root": "outputs/miniature",
        "dataset": "data/mm-mix-miniature/benchmark",
        "token_budget": 512,
        "buffer_size": 256,
        "no_warmup": True,
        "fixed_batch_size": 5,  # as many optimizer steps as ODB takes, so that one learning rate suits both
        "max_length": 1024,
        "image_max_pixels": 65536,
        "train_size": 0,
        "num_workers": 1,
        "lr": 8e-3,
        "gradient_checkpointing": False,
        "save_final_model": True,
        "num_train_epochs": 6.0,
    },
}


def option_of(name: str) -> Option:
    """The declared `Option` of a field."""
    extra = Settings.model_fields[name].json_schema_extra
    assert isinstance(extra, dict)
    option = extra["option"]
    assert isinstance(option, Option)
    return option


def choices_of(name: str) -> tuple[str, ...]:
    """The words a field accepts, aliases left out; empty where it takes free text or a number."""
    words: list[str] = []
    pending: list[Any] = [Settings.model_fields[name].annotation]
    while pending:
        kind = pending.pop()
        if getattr(kind, "__origin__", None) is Literal:
            words.extend(get_args(kind))
        else:
            pending.extend(get_args(kind))
    return tuple(words)
