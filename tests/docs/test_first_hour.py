"""The pages are done as they say: their files are written, and their commands run in order, in an empty folder."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from docs_pages import DOCS, blocks
from page_reader import Reader

from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.checkpoints.weight_files import load_weights
from stagetree.trainer.divided_tensors import is_divided
from stagetree.trainer.ranks.group import Ranks

pytestmark = pytest.mark.slow(together=True)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    reader = Reader(tmp_path_factory.mktemp("reader"))
    yield reader
    reader.stop()


@pytest.fixture(scope="module")
def first_hour(reader: Reader) -> str:
    return reader.do("first-hour.md")


def test_first_hour(first_hour: str) -> None:
    preview = next(block.text for block in blocks(DOCS / "first-hour.md") if block.language == "text")
    assert first_hour.startswith(preview)
    assert "steps   60 if each trial were trained alone - 18 shared = 42 run" in first_hour
    assert "no server" not in first_hour


def test_rest_api(reader: Reader, first_hour: str) -> None:
    said = reader.do("rest-api.md")
    assert '"state":"cancelled"' in said.replace(" ", "")
    assert "stagetree_log_head" in said


def test_the_client_in_python(reader: Reader, first_hour: str) -> None:
    [example] = [block.text for block in blocks(DOCS / "rest-api.md") if block.language == "python"]
    (reader.folder / "client.py").write_text(example.replace("Client()", f'Client("{reader.url}")'))
    said = reader.run("python client.py")
    assert "StudyCompleted" in said and "trial=" in said


def test_the_trainers_of_the_page_pass_the_test_of_the_page(tmp_path: Path) -> None:
    for block in blocks(DOCS / "trainers.md"):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
    reader = Reader(tmp_path)
    assert "1 passed" in reader.run("python -m pytest -q -p no:cacheprovider --rootdir . test_trainer.py")
    reader.run("""python -c '
from parabola import Parabola
from walk import Walk
two = Parabola(seed=0, device="cpu", start=2.0)
two.setup({"lr": 0.5})
two.train()
assert two.evaluate() == {"loss": 0.0}
one, other = Walk(seed=0, device="cpu"), Walk(seed=0, device="cpu", start=3.0)
one.setup({"drift": 1.0})
one.train()
other.load_state_dict(one.state_dict())
assert other.evaluate() == one.evaluate()
'""")


DROPPED = """
name: dropped
trainer: dropped
metric: val_loss
mode: min
space: {lr: 0.01, dropout: {family: values, values: [0.0, 0.3], milestones: [2]}}
tuner: {kind: grid, max_steps: 4}
"""


def test_the_lightning_module_of_the_page_takes_its_dropout(tmp_path: Path) -> None:
    [trainer] = [block for block in blocks(DOCS / "trainers.md") if block.file == "dropped.py"]
    (tmp_path / "dropped.py").write_text(trainer.text)
    (tmp_path / "study.yaml").write_text(DROPPED)
    said = Reader(tmp_path).run("stagetree check study.yaml --trainers dropped.py")
    assert said.count("the same, bit for bit") == 3


def test_the_script_of_the_page_trains_by_hand(tmp_path: Path) -> None:
    [script] = [block.text for block in blocks(DOCS / "trainers.md") if "stagetree.attach(" in block.text]
    (tmp_path / "line.py").write_text(script)
    said = Reader(tmp_path).run("python line.py")
    assert said.startswith("step 40: loss ")
    assert float(said.split()[-1]) < 0.1


def test_the_trainers_with_shards_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the page learns by shards; its `train` sums the gradients of a trainer that has them."""
    line, train, shard = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    python = [block.text for block in blocks(DOCS / "several-gpus.md") if block.language == "python"]
    first, third, exchange, fourth, second = python
    exec(compile(first, "several-gpus.md", "exec"), line)
    trainer = line["Line"](seed=0, device="cpu")
    trainer.setup({"lr": 0.1, "bs": 64})
    before = trainer.evaluate()["val_loss"]
    trainer.train()
    assert trainer.evaluate()["val_loss"] < before

    exec(compile(third + fourth, "several-gpus.md", "exec"), shard)
    layer = torch.nn.TransformerEncoderLayer(4, 1, 4, batch_first=True)
    model = torch.nn.Sequential(OrderedDict(encoder=torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)))
    shard["shard"](None, model, Ranks.alone().mesh("cpu"))
    assert all(is_divided(each) for each in model.parameters())
    assert isinstance(shard["replicate"](None, torch.nn.Linear(1, 1)).module, torch.nn.Linear)
    torch.distributed.destroy_process_group()
    monkeypatch.chdir(tmp_path)
    state = {"trainer": {"model": {"out.weight": torch.arange(6.0)}}, "generators": {}, "machine": {}}
    fd, size = state_format.write(state)
    Path("state.safetensors").write_bytes(os.pread(fd, size, 0))
    os.close(fd)
    exec(compile(exchange, "several-gpus.md", "exec"), {})
    assert load_weights("weights.pt")["out.weight"].tolist() == [0, 1, 2, 3, 4, 5]

    exec(compile(second, "several-gpus.md", "exec"), train)
    weight = torch.nn.Parameter(torch.zeros(2))
    mine = SimpleNamespace(
        ranks=Ranks.alone(),
        model=SimpleNamespace(parameters=lambda: [weight]),
        optimizer=torch.optim.SGD([weight], lr=1.0),
        _gradients=lambda shard: [torch.full((2,), float(shard))],
    )
    train["train"](mine)
    assert weight.tolist() == [-28.0, -28.0]  # minus the sum of 0 to 7


@pytest.mark.parametrize("page", ["sequences.md", "spaces-and-studies.md"])
def test_python_in_the_pages_runs(page: str) -> None:
    for block in blocks(DOCS / page):
        if block.language == "python":
            exec(compile(block.text, page, "exec"), {})
