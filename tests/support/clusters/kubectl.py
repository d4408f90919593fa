"""Replaces kubectl: ``apply -f FILE`` runs the pods of an Indexed Job in turn, with this folder as
their volume.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml


def main() -> None:
    if sys.argv[1] != "apply":
        sys.exit(sys.argv[1] != "wait")
    job = yaml.safe_load(Path(sys.argv[3]).read_text())
    assert (job["kind"], job["apiVersion"], job["spec"]["completionMode"]) == (
        "Job",
        "batch/v1",
        "Indexed",
    )
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never", "backoffLimitPerIndex needs it"
    (container,) = pod["containers"]
    assert [each["mountPath"] for each in container["volumeMounts"]] == [container["workingDir"]]
    assert [each["name"] for each in container["volumeMounts"]] == [
        each["name"] for each in pod["volumes"]
    ]
    command = [*container["command"], *container["args"]]
    assert not any(re.search(r"\$\$|\$\(\w+\)", word) for word in command), (
        "Kubernetes would replace it itself"
    )
    for index in range(job["spec"]["completions"]):
        subprocess.run(command, env={**os.environ, "JOB_COMPLETION_INDEX": str(index)}, check=True)


main()
