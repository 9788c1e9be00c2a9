"""Make the tiny trained pair of eyas.testing: a target of 8 layers and its EAGLE-3 draft, in minutes on one core.

python scripts/make_tiny_pair.py --out src/eyas/testing/data
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tiny_corpus import chats
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from ttt import Corpus, collate, evaluate, fold_scales, initial_draft, loss_of, make_config, tap_scales, target_head

from eyas.config import SamplingSettings
from eyas.draft.checkpoint import write_draft
from eyas.draft.model import DraftModel
from eyas.draft.vocab import choose_vocabulary
from eyas.engine.engine import Engine
from eyas.kernels import Part, Rows
from eyas.models.registry import load_target
from eyas.models.target import Target

TAPS, VOCABULARY, DRAFT_VOCABULARY = (2, 4, 5), 512, 192
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def rendered(asked: str, answer: str | None = None) -> str:
    """A chat as the template renders it; without an answer, up to where it begins."""
    prompt = f"{START}user\n{asked}{END}\n{START}assistant\n"
    return prompt if answer is None else f"{prompt}{answer}{END}\n"


def make_tokenizer(texts: list[str]) -> Tokenizer:
    """A byte-level BPE of 512 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[PAD, START, END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def schedule(step: int, steps: int) -> float:
    """Linear warm-up over 5 %, then a cosine down to 2 %."""
    warm = min(1.0, (step + 1) / (0.05 * steps))
    return warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def train(parameters: list[Tensor], losses: Iterator[Tensor], steps: int, lr: float, name: str) -> None:
    """One optimizer step per loss that ``losses`` yields."""
    optimizer = torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    started, mean = time.time(), 0.0
    for step, loss in zip(range(steps), losses, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = lr * schedule(step, steps)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        mean = loss.item() if step == 0 else 0.98 * mean + 0.02 * loss.item()
        if (step + 1) % 100 == 0:
            print(f"{name}: step {step + 1}/{steps}, loss {mean:.3f}, {time.time() - started:.0f} s", flush=True)


def target_losses(model: LlamaForCausalLM, tokenizer: Tokenizer, batch: int) -> Iterator[Tensor]:
    """Next-token loss over whole chats, new ones each time."""
    pad, seed = tokenizer.token_to_id(PAD), 1
    while True:
        texts = [rendered(*chat) for chat in chats(seed, batch)]
        rows = [torch.tensor(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
        logits = model(input_ids=ids[:, :-1]).logits
        yield F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=pad)
        seed += 1


def make_target(folder: Path, steps: int) -> None:
    """Train the target and save it with its tokenizer, weights in bf16."""
    tokenizer = make_tokenizer([rendered(*chat) for chat in chats(0, 2000)])
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=tokenizer.token_to_id(PAD),
    )
    model = LlamaForCausalLM(config)
    train(list(model.parameters()), target_losses(model, tokenizer, 24), steps, 4e-3, "target")
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def conversation(target: Target, prompt: list[int], answer: list[int], temperature: float) -> dict:
    """A conversation with its taps and final states, by one forward."""
    tokens = [*prompt, *answer]
    n = len(tokens)
    empty = torch.empty(0, dtype=torch.int64)
    rows = Rows.build([Part(tokens, range(n), range(-1, n - 1), range(n), empty)])
    out = target.new_outputs(n, TAPS)
    target.forward(rows, target.new_cache(n), out)
    given = {"tokens": torch.tensor(tokens), "answer": len(prompt), "temperature": temperature}
    return given | {"taps": out.taps, "hidden": out.hidden}


def make_corpus(target: Target, tokenizer: Tokenizer, head_VH: Tensor, number: int) -> Corpus:
    """To train on: chats such as the target samples at temperature 1. Held out: its greedy answers."""
    corpus = Corpus(head_VH)
    for asked, answer in chats(10_001, number):
        prompt = tokenizer.encode(rendered(asked)).ids
        rest = tokenizer.encode(f"{answer}{END}").ids
        corpus.train.append(conversation(target, prompt, rest, 1.0))
    engine = Engine(target, eos_ids=[tokenizer.token_to_id(END)])
    for asked, _ in chats(10_002, 16):
        engine.submit(tokenizer.encode(rendered(asked)).ids, SamplingSettings(max_new_tokens=128))
    requests = list(engine.waiting)
    engine.run()
    corpus.held += [conversation(target, list(r.prompt), r.answer, 0.0) for r in requests]
    return corpus


def draft_losses(model: DraftModel, corpus: Corpus, scales: Tensor, batch: int) -> Iterator[Tensor]:
    head_DH = corpus.head[model.d2t + torch.arange(len(model.d2t))]
    while True:
        items = random.sample(corpus.train, batch)
        yield loss_of(model, head_DH, collate(corpus, items, scales), 3, 1)


def make_draft(target_folder: Path, folder: Path, number: int, steps: int) -> None:
    """Train the draft on the target's own answers and write it."""
    target = load_target(target_folder)
    tokenizer = Tokenizer.from_file(str(target_folder / "tokenizer.json"))
    weights = {k: v.float() for k, v in load_file(target_folder / "model.safetensors").items()}
    started = time.time()
    corpus = make_corpus(target, tokenizer, target_head(weights), number)
    kept, coverage = choose_vocabulary(corpus.expected_counts(1), DRAFT_VOCABULARY)
    print(f"{len(corpus.train)} conversations, {time.time() - started:.0f} s; draft vocabulary covers {coverage:.3f}")
    model = initial_draft(make_config(target_folder, TAPS, DRAFT_VOCABULARY), weights, kept)
    scales = tap_scales(corpus.train)
    parameters = [p for p in model.parameters() if p.requires_grad]
    train(parameters, draft_losses(model, corpus, scales, 12), steps, 4e-3, "draft")
    print(evaluate(model, corpus, scales))
    fold_scales(model, scales)
    write_draft(folder, model, target.architecture, dtype=torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target-steps", type=int, default=700)
    parser.add_argument("--conversations", type=int, default=400)
    parser.add_argument("--draft-steps", type=int, default=120)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    if args.target_steps:
        make_target(args.out / "tiny-target", args.target_steps)
    make_draft(args.out / "tiny-target", args.out / "tiny-draft", args.conversations, args.draft_steps)


if __name__ == "__main__":
    main()
