"""`palaestra export`: writes a trained policy into a folder that other programs can read."""

from __future__ import annotations

from palaestra.commands.runs import open_run
from palaestra.data import RunSetup
from palaestra.errors import RunFolderError, UnknownName, nearest
from palaestra.terminal import visible


def run(*, folder: str, out: str, policy: str | None, checkpoint: int | None) -> None:
    """Write the policy. A language policy becomes a Hugging Face folder.

    Args:
        folder: of the run. out: the folder to write.
        policy: its name. None: the only policy that the run trains; if it trains none, the only one with weights.
        checkpoint: iteration of the checkpoint; None: the newest.

    Raises: UnknownName, if the run has no such policy, or if it has several and `policy` is None; RunFolderError.
    """
    written = export(folder=folder, out=out, policy=policy, checkpoint=checkpoint)
    print(visible(f"wrote policy {written} to {out}"))


def export(*, folder: str, out: str, policy: str | None = None, checkpoint: int | None = None) -> str:
    """Write a policy, as `run` does. Returns its name."""
    _, setup = open_run(folder, checkpoint)
    setup.runner.close()
    name = chosen_policy(setup, policy, where=f"palaestra export {folder}")
    try:
        setup.policies[name].save(out)
    except OSError as error:
        what = f"it cannot be written: {error.strerror or error}."
        raise RunFolderError(where=out, what=what, remedy="Name a folder that can be made or written.") from error
    return name


def chosen_policy(setup: RunSetup, policy: str | None, *, where: str) -> str:
    """The policy of this name; None: the only one that is trained, or else the only one with weights.

    Raises: UnknownName, if there is none, or if there are several and `policy` is None.
    """
    learned = sorted(name for name, found in setup.policies.items() if found.module is not None)
    trained = [name for name in learned if setup.policies[name].trainable] or learned
    name = policy or (trained[0] if len(trained) == 1 else "")
    if name not in learned:
        raise UnknownName(
            where=where,
            what=f"the run has no policy `{name}`." if name else f"the run has trained {len(trained)} policies.",
            options=(nearest(name, learned) or learned) if name else trained,
            remedy="Name one with --policy.",
        )
    return name
