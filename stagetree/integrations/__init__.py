"""Modules written for other frameworks, trained exactly: their models and losses, in our loop.

Import what you need from `stagetree.integrations.lightning` or `stagetree.integrations.huggingface`.
"""
