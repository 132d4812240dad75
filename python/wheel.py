"""Makes the wheel of peerdma, by the specification of binary distributions.

``cargo xtask dist`` calls it with the program and the libraries of one architecture. The result
depends on nothing else: no time, no user, no order of directories.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LICENCES = ("LICENSE-APACHE", "LICENSE-MIT")

METADATA = """\
Metadata-Version: 2.4
Name: peerdma
Version: {version}
Summary: RDMA to any memory, on any Linux machine: a software RDMA NIC in user space
License-Expression: MIT OR Apache-2.0
{licences}
Keywords: rdma,roce,verbs,libibverbs,gpudirect,pytest
Classifier: Development Status :: 4 - Beta
Classifier: Framework :: Pytest
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Topic :: Software Development :: Testing
Classifier: Typing :: Typed
Requires-Python: >=3.9
Description-Content-Type: text/markdown

{description}"""

WHEEL = """\
Wheel-Version: 1.0
Generator: peerdma {version}
Root-Is-Purelib: false
Tag: {tag}
"""

ENTRY_POINTS = """\
[console_scripts]
peerdma = peerdma:main

[pytest11]
peerdma = peerdma.pytest_plugin
"""


def files(version: str, tag: str, built: Path) -> dict[str, tuple[bytes, int]]:
    """Each file's contents and permissions, by its name in the archive."""
    info = f"peerdma-{version}.dist-info"
    found: dict[str, tuple[bytes, int]] = {}
    for path in sorted((HERE / "peerdma").iterdir()):
        if path.is_file():
            found[f"peerdma/{path.name}"] = (path.read_bytes(), 0o644)
    # Not in the package: what a program leaves here (directories of names) would keep an empty
    # package alive after the wheel is uninstalled.
    for path in sorted(built.iterdir()):
        if path.is_file():
            found[f"peerdma.libs/{path.name}"] = (path.read_bytes(), 0o755)
    metadata = METADATA.format(
        version=version,
        licences="\n".join(f"License-File: {name}" for name in LICENCES),
        description=(ROOT / "README.md").read_text(encoding="utf-8"),
    )
    texts = {
        "METADATA": metadata,
        "WHEEL": WHEEL.format(version=version, tag=tag),
        "entry_points.txt": ENTRY_POINTS,
    }
    for name, text in texts.items():
        found[f"{info}/{name}"] = (text.encode(), 0o644)
    for name in LICENCES:
        found[f"{info}/licenses/{name}"] = ((ROOT / name).read_bytes(), 0o644)
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name, (data, _) in found.items():
        rows.writerow([name, f"sha256={checksum(data)}", len(data)])
    rows.writerow([f"{info}/RECORD", "", ""])
    found[f"{info}/RECORD"] = (record.getvalue().encode(), 0o644)
    return found


def checksum(data: bytes) -> str:
    """The SHA-256 as RECORD has it: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def main() -> None:
    """Writes the wheel and prints its path."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True)
    parser.add_argument("--tag", required=True, help="py3-none-manylinux_2_28_x86_64, say")
    parser.add_argument("--built", required=True, type=Path, help="program and libraries, stripped")
    parser.add_argument("--out", required=True, type=Path, help="the directory of the wheel")
    given = parser.parse_args()
    path = given.out / f"peerdma-{given.version}-{given.tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, (data, mode) in files(given.version, given.tag, given.built).items():
            # The first date that the format can express.
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data, compresslevel=9)
    print(path)


if __name__ == "__main__":
    main()
