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
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from tiny_corpus import chats
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from eyas.config import SamplingSettings
from eyas.contract import DataSource, Rendering
from eyas.corpus.samples import LOSS_MASK_RULE, Sample, SampleFacts, SampleSet, write_samples
from eyas.engine.session import Session, facts_of, open_session
from eyas.models.config import read_config
from eyas.train.card import CardFacts
from eyas.train.parallel import Parallel
from eyas.train.prepare import open_source, own_weights
from eyas.train.progress import train_progress
from eyas.train.run import Job
from eyas.train.settings import DraftOptions, TrainSettings
from eyas.train.whole import DRAFT, Ending, train_draft

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


def answers(session: Session, folder: Path, number: int) -> SampleSet:
    """What the target in ``folder`` says to ``number`` prompts, every other answer drawn at temperature 1."""
    engine = session.engine(None, 64 * 256)
    asked = []
    for index, (question, _) in enumerate(chats(10_001, number)):
        sampling = SamplingSettings(temperature=float(index % 2), seed=index, max_new_tokens=128)
        asked.append((index, engine.submit(session.encode_chat([("user", question)]), sampling)))
    engine.run()
    samples = []
    for index, request in asked:
        tokens, begin = np.array([*request.prompt, *request.answer], dtype=np.int32), len(request.prompt)
        span = ((begin, len(tokens)),)
        samples.append(Sample(f"tiny-{index}", f"tiny-{index}", "tiny", tokens, span, float(index % 2)))
    known = facts_of(folder, session.tokenizer)
    assert known.tokenizer_sha256 is not None
    facts = SampleFacts(
        tokenizer_sha256=known.tokenizer_sha256,
        chat_template_sha256=known.chat_template_sha256,
        target_weights_sha256=known.weights_sha256,
        rendering=Rendering(thinking="none", system_prompt="none", system_prompt_text=None),
        loss_mask_rule=LOSS_MASK_RULE,
        sources=(DataSource(name="self-sampled", licence="Apache-2.0"),),
    )
    return SampleSet(facts, tuple(samples))


def make_draft(target_folder: Path, folder: Path, number: int, epochs: int) -> None:
    """Train the draft on the target's own answers, as `eyas train` does, and write it."""
    session = open_session(target_folder, None)
    options = DraftOptions(taps=TAPS, draft_vocab_size=DRAFT_VOCABULARY)
    settings = TrainSettings(
        draft=options, ttt_steps=3, samples_per_step=12, epochs=epochs, learning_rate=4e-3, evaluate_every=20
    )
    with TemporaryDirectory() as place:
        data = Path(place) / "samples.npz"
        write_samples(data, answers(session, target_folder, number))
        known = facts_of(target_folder, session.tokenizer)
        source = open_source(data, session.target, known, settings)
        run = Path(place) / "run"
        job = Job(source, own_weights(session.target), read_config(target_folder), settings, run)
        card = CardFacts("tiny draft", "tiny-target", None, "Apache-2.0", 3)
        ending = Ending(session.target, session.eos_ids, known, card)
        result = train_draft(job, ending, Parallel(), train_progress(Console()), [], ["make_tiny_pair.py"])
        assert result is not None
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(run / DRAFT, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target-steps", type=int, default=700)
    parser.add_argument("--conversations", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    if args.target_steps:
        make_target(args.out / "tiny-target", args.target_steps)
    make_draft(args.out / "tiny-target", args.out / "tiny-draft", args.conversations, args.epochs)


if __name__ == "__main__":
    main()
