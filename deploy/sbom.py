"""Bill of materials of an image's root directory: CycloneDX 1.5 as JSON, to standard output.

    python3 sbom.py NAME ROOT [REPORT]

NAME is the name of the image; its version is that of ./pyproject.toml. Below ROOT are

- the packages of Debian, as dpkg or image_root.py listed them;
- Python's distributions in /opt, each with the programs and libraries inside its wheel, if the
  wheel lists them (PEP 770);
- the jars of PySpark, each with the artifacts packed in it, if the jar lists them.

Hashes are those of the downloads: of Debian's packages from apt, of Python's packages from the
REPORT of `pip install`, of jars from the files themselves. The output does not depend on the
time or the directory. Packages built from source have no hash.
"""

# ruff: noqa: S603, S607, T201 - a script, for the person or the job that runs it

import argparse
import hashlib
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from email import message_from_string
from fnmatch import fnmatchcase
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zipfile import ZipFile

_KEPT = ("type", "name", "version", "purl", "hashes", "licenses")
"""Fields copied from a wheel's own bill; the others refer to other parts of that bill."""

_GROUPS = {
    "RoaringBitmap": "org.roaringbitmap",
    "analyticsaccelerator-s3": "software.amazon.s3.analyticsaccelerator",
    "chill*": "com.twitter",
    "hadoop-*": "org.apache.hadoop",
    "ivy": "org.apache.ivy",
    "jackson-module-scala_*": "com.fasterxml.jackson.module",
    "json4s-*": "org.json4s",
    "jsr305": "com.google.code.findbugs",
    "kafka-clients": "org.apache.kafka",
    "objenesis": "org.objenesis",
    "reactive-streams": "org.reactivestreams",
    "scala-library": "org.scala-lang",
    "scala-reflect": "org.scala-lang",
    "scala-*_*": "org.scala-lang.modules",
    "snappy-java": "org.xerial.snappy",
    "third-party-jackson-core": "software.amazon.awssdk",
    "tink": "com.google.crypto.tink",
    "xz": "org.tukaani",
    "zstd-jni": "com.github.luben",
}
"""Group of each artifact whose jar has no pom.properties of its own: Maven did not pack it."""


def sha256(digest: str) -> list[dict[str, str]]:
    """Write a digest as CycloneDX has it."""
    return [{"alg": "SHA-256", "content": digest}]


def purl_of_python(name: str, version: str) -> str:
    """Name a distribution, by the package URL's rules for PyPI."""
    return f"pkg:pypi/{re.sub('[-_.]+', '-', name).lower()}@{version}"


def downloaded(report: Path) -> dict[str, str]:
    """Digests by package URL, from the report of `pip install --report`.

    A wheel that was built here, rather than downloaded, has a digest that no lock file has.
    """
    locks = "".join(file.read_text() for file in sorted(Path("requirements").glob("*.lock")))
    found = {}
    for one in json.loads(report.read_text())["install"]:
        purl = purl_of_python(one["metadata"]["name"], one["metadata"]["version"])
        digest = one["download_info"]["archive_info"]["hash"].removeprefix("sha256=")
        if digest in locks:
            found[purl] = digest
    return found


def licenses(distribution: Distribution) -> list[dict[str, Any]]:
    """Licences: one expression (PEP 639), or what the classifiers name."""
    metadata = distribution.metadata
    if expressions := metadata.get_all("License-Expression", []):
        return [{"expression": expressions[0]}]
    classifiers = [one.split(" :: ") for one in metadata.get_all("Classifier", [])]
    names = [one[-1] for one in classifiers if one[0] == "License"]
    return [{"license": {"name": name}} for name in names]


def inside(distribution: Distribution) -> list[dict[str, Any]]:
    """What a wheel has inside, by the bills that it brings along."""
    files = [one for one in distribution.files or [] if one.parent.name == "sboms"]
    bills = [json.loads(one.read_text()) for one in sorted(files)]
    parts = [part for bill in bills for part in bill.get("components", ())]
    return [{key: part[key] for key in _KEPT if key in part} for part in parts]


def python_components(root: Path, digests: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Describe the distributions of the root's environments."""
    places = [str(place) for place in root.glob("opt/*/lib/python3*/site-packages")]
    for distribution in distributions(path=places):
        name, version = distribution.metadata["Name"], distribution.version
        purl = purl_of_python(name, version)
        found = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        more = {"licenses": licenses(distribution), "components": inside(distribution)}
        if purl in digests:
            more["hashes"] = sha256(digests[purl])
        yield found | {key: value for key, value in more.items() if value}


def debian_components(root: Path) -> Iterator[dict[str, Any]]:
    """Describe the packages of Debian: those that dpkg installed, and those that files are from."""
    listings = [root / "var/lib/dpkg/status", *(root / "var/lib/dpkg/status.d").glob("*")]
    texts = [file.read_text() for file in listings if file.is_file()]
    for stanza in (one for text in texts for one in re.split(r"\n{2,}", text.strip())):
        package = message_from_string(stanza)
        if package["Status"] != "install ok installed":
            continue
        name, version = package["Package"], package["Version"]
        distribution = (root / "etc/debian_version").read_text().partition(".")[0].strip()
        purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}"
        purl += f"?arch={package['Architecture']}&distro=debian-{distribution}"
        found = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        yield found | _of_archive(f"{name}={version}")


def _of_archive(package: str) -> dict[str, Any]:
    """The digest of its file in Debian's archive, if that has this version still."""
    shown = subprocess.run(
        ["apt-cache", "show", package], capture_output=True, text=True, check=False
    ).stdout
    digest = message_from_string(shown)["SHA256"]
    return {"hashes": sha256(digest)} if digest else {}


def java_components(root: Path) -> Iterator[dict[str, Any]]:
    """Describe the jars of PySpark, by the pom.properties that Maven adds to each jar."""
    for file in sorted(root.glob("opt/*/lib/python3*/site-packages/pyspark/jars/*.jar")):
        with ZipFile(file) as jar:
            artifacts = [
                dict(re.findall(r"^(groupId|artifactId|version)=(\S+)", text, re.M))
                for name in sorted(jar.namelist())
                if re.fullmatch(r"META-INF/maven/[^/]+/[^/]+/pom\.properties", name)
                for text in [jar.read(name).decode()]
            ]
        whole = [one for one in artifacts if len(one) == 3]
        own = next((one for one in whole if is_of(file.stem, one)), None) or by_name(file.stem)
        classifier = file.stem.removeprefix(f"{own['artifactId']}-{own['version']}").lstrip("-")
        described = maven(own, classifier)
        found = {"type": "library", "bom-ref": described["purl"]} | described
        parts = [{"type": "library"} | maven(one) for one in whole if one != own]
        more = {"hashes": sha256(hashlib.sha256(file.read_bytes()).hexdigest())}
        yield found | more | ({"components": parts} if parts else {})


def is_of(stem: str, artifact: dict[str, str]) -> bool:
    """Whether a jar's name is that of an artifact, with a classifier or without."""
    return f"{stem}-".startswith(f"{artifact['artifactId']}-{artifact['version']}-")


def by_name(stem: str) -> dict[str, str]:
    """Return the artifact of a jar without a pom.properties of its own."""
    name, _, version = re.sub(r"-(?=\d)", " ", stem, count=1).partition(" ")
    group = next((group for pattern, group in _GROUPS.items() if fnmatchcase(name, pattern)), None)
    if group is None:
        raise SystemExit(f"{stem}.jar has no pom.properties of its own: add its groupId to _GROUPS")
    return {"groupId": group, "artifactId": name, "version": version}


def maven(artifact: dict[str, str], classifier: str = "") -> dict[str, str]:
    """Describe an artifact, by the package URL's rules for Maven."""
    group, name, version = (artifact[key] for key in ("groupId", "artifactId", "version"))
    purl = f"pkg:maven/{quote(group)}/{quote(name)}@{quote(version)}"
    purl += f"?classifier={quote(classifier)}" if classifier else ""
    return {"group": group, "name": name, "version": version, "purl": purl}


def bill(name: str, version: str, components: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the bill together; the image's own distribution is its subject rather than a part."""
    own = purl_of_python(name, version)
    subject = {"type": "container", "bom-ref": f"{name}@{version}", "name": name} | {
        "version": version,
        "components": [one for one in components if one["purl"] == own],
    }
    others = [one for one in components if one["purl"] != own]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": subject},
        "components": sorted(others, key=lambda one: str(one["purl"])),
    }


def main() -> None:
    """Print the bill."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("root", type=Path, metavar="ROOT")
    parser.add_argument("report", type=Path, nargs="?", metavar="REPORT")
    arguments = parser.parse_args()
    version = tomllib.loads(Path("pyproject.toml").read_text())["project"]["version"]
    digests = downloaded(arguments.report) if arguments.report else {}
    components = list(python_components(arguments.root, digests))
    components += debian_components(arguments.root)
    components += java_components(arguments.root)
    print(json.dumps(bill(arguments.name, version, components), indent=1))


if __name__ == "__main__":
    main()
