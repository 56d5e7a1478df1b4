"""`make fuzz`: feed every door of a node for a while, or send the inputs of an earlier round again."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.fuzz.campaign import DOORS, Campaign
from tests.fuzz.inputs import Recording

MEASURE_S = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="repeat the inputs of an earlier run")
    parser.add_argument("--doors", nargs="+", choices=list(DOORS), default=list(DOORS))
    parser.add_argument("--round-seconds", type=float, default=30.0)
    parser.add_argument("--replay", type=Path, help="a file that a finding named")
    parser.add_argument("--folder", type=Path, help="where the node's files and the inputs of findings stay")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix="chronik-fuzz-"))
    print(f"fuzzing by --seed {seed} in {folder}", flush=True)
    with Campaign(folder, seed, judges_health=True) as campaign:
        campaign.measure(MEASURE_S)
        if given.replay is not None:
            campaign.replay(Recording.read(given.replay))
        else:
            campaign.run(given.minutes * 60, given.doors, given.round_seconds)
    print(campaign.summary())
    return 1 if campaign.findings else 0


if __name__ == "__main__":
    sys.exit(main())
