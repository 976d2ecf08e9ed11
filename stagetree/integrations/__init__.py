"""Modules written for other frameworks, trained exactly: their models and losses, in our loop.

Import what you need from `stagetree.integrations.lightning` or `stagetree.integrations.huggingface`, before Lightning,
Transformers or PEFT themselves: both import torchvision, which fails beside a torch for CPUs until we have been there.
"""

from contextlib import suppress

from stagetree.vision import import_torchvision

with suppress(ImportError):
    import_torchvision()
