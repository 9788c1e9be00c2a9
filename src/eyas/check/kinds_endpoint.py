"""Kinds that a running server shows through its answers and figures."""

from __future__ import annotations

from eyas.check.kind import Kind

ENDPOINT_KINDS: dict[str, Kind] = {
    "endpoint.plain": Kind(
        "The server does not speculate",
        "Tokens per second of plain decoding; no figure of acceptance anywhere.",
        "The flag that switches speculation on is missing, or a schedule has switched it off at this load.",
        "endpoint: the server says so itself, or counts no round.",
        "`eyas check DRAFT --launch-command FILE` shows what the launch really runs.",
    ),
    "endpoint.none-accepted": Kind(
        "The server accepts nothing",
        "Accept length exactly 1.00, HTTP 200, the right text.",
        "Weights that are random or missing, a wrong vocabulary map, or another model in the draft's place.",
        "endpoint: no draft is accepted in at least 20 rounds.",
        "`eyas check DRAFT --target TARGET` looks at files, map and taps.",
    ),
    "endpoint.ceiling": Kind(
        "The server does not run the flags that it is said to run",
        "More or fewer drafts in a round than the flags resolve to.",
        "The server was started otherwise, or by another version, which resolves them differently.",
        "endpoint: drafts proposed in a round, and the longest round, against the flags.",
        "Give the command that really started it, with --engine and its version.",
    ),
    "endpoint.saturated": Kind(
        "The flags limit the accept length, not the draft",
        "The accept length sits just under its ceiling.",
        "Too few steps for a draft this good, or steps clamped in silence.",
        "endpoint: more than 95 % of the drafts that the flags allow are accepted.",
        "Draft more steps.",
    ),
    "endpoint.other-text": Kind(
        "The server says something else than the target",
        "Greedy answers differ from the target's own, from the first token or later on.",
        "Another model, chat template or quantisation is served; where only later tokens differ, near-ties in other"
        " arithmetic.",
        "endpoint: the returned tokens against the target's greedy continuation.",
        "Serve the target that the draft was trained for, with its template.",
    ),
    "endpoint.template": Kind(
        "The server writes chats otherwise than the target's own template",
        "As predicted on prompts given as tokens, and worse on chats; or fine on one prompt set and poor on another.",
        "--chat-template, a default system prompt, a thinking switch, or special tokens that are added a second time.",
        "endpoint: a few chats as the server's /tokenize gives them, or their length, against several renderings.",
        "Start the server with the target's own template and switches, or regenerate and train on what it writes.",
    ),
    "endpoint.mismatch": Kind(
        "The server runs the draft otherwise than declared",
        "The accept length is lower than the walk predicts.",
        "Another set of taps, norm, map or cache rule than the files declare: the hypothesis says which.",
        "endpoint: the accepted counts of each request against those that each hypothesis predicts for its text.",
        "Mend what the hypothesis names, then start the server again.",
    ),
    "endpoint.unexplained": Kind(
        "No hypothesis predicts what the server shows",
        "An accept length that none of the readings tried would give.",
        "A fault that is not in the list, figures of other traffic, sampling, or another version's definition.",
        "endpoint: even the best prediction misses the accepted counts.",
        "Send more prompts with nothing else running, greedily; then replay the witness.",
    ),
}
