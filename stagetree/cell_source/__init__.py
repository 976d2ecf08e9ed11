"""The source of a trainer that lives in a notebook's cell or a script: a folder that a worker can run by itself.

It holds the class, what the class uses of the names around it, and copies of the user's own modules that it imports.
Its name is made of its content, so that changed code is another trainer.
"""

from __future__ import annotations

from stagetree.cell_source.folder import SourceFolder, source_of

__all__ = ["SourceFolder", "source_of"]
