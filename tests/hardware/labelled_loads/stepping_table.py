"""Jobs of one GPU whose steps are read, and work without steps. No PyTorch here."""

from typing import Any

from tests.hardware.labelled_loads.load import EVENTS, LabelledLoad, declared


def _job(name: str, function: str, **parameters: Any) -> LabelledLoad:
    return declared(name, f"stepping_alone.{function}", EVENTS, **parameters)


STEPPING = (
    _job("step-language", "training", task="language", batch=32, healthy=True),
    _job("step-accumulating", "training", task="language", batch=16, accumulate=4, healthy=True),
    _job("step-long", "training", task="language", batch=32, accumulate=8, healthy=True),
    _job("step-graphs", "training", task="graphs", nodes=200_000, edges=6_000_000, spread=0.0),
    _job("step-diffusion", "averaging", batch=192, share=0.01, healthy=True),
    _job("step-half", "scaled_half", batch=24, healthy=True),
    _job("step-adversarial", "adversarial", batch=256, rounds=2, healthy=True),
    _job("step-recurrent", "recurrent", batch=512, length=512, width=1024, layers=4),
    _job("step-bodies", "bodies", count=32_768, moves=20, healthy=True),
    _job("step-validating", "validating", batch=256, every=50, passes=12, healthy=True),
    _job("step-jittering", "jittering", batch=256, pause=0.06, spread=0.25),
    _job("step-towers", "towers", batch=1024, width=768, layers=8, healthy=True),
    _job("any-length", "lengths", batch=24, pulse=False),
    _job("any-batch", "batches", most=512, pulse=False),
    _job("any-passes", "sampling", batch=256, most=40, healthy=True, pulse=False),
    _job("notebook", "notebook", longest=2.0, pause=2.0, pulse=False),
)
"""The twelve have steps, the four have none; the agent told them once without having been made
with them, and two rules were changed after that."""

STEPPING_AGAIN = (
    _job("again-language", "training", task="language", batch=64, layers=8, width=1024),
    _job("again-images", "training", task="images", batch=384),
    _job("again-graphs", "training", task="graphs", nodes=100_000, edges=9_000_000, spread=0.0),
    _job("again-diffusion", "averaging", batch=448, share=0.01),
    _job("again-half", "scaled_half", batch=56),
    _job("again-adversarial", "adversarial", batch=160, rounds=1),
    _job("again-recurrent", "recurrent", batch=256, length=384, width=1536, layers=6),
    _job("again-towers", "towers", batch=768, width=1024, layers=10),
    _job("other-passes", "sampling", batch=128, most=90, pulse=False),
)
"""The same with other sizes, after those rules were frozen."""
