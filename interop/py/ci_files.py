"""Does what a CI service or an image builder does with the files of `dist/`.

    ci_files.py action|gitlab FILE NAME=VALUE... -- STEP
    ci_files.py image FILE NAME=VALUE... -- BEFORE...

A STEP is a shell line of a user's job. An image is built on the root of the file system in place of
its base; instructions that fetch packages are left out, since the root has them. Its program is
started by the words BEFORE.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml


def substituted(text, inputs):
    """An expression of a workflow, of the only kind that the action uses."""
    return re.sub(r"\$\{\{ *inputs\.(\w+) *\}\}", lambda found: inputs[found[1]], text)


def action(file, given, step):
    described = yaml.safe_load(file.read_text())
    assert described["runs"]["using"] == "composite"
    inputs = {}
    for name, about in described["inputs"].items():
        assert name in given or not about["required"], f"{name} is required"
        inputs[name] = given.get(name, about.get("default", ""))
    assert given.keys() <= inputs.keys()
    steps = described["runs"]["steps"] + [{"run": step, "shell": "bash"}]
    with tempfile.TemporaryDirectory() as temporary:
        variables = {**os.environ, "RUNNER_TEMP": temporary}
        for number, each in enumerate(steps):
            assert each["shell"] == "bash"
            files = {name: Path(temporary, f"{name}-{number}") for name in ("ENV", "PATH")}
            for name, path in files.items():
                path.touch()
                variables[f"GITHUB_{name}"] = str(path)
            own = {name: substituted(value, inputs) for name, value in each.get("env", {}).items()}
            script = Path(temporary, "step.sh")
            script.write_text(each["run"])
            shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", script]
            subprocess.run(shell, env={**variables, **own}, check=True)
            for line in files["PATH"].read_text().splitlines():
                variables["PATH"] = f"{line}:{variables['PATH']}"
            for line in files["ENV"].read_text().splitlines():
                name, _, value = line.partition("=")
                variables[name] = value


def gitlab(file, given, step):
    template = yaml.safe_load(file.read_text())[".peerdma"]
    assert given.keys() <= template["variables"].keys()
    with tempfile.TemporaryDirectory() as project:
        variables = {"CI_PROJECT_DIR": project, **template["variables"], **given}
        script = "\n".join([*template["before_script"], step])
        shell = ["bash", "-eo", "pipefail", "-c", script]
        subprocess.run(shell, env={**os.environ, **variables}, cwd=project, check=True)


def image(file, given, before):
    text = re.sub(r"\\\n", "", file.read_text())
    lines = [line.split(" ", 1) for line in text.splitlines() if line and line[0] != "#"]
    assert lines[0][0] == "FROM"
    variables, user, where, program = dict(os.environ), None, "/", None
    for word, rest in lines[1:]:
        # The shell of RUN has the variables itself.
        known = re.sub(r"\$\{(\w+)\}", lambda found: variables[found[1]], rest)
        if word == "ARG":
            variables[rest] = given[rest]
        elif word == "COPY":
            source, target = known.split()
            subprocess.run(["cp", f"/{source}", target], check=True)
        elif word == "RUN":
            if not rest.startswith("apt-get "):
                subprocess.run(["sh", "-c", rest], env=variables, check=True)
        elif word == "ENV":
            name, _, value = known.partition("=")
            variables[name] = "".join(shlex.split(value))
        elif word == "USER":
            user = rest.split(":")
        elif word == "WORKDIR":
            where = rest
        elif word == "CMD":
            program = yaml.safe_load(rest)
        else:
            raise ValueError(f"{word} is not understood here")
    ids = [f"--reuid={user[0]}", f"--regid={user[1]}", "--clear-groups", "--bounding-set=-all"]
    # The program has the image's variables; what starts it has none of them.
    image_only = [f"{name}={value}" for name, value in variables.items()]
    command = ["setpriv", *ids, *before, "env", "-i", *image_only, *program]
    subprocess.run(command, cwd=where, check=True)


def main():
    kind, file, *words = sys.argv[1:]
    split = words.index("--")
    given = dict(word.split("=", 1) for word in words[:split])
    last = words[split + 1 :]
    if kind == "image":
        image(Path(file), given, last)
    else:
        {"action": action, "gitlab": gitlab}[kind](Path(file), given, *last)


if __name__ == "__main__":
    main()
