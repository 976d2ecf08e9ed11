"""A client whose answers are plain documents, as a store's are, whatever types the client itself gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagetree.client import Client


class Documents:
    """What a client can do, with documents for answers."""

    def __init__(self, client: Client) -> None:
        self._client, self.url = client, client.url
        self.place = f"--server {client.url}"

    def check_work(self) -> None:
        """Whoever asks a server hears from itself what it lacks."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        return lambda *arguments, **options: document(method(*arguments, **options))


def document(answer: Any) -> Any:
    """An answer as the JSON that it was; of several, each."""
    if isinstance(answer, Iterator):
        return map(document, answer)
    if isinstance(answer, list):
        return [document(item) for item in answer]
    return answer.to_json() if hasattr(answer, "to_json") else answer
