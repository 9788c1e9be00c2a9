"""Kinds of fault that show when the draft runs: found by the hypothesis search or by replaying the witness."""

from __future__ import annotations

from eyas.check.kind import Kind

_FIX = "`eyas check DRAFT --fix OUT`"
_SEARCH = "features: the likelihoods of the same positions with the one and the other are compared."

SEARCH_KINDS: dict[str, Kind] = {
    "taps.wrong": Kind(
        "The draft was trained on other taps",
        "Accept length between 1.0 and 1.9; the text is right and every log is green.",
        "The layer ids in config.json are missing, in another convention, shifted by one, or another trainer's.",
        "features: every boundary is tried in every slot of fc, and likelihoods of the same positions are compared.",
        f"{_FIX} writes the right ids; where no engine can capture them, retrain on taps that can be captured.",
    ),
    "taps.order": Kind(
        "The taps are concatenated in another order than in training",
        "Accept length close to 1.0.",
        "Engines concatenate taps in rising layer order, whatever the order of the ids.",
        "features: the permutations of the declared taps are tried.",
        f"{_FIX} permutes the column blocks of fc.weight into rising order.",
    ),
    "taps.post-norm": Kind(
        "The last tap was taken after the final norm",
        "Accept length about a tenth to a fifth too low.",
        "The last entry of Hugging Face's hidden_states is after the final norm; engines capture before it.",
        _SEARCH,
        "Retrain on taps that are taken before any norm: `eyas capture` proves them before it stores them.",
    ),
    "features.rotated": Kind(
        "The served target's states are the original's, turned",
        "Accept length close to 1.0 after the target was quantised; its text is right.",
        "Quantisation methods turn the residual stream by an orthogonal matrix, so that no value stands out.",
        "features: with --original-target the embeddings differ by a rotation, and the draft turned along is right.",
        f"{_FIX} with --original-target turns fc and attention along.",
    ),
    "target.changed": Kind(
        "The target was changed after the draft was trained",
        "Accept length lower than with the original target, on every prompt set.",
        "The target was fine-tuned, merged or quantised afterwards: the states and the text are others.",
        "features: with --original-target the draft accepts plainly more beside the original.",
        "`eyas regen` and `eyas train --draft DRAFT` with the served target: a warm start needs little data.",
    ),
    "norm.output": Kind(
        "norm_output is not what the draft was trained with",
        "The first position is right, later ones are accepted half as often.",
        "What a step hands to the next is taken before the final norm in one place, and after it in the other.",
        _SEARCH,
        f"{_FIX} writes norm_output as trained; vLLM knows it from 0.22 on.",
    ),
    "norm.residual": Kind(
        "norm_before_residual is not what the draft was trained with",
        "Accept length clearly too low from the first position on.",
        "The residual is taken before hidden_norm in one trainer and after it in another; SGLang has no such switch.",
        _SEARCH,
        f"{_FIX} writes the flag as trained, for vLLM; for SGLang retrain without it.",
    ),
    "norm.final": Kind(
        "The draft was trained without a final norm before its head",
        "Accept length a little too low at every position.",
        "The trainer's model lacks the norm that every engine applies.",
        _SEARCH,
        "Retrain with the final norm: no engine leaves it out.",
    ),
    "align.feature": Kind(
        "Features are one position late",
        "Accept length a fifth too low.",
        "Row t takes the embedding of token t + 1 and the feature at t; the trainer shifted only one of them.",
        _SEARCH,
        "Retrain with features and tokens aligned as the engines do: `eyas train` does.",
    ),
    "align.token": Kind(
        "Tokens are not shifted against the features",
        "Accept length about 1.15.",
        "The trainer embeds token t beside the feature at t, and engines embed token t + 1.",
        _SEARCH,
        "Retrain with tokens shifted by one: `eyas train` does.",
    ),
    "align.halves": Kind(
        "Embedding and hidden state are joined in the other order",
        "Accept length about 1.1.",
        "Attention reads cat(embedding, hidden) in every engine, and this draft was trained on cat(hidden, embedding).",
        _SEARCH,
        "Exchange the column halves of q, k and v and the two norms before them, then check again.",
    ),
    "rope.base": Kind(
        "Another RoPE base than in training",
        "Right on short contexts, worse with every thousand tokens.",
        "config.json lacks rope_theta, or names the trainer's default in place of the one that was used.",
        _SEARCH,
        f"{_FIX} writes the base into every place that engines read.",
    ),
    "rope.scaling": Kind(
        "Another RoPE scaling than in training",
        "Worse with every thousand tokens, or from the start where the scaling is linear.",
        "The trainer copied the target's rope_scaling or left it out, and config.json says the other.",
        _SEARCH,
        f"{_FIX} writes the scaling into every place that engines read.",
    ),
    "rope.partial": Kind(
        "The draft was trained with another share of each head rotated",
        "Accept length too low from the first position on.",
        "The trainer's attention rotates a part of each head, as its target does (partial_rotary_factor), or it"
        " does not.",
        _SEARCH,
        "Retrain with whole heads rotated, as engines run a draft of the Llama family: `eyas train` does.",
    ),
    "features.other": Kind(
        "A tap is not what it was in training",
        "Accept length too low, by as much as the target was changed.",
        "The target was quantised, rotated or fine-tuned after training, or another boundary is captured.",
        "features: fingerprints of the witness, tap by tap.",
        "Run the target that the contract names, or train a draft for this one.",
    ),
    "draft.recurrence": Kind(
        "First proposals are right, later ones are not",
        "The first position is accepted as expected, later ones far less.",
        "What a step hands to the next differs from training: a norm, the token, or the position.",
        "draft: the witness's proposals, step by step.",
        "Take config.json from the draft's source again; `eyas check` without the witness searches for the cause.",
    ),
    "draft.cache": Kind(
        "First rounds are right, later ones are not",
        "Accept length falls with the length of the answer.",
        "The draft keeps keys of its own approximate states, where those of accepted positions must be computed anew.",
        "draft: the witness's proposals, round by round.",
        "Use an engine version that recomputes the draft's keys after verification.",
    ),
    "draft.other": Kind(
        "The draft proposes other tokens than when it was finished",
        "Accept length far too low.",
        "Another map, head, norm or rotation than in training, or other weights under the same contract.",
        "draft: the witness's proposals.",
        "Take config.json and weights from the draft's source again.",
    ),
    "repair.written": Kind(
        "A corrected draft was written",
        "Asked for by --fix.",
        "What was wrong could be mended without training.",
        "The corrected folder is checked again, and the answer stands with the finding.",
        "Serve the corrected folder.",
    ),
    "repair.impossible": Kind(
        "The draft cannot be mended without training",
        "Asked for by --fix, and nothing was written.",
        "No engine can serve what was trained, or too little of the draft is left.",
        "static: the reasons, engine by engine.",
        "Retrain on what the engine can serve: `eyas train --set draft.taps=[…]`.",
    ),
}
