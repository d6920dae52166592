"""`palaestra export`: a trained policy as a folder that other programs read."""

from __future__ import annotations

from palaestra.commands.evaluate import open_run
from palaestra.errors import UnknownName, nearest


def run(*, folder: str, out: str, policy: str | None, checkpoint: int | None) -> None:
    """Write the policy. A language policy becomes a Hugging Face folder.

    Raises: UnknownName, if the run has no such policy or several and none was named.
    """
    _, world = open_run(folder, checkpoint)
    world.runner.close()
    learned = sorted(name for name, found in world.policies.items() if hasattr(found, "module"))
    name = policy or (learned[0] if len(learned) == 1 else "")
    if name not in learned:
        raise UnknownName(
            where=f"palaestra export {folder}",
            what=f"the run has no policy `{name}`." if name else f"the run has {len(learned)} policies.",
            options=nearest(name, learned) or learned,
            remedy="Name one with --policy.",
        )
    world.policies[name].save(out)
    print(f"wrote policy {name} to {out}")
