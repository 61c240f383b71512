"""Values that other charts accept and that fail later: refused here, with the value's path and the remedy."""

from typing import Any

import helm_python
import pytest

from tests.charts import changed, quick, render

MONITORED = {"monitoring__prometheusRule__enabled": True}


def override(expression: str) -> dict[str, Any]:
    overrides = {"DumpIngestLagHigh": {"expr": expression}}
    return MONITORED | {"monitoring__prometheusRule__overrides": overrides}


def rule(**fields: Any) -> dict[str, Any]:
    return {"anomalyRules__rules": [fields]}


#: An example, what is wrong on top of it, the path that the message names, and the remedy that it gives.
HOSTILE: list[tuple[str, dict[str, Any], str, str]] = [
    ("daemonset", {"image__repository": ""}, "image.repository", "docker build -f deploy/Dockerfile"),
    ("daemonset", {"image__repository": "r.example.com/x:1"}, "image.repository", "image.tag"),
    ("company", {"image__repository": "registry.example.com/mirror/x"}, "image.repository", "leave it out"),
    ("daemonset", {"kubeVersionOverride": "1.28"}, "watcher.worker.nativeSidecar", "upgrade the cluster, or"),
    ("sidecar", {"kubeVersionOverride": "v1.28.9"}, "watcher.worker.nativeSidecar", "nativeSidecar=false"),
    ("standalone", {"kubeVersionOverride": "1.24"}, "kubeVersionOverride", "1.25 or newer"),
    (
        "standalone",
        {"kubeVersionOverride": "1.26", "gc__enabled": True, "gc__timeZone": "UTC"},
        "gc.timeZone",
        "leave it empty",
    ),
    ("daemonset", {"dump__mountPath": "/tmp"}, "dump.mountPath", "choose another directory"),  # noqa: S108  in a container
    ("daemonset", {"dump__mountPath": "/data/../etc/dump-ingest"}, "dump.mountPath", "another directory"),
    ("daemonset", {"dump__mountPath": "/opt"}, "dump.mountPath", "would hide /opt/dump-ingest"),
    ("daemonset", {"dump__mountPath": "/"}, "dump.mountPath", "choose another directory"),
    ("daemonset", {"dump__mountPath": "/etc/dask/dumps"}, "dump.mountPath", "read-only"),
    (
        "deployment",
        {"storage__mountPath": "/dumps/store", "config__store": "/dumps/store/a"},
        "storage.mountPath",
        "separate directories",
    ),
    (
        "daemonset",
        {
            "watcher__extraVolumes": [{"name": "a", "emptyDir": {}}],
            "watcher__extraVolumeMounts": [{"name": "a", "mountPath": "/usr"}],
        },
        "watcher.extraVolumeMounts[0].mountPath",
        "choose another directory",
    ),
    (
        "daemonset",
        {"watcher__extraVolumeMounts": [{"name": "missing", "mountPath": "/a"}]},
        "watcher.extraVolumeMounts[0].name",
        "add it to watcher.extraVolumes",
    ),
    (
        "daemonset",
        {"watcher__extraVolumes": [{"name": "dump-ingest-tmp", "emptyDir": {}}]},
        "watcher.extraVolumes[0].name",
        "choose a name",
    ),
    (
        "daemonset",
        {"commonLabels": {"app.kubernetes.io/name": "mine"}},
        "commonLabels.app.kubernetes.io/name",
        "choose another name",
    ),
    (
        "daemonset",
        {"watcher__podLabels": {"app.kubernetes.io/component": "x"}},
        "watcher.podLabels.app.kubernetes.io/component",
        "choose another name",
    ),
    (
        "daemonset",
        {"scheduler__podLabels": {"run1-dump-ingest-client": "false"}},
        "scheduler.podLabels.run1-dump-ingest-client",
        "choose another name",
    ),
    ("daemonset", {"commonLabels": {"team": "the best"}}, "commonLabels.team", "put it into annotations"),
    ("daemonset", {"commonLabels": {"a b": "c"}}, "commonLabels.a b", "use letters, digits"),
    *(
        ("deployment", {"gc__schedule": line}, "gc.schedule", "write five fields")
        for line in (
            "every day",
            "17 3 * *",
            "61 3 * * *",
            "17 24 * * *",
            "17 3 * * 8",
            "17 3 * * * *",
            "*/0 3 * * *",
        )
    ),
    ("deployment", {"gc__schedule": "TZ=UTC 17 3 * * *"}, "gc.schedule", "belongs into gc.timeZone"),
    ("deployment", {"gc__extraArgs": ["--oldr-than=30d"]}, "gc.extraArgs[0]", "there are --"),
    ("deployment", {"gc__extraArgs": ["30d"]}, "gc.extraArgs[0]", "--older-than"),
    ("deployment", {"gc__extraArgs": ["--older-than"]}, "gc.extraArgs", "--older-than=VALUE"),
    ("deployment", {"gc__extraArgs": ["--keep-anomalous=yes"]}, "gc.extraArgs[0]", "write --keep-anomalous"),
    ("deployment", {"gc__extraArgs": ["--config=/a"]}, "gc.extraArgs[0]", "use config"),
    ("deployment", {"consolidator__extraArgs": ["--poll=1"]}, "consolidator.extraArgs[0]", "pollSeconds"),
    ("deployment", {"watcher__extraArgs": ["--metrcis=:1"]}, "watcher.extraArgs[0]", "there are --"),
    ("deployment", {"worker__extraArgs": ["--nthreads=9"]}, "worker.extraArgs[0]", "use worker.threads"),
    ("daemonset", {"scheduler__extraArgs": ["--port=1"]}, "scheduler.extraArgs[0]", "use scheduler.port"),
    (
        "monitoring",
        {"monitoring__podMonitor__interval": "5s"},
        "monitoring.podMonitor.scrapeTimeout",
        "raise the interval",
    ),
    (
        "monitoring",
        {"monitoring__serviceMonitor__scrapeTimeout": "1m30s"},
        "monitoring.serviceMonitor.scrapeTimeout",
        "lower it",
    ),
    (
        "monitoring",
        {"monitoring__podMonitor__interval": "5m"},
        "monitoring.podMonitor.interval",
        "at most 2m",
    ),
    *(
        ("daemonset", MONITORED | {"monitoring__prometheusRule__ruleLabels": labels}, path, remedy)
        for labels, path, remedy in (
            ({"severity": "page"}, "ruleLabels.severity", "monitoring.prometheusRule.overrides"),
            ({"run": "mine"}, "ruleLabels.run", "choose another label"),
            ({"my-team": "ml"}, "ruleLabels.my-team", "letters, digits and _"),
        )
    ),
    (
        "monitoring",
        {"monitoring__podMonitor__interval": "0s"},
        "monitoring.podMonitor.interval",
        "at least 1s",
    ),
    (
        "monitoring",
        {"monitoring__podMonitor__tlsConfig": {"insecureSkipVerify": True}},
        "monitoring.podMonitor.tlsConfig",
        "set it to https",
    ),
    (
        "monitoring",
        {"monitoring__podMonitor__relabelings": [{"targetLabel": "job", "replacement": "x"}]},
        "monitoring.podMonitor.relabelings",
        "write another targetLabel",
    ),
    *(
        ("daemonset", override(expression), "overrides.DumpIngestLagHigh.expr", said)
        for expression, said in (
            ("sum(up", "brackets ( have no partner"),
            ("up{job=~'a'} > 0)", "brackets ) have no partner"),
            ("rate(up[5m) > 0", "have no partner"),
            ('up{job="a} > 0', "quotation mark has no partner"),
            ("up = 0", "write =="),
            ("up ==", "nothing after it"),
            ("and up > 0", "nothing before it"),
            ("up > < 0", "two operators"),
            ("up > 0 && up < 1", "write and"),
        )
    ),
    ("daemonset", rule(name="inf", no_such_field=1), "/anomalyRules/rules/0", "no_such_field"),
    ("daemonset", rule(name="mine", kind="rnage"), "/anomalyRules/rules/0/kind", "range"),
    ("daemonset", rule(name="mine"), "/anomalyRules/rules/0/name", "inf"),
    ("daemonset", rule(name="Mine", kind="zeros"), "/anomalyRules/rules/0/name", "pattern"),
    ("daemonset", rule(name="mine", kind="condition"), "/anomalyRules/rules/0", "where"),
    (
        "daemonset",
        rule(name="mine", kind="condition", where="nan_cuont > 0"),
        "anomalyRules.rules[0].where",
        "there are array,",
    ),
    (
        "daemonset",
        rule(name="mine", kind="condition", where="(nan_count > 0"),
        "anomalyRules.rules[0].where",
        "dump-ingest rules validate",
    ),
    (
        "daemonset",
        rule(name="mine", kind="condition", where="nan_count >"),
        "anomalyRules.rules[0].where",
        "write one such as",
    ),
    (
        "daemonset",
        rule(name="mine", kind="condition", where="nan_count = 1"),
        "anomalyRules.rules[0].where",
        "write one such as",
    ),
    (
        "deployment",
        {"worker__resources": {"limits": {"memory": "2 GB"}}},
        "worker.resources.limits.memory",
        "write 2Gi",
    ),
    (
        "daemonset",
        {"watcher__worker__resources": {"limits": {"memory": "512m"}}},
        "watcher.worker.resources.limits.memory",
        "write a unit",
    ),
    (
        "daemonset",
        {"watcher__resources": {"requests": {"cpu": "half"}}},
        "watcher.resources.requests.cpu",
        "500m",
    ),
    (
        "daemonset",
        {"scheduler__resources": {"requests": {"memory": "3Gi"}, "limits": {"memory": "2G"}}},
        "scheduler.resources.limits.memory",
        "raise the limit",
    ),
    ("daemonset", {"config__store": "s3://AK:SK@bucket/x"}, "config.store", "storage.existingSecret"),
    ("daemonset", {"config__webhook": "https://me:pw@chat/1"}, "config.webhook", "webhook.existingSecret"),
    (
        "daemonset",
        {"storage__endpointUrl": "https://a:b@s3"},
        "storage.endpointUrl",
        "storage.existingSecret",
    ),
    (
        "daemonset",
        {"config__store_options": {"client_kwargs": {"aws_secret_access_key": "x"}}},
        "config.store_options.client_kwargs.aws_secret_access_key",
        "storage.existingSecret",
    ),
    (
        "daemonset",
        {"extraEnv": [{"name": "AWS_SECRET_ACCESS_KEY", "value": "x"}]},
        "extraEnv[0] (AWS_SECRET_ACCESS_KEY)",
        "valueFrom.secretKeyRef",
    ),
    (
        "daemonset",
        {"watcher__extraEnv": [{"name": "HTTPS_PROXY", "value": "http://a:b@proxy:1"}]},
        "watcher.extraEnv[0] (HTTPS_PROXY)",
        "valueFrom.secretKeyRef",
    ),
    (
        "daemonset",
        {"extraEnv": [{"name": "DUMP_INGEST_STORE", "value": "s3://b/c"}]},
        "extraEnv[0] (DUMP_INGEST_STORE)",
        "use config.store",
    ),
    ("keda", {"worker__autoscaling__minReplicas": 0}, "worker.autoscaling.minReplicas", "at least 1"),
    (
        "autoscaling",
        {"verticalPodAutoscaler": {"enabled": True, "controlledResources": ["cpu"]}},
        "verticalPodAutoscaler.controlledResources",
        "use [memory]",
    ),
    ("sidecar", {"watcher__hostNetwork": True}, "watcher.hostNetwork", "pod template of the training job"),
    ("sidecar", {"watcher__nodeSelector": {"a": "b"}}, "watcher.nodeSelector", "set it in the pod template"),
    ("daemonset", {"watcher__sidecar__dumpVolume": "d"}, "watcher.sidecar.dumpVolume", "use dump.hostPath"),
    ("daemonset", {"page__enabled": True}, "page.enabled", "page.existingSecret"),
    ("daemonset", {"page__ingress__enabled": True}, "page.ingress.enabled", "set page.enabled=true"),
    *(
        ("page", {"page__existingSecret": "", "page__allowAnyone": True} | change, path, remedy)
        for change, path, remedy in (
            ({"page__ingress__enabled": False}, "page.httpRoute.enabled", "page.trustHeader"),
            ({"page__httpRoute__enabled": False}, "page.ingress.enabled", "page.existingSecret"),
        )
    ),
    ("page", {"page__allowAnyone": True}, "page.allowAnyone", "set one of them"),
    ("page", {"page__httpRoute__parentRefs": []}, "page.httpRoute.parentRefs", "name: public"),
    ("page", {"page__basePath": "/other"}, "page.basePath", "set page.basePath=/llama-7b"),
    ("page", {"page__basePath": "llama"}, "/page/basePath", "pattern"),
    ("page", {"page__trustHeader": "X-User: me"}, "/page/trustHeader", "pattern"),
    ("page", {"networkPolicy__enabled": False}, "page.from", "leave page.from empty"),
    *(
        ("page", {"page__existingSecret": "", "page__trustHeader": "X-User"} | change, path, remedy)
        for change, path, remedy in (
            ({"page__from": []}, "page.from", "app: oauth2-proxy"),
            ({"networkPolicy__enabled": False}, "page.trustHeader", "networkPolicy.enabled is false"),
            ({"page__hostNetwork": True}, "page.trustHeader", "page.existingSecret"),
            ({"page__service__type": "LoadBalancer"}, "page.service.type", "use ClusterIP"),
        )
    ),
    ("page", {"page__extraArgs": ["--token-file=/a"]}, "page.extraArgs[0]", "use page.existingSecret"),
    ("page", {"page__extraArgs": ["--no-such"]}, "page.extraArgs[0]", "there are --"),
    ("page", {"config__page_url": "https://a:b@host/llama-7b"}, "config.page_url", "leave them out"),
    ("daemonset", {"config__expected_ranks": 4}, "/config", "expected_ranks"),
    ("daemonset", {"config__store": "file:///tmp/run.zarr"}, "config.store", "storage.mountPath"),
    ("daemonset", {"config__store": "s3://bucket/run.zarr "}, "config.store", "take it out"),
    ("daemonset", {"config__pressure_free": "120%"}, "config.pressure_free", "10% or 200GB"),
    ("daemonset", {"config__cpus": "3-1"}, "config.cpus", "lower number first"),
    ("daemonset", {"config__cpus": "a"}, "config.cpus", "0-3,8"),
    ("daemonset", {"config__mesh": "tp=2,dp"}, "config.mesh", "tp=2,dp=4"),
    ("daemonset", {"config__rank_map": "0=8,0=9"}, "config.rank_map", "leave one of them out"),
    ("daemonset", {"config__layout": "{module}.pt"}, "config.layout", "rank{rank}/step{step}"),
    ("daemonset", {"config__continues": ["dumps"]}, "config.continues[0]", "dump-ingest ls --json"),
    ("daemonset", {"image__tag": "a b"}, "/image/tag", "pattern"),
    ("daemonset", {"extraManifests": [{"kind": "Secret"}]}, "/extraManifests/0", "apiVersion"),
    ("daemonset", {"extraEnv": [{"name": "X", "value": 1}]}, "/extraEnv/0/value", "want string"),
    (
        "daemonset",
        {"extraEnv": [{"name": "X", "value": "1"}, {"name": "X", "value": "2"}]},
        "extraEnv[1] (X)",
        "leave one of them out",
    ),
    (
        "daemonset",
        {"watcher__extraVolumes": [{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]},
        "watcher.extraVolumes[1].name",
        "choose another name",
    ),
    *(
        ("daemonset", {"watcher__extraContainers": [{"name": name, "image": "x"}]}, path, "another name")
        for name, path in (
            ("watcher", "watcher.extraContainers[0].name"),
            ("worker-0", "watcher.extraContainers[0].name"),
        )
    ),
    (
        "daemonset",
        {"watcher__updateStrategy": {"type": "Recreate"}},
        "watcher.updateStrategy.type",
        "RollingUpdate, OnDelete",
    ),
    (
        "daemonset",
        {"watcher__updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}},
        "watcher.updateStrategy.rollingUpdate.maxUnavailable",
        "at least 1",
    ),
    ("deployment", {"gc__schedule": "17 3 31 2 *"}, "gc.schedule", "choose another day"),
    (
        "monitoring",
        {"monitoring__prometheusRule__runbookUrlPrefix": "wiki"},
        "/monitoring/prometheusRule/runbookUrlPrefix",
        "pattern",
    ),
    ("daemonset", {"expectedRanks": 0}, "/expectedRanks", "minimum"),
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "values", "path", "remedy"), HOSTILE, ids=[f"{case[2]}-{n}" for n, case in enumerate(HOSTILE)]
)
def test_hostile_value_is_refused_with_path_and_remedy(
    name: str, values: dict[str, Any], path: str, remedy: str
) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        render(changed(quick(name), **values))
    assert path in refused.value.detail
    assert remedy in refused.value.detail


RIGHT: list[tuple[str, dict[str, Any]]] = [
    *(
        ("daemonset", rule(name="mine", kind="condition", where=where))
        for where in ("inf_count > 0", "p99.9 > 1e4", "outlier_channels > 0 or underflow_e4m3 > 0.01")
    ),
    ("tls-cert-manager", {"kubeVersionOverride": "1.27"}),
    ("daemonset", {"dump__mountPath": "/tmp/dumps"}),  # noqa: S108  in a container
    *(
        ("deployment", {"gc__schedule": line})
        for line in ("*/15 0-6,22 1,15 JAN-Mar mon-fri", "@daily", "0 3 ? * 0")
    ),
    ("deployment", {"gc__schedule": "17 3 31 1-12 *"}),
    ("daemonset", {"config__pressure_free": "200GB", "config__cpus": "0-3,8", "config__mesh": "tp=2"}),
    ("daemonset", {"config__rank_map": {"0": 8, "1": 9}, "config__cpus": "3"}),
    ("daemonset", {"watcher__updateStrategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}}),
    ("deployment", {"worker__updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}}),
    ("deployment", {"gc__extraArgs": ["--older-than", "30d", "--keep-anomalous", "--max-size=2TiB"]}),
    ("deployment", {"consolidator__extraArgs": ["--workers=4"]}),
    *(
        ("daemonset", override(expression))
        for expression in (
            'sum by (run) (rate(dump_ingest_watcher_troubles_total{a="}"}[5m])) > bool 0 # it\'s a comment',
            "-up == -1 unless on (job) group_left () absent(up{job=~'a|(b'}) offset 5m",
            '{__name__=~"dump_.*"} >= 3 or time() - up > 10 * 60',
        )
    ),
    ("daemonset", rule(name="inf", enabled=False)),
    ("daemonset", rule(name="nan", where='op_type == "Log" and not (nan_count > 0)')),
    ("daemonset", rule(name="mine", kind="condition", where="abs(max) > 1e3 and io in ('input', 'output')")),
    ("daemonset", rule(name="mine", kind="zeros", include="*.weight", rank="0-7")),
    ("deployment", {"worker__resources": {"limits": {"memory": 2**31, "cpu": 1.5, "vendor.com/npu": 1}}}),
    ("daemonset", {"extraEnv": [{"name": "AWS_WEB_IDENTITY_TOKEN_FILE", "value": "/token"}]}),
    ("daemonset", {"config__store": "s3://bucket/a@b.zarr"}),
    ("daemonset", {"page__enabled": True, "page__allowAnyone": True}),
    ("page", {"page__existingSecret": "", "page__trustHeader": "X-Forwarded-User"}),
    ("page", {"config__page_url": "https://dumps.example.com/llama-7b/"}),
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "values"), RIGHT, ids=[str(n) for n in range(len(RIGHT))])
def test_value_that_only_looks_wrong_is_accepted(name: str, values: dict[str, Any]) -> None:
    render(changed(quick(name), **values))
