"""A text-only stack under test, in the least code: swap in your own tokenizer, data, collator and loss."""

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from odb_example.conformance import Pipeline
from odb_example.data.records import Record, Turn
from odb_example.models.miniature import QWEN3_VL_TEMPLATE, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
TOKENIZER.chat_template = QWEN3_VL_TEMPLATE
RECORDS = [
    Record(f"sum-{n}", "sums", (Turn("human", f"What is {n} + {n}?"), Turn("gpt", f"It is {2 * n}." * (1 + n % 5))))
    for n in range(22)
]


def sample(index):
    conversation = RECORDS[index].conversations
    question = [{"role": "user", "content": conversation[0].value}]
    prompt = TOKENIZER.apply_chat_template(question, add_generation_prompt=True, return_dict=False)
    ids = prompt + TOKENIZER.encode(f"{conversation[1].value}<|im_end|>\n")
    labels = [-100] * len(prompt) + ids[len(prompt) : -1] + [-100]
    fields = {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": labels, "sample_index": [index]}
    return {name: torch.tensor(values) for name, values in fields.items()}


def collate(samples):
    fills = {"input_ids": TOKENIZER.pad_token_id, "attention_mask": 0, "labels": -100, "sample_index": 0}
    return {
        name: torch.nn.utils.rnn.pad_sequence([one[name] for one in samples], batch_first=True, padding_value=fill)
        for name, fill in fills.items()
    } | {"sample_index": torch.cat([one["sample_index"] for one in samples])}


def loader(kind, *, rank, world_size):
    order = torch.randperm(len(RECORDS), generator=torch.Generator().manual_seed(1)).tolist()[rank::world_size]
    return [collate([sample(index) for index in order[start : start + 4]]) for start in range(0, len(order), 4)]


def model():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(TOKENIZER), n_embd=48, n_layer=1, bos_token_id=0, eos_token_id=0))


def loss(model, batch, totals):
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1].flatten(0, 1)
    return F.cross_entropy(logits, batch["labels"][:, 1:].flatten(), reduction="sum") / totals.label_tokens


def build():
    return Pipeline(
        name="a text-only stack", records=RECORDS, sample=sample, collate=collate, loader=loader, model=model,
        loss=loss, processor=TOKENIZER, pad_id=TOKENIZER.pad_token_id,
    )  # fmt: skip
