"""`use`: which cluster repository verbs work on from any folder."""

from __future__ import annotations

import click

from reconciler.errors import NotFound


@click.command()
@click.argument("url", required=False)
@click.option("--none", "nothing", is_flag=True, help="Use none any more.")
def use(url: str | None, *, nothing: bool) -> None:
    """Work on the cluster repository at URL from any folder; without URL, say which one is in use.

    A clone without file contents is kept in your cache folder, and brought up to date by each verb. Standing in a clone
    of a cluster repository, or naming one with -C, goes before it.
    """
    from reconciler.runtime.used import Folders, forget, used
    from reconciler.runtime.used import use as use_url

    folders = Folders.of_user()
    if nothing:
        forget(folders)
        return
    if url is not None:
        folder = use_url(folders, url)
        click.echo(f"using {url}")
        click.echo(f"its clone is {folder}", err=True)
        return
    now = used(folders)
    if not now:
        raise NotFound("no cluster repository is in use", code="NothingInUse", remedy="gangops use URL")
    click.echo(now)
