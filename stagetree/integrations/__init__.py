"""Modules written for other frameworks, trained exactly: their models and losses, in our loop.

Lightning, Transformers and PEFT import torchvision, which fails beside a torch for CPUs until we have been there. In a
trainer's process we have; elsewhere, import what you need from here before them.
"""

from stagetree.vision import prepare_torchvision

prepare_torchvision()
