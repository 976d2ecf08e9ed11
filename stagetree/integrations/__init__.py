"""Trains models written for other frameworks exactly: by our loop, or in turn with the framework's own.

Lightning, Transformers and PEFT import torchvision, which fails beside a CPU-only torch unless it is prepared. In a
trainer's process it is; elsewhere, import from here before importing them.
"""

from stagetree.vision import prepare_torchvision

prepare_torchvision()
