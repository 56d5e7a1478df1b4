"""Jobs: work on whole topics that is done in steps, each of which counts once however often it is started.

Flow: a job asks its own record of what is done (a commit log beside its result, or a manifest) where it
stopped, plans the offsets of the next step, lets Spark make files in a staging folder, and publishes them
with one atomic rename. What a killed run left in staging is thrown away by the next one.

Invariants: a step is in the result wholly or not at all; offsets and result are published by the same
rename, so that they cannot disagree.

Not its job: talking to people. Jobs return values and report progress to a callback; `chronik.cli` prints.
"""
