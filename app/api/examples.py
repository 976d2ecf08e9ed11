"""Examples of answers for the OpenAPI document."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

HP = {"lr": {"family": "multistep", "init": 0.1, "milestones": [20, 30], "gamma": 0.1}, "bs": 64}
NODE = "5f0c3a1be2d94c7788a1c2d3e4f50617"

STUDY_FILE: Json = {
    "name": "digits-grid",
    "trainer": "digits",
    "trainer_args": {"width": 32},
    "seed": 0,
    "metric": "val_accuracy",
    "mode": "max",
    "eval_every": 10,
    "space": {"lr": [HP["lr"], 0.1], "bs": [64, {"family": "values", "values": [64, 128], "milestones": [24]}]},
    "tuner": {"kind": "grid", "max_steps": 40},
}
RESULTS: Json = {"last": {"step": 40, "value": 0.9889}, "best": {"step": 30, "value": 0.9917}}
TRIAL: Json = {
    "trial": 3,
    "state": "completed",
    "standing": "trained to step 40",
    "steps": 40,
    "trained": 40,
    "value": 0.9889,
    **RESULTS,
    **dict.fromkeys(("rung", "rank")),
    "hp": HP,
}
TRIAL_DETAIL: Json = {
    **TRIAL,
    "asked": [10, 40],
    "reason": {"by": "tuner"},
    "decisions": ["asked for step 40: rank 1 of 9, the best 3 are promoted"],
    "path": [NODE],
    "starts": [0],
    "repeats": [],
    "curve": [{"step": 10, "metrics": {"val_accuracy": 0.91}}],
    "not_exact": [],
    "notes": [],
}
LISTED: Json = {"study": "digits-grid-3f9c1a", "name": "digits-grid", "state": "running", "submitted_at": 1789000000.0}
LISTED |= {"plan": "plan-0f6a2c9d8b7e4a51", "slots": {"used": 2, "due": 1.5}, "tags": ["paper"]}
UNDER_WAY: Json = {"slot": "gpu0", "members": [], "study": "digits-grid-3f9c1a", "node": NODE, "start": 20, "end": 40}
UNDER_WAY |= {"step": 31, "since": 1789000100.0, "proof": None, "trials": [3, 4], "trial_count": 2}
UNDER_WAY["forms"] = {"bs": "64", "lr": "0.1"}
PROGRESS: Json = {
    "trials": {"done": 1, "resting": 0, "expected": 4},
    "steps": {"done": 82, "expected": 104},
    "seconds_left": 2.2,
    "rungs": [],
    "last": None,
    "running": [UNDER_WAY],
}
COST: Json = {
    "alone": 160,
    "stopped_early": 0,
    "unfinished": 49,
    "shared": 40,
    "known": 0,
    "repeated": 0,
    "retried": 0,
    "lost": 0,
    "struck": 0,
    "run": 71,
    "taken": 111,
    "spared": 40,
    "saved_by_sharing": 0.3604,
    "saved_by_stopping": 0.0,
}
NOTE: Json = {"event": 42, "time": 1789000004.2, "trial": 3, "text": "diverges after the warm-up", "by": "ann"}
NOTE |= {"corrected_at": None}
BEST = "Best so far: trial 3, val_accuracy 0.9889 at step 40, the highest of 2 results."
SAVED = "1 other trial shares its first 20 steps; sharing has saved about 4 s of slot time so far (40 steps)."
STORY: Json = {"lines": [BEST, SAVED], "results": 2, "as_far": 2, "equal": [], "sharers": 1, "shared_beginning": 20}
STORY |= {"within_noise": [], "noise": "", "question": "Which lr and bs give the highest val_accuracy?"}
STORY |= {"steps_by_sharing": 40, "seconds_by_sharing": 4.06, "steps_by_stopping": 0, "seconds_by_stopping": 0.0}
STUDY: Json = {
    "study": "digits-grid-3f9c1a",
    "name": "digits-grid",
    "state": "running",
    "story": STORY,
    "error": None,
    "not_exact": ["2 stages resumed under another torch (2.13.0 after 2.12.0)"],
    "exactness": {
        "verdict": "unchecked",
        "text": "unchecked: trial 3 resumed from the state of step 20, which was not compared",
        "mark": "unchecked: trial 3 resumed from the state of step 20, which was not compared",
        "reason": "trial 3 resumed from the state of step 20, which was not compared",
        "unchecked": [20],
        "compared": 1,
        "isolated": False,
        "audited": False,
        "proof_steps": 7,
    },
    "unread": [],
    "ending": None,
    "metric": "val_accuracy",
    "mode": "max",
    "value": "last",
    "tuner": "grid",
    "best": {"trial": 3, "value": 0.9889, "steps": 40, "hp": HP, **RESULTS},
    "counts": {"waiting": 1, "running": 2, "completed": 1, "pruned": 0, "failed": 0, "cancelled": 0},
    "steps": {"requested": 160, "unique": 104, "executed": 71},
    "failed": 0,
    "failures": [],
    "cost": COST,
    "merge_rate": 1.538,
    "gpu_seconds": 7.2,
    "wall_seconds": 4.1,
    "submitted_at": 1789000000.0,
    "finished_at": None,
    "slots": {"used": 2, "due": 1.5},
    "progress": PROGRESS,
    "notes": [NOTE],
    "tags": ["paper"],
    "attributes": {"dataset": "v3"},
    "spec": STUDY_FILE,
    "trials": [TRIAL],
}
BLOCKS: Json = {"seconds": 20.0, "steps": 40, "slot": [0], "begun": [0.0], "ended": [20.0]}
BLOCKS |= {"trials": [2], "again": [False]}
EVENT: Json = {"position": 42, "version": 17, "type": "Evaluated", "at": 1789000004.2, "by": ""}
EVENT |= {"data": {"node": NODE, "step": 40, "metrics": {"val_accuracy": 0.9889}}}
PREVIEW: Json = {"trials": 32, "requested": 1280, "unique": 608, "merge_rate": 2.105, "alone": 1280, "slots": 2}
PREVIEW |= {"saved_by_sharing": 0.525, "saved_by_stopping": 0.0, "critical_path_steps": 40, "makespan_steps": 304}
PREVIEW |= {"time": {"slot_seconds": 91.0, "makespan_seconds": 46.0, "error": 0.08, "settings": 12}, "advice": []}
PREVIEW |= {"memory": [{"gpu": "NVIDIA H100 80GB HBM3", "bytes": 11811160064, "seen": 2, "sizes": 2}]}
PREVIEW["choices"] = [{"field": "bs", "value": bs, "trials": 16, "steps": 304} for bs in (64, 128)]
NODE_EXAMPLE: Json = {
    "id": NODE,
    "parent": None,
    "start": 0,
    "forms": {"bs": "64", "lr": "0.1"},
    "studies": ["digits-grid-3f9c1a"],
    "checkpoints": [20],
    "metrics": [{"step": 20, "metrics": {"val_accuracy": 0.95}}],
    **{name: [] for name in ("waiting", "running")},
}
STAGE: Json = {"node": NODE, "start": 20, "end": 40, "parent": None, "ready": True}
SLOT: Json = {
    "name": "gpu0",
    "device": "cuda:0",
    "host": "node-1",
    "state": "busy",
    **dict.fromkeys(("note", "quarantined_until")),
    "trainers": {"digits": "9c0ffee1d2b3a456"},
    "chain": "c1",
    "stage": {"node": NODE, "start": 20, "end": 40, "step": 31},
    "study": "digits-grid-3f9c1a",
    "seen_at": 1789000004.0,
}
REPLAY: Json = {
    "study": "digits-asha-3f9c1a",
    "identical": True,
    "events": 214,
    "decisions": 41,
    "state": "completed",
    "best": {"trial": 3, "value": 0.97, "steps": 60},
    "steps": {"requested": 600, "unique": 412, "executed": 412},
    "plan": [{"node": NODE, "parent": None, "start": 0, "asked": 15, "checkpoints": [1, 15], "evaluated": [15]}],
    "rungs": [{"bracket": 0, "rung": 0, "trials": [{"trial": 3, "value": 0.91, "steps": 15, "promoted": True}]}],
    "history": [
        {
            "event": 12,
            "kind": "promote",
            "trial": 3,
            "rung": 1,
            "steps": 60,
            "reason": {"rung": 1, "rank": 1, "cut": 1, "of": 4, "loss": -0.91},
        }
    ],
}
IMAGINED: Json = {
    "study": "digits-asha-3f9c1a",
    "changes": {"tuner.reduction_factor": 2},
    "trials": 40,
    "requested": 480,
    "unique": 390,
    "saved": 8,
    "needed": 12,
    "not_known": 3,
    "best": {"trial": 3, "value": 0.97, "steps": 60},
}
TREE: Json = {
    "count": 1,
    "nodes": {
        "id": [NODE],
        "parent": [-1],
        "start": [0],
        "end": [40],
        "trained": [20],
        "trials": [2],
        "running": [[[20, 40]]],
        "checkpoints": [[20]],
        "steps": [[20]],
        "values": [[0.91]],
        "means": [[]],
    },
    "forms": [{"bs": "64", "lr": "0.1"}],
    "trials": {
        "node": [0, 0],
        "steps": [20, 40],
        "state": ["completed", "active"],
        "average_of": [[], []],
        "repeats": [[], []],
    },
}
RUNG: Json = {"bracket": 0, "rung": 0, "steps": 20, "entered": 2, "trials": [1, 0], "values": [0.91, 0.9]}
TIMELINE: Json = {
    "count": 1,
    "at": 1789000009.0,
    "spans": {
        "slot": ["gpu0"],
        "members": [[]],
        "node": [NODE],
        "start": [0],
        "end": [20],
        "own": [True],
        "begun": [4],
        "ended": [5],
        "begun_at": [1789000001.0],
        "ended_at": [1789000009.0],
        "outcome": ["done"],
        "proof": [None],
    },
    "marks": {"position": [6], "at": [1789000009.0], "kind": ["evaluated"], "span": [0], "step": [20]},
}
HISTORY: Json = {
    "position": 6,
    "at": 1789000009.0,
    "decisions": {
        "position": [7],
        "kind": ["stop"],
        "trial": [0],
        "steps": [None],
        "reason": [{"rung": 0, "rank": 2, "of": 2, "cut": 1}],
    },
    "best": [{"position": 6, "at": 1789000009.0, "slot_seconds": 8.0, "trial": 1, "step": 20, "value": 0.91}],
    "times": [[1, 1789000000.0], [6, 1789000009.0]],
}
TOKEN: Json = {"name": "ci", "scope": "submit", "project": "vision", "created_at": 1789000000.0}
TOKEN |= {"expires_at": 1796776000.0, "used_at": 1789000060.0, "revoked_at": None}
IMPORTANCE = {"name": "hp.lr", "importance": 1.0, "interval": [0.97, 1.0]}
PLAN: Json = {"plan": "plan-0f6a2c9d8b7e4a51", "trainer": "digits", "trainer_version": "1", "seed": 0}
PLAN |= {"trainer_args": {"width": 32}, "studies": ["digits-grid-3f9c1a"], "nodes": [NODE_EXAMPLE]}
READY = dict.fromkeys(["database", "schema", "broker", "store", "scheduler", "slots"], "ok")


def _page(item: Json, more: str | None = None) -> Json:
    return {"items": [item], "next_cursor": more}


EXAMPLES: dict[str, Json] = {
    "Columns": {"count": 2, "columns": {"trial": [0, 1], "value": [0.98, None], "hp.lr": [0.1, 0.2]}},
    "Demand": {"at": 1789000009.0, "busy": 3, "more": 5, "wanted": 8, "idle": [], "more_by_kind": {"H100": 4, "": 1}},
    "Environments": {"devices": [{"device": "cpu", "python": "3.11.7", "torch": "2.13.0", "packages": {}}]},
    "Event": EVENT,
    "EventPage": _page(EVENT, "17"),
    "Health": {"status": "ok"},
    "History": HISTORY,
    "Imagined": IMAGINED,
    "Importance": {"method": "PED-ANOVA", "rung": 0, "trials": 32, "note": None, "items": [IMPORTANCE]},
    "Listed": LISTED,
    "Logged": {"items": [{"step": 7, "metrics": {"train_loss": 0.41}, "node": "0f3a"}]},
    "Note": NOTE,
    "Plan": PLAN,
    "Preview": PREVIEW,
    "Readiness": {"status": "ok", "checks": READY},
    "Replay": REPLAY,
    "Rungs": {"items": [RUNG | {"promoted": [1]}], "telling": 0},
    "Schedules": {"items": [{"name": "lr", "steps": [0, 20], "values": [0.1, 0.01], "text": "0.1 → 0.01"}]},
    "SlotPage": _page(SLOT),
    "Branch": {"steps": 30, "shared": 20, "new": 10, "again": 0, "trial": TRIAL_DETAIL},
    "StageTree": {"stages": [STAGE], "critical_path_steps": 20},
    "Study": STUDY,
    "SamplerState": {"sampler": "tpe", "step": 5, "results": 12, "next": None, "text": ["..."], "refuses": ""},
    "Suggestions": {"items": [{"suggestion": 0, "hp": {"lr": 0.1}, "by": "ann", "at": 1789000000.0, "trial": 7}]},
    "StudyPage": _page(LISTED, "digits-grid-3f9c1a"),
    "SideBySide": {"slots": 1, "seconds_per_step": 0.5, "shared": BLOCKS, "alone": BLOCKS, "text": "With sharing, ..."},
    "Timeline": TIMELINE,
    "Session": {"name": "ci", "scope": "submit", "project": "vision"},
    "NewToken": {"token": "stagetree_0Jx3...", "name": "ci"},
    "TokenPage": _page(TOKEN),
    "TrainerPage": _page({"name": "digits", "version": "1"}),
    "Tree": TREE,
    "Trial": TRIAL,
    "TrialBatch": {"items": [TRIAL_DETAIL]},
    "TrialDetail": TRIAL_DETAIL,
    "TrialPage": _page(TRIAL),
}
"""Examples by the name of the object in the document."""
