"""The page in Kubernetes: who reaches it, what it may do, and what leads to it."""

from typing import Any

import pytest

from tests.charts import changed, containers, find, objects, of_profile, profile, quick, words


def page_pod(rendered: Any) -> Any:
    return find(rendered, "Deployment", "-page")["spec"]["template"]


def test_the_page_asks_for_the_token_of_the_secret_and_only_reads() -> None:
    pod = page_pod(of_profile("page"))
    (container,) = containers(pod)
    assert "--token-file=/etc/dump-ingest-page/token" in words(container)
    assert "--allow-anyone" not in words(container)
    (secret,) = (volume["secret"] for volume in pod["spec"]["volumes"] if "secret" in volume)
    assert secret == {"secretName": "page-token", "items": [{"key": "token", "path": "token"}]}
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/tmp"}  # noqa: S108  in a container
    assert not [mount for mount in container["volumeMounts"] if mount["name"] == "dump-ingest-dump"]


def test_ingress_and_route_lead_to_the_port_of_the_service() -> None:
    rendered = of_profile("page")
    service = find(rendered, "Service", "-page")
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]
    ingress = find(rendered, "Ingress", "-page")["spec"]
    (path,) = ingress["rules"][0]["http"]["paths"]
    assert (path["path"], path["pathType"]) == ("/llama-7b", "Prefix")
    assert path["backend"]["service"] == {"name": name, "port": {"name": port["name"]}}
    assert ingress["tls"] == [{"secretName": "dumps-example-com", "hosts": ["dumps.example.com"]}]
    (rule,) = find(rendered, "HTTPRoute", "-page")["spec"]["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/llama-7b"}}]
    assert rule["backendRefs"] == [{"name": name, "port": port["port"]}]


def test_only_the_named_peers_reach_a_page_that_trusts_a_header() -> None:
    """Anyone else could write the header; who scrapes may not be anybody either."""
    proxy = [{"podSelector": {"matchLabels": {"app": "oauth2-proxy"}}}]
    values = changed(profile("page"), page__existingSecret="", page__trustHeader="X-User", page__from=proxy)
    monitoring = values["networkPolicy"]["monitoringFrom"]
    choices: list[list[Any]] = [monitoring, []]
    for scrapers in choices:
        rendered = objects(changed(values, networkPolicy__monitoringFrom=scrapers))
        (rule,) = find(rendered, "NetworkPolicy", "-page")["spec"]["ingress"]
        assert rule == {"ports": [{"protocol": "TCP", "port": "page"}], "from": proxy + scrapers}


@pytest.mark.parametrize(("name", "port"), [("page", "metrics"), ("sidecar", "di-metrics")])
def test_the_page_may_ask_every_watcher_of_the_release(name: str, port: str) -> None:
    """Also where only the monitoring may reach metrics, and where what leaves pods is restricted."""
    values = changed(
        quick(name),
        page__enabled=True,
        page__existingSecret="page-token",
        networkPolicy__egress__enabled=True,
        networkPolicy__monitoringFrom=[{"podSelector": {}}],
    )
    rendered = objects(values)
    (container,) = containers(page_pod(rendered))
    assert "--watchers=run1-dump-ingest-watchers.train.svc:9108" in words(container)
    service = find(rendered, "Service", "-watchers")["spec"]
    assert service["clusterIP"] == "None"
    assert service["ports"][0]["targetPort"] == port
    labels = page_pod(rendered)["metadata"]["labels"]
    rules = find(rendered, "NetworkPolicy", "-watcher")["spec"]["ingress"]
    admitted = [
        rule
        for rule in rules
        for peer in rule.get("from", ())
        if peer["podSelector"].get("matchLabels", {"": ""}).items() <= labels.items()
    ]
    assert [rule["ports"] for rule in admitted] == [[{"protocol": "TCP", "port": port}]]
    egress = find(rendered, "NetworkPolicy", "-egress")["spec"]["egress"]
    to_watchers = {"podSelector": {"matchLabels": service["selector"]}}
    assert {"to": [to_watchers], "ports": [{"protocol": "TCP", "port": 9108}]} in egress
