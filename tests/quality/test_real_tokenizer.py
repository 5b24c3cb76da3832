"""All fifty prompts and the needles, with the embedded model's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Sequence
from pydoc_data.topics import topics
from typing import Any, cast

import pytest

from harness.engines import embedded
from harness.quality.client import EngineClient
from harness.quality.prompts import exact_prompt
from harness.workload.corpus import needle_drafts, passages, prose, task_drafts

#: The embedded model has to be there, though nothing is started.
pytestmark = pytest.mark.engine

SOURCES = passages(prose(topics))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(embedded.ensure("smollm2-135m-instruct"))


class Direct:
    """vLLM's ``/tokenize`` and ``/detokenize`` as they answer, without the way there and back."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def tokenize(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def tokenize_chat(self, messages: Sequence[tuple[str, str]]) -> tuple[int, ...]:
        listed = [{"role": role, "content": content} for role, content in messages]
        return tuple(
            self._tokenizer.apply_chat_template(
                listed, add_generation_prompt=True, return_dict=False
            )
        )

    def detokenize(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens))


@pytest.fixture(scope="module")
def client(tokenizer: Any) -> EngineClient:
    return cast("EngineClient", Direct(tokenizer))


# The last is the CUDA profile's length, the third that of the CPU's.
@pytest.mark.parametrize("length", [128, 333, 384, 1000, 8192])
def test_all_fifty_prompts_have_exactly_the_asked_length(
    client: EngineClient, tokenizer: Any, length: int
) -> None:
    drafts = list(task_drafts(SOURCES, 50, length * 8, seed=0))
    made = [exact_prompt(client, n, draft, length) for n, draft in enumerate(drafts)]
    assert {len(prompt.prompt_token_ids) for prompt in made} == {length}
    assert {prompt.source for prompt in made} == {f"passage {n}" for n in range(1, 51)}
    # Fifty passages make fifty texts: no two share more than the template and some words.
    assert len({prompt.passage[:60] for prompt in made}) == 50
    for draft, prompt in zip(drafts, made, strict=True):
        text = tokenizer.decode(prompt.prompt_token_ids)
        assert text.startswith("<|im_start|>system\n")
        assert text.endswith(f"{draft.instruction}<|im_end|>\n<|im_start|>assistant\n")
        for fact in draft.facts:
            assert fact.sentence in text


@pytest.mark.parametrize("context", [256, 896, 4096])
def test_every_needle_stands_at_its_depth_in_a_text_of_exact_length(
    client: EngineClient, context: int
) -> None:
    for draft in needle_drafts(SOURCES, [context], [0.0, 0.5, 1.0], 8, seed=0):
        made = exact_prompt(client, 0, draft, context)
        assert len(made.prompt_token_ids) == context
        needle = next(f.sentence for f in draft.facts if draft.expected[0] in f.sentence)
        before, _, after = made.passage.partition(needle)
        assert draft.depth is not None
        share = len(before) / (len(before) + len(after))
        assert share == pytest.approx(draft.depth, abs=0.12)
