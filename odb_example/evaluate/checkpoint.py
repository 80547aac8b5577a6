"""Which checkpoint is evaluated, what it is (a digest of its files), and where its results go. Costs no torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from odb_example.errors import UserError
from odb_example.files import read_json
from odb_example.settings import Settings

# What a checkpoint's figures depend on. Results and logs that lie in the same folder do not change what it is.
_PARTS = (
    "*.safetensors", "*.bin", "*.safetensors.index.json", "*.bin.index.json", "config.json", "adapter_config.json",
    "generation_config.json", "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json",
    "tokenizer*.json", "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json",
    "chat_template*",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint by the name it was asked for; ``folder`` is None until a Hub id is in the cache."""

    name: str
    folder: Path | None

    def fingerprint(self) -> str:
        """SHA-256 over names and contents of the files that make the model. Reads every weight once."""
        folder = self.folder
        if folder is None:
            config = try_to_load_from_cache(self.name, "config.json")
            if not isinstance(config, str):
                raise UserError(f"{self.name} is not in the Hub's cache", "name a local folder")
            folder = Path(config).parent
        digest = hashlib.sha256()
        for path in sorted({path for pattern in _PARTS for path in folder.glob(pattern) if path.is_file()}):
            with path.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256") if hasattr(hashlib, "file_digest") else _digest(stream)
            digest.update(f"{path.name} {content.hexdigest()}\n".encode())
        return digest.hexdigest()


def _digest(stream: Any) -> Any:
    digest = hashlib.sha256()
    while chunk := stream.read(1 << 22):
        digest.update(chunk)
    return digest


def find_checkpoint(settings: Settings) -> Checkpoint:
    """The checkpoint asked for, else the trained model of ``OUTPUT_ROOT/odb-enable``.

    Raises:
        UserError: nothing there, or a folder without a model.
    """
    name = settings.checkpoint or str(Path(settings.output_root) / "odb-enable")
    folder = Path(name)
    if folder.is_dir():
        if not any((folder / config).is_file() for config in ("config.json", "adapter_config.json")):
            raise UserError(
                f"checkpoint {name} holds no model (no config.json)", "train with --save-final-model, or name another"
            )
        return Checkpoint(name, folder)
    if settings.checkpoint is None or name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UserError(f"checkpoint {name} does not exist", "train one (odb-enable), or give --checkpoint")
    return Checkpoint(name, None)


def train_summary(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """What the training run left beside the checkpoint, or above a ``checkpoint-N`` folder; None for other models.

    Raises:
        UserError: several summaries, or one that is damaged.
    """
    if checkpoint.folder is None:
        return None
    for folder in (checkpoint.folder, checkpoint.folder.resolve().parent):
        found = sorted(folder.glob("train_summary_*.json"))
        if len(found) > 1:
            raise UserError(
                f"{folder} holds several train summaries ({', '.join(path.name for path in found)})",
                "keep the one of this checkpoint",
            )
        if found:
            summary = read_json(found[0])
            identity = folder / "run_identity.json"
            if not isinstance(summary, dict) or not isinstance(summary.get("split"), dict):
                raise UserError(f"{found[0]} holds no split", "evaluate another checkpoint, or restore the file")
            known = read_json(identity) if identity.is_file() else {}
            return {"data_fingerprint": known.get("data_fingerprint")} | summary
    return None


def output_folder(settings: Settings, checkpoint: Checkpoint, name: str, asked: str | None) -> Path:
    """Folder of an evaluation's results: the one asked for, else ``name`` under the evaluations' root or checkpoint.

    Args:
        asked: the evaluation's own flag or variable.
    """
    if asked:
        return Path(asked)
    if settings.eval_output_root:
        return Path(settings.eval_output_root) / name
    if checkpoint.folder is None:
        return Path(settings.output_root) / checkpoint.name.replace("/", "--") / name
    return checkpoint.folder / name


def refuse_other_results(folder: Path, result: str, checkpoint: Checkpoint, *, overwrite: bool) -> None:
    """Stop before results of another checkpoint are replaced.

    Raises:
        UserError: ``folder`` holds them, and ``overwrite`` is off.
    """
    path = folder / result
    if overwrite or not path.is_file():
        return
    there = read_json(path).get("checkpoint")
    if there is not None and Path(there).resolve() != Path(checkpoint.name).resolve():
        raise UserError(
            f"{folder} holds the results of checkpoint {there}, not of {checkpoint.name}",
            "give each checkpoint a folder of its own (--output-dir or --eval-output-root), or add --overwrite",
        )
