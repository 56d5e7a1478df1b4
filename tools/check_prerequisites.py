"""Programs that the tests call and that pip cannot install: present, or installed, or one clear sentence.

Where the user may install Debian packages (root, apt-get on the PATH), a missing program is installed.
Runs on the standard library alone, before anything else is set up.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass

JAVA_MAJOR_MIN = 17
GO_MINOR_MIN = 21
"""From here on Go fetches the toolchain that a module asks for."""


@dataclass(frozen=True)
class Program:
    """One prerequisite: any of `commands` will do; `packages` is what Debian calls it."""

    name: str
    commands: tuple[str, ...]
    packages: tuple[str, ...]
    needed_for: str

    def missing(self) -> str | None:
        """Why this program is not good enough, or None when it is."""
        if not any(shutil.which(command) for command in self.commands):
            return f"{self.name} is not installed"
        if self.name == "Java":
            major = java_major()
            if major < JAVA_MAJOR_MIN:
                return f"Java {major} is too old, {JAVA_MAJOR_MIN} or later is needed"
        if self.name == "Go":
            minor = go_minor()
            if minor < GO_MINOR_MIN:
                return f"Go 1.{minor} is too old, 1.{GO_MINOR_MIN} or later is needed"
        return None


PROGRAMS = (
    Program(
        "Java", ("java",), ("openjdk-17-jdk-headless",), "Apache Kafka's own clients and tools, and for Spark"
    ),
    Program(
        "A Java compiler",
        ("javac",),
        ("openjdk-17-jdk-headless",),
        "programs of the tests that use Apache Kafka's libraries",
    ),
    Program("Maven", ("mvn",), ("maven",), "fetching Apache Kafka's jars"),
    Program(
        "Chromium",
        ("chromium", "chromium-browser", "google-chrome"),
        ("chromium", "chromium-driver"),
        "the console's browser tests",
    ),
    Program("Go", ("go",), ("golang-go",), "the round trips of Go's Kafka clients"),
    Program("Node.js", ("node",), ("nodejs",), "the round trip of kafkajs"),
    Program("npm", ("npm",), ("npm",), "fetching kafkajs"),
    Program("kcat", ("kcat",), ("kcat",), "the round trip of kcat"),
    Program("OpenSSL", ("openssl",), ("openssl",), "the certificate that the TLS tests use"),
)


def java_major() -> int:
    result = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)(?:\.(\d+))?', result.stderr + result.stdout)
    if match is None:
        return 0
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major


def go_minor() -> int:
    result = subprocess.run(["go", "version"], capture_output=True, text=True, check=False)
    match = re.search(r"go1\.(\d+)", result.stdout)
    return int(match[1]) if match else 0


def install(packages: list[str]) -> bool:
    """Install Debian packages; False where that is not ours to do or did not work."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    print(f"installing {' '.join(packages)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *packages],
    ):
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            return False
    return True


def main() -> int:
    missing = [program for program in PROGRAMS if program.missing()]
    if not missing:
        return 0
    install([package for program in missing for package in program.packages])
    still_missing = [(program, why) for program in missing if (why := program.missing())]
    for program, why in still_missing:
        print(
            f"{why}; it is needed for {program.needed_for}. "
            f"On Debian: apt-get install {' '.join(program.packages)}",
            file=sys.stderr,
        )
    return 1 if still_missing else 0


if __name__ == "__main__":
    sys.exit(main())
