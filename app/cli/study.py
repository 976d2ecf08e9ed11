"""`stagetree study` and `environment`: a study with its result, and the software that it is trained with."""

from __future__ import annotations

from app.cli.options import Output, Server, Store, StudyId
from app.cli.output import Format, escape_control, one_line, print_json
from app.cli.service import open_study
from app.cli.watch import headline, print_study


def study(id: StudyId, server: Server = None, dir: Store = None, output: Output = Format.table) -> None:
    """Show a study: its progress, its best trials, its cost, and failed trials.

    \b
    Example:  stagetree study last
    """
    with open_study(id, server, dir) as (service, name):
        document = service.client.study(name)
        if output is Format.table:
            print(headline(document), end="\n\n")
        print_study(service, document, output, is_strict=False)


def environment(id: StudyId, server: Server = None, dir: Store = None, output: Output = Format.table) -> None:
    """Show what a study is trained with: packages, driver, and the commit and the changes of the trainer's repository.

    \b
    Example:  stagetree environment last
    """
    with open_study(id, server, dir) as (service, study):
        answer = service.client.environment(study)
    if output is Format.json:
        print_json(answer)
        return
    for about in answer["devices"]:
        trainer, packages = about.get("trainer", {}), about.get("packages", {})
        print(f"device    {one_line(about['device'])}" + (f", driver {about['driver']}" if about.get("driver") else ""))
        print(f"python    {about.get('python')} on {one_line(str(about.get('platform')))}")
        print(f"torch     {about.get('torch')}")
        if commit := trainer.get("commit"):
            print(f"commit    {commit}{', changed since' if trainer['is_changed'] else ''}")
        print(f"trainer   {one_line(str(trainer.get('file')))}")
        for name, version in packages.items():
            print(f"package   {one_line(f'{name} {version}')}")
        if diff := trainer.get("diff"):
            print(f"\n{escape_control(diff).rstrip()}")
