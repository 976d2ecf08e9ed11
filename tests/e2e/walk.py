"""A program that walks: a number is drawn to `lr` in each step, which takes `seconds`."""

import json
import signal
import sys
import time
from pathlib import Path

source, to, start, stop, schedule, metrics, evaluate, seed, scale, seconds = sys.argv[1:]
start, stop = int(start), int(stop)
asked = set()
signal.signal(signal.SIGTERM, lambda *_: asked.add("stop"))
where = json.loads(Path(source).read_text())["where"] if source else float(seed)
rows = [json.loads(line) for line in Path(schedule).read_text().splitlines()]
file = open(metrics, "a")  # noqa: SIM115 - until the end


def say(step, **more):
    print(json.dumps({"step": step, **more}), file=file, flush=True)


def measure(step):
    if str(step) in evaluate.split(","):
        say(step, metrics={"where": where})


step = start
measure(step)
while step < stop and not asked:
    assert rows[step - start]["step"] == step
    time.sleep(float(seconds))
    where = where * 0.9 + float(scale) * rows[step - start]["lr"]
    step += 1
    say(step, log={"at": where})
    measure(step)
if step > start:
    Path(to).write_text(json.dumps({"where": where}))
