"""The chapter's claims that scenarios cite, in our own words, with what is wrong about them.

Source: the KV-cache chapter that this project puts to the test; the numbering is ours. An erratum
says what the chapter's own formula gives where its printed figures don't agree with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim; ``erratum`` is None where nothing is known to be wrong with it."""

    number: str
    text: str
    erratum: str | None = None


_CLAIMS = (
    Claim(
        "C1",
        "Without a cache every new token computes the keys and values of all earlier tokens again, "
        "so that a sequence of N tokens costs in the order of N²; with one, each step costs in the "
        "order of N. 500 tokens after a prompt of 1,000 would be some 750,000 needless "
        "computations.",
    ),
    Claim(
        "C2",
        "KV memory is 2 × layers × KV heads × head size × tokens × bytes per element.",
    ),
    Claim(
        "C3",
        "Llama 3 8B in FP16 takes 128 MB, 512 MB, 2 GB and 8 GB at 2K, 8K, 32K and 128K tokens.",
        "Wrong by a factor of two: the chapter's own formula gives 256 MiB, 1, 4 and 16 GiB "
        "(131,072 bytes per token).",
    ),
    Claim(
        "C4",
        "An 80 GB A100 has about 62 GB left beside weights and overhead: 496, 124, 31 and 7 "
        "requests of those lengths at once.",
        "Twice too many, for the same reason: 248, 62, 15 and 3.",
    ),
    Claim(
        "C5",
        "At long contexts and moderate concurrency the cache is what runs out, not the weights.",
    ),
    Claim(
        "C6",
        "Reserving the longest length for every request wastes most of the memory: requests of "
        "500, 2,000 and 100 tokens in reservations of 32K leave 97 % empty.",
    ),
    Claim(
        "C7",
        "PagedAttention hands out blocks of typically 16 tokens on demand and serves 2 to 4 times "
        "the throughput of the transformers baseline, since more requests fit.",
    ),
    Claim(
        "C8",
        "A shared prefix is stored once: 100 requests with one system prompt of 1,000 tokens hold "
        "it once, not 100 times.",
    ),
    Claim(
        "C9",
        "gpu_memory_utilization is the share of memory for weights and block pool; 0.90 keeps 10 % "
        "back.",
    ),
    Claim(
        "C10",
        "One KV head for all query heads (MQA) cuts the cache to 1/32 and can hurt quality; 8 KV "
        "heads for 32 (GQA) cut it to a quarter at almost no loss. At 8K tokens: 2,048, 512 and "
        "64 MB.",
        "Half of what the formula gives: 4,096, 1,024 and 128 MiB. The ratios are right.",
    ),
    Claim(
        "C11",
        "FP8 halves the cache and INT4 quarters it, at minimal loss, with one flag; FP8 is always "
        "a good default. At 32K tokens: 2 GB against 1 GB.",
        "Half of what the formula gives: 4 and 2 GiB. The ratio is right.",
    ),
    Claim(
        "C12",
        "Few tokens get most of the attention: keeping the first ones and a recent window, or "
        "those with most attention so far, saves 2 to 4 times; quality depends on the policy.",
    ),
    Claim(
        "C13",
        "A sliding window (4,096 tokens in the first Mistral) caps the cache at the window; what "
        "lies before it acts only indirectly.",
    ),
    Claim("C14", "Offloading KV to host memory frees GPU memory and adds latency."),
    Claim(
        "C15",
        "Choosing: quantisation saves 2 times at minimal loss with one flag; a window caps the "
        "cache at moderate loss over long ranges and belongs to the model; eviction saves 2 to 4 "
        "times by its policy at medium effort; offloading frees GPU memory for latency. Start with "
        "FP8 and paging.",
    ),
)
CLAIMS: Mapping[str, Claim] = MappingProxyType({claim.number: claim for claim in _CLAIMS})


def claims(numbers: Iterable[str]) -> tuple[Claim, ...]:
    """The claims of these numbers, in the order given; an unknown number is left out."""
    return tuple(CLAIMS[number] for number in numbers if number in CLAIMS)
