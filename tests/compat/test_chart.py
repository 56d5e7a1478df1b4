"""The Helm chart: Helm renders it, the Kubernetes API knows every field, chronik reads its cluster file.

Guards O01.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from chronik.config_sources import load_settings
from chronik.links.authority import CA_FILE, node_files
from tests.node import SOURCE

ROOT = SOURCE.parent
CHART = ROOT / "deploy" / "helm" / "chronik"
KINDS = ["ConfigMap", "PodDisruptionBudget", "Service", "Service", "StatefulSet"]


def render(chart: Path, *values: str) -> subprocess.CompletedProcess[str]:
    """tools/chart, which `make foreign` builds: `helm template` and strict decoding into the API's types."""
    command = [str(ROOT / ".foreign" / "go" / "chart"), str(chart), *values]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "value",
    [
        "replicas=3",
        "replicas=5",
        "tlsSecretName=web",
        "kafkaTlsSecretName=clients",
        "nodeTlsSecretName=nodes,clusterId=orders",
        "storage.className=fast",
        "objectStore.url=s3://logs/orders,objectStore.secretName=store",
    ],
)
def test_every_manifest_is_valid(value: str) -> None:
    done = render(CHART, value)
    assert done.returncode == 0, done.stderr
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == KINDS
    assert ("https" in done.stdout.lower()) == (value == "tlsSecretName=web")


def test_a_pod_starts_with_the_certificates_of_its_secrets(tmp_path: Path) -> None:
    """What the manifest tells the first and the third pod is what a node reads, and the files lie where the
    Secrets are mounted."""
    secrets = "kafkaTlsSecretName=clients,kafkaProtocol=SASL_SSL,nodeTlsSecretName=nodes,clusterId=orders"
    rendered = render(CHART, secrets).stdout
    given = dict(re.findall(r"\{name: (CHRONIK_\w+), value: \"?([^\"}]*)\"?\}", rendered))
    script = re.search(r"args:\n +- \|\n((?: {14}.*\n)+)", rendered)
    assert script is not None
    shell = textwrap.dedent(script[1]).replace("exec chronik start", "echo")
    (tmp_path / "cluster.toml").touch()
    for pod in (0, 2):
        pod_env = {"HOSTNAME": f"log-{pod}"}
        done = subprocess.run(
            ["/bin/sh", "-c", shell], env=pod_env, capture_output=True, text=True, check=True
        )
        words = done.stdout.split()
        pairs = zip(words[::2], words[1::2], strict=True)
        flags = {name[2:].replace("-", "_"): value for name, value in pairs}
        flags.pop("config")
        settings = load_settings(flags, given, tmp_path / "cluster.toml").settings
        assert settings.node_id == pod + 1
        assert settings.cluster_id == "orders"
        assert settings.listener_security_protocol_map == "KAFKA:SASL_SSL"
        cert, key = node_files(Path("/etc/chronik-node-tls"), pod + 1)
        assert (settings.node_tls_cert, settings.node_tls_key) == (cert, key)
        assert settings.node_tls_ca == Path("/etc/chronik-node-tls") / CA_FILE
        for name in ("kafka", "node"):
            assert f"name: {name}-tls, mountPath: /etc/chronik-{name}-tls" in rendered
    assert str(settings.kafka_tls_cert) == "/etc/chronik-kafka-tls/tls.crt"


def test_a_pod_gets_the_object_store_and_its_credentials(tmp_path: Path) -> None:
    values = "objectStore.url=s3://logs/orders,objectStore.endpoint=https://store:9000,objectStore.region=eu"
    rendered = render(CHART, f"{values},objectStore.secretName=store").stdout
    given = dict(re.findall(r"\{name: (CHRONIK_OBJECT\w+), value: \"([^\"]*)\"\}", rendered))
    secret = r"- name: (CHRONIK_OBJECT\w+)\n +valueFrom: \{secretKeyRef: \{name: \"store\", key: ([\w-]+)\}\}"
    given |= dict(re.findall(secret, rendered))
    settings = load_settings({}, given, None).settings
    assert settings.object_store == "s3://logs/orders"
    assert settings.object_store_endpoint == "https://store:9000"
    assert settings.object_store_region == "eu"
    assert settings.object_store_access_key_id == "access-key-id"
    assert settings.object_store_secret_access_key == "secret-access-key"
    assert "OBJECT_STORE" not in render(CHART).stdout


def test_node_certificates_need_the_id_that_they_are_bound_to() -> None:
    done = render(CHART, "nodeTlsSecretName=nodes")
    assert done.returncode == 1
    assert "nodeTlsSecretName needs clusterId" in done.stderr


def test_a_field_that_the_api_does_not_have_is_found(tmp_path: Path) -> None:
    chart = shutil.copytree(CHART, tmp_path / "chronik")
    path = chart / "templates" / "statefulset.yaml"
    path.write_text(path.read_text().replace("serviceName:", "servicename:"))
    done = render(chart)
    assert done.returncode == 1
    assert 'unknown field "spec.servicename"' in done.stderr


@pytest.mark.parametrize(
    ("there", "instead", "said"),
    [
        ("  serviceName:", "  # serviceName:", ""),
        ("  selector:\n", "  revisionHistoryLimit: 3\n  minReadySeconds: 1\n  x_selector:\n", "x_selector"),
        ("mountPath: /var/lib/chronik", "readOnly: false", "missing property 'mountPath'"),
        ("containerPort: 9092", "hostPort: 9092", "missing property 'containerPort'"),
    ],
)
def test_kubeconform_finds_what_the_api_requires(there: str, instead: str, said: str, tmp_path: Path) -> None:
    chart = shutil.copytree(CHART, tmp_path / "chronik")
    path = chart / "templates" / "statefulset.yaml"
    assert there in path.read_text()
    path.write_text(path.read_text().replace(there, instead, 1))
    done = render(chart)
    assert (done.returncode == 1) == bool(said)
    assert said in done.stderr


def test_each_pod_finds_itself_in_the_cluster_file(tmp_path: Path) -> None:
    rendered = render(CHART, "replicas=5").stdout
    found = re.search(r"  cluster\.toml: \|\n((?:    .*\n|\n)+)", rendered)
    assert found is not None
    (tmp_path / "cluster.toml").write_text(textwrap.dedent(found[1]))
    hosts = re.search(r"CHRONIK_HTTP_HOSTS, value: \"([^\"]*)\"", rendered)
    assert hosts is not None
    for pod in range(5):
        settings = load_settings(
            {"node_id": str(pod + 1)}, {"CHRONIK_HTTP_HOSTS": hosts[1]}, tmp_path / "cluster.toml"
        ).settings
        assert len(settings.peers) == 5
        assert str(settings.advertised(kafka_port=9092)) == f"log-{pod}.log-nodes.brokers.svc:9092"
        assert "log.brokers.svc" in settings.http_hosts
